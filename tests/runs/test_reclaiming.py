"""Reclaiming wherever the operation lives, and the command for it."""

import os
import signal
import sqlite3
import subprocess
import sys
import threading
from contextlib import closing
from io import StringIO
from pathlib import Path

import pytest
from django.core.management import CommandError, call_command

from cadence_admin.clock import now_ms
from runs.mirror import mirror_state_home, mirror_store
from runs.models import LeaseEvent, Operation, Run
from runs.reclaiming import reclaim, why_not_here
from runs.source import SourceError
from runs.store import RunStore
from tests.runs.stores import Store
from tests.runs.test_mirror import _database_url
from tests.runs.test_store import results

pytestmark = pytest.mark.django_db(transaction=True)

OURS = "e" * 64


@pytest.fixture
def source(tmp_path: Path) -> Store:
    source = Store.in_state_home(tmp_path)
    source.add_run("run-1", "x")
    for name, ends in (("dead", 1_000), ("live", now_ms() + 600_000), ("endless", None)):
        source.execute(
            "INSERT INTO operations VALUES ('run-1',?,'lease','running',NULL,?,?)", (name, f"t-{name}", ends)
        )
    mirror_store(source.path)
    return source


def states(source: Store) -> dict[str, tuple[str, str | None, int | None]]:
    rows = source.execute("SELECT operation_id, state, lease_token, lease_expires_at FROM operations")
    return {name: tuple(rest) for name, *rest in rows}  # type: ignore[misc]


def test_a_mirrored_operation_is_interrupted_in_its_own_store(source: Store) -> None:
    before = states(source)
    events = source.execute("SELECT * FROM events")
    runs = source.execute("SELECT * FROM runs")
    assert dict(results(reclaim(dry_run=True))) == {"dead": "reclaimed", "endless": "reclaimed"}
    assert states(source) == before
    assert dict(results(reclaim(pause=True))) == {"dead": "reclaimed", "endless": "reclaimed"}
    assert states(source) == before | {"dead": ("interrupted", None, None), "endless": ("interrupted", None, None)}
    assert (source.execute("SELECT * FROM events"), source.execute("SELECT * FROM runs")) == (events, runs)
    mirrored = Operation.objects.get(operation_id="dead")
    assert (mirrored.state, mirrored.lease_held, mirrored.lease_expires_at) == ("interrupted", False, None)
    assert Run.objects.get().verdict == "ok"
    assert results(reclaim()) == []


def test_the_real_sample_shows_interrupted(state_home: Path) -> None:
    mirror_state_home(state_home)
    path = next(state_home.rglob("control.sqlite3"))
    done = list(reclaim())
    assert len(done) == 3
    with closing(sqlite3.connect(path)) as database:
        for result in done:
            query = "SELECT state FROM operations WHERE run_id = ? AND operation_id = ?"
            assert database.execute(query, (result.run_id, result.operation_id)).fetchone() == ("interrupted",)


def test_a_lease_renewed_in_the_source_meanwhile_is_not_taken(source: Store) -> None:
    """The mirror still shows it as expired; the store itself decides."""
    source.execute("UPDATE operations SET lease_expires_at = ? WHERE operation_id = 'dead'", (now_ms() + 600_000,))
    assert dict(results(reclaim())) == {"dead": "renewed", "endless": "reclaimed"}
    assert states(source)["dead"][0] == "running"
    source.execute("DELETE FROM operations WHERE operation_id = 'dead'")
    pk = Operation.objects.get(operation_id="dead").pk
    assert results(reclaim(operations=[pk])) == [("dead", "gone")]


def test_a_source_that_somebody_writes_to_is_busy(source: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runs.reclaiming.BUSY_TIMEOUT_S", 0)
    source.execute("PRAGMA journal_mode = WAL")
    with closing(sqlite3.connect(source.path, isolation_level=None)) as writer:
        writer.execute("BEGIN IMMEDIATE")
        assert dict(results(reclaim())) == {"dead": "busy", "endless": "busy"}
        writer.execute("ROLLBACK")
    assert dict(results(reclaim())) == {"dead": "reclaimed", "endless": "reclaimed"}


def test_a_source_that_is_gone_is_said_and_nothing_is_done(source: Store) -> None:
    assert why_not_here(str(source.path)) == ""
    source.path.unlink()
    assert "is not there" in why_not_here(str(source.path))
    with pytest.raises(SourceError):
        list(reclaim())
    assert Operation.objects.get(operation_id="dead").state == "running"


def test_ours_and_theirs_together(source: Store) -> None:
    ours = RunStore(OURS)
    run_id = ours.start_run("abel-implement", "start", change="x")["runId"]
    RunStore(OURS, now=lambda: 5_000).acquire_lease(run_id, "ours", 1)
    everything = list(Operation.objects.values_list("pk", flat=True))
    found = dict(results(reclaim(operations=everything)))
    assert found == {
        "start": "gone",
        "ours": "reclaimed",
        "dead": "reclaimed",
        "live": "renewed",
        "endless": "reclaimed",
    }


def command(*arguments: str) -> tuple[int, str, str]:
    out, err = StringIO(), StringIO()
    try:
        call_command("reclaim_leases", *arguments, stdout=out, stderr=err, no_color=True)
    except SystemExit as stop:
        return int(stop.code or 0), out.getvalue(), err.getvalue()
    return 0, out.getvalue(), err.getvalue()


def test_the_command_says_what_it_did(source: Store) -> None:
    status, out, _ = command("--dry-run")
    assert status == 0
    assert "run-1 dead: would be reclaimed (" in out
    assert command("--root", "f" * 64)[1] == ""
    assert "dead" not in command("--older-than", str(10**12), "--dry-run")[1]
    status, out, _ = command("--json")
    assert '"operation_id": "dead", "result": "reclaimed"' in out
    assert command() == (0, "", "")
    for arguments in (["--limit", "0"], ["--watch", "0"], ["--older-than", "-1"]):
        with pytest.raises(CommandError):
            command(*arguments)


def test_the_command_fails_where_it_cannot_write(source: Store) -> None:
    source.path.unlink()
    status, _, err = command()
    assert status == 1
    assert "state-component-missing" in err


def test_watching_workers_share_the_work_and_stop_cleanly() -> None:
    store = RunStore(OURS)
    run_id = str(store.start_run("abel-implement", "start", change="x")["runId"])
    environment = os.environ | {"DATABASE_URL": _database_url(), "DJANGO_SETTINGS_MODULE": "cadence_admin.settings"}
    arguments = [sys.executable, "manage.py", "reclaim_leases", "--watch", "0.05", "--pause", "--reason"]
    names = ["worker-1", "worker-2"]
    workers = [
        subprocess.Popen([*arguments, name], env=environment, stdout=subprocess.PIPE, text=True) for name in names
    ]
    past = RunStore(OURS, now=lambda: 5_000)
    patience = threading.Event()
    dead = 0
    # One that has reclaimed something is past its start, so that it knows how to stop.
    while LeaseEvent.objects.values("reason").distinct().count() < len(names):
        for _ in range(20):
            past.acquire_lease(run_id, f"dead-{dead}", 1)
            dead += 1
        while Operation.objects.filter(state="running").exists():
            assert not patience.wait(0.01)
            assert all(worker.poll() is None for worker in workers), "a worker died, nobody would go on"
    said = ""
    for worker in workers:
        worker.send_signal(signal.SIGTERM)
        out, _ = worker.communicate(timeout=20)
        assert worker.returncode == 0
        said += out
    assert {f"dead-{number}:" for number in range(dead)} <= set(said.split())
    assert said.count(": reclaimed") == dead
    assert store.verify_integrity(run_id)["state"] == "paused"
