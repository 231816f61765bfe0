"""What a backend must do, and the checks that all of them share.

A backend keeps records by kind and id, changes one only if its version is the expected one, reads pages in code-point order
of ids, and gives out leases. Where a method takes `now` (milliseconds), None means the backend's own clock: on PostgreSQL
the database's, so that hosts whose clocks differ agree.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from approvals import wire
from approvals.records import Kind, Record, RecordError, read_record, require_token
from cadence_admin.javascript import MAX_SAFE_INTEGER, is_safe_integer

MAX_LIMIT: Final = 1_000
MAX_NAME: Final = 128


@dataclass(frozen=True, slots=True)
class Lease:
    """A reconciliation lease as its holder has it. The token is the holder's secret."""

    name: str
    owner: str
    token: str = field(repr=False)
    expires_at: int
    cursor: str | None = None


@dataclass(frozen=True, slots=True)
class Page:
    """One page of a scan: the records that could be read, the ids of those that could not, and where to go on."""

    records: tuple[Record, ...] = ()
    cursor: str | None = None
    unreadable: tuple[str, ...] = ()


class DurableRecordBackend(Protocol):
    """Atomic insert, compare-and-set, scan and leases."""

    def now(self) -> int:
        """The backend's clock, in milliseconds."""
        ...

    def create(self, kind: Kind, record: Record) -> bool:
        """Store a new record. False if there is one of that id."""
        ...

    def get(self, kind: Kind, id: str) -> Record | None:
        """The record, None if there is none. Raises `RecordError` (`record-unreadable`)."""
        ...

    def compare_and_set(self, kind: Kind, id: str, expected_version: int, record: Record) -> bool:
        """Store the next version of a record, if it is still at `expected_version`."""
        ...

    def scan(
        self,
        kind: Kind,
        *,
        states: Sequence[str],
        limit: int,
        updated_before: int | None = None,
        cursor: str | None = None,
    ) -> Page:
        """Records in one of `states`, last changed at `updated_before` or earlier, with ids past `cursor`, in code-point
        order of ids. Raises `RecordError` (`invalid-limit`)."""
        ...

    def acquire_lease(self, name: str, owner: str, lease_ms: int, now: int | None = None) -> Lease | None:
        """Take a lease that is free or expired; the cursor of its last holder comes with it. None while it is held."""
        ...

    def renew_lease(self, name: str, owner: str, token: str, lease_ms: int, now: int | None = None) -> bool:
        """Hold a live lease for longer; it never gets shorter. False if it isn't held any more."""
        ...

    def checkpoint_lease(
        self, name: str, owner: str, token: str, cursor: str | None = None, now: int | None = None
    ) -> bool:
        """Remember how far the holder of a live lease got. False if it isn't held any more."""
        ...

    def release_lease(self, name: str, owner: str, token: str, now: int | None = None) -> bool:
        """Give a live lease back; its cursor stays. False if it isn't held any more."""
        ...


def read_text(kind: Kind, text: str) -> Record:
    """The record of a wire text. Raises `RecordError` (`record-unreadable`)."""
    try:
        return read_record(kind, wire.loads(text))
    except wire.WireError as error:
        raise RecordError("record-unreadable", str(error)) from None


def write_text(record: Record) -> str:
    """The wire text of a record. Raises `RecordError` (`record-not-storable`): it could not be read again."""
    try:
        return wire.dumps(record.to_members())
    except wire.WireError as error:
        raise RecordError("record-not-storable", str(error)) from None


def is_next(record: Record, id: str, expected_version: int) -> bool:
    """Whether `record` is the version of that id that may follow the expected one."""
    return record.id == id and record.version == expected_version + 1


def check_scan(limit: int, updated_before: int | None) -> None:
    """Raises `RecordError` (`invalid-limit`, `invalid-time`)."""
    if type(limit) is not int or not 1 <= limit <= MAX_LIMIT:
        raise RecordError("invalid-limit", f"a page has 1 to {MAX_LIMIT} records")
    if updated_before is not None and not is_safe_integer(updated_before):
        raise RecordError("invalid-time", "updatedBefore must be milliseconds")


def check_lease(name: str, owner: str, lease_ms: int = 1, now: int | None = None) -> None:
    """Raises `RecordError` (`invalid-token`, `invalid-lease`)."""
    require_token(name, "lease name", MAX_NAME)
    require_token(owner, "lease owner")
    if not is_safe_integer(lease_ms) or lease_ms < 1:
        raise RecordError("invalid-lease", "a lease lasts at least a millisecond")
    if now is not None and (not is_safe_integer(now) or now + lease_ms > MAX_SAFE_INTEGER):
        raise RecordError("invalid-lease", "a lease must end at a time that can be told")


def page_of(found: Sequence[tuple[str, str]], kind: Kind, limit: int) -> Page:
    """The page of up to `limit + 1` ids and wire texts in order. One that can't be read is reported and passed."""
    records, unreadable = [], []
    for id, text in found[:limit]:
        try:
            records.append(read_text(kind, text))
        except RecordError:
            unreadable.append(id)
    more = len(found) > limit
    return Page(tuple(records), found[limit - 1][0] if more else None, tuple(unreadable))
