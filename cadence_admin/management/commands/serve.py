"""`manage.py serve`: everything a first look needs, on this machine only."""

import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
from argparse import ArgumentParser
from pathlib import Path
from typing import Any, Final

from django.conf import settings
from django.core.management import call_command
from django.core.management.base import BaseCommand, CommandError
from django.db import DatabaseError

from approvals.importer import import_records
from approvals.models import DurableRecord
from cadence_admin.accounts import LOCAL_ACCOUNTS, ensure_local_accounts
from cadence_admin.origin import Origin, acting
from runs.mirror import name_state_roots

HOST: Final = "127.0.0.1"
WATCH_SECONDS: Final = 5
STOP_AFTER_S: Final = 10


class Command(BaseCommand):
    help = (
        "Prepare the database, mirror this user's Cadence state home (or the sample, if there is none), and serve the "
        "console on this machine's loopback address."
    )
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--port", type=int, default=8000)

    def handle(self, *args: Any, **options: Any) -> None:
        with acting(Origin("manage.py serve")):
            self._run(options)

    def _run(self, options: dict[str, Any]) -> None:
        port = options["port"]
        listener = _listen(port)
        local = not os.environ.get("DATABASE_URL")
        os.environ["CADENCE_BIND"] = f"{HOST}:{port}"
        os.environ["CADENCE_LOCAL_ACCOUNTS"] = "1" if local else "0"
        self.stdout.write("== Preparing the database")
        try:
            for alias in settings.DATABASES:
                call_command("migrate", database=alias, interactive=False, verbosity=0)
        except DatabaseError as error:
            raise CommandError(f"database-unavailable: {str(error).strip()}") from None
        call_command("collectstatic", interactive=False, verbosity=0)
        home = self._state_home()
        self.stdout.write(f"== Mirroring {home}")
        mirror = [sys.executable, "manage.py", "mirror_cadence", "--state-home", str(home)]
        subprocess.run(mirror, cwd=settings.BASE_DIR, check=False)
        name_state_roots(_sample(), "sample")
        if home == _sample() and local and not DurableRecord.objects.exists():
            import_records(Path(settings.SAMPLE_RECORDS))
        self._announce(port, local)
        self._serve(listener, [*mirror, "--watch", str(WATCH_SECONDS)])

    def _state_home(self) -> Path:
        if (settings.STATE_HOME / "abel-cadence" / "roots").is_dir():
            return Path(settings.STATE_HOME)
        self.stdout.write(
            f"   {settings.STATE_HOME} holds no Cadence state roots: the sample that ships with the project is shown."
        )
        if not _sample().exists():
            # A copy: leases in it can be reclaimed, which writes to the store.
            shutil.copytree(settings.SAMPLE_STATE_HOME, _sample())
        return _sample()

    def _announce(self, port: int, local: bool) -> None:
        self.stdout.write(f"== Cadence Admin is at http://{HOST}:{port}/ (Ctrl-C stops it)")
        if not local:
            self.stdout.write("   Make the first account with: .venv/bin/python manage.py createsuperuser")
            return
        password = _password(settings.VAR_DIR / "local-password")
        names = ensure_local_accounts(password)
        if names:
            self.stdout.write(f"   Sign in as {' or '.join(names)} with the password {password}")
        if len(names) < len(LOCAL_ACCOUNTS):
            self.stdout.write("   The other local accounts have a password of their own.")

    def _serve(self, listener: socket.socket, mirror: list[str]) -> None:
        server = [sys.executable, "-m", "gunicorn", "--config", "python:cadence_admin.server"]
        server += ["--bind", f"fd://{listener.fileno()}", "cadence_admin.wsgi"]
        children: list[subprocess.Popen[bytes]] = []
        stopping = False

        def stop(*_: Any) -> None:
            nonlocal stopping
            stopping = True
            for child in children:
                child.terminate()

        # A handler and no exception: that would leave a child behind if it came while one is being started.
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, stop)
        for command in (server, mirror):
            if not stopping:
                files = [listener.fileno()] if command is server else []
                child = subprocess.Popen(command, cwd=settings.BASE_DIR, pass_fds=files)
                children.append(child)
        listener.close()
        if stopping:
            stop()
        status = children[0].wait() if children else 0
        asked = stopping
        stop()
        for child in children:
            try:
                child.wait(STOP_AFTER_S)
            except subprocess.TimeoutExpired:
                child.kill()
        if status and not asked:
            raise SystemExit(status)


def _sample() -> Path:
    return Path(settings.VAR_DIR) / "sample-state-home"


def _listen(port: int) -> socket.socket:
    """The port, taken before anything else: who opens the address at once then waits a moment and isn't refused."""
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((HOST, port))
    except OSError as error:
        raise CommandError(
            f"Port {port} can't be used: {error.strerror}. Choose another with: make run PORT=8001"
        ) from None
    except OverflowError:
        raise CommandError(f"{port} is no port; ports go from 1 to 65535") from None
    listener.listen()
    return listener


def _password(path: Path) -> str:
    """The one password of the local accounts: made on first use, readable by its owner only."""
    if not path.exists():
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(secrets.token_urlsafe(12))
    return path.read_text()
