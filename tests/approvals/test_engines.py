"""Journal, coordinator, sagas and reconciliation on every backend, and the seed's faults that must be absent."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import connections

from approvals import conformance
from approvals.adapter import Adapter
from approvals.backends.memory import MemoryBackend
from approvals.coordinator import ApprovalCoordinator, ApprovalError, ApprovalRequired
from approvals.journal import EffectJournal
from approvals.reconcile import Finding, LeaseLost, Worker, all_findings, expire_due, saga_finding
from approvals.records import Binding, RecordError, SagaStep
from approvals.sagas import Definition, SagaEngine, SagaError, StepNotCommitted
from approvals.tokens import Claims, TokenError, sign, verify
from tests.conftest import DATA
from tests.runs.test_mirror import _database_url

SECRET = b"0123456789abcdef0123456789abcdef"
BINDING = Binding(tenant_id="acme", principal_id="bot", capability="payments.refund", target="order:1", digest="a" * 64)


# Journal


def test_an_effect_from_intent_to_commit(adapter: Adapter) -> None:
    journal = EffectJournal(adapter.effects)
    journal.intent("e1", "payments.refund", target="order:1", tenant_id="acme", principal_id="bot", now=5)
    journal.executing("e1", now=6)
    journal.committed("e1", now=7)
    effect = adapter.effects.get("e1")
    assert effect is not None
    assert (effect.state, effect.created_at, effect.updated_at, effect.version) == ("committed", 5, 7, 3)
    with pytest.raises(RecordError, match="committed->failed") as error:
        journal.failed("e1", began=False, error_code="late")
    assert error.value.code == "invalid-effect-transition"
    with pytest.raises(RecordError) as error:
        journal.intent("e1", "payments.refund")
    assert error.value.code == "effect-exists"


@pytest.mark.parametrize(("began", "state"), [(True, "unknown"), (False, "failed")])
def test_a_failure_is_known_or_not(adapter: Adapter, began: bool, state: str) -> None:
    journal = EffectJournal(adapter.effects)
    journal.intent("e1", "a.b")
    journal.executing("e1")
    journal.failed("e1", began=began, error_code="timeout")
    effect = adapter.effects.get("e1")
    assert effect is not None
    assert (effect.state, effect.error_code) == (state, "timeout")
    if began:
        journal.closed("e1", committed=True)
        closed = adapter.effects.get("e1")
        assert closed is not None
        assert (closed.state, closed.error_code) == ("committed", None)


@pytest.mark.parametrize(
    "values",
    [
        {"effect_id": "x" * 65},
        {"effect_id": "two words"},
        {"effect_id": "line\n"},
        {"capability": "Upper.case"},
        {"capability": "a..b"},
        {"target": "x" * 129},
        {"digest": "A" * 64},
        {"tenant_id": "acme"},
        {"tenant_id": "a", "principal_id": "b" * 256},
        {"now": -1},
    ],
)
def test_limits_of_effects_hold(values: dict[str, Any]) -> None:
    journal = EffectJournal(Adapter(MemoryBackend()).effects)
    arguments: dict[str, Any] = {"effect_id": "e1", "capability": "a.b"} | values
    with pytest.raises(RecordError):
        journal.intent(arguments.pop("effect_id"), arguments.pop("capability"), **arguments)


# Coordinator


def asked(coordinator: ApprovalCoordinator, now: int | None = None) -> ApprovalRequired:
    with pytest.raises(ApprovalRequired) as question:
        coordinator.authorize("e1", BINDING, now=now)
    return question.value


def test_ask_decide_use_once(adapter: Adapter) -> None:
    coordinator = ApprovalCoordinator(adapter.approvals, SECRET)
    question = asked(coordinator)

    def refused(token: str = question.resume_token, binding: Binding = BINDING) -> str:
        with pytest.raises(ApprovalError) as error:
            coordinator.authorize("e2", binding, token)
        return error.value.code

    stored = adapter.approvals.get(question.approval_id)
    assert stored is not None
    assert question.resume_token not in str(stored.to_members())
    assert "token_hash" not in repr(stored)
    assert question.expires_at - stored.created_at == 15 * 60_000
    assert refused() == "approval-pending"
    coordinator.decide(question.approval_id, tenant_id="acme", decision="approved", decided_by="dana")
    assert refused(binding=replace(BINDING, target="order:2")) == "approval-binding"
    assert refused(binding=replace(BINDING, digest=None)) == "approval-binding"
    coordinator.authorize("e2", BINDING, question.resume_token)
    assert refused() == "approval-replay"
    with pytest.raises(RecordError) as error:
        coordinator.decide(question.approval_id, tenant_id="acme", decision="denied", decided_by="dana")
    assert error.value.code == "approval-decision-rejected"


def test_denied_and_expired(adapter: Adapter) -> None:
    coordinator = ApprovalCoordinator(adapter.approvals, SECRET, ttl_ms=1_000)
    question = asked(coordinator, now=10_000)
    coordinator.decide(question.approval_id, tenant_id="acme", decision="denied", decided_by="dana", now=10_500)
    with pytest.raises(ApprovalError, match="denied"):
        coordinator.authorize("e2", BINDING, question.resume_token, now=10_600)
    late = asked(coordinator, now=10_000)
    with pytest.raises(RecordError):
        coordinator.decide(late.approval_id, tenant_id="acme", decision="approved", decided_by="dana", now=11_000)
    with pytest.raises(TokenError) as error:
        coordinator.authorize("e2", BINDING, late.resume_token, now=11_000)
    assert error.value.code == "approval-token-expired"


@pytest.mark.parametrize(
    "token",
    ["", "v1", "v1.a.b", "v2.a.b", "v1..", "a.b.c.d", "x" * 3_000, "v1.\u00e9.b", "v1.e30." + "A" * 43, "v1.e30.A"],
)
def test_tokens_that_say_nothing(token: str) -> None:
    with pytest.raises(TokenError) as error:
        verify(token, SECRET, 0)
    assert error.value.code == "approval-token-invalid"


def test_a_token_is_bound_to_its_secret_and_its_claims() -> None:
    token = sign(Claims("ap1", "nonce", 100), SECRET)
    assert verify(token, SECRET, 99) == Claims("ap1", "nonce", 100)
    with pytest.raises(TokenError):
        verify(token, SECRET[::-1], 99)
    with pytest.raises(TokenError):
        verify(token.replace("v1.e", "v1.f"), SECRET, 99)
    for claims in (Claims("two words", "n", 100), Claims("x" * 129, "n", 100), Claims("ap1", "", 100)):
        with pytest.raises(TokenError) as error:
            verify(sign(claims, SECRET), SECRET, 0)
        assert error.value.code == "approval-token-malformed"
    with pytest.raises(ValueError, match="32"):
        sign(Claims("ap1", "n", 1), b"short")
    with pytest.raises(ValueError, match="32"):
        ApprovalCoordinator(Adapter(MemoryBackend()).approvals, b"short")


# Sagas


class Shop:
    """A saga of three steps that remembers what was done and undone."""

    def __init__(self, fails: Exception | None = None, undo_fails: int = 0) -> None:
        self.log: list[str] = []
        self.fails = fails
        self.undo_fails = undo_fails

    def run(self, run: Any, order: Any) -> None:
        for name in ("reserve", "charge", "ship"):
            run.step(name, {"order": order, "step": name}, lambda effect_id, name=name: self.do(name))

    def do(self, name: str) -> str:
        if name == "ship" and self.fails is not None:
            raise self.fails
        self.log.append(name)
        return f"{name}-done"

    def undo(self, arguments: Any, compensation: Any) -> None:
        if self.undo_fails:
            self.undo_fails -= 1
            raise OSError("no")
        self.log.append(f"undo {arguments['step']}")

    def definition(self, **values: Any) -> Definition:
        return Definition("shop", self.run, dict.fromkeys(("reserve", "charge", "ship"), self.undo), **values)


class Clock:
    def __init__(self) -> None:
        self.now = 1_000_000

    def __call__(self) -> int:
        return self.now


def test_a_saga_that_goes_well(adapter: Adapter) -> None:
    shop = Shop()
    saga = SagaEngine(adapter.sagas).execute(shop.definition(), "s1", {"id": 7})
    assert (saga.state, [step.state for step in saga.steps]) == ("completed", ["committed"] * 3)
    assert shop.log == ["reserve", "charge", "ship"]
    assert saga.steps[0].result == "reserve-done"
    again = SagaEngine(adapter.sagas).resume(shop.definition(), "s1")
    assert again.version == saga.version
    with pytest.raises(SagaError) as error:
        SagaEngine(adapter.sagas).execute(shop.definition(), "s1", {})
    assert error.value.code == "saga-exists"


def test_a_step_that_surely_failed_undoes_the_saga(adapter: Adapter) -> None:
    shop = Shop(StepNotCommitted("card_declined"))
    with pytest.raises(StepNotCommitted):
        SagaEngine(adapter.sagas).execute(shop.definition(), "s1", 1)
    saga = adapter.sagas.get("s1")
    assert saga is not None
    assert saga.state == "compensated"
    assert [step.state for step in saga.steps] == ["compensated", "compensated", "failed"]
    assert shop.log == ["reserve", "charge", "undo charge", "undo reserve"]


def test_a_step_of_which_nobody_knows_waits_for_a_person(adapter: Adapter) -> None:
    shop = Shop(TimeoutError("who knows"))
    engine = SagaEngine(adapter.sagas)
    with pytest.raises(TimeoutError):
        engine.execute(shop.definition(), "s1", 1)
    saga = engine.load("s1")
    step = saga.steps[2]
    assert (saga.state, step.state, step.error_code) == ("manual-review", "ambiguous", "execution_unknown")
    assert shop.log == ["reserve", "charge"]
    with pytest.raises(SagaError) as error:
        engine.compensate(shop.definition(), "s1")
    assert error.value.code == "saga-ambiguous-step"
    with pytest.raises(RecordError) as refused:
        engine.resolve_execution("s1", "no-such-effect", committed=True)
    assert refused.value.code == "saga-step-not-found"
    with pytest.raises(SagaError):
        engine.resolve_execution("s1", step.effect_id, committed=True, version=saga.version - 1)
    resolved = engine.resolve_execution("s1", step.effect_id, committed=True, result="ok", version=saga.version)
    assert (resolved.state, resolved.steps[2].state, resolved.steps[2].error_code) == ("running", "committed", None)
    shop.fails = None
    assert engine.resume(shop.definition(), "s1").state == "completed"
    assert shop.log == ["reserve", "charge"]


def test_not_committed_after_all_undoes_the_saga(adapter: Adapter) -> None:
    shop = Shop(TimeoutError())
    engine = SagaEngine(adapter.sagas)
    with pytest.raises(TimeoutError):
        engine.execute(shop.definition(), "s1", 1)
    step = engine.load("s1").steps[2]
    resolved = engine.resolve_execution("s1", step.effect_id, committed=False)
    assert (resolved.state, resolved.steps[2].state, resolved.steps[2].error_code) == (
        "compensating",
        "failed",
        "not_committed",
    )
    assert engine.compensate(shop.definition(), "s1").state == "compensated"


def test_compensation_is_tried_again_with_growing_pauses(adapter: Adapter) -> None:
    clock, shop = Clock(), Shop(StepNotCommitted(), undo_fails=2)
    engine = SagaEngine(adapter.sagas, clock)
    definition = shop.definition(backoff_ms=lambda attempt: 100 * attempt)
    with pytest.raises(StepNotCommitted):
        engine.execute(definition, "s1", 1)
    saga = engine.load("s1")
    assert (saga.state, saga.steps[1].state, saga.steps[1].attempts) == ("compensating", "compensation-failed", 1)
    assert saga.steps[1].next_attempt_at == clock.now + 100
    assert engine.compensate(definition, "s1").version == saga.version  # not due yet
    clock.now += 100
    assert engine.compensate(definition, "s1").steps[1].next_attempt_at == clock.now + 200
    clock.now += 200
    assert engine.compensate(definition, "s1").state == "compensated"
    assert shop.log[-2:] == ["undo charge", "undo reserve"]


@pytest.mark.parametrize("by_hand", [True, False])
def test_a_compensation_that_fails_for_good_has_a_way_out(adapter: Adapter, by_hand: bool) -> None:
    shop = Shop(StepNotCommitted(), undo_fails=3)
    engine = SagaEngine(adapter.sagas)
    definition = shop.definition(backoff_ms=lambda attempt: 0)
    with pytest.raises(StepNotCommitted):
        engine.execute(definition, "s1", 1)
    for _ in range(2):
        saga = engine.compensate(definition, "s1")
    assert (saga.state, saga.steps[1].state, saga.steps[1].attempts) == ("manual-review", "compensation-failed", 3)
    settled = engine.settle_failed_compensation(
        "s1", saga.steps[1].compensation_effect_id, undone_by_hand=by_hand, version=saga.version
    )
    assert settled.state == "compensating"
    assert engine.compensate(definition, "s1").state == "compensated"
    assert ("undo charge" in shop.log) is not by_hand


@pytest.mark.parametrize(
    ("compensated", "attempts", "state"),
    [(True, 1, "compensating"), (False, 1, "compensating"), (False, 3, "manual-review")],
)
def test_a_compensation_that_was_left_under_way_is_resolved(
    adapter: Adapter, compensated: bool, attempts: int, state: str
) -> None:
    step = SagaStep(name="a", effect_id="e", compensation_effect_id="c", state="compensating", attempts=attempts)
    adapter.sagas.create(conformance.saga(saga_id="s1", state="compensating", steps=(step,)))
    resolved = SagaEngine(adapter.sagas).resolve_compensation("s1", "c", compensated=compensated)
    assert resolved.state == state
    assert resolved.steps[0].state == ("compensated" if compensated else "compensation-failed")


def test_a_second_resume_leaves_the_first_alone(adapter: Adapter) -> None:
    """The seed's second resume sends the saga to manual review although nothing is ambiguous."""
    engine = SagaEngine(adapter.sagas)
    shop = Shop()
    seen: list[str] = []

    def do(name: str) -> str:
        with pytest.raises(SagaError) as error:
            engine.resume(shop.definition(), "s1")
        with pytest.raises(SagaError):
            engine.compensate(shop.definition(), "s1")
        seen.append(error.value.code)
        return name

    shop.do = do  # type: ignore[method-assign]
    assert engine.execute(shop.definition(), "s1", 1).state == "completed"
    assert seen == ["saga-busy"] * 3


def test_a_step_whose_worker_died_becomes_a_persons_once_it_is_old(adapter: Adapter) -> None:
    clock = Clock()
    engine = SagaEngine(adapter.sagas, clock)
    step = SagaStep(name="reserve", effect_id="e", compensation_effect_id="c", state="executing")
    adapter.sagas.create(
        conformance.saga(saga_id="s1", definition="shop", steps=(step,), created_at=clock.now, updated_at=clock.now)
    )
    definition = Shop().definition(step_timeout_ms=1_000)
    with pytest.raises(SagaError) as error:
        engine.resume(definition, "s1")
    assert error.value.code == "saga-busy"
    assert engine.load("s1").state == "running"
    clock.now += 1_000
    with pytest.raises(SagaError) as error:
        engine.resume(definition, "s1")
    assert error.value.code == "saga-ambiguous-step"
    assert engine.load("s1").state == "manual-review"


def test_compensating_between_two_steps_leaves_no_committed_step_behind(adapter: Adapter) -> None:
    """The seed lets the live run commit a step inside a saga that was compensated meanwhile."""
    engine = SagaEngine(adapter.sagas)
    shop = Shop()
    definition = shop.definition()

    def run(run: Any, value: Any) -> None:
        run.step("reserve", {"step": "reserve"}, lambda effect_id: "done")
        engine.compensate(definition, "s1")
        run.step("charge", {"step": "charge"}, lambda effect_id: pytest.fail("a step of a saga that is undone"))

    live = replace(definition, run=run)
    with pytest.raises(SagaError) as error:
        engine.execute(live, "s1", 1)
    assert error.value.code == "saga-concurrency"
    saga = engine.load("s1")
    assert (saga.state, [step.state for step in saga.steps]) == ("compensated", ["compensated"])


def test_a_saga_too_large_to_be_read_is_not_written(adapter: Adapter) -> None:
    deep: Any = []
    for _ in range(300):
        deep = [deep]
    with pytest.raises(RecordError) as error:
        adapter.sagas.create(conformance.saga(input=deep))
    assert error.value.code == "record-not-storable"


# Reconciliation


def test_live_steps_are_not_findings_and_old_ones_are() -> None:
    step = SagaStep(name="a", effect_id="e", compensation_effect_id="c", state="executing")
    live = conformance.saga(steps=(step,), updated_at=1_000)
    assert saga_finding(live, 999) is None
    found = saga_finding(live, 1_000)
    assert found is not None
    assert (found.reason, found.effect_id) == ("ambiguous-execution", "e")
    ambiguous = replace(live, state="manual-review", steps=(replace(step, state="ambiguous"),))
    assert saga_finding(ambiguous, 0) is not None


def many_effects(adapter: Adapter, count: int) -> list[str]:
    ids = [f"effect-{number:04d}" for number in range(count)]
    for id in ids:
        adapter.effects.create(conformance.effect(effect_id=id, state="executing"))
    return ids


def test_a_worker_handles_each_finding_and_hands_its_cursor_on(adapter: Adapter) -> None:
    ids = many_effects(adapter, 25)
    handled: list[str] = []
    worker = Worker(adapter, "effects", "w1", lambda found: handled.append(found.id), batch=10, pages=2, concurrency=3)
    first = worker.run(stale_before=10)
    assert (first.pages, first.handled, first.finished) == (2, 20, False)
    second = worker.run(stale_before=10)
    assert (second.pages, second.handled, second.finished) == (1, 5, True)
    assert sorted(handled) == ids
    assert worker.run(stale_before=0).handled == 0  # a new round, in which nothing is old
    assert [found.id for found in all_findings(adapter, "effects", stale_before=10, limit=7)] == ids


def test_one_poison_finding_does_not_hold_the_others_up(adapter: Adapter) -> None:
    many_effects(adapter, 5)

    def handle(found: Finding) -> None:
        if found.id == "effect-0002":
            raise ValueError("poison")

    outcome = Worker(adapter, "effects", "w1", handle, batch=2).run(stale_before=10)
    assert (outcome.handled, outcome.finished) == (4, True)
    assert [(found.id, str(error)) for found, error in outcome.failed] == [("effect-0002", "poison")]


def test_a_second_worker_waits_its_turn(adapter: Adapter) -> None:
    many_effects(adapter, 1)
    seen: list[bool] = []
    other = Worker(adapter, "effects", "w2", lambda found: None)
    Worker(adapter, "effects", "w1", lambda found: seen.append(other.run(stale_before=10).held_elsewhere)).run(
        stale_before=10
    )
    assert seen == [True]


def test_a_worker_that_lost_its_lease_writes_no_cursor(adapter: Adapter) -> None:
    many_effects(adapter, 3)

    def takes_the_lease(found: Finding) -> None:
        adapter.leases.acquire("effects", "thief", 60_000, now=5_000_000_000_000)

    with pytest.raises(LeaseLost):
        Worker(adapter, "effects", "w1", takes_the_lease, batch=1).run(stale_before=10)
    lease = adapter.leases.acquire("effects", "next", 1, now=6_000_000_000_000)
    assert lease is not None
    assert lease.cursor is None


@pytest.mark.parametrize("values", [{"batch": 0}, {"batch": 1_001}, {"pages": 0}, {"concurrency": 0}])
def test_limits_of_workers_hold(values: dict[str, int]) -> None:
    with pytest.raises(RecordError):
        Worker(Adapter(MemoryBackend()), "effects", "w1", print, **values)  # type: ignore[arg-type]


def test_what_is_due_is_written_down_as_expired(adapter: Adapter) -> None:
    for number in range(7):
        state = "approved" if number % 2 else "pending"
        adapter.approvals.create(conformance.approval(approval_id=f"ap{number}", state=state, expires_at=100))
    adapter.approvals.create(conformance.approval(approval_id="later", expires_at=conformance.FAR))
    assert expire_due(adapter, limit=3) == 7
    assert expire_due(adapter) == 0
    later = adapter.approvals.get("later")
    assert later is not None
    assert later.state == "pending"


# At once, in threads and in processes


def at_once(count: int, work: Callable[[int], Any]) -> list[Any]:
    return conformance.race(work, count)


def test_fifty_decide_and_one_wins(database: Adapter) -> None:
    one = conformance.approval(expires_at=conformance.FAR)
    database.approvals.create(one)
    won = at_once(
        50,
        lambda number: database.approvals.decide(
            one.approval_id, tenant_id="acme", decision="approved" if number % 2 else "denied", decided_by=f"p{number}"
        ),
    )
    assert sum(won) == 1
    found = database.approvals.get(one.approval_id)
    assert found is not None
    assert (found.decided_by, found.version) == (f"p{won.index(True)}", 2)


def test_fifty_consume_and_one_does(database: Adapter) -> None:
    coordinator = ApprovalCoordinator(database.approvals, SECRET)
    question = asked(coordinator)
    coordinator.decide(question.approval_id, tenant_id="acme", decision="approved", decided_by="dana")

    def use(number: int) -> str:
        try:
            coordinator.authorize(f"e{number}", BINDING, question.resume_token)
        except ApprovalError as error:
            return error.code
        return "consumed"

    assert sorted(at_once(50, use)) == ["approval-replay"] * 49 + ["consumed"]


WORKER = """
import os, sys
import django
django.setup()
from approvals.adapter import Adapter
from approvals.backends.database import DatabaseBackend
from approvals.journal import EffectJournal
from approvals.reconcile import Worker

adapter = Adapter(DatabaseBackend())

def handle(finding):
    # A line at once: several processes write to this file.
    with open(sys.argv[1], "ab", buffering=0) as file:
        file.write(f"{finding.id}\\n".encode())
    EffectJournal(adapter.effects).closed(finding.id, committed=False)

while True:
    outcome = Worker(adapter, "effects", f"worker-{os.getpid()}", handle, batch=10, pages=1, concurrency=2,
                     lease_ms=int(sys.argv[2])).run(stale_before=10)
    if outcome.finished and not outcome.held_elsewhere:
        break
    if os.path.exists(sys.argv[1] + ".done"):
        break
open(sys.argv[1] + ".done", "w").close()
"""


def start_worker(log: Path, lease_ms: int) -> subprocess.Popen[bytes]:
    environment = os.environ | {"DATABASE_URL": _database_url(), "DJANGO_SETTINGS_MODULE": "cadence_admin.settings"}
    return subprocess.Popen([sys.executable, "-c", WORKER, str(log), str(lease_ms)], env=environment)


def test_eight_processes_handle_each_finding_once(database: Adapter, tmp_path: Path) -> None:
    ids = many_effects(database, 300)
    log = tmp_path / "handled"
    workers = [start_worker(log, 60_000) for _ in range(8)]
    assert [worker.wait(120) for worker in workers] == [0] * 8
    assert sorted(log.read_text().split()) == ids


def test_a_killed_worker_loses_nothing(database: Adapter, tmp_path: Path) -> None:
    ids = many_effects(database, 300)
    log = tmp_path / "handled"
    victim = start_worker(log, 1_000)
    while not log.exists() or log.read_text().count("\n") < 15:
        assert victim.poll() is None
    victim.send_signal(signal.SIGKILL)
    victim.wait()
    assert start_worker(log, 1_000).wait(120) == 0  # once the dead one's lease has run out
    handled = log.read_text().split()
    assert set(handled) == set(ids)
    # What the dead one was just handling came again, and nothing else.
    assert len(handled) - len(ids) <= 2


def test_threads_that_reconcile_leave_no_connection_behind(database: Adapter) -> None:
    many_effects(database, 20)
    before = threading.active_count()
    Worker(database, "effects", "w1", lambda found: database.effects.get(found.id) and None).run(stale_before=10)
    assert threading.active_count() == before
    assert connections["default"].is_usable()


# Commands


def test_reconcile_prints_findings_and_expires(database: Adapter) -> None:
    many_effects(database, 2)
    database.approvals.create(conformance.approval(expires_at=100))
    out = StringIO()
    call_command("reconcile", stdout=out)
    text = out.getvalue()
    assert "effects: effect-0000 ambiguous (executing)" in text
    assert "effects: 2 findings on 1 pages" in text
    assert "approvals: 1 expired" in text
    out = StringIO()
    call_command("reconcile", "--json", stdout=out)
    assert '"id": "effect-0001"' in out.getvalue()
    with pytest.raises(CommandError):
        call_command("reconcile", "--watch", "0")


def test_import_reads_another_database_once(database: Adapter, tmp_path: Path) -> None:
    path = DATA / "nifra" / "records.sqlite3"
    out = StringIO()
    call_command("import_records", path, stdout=out)
    assert "73 records copied, 0 were there already" in out.getvalue()
    out = StringIO()
    call_command("import_records", path, stdout=out)
    assert "0 records copied, 73 were there already" in out.getvalue()
    assert database.effects.get("effect-001") is not None
    for bad in (tmp_path / "nothing", Path(__file__), DATA / "cadence" / "later-form.sqlite3"):
        with pytest.raises(CommandError):
            call_command("import_records", bad)
