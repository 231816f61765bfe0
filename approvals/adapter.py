"""Effect, approval, saga and lease stores over any backend.

The rules are the records' own; here they meet the store. A lost compare-and-set is never an answer by itself: what really
happened is read again.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, cast

from approvals.backends.base import DurableRecordBackend, Lease, Page
from approvals.records import Approval, Binding, Consumption, Effect, RecordError, Saga, require_decision

# A record changes hands between reading and writing only if somebody else wrote; so many somebodies at once are an error.
_ATTEMPTS: Final = 64


class ContentionError(RuntimeError):
    """A record changed under every attempt to change it."""


@dataclass(frozen=True, slots=True)
class EffectStore:
    """Effects by id."""

    backend: DurableRecordBackend

    def create(self, effect: Effect) -> bool:
        """Store a new effect. False if there is one of that id. Raises `RecordError`."""
        effect.validate()
        return self.backend.create("effect", effect)

    def get(self, effect_id: str) -> Effect | None:
        """The effect, None if there is none."""
        return cast(Effect | None, self.backend.get("effect", effect_id))

    def transition(
        self,
        effect_id: str,
        *,
        version: int,
        origin: str,
        to: str,
        error_code: str | None = None,
        now: int | None = None,
    ) -> bool:
        """Move an effect from the state and version one has seen. False if it is elsewhere by now.

        Raises `RecordError` (`invalid-effect-transition`, `invalid-error-code`).
        """
        Effect(effect_id=effect_id, capability="", state=origin, created_at=0, updated_at=0, version=version).moved(
            to, 0, error_code
        )
        at_once = getattr(self.backend, "move_at_once", None)
        if at_once is not None and at_once(effect_id, version, origin, to, error_code, now):
            return True
        current = self.get(effect_id)
        if current is None or (current.version, current.state) != (version, origin):
            return False
        moment = self.backend.now() if now is None else now
        return self.backend.compare_and_set("effect", effect_id, version, current.moved(to, moment, error_code))

    def scan(
        self, states: Sequence[str], limit: int, updated_before: int | None = None, cursor: str | None = None
    ) -> Page:
        """A page of effects."""
        return self.backend.scan("effect", states=states, limit=limit, updated_before=updated_before, cursor=cursor)


@dataclass(frozen=True, slots=True)
class ApprovalStore:
    """Approvals by id."""

    backend: DurableRecordBackend

    def create(self, approval: Approval) -> bool:
        """Store a new approval. False if there is one of that id. Raises `RecordError`."""
        approval.validate()
        return self.backend.create("approval", approval)

    def get(self, approval_id: str) -> Approval | None:
        """The approval, None if there is none."""
        return cast(Approval | None, self.backend.get("approval", approval_id))

    def decide(
        self, approval_id: str, *, tenant_id: str, decision: str, decided_by: str, now: int | None = None
    ) -> bool:
        """Approve or deny what is pending in that tenant and not expired. False otherwise. Raises `RecordError`."""
        require_decision(decision, decided_by)
        at_once = getattr(self.backend, "decide_at_once", None)
        if at_once is not None and at_once(approval_id, tenant_id, decision, decided_by, now):
            return True
        for _ in range(_ATTEMPTS):
            current = self.get(approval_id)
            moment = self.backend.now() if now is None else now
            if current is None or not current.may_be_decided(tenant_id, moment):
                return False
            decided = current.decided(decision, decided_by, moment)
            if self.backend.compare_and_set("approval", approval_id, current.version, decided):
                return True
        raise ContentionError(f"approval {approval_id} changed {_ATTEMPTS} times while it was decided")

    def consume(self, approval_id: str, *, binding: Binding, token_hash: str, now: int | None = None) -> Consumption:
        """Use an approval once. The answer is what really became of it."""
        at_once = getattr(self.backend, "consume_at_once", None)
        if at_once is not None and at_once(approval_id, binding, token_hash, now):
            return "consumed"
        for _ in range(_ATTEMPTS):
            current = self.get(approval_id)
            if current is None:
                return "missing"
            moment = self.backend.now() if now is None else now
            answer = current.consumption(binding, token_hash, moment)
            if answer != "consumed":
                return answer
            if self.backend.compare_and_set("approval", approval_id, current.version, current.consumed(moment)):
                return "consumed"
        raise ContentionError(f"approval {approval_id} changed {_ATTEMPTS} times while it was consumed")

    def expire(self, approval_id: str, now: int | None = None) -> bool:
        """Write down that an approval's time is up. False if it isn't, or somebody was faster."""
        current = self.get(approval_id)
        moment = self.backend.now() if now is None else now
        if current is None or not current.may_expire(moment):
            return False
        return self.backend.compare_and_set("approval", approval_id, current.version, current.expired(moment))

    def due(self, limit: int, now: int | None = None) -> list[str]:
        """Ids of up to `limit` approvals that are pending or approved and past their time."""
        moment = self.backend.now() if now is None else now
        at_once = getattr(self.backend, "due_at_once", None)
        if at_once is not None:
            return cast(list[str], at_once(limit, moment))
        found: list[str] = []
        cursor: str | None = None
        while len(found) < limit:
            page = self.scan(("pending", "approved"), limit, None, cursor)
            found += [record.id for record in cast(tuple[Approval, ...], page.records) if record.may_expire(moment)]
            cursor = page.cursor
            if cursor is None:
                break
        return found[:limit]

    def scan(
        self, states: Sequence[str], limit: int, updated_before: int | None = None, cursor: str | None = None
    ) -> Page:
        """A page of approvals."""
        return self.backend.scan("approval", states=states, limit=limit, updated_before=updated_before, cursor=cursor)


@dataclass(frozen=True, slots=True)
class SagaStore:
    """Sagas by id."""

    backend: DurableRecordBackend

    def create(self, saga: Saga) -> bool:
        """Store a new saga. False if there is one of that id. Raises `RecordError`."""
        saga.validate()
        return self.backend.create("saga", saga)

    def get(self, saga_id: str) -> Saga | None:
        """The saga, None if there is none."""
        return cast(Saga | None, self.backend.get("saga", saga_id))

    def compare_and_set(self, saga: Saga, version: int) -> bool:
        """Store the next version of a saga, if it is still at `version`. Raises `RecordError`."""
        saga.validate()
        return self.backend.compare_and_set("saga", saga.saga_id, version, saga)

    def scan(
        self, states: Sequence[str], limit: int, updated_before: int | None = None, cursor: str | None = None
    ) -> Page:
        """A page of sagas."""
        return self.backend.scan("saga", states=states, limit=limit, updated_before=updated_before, cursor=cursor)


@dataclass(frozen=True, slots=True)
class LeaseStore:
    """Reconciliation leases by name."""

    backend: DurableRecordBackend

    def acquire(self, name: str, owner: str, lease_ms: int, now: int | None = None) -> Lease | None:
        """Take a lease that is free or expired, None while it is held. Raises `RecordError`."""
        return self.backend.acquire_lease(name, owner, lease_ms, now)

    def renew(self, lease: Lease, lease_ms: int, now: int | None = None) -> bool:
        """Hold a live lease for longer. False if it isn't held any more."""
        return self.backend.renew_lease(lease.name, lease.owner, lease.token, lease_ms, now)

    def checkpoint(self, lease: Lease, cursor: str | None, now: int | None = None) -> bool:
        """Remember how far the holder got. False if the lease isn't held any more."""
        return self.backend.checkpoint_lease(lease.name, lease.owner, lease.token, cursor, now)

    def release(self, lease: Lease, now: int | None = None) -> bool:
        """Give the lease back. False if it isn't held any more."""
        return self.backend.release_lease(lease.name, lease.owner, lease.token, now)


@dataclass(frozen=True, slots=True)
class Adapter:
    """The four stores over one backend."""

    backend: DurableRecordBackend

    @property
    def effects(self) -> EffectStore:
        return EffectStore(self.backend)

    @property
    def approvals(self) -> ApprovalStore:
        return ApprovalStore(self.backend)

    @property
    def sagas(self) -> SagaStore:
        return SagaStore(self.backend)

    @property
    def leases(self) -> LeaseStore:
        return LeaseStore(self.backend)


def require_found(record: object | None, kind: str, id: str) -> None:
    """Raises `RecordError` (`<kind>-not-found`)."""
    if record is None:
        raise RecordError(f"{kind}-not-found", f"there is no {kind} {id}")
