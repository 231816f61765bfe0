"""What every backend must do: for authors of backends, and for `manage.py conformance`.

    for check in CHECKS:
        check.run(Adapter(backend))

Each check uses ids of its own, so that it may run against a store that is in use; it leaves its records behind.
"""

import threading
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

from django.db import connections

from approvals.adapter import Adapter
from approvals.backends.base import Lease
from approvals.records import Approval, Binding, Effect, RecordError, Saga, SagaStep
from approvals.wire import BigInt, Date, Map, Set

FAR: Final = 4_000_000_000_000
RACERS: Final = 8
HASH: Final = "conformance-token-hash"
DIGEST: Final = "d" * 64


class NotConforming(AssertionError):
    """A backend does something else than it must."""


@dataclass(frozen=True, slots=True)
class Check:
    """One rule: its name for people, and how to try it."""

    name: str
    run: Callable[[Adapter], None]


CHECKS: list[Check] = []


def check(name: str) -> Callable[[Callable[[Adapter], None]], Callable[[Adapter], None]]:
    def register(run: Callable[[Adapter], None]) -> Callable[[Adapter], None]:
        CHECKS.append(Check(name, run))
        return run

    return register


def must(condition: object, message: str) -> None:
    if not condition:
        raise NotConforming(message)


def refused(code: str, call: Callable[[], object]) -> None:
    try:
        call()
    except RecordError as error:
        must(error.code == code, f"refused with {error.code}, not {code}")
    else:
        raise NotConforming(f"accepted what must be refused with {code}")


def new_id() -> str:
    return f"conformance-{uuid.uuid4()}"


def effect(**values: Any) -> Effect:
    standard: dict[str, Any] = {
        "effect_id": new_id(),
        "capability": "test.write",
        "state": "admission",
        "created_at": 1,
        "updated_at": 1,
        "version": 1,
    }
    return Effect(**standard | values)


BINDING: Final = Binding(tenant_id="acme", principal_id="bot", capability="test.write", target="t", digest=DIGEST)


def approval(**values: Any) -> Approval:
    standard: dict[str, Any] = {
        "approval_id": new_id(),
        "effect_id": "e1",
        "capability": BINDING.capability,
        "target": BINDING.target,
        "digest": BINDING.digest,
        "tenant_id": BINDING.tenant_id,
        "principal_id": BINDING.principal_id,
        "token_hash": HASH,
        "state": "pending",
        "created_at": 1,
        "expires_at": 100,
        "updated_at": 1,
        "version": 1,
    }
    return Approval(**standard | values)


def saga(**values: Any) -> Saga:
    standard: dict[str, Any] = {
        "saga_id": new_id(),
        "definition": "d",
        "state": "running",
        "input": None,
        "created_at": 1,
        "updated_at": 1,
        "version": 1,
    }
    return Saga(**standard | values)


def race(work: Callable[[int], Any], racers: int = RACERS) -> list[Any]:
    """What several threads got that began at once. An error of any is raised."""
    barrier = threading.Barrier(racers)
    results: list[Any] = [None] * racers
    errors: list[BaseException] = []

    def run(number: int) -> None:
        try:
            barrier.wait()
            results[number] = work(number)
        except BaseException as error:
            errors.append(error)
        finally:
            connections.close_all()

    threads = [threading.Thread(target=run, args=(number,)) for number in range(racers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return results


@check("an effect is created once")
def _effect_created_once(adapter: Adapter) -> None:
    one = effect()
    must(adapter.effects.create(one), "a new effect was not created")
    must(not adapter.effects.create(replace(one, state="executing")), "an effect was created twice")
    must(adapter.effects.get(one.effect_id) == one, "an effect is not read as it was written")
    must(adapter.effects.get(new_id()) is None, "an effect that was never created is there")


@check("an effect moves from the state and version one has seen")
def _effect_moves(adapter: Adapter) -> None:
    one = effect()
    adapter.effects.create(one)

    def move(version: int, origin: str, to: str, now: int, code: str | None = None, id: str = one.effect_id) -> bool:
        return adapter.effects.transition(id, version=version, origin=origin, to=to, now=now, error_code=code)

    must(not move(2, "admission", "executing", 2), "a move from a version that never was")
    must(not move(1, "executing", "committed", 2), "a move from a state it isn't in")
    must(move(1, "admission", "executing", 2), "a legal move was refused")
    must(not move(1, "admission", "executing", 2), "a move was made twice")
    must(move(2, "executing", "unknown", 3, "timeout"), "a legal move with an error code was refused")
    must(not move(1, "admission", "executing", 2, id=new_id()), "an effect that isn't there was moved")
    found = adapter.effects.get(one.effect_id)
    must(found == replace(one, state="unknown", updated_at=3, version=3, error_code="timeout"), f"read {found}")


@check("an effect never goes back, and its clock doesn't either")
def _effect_graph(adapter: Adapter) -> None:
    one = effect(created_at=50, updated_at=50)
    adapter.effects.create(one)
    id = one.effect_id
    adapter.effects.transition(id, version=1, origin="admission", to="executing", now=10)
    must(adapter.effects.get(id).updated_at == 50, "the clock of an effect ran backwards")  # type: ignore[union-attr]
    adapter.effects.transition(id, version=2, origin="executing", to="unknown", now=60, error_code="timeout")
    adapter.effects.transition(id, version=3, origin="unknown", to="committed", now=70)
    must(adapter.effects.get(id).error_code is None, "an old error code stuck")  # type: ignore[union-attr]
    for to in ("admission", "executing", "failed", "nonsense"):
        refused(
            "invalid-effect-transition",
            lambda to=to: adapter.effects.transition(id, version=4, origin="committed", to=to),  # type: ignore[misc]
        )


@check("an approval is decided once and consumed once")
def _approval_lives(adapter: Adapter) -> None:
    one = approval()
    id = one.approval_id

    def consume(now: int = 50) -> str:
        return adapter.approvals.consume(id, binding=BINDING, token_hash=HASH, now=now)

    def decide(decision: str, now: int = 10) -> bool:
        return adapter.approvals.decide(id, tenant_id="acme", decision=decision, decided_by="dana", now=now)

    must(consume() == "missing", "an approval that isn't there was found")
    must(adapter.approvals.create(one), "a new approval was not created")
    must(not adapter.approvals.create(one), "an approval was created twice")
    must(consume() == "pending", "a pending approval was consumed")
    must(decide("approved"), "a decision was refused")
    must(not decide("denied"), "an approval was decided twice")
    must(consume() == "consumed", "an approved approval was not consumed")
    must(consume() == "replay", "an approval was consumed twice")
    must(consume(500) == "replay", "a replay after the expiry is no replay")
    expected = replace(one, state="consumed", updated_at=50, version=3, decided_by="dana")
    must(adapter.approvals.get(id) == expected, "an approval is not read as it became")


@check("what is consumed is checked in order: binding, token, state, expiry")
def _consume_order(adapter: Adapter) -> None:
    one = approval()
    adapter.approvals.create(one)
    id = one.approval_id
    for changed in (
        {"tenant_id": "x"},
        {"principal_id": "x"},
        {"capability": "x"},
        {"target": "x"},
        {"target": None},
        {"digest": "x"},
        {"digest": None},
    ):
        answer = adapter.approvals.consume(id, binding=replace(BINDING, **changed), token_hash="bad", now=50)
        must(answer == "binding", f"{changed} answered {answer}")
    must(adapter.approvals.consume(id, binding=BINDING, token_hash="bad", now=50) == "token", "a forged token passed")
    must(
        adapter.approvals.consume(id, binding=BINDING, token_hash=HASH, now=500) == "pending",
        "a pending approval past its expiry is not pending",
    )
    adapter.approvals.decide(id, tenant_id="acme", decision="denied", decided_by="dana", now=10)
    for now in (50, 500):
        answer = adapter.approvals.consume(id, binding=BINDING, token_hash=HASH, now=now)
        must(answer == "denied", f"a denied approval answered {answer}")


@check("an approval expires, and is written down as expired")
def _approval_expires(adapter: Adapter) -> None:
    one = approval()
    adapter.approvals.create(one)
    id = one.approval_id
    must(
        not adapter.approvals.decide(id, tenant_id="acme", decision="approved", decided_by="dana", now=100),
        "an approval was decided at its expiry",
    )
    must(not adapter.approvals.expire(id, 99), "an approval expired before its time")
    must(
        adapter.approvals.decide(id, tenant_id="acme", decision="approved", decided_by="dana", now=99), "too late at 99"
    )
    answer = adapter.approvals.consume(id, binding=BINDING, token_hash=HASH, now=100)
    must(answer == "expired", f"an expired approval answered {answer}")
    must(adapter.approvals.expire(id, 100), "an approval past its time did not expire")
    answer = adapter.approvals.consume(id, binding=BINDING, token_hash=HASH, now=50)
    must(answer == "expired", f"an approval that was written down as expired answered {answer}")


@check("a decision is a decision, of a person that has a name, in the approval's tenant")
def _decision_checked(adapter: Adapter) -> None:
    one = approval()
    adapter.approvals.create(one)

    def decide(tenant: str = "acme", decision: str = "approved", by: str = "dana", id: str = one.approval_id) -> bool:
        return adapter.approvals.decide(id, tenant_id=tenant, decision=decision, decided_by=by, now=10)

    must(not decide(tenant="globex"), "a decision from another tenant counted")
    must(not decide(id=new_id()), "an approval that isn't there was decided")
    refused("invalid-decision", lambda: decide(decision="consumed"))
    refused("invalid-token", lambda: decide(by=""))
    refused("invalid-token", lambda: decide(by="two words"))
    must(adapter.approvals.get(one.approval_id) == one, "a refused decision left a trace")


@check("an approval in a state that nobody knows is not consumed")
def _strange_state(adapter: Adapter) -> None:
    one = approval(state="waiting")
    adapter.backend.create("approval", one)
    answer = adapter.approvals.consume(one.approval_id, binding=BINDING, token_hash=HASH, now=50)
    must(answer == "token", f"a strange state answered {answer}")


@check("of many decisions at once, one counts")
def _decision_race(adapter: Adapter) -> None:
    one = approval(expires_at=FAR)
    adapter.approvals.create(one)
    won = race(
        lambda number: adapter.approvals.decide(
            one.approval_id,
            tenant_id="acme",
            decision="approved" if number % 2 else "denied",
            decided_by=f"person-{number}",
        )
    )
    must(sum(won) == 1, f"{sum(won)} decisions counted")
    found = adapter.approvals.get(one.approval_id)
    must(found is not None and found.decided_by == f"person-{won.index(True)}", "somebody else's decision is kept")
    must(found is not None and found.version == 2, "more than one change was written")


@check("of many consumptions at once, one succeeds and the others are replays")
def _consume_race(adapter: Adapter) -> None:
    one = approval(state="approved", expires_at=FAR, decided_by="dana")
    adapter.approvals.create(one)
    answers = race(lambda number: adapter.approvals.consume(one.approval_id, binding=BINDING, token_hash=HASH))
    must(sorted(answers) == ["consumed", *["replay"] * (RACERS - 1)], f"answers were {sorted(answers)}")


@check("of many creations at once, one succeeds")
def _create_race(adapter: Adapter) -> None:
    one = effect()
    won = race(lambda number: adapter.effects.create(one))
    must(sum(won) == 1, f"{sum(won)} creations succeeded")


@check("a saga changes version by version")
def _saga_versions(adapter: Adapter) -> None:
    one = saga()
    must(adapter.sagas.create(one), "a new saga was not created")
    must(not adapter.sagas.create(one), "a saga was created twice")
    must(not adapter.sagas.compare_and_set(replace(one, version=3), 1), "a version was jumped over")
    done = replace(one, state="completed", updated_at=2, version=2)
    must(adapter.sagas.compare_and_set(done, 1), "the next version was refused")
    must(not adapter.sagas.compare_and_set(replace(one, version=2), 1), "an old version came back")
    must(not adapter.sagas.compare_and_set(replace(one, saga_id=new_id(), version=2), 1), "a saga from nowhere")
    must(adapter.sagas.get(one.saga_id) == done, "a saga is not read as it was written")


@check("values that JSON has no form for come back as they were")
def _values(adapter: Adapter) -> None:
    step = SagaStep(
        name="s",
        effect_id="e",
        compensation_effect_id="c",
        state="committed",
        compensation_args={"n": BigInt("9007199254740993"), "m": Map([({"k": 1}, Set([1, "a"]))])},
        result=[Date("2026-05-28T20:26:40.123Z"), Date(None), 0.1, 1e21, "café \u2028 \U0001f600"],
        attempts=0,
    )
    one = saga(input={"9": 1, "b": 2, "a": {"deep": [[[]]]}}, steps=(step,))
    adapter.sagas.create(one)
    must(adapter.sagas.get(one.saga_id) == one, "a value changed on its way")


@check("pages follow each other in code-point order, without gap or repeat")
def _scan_order(adapter: Adapter) -> None:
    prefix = new_id()
    names = ["!", "a", "B", "Z", "a.b", "a-b", "a/b", "a:b", "~", "a%2Fb", "_", "A", "1", "10", "2"]
    ids = sorted(f"{prefix[:40]}{name}" for name in names)
    for number, id in enumerate(ids):
        state = "executing" if number % 2 else "admission"
        adapter.effects.create(effect(effect_id=id, state=state, updated_at=number + 1))
    for limit in (1, 2, 4, 100):
        found = list(_ids(adapter, ("admission", "executing"), limit, prefix[:40]))
        must(found == ids, f"pages of {limit} gave {found}")
    must(list(_ids(adapter, ("executing",), 3, prefix[:40])) == ids[1::2], "the state was not looked at")
    page = adapter.effects.scan(("admission", "executing"), 100, 5, prefix[:40])
    mine = [record.id for record in page.records if record.id.startswith(prefix[:40])]
    must(mine == ids[:5], f"up to 5 gave {mine}")
    must(adapter.effects.scan((), 10).records == (), "no state is no record")
    for limit in (0, -1, 1001):
        refused("invalid-limit", lambda limit=limit: adapter.effects.scan(("admission",), limit))  # type: ignore[misc]


def _ids(adapter: Adapter, states: tuple[str, ...], limit: int, prefix: str) -> Iterator[str]:
    cursor: str | None = prefix
    while cursor is not None:
        page = adapter.effects.scan(states, limit, None, cursor)
        for record in page.records:
            if not record.id.startswith(prefix):
                return
            yield record.id
        cursor = page.cursor


def _leases(adapter: Adapter) -> tuple[str, Callable[[Lease, int], bool]]:
    return new_id(), lambda lease, now: adapter.leases.renew(lease, 100, now)


@check("a live lease is not taken, an expired one is")
def _lease_taken(adapter: Adapter) -> None:
    name, renew = _leases(adapter)
    first = adapter.leases.acquire(name, "a", 100, 1)
    must(first is not None and first.expires_at == 101, f"a free lease was given as {first}")
    assert first is not None
    must(adapter.leases.acquire(name, "b", 100, 100) is None, "a live lease was taken")
    must(adapter.leases.acquire(name, "a", 100, 100) is None, "a live lease was taken by its own holder")
    second = adapter.leases.acquire(name, "b", 100, 101)
    must(second is not None and second.token != first.token, "an expired lease was not given")
    must(not renew(first, 102), "a lost lease was renewed")
    must(not adapter.leases.release(first, 102), "a lost lease was released")


@check("a lease is renewed, never shortened, and not after its end")
def _lease_renewed(adapter: Adapter) -> None:
    name, renew = _leases(adapter)
    lease = adapter.leases.acquire(name, "a", 100, 1)
    assert lease is not None
    must(not renew(replace(lease, token="forged"), 50), "a forged token renewed a lease")
    must(not renew(replace(lease, owner="b"), 50), "somebody else renewed a lease")
    must(renew(lease, 50), "a live lease was not renewed")
    must(adapter.leases.renew(lease, 1, 60), "a live lease was not renewed for a moment")
    must(adapter.leases.acquire(name, "b", 100, 149) is None, "a renewal shortened a lease")
    must(not renew(lease, 150), "a lease was renewed after its end")


@check("a cursor is kept by who holds the lease, and handed on")
def _lease_cursor(adapter: Adapter) -> None:
    name, _ = _leases(adapter)
    lease = adapter.leases.acquire(name, "a", 100, 1)
    assert lease is not None
    must(lease.cursor is None, "a new lease has a cursor")
    must(adapter.leases.checkpoint(lease, "c1", 50), "a checkpoint was refused")
    must(not adapter.leases.checkpoint(replace(lease, token="forged"), "c2", 50), "a forged token moved the cursor")
    must(not adapter.leases.checkpoint(lease, "c3", 101), "an expired holder moved the cursor")
    must(not adapter.leases.release(lease, 101), "an expired holder released the lease")
    must(adapter.leases.release(lease, 50), "a release was refused")
    must(not adapter.leases.release(lease, 50), "a lease was released twice")
    again = adapter.leases.acquire(name, "b", 100, 2)
    must(again is not None and again.cursor == "c1", f"the cursor was handed on as {again and again.cursor}")
    assert again is not None
    must(adapter.leases.checkpoint(again, None, 50), "a cursor was not cleared")
    adapter.leases.release(again, 50)
    last = adapter.leases.acquire(name, "c", 100, 3)
    must(last is not None and last.cursor is None, "a cleared cursor came back")


@check("a lease needs an owner, a name and a length")
def _lease_checked(adapter: Adapter) -> None:
    for name, owner, length, code in (
        ("", "a", 100, "invalid-token"),
        ("two words", "a", 100, "invalid-token"),
        (new_id(), "", 100, "invalid-token"),
        (new_id(), "a", 0, "invalid-lease"),
        (new_id(), "a", -5, "invalid-lease"),
        (new_id(), "a", 2**53, "invalid-lease"),
    ):
        refused(code, lambda n=name, o=owner, ms=length: adapter.leases.acquire(n, o, ms, 1))  # type: ignore[misc]


@check("of many workers at once, one gets the lease")
def _lease_race(adapter: Adapter) -> None:
    name, _ = _leases(adapter)
    got = race(lambda number: adapter.leases.acquire(name, f"worker-{number}", 60_000))
    must(sum(lease is not None for lease in got) == 1, "a lease was given more than once")
