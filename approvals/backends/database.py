"""Records in the tables that a nifra application uses: PostgreSQL and SQLite.

What a record is, its payload says; the version column is for compare-and-set, the state and updated_at columns for scans,
and the three are written together, always. A payload is written back in the form it had (an object, or a string that holds
its text). On PostgreSQL the database's clock decides, read when the row is looked at and not when the statement began.
"""

import hashlib
import uuid
from collections.abc import Mapping, Sequence
from typing import Any, Final

from django.db import DataError, connections
from django.db.backends.utils import CursorWrapper

from approvals.backends.base import Lease, Page, check_lease, check_scan, is_next, page_of, read_text, write_text
from approvals.models import wire_text
from approvals.records import Binding, Kind, Record, RecordError
from approvals.routers import nifra_alias
from approvals.tables import LEASES, RECORDS
from cadence_admin.clock import POSTGRESQL_NOW, database_now, now_ms
from cadence_admin.javascript import stringify

# A payload that can be patched where it lies: an object whose root is its first node.
_PLAIN: Final = 'payload @> \'{"r": {"$w": "ref", "i": 0}}\'::jsonb'
_OPEN: Final = ("pending", "approved")
_MEMBERS: Final = "(payload #> '{n,0,v}')"


class DatabaseBackend:
    """A `DurableRecordBackend` over `nifra_durable_records` and `nifra_durable_leases`."""

    def __init__(self, using: str | None = None) -> None:
        """`using` is the alias of a database; by default the one that holds nifra's tables."""
        self.alias = using or nifra_alias()

    @property
    def _connection(self) -> Any:
        return connections[self.alias]

    @property
    def _is_postgresql(self) -> bool:
        return bool(self._connection.vendor == "postgresql")

    def _cursor(self) -> CursorWrapper:
        cursor: CursorWrapper = self._connection.cursor()
        return cursor

    def now(self) -> int:
        return database_now(self.alias)

    # Records

    def create(self, kind: Kind, record: Record) -> bool:
        values = [kind, record.id, record.state, record.updated_at, record.version, write_text(record)]
        as_payload = "%s::jsonb" if self._is_postgresql else "%s"
        return self._changed(
            f"INSERT INTO {RECORDS} (kind, id, state, updated_at, version, payload) "
            f"VALUES (%s, %s, %s, %s, %s, {as_payload}) ON CONFLICT DO NOTHING",
            values,
        )

    def get(self, kind: Kind, id: str, *, lock: bool = False) -> Record | None:
        """The record; with `lock`, which takes a transaction, nobody else changes it until that ends."""
        locking = " FOR NO KEY UPDATE" if lock and self._is_postgresql else ""
        with self._cursor() as cursor:
            cursor.execute(f"SELECT {self._payload} FROM {RECORDS} WHERE kind = %s AND id = %s{locking}", [kind, id])
            row = cursor.fetchone()
        return None if row is None else read_text(kind, wire_text(row[0]))

    def compare_and_set(self, kind: Kind, id: str, expected_version: int, record: Record) -> bool:
        if not is_next(record, id, expected_version):
            return False
        text = write_text(record)
        as_payload, texts = "%s", [text]
        if self._is_postgresql:
            as_payload = "CASE jsonb_typeof(payload) WHEN 'string' THEN to_jsonb(%s::text) ELSE %s::jsonb END"
            texts = [text, text]
        return self._changed(
            f"UPDATE {RECORDS} SET state = %s, updated_at = %s, version = %s, payload = {as_payload} "
            "WHERE kind = %s AND id = %s AND version = %s",
            [record.state, record.updated_at, record.version, *texts, kind, id, expected_version],
        )

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
        if not states:
            return Page()
        with self._cursor() as reader:
            reader.execute(*self.scan_statement(kind, states, limit, updated_before, cursor))
            found = [(id, wire_text(payload)) for id, payload in reader.fetchall()]
        return page_of(found, kind, limit)

    def scan_statement(
        self, kind: Kind, states: Sequence[str], limit: int, updated_before: int | None, cursor: str | None
    ) -> tuple[str, list[Any]]:
        """The statement of a page and its values: for each state the first of its ids by the index, then merged."""
        by_id = 'id COLLATE "C"' if self._is_postgresql else "id"
        parts: list[str] = []
        values: list[Any] = []
        for state in dict.fromkeys(states):
            condition, given = "kind = %s AND state = %s", list[Any]((kind, state))
            if cursor is not None:
                condition += f" AND {by_id} > %s"
                given.append(cursor)
            if updated_before is not None:
                condition += " AND updated_at <= %s"
                given.append(updated_before)
            part = f"SELECT id, {self._payload} AS text FROM {RECORDS} WHERE {condition} ORDER BY {by_id} LIMIT {limit + 1}"
            parts.append(f"SELECT * FROM ({part}) AS of_state_{len(parts)}")
            values += given
        merged = " UNION ALL ".join(parts)
        return f"SELECT id, text FROM ({merged}) AS merged ORDER BY {by_id} LIMIT {limit + 1}", values

    # What the rules allow in one statement: True if it was done, False if one must look closer.

    def decide_at_once(self, id: str, tenant_id: str, decision: str, decided_by: str, now: int | None) -> bool:
        return self._patch(
            "approval",
            id,
            {"tenantId": tenant_id, "state": "pending"},
            f"expires_at > {self._now}",
            [now],
            {"state": decision, "decidedBy": decided_by},
            now,
        )

    def consume_at_once(self, id: str, binding: Binding, token_hash: str, now: int | None) -> bool:
        bound = {
            "tenantId": binding.tenant_id,
            "principalId": binding.principal_id,
            "capability": binding.capability,
            "target": binding.target,
            "digest": binding.digest,
            "state": "approved",
        }
        # The secret is compared by its hash: how long that takes tells nothing about the secret.
        secret = f"sha256(convert_to({_MEMBERS} ->> 'tokenHash', 'UTF8')) = %s"
        return self._patch(
            "approval",
            id,
            bound,
            f"{secret} AND expires_at > {self._now}",
            [hashlib.sha256(token_hash.encode()).digest(), now],
            {"state": "consumed"},
            now,
        )

    def due_at_once(self, limit: int, now: int) -> list[str]:
        """Ids of approvals that are pending or approved and past their time, the longest first, by the index."""
        due = f"SELECT id, expires_at FROM {RECORDS} WHERE kind = 'approval' AND state = %s AND expires_at <= %s"
        parts = [f"SELECT * FROM ({due} ORDER BY expires_at LIMIT {limit}) AS {state}" for state in _OPEN]
        values = [value for state in _OPEN for value in (state, now)]
        with self._cursor() as cursor:
            cursor.execute(f"{' UNION ALL '.join(parts)} ORDER BY expires_at LIMIT {limit}", values)
            return [id for id, _ in cursor.fetchall()]

    def move_at_once(
        self, id: str, version: int, origin: str, target: str, error_code: str | None, now: int | None
    ) -> bool:
        code = {} if error_code is None else {"errorCode": error_code}
        changed = {"state": target, **code}
        return self._patch(
            "effect", id, {"state": origin}, "version = %s", [version], changed, now, without="errorCode"
        )

    def _patch(
        self,
        kind: Kind,
        id: str,
        seen: Mapping[str, str | None],
        condition: str,
        given: list[Any],
        changed: Mapping[str, str],
        now: int | None,
        *,
        without: str = "",
    ) -> bool:
        """Change members of a record where it lies, on PostgreSQL, if those in `seen` are as they were seen (None: absent);
        every other member stays as it is."""
        if not self._is_postgresql:
            return False
        present = {name: value for name, value in seen.items() if value is not None}
        absent = [name for name, value in seen.items() if value is None]
        moment = f"GREATEST(updated_at, {self._now})"
        kept = f"({_MEMBERS} - '{without}')" if without else _MEMBERS
        members = f"{kept} || %s::jsonb || jsonb_build_object('updatedAt', {moment}, 'version', version + 1)"
        return self._changed(
            f"UPDATE {RECORDS} SET state = %s, updated_at = {moment}, version = version + 1, "
            f"payload = jsonb_set(payload, '{{n,0,v}}', {members}) "
            f"WHERE kind = %s AND id = %s AND {_PLAIN} AND payload #> '{{n,0}}' @> %s::jsonb "
            f"AND NOT {_MEMBERS} ?| %s AND {_MEMBERS} -> 'version' = to_jsonb(version) AND {condition}",
            [
                changed["state"],
                now,
                stringify(changed),
                now,
                kind,
                id,
                stringify({"$w": "obj", "v": present}),
                absent,
                *given,
            ],
        )

    # Leases

    def acquire_lease(self, name: str, owner: str, lease_ms: int, now: int | None = None) -> Lease | None:
        check_lease(name, owner, lease_ms, now)
        at = self._at(now)
        with self._cursor() as cursor:
            cursor.execute(
                f"INSERT INTO {LEASES} (name, owner, token, expires_at) VALUES (%s, %s, %s, {self._now} + %s) "
                "ON CONFLICT (name) DO UPDATE SET owner = excluded.owner, token = excluded.token, "
                f"expires_at = excluded.expires_at WHERE {LEASES}.owner IS NULL OR {LEASES}.expires_at <= {self._now} "
                "RETURNING name, owner, token, expires_at, cursor",
                [name, owner, str(uuid.uuid4()), at, lease_ms, at],
            )
            row = cursor.fetchone()
        return None if row is None else Lease(*row)

    def renew_lease(self, name: str, owner: str, token: str, lease_ms: int, now: int | None = None) -> bool:
        check_lease(name, owner, lease_ms, now)
        longest = "GREATEST" if self._is_postgresql else "MAX"
        at = self._at(now)
        return self._changed(
            f"UPDATE {LEASES} SET expires_at = {longest}(expires_at, {self._now} + %s) WHERE {self._held}",
            [at, lease_ms, name, owner, token, at],
        )

    def checkpoint_lease(
        self, name: str, owner: str, token: str, cursor: str | None = None, now: int | None = None
    ) -> bool:
        return self._changed(
            f"UPDATE {LEASES} SET cursor = %s WHERE {self._held}", [cursor, name, owner, token, self._at(now)]
        )

    def release_lease(self, name: str, owner: str, token: str, now: int | None = None) -> bool:
        return self._changed(
            f"UPDATE {LEASES} SET owner = NULL, token = NULL, expires_at = 0 WHERE {self._held}",
            [name, owner, token, self._at(now)],
        )

    def free_lease(self, name: str, owner: str, expires_at: int) -> bool:
        """Take a lease from its holder by force and forget its cursor, if it still stands as it was seen."""
        return self._changed(
            f"UPDATE {LEASES} SET owner = NULL, token = NULL, expires_at = 0, cursor = NULL "
            "WHERE name = %s AND owner = %s AND expires_at = %s",
            [name, owner, expires_at],
        )

    # Parts of statements

    @property
    def _payload(self) -> str:
        return "payload::text" if self._is_postgresql else "payload"

    @property
    def _now(self) -> str:
        """The moment that decides: the one given, or the database's own."""
        return f"COALESCE(%s::bigint, {POSTGRESQL_NOW})" if self._is_postgresql else "%s"

    def _at(self, now: int | None) -> int | None:
        return now_ms() if now is None and not self._is_postgresql else now

    @property
    def _held(self) -> str:
        return f"name = %s AND owner = %s AND token = %s AND expires_at > {self._now}"

    def _changed(self, statement: str, values: list[Any]) -> bool:
        try:
            with self._cursor() as cursor:
                cursor.execute(statement, values)
                return bool(cursor.rowcount == 1)
        except DataError as error:
            # JSONB refuses NUL and lone surrogates, which other stores keep.
            raise RecordError("record-not-storable", str(error).splitlines()[0]) from None
