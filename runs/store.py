"""The run store for Python workers: Cadence's, on PostgreSQL or SQLite, bound to one state root.

    store = RunStore(root_hash)
    run = store.start_run("abel-implement", "op-1", change="fix-login-redirect")
    lease = store.acquire_lease(run["runId"], "worker-7", ttl_ms=30_000)
    store.transition(run["runId"], "validating-delivery", "op-2", lease=lease)

Every method is one transaction. Errors are `StoreError` and `LifecycleError` with Cadence's codes. A change of a run is made
under the lock of its row, a start under the lock of its state root.
"""

import re
import uuid
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from django.db import connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper

from cadence_admin import audit
from cadence_admin.clock import database_now
from cadence_admin.javascript import canonical_json, is_safe_integer, stringify
from cadence_admin.retrying import retried
from runs import leases
from runs.append import StoreError, append_event, mark_verified, parse_projection, store_event
from runs.chain import ZERO_HASH, Event, create_event, is_sha256
from runs.integrity import stream_events
from runs.leases import OperationLease, OperationStatus, require_identifier, require_ttl
from runs.lifecycle import GATES, STAGES, TERMINAL_STATES, Projection, Reducer, reduce_events
from runs.models import DeliveryBinding, Operation, Run, StateRoot

_CHANGE = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,126}[a-z0-9])?")

Write = Callable[[BaseDatabaseWrapper], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """A delivery to bind at a gate. `approval_proof` has revision, contractHash and recordHash."""

    run_id: str
    gate: str
    revision: int
    receipt_hash: str
    operation_id: str
    approval_proof: dict[str, Any] | None = None
    lease: OperationLease | None = None

    def require(self) -> None:
        """Raises `StoreError` (`invalid-operation-id`, `invalid-delivery-binding`)."""
        require_identifier(self.operation_id, "operation-id")
        proof = self.approval_proof
        if (
            self.gate not in GATES
            or not _from_one(self.revision)
            or not is_sha256(self.receipt_hash)
            or (
                proof is not None
                and not (
                    _from_one(proof.get("revision"))
                    and is_sha256(proof.get("contractHash"))
                    and is_sha256(proof.get("recordHash"))
                )
            )
        ):
            raise StoreError("invalid-delivery-binding")

    @property
    def values(self) -> dict[str, Any]:
        """The columns of the binding."""
        proof = self.approval_proof or {}
        return {
            "receipt_hash": self.receipt_hash,
            "approval_revision": proof.get("revision"),
            "contract_hash": proof.get("contractHash"),
            "record_hash": proof.get("recordHash"),
        }


def _from_one(value: object) -> bool:
    return is_safe_integer(value) and value >= 1  # type: ignore[operator]


_START: Final = "start"


class RunStore:
    """See the module. `now` gives milliseconds and `new_id` ids and tokens, where the defaults won't do."""

    def __init__(
        self,
        root_hash: str,
        *,
        now: Callable[[], int] | None = None,
        new_id: Callable[[], str] = lambda: str(uuid.uuid4()),
        using: str = "default",
    ) -> None:
        if not is_sha256(root_hash):
            raise StoreError("invalid-root-hash", "a state root is known by a sha256")
        self.root_hash = root_hash
        self.using = using
        self._clock = now
        self._new_id = new_id

    # Runs

    @retried
    def start_run(
        self, stage: str, operation_id: str, *, change: str | None = None, provisional_key: str | None = None
    ) -> Projection:
        """The run of that change or key in that stage: a new one, or the one there is. A design that ended frees its key."""
        require_identifier(operation_id, "operation-id")
        if stage not in STAGES:
            raise StoreError("invalid-run-stage")
        key = _lookup_key(stage, change, provisional_key)
        with transaction.atomic(using=self.using):
            root = self._locked_root()
            existing = (
                self._runs(lock=True)
                .filter(root_hash=self.root_hash, stage=stage, lookup_key=key, missing_since=None)
                .first()
            )
            if existing is not None and stage == "abel-design" and existing.state in TERMINAL_STATES:
                existing.lookup_key = f"terminal:{existing.run_id}"
                existing.save(update_fields=["lookup_key"])
                existing = None
            if existing is not None:
                replayed = self._replayed(existing, operation_id, _START)
                if replayed is not None:
                    return replayed
                return self._recorded(existing, operation_id, _START, parse_projection(existing.projection_json))
            return self._created(root, stage, key, change, provisional_key, operation_id)

    @retried
    def bind_change(self, run_id: str, change: str, operation_id: str) -> Projection:
        """Give a design its name."""
        require_identifier(operation_id, "operation-id")
        if not _is_change(change):
            raise StoreError("invalid-change")
        with self._changing(run_id, root=True) as run:
            replayed = self._replayed(run, operation_id, "change-bound")
            if replayed is not None:
                return replayed
            current = parse_projection(run.projection_json)
            if current["stage"] != "abel-design" or not current.get("provisionalKey"):
                raise StoreError("change-binding-not-allowed")
            key = f"change:{change}"
            taken = self._runs().filter(root_hash=run.root_hash, stage=run.stage, lookup_key=key, missing_since=None)
            if taken.exclude(pk=run.pk).exists():
                raise StoreError("change-run-already-exists", f"{change} has a run already")
            run.lookup_key, run.change_name, run.provisional_key = key, change, None
            projection = append_event(run, "change-bound", {"change": change}, self._now())
            return self._recorded(run, operation_id, "change-bound", projection)

    @retried
    def transition(
        self,
        run_id: str,
        to: str,
        operation_id: str,
        *,
        code: str | None = None,
        lease: OperationLease | None = None,
        actor: str = "",
    ) -> Projection:
        """Move a run, with a code if it pauses for a reason; under a lease, only while it is held. A person who does it is
        the `actor`, for the audit log; what workers do is told by the chain itself."""
        require_identifier(operation_id, "operation-id")
        with self._fencing(lease, f"move to {to}"), self._changing(run_id) as run:
            self._check(run, lease)
            replayed = self._replayed(run, operation_id, "state-transitioned")
            if replayed is not None:
                return replayed
            payload = {"from": parse_projection(run.projection_json)["state"], "to": to}
            projection = append_event(
                run, "state-transitioned", payload | ({"code": code} if code else {}), self._now()
            )
            self._recorded(run, operation_id, "state-transitioned", projection)
            if actor:
                entry = audit.Entry(
                    "run.moved", "run", run_id, before=payload["from"], after=to, reason=code or "", actor=actor
                )
                audit.record(entry, using=self.using)
            return projection

    # Deliveries

    @retried
    def bind_delivery(self, delivery: Delivery) -> Projection:
        """Bind a delivery at its gate; the same again is the same."""
        delivery.require()
        with self._fencing(delivery.lease, "bind a delivery"), self._changing(delivery.run_id) as run:
            return self._bound(run, delivery)

    def bind_delivery_atomically(self, delivery: Delivery, write: Write) -> Projection:
        """Bind a delivery, and whatever `write` does with the connection, together or not at all."""
        return self.bind_deliveries_atomically([delivery], write)

    def bind_deliveries_atomically(self, deliveries: Sequence[Delivery], write: Write) -> Projection:
        """Bind several deliveries of one run and one lease, and what `write` does, together or not at all."""
        if not deliveries:
            raise StoreError("delivery-binding-empty")
        for delivery in deliveries:
            delivery.require()
        first = deliveries[0]
        tokens = {delivery.lease.token if delivery.lease else None for delivery in deliveries}
        if len(tokens) > 1 or any(delivery.run_id != first.run_id for delivery in deliveries) or not callable(write):
            raise StoreError("delivery-binding-write-invalid")
        with self._fencing(first.lease, "bind deliveries"), self._changing(first.run_id) as run:
            for delivery in deliveries:
                projection = self._bound(run, delivery)
            write(connections[self.using])
            return projection

    # Leases

    @retried
    def acquire_lease(
        self, run_id: str, operation_id: str, ttl_ms: int, *, preempt: bool = False, exclusive: bool = False
    ) -> OperationLease:
        """See `runs.leases.acquire`."""
        require_identifier(operation_id, "operation-id")
        require_ttl(ttl_ms)
        with self._changing(run_id) as run:
            return leases.acquire(
                run,
                operation_id,
                ttl_ms,
                clock=self._now,
                preempt=preempt,
                exclusive=exclusive,
                new_token=self._new_id,
            )

    @retried
    def renew_lease(self, lease: OperationLease, ttl_ms: int) -> OperationLease:
        """Hold a live lease for `ttl_ms` from now on."""
        require_ttl(ttl_ms)
        with self._fencing(lease, "renew"), transaction.atomic(using=self.using):
            operation = self._held(lease)
            now = self._now()
            require_ttl(ttl_ms, now)
            operation.lease_expires_at = now + ttl_ms
            operation.save(update_fields=["lease_expires_at"])
            return OperationLease(lease.run_id, lease.operation_id, lease.token, operation.lease_expires_at)

    def assert_lease(self, lease: OperationLease) -> None:
        """Raises `StoreError` (`lease-fenced`) unless the lease is held."""
        with transaction.atomic(using=self.using):
            self._held(lease)

    @retried
    def commit_lease(self, lease: OperationLease, outcome: dict[str, Any]) -> dict[str, Any]:
        """End an operation with its outcome."""
        text = leases.outcome_text(outcome)
        with self._fencing(lease, "commit"), transaction.atomic(using=self.using):
            leases.settle(self._held(lease), "committed", text)
        return outcome

    @retried
    def interrupt_lease(self, lease: OperationLease) -> None:
        """End an operation without one."""
        with self._fencing(lease, "interrupt"), transaction.atomic(using=self.using):
            leases.settle(self._held(lease), "interrupted", None)

    def inspect_operation(self, run_id: str, operation_id: str) -> OperationStatus | None:
        """What an operation is at, None if there is none. One whose lease ran out is interrupted by looking."""
        require_identifier(operation_id, "operation-id")
        with transaction.atomic(using=self.using):
            operation = leases.locked(self._run(run_id), operation_id)
            if operation is None:
                return None
            expires_at = operation.lease_expires_at
            if operation.state == "running" and expires_at is not None and expires_at < self._now():
                # As Cadence does here, the outcome stays as it is: a running operation has none.
                leases.settle(operation, "interrupted", operation.outcome_json)
            return leases.status_of(operation)

    def recover_expired_leases(self) -> int:
        """Interrupt every operation of this root whose lease ran out. Returns how many."""
        results = leases.reclaim(using=self.using, root_hash=self.root_hash, now=self._clock() if self._clock else None)
        return sum(result.result == "reclaimed" for result in results)

    # Looking

    def status(self, run_id: str) -> Projection:
        """The stored projection."""
        return parse_projection(self._run(run_id).projection_json)

    def list_events(self, run_id: str) -> list[Event]:
        """The whole chain."""
        return list(stream_events(self._run(run_id)))

    def rebuild_projection(self, run_id: str) -> Projection:
        """What the chain adds up to. Raises `ChainError` with the code of the first thing that breaks."""
        return reduce_events(stream_events(self._run(run_id)))

    def verify_integrity(self, run_id: str) -> Projection:
        """The rebuilt projection, if the stored one is the same. Raises `ChainError`, or `StoreError`
        (`run-projection-integrity-mismatch`)."""
        run = self._run(run_id)
        rebuilt = reduce_events(stream_events(run))
        if canonical_json(rebuilt) != canonical_json(parse_projection(run.projection_json)):
            raise StoreError("run-projection-integrity-mismatch")
        return rebuilt

    # Within a transaction

    def _now(self) -> int:
        return self._clock() if self._clock else database_now(self.using)

    def _runs(self, *, lock: bool = False) -> Any:
        runs = Run.objects.using(self.using).select_related("state_root").filter(state_root__root_hash=self.root_hash)
        return runs.select_for_update(no_key=True, of=("self",)) if lock else runs

    def _run(self, run_id: str, *, lock: bool = False) -> Run:
        run: Run | None = self._runs(lock=lock).filter(run_id=run_id).first()
        if run is None:
            raise StoreError("run-not-found", f"there is no run {run_id}")
        return run

    @contextmanager
    def _changing(self, run_id: str, *, root: bool = False) -> Any:
        with transaction.atomic(using=self.using):
            if root:  # its lookup key is to change, and the root's lock guards those
                self._locked_root()
            yield self._run(run_id, lock=True)

    @contextmanager
    def _fencing(self, lease: OperationLease | None, tried: str) -> Any:
        """Outside the transaction: a refused attempt rolls back, and is noted all the same."""
        try:
            yield
        except StoreError as error:
            run = self._runs().filter(run_id=lease.run_id).first() if lease and error.code == "lease-fenced" else None
            if lease is not None and run is not None:
                leases.note_refused(run, lease.operation_id, tried, self._now())
            raise

    def _locked_root(self) -> StateRoot:
        moment = self._now()
        roots = StateRoot.objects.using(self.using)
        roots.get_or_create(root_hash=self.root_hash, defaults={"first_seen_at": moment, "checked_at": moment})
        root = roots.select_for_update(no_key=True).get(root_hash=self.root_hash)
        if root.path:
            raise StoreError("run-mirrored", f"{root} is mirrored from its own store, which alone starts its runs")
        return root

    def _held(self, lease: OperationLease) -> Operation:
        run = self._runs().filter(run_id=lease.run_id).first()
        if run is None:
            raise StoreError("lease-fenced", "the run of the lease is not there")
        return leases.held(run, lease, self._now)

    def _check(self, run: Run, lease: OperationLease | None) -> None:
        if lease is None:
            return
        if lease.run_id != run.run_id:
            raise StoreError("lease-fenced", "the lease is of another run")
        leases.held(run, lease, self._now)

    def _replayed(self, run: Run, operation_id: str, kind: str) -> Projection | None:
        """The outcome of the operation if it is committed. Raises `StoreError` (`operation-id-conflict`)."""
        operation = leases.locked(run, operation_id)
        if operation is None or operation.state != "committed" or operation.outcome_json is None:
            return None
        if operation.kind != kind:
            raise StoreError("operation-id-conflict", f"operation {operation_id} was of another kind: {operation.kind}")
        return parse_projection(operation.outcome_json)

    def _recorded(self, run: Run, operation_id: str, kind: str, outcome: Projection) -> Projection:
        operation = leases.locked(run, operation_id)
        if operation is None:
            operation = Operation(run=run, operation_id=operation_id, kind=kind)
            operation._state.db = self.using
        leases.settle(operation, "committed", stringify(outcome))
        return outcome

    def _created(
        self, root: StateRoot, stage: str, key: str, change: str | None, provisional_key: str | None, operation_id: str
    ) -> Projection:
        run_id, now = self._new_id(), self._now()
        payload: dict[str, Any] = {"runId": run_id, "rootHash": self.root_hash, "stage": stage}
        payload |= {"change": change} if change else {}
        payload |= {"provisionalKey": provisional_key} if provisional_key else {}
        event = create_event(1, "run-created", payload, ZERO_HASH)
        reducer = Reducer()
        reducer.apply(event, payload)
        projection = reducer.projection()
        run = Run(
            state_root=root,
            run_id=run_id,
            root_hash=self.root_hash,
            stage=stage,
            lookup_key=key,
            change_name=change,
            provisional_key=provisional_key,
            state=projection["state"],
            sequence=1,
            event_hash=event.event_hash,
            projection_json=stringify(projection),
            first_seen_at=now,
            changed_at=now,
        )
        mark_verified(run, projection, now)
        run.save(using=self.using)
        store_event(run, 1, event.type, event.payload_json, event.prior_hash, event.event_hash, now)
        return self._recorded(run, operation_id, _START, projection)

    def _bound(self, run: Run, delivery: Delivery) -> Projection:
        self._check(run, delivery.lease)
        replayed = self._replayed(run, delivery.operation_id, "delivery-bound")
        if replayed is not None:
            return replayed
        bindings = DeliveryBinding.objects.using(self.using)
        existing = bindings.filter(run=run, gate=delivery.gate, revision=delivery.revision).first()
        if existing is not None:
            if any(getattr(existing, name) != value for name, value in delivery.values.items()):
                raise StoreError("delivery-revision-conflict", f"{existing} is bound to something else")
            projection = parse_projection(run.projection_json)
            return self._recorded(run, delivery.operation_id, "delivery-bound", projection)
        bindings.create(
            run=run,
            gate=delivery.gate,
            revision=delivery.revision,
            operation_id=delivery.operation_id,
            **delivery.values,
        )
        payload: dict[str, Any] = {
            "gate": delivery.gate,
            "revision": delivery.revision,
            "receiptHash": delivery.receipt_hash,
        }
        payload |= {"approvalProof": delivery.approval_proof} if delivery.approval_proof else {}
        projection = append_event(run, "delivery-bound", payload, self._now())
        return self._recorded(run, delivery.operation_id, "delivery-bound", projection)


def _is_change(change: object) -> bool:
    return isinstance(change, str) and _CHANGE.fullmatch(change) is not None


def _lookup_key(stage: str, change: object, provisional_key: object) -> str:
    if isinstance(change, str) == isinstance(provisional_key, str):
        raise StoreError("invalid-run-lookup-key")
    if isinstance(change, str):
        if not _is_change(change):
            raise StoreError("invalid-change")
        return f"change:{change}"
    if not is_sha256(provisional_key):
        raise StoreError("invalid-provisional-key")
    if stage != "abel-design":
        raise StoreError("provisional-run-requires-design")
    return f"provisional:{provisional_key}"
