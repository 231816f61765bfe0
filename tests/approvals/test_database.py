"""What only a database shows: one round trip, its own clock, a second database, another prefix, many at once."""

import os
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from approvals import conformance
from approvals.adapter import Adapter
from approvals.backends import database as database_backend
from approvals.conformance import BINDING, HASH
from tests.approvals.seed import RECORDS

HOUR_MS = 3_600_000
on_postgresql = os.environ.get("CADENCE_TEST_ENGINE") == "postgresql"


@pytest.mark.django_db(transaction=True)
def test_a_decision_is_one_round_trip_where_the_engine_allows(database: Adapter) -> None:
    one, effect = conformance.approval(expires_at=conformance.FAR), conformance.effect()
    database.approvals.create(one)
    database.effects.create(effect)
    counts = []
    for work in (
        lambda: database.approvals.decide(one.approval_id, tenant_id="acme", decision="approved", decided_by="dana"),
        lambda: database.approvals.consume(one.approval_id, binding=BINDING, token_hash=HASH) == "consumed",
        lambda: database.effects.transition(effect.effect_id, version=1, origin="admission", to="executing"),
    ):
        with CaptureQueriesContext(connection) as queries:
            assert work()
        counts.append(len(queries))
    # SQLite is in this process, and its rows are read before they are written.
    assert counts == ([1, 1, 1] if on_postgresql else [2, 2, 2])


@pytest.mark.django_db(transaction=True)
def test_absent_members_bind_too(database: Adapter) -> None:
    """An approval for no target in particular is none for a target, and the other way round."""
    plain = conformance.approval(target=None, digest=None, state="approved", expires_at=conformance.FAR)
    database.approvals.create(plain)
    assert database.approvals.consume(plain.approval_id, binding=BINDING, token_hash=HASH) == "binding"
    bare = conformance.Binding(tenant_id="acme", principal_id="bot", capability="test.write")
    full = conformance.approval(state="approved", expires_at=conformance.FAR)
    database.approvals.create(full)
    assert database.approvals.consume(full.approval_id, binding=bare, token_hash=HASH) == "binding"
    assert database.approvals.consume(plain.approval_id, binding=bare, token_hash=HASH) == "consumed"


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("skew", [-HOUR_MS, HOUR_MS])
def test_a_host_with_a_wrong_clock_steals_nothing(
    database: Adapter, monkeypatch: pytest.MonkeyPatch, skew: int
) -> None:
    """On PostgreSQL the database's clock decides; on SQLite there is one host and one clock."""
    right = database.backend.now()
    lease = database.leases.acquire("w", "a", 60_000)
    assert lease is not None
    one = conformance.approval(expires_at=right + 60_000)
    database.approvals.create(one)
    past = conformance.approval(expires_at=right - 60_000)
    database.approvals.create(past)
    monkeypatch.setattr(time, "time_ns", lambda: (right + skew) * 1_000_000)
    if not on_postgresql:
        assert database.backend.now() == right + skew
        return
    assert abs(database.backend.now() - right) < 30_000
    assert database.leases.acquire("w", "b", 60_000) is None
    assert database.leases.renew(lease, 60_000)
    decide = {"tenant_id": "acme", "decision": "approved", "decided_by": "dana"}
    assert not database.approvals.decide(past.approval_id, **decide)
    assert database.approvals.decide(one.approval_id, **decide)


@pytest.mark.django_db(transaction=True)
def test_many_writers_at_once_all_get_through(database: Adapter) -> None:
    """Without a busy timeout most of these fail on SQLite."""
    done = conformance.race(
        lambda number: sum(database.effects.create(conformance.effect(effect_id=f"e-{number}-{i}")) for i in range(40)),
        8,
    )
    assert done == [40] * 8


@pytest.mark.django_db(transaction=True)
def test_an_unreadable_row_is_passed_and_reported(database: Adapter) -> None:
    for number in range(5):
        database.effects.create(conformance.effect(effect_id=f"e{number}"))
    with connection.cursor() as cursor:
        broken = '\'{"r":{"$w":"nope"},"n":[]}\''
        cursor.execute(f"UPDATE {RECORDS} SET payload = {broken} WHERE id = 'e2'")
    page = database.effects.scan(("admission",), 3)
    assert ([record.id for record in page.records], page.unreadable, page.cursor) == (["e0", "e1"], ("e2",), "e2")
    page = database.effects.scan(("admission",), 3, None, page.cursor)
    assert [record.id for record in page.records] == ["e3", "e4"]


@pytest.mark.django_db(transaction=True)
def test_the_order_of_ids_is_the_code_points_whatever_the_collation(database: Adapter) -> None:
    for id in ("a", "B", "_", "Z", "~"):
        database.effects.create(conformance.effect(effect_id=id))
    found = [record.id for record in database.effects.scan(("admission",), 10).records]
    assert found == ["B", "Z", "_", "a", "~"]
    if on_postgresql:  # this server may have no other collation to try it with
        assert isinstance(database.backend, database_backend.DatabaseBackend)
        statement, _ = database.backend.scan_statement("effect", ["admission"], 10, None, "a")
        assert statement.count('ORDER BY id COLLATE "C"') == 2
        assert 'id COLLATE "C" > %s' in statement


# In processes of their own: where the tables are


def manage(tmp_path: Path, *arguments: str, **environment: str) -> str:
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("CADENCE_", "DATABASE_"))}
    clean |= {"CADENCE_VAR_DIR": str(tmp_path), "DJANGO_SETTINGS_MODULE": "cadence_admin.settings"} | environment
    done = subprocess.run(
        [sys.executable, "manage.py", *arguments], env=clean, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def tables_in(path: Path) -> set[str]:
    with closing(sqlite3.connect(path)) as database:
        return {name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}


def test_the_shared_tables_may_live_in_a_database_of_their_own(tmp_path: Path) -> None:
    nifra = tmp_path / "nifra.sqlite3"
    place = {"CADENCE_NIFRA_DATABASE_URL": f"sqlite:///{nifra}"}
    manage(tmp_path, "migrate", "-v0", **place)
    manage(tmp_path, "migrate", "-v0", "--database", "nifra", **place)
    own = tables_in(tmp_path / "cadence.sqlite3")
    assert "runs_run" in own
    assert not any(name.startswith("nifra") for name in own)
    ours = {"sqlite_sequence", "django_migrations", "cadence_admin_decision", "cadence_admin_auditentry"}
    assert tables_in(nifra) - ours == {RECORDS, "nifra_durable_leases"}
    assert "cadence_admin_decision" not in own
    assert "hold" in manage(tmp_path, "conformance", **place)
    assert "73 records copied" in manage(tmp_path, "import_records", "tests/data/nifra/records.sqlite3", **place)
    with closing(sqlite3.connect(nifra)) as database:
        assert database.execute(f"SELECT count(*) FROM {RECORDS} WHERE id NOT LIKE 'conformance%'").fetchone()[0] >= 73
        # What happens to these tables is told where it happens.
        assert database.execute("SELECT action FROM cadence_admin_auditentry").fetchall() == [("records.imported",)]


def test_a_prefix_names_the_tables(tmp_path: Path) -> None:
    manage(tmp_path, "migrate", "-v0", CADENCE_NIFRA_TABLE_PREFIX="shop")
    assert {"shop_records", "shop_leases"} <= tables_in(tmp_path / "cadence.sqlite3")
    assert "hold" in manage(tmp_path, "conformance", CADENCE_NIFRA_TABLE_PREFIX="shop")
    assert "No changes" in manage(tmp_path, "makemigrations", "--check", CADENCE_NIFRA_TABLE_PREFIX="shop")
