"""`manage.py conformance`: hold the configured database against the rules of a backend."""

from argparse import ArgumentParser
from typing import Any

from django.db import DatabaseError

from approvals.adapter import Adapter, ContentionError
from approvals.backends.database import DatabaseBackend
from approvals.conformance import CHECKS, NotConforming
from approvals.records import RecordError
from approvals.routers import nifra_alias
from cadence_admin.management.command import ConsoleCommand


class Command(ConsoleCommand):
    permission = "approvals.resolve_record"
    help = (
        "Check that the database keeps durable records as a backend must, races included. It writes records of its own "
        "(their ids begin with conformance-) and leaves them behind. Exit status 1 on any failure."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--database", default=nifra_alias(), help="the alias of the database")

    def handle(self, *args: Any, **options: Any) -> None:
        adapter = Adapter(DatabaseBackend(options["database"]))
        failed = 0
        for check in CHECKS:
            try:
                check.run(adapter)
            except (NotConforming, RecordError, ContentionError, DatabaseError) as error:
                failed += 1
                self.stdout.write(f"{self.style.ERROR('failed')}  {check.name}: {error}")
            else:
                self.stdout.write(f"{self.style.SUCCESS('ok')}      {check.name}")
        self.stdout.write(f"{len(CHECKS) - failed} of {len(CHECKS)} hold")
        if failed:
            raise SystemExit(1)
