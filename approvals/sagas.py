"""Run sagas: steps that are undone, last first, if a later one fails.

    def checkout(run, order):
        run.step("reserve", {"sku": order["sku"]}, lambda effect_id: reserve(order, effect_id))
        run.step("charge", {"amount": order["amount"]}, lambda effect_id: charge(order, effect_id))

    engine = SagaEngine(Adapter(DatabaseBackend()).sagas)
    engine.execute(Definition("checkout", checkout, {"reserve": unreserve, "charge": refund}), saga_id, order)

A step's outcome is written before the next begins, by compare-and-set. An exception from a step means that nobody knows
whether it happened, unless it is `StepNotCommitted`: then the saga is undone.
"""

import copy
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from approvals.adapter import SagaStore, require_found
from approvals.records import DEFAULT_MAX_ATTEMPTS, RecordError, Saga, SagaStep, require_error_code, require_token
from approvals.wire import UNDEFINED

MAX_BACKOFF_MS: Final = 60_000
# A step that is executing or compensating is somebody's: for so long nobody else calls it ambiguous.
DEFAULT_STEP_TIMEOUT_MS: Final = 5 * 60_000

Compensator = Callable[[Any, "Compensation"], None]


class SagaError(Exception):
    """A saga that can't go on like this. `code`: `saga-concurrency`, `saga-ambiguous-step`, `saga-busy`,
    `saga-definition-mismatch`, `saga-step-state` or `saga-exists`."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class StepNotCommitted(Exception):
    """Raise it in a step only where the provider proves that nothing happened. `code` is kept on the step."""

    def __init__(self, code: str = "not_committed") -> None:
        require_error_code(code)
        super().__init__("saga step conclusively did not commit")
        self.code = code


@dataclass(frozen=True, slots=True)
class Compensation:
    """What a compensator is told beside its arguments."""

    saga_id: str
    effect_id: str
    attempt: int


def _default_backoff(attempt: int) -> int:
    return min(MAX_BACKOFF_MS, 100 << min(attempt - 1, 20))


@dataclass(frozen=True, slots=True)
class Definition:
    """A saga: its name, what it runs, and how each of its steps is undone. Times are milliseconds."""

    name: str
    run: Callable[["Run", Any], None]
    compensators: Mapping[str, Compensator]
    max_attempts: int = DEFAULT_MAX_ATTEMPTS
    backoff_ms: Callable[[int], int] = _default_backoff
    step_timeout_ms: int = DEFAULT_STEP_TIMEOUT_MS

    def __post_init__(self) -> None:
        require_token(self.name, "saga definition", 128)
        if self.max_attempts < 1:
            raise ValueError("saga maxAttempts must be a positive safe integer")


@dataclass(slots=True)
class Run:
    """What a saga's function steps with."""

    engine: "SagaEngine"
    definition: Definition
    saga: Saga

    def step(self, name: str, compensation_args: Any, execute: Callable[[str], Any]) -> Any:
        """Do a step, or return what it gave when it was done before. `execute` is called with the step's effect id.

        Raises `SagaError`, or what `execute` raised.
        """
        require_token(name, "step name", 128)
        if name not in self.definition.compensators:
            raise SagaError("saga-step-state", f"saga {self.saga.saga_id}: nothing undoes step {name}")
        self.saga = self.engine.load(self.saga.saga_id)
        existing = next((step for step in self.saga.steps if step.name == name), None)
        if existing is not None:
            return self._again(existing)
        step = SagaStep(
            name=name,
            effect_id=str(uuid.uuid4()),
            compensation_effect_id=str(uuid.uuid4()),
            state="executing",
            compensation_args=copy.deepcopy(compensation_args),
            attempts=0,
        )
        index = len(self.saga.steps)
        if self.saga.state != "running":
            raise SagaError("saga-concurrency", f"saga {self.saga.saga_id} is {self.saga.state} by now")
        self.saga = self.engine.save(self.saga, self.saga.changed(self.engine.now(), steps=(*self.saga.steps, step)))
        try:
            result = execute(step.effect_id)
        except StepNotCommitted as refusal:
            failed = replace(step, state="failed", error_code=refusal.code)
            self.saga = self.engine.save(
                self.saga, self.saga.with_step(index, failed, self.engine.now(), state="compensating")
            )
            raise
        except BaseException:
            unknown = replace(step, state="ambiguous", error_code="execution_unknown")
            self.saga = self.engine.save(
                self.saga, self.saga.with_step(index, unknown, self.engine.now(), state="manual-review")
            )
            raise
        done = replace(step, state="committed", result=copy.deepcopy(result))
        self.saga = self.engine.save(self.saga, self.saga.with_step(index, done, self.engine.now()))
        return result

    def _again(self, step: SagaStep) -> Any:
        if step.state == "committed":
            return None if step.result is UNDEFINED else copy.deepcopy(step.result)
        if step.unsettled:
            raise self.engine.unsettled(self.saga, step, self.definition)
        raise SagaError("saga-step-state", f"saga {self.saga.saga_id}: step {step.name} can't resume from {step.state}")


@dataclass(frozen=True, slots=True)
class SagaEngine:
    """Executes, resumes and compensates sagas of one store."""

    sagas: SagaStore
    clock: Callable[[], int] | None = None

    def now(self) -> int:
        """The clock that was passed in, or the backend's."""
        return self.clock() if self.clock else self.sagas.backend.now()

    def load(self, saga_id: str) -> Saga:
        """The saga. Raises `RecordError` (`saga-not-found`)."""
        saga = self.sagas.get(saga_id)
        require_found(saga, "saga", saga_id)
        assert saga is not None
        return saga

    def save(self, current: Saga, following: Saga) -> Saga:
        """Store the next version. Raises `SagaError` (`saga-concurrency`): somebody else did."""
        if not self.sagas.compare_and_set(following, current.version):
            raise SagaError("saga-concurrency", f"saga {current.saga_id}: concurrent transition rejected")
        return following

    def execute(self, definition: Definition, saga_id: str, value: Any) -> Saga:
        """Start a saga and run it. Raises `SagaError` (`saga-exists`), or what a step raised."""
        moment = self.now()
        saga = Saga(
            saga_id=saga_id,
            definition=definition.name,
            state="running",
            input=copy.deepcopy(value),
            steps=(),
            created_at=moment,
            updated_at=moment,
            version=1,
        )
        if not self.sagas.create(saga):
            raise SagaError("saga-exists", f"saga {saga_id}: already exists")
        return self.resume(definition, saga_id)

    def resume(self, definition: Definition, saga_id: str) -> Saga:
        """Go on with a running saga: steps that are done return what they gave. Raises like `execute`.

        A second resume at the same time finds the first one's step under way and leaves the saga alone (`saga-busy`).
        """
        saga = self._of(definition, saga_id)
        if saga.state != "running":
            return saga
        run = Run(self, definition, saga)
        try:
            definition.run(run, copy.deepcopy(saga.input))
        except SagaError:
            raise  # the saga is somebody else's, or a person's
        except BaseException:
            if self.load(saga_id).state in ("running", "compensating"):
                self.compensate(definition, saga_id)
            raise
        finished = self.load(saga_id)
        if finished.state != "running" or finished.unsettled is not None:
            return finished
        return self.save(finished, finished.changed(self.now(), state="completed"))

    def compensate(self, definition: Definition, saga_id: str) -> Saga:
        """Undo what is done, last first. Returns the saga as far as it got: a step whose next attempt isn't due yet, or
        that failed, ends the round. Raises `SagaError`."""
        saga = self._of(definition, saga_id)
        if saga.state in ("completed", "compensated"):
            return saga
        if saga.unsettled is not None:
            raise self.unsettled(saga, saga.unsettled, definition)
        if saga.state != "compensating":
            saga = self.save(saga, saga.changed(self.now(), state="compensating"))
        for index in reversed(range(len(saga.steps))):
            step = saga.steps[index]
            if step.state not in ("committed", "compensation-failed"):
                continue
            if step.next_attempt_at is not None and step.next_attempt_at > self.now():
                return saga
            compensator = definition.compensators.get(step.name)
            if compensator is None:
                return self.save(saga, saga.changed(self.now(), state="manual-review"))
            saga, undone = self._undo(definition, saga, index, compensator)
            if not undone:
                return saga
        return self.save(saga, saga.changed(self.now(), state="compensated"))

    def _undo(self, definition: Definition, saga: Saga, index: int, compensator: Compensator) -> tuple[Saga, bool]:
        attempt = saga.steps[index].attempts + 1
        step = replace(saga.steps[index], state="compensating", attempts=attempt, next_attempt_at=None)
        saga = self.save(saga, saga.with_step(index, step, self.now()))
        try:
            compensator(
                copy.deepcopy(step.compensation_args), Compensation(saga.saga_id, step.compensation_effect_id, attempt)
            )
        except Exception:  # noqa: BLE001 - whatever it is, the compensation is to be tried again
            exhausted = attempt >= definition.max_attempts
            moment = self.now()
            due = None if exhausted else moment + max(0, definition.backoff_ms(attempt))
            failed = replace(step, state="compensation-failed", error_code="compensation_failed", next_attempt_at=due)
            state = "manual-review" if exhausted else "compensating"
            return self.save(saga, saga.with_step(index, failed, moment, state=state)), False
        done = replace(step, state="compensated", error_code=None)
        return self.save(saga, saga.with_step(index, done, self.now())), True

    def unsettled(self, saga: Saga, step: SagaStep, definition: Definition) -> SagaError:
        """The error for a step of which nobody knows: busy while it may still be under way, ambiguous once it is old (then
        the saga is left for a person)."""
        under_way = step.state in ("executing", "compensating") and saga.state != "manual-review"
        if under_way and self.now() - saga.updated_at < definition.step_timeout_ms:
            return SagaError("saga-busy", f"saga {saga.saga_id}: step {step.name} is under way")
        if saga.state != "manual-review":
            self.save(saga, saga.changed(self.now(), state="manual-review"))
        return SagaError("saga-ambiguous-step", f"saga {saga.saga_id}: step {step.name} has an ambiguous effect")

    def resolve_execution(
        self,
        saga_id: str,
        effect_id: str,
        *,
        committed: bool,
        result: Any = UNDEFINED,
        error_code: str = "not_committed",
        version: int | None = None,
    ) -> Saga:
        """Write down what a person found out about an execution. Raises `RecordError`, `SagaError`."""
        saga = self._seen(saga_id, version)
        return self.save(
            saga,
            saga.execution_resolved(
                effect_id, committed=committed, now=self.now(), result=result, error_code=error_code
            ),
        )

    def resolve_compensation(
        self,
        saga_id: str,
        compensation_effect_id: str,
        *,
        compensated: bool,
        max_attempts: int = DEFAULT_MAX_ATTEMPTS,
        version: int | None = None,
    ) -> Saga:
        """Write down what a person found out about a compensation. Raises `RecordError`, `SagaError`."""
        saga = self._seen(saga_id, version)
        return self.save(
            saga,
            saga.compensation_resolved(
                compensation_effect_id, compensated=compensated, now=self.now(), max_attempts=max_attempts
            ),
        )

    def settle_failed_compensation(
        self, saga_id: str, compensation_effect_id: str, *, undone_by_hand: bool, version: int | None = None
    ) -> Saga:
        """The way out of a compensation that failed for good: undone by hand, or tried anew. Raises `RecordError`."""
        saga = self._seen(saga_id, version)
        change = saga.compensation_settled if undone_by_hand else saga.compensation_retried
        return self.save(saga, change(compensation_effect_id, now=self.now()))

    def _seen(self, saga_id: str, version: int | None) -> Saga:
        saga = self.load(saga_id)
        if version is not None and saga.version != version:
            raise SagaError("saga-concurrency", f"saga {saga_id} changed since it was looked at")
        return saga

    def _of(self, definition: Definition, saga_id: str) -> Saga:
        saga = self.load(saga_id)
        if saga.definition != definition.name:
            raise SagaError("saga-definition-mismatch", f"saga {saga_id} is a {saga.definition}, no {definition.name}")
        return saga


__all__ = ["Compensation", "Definition", "RecordError", "Run", "SagaEngine", "SagaError", "StepNotCommitted"]
