"""Random interleavings of approvals and leases, against a model that is obviously right."""

from collections.abc import Iterator
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from approvals import conformance
from approvals.adapter import Adapter
from approvals.backends.base import Lease
from approvals.conformance import BINDING, HASH

EXPIRES = 100
LEASE_MS = 10

steps = st.lists(
    st.one_of(
        st.tuples(st.just("decide"), st.sampled_from(["approved", "denied"]), st.sampled_from(["dana", "kim"])),
        st.tuples(st.just("consume"), st.sampled_from([HASH, "forged"])),
        st.tuples(st.just("expire")),
        st.tuples(st.just("acquire"), st.sampled_from(["a", "b"])),
        st.tuples(st.just("renew"), st.integers(0, 3)),
        st.tuples(st.just("checkpoint"), st.integers(0, 3), st.sampled_from(["c1", "c2"])),
        st.tuples(st.just("release"), st.integers(0, 3)),
        st.tuples(st.just("wait"), st.integers(1, 40)),
    ),
    max_size=40,
)


class Model:
    """What must be true, in the simplest words."""

    def __init__(self) -> None:
        self.now = 1
        self.state = "pending"
        self.decided_by: str | None = None
        self.leases: list[Lease] = []
        self.holder: Lease | None = None
        self.until = 0
        self.cursor: str | None = None

    def decide(self, decision: str, by: str) -> bool:
        if self.state != "pending" or self.now >= EXPIRES:
            return False
        self.state, self.decided_by = decision, by
        return True

    def consume(self, token: str) -> str:
        if token != HASH:
            return "token"
        if self.state == "approved" and self.now < EXPIRES:
            self.state = "consumed"
            return "consumed"
        return {"consumed": "replay", "approved": "expired"}.get(self.state, self.state)

    def expire(self) -> bool:
        if self.state not in ("pending", "approved") or self.now < EXPIRES:
            return False
        self.state = "expired"
        return True

    def held(self, lease: Lease) -> bool:
        return self.holder is not None and self.holder.token == lease.token and self.now < self.until


def test_no_interleaving_breaks_a_promise(backend: Any) -> None:
    adapter = Adapter(backend)

    @settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(steps)
    def play(moves: list[tuple[Any, ...]]) -> None:
        one = conformance.approval(expires_at=EXPIRES)
        adapter.approvals.create(one)
        name, model = conformance.new_id(), Model()
        for move in moves:
            for expected, got in answers(adapter, one.approval_id, name, model, move):
                assert got == expected, (move, model.state, model.now)
        found = adapter.approvals.get(one.approval_id)
        assert found is not None
        assert (found.state, found.decided_by) == (model.state, model.decided_by)

    play()


def answers(adapter: Adapter, id: str, name: str, model: Model, move: tuple[Any, ...]) -> Iterator[tuple[Any, Any]]:
    approvals, leases, now = adapter.approvals, adapter.leases, model.now
    match move:
        case ("decide", decision, by):
            got: Any = approvals.decide(id, tenant_id=BINDING.tenant_id, decision=decision, decided_by=by, now=now)
            yield model.decide(decision, by), got
        case ("consume", token):
            yield model.consume(token), approvals.consume(id, binding=BINDING, token_hash=token, now=now)
        case ("expire",):
            yield model.expire(), approvals.expire(id, now)
        case ("acquire", owner):
            got = leases.acquire(name, owner, LEASE_MS, now)
            free = model.holder is None or now >= model.until
            yield free, got is not None
            if got is not None:
                yield model.cursor, got.cursor
                model.holder, model.until = got, now + LEASE_MS
                model.leases.append(got)
        case ("wait", length):
            model.now += length
        case (action, index, *rest) if index < len(model.leases):
            lease = model.leases[index]
            held = model.held(lease)
            if action == "renew":
                yield held, leases.renew(lease, LEASE_MS, now)
                model.until = max(model.until, now + LEASE_MS) if held else model.until
            elif action == "checkpoint":
                yield held, leases.checkpoint(lease, rest[0], now)
                model.cursor = rest[0] if held else model.cursor
            else:
                yield held, leases.release(lease, now)
                model.holder = None if held else model.holder
