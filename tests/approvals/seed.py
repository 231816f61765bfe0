"""The other program's statements, sent as it would send them: raw SQL through a driver, without Django."""

import sqlite3
from typing import Any, Protocol

import psycopg
from django.db import connection

from approvals import wire
from approvals.models import wire_text

RECORDS, LEASES = "nifra_durable_records", "nifra_durable_leases"


class Other(Protocol):
    """What a nifra application does with its tables."""

    def migrate(self) -> None: ...

    def create(self, kind: str, id: str, members: dict[str, Any]) -> bool: ...

    def get(self, kind: str, id: str) -> dict[str, Any] | None: ...

    def compare_and_set(self, kind: str, id: str, version: int, members: dict[str, Any]) -> bool: ...

    def scan(self, kind: str, states: list[str], limit: int) -> list[str]: ...

    def acquire(self, name: str, owner: str, token: str, now: int, lease_ms: int) -> bool: ...

    def close(self) -> None: ...


class OtherSqlite:
    """Its SQLite backend."""

    def __init__(self) -> None:
        self._database = sqlite3.connect(connection.settings_dict["NAME"], isolation_level=None, timeout=10)

    def migrate(self) -> None:
        self._database.executescript(
            f"CREATE TABLE IF NOT EXISTS {RECORDS} (kind TEXT NOT NULL, id TEXT NOT NULL, state TEXT NOT NULL, "
            "updated_at INTEGER NOT NULL, version INTEGER NOT NULL, payload TEXT NOT NULL, PRIMARY KEY (kind,id));"
            f"CREATE INDEX IF NOT EXISTS {RECORDS}_reconcile ON {RECORDS} (kind,state,updated_at,id);"
            f"CREATE TABLE IF NOT EXISTS {LEASES} (name TEXT PRIMARY KEY, owner TEXT, token TEXT, "
            "expires_at INTEGER NOT NULL DEFAULT 0, cursor TEXT);"
        )

    def create(self, kind: str, id: str, members: dict[str, Any]) -> bool:
        values = (kind, id, members["state"], members["updatedAt"], members["version"], wire.dumps(members))
        return (
            self._database.execute(
                f"INSERT OR IGNORE INTO {RECORDS} (kind,id,state,updated_at,version,payload) VALUES (?,?,?,?,?,?)",
                values,
            ).rowcount
            == 1
        )

    def insert_payload(self, id: str, payload: str) -> None:
        self._database.execute(
            f"INSERT INTO {RECORDS} (kind,id,state,updated_at,version,payload) VALUES ('approval',?,'pending',1,1,?)",
            (id, payload),
        )

    def payload(self, kind: str, id: str) -> str:
        row = self._database.execute(f"SELECT payload FROM {RECORDS} WHERE kind=? AND id=?", (kind, id)).fetchone()
        return str(row[0])

    def get(self, kind: str, id: str) -> dict[str, Any] | None:
        row = self._database.execute(f"SELECT payload FROM {RECORDS} WHERE kind=? AND id=?", (kind, id)).fetchone()
        return None if row is None else wire.loads(row[0])

    def compare_and_set(self, kind: str, id: str, version: int, members: dict[str, Any]) -> bool:
        values = (members["state"], members["updatedAt"], members["version"], wire.dumps(members), kind, id, version)
        return (
            self._database.execute(
                f"UPDATE {RECORDS} SET state=?,updated_at=?,version=?,payload=? WHERE kind=? AND id=? AND version=?",
                values,
            ).rowcount
            == 1
        )

    def scan(self, kind: str, states: list[str], limit: int) -> list[str]:
        marks = ",".join("?" * len(states))
        rows = self._database.execute(
            f"SELECT id,payload FROM {RECORDS} WHERE kind=? AND state IN ({marks}) AND (? IS NULL OR updated_at <= ?) "
            "AND (? IS NULL OR id > ?) ORDER BY id LIMIT ?",
            (kind, *states, None, None, None, None, limit),
        )
        return [id for id, _ in rows]

    def acquire(self, name: str, owner: str, token: str, now: int, lease_ms: int) -> bool:
        rows = self._database.execute(
            f"INSERT INTO {LEASES} (name,owner,token,expires_at) VALUES (?,?,?,?) ON CONFLICT(name) DO UPDATE SET "
            "owner=excluded.owner,token=excluded.token,expires_at=excluded.expires_at "
            f"WHERE {LEASES}.expires_at <= ? RETURNING name,owner,token,expires_at,cursor",
            (name, owner, token, now + lease_ms, now),
        ).fetchall()
        return bool(rows)

    def close(self) -> None:
        self._database.close()


class OtherPostgres:
    """Its PostgreSQL backend; `as_string` stores the payload as some of its drivers do: a JSONB string with the text."""

    def __init__(self, *, as_string: bool = False) -> None:
        settings = connection.settings_dict
        self._database = psycopg.connect(
            dbname=settings["NAME"],
            user=settings["USER"] or None,
            password=settings["PASSWORD"] or None,
            host=settings["HOST"] or settings["OPTIONS"].get("host"),
            port=settings["PORT"] or None,
            autocommit=True,
        )
        self._as_payload = "to_jsonb(%s::text)" if as_string else "%s::jsonb"

    def migrate(self) -> None:
        self._database.execute(
            f"CREATE TABLE IF NOT EXISTS {RECORDS} (kind TEXT NOT NULL, id TEXT NOT NULL, state TEXT NOT NULL, "
            "updated_at BIGINT NOT NULL, version BIGINT NOT NULL, payload JSONB NOT NULL, PRIMARY KEY (kind, id))"
        )
        self._database.execute(
            f"CREATE INDEX IF NOT EXISTS {RECORDS}_reconcile ON {RECORDS} (kind, state, updated_at, id)"
        )
        self._database.execute(
            f"CREATE TABLE IF NOT EXISTS {LEASES} (name TEXT PRIMARY KEY, owner TEXT, token TEXT, "
            "expires_at BIGINT NOT NULL DEFAULT 0, cursor TEXT)"
        )

    def create(self, kind: str, id: str, members: dict[str, Any]) -> bool:
        values = (kind, id, members["state"], members["updatedAt"], members["version"], wire.dumps(members))
        rows = self._database.execute(
            f"INSERT INTO {RECORDS} (kind,id,state,updated_at,version,payload) VALUES (%s,%s,%s,%s,%s,{self._as_payload}) "
            "ON CONFLICT DO NOTHING RETURNING id",
            values,
        ).fetchall()
        return len(rows) == 1

    def insert_payload(self, id: str, payload: str) -> None:
        self._database.execute(
            f"INSERT INTO {RECORDS} (kind,id,state,updated_at,version,payload) "
            f"VALUES ('approval',%s,'pending',1,1,{self._as_payload})",
            (id, payload),
        )

    def payload(self, kind: str, id: str) -> str:
        row = self._database.execute(
            f"SELECT payload::text FROM {RECORDS} WHERE kind=%s AND id=%s", (kind, id)
        ).fetchone()
        assert row is not None
        return str(row[0])

    def get(self, kind: str, id: str) -> dict[str, Any] | None:
        row = self._database.execute(
            f"SELECT payload::text FROM {RECORDS} WHERE kind=%s AND id=%s", (kind, id)
        ).fetchone()
        return None if row is None else wire.loads(wire_text(row[0]))

    def compare_and_set(self, kind: str, id: str, version: int, members: dict[str, Any]) -> bool:
        rows = self._database.execute(
            f"UPDATE {RECORDS} SET state=%s,updated_at=%s,version=%s,payload={self._as_payload} "
            "WHERE kind=%s AND id=%s AND version=%s RETURNING id",
            (members["state"], members["updatedAt"], members["version"], wire.dumps(members), kind, id, version),
        ).fetchall()
        return len(rows) == 1

    def scan(self, kind: str, states: list[str], limit: int) -> list[str]:
        rows = self._database.execute(
            f"SELECT id,payload FROM {RECORDS} WHERE kind=%s AND state = ANY(%s::text[]) AND (%s::bigint IS NULL OR "
            "updated_at <= %s) AND (%s::text IS NULL OR id > %s) ORDER BY id LIMIT %s",
            (kind, states, None, None, None, None, limit),
        ).fetchall()
        return [id for id, _ in rows]

    def acquire(self, name: str, owner: str, token: str, now: int, lease_ms: int) -> bool:
        rows = self._database.execute(
            f"INSERT INTO {LEASES} (name,owner,token,expires_at) VALUES (%s,%s,%s,%s) ON CONFLICT (name) DO UPDATE SET "
            "owner=EXCLUDED.owner,token=EXCLUDED.token,expires_at=EXCLUDED.expires_at "
            f"WHERE {LEASES}.expires_at <= %s RETURNING name,owner,token,expires_at,cursor",
            (name, owner, token, now + lease_ms, now),
        ).fetchall()
        return bool(rows)

    def close(self) -> None:
        self._database.close()
