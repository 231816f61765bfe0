"""Records in memory: for tests and for trying things out. Safe between threads."""

import threading
import uuid
from collections.abc import Sequence
from dataclasses import replace

from approvals.backends.base import Lease, Page, check_lease, check_scan, is_next, page_of, read_text, write_text
from approvals.records import Kind, Record
from approvals.tokens import same_secret
from cadence_admin.clock import now_ms


class MemoryBackend:
    """A `DurableRecordBackend` that forgets."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._records: dict[tuple[Kind, str], tuple[Record, str]] = {}
        self._leases: dict[str, Lease] = {}
        self._cursors: dict[str, str | None] = {}

    def now(self) -> int:
        return now_ms()

    def create(self, kind: Kind, record: Record) -> bool:
        text = write_text(record)
        with self._lock:
            if (kind, record.id) in self._records:
                return False
            self._records[kind, record.id] = (record, text)
            return True

    def get(self, kind: Kind, id: str) -> Record | None:
        found = self._records.get((kind, id))
        return read_text(kind, found[1]) if found else None

    def compare_and_set(self, kind: Kind, id: str, expected_version: int, record: Record) -> bool:
        if not is_next(record, id, expected_version):
            return False
        text = write_text(record)
        with self._lock:
            current = self._records.get((kind, id))
            if current is None or current[0].version != expected_version:
                return False
            self._records[kind, id] = (record, text)
            return True

    def scan(
        self,
        kind: Kind,
        *,
        states: Sequence[str],
        limit: int,
        updated_before: int | None = None,
        cursor: str | None = None,
    ) -> Page:
        check_scan(limit, updated_before)
        found = sorted(
            (id, text)
            for (of_kind, id), (record, text) in list(self._records.items())
            if of_kind == kind
            and record.state in states
            and (updated_before is None or record.updated_at <= updated_before)
            and (cursor is None or id > cursor)
        )
        return page_of(found[: limit + 1], kind, limit)

    def acquire_lease(self, name: str, owner: str, lease_ms: int, now: int | None = None) -> Lease | None:
        at = self.now() if now is None else now
        check_lease(name, owner, lease_ms, at)
        with self._lock:
            current = self._leases.get(name)
            if current is not None and current.expires_at > at:
                return None
            lease = Lease(name, owner, str(uuid.uuid4()), at + lease_ms, self._cursors.get(name))
            self._leases[name] = lease
            return lease

    def renew_lease(self, name: str, owner: str, token: str, lease_ms: int, now: int | None = None) -> bool:
        at = self.now() if now is None else now
        check_lease(name, owner, lease_ms, at)
        with self._lock:
            current = self._held(name, owner, token, at)
            if current is None:
                return False
            self._leases[name] = replace(current, expires_at=max(current.expires_at, at + lease_ms))
            return True

    def checkpoint_lease(
        self, name: str, owner: str, token: str, cursor: str | None = None, now: int | None = None
    ) -> bool:
        with self._lock:
            if self._held(name, owner, token, self.now() if now is None else now) is None:
                return False
            self._cursors[name] = cursor
            return True

    def release_lease(self, name: str, owner: str, token: str, now: int | None = None) -> bool:
        with self._lock:
            if self._held(name, owner, token, self.now() if now is None else now) is None:
                return False
            del self._leases[name]
            return True

    def _held(self, name: str, owner: str, token: str, at: int) -> Lease | None:
        current = self._leases.get(name)
        if current is None or current.owner != owner or current.expires_at <= at:
            return None
        return current if same_secret(current.token, token) else None
