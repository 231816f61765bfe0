"""Reading a Cadence `control.sqlite3`, strictly read-only, while its own program may be writing to it.

Three forms are read: the one whose `schema_meta` says 4, the later one without `schema_meta`, and the old one that says
2 and lacks the three approval columns. Tables of other modules beside ours are passed over; anything else is refused.
"""

import os
import re
import sqlite3
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

from cadence_admin.errors import ServiceError
from runs.chain import Event
from runs.verification import BINDING_COLUMNS

FILE_NAME: Final = "control.sqlite3"
BUSY_TIMEOUT_S: Final = 5
# A file system's clock ticks every 10 ms at the slowest: a file that changed in this very tick may change again unseen.
TICK_S: Final = 0.02

COLUMNS: Final[dict[str, tuple[str, ...]]] = {
    "runs": (
        "run_id",
        "root_hash",
        "stage",
        "lookup_key",
        "change_name",
        "provisional_key",
        "state",
        "sequence",
        "event_hash",
        "delivery_revision",
        "projection_json",
        "terminal_tombstone",
    ),
    "delivery_bindings": (*BINDING_COLUMNS, "operation_id", "run_id"),
    "events": ("run_id", "sequence", "type", "payload_json", "prior_hash", "event_hash"),
    "tasks": ("run_id", "task_id", "state", "phase", "projection_json"),
    "operations": ("run_id", "operation_id", "kind", "state", "outcome_json", "lease_token", "lease_expires_at"),
    "route_health": ("route_fingerprint", "state", "next_half_open_at", "projection_json"),
    "artifacts": ("content_hash", "size_bytes", "seal_state", "owner_run_id", "reference_count"),
    "workspace_revisions": ("revision_id", "owner_run_id", "parent_revision_id", "manifest_hash"),
    "apply_transactions": ("transaction_id", "owner_run_id", "state", "intent_json", "recovery_json"),
    "bootstrap_handoffs": ("handoff_id", "owner_run_id", "receipt_hash", "state", "facts_json"),
}
PROOF_COLUMNS: Final = BINDING_COLUMNS[3:]
OLD_FORM: Final = "2"
SEED_FORM: Final = "4"
LATER_FORM: Final = "unversioned"

# Read in place of a column: the token itself never leaves the file.
_READ_AS: Final = {"lease_token": ("lease_held", "lease_token IS NOT NULL")}

_ROOT_DIRECTORY = re.compile(r"[0-9a-f]{64}")

Row = dict[str, Any]


class SourceError(ServiceError):
    """A store that can't be read, and why. Codes: `state-component-symlink`, `state-component-type`,
    `state-component-missing`, `run-store-unreadable`, `run-store-schema-rejected`,
    `run-store-schema-version-rejected`."""


class _Missing(SourceError):
    """A component of the path that isn't there."""


class SourceChanged(Exception):
    """The file changed while it was read without locks; read it again."""


def find_stores(state_home: Path) -> list[Path]:
    """The `control.sqlite3` of every state root under `state_home`, by name. Raises `SourceError`."""
    cadence = state_home / "abel-cadence"
    roots = cadence / "roots"
    for directory in (cadence, roots):
        _require(directory, stat.S_ISDIR, "a directory")
    stores = (root / FILE_NAME for root in roots.iterdir() if _ROOT_DIRECTORY.fullmatch(root.name))
    return sorted(store for store in stores if os.path.lexists(store))


def store_at(path: Path) -> Path:
    """The `control.sqlite3` that `path` means: the file itself, or the one in that directory."""
    return path / FILE_NAME if path.is_dir() else path


def root_of(path: Path) -> str | None:
    """The hash of the state root whose directory holds the file, None for a file that lies elsewhere."""
    name = path.absolute().parent.name
    return name if _ROOT_DIRECTORY.fullmatch(name) else None


def _require(path: Path, is_kind: Any, kind: str) -> os.stat_result:
    try:
        found = path.lstat()
    except FileNotFoundError:
        raise _Missing("state-component-missing", f"{path} is not there.") from None
    except OSError as error:
        raise SourceError("run-store-unreadable", f"{path} can't be looked at: {error.strerror}.") from None
    if stat.S_ISLNK(found.st_mode):
        raise SourceError("state-component-symlink", f"{path} is a symbolic link; Cadence refuses those, and so do we.")
    if not is_kind(found.st_mode):
        raise SourceError("state-component-type", f"{path} is not {kind}.")
    return found


def fingerprint(path: Path) -> str:
    """What tells an unchanged store from a changed one without opening it. Raises `SourceError`.

    Covers the file and its write-ahead log: device, inode, size, and both times (the change time can't be set by hand).
    """
    return _stamp(path)[0]


def settled_fingerprint(path: Path) -> str:
    """The fingerprint, or "" while the file changes with every look. What is read afterwards is no older than it."""
    text, newest_ns = _stamp(path)
    if time.time_ns() - newest_ns < TICK_S * 1e9:
        time.sleep(TICK_S)
        text, newest_ns = _stamp(path)
    return text if time.time_ns() - newest_ns >= TICK_S * 1e9 else ""


def _stamp(path: Path) -> tuple[str, int]:
    found = [_require(path, stat.S_ISREG, "a file")]
    if path.absolute().parent.is_symlink():
        raise SourceError(
            "state-component-symlink", f"{path.parent} is a symbolic link; Cadence refuses those, and so do we."
        )
    with suppress(_Missing):  # the last process to close the store removes its log, at any moment
        found.append(_require(path.with_name(path.name + "-wal"), stat.S_ISREG, "a file"))
    text = ":".join(f"{s.st_dev},{s.st_ino},{s.st_size},{s.st_mtime_ns},{s.st_ctime_ns}" for s in found)
    return text, max(s.st_ctime_ns for s in found)


@dataclass(slots=True)
class Source:
    """An open store. Use `Source.open`, and read within `snapshot()`."""

    path: Path
    form: str
    _connection: sqlite3.Connection
    _unlocked_fingerprint: str | None

    @classmethod
    @contextmanager
    def open(cls, path: Path) -> Iterator[Self]:
        """Open `path` read-only and check its form. Raises `SourceError`."""
        before = fingerprint(path)
        unlocked = _rests_in_wal_mode(path)
        uri = f"{path.absolute().as_uri()}?mode=ro"
        if unlocked:
            # No write-ahead log means that nobody has the store open. Opened plainly, SQLite would leave a new log and
            # a new index beside it; so it is read as it lies, and `require_unchanged` tells if somebody came.
            uri += "&immutable=1"
        connection: sqlite3.Connection | None = None
        try:
            connection = sqlite3.connect(uri, uri=True, timeout=BUSY_TIMEOUT_S, isolation_level=None)
            # Bytes that are no UTF-8 come back as lone surrogates, which no stored text can hold: seen, never mistaken.
            connection.text_factory = lambda raw: raw.decode("utf-8", "surrogateescape")
            connection.execute("PRAGMA query_only = ON")
            connection.execute("PRAGMA trusted_schema = OFF")
            yield cls(path, _form(path, connection), connection, before if unlocked else None)
        except sqlite3.Error as error:
            raise SourceError("run-store-unreadable", f"{path} can't be read: {error}.") from error
        finally:
            if connection is not None:
                connection.close()

    @property
    def has_proof_columns(self) -> bool:
        return self.form != OLD_FORM

    @contextmanager
    def snapshot(self) -> Iterator[None]:
        """One consistent view for all reads within. Raises `SourceChanged` if there was none after all."""
        self._connection.execute("BEGIN")
        try:
            yield
            self.require_unchanged()
        finally:
            self._connection.execute("ROLLBACK")

    def require_unchanged(self) -> None:
        """Raises `SourceChanged` if the file was read without locks and somebody has written since."""
        if self._unlocked_fingerprint is not None and fingerprint(self.path) != self._unlocked_fingerprint:
            raise SourceChanged

    def runs(self) -> Iterator[Row]:
        """Every row of `runs`, oldest first."""
        return self._rows("runs", "1", (), "rowid")

    def run(self, run_id: str) -> Row | None:
        return next(self._rows("runs", "run_id = ?", (run_id,), "rowid"), None)

    def rows_of(self, table: str, owner_column: str, run_id: str | None) -> Iterator[Row]:
        """The rows of one of the ten tables that belong to a run (None: to no run, or to all runs)."""
        if owner_column:
            return self._rows(table, f"{owner_column} IS ?", (run_id,), "rowid")
        return self._rows(table, "1", (), "rowid")

    def events(self, run_id: str, *, after: int = 0) -> Iterator[Event]:
        """The events of a run past sequence `after`, one at a time, in order."""
        for row in self._rows("events", "run_id = ? AND sequence > ?", (run_id, after), "sequence"):
            del row["run_id"]
            yield Event(**row)

    def event(self, run_id: str, sequence: int) -> Event | None:
        for row in self._rows("events", "run_id = ? AND sequence = ?", (run_id, sequence), "sequence"):
            del row["run_id"]
            return Event(**row)
        return None

    def _rows(self, table: str, where: str, parameters: tuple[Any, ...], order: str) -> Iterator[Row]:
        names, selected = [], []
        for column in COLUMNS[table]:
            name, expression = _READ_AS.get(column, (column, column))
            names.append(name)
            selected.append("NULL" if not self.has_proof_columns and column in PROOF_COLUMNS else expression)
        statement = f"SELECT {', '.join(selected)} FROM {table} WHERE {where} ORDER BY {order}"
        for values in self._connection.execute(statement, parameters):
            yield dict(zip(names, values, strict=True))


def _rests_in_wal_mode(path: Path) -> bool:
    """Whether the file is in WAL mode and nobody has it open (its log is not there)."""
    try:
        with path.open("rb") as file:
            header = file.read(20)
    except OSError as error:
        raise SourceError("run-store-unreadable", f"{path} can't be read: {error.strerror}.") from None
    return header[18:19] == b"\x02" and not os.path.lexists(path.with_name(path.name + "-wal"))


def _form(path: Path, connection: sqlite3.Connection) -> str:
    tables = {
        name
        for name, statement in connection.execute("SELECT name, sql FROM sqlite_master WHERE type = 'table'")
        if not (statement or "").upper().startswith("CREATE VIRTUAL")
    }
    missing = sorted(COLUMNS.keys() - tables)
    if missing:
        found = f"found {', '.join(sorted(tables)[:12])}" if tables else "found no tables"
        raise SourceError(
            "run-store-schema-rejected", f"{path} is no Cadence run store: no table {', '.join(missing)}; {found}."
        )
    form = LATER_FORM
    if "schema_meta" in tables:
        versions = [str(version) for (version,) in connection.execute("SELECT version FROM schema_meta")]
        if versions not in ([SEED_FORM], [OLD_FORM]):
            raise SourceError(
                "run-store-schema-version-rejected",
                f"{path} says schema version {', '.join(versions) or 'none'}; {SEED_FORM} and {OLD_FORM} can be read.",
            )
        form = versions[0]
    for table, names in COLUMNS.items():
        found_names = {row[1] for row in connection.execute(f"PRAGMA table_info({table})")}
        expected = set(names)
        if form == OLD_FORM and table == "delivery_bindings":
            expected -= set(PROOF_COLUMNS)
        if found_names != expected:
            raise SourceError(
                "run-store-schema-rejected",
                f"{path} is another schema: {table} has the columns {', '.join(sorted(found_names))} "
                f"instead of {', '.join(sorted(expected))}.",
            )
    return form
