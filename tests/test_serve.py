"""`manage.py serve`, which `make run` calls: as a newcomer starts it."""

import http.cookiejar
import os
import re
import signal
import socket
import stat
import subprocess
import sys
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.runs.stores import Store


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextmanager
def serving(var: Path, port: int, **extra: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("CADENCE_", "DATABASE_"))}
    environment |= {
        "CADENCE_VAR_DIR": str(var),
        "DJANGO_SETTINGS_MODULE": "cadence_admin.settings",
        "XDG_STATE_HOME": str(var / "no-such-place"),
        "PYTHONUNBUFFERED": "1",
    }
    command = [sys.executable, "manage.py", "serve", "--port", str(port)]
    with subprocess.Popen(
        command, env=environment | extra, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        said = ""
        assert process.stdout is not None
        for line in process.stdout:
            said += line
            if "Sign in as" in line:
                break
        try:
            yield process, said
        finally:
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=30)


def fetch(opener: urllib.request.OpenerDirector, url: str, form: dict[str, str] | None = None) -> str:
    """The port is open before the address is printed: no need to try twice."""
    data = urllib.parse.urlencode(form).encode() if form else None
    with opener.open(urllib.request.Request(url, data, {"Referer": url}), timeout=30) as response:
        body: bytes = response.read()
        return body.decode()


def test_a_newcomer_sees_runs(tmp_path: Path) -> None:
    port = free_port()
    with serving(tmp_path, port) as (process, said):
        assert f"http://127.0.0.1:{port}/" in said
        assert "18 new" in said
        assert f"Mirroring {tmp_path / 'sample-state-home'}" in said  # a copy: reclaiming writes to it
        password = re.search(r"Sign in as viewer or approver or operator or auditor with the password (\S+)", said)
        assert password
        jar = http.cookiejar.CookieJar()
        opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(jar))
        url = f"http://127.0.0.1:{port}"
        page = fetch(opener, f"{url}/sign-in/?next=/runs/")
        token = re.search(r'name="csrfmiddlewaretoken" value="([^"]+)"', page)
        assert token
        form = {"username": "operator", "password": password[1], "next": "/runs/", "csrfmiddlewaretoken": token[1]}
        runs = fetch(opener, f"{url}/sign-in/", form)
        assert "audit-trail" in runs
        assert "sample" in runs
        assert "Refund" in fetch(opener, f"{url}/approvals/")
        css = re.search(r'href="(/static/css/console\.[0-9a-f]+\.css)"', runs)
        assert css, "static files are named by what they hold"
        assert "color-scheme" in fetch(opener, url + css[1])
        taken = subprocess.run(
            [sys.executable, "manage.py", "serve", "--port", str(port)], capture_output=True, text=True, check=False
        )
        assert taken.returncode == 1
        assert "can't be used" in taken.stderr
    assert process.returncode == 0
    for name in ("secret-key", "local-password"):
        assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o600
    # Again: the same password, and nothing made twice.
    with serving(tmp_path, port) as (_, again):
        assert password[1] in again
        assert "unchanged" in again


def test_a_state_home_of_ones_own_is_preferred(tmp_path: Path) -> None:
    store = Store.in_state_home(tmp_path / "home")
    store.add_run("run-1", "mine")
    with serving(tmp_path / "var", free_port(), CADENCE_STATE_HOME=str(tmp_path / "home")) as (_, said):
        assert "sample" not in said
        assert "1 runs (1 new" in said
