"""Records in an ordered transactional key-value store, under nifra's keys: `record:<kind>:<id>` and `lease:<name>`, with
ids and names percent-encoded. `LmdbStore` runs it on LMDB."""

import uuid
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from heapq import nsmallest
from pathlib import Path
from typing import Any, Final, Protocol
from urllib.parse import quote, unquote

import lmdb

from approvals import wire
from approvals.backends.base import Lease, Page, check_lease, check_scan, is_next, page_of, read_text, write_text
from approvals.records import Kind, Record, RecordError
from approvals.tokens import same_secret
from cadence_admin.clock import now_ms

# What JavaScript's encodeURIComponent leaves as it is, beside letters, digits and what `quote` leaves anyway.
_UNRESERVED: Final = "!*'()"


class Transaction(Protocol):
    """Reads and writes that happen together or not at all."""

    def get(self, key: str) -> str | None: ...

    def put(self, key: str, value: str) -> None: ...

    def items(self, prefix: str) -> Iterator[tuple[str, str]]: ...


class OrderedStore(Protocol):
    """An ordered key-value store with transactions that exclude each other when they write."""

    def transaction(self, *, write: bool) -> AbstractContextManager[Transaction]: ...


class _LmdbTransaction:
    def __init__(self, transaction: lmdb.Transaction) -> None:
        self._transaction = transaction

    def get(self, key: str) -> str | None:
        value = self._transaction.get(key.encode())
        return None if value is None else bytes(value).decode("utf-8")

    def put(self, key: str, value: str) -> None:
        self._transaction.put(key.encode(), value.encode("utf-8"))

    def items(self, prefix: str) -> Iterator[tuple[str, str]]:
        start = prefix.encode()
        with self._transaction.cursor() as cursor:
            if cursor.set_range(start):
                for key, value in cursor:
                    if not bytes(key).startswith(start):
                        return
                    yield bytes(key).decode(), bytes(value).decode("utf-8")


class LmdbStore:
    """LMDB in a directory, for any number of threads and processes."""

    def __init__(self, path: Path, *, map_size: int = 2**30) -> None:
        """`map_size` is the most bytes that the store may come to."""
        self._environment = lmdb.open(str(path), map_size=map_size, max_readers=512)

    @contextmanager
    def transaction(self, *, write: bool) -> Iterator[Transaction]:
        with self._environment.begin(write=write) as transaction:
            yield _LmdbTransaction(transaction)

    def close(self) -> None:
        self._environment.close()


class KeyValueBackend:
    """A `DurableRecordBackend` over an `OrderedStore`.

    Percent-encoding doesn't keep the order of ids, so that a page reads every record of its kind: right at any size, and
    meant for stores that one application embeds.
    """

    def __init__(self, store: OrderedStore) -> None:
        self._store = store

    def now(self) -> int:
        return now_ms()

    def create(self, kind: Kind, record: Record) -> bool:
        key, text = _record_key(kind, record.id), write_text(record)
        with self._store.transaction(write=True) as transaction:
            if transaction.get(key) is not None:
                return False
            transaction.put(key, text)
            return True

    def get(self, kind: Kind, id: str) -> Record | None:
        with self._store.transaction(write=False) as transaction:
            text = transaction.get(_record_key(kind, id))
        return None if text is None else read_text(kind, text)

    def compare_and_set(self, kind: Kind, id: str, expected_version: int, record: Record) -> bool:
        if not is_next(record, id, expected_version):
            return False
        key, text = _record_key(kind, id), write_text(record)
        with self._store.transaction(write=True) as transaction:
            current = transaction.get(key)
            if current is None or read_text(kind, current).version != expected_version:
                return False
            transaction.put(key, text)
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
        prefix = f"record:{kind}:"
        with self._store.transaction(write=False) as transaction:
            found = nsmallest(
                limit + 1,
                (
                    (id, text)
                    for id, text in ((unquote(key[len(prefix) :]), text) for key, text in transaction.items(prefix))
                    if (cursor is None or id > cursor) and _matches(kind, text, states, updated_before)
                ),
            )
        return page_of(found, kind, limit)

    def acquire_lease(self, name: str, owner: str, lease_ms: int, now: int | None = None) -> Lease | None:
        at = self.now() if now is None else now
        check_lease(name, owner, lease_ms, at)
        with self._store.transaction(write=True) as transaction:
            current = _lease(transaction, name)
            if current.get("owner") is not None and current["expiresAt"] > at:
                return None
            lease = Lease(name, owner, str(uuid.uuid4()), at + lease_ms, current.get("cursor"))
            held = {"owner": owner, "token": lease.token, "expiresAt": lease.expires_at}
            _put_lease(transaction, name, current | held)
            return lease

    def renew_lease(self, name: str, owner: str, token: str, lease_ms: int, now: int | None = None) -> bool:
        at = self.now() if now is None else now
        check_lease(name, owner, lease_ms, at)
        with self._store.transaction(write=True) as transaction:
            current = _lease(transaction, name)
            if not _is_held(current, owner, token, at):
                return False
            _put_lease(transaction, name, current | {"expiresAt": max(current["expiresAt"], at + lease_ms)})
            return True

    def checkpoint_lease(
        self, name: str, owner: str, token: str, cursor: str | None = None, now: int | None = None
    ) -> bool:
        with self._store.transaction(write=True) as transaction:
            current = _lease(transaction, name)
            if not _is_held(current, owner, token, self.now() if now is None else now):
                return False
            kept = {key: value for key, value in current.items() if key != "cursor"}
            _put_lease(transaction, name, kept if cursor is None else kept | {"cursor": cursor})
            return True

    def release_lease(self, name: str, owner: str, token: str, now: int | None = None) -> bool:
        with self._store.transaction(write=True) as transaction:
            current = _lease(transaction, name)
            if not _is_held(current, owner, token, self.now() if now is None else now):
                return False
            kept = {key: value for key, value in current.items() if key not in ("owner", "token")}
            _put_lease(transaction, name, kept | {"expiresAt": 0})
            return True


def _encoded(text: str) -> str:
    return quote(text, safe=_UNRESERVED)


def _record_key(kind: Kind, id: str) -> str:
    return f"record:{kind}:{_encoded(id)}"


def _matches(kind: Kind, text: str, states: Sequence[str], updated_before: int | None) -> bool:
    try:
        record = read_text(kind, text)
    except RecordError:
        return True  # reported by the page
    return record.state in states and (updated_before is None or record.updated_at <= updated_before)


def _lease(transaction: Transaction, name: str) -> dict[str, Any]:
    text = transaction.get(f"lease:{_encoded(name)}")
    found: dict[str, Any] = {"expiresAt": 0} if text is None else wire.loads(text)
    return found


def _put_lease(transaction: Transaction, name: str, lease: dict[str, Any]) -> None:
    transaction.put(f"lease:{_encoded(name)}", wire.dumps(lease))


def _is_held(lease: dict[str, Any], owner: str, token: str, at: int) -> bool:
    return lease.get("owner") == owner and lease["expiresAt"] > at and same_secret(lease.get("token"), token)
