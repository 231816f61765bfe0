"""`manage.py expire_approvals`: write down which approvals have run out."""

from argparse import ArgumentParser
from typing import Any

from approvals.adapter import Adapter
from approvals.backends.database import DatabaseBackend
from approvals.reconcile import expire_due
from cadence_admin.management.command import ConsoleCommand
from cadence_admin.management.watching import watch


class Command(ConsoleCommand):
    permission = "approvals.decide_approval"
    help = (
        "Write the state `expired` into approvals whose time is up, by the database's clock. They are shown as expired at "
        "once, and can't be decided or used; this is for other programs that read the state."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--watch", type=float, metavar="SECONDS", help="go on, with a round every SECONDS")

    def handle(self, *args: Any, **options: Any) -> None:
        adapter = Adapter(DatabaseBackend())

        def once() -> None:
            self.stdout.write(f"approvals: {expire_due(adapter)} expired")

        if options["watch"] is None:
            once()
        else:
            watch(options["watch"], once, self.stderr)
