"""Read the records of another SQLite nifra database into ours, for a look without connecting."""

import sqlite3
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from django.conf import settings
from django.db import transaction

from approvals.backends.base import read_text
from approvals.backends.database import DatabaseBackend
from approvals.records import KINDS, RecordError
from cadence_admin import audit

COLUMNS: Final = {"kind", "id", "state", "updated_at", "version", "payload"}


class RecordsFileError(Exception):
    """A file that is no nifra database. `code` is `records-unreadable` or `records-schema-rejected`."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


@dataclass(slots=True)
class ImportReport:
    """What an import came to. `kept` counts records that were there already, in whatever version."""

    created: int = 0
    kept: int = 0
    problems: list[tuple[str, str, str]] = field(default_factory=list)


def import_records(path: Path) -> ImportReport:
    """Create every record of the file that isn't there yet; leases stay where they are. Raises `RecordsFileError`.

    The file is opened read-only, and one transaction holds all that is created. A record that can't be read or kept is in
    the report, and doesn't stop the others.
    """
    table = f"{settings.NIFRA_TABLE_PREFIX}_records"
    report = ImportReport()
    backend = DatabaseBackend()
    if path.is_symlink() or not path.is_file():
        raise RecordsFileError("records-unreadable", f"{path} is no file.")
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=5)) as database:
            found = {row[1] for row in database.execute(f"PRAGMA table_info({table})")}
            if not found >= COLUMNS:
                missing = ", ".join(sorted(COLUMNS - found))
                raise RecordsFileError(
                    "records-schema-rejected", f"{path} has no table {table} with the columns {missing}."
                )
            # The name was checked as a setting.
            rows = database.execute(f"SELECT kind, id, payload FROM {table} ORDER BY kind, id")  # noqa: S608
            with transaction.atomic(using=backend.alias):
                for kind, id, payload in rows:
                    _take(backend, kind, id, payload, report)
                counts = {"created": report.created, "kept": report.kept, "problems": len(report.problems)}
                audit.record(
                    audit.Entry("records.imported", "file", str(path.absolute()), after=counts), using=backend.alias
                )
    except sqlite3.Error as error:
        raise RecordsFileError("records-unreadable", f"{path} can't be read: {error}.") from error
    return report


def _take(backend: DatabaseBackend, kind: str, id: str, payload: str, report: ImportReport) -> None:
    try:
        if kind not in KINDS:
            raise RecordError("record-unreadable", f"{kind} is no kind of record")
        record = read_text(kind, payload)
        if record.id != id:
            raise RecordError("record-unreadable", f"its payload is that of {record.id}")
        with transaction.atomic(using=backend.alias):  # one that the database refuses takes no other with it
            created = backend.create(kind, record)
        report.created += created
        report.kept += not created
    except RecordError as error:
        report.problems.append((f"{kind} {id}", error.code, str(error)))
