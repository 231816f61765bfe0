"""Many records at once, made by the database itself."""

from typing import Final

from django.db import connection

from approvals.tables import RECORDS

# Half of them belong to another tenant.
_POSTGRESQL: Final = """
INSERT INTO {table} (kind, id, state, updated_at, version, payload)
SELECT '{kind}', '{kind}-' || lpad(i::text, greatest(6, length(i::text)), '0'), {state}, i, 1, jsonb_build_object(
  'r', '{{"$w": "ref", "i": 0}}'::jsonb, 'n', jsonb_build_array(jsonb_build_object('$w', 'obj', 'v', jsonb_build_object(
    '{kind}Id', '{kind}-' || lpad(i::text, greatest(6, length(i::text)), '0'), 'state', {state}, 'tenantId', 'tenant-' || (i %% 2), 'principalId', 'bot',
    'capability', 'payments.refund', 'target', 'order:' || i, 'effectId', 'effect-' || lpad(i::text, greatest(6, length(i::text)), '0'),
    'tokenHash', 'hash', 'createdAt', i, 'expiresAt', {expires} + i, 'updatedAt', i, 'version', 1))))
FROM generate_series({start}, {start} + {count} - 1) AS i
"""
_SQLITE: Final = """
WITH RECURSIVE numbers(i) AS (SELECT {start} UNION ALL SELECT i + 1 FROM numbers WHERE i < {start} + {count} - 1)
INSERT INTO {table} (kind, id, state, updated_at, version, payload)
SELECT '{kind}', printf('{kind}-%%06d', i), {state}, i, 1, json_object(
  'r', json('{{"$w":"ref","i":0}}'), 'n', json_array(json_object('$w', 'obj', 'v', json_object(
    '{kind}Id', printf('{kind}-%%06d', i), 'state', {state}, 'tenantId', 'tenant-' || (i %% 2), 'principalId', 'bot',
    'capability', 'payments.refund', 'target', 'order:' || i, 'effectId', printf('effect-%%06d', i),
    'tokenHash', 'hash', 'createdAt', i, 'expiresAt', {expires} + i, 'updatedAt', i, 'version', 1))))
FROM numbers
"""


def fill(kind: str, count: int, state: str, *, start: int = 1, expires: int = 1_000) -> None:
    """Insert `count` records numbered from `start`. `state` is an SQL expression over the number `i`; the one numbered i
    expires at `expires` + i (ms)."""
    statement = _SQLITE if connection.vendor == "sqlite" else _POSTGRESQL
    with connection.cursor() as cursor:
        cursor.execute(
            statement.format(table=RECORDS, kind=kind, state=state, count=count, start=start, expires=expires), []
        )
