"""At 100,000 records every page and every inbox query reads no more rows than it returns, by an index."""

import json
from typing import Any

import pytest
from django.db import connection

from approvals.adapter import Adapter
from approvals.backends.database import DatabaseBackend
from approvals.models import Approval
from approvals.tables import RECORDS

pytestmark = pytest.mark.django_db(transaction=True)

COUNT = 100_000
LIMIT = 100

# One record in a thousand is pending or executing, the others are done with; half belong to another tenant.
_STATE = "CASE WHEN i %% 1000 = 0 THEN '{open}' ELSE '{done}' END"
_POSTGRESQL = """
INSERT INTO {table} (kind, id, state, updated_at, version, payload)
SELECT '{kind}', '{kind}-' || lpad(i::text, 6, '0'), {state}, i, 1, jsonb_build_object(
  'r', '{{"$w": "ref", "i": 0}}'::jsonb, 'n', jsonb_build_array(jsonb_build_object('$w', 'obj', 'v', jsonb_build_object(
    '{kind}Id', '{kind}-' || lpad(i::text, 6, '0'), 'state', {state}, 'tenantId', 'tenant-' || (i %% 2), 'principalId', 'bot',
    'capability', 'payments.refund', 'target', 'order:' || i, 'effectId', 'effect-' || lpad(i::text, 6, '0'),
    'tokenHash', 'hash', 'createdAt', i, 'expiresAt', i + 1000, 'updatedAt', i, 'version', 1))))
FROM generate_series(1, {count}) AS i
"""
_SQLITE = """
WITH RECURSIVE numbers(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM numbers WHERE i < {count})
INSERT INTO {table} (kind, id, state, updated_at, version, payload)
SELECT '{kind}', printf('{kind}-%%06d', i), {state}, i, 1, json_object(
  'r', json('{{"$w":"ref","i":0}}'), 'n', json_array(json_object('$w', 'obj', 'v', json_object(
    '{kind}Id', printf('{kind}-%%06d', i), 'state', {state}, 'tenantId', 'tenant-' || (i %% 2), 'principalId', 'bot',
    'capability', 'payments.refund', 'target', 'order:' || i, 'effectId', printf('effect-%%06d', i),
    'tokenHash', 'hash', 'createdAt', i, 'expiresAt', i + 1000, 'updatedAt', i, 'version', 1))))
FROM numbers
"""


@pytest.fixture
def filled(database: Adapter) -> Adapter:
    statement = _SQLITE if connection.vendor == "sqlite" else _POSTGRESQL
    with connection.cursor() as cursor:
        for kind, open_state, done in (("approval", "pending", "consumed"), ("effect", "executing", "committed")):
            state = _STATE.format(open=open_state, done=done)
            cursor.execute(statement.format(table=RECORDS, kind=kind, state=state, count=COUNT // 2), [])
        cursor.execute("ANALYZE")
    return database


def assert_reads_what_it_returns(sql: str, params: Any, most: int) -> None:
    with connection.cursor() as cursor:
        if connection.vendor == "sqlite":
            cursor.execute(f"EXPLAIN QUERY PLAN {sql}", params)
            steps = [row[3] for row in cursor.fetchall()]
            reads = [step for step in steps if RECORDS in step]
            assert reads
            assert all(step.startswith("SEARCH") for step in reads), steps
            return
        cursor.execute(f"EXPLAIN (ANALYZE, FORMAT JSON) {sql}", params)
        plan = cursor.fetchone()[0]
    nodes: list[dict[str, Any]] = []

    def walk(node: dict[str, Any]) -> None:
        nodes.append(node)
        for child in node.get("Plans", ()):
            walk(child)

    walk((json.loads(plan) if isinstance(plan, str) else plan)[0]["Plan"])
    reads = [node for node in nodes if node.get("Relation Name") == RECORDS]
    assert reads
    for node in reads:
        assert "Index" in node["Node Type"] or "Bitmap" in node["Node Type"], nodes
        assert node["Actual Rows"] <= most, nodes
        assert node.get("Rows Removed by Filter", 0) <= most, nodes


def assert_query(rows: Any, most: int = LIMIT) -> None:
    assert len(rows) > 0
    sql, params = rows.query.sql_with_params()
    assert_reads_what_it_returns(sql, params, most)
    if connection.vendor == "sqlite":
        assert "TEMP B-TREE" not in rows.explain()


def test_no_query_sorts_or_reads_the_table(filled: Adapter) -> None:
    backend = filled.backend
    assert isinstance(backend, DatabaseBackend)
    for kind, states in (
        ("effect", ("admission", "executing", "unknown")),
        ("effect", ("committed",)),
        ("approval", ("pending", "approved")),
    ):
        for cursor in (None, f"{kind}-025000"):
            for before in (None, COUNT):
                page = backend.scan(kind, states=states, limit=LIMIT, updated_before=before, cursor=cursor)  # type: ignore[arg-type]
                statement, values = backend.scan_statement(kind, states, LIMIT, before, cursor)  # type: ignore[arg-type]
                assert_reads_what_it_returns(statement, values, LIMIT + 1)
                assert page.records or kind == "approval" or page.unreadable
    pending = Approval.objects.filter(state="pending")
    assert_query(pending.order_by("expires_at", "rowid")[:LIMIT])
    assert_query(pending.filter(tenant_id="tenant-0").order_by("expires_at", "rowid")[:LIMIT])
    assert_query(Approval.objects.filter(state="consumed").order_by("-updated_at", "-id")[:LIMIT])
    assert_query(Approval.objects.filter(capability="payments.refund", target="order:77").order_by("-rowid")[:LIMIT])
    assert_query(Approval.objects.filter(effect_id="effect-000077").order_by("-rowid")[:LIMIT])
    assert backend.due_at_once(LIMIT, 5_000)
