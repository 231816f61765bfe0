"""The mirror: complete, incremental, safe at any moment, and not to be fooled about a history."""

import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from django.db import OperationalError, connection, connections, transaction
from django.db.models import Model
from django.test.utils import CaptureQueriesContext

from runs import mirror
from runs.integrity import verify_stored
from runs.mirror import StoreReport, mirror_state_home, mirror_store, mirror_stores
from runs.models import (
    ApplyTransaction,
    Artifact,
    BootstrapHandoff,
    ChainAnchor,
    DeliveryBinding,
    Divergence,
    Event,
    Operation,
    RouteHealth,
    Run,
    StateRoot,
    Task,
    WorkspaceRevision,
)
from runs.source import COLUMNS, Source
from tests.conftest import DATA, load
from tests.runs.stores import PROOF, ROOT, Store
from tests.runs.threads import in_threads

pytestmark = pytest.mark.django_db

TABLES: dict[str, type[Model]] = {
    "runs": Run,
    "delivery_bindings": DeliveryBinding,
    "events": Event,
    "tasks": Task,
    "operations": Operation,
    "route_health": RouteHealth,
    "artifacts": Artifact,
    "workspace_revisions": WorkspaceRevision,
    "apply_transactions": ApplyTransaction,
    "bootstrap_handoffs": BootstrapHandoff,
}


@pytest.fixture
def store(tmp_path: Path) -> Store:
    store = Store.in_state_home(tmp_path / "home")
    store.add_run("run-1", "first", ["validating-delivery", "ready", "running"])
    store.add_run("run-2", "second")
    return store


def mirrored_rows(name: str) -> list[dict[str, Any]]:
    model = TABLES[name]
    names = [column for column in COLUMNS[name] if column not in ("lease_token", "run_id", "owner_run_id")]
    owner = next((column for column in ("owner_run_id", "run_id") if column in COLUMNS[name]), None)
    if owner and name != "runs":
        owner = owner.removesuffix("_id") + "__run_id"
    return sorted(model._default_manager.values(*names, *([owner] if owner else [])), key=str)


def source_rows(path: Path, name: str) -> list[dict[str, Any]]:
    rows = []
    with Source.open(path) as source, source.snapshot():
        for row in source.rows_of(name, "", None):
            row.pop("lease_held", None)
            owner = next((column for column in ("owner_run_id", "run_id") if column in row), None)
            if owner and name != "runs":
                row[owner.removesuffix("_id") + "__run_id"] = row.pop(owner)
            rows.append(row)
    return sorted(rows, key=str)


def canonical(rows: list[dict[str, Any]]) -> list[list[tuple[str, Any]]]:
    return sorted((sorted(row.items()) for row in rows), key=str)


@pytest.mark.parametrize("path", sorted((DATA / "cadence").rglob("*.sqlite3")), ids=lambda path: path.stem)
def test_every_row_of_every_table_comes_along(path: Path) -> None:
    report = mirror_store(path)
    assert report.clean
    for name in TABLES:
        assert canonical(mirrored_rows(name)) == canonical(source_rows(path, name)), name


def test_tampered_stores_show_their_verdicts_after_mirroring() -> None:
    for name, expected in (load("cadence/tampered.json") or {}).items():
        Event.objects.all()._raw_delete("default")
        for model in (ChainAnchor, *reversed(list(TABLES.values()))):
            model._default_manager.all().delete()
        mirror_store(DATA / "cadence" / f"{name}.sqlite3")
        found = {run.run_id: run.verdict for run in Run.objects.exclude(verdict="ok")}
        assert found == expected
        assert all(verify_stored(run).code == run.verdict for run in Run.objects.all())


def test_lease_tokens_stay_where_they_are(state_home: Path) -> None:
    mirror_state_home(state_home)
    assert Operation.objects.filter(lease_token__isnull=False).count() == 0
    assert set(Operation.objects.filter(lease_held=True).values_list("state", flat=True)) == {"running"}
    assert Operation.objects.filter(lease_held=True).count() == 6
    assert not Operation.objects.filter(state="committed", lease_held=True).exists()


def test_an_unchanged_store_costs_one_query(state_home: Path) -> None:
    mirror_state_home(state_home)
    path = next(state_home.rglob("control.sqlite3"))
    before = StateRoot.objects.get().checked_at
    with CaptureQueriesContext(connection) as queries:
        report = mirror_store(path)
    assert len(queries) == 1
    assert report.status == "unchanged"
    assert StateRoot.objects.get().checked_at >= before


def test_a_second_pass_over_a_touched_store_changes_nothing(state_home: Path) -> None:
    mirror_state_home(state_home)
    before = {name: mirrored_rows(name) for name in TABLES}
    path = next(state_home.rglob("control.sqlite3"))
    os.utime(path)
    report = mirror_store(path)
    assert (report.status, report.new_runs, report.changed_runs, report.new_events) == ("mirrored", 0, 0, 0)
    assert {name: mirrored_rows(name) for name in TABLES} == before


def test_a_grown_run_costs_its_new_events_only(tmp_path: Path) -> None:
    def queries_to_grow(length: int) -> int:
        store = Store(tmp_path / f"{length}" / "control.sqlite3", root_hash=f"{length:064d}")
        store.add_run("run-1", "x", ["paused"] * length)
        mirror_store(store.path)
        store.move("run-1", "paused", "paused")
        with CaptureQueriesContext(connection) as queries:
            report = mirror_store(store.path, recheck=False)
        assert (report.changed_runs, report.new_events) == (1, 2)
        inserted = [query["sql"] for query in queries if query["sql"].startswith('INSERT INTO "runs_event"')]
        assert len(inserted) == 1
        return len(queries)

    assert queries_to_grow(3) == queries_to_grow(60)
    assert set(Run.objects.values_list("verdict", flat=True)) == {"ok"}


def test_first_sight_and_last_change_are_kept(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mirror, "now_ms", lambda: 1_000)
    mirror_store(store.path)
    monkeypatch.setattr(mirror, "now_ms", lambda: 2_000)
    store.move("run-1", "paused")
    mirror_store(store.path)
    grown, same = Run.objects.get(run_id="run-1"), Run.objects.get(run_id="run-2")
    assert (grown.first_seen_at, grown.changed_at) == (1_000, 2_000)
    assert (same.first_seen_at, same.changed_at) == (1_000, 1_000)
    assert list(grown.events.values_list("first_seen_at", flat=True)) == [1_000] * 4 + [2_000]
    assert list(grown.anchors.values_list("sequence", "seen_at")) == [(4, 1_000), (5, 2_000)]
    assert StateRoot.objects.get().checked_at == 2_000


def test_operations_follow_their_source(store: Store) -> None:
    store.execute("INSERT INTO operations VALUES ('run-1','op','lease','running',NULL,'t',99)")
    mirror_store(store.path)
    assert Operation.objects.get().lease_held
    store.execute("UPDATE operations SET state='committed', outcome_json='{}', lease_token=NULL, lease_expires_at=NULL")
    assert mirror_store(store.path).changed_runs == 1
    operation = Operation.objects.get()
    assert (operation.state, operation.outcome_json, operation.lease_held) == ("committed", "{}", False)
    assert operation.lease_expires_at is None


def test_rows_that_vanish_are_kept_and_marked_and_may_come_back(store: Store) -> None:
    store.bind("run-2", "gate-a", 1)
    store.execute("INSERT INTO tasks VALUES ('run-1','t','pending',NULL,'{}')")
    store.execute("INSERT INTO route_health VALUES ('f','open',NULL,'{}')")
    store.execute(f"INSERT INTO artifacts VALUES ('{'a' * 64}',1,'open',NULL,1)")
    mirror_store(store.path)
    saved = store.execute("SELECT * FROM runs WHERE run_id='run-2'")
    for table in ("tasks", "route_health", "artifacts", "delivery_bindings"):
        store.execute(f"DELETE FROM {table}")
    store.execute("DELETE FROM runs WHERE run_id='run-2'")
    report = mirror_store(store.path)
    assert report.missing_runs == 1
    assert Task.objects.get().missing_since
    assert RouteHealth.objects.get().missing_since
    assert Artifact.objects.get().missing_since
    assert Run.objects.get(run_id="run-2").missing_since
    store.execute("INSERT INTO tasks VALUES ('run-1','t','pending',NULL,'{}')")
    store.execute(f"INSERT INTO runs VALUES ({','.join('?' * 12)})", saved[0])
    mirror_store(store.path)
    assert Task.objects.get().missing_since is None
    assert Run.objects.get(run_id="run-2").missing_since is None
    assert mirror_store(store.path).status == "unchanged"


def test_a_key_passes_from_a_vanished_or_renamed_row_to_a_new_one(store: Store) -> None:
    store.execute("INSERT INTO bootstrap_handoffs VALUES ('h1','run-1',?,'open','{}')", ("e" * 64,))
    mirror_store(store.path)
    store.execute("DELETE FROM runs WHERE run_id='run-2'")
    store.execute("DELETE FROM events WHERE run_id='run-2'")
    store.add_run("run-3", "second")
    store.execute("UPDATE bootstrap_handoffs SET handoff_id='h2'")
    assert mirror_store(store.path).clean
    assert Run.objects.get(run_id="run-3").lookup_key == "change:second"
    assert Run.objects.get(run_id="run-2").missing_since
    assert [row.handoff_id for row in BootstrapHandoff.objects.filter(missing_since=None)] == ["h2"]
    # From a later run to an earlier one.
    store.execute("UPDATE runs SET lookup_key='terminal:run-3' WHERE run_id='run-3'")
    store.execute("UPDATE runs SET lookup_key='change:second' WHERE run_id='run-1'")
    assert mirror_store(store.path).clean
    assert Run.objects.get(run_id="run-1").lookup_key == "change:second"


def test_an_artifact_may_change_its_owner(store: Store) -> None:
    store.execute(f"INSERT INTO artifacts VALUES ('{'a' * 64}',1,'open','run-2',1)")
    mirror_store(store.path)
    for owner in ("run-1", "run-2", None, "run-1"):
        store.execute("UPDATE artifacts SET owner_run_id=?", (owner,))
        mirror_store(store.path)
        artifact = Artifact.objects.get()
        assert artifact.missing_since is None, owner
        assert (artifact.owner_run.run_id if artifact.owner_run else None) == owner


def test_the_old_form_comes_along(tmp_path: Path) -> None:
    store = Store.in_state_home(tmp_path, form="2")
    store.add_run("run-1", "x")
    store.bind("run-1", "gate-a", 1)
    assert mirror_store(store.path).form == "2"
    assert Run.objects.get().verdict == "ok"
    assert DeliveryBinding.objects.get().record_hash is None


def test_a_copied_project_has_runs_of_its_own(tmp_path: Path, store: Store) -> None:
    other = "f" * 64
    shutil.copytree(store.path.parent, store.path.parent.parent / other)
    reports = mirror_state_home(tmp_path / "home")
    assert all(report.clean for report in reports)
    assert Run.objects.filter(run_id="run-1").count() == 2
    assert set(StateRoot.objects.values_list("root_hash", flat=True)) == {ROOT, other}


def test_a_loose_file_may_hold_several_roots(tmp_path: Path) -> None:
    store = Store(tmp_path / "control.sqlite3")
    store.add_run("run-1", "x")
    store.root_hash = "e" * 64
    store.add_run("run-2", "x")
    assert mirror_store(store.path).clean
    assert Run.objects.get(run_id="run-2").state_root.root_hash == "e" * 64
    assert mirror_store(store.path).status == "unchanged"


# A history that changes


def test_a_rewritten_history_is_found_at_its_first_difference(state_home: Path, tmp_path: Path) -> None:
    mirror_state_home(state_home)
    copy = tmp_path / "copy"
    shutil.copytree(state_home, copy)
    path = next(copy.rglob("control.sqlite3"))
    forged = Store.__new__(Store)
    forged.path = path
    run_id = "00000000-0000-4000-8000-000000000010"
    kept = list(Run.objects.get(run_id=run_id).events.values_list("sequence", "payload_json", "event_hash"))
    forged.rewrite(run_id, 4, {"from": "created", "to": "validating-delivery", "code": "forged"})
    (report,) = mirror_state_home(copy)
    assert [(found.run_id, found.sequence, found.code) for found in report.diverged] == [(run_id, 4, "event-changed")]
    run = Run.objects.get(run_id=run_id)
    assert (run.verdict, run.first_broken, run.diverged_sequence) == ("chain-diverged", 4, 4)
    assert list(run.events.values_list("sequence", "payload_json", "event_hash")) == kept
    seen = Divergence.objects.get()
    assert "forged" in (seen.source_payload_json or "")
    assert seen.source_event_hash != kept[3][2]
    assert verify_stored(run).code == "chain-diverged"
    # Said again with every pass, as one finding; the other runs are as they were.
    (again,) = mirror_state_home(copy)
    assert len(again.diverged) == 1
    assert Divergence.objects.count() == 1
    assert Run.objects.exclude(verdict="ok").count() == 1


@pytest.mark.parametrize(
    ("statements", "sequence", "code"),
    [
        (["DELETE FROM events WHERE run_id='run-1' AND sequence=4"], 4, "chain-shorter"),
        (["DELETE FROM events WHERE run_id='run-1'"], 1, "chain-shorter"),
        (["DELETE FROM events WHERE run_id='run-1' AND sequence=2"], 2, "event-missing"),
        (["UPDATE events SET payload_json='{}' WHERE run_id='run-1' AND sequence=2"], 2, "event-changed"),
        (["UPDATE events SET type='x' WHERE run_id='run-1' AND sequence=4"], 4, "event-changed"),
        (["UPDATE events SET event_hash='no hash' WHERE run_id='run-1' AND sequence=3"], 3, "event-changed"),
        (
            ["UPDATE events SET payload_json=CAST(x'00ff' AS TEXT) WHERE run_id='run-1' AND sequence=3"],
            3,
            "event-changed",
        ),
        (["UPDATE events SET sequence=6 WHERE run_id='run-1' AND sequence=4"], 4, "event-missing"),
    ],
)
def test_each_way_to_change_the_past_is_found(store: Store, statements: list[str], sequence: int, code: str) -> None:
    mirror_store(store.path)
    kept = list(Event.objects.order_by("id").values_list())
    for statement in statements:
        store.execute(statement)
    report = mirror_store(store.path)
    assert [(found.run_id, found.sequence, found.code) for found in report.diverged] == [("run-1", sequence, code)]
    assert list(Event.objects.order_by("id").values_list()) == kept
    assert Run.objects.get(run_id="run-1").diverged_sequence == sequence
    assert Run.objects.get(run_id="run-2").diverged_sequence is None


def test_a_head_that_does_not_follow_is_found(store: Store) -> None:
    mirror_store(store.path)
    store.move("run-1", "paused", "ready")
    store.execute("DELETE FROM events WHERE run_id='run-1' AND sequence=5")
    report = mirror_store(store.path, recheck=False)
    assert [(found.sequence, found.code) for found in report.diverged] == [(5, "head-detached")]
    assert Run.objects.get(run_id="run-1").events.count() == 4


def test_heads_alone_find_a_forgery_and_a_recheck_finds_an_edit(store: Store) -> None:
    mirror_store(store.path)
    store.execute("UPDATE events SET payload_json='{}' WHERE run_id='run-1' AND sequence=2")
    assert mirror_store(store.path, recheck=False).clean
    assert len(mirror_store(store.path).diverged) == 1
    assert len(mirror_store(store.path, recheck=False).diverged) == 1


def test_a_source_that_comes_back_goes_on_and_the_mark_stays(store: Store, tmp_path: Path) -> None:
    mirror_store(store.path)
    good = store.path.read_bytes()
    store.execute("DELETE FROM events WHERE run_id='run-1' AND sequence=4")
    mirror_store(store.path)
    store.path.write_bytes(good)
    store.move("run-1", "paused")
    assert mirror_store(store.path).clean
    run = Run.objects.get(run_id="run-1")
    assert (run.sequence, run.state, run.verdict, run.diverged_sequence) == (5, "paused", "chain-diverged", 4)


def test_a_chain_rewritten_in_our_own_database_is_found_by_its_anchor(store: Store) -> None:
    mirror_store(store.path)
    run = Run.objects.get(run_id="run-1")
    forged = Store.__new__(Store)
    forged.path = store.path
    forged.rewrite("run-1", 2, {"from": "created", "to": "validating-delivery", "code": "forged"})
    with Source.open(store.path) as source, source.snapshot():
        row = source.run("run-1")
        events = list(source.events("run-1"))
    assert row is not None
    run.events.all()._raw_delete("default")
    for event in events:
        Event.objects.create(run=run, first_seen_at=0, sequence=event.sequence, type=event.type,
                             payload_json=event.payload_json, prior_hash=event.prior_hash,
                             event_hash=event.event_hash)  # fmt: skip
    Run.objects.filter(pk=run.pk).update(event_hash=row["event_hash"], projection_json=row["projection_json"])
    verdict = verify_stored(run)
    assert (verdict.code, verdict.first_broken) == ("anchor-mismatch", 4)


# Stores that can't be read whole


def test_one_bad_store_does_not_stop_the_others(tmp_path: Path, store: Store) -> None:
    bad = Store.in_state_home(tmp_path / "home", root_hash="a" * 64)
    bad.path.write_bytes(b"garbage" * 1000)
    reports = mirror_state_home(tmp_path / "home")
    assert [report.status for report in reports] == ["mirrored", "failed"] or [r.status for r in reports] == [
        "failed",
        "mirrored",
    ]
    assert Run.objects.count() == 2


def test_a_store_that_goes_bad_or_away_is_said_on_its_root(tmp_path: Path, store: Store) -> None:
    mirror_state_home(tmp_path / "home")
    good = store.path.read_bytes()
    store.path.write_bytes(b"garbage" * 1000)
    mirror_state_home(tmp_path / "home")
    assert StateRoot.objects.get().problem.startswith("run-store-unreadable")
    store.path.unlink()
    mirror_state_home(tmp_path / "home")
    assert StateRoot.objects.get().problem.startswith("state-component-missing")
    store.path.write_bytes(good)
    mirror_state_home(tmp_path / "home")
    assert StateRoot.objects.get().problem == ""
    assert Run.objects.filter(missing_since=None).count() == 2


@pytest.mark.parametrize(
    ("statement", "word"),
    [
        ("UPDATE runs SET state='archived' WHERE run_id='run-1'", "archived"),
        ("UPDATE runs SET stage='abel-deploy' WHERE run_id='run-1'", "abel-deploy"),
        ("UPDATE runs SET event_hash='short' WHERE run_id='run-1'", "event_hash"),
        ("UPDATE events SET event_hash='short' WHERE run_id='run-1' AND sequence=1", "event_hash"),
        ("UPDATE events SET payload_json=CAST(x'22ff22' AS TEXT) WHERE run_id='run-1' AND sequence=1", "payload_json"),
        ("UPDATE events SET payload_json=CAST(x'220022' AS TEXT) WHERE run_id='run-1' AND sequence=1", "payload_json"),
        ("INSERT INTO tasks VALUES ('run-1','t','dancing',NULL,'{}')", "dancing"),
        ("INSERT INTO operations VALUES ('run-1','o','lease','dancing',NULL,NULL,NULL)", "dancing"),
        (
            "INSERT INTO operations VALUES ('run-1',printf('%.300c','o'),'lease','running',NULL,NULL,NULL)",
            "operation_id",
        ),
        ("UPDATE runs SET run_id='../../etc' WHERE run_id='run-1'", "run_id"),
        ("UPDATE runs SET run_id='run-1'||char(10) WHERE run_id='run-1'", "run_id"),
        ("UPDATE runs SET run_id='<script>' WHERE run_id='run-1'", "run_id"),
    ],
)
def test_a_row_that_does_not_fit_is_named_and_its_run_left_out_whole(store: Store, statement: str, word: str) -> None:
    store.execute(statement)
    report = mirror_store(store.path)
    assert [problem.code for problem in report.problems] == ["source-row-invalid"]
    assert word in report.problems[0].message
    assert list(Run.objects.values_list("run_id", flat=True)) == ["run-2"]
    assert set(Event.objects.values_list("run__run_id", flat=True)) == {"run-2"}
    assert word in StateRoot.objects.get().problem


def test_a_store_that_never_holds_still_is_reported(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def restless(self: Source) -> None:
        raise mirror.SourceChanged

    monkeypatch.setattr(Source, "require_unchanged", restless)
    (report,) = mirror_stores([store.path])
    assert report.status == "failed"
    assert report.problems[0].code == "run-store-unreadable"
    assert Run.objects.count() == 0


# Interrupted, and two at once


@pytest.mark.django_db(transaction=True)
def test_a_pass_that_dies_anywhere_is_completed_by_the_next(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail at the 1st, 2nd, 3rd ... write to the database until a pass gets through."""
    for index in range(12):
        store.add_run(f"more-{index}", f"more-{index}", ["paused"])

    class Killed(BaseException):
        pass

    allowed = 0
    while True:
        left = allowed

        def wrapper(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
            nonlocal left
            if sql.startswith(("INSERT", "UPDATE")):
                if left == 0:
                    raise Killed
                left -= 1
            return execute(sql, params, many, context)

        try:
            with connection.execute_wrapper(wrapper):
                mirror_store(store.path)
            break
        except Killed:
            allowed += 1
        for run in Run.objects.all():  # whole or not at all
            assert run.events.count() == run.sequence
            assert run.verdict == "ok"
            assert run.anchors.count() == 1
    assert allowed > 3
    assert canonical(mirrored_rows("runs")) == canonical(source_rows(store.path, "runs"))
    assert canonical(mirrored_rows("events")) == canonical(source_rows(store.path, "events"))
    assert mirror_store(store.path).status == "unchanged"


@pytest.mark.django_db(transaction=True)
def test_a_killed_process_leaves_whole_runs_and_the_next_completes(tmp_path: Path) -> None:
    store = Store.in_state_home(tmp_path / "home")
    for index in range(120):
        store.add_run(f"run-{index}", f"change-{index}", ["paused"])
    environment = os.environ | {"DATABASE_URL": _database_url(), "DJANGO_SETTINGS_MODULE": "cadence_admin.settings"}
    command = [sys.executable, "manage.py", "mirror_cadence", str(store.path)]
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    while process.poll() is None and Run.objects.count() < 3:
        pass
    process.kill()
    process.communicate()
    assert Run.objects.count() >= 3
    for run in Run.objects.all():
        assert run.events.count() == run.sequence
        assert run.anchors.count() == 1
    assert mirror_store(store.path).clean
    assert Run.objects.filter(verdict="ok").count() == 120


def _database_url() -> str:
    settings = connection.settings_dict
    if connection.vendor == "sqlite":
        return f"sqlite:///{settings['NAME']}"
    from urllib.parse import quote

    host = quote(settings["HOST"], safe="") if settings["HOST"] else ""
    port = f":{settings['PORT']}" if settings["PORT"] else ""
    options = settings.get("OPTIONS", {})
    query = f"?host={quote(options['host'], safe='')}" if "host" in options else ""
    password = f":{quote(settings['PASSWORD'])}" if settings["PASSWORD"] else ""
    return f"postgresql://{settings['USER']}{password}@{host}{port}/{settings['NAME']}{query}"


@pytest.mark.django_db(transaction=True)
def test_several_mirrors_at_once_do_the_work_once(store: Store) -> None:
    store.bind("run-1", "gate-b", 1, proof=PROOF)
    for index in range(20):
        store.add_run(f"more-{index}", f"more-{index}", ["paused"])
    found = in_threads(*[lambda: mirror_store(store.path)] * 4)
    errors = [report for report in found if not isinstance(report, StoreReport)]
    assert errors == []
    reports: list[StoreReport] = found
    assert all(report.clean for report in reports)
    assert sum(report.new_runs for report in reports) == 22
    assert Event.objects.count() == len(source_rows(store.path, "events"))
    assert ChainAnchor.objects.count() == 22
    assert Run.objects.exclude(verdict="ok").count() == 0


@pytest.mark.django_db(transaction=True)
def test_the_root_is_locked_while_its_source_is_read(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Or an older view of the source could be stored over a newer one, and be taken for a shortened chain."""
    mirror_store(store.path)
    store.move("run-1", "paused")
    taken: list[str] = []
    read_run = Source.run

    def try_to_lock() -> None:
        try:
            if connection.vendor == "sqlite":
                connection.ensure_connection()
                connection.connection.execute("PRAGMA busy_timeout = 0")
            with transaction.atomic():
                StateRoot.objects.select_for_update(nowait=connection.vendor != "sqlite").get()
            taken.append("free")
        except OperationalError:
            taken.append("locked")
        finally:
            connections.close_all()

    def watched(self: Source, run_id: str) -> Any:
        thread = threading.Thread(target=try_to_lock)
        thread.start()
        thread.join()
        return read_run(self, run_id)

    monkeypatch.setattr(Source, "run", watched)
    assert mirror_store(store.path).new_events == 1
    assert taken == ["locked"]


@pytest.mark.django_db(transaction=True)
def test_mirrors_beside_a_live_writer_never_see_a_false_divergence(store: Store) -> None:
    store.execute("PRAGMA journal_mode = WAL")
    done = threading.Event()
    reports: list[StoreReport] = []
    errors: list[BaseException] = []

    def work() -> None:
        try:
            while not done.is_set():
                reports.append(mirror_store(store.path))
        except BaseException as error:
            errors.append(error)
        finally:
            connections.close_all()

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(40):
            store.move("run-1", "paused", "running")
    finally:
        done.set()
        for thread in threads:
            thread.join()
    assert errors == []
    assert mirror_store(store.path).clean
    assert [found for report in reports for found in report.diverged] == []
    run = Run.objects.get(run_id="run-1")
    assert (run.sequence, run.verdict, run.events.count()) == (84, "ok", 84)
