"""The one place that reads a clock: this process's, or a database's."""

import time
from typing import Final

from django.db import connections
from django.db.models import BigIntegerField, Func, Value

# When the row is looked at, not when its transaction began.
POSTGRESQL_NOW: Final = "(extract(epoch FROM clock_timestamp()) * 1000)::bigint"
# When the statement began: stable, so that an index can start there.
_STATEMENT_NOW: Final = "(extract(epoch FROM statement_timestamp()) * 1000)::bigint"


def now_ms() -> int:
    """Milliseconds since 1970-01-01 UTC."""
    return time.time_ns() // 1_000_000


def database_now(using: str) -> int:
    """The clock that decides, in milliseconds: the database's on PostgreSQL, this host's on SQLite."""
    connection = connections[using]
    if connection.vendor != "postgresql":
        return now_ms()
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT {POSTGRESQL_NOW}")
        return int(cursor.fetchone()[0])


def now_in_statement(using: str) -> Func | Value:
    """The same clock as part of a query, for one that needs no moment besides."""
    if connections[using].vendor != "postgresql":
        return Value(now_ms())
    return Func(template=_STATEMENT_NOW, output_field=BigIntegerField())
