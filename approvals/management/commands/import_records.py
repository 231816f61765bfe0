"""`manage.py import_records`: read another nifra database (SQLite) into ours."""

from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.core.management.base import CommandError

from approvals.importer import RecordsFileError, import_records
from cadence_admin.management.command import ConsoleCommand


class Command(ConsoleCommand):
    permission = "approvals.resolve_record"
    help = (
        "Copy the effects, approvals and sagas of a SQLite nifra database into ours, for a look without connecting. "
        "What is there already stays as it is. Exit status 1 if a record could not be copied."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("path", type=Path, metavar="PATH", help="a SQLite file with nifra's tables")

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            report = import_records(options["path"])
        except RecordsFileError as error:
            raise CommandError(f"{error.code}: {error}") from None
        self.stdout.write(f"{report.created} records copied, {report.kept} were there already")
        for name, code, message in report.problems:
            self.stderr.write(self.style.ERROR(f"{code}: {name}: {message}"))
        if report.problems:
            raise SystemExit(1)
