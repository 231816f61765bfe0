"""`manage.py reconcile`: say what needs a look, and write down what has expired."""

import json
import os
import socket
from argparse import ArgumentParser
from dataclasses import asdict
from typing import Any

from django.core.management.base import CommandError

from approvals.adapter import Adapter
from approvals.backends.database import DatabaseBackend
from approvals.reconcile import Finding, LeaseLost, Outcome, Worker, expire_due
from cadence_admin.management.command import ConsoleCommand
from cadence_admin.management.watching import watch

SUBJECTS = ("effects", "sagas")


class Command(ConsoleCommand):
    permission = "approvals.resolve_record"
    help = (
        "Look through effects and sagas that stopped half-way, each under a lease so that several workers share the work, "
        "print what needs a person, and write down approvals whose time is up."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "--older-than", type=float, default=600, metavar="SECONDS", help="what is old (default 600)"
        )
        parser.add_argument("--watch", type=float, metavar="SECONDS", help="go on, with a round every SECONDS")
        parser.add_argument("--json", action="store_true", help="print one JSON object for each finding")

    def handle(self, *args: Any, **options: Any) -> None:
        if options["older_than"] < 0:
            raise CommandError("--older-than takes a number from 0")
        self._json = options["json"]
        adapter = Adapter(DatabaseBackend())
        if options["watch"] is None:
            self._round(adapter, options["older_than"])
            return
        watch(options["watch"], lambda: self._round(adapter, options["older_than"]), self.stderr)

    def _round(self, adapter: Adapter, older_than: float) -> None:
        owner = f"{socket.gethostname()[:100]}-{os.getpid()}"
        stale_before = adapter.backend.now() - int(older_than * 1000)
        for subject in SUBJECTS:
            worker = Worker(adapter, subject, owner, self._say)  # type: ignore[arg-type]
            try:
                self._sum_up(subject, worker.run(stale_before=stale_before))
            except LeaseLost as error:
                self.stderr.write(str(error))
        expired = expire_due(adapter)
        if expired and not self._json:
            self.stdout.write(f"approvals: {expired} expired")

    def _say(self, finding: Finding) -> None:
        if self._json:
            self.stdout.write(json.dumps(asdict(finding)))
            return
        step = f", step {finding.step}" if finding.step else ""
        self.stdout.write(f"{finding.subject}: {finding.id} {finding.reason} ({finding.state}{step})")

    def _sum_up(self, subject: str, outcome: Outcome) -> None:
        if self._json:
            return
        if outcome.held_elsewhere:
            self.stdout.write(f"{subject}: another worker is at it")
        else:
            more = "" if outcome.finished else ", more with the next round"
            self.stdout.write(f"{subject}: {outcome.handled} findings on {outcome.pages} pages{more}")
