"""Effects, approvals and sagas: their members, their limits, and what may become of them.

Plain functions over plain data: no Django, no clock, no randomness. Source: nifra's durable records. A record keeps every
member that is not known here exactly as it was. Times are milliseconds since 1970-01-01 UTC.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cache
from typing import Any, ClassVar, Final, Literal, Self

from approvals.tokens import same_secret
from approvals.wire import UNDEFINED
from cadence_admin.javascript import MAX_SAFE_INTEGER, is_safe_integer

Kind = Literal["effect", "approval", "saga"]
KINDS: Final[tuple[Kind, ...]] = ("effect", "approval", "saga")

EFFECT_STATES: Final = ("admission", "executing", "committed", "failed", "unknown")
APPROVAL_STATES: Final = ("pending", "approved", "denied", "consumed", "expired")
SAGA_STATES: Final = ("running", "compensating", "completed", "compensated", "manual-review")
STEP_STATES: Final = (
    "executing",
    "committed",
    "failed",
    "ambiguous",
    "compensating",
    "compensation-failed",
    "compensated",
)
DECISIONS: Final = ("approved", "denied")
UNSETTLED_STEPS: Final = ("executing", "ambiguous", "compensating")

# From each state of an effect, where it may go; an operator closes what is executing or unknown.
EFFECT_MOVES: Final[Mapping[str, tuple[str, ...]]] = {
    "admission": ("executing", "failed", "unknown"),
    "executing": ("committed", "failed", "unknown"),
    "unknown": ("committed", "failed"),
    "committed": (),
    "failed": (),
}

DEFAULT_MAX_ATTEMPTS: Final = 3

_PRINTABLE = re.compile(r"[!-~]+")
_CAPABILITY = re.compile(r"[a-z][a-z0-9]*(?:[.-][a-z0-9]+)*")
_ERROR_CODE = re.compile(r"[a-z][a-z0-9_.-]{0,63}")
_DIGEST = re.compile(r"[0-9a-f]{64}")


class RecordError(ValueError):
    """A record, or a change of one, that the rules refuse. `code` names the rule."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


def require_token(value: object, label: str, longest: int = 255) -> None:
    """Raises `RecordError` (`invalid-token`) unless `value` is printable ASCII without spaces, of bounded length."""
    if not isinstance(value, str) or not 1 <= len(value) <= longest or not _PRINTABLE.fullmatch(value):
        raise RecordError("invalid-token", f"{label} must be 1 to {longest} printable characters without spaces")


def require_error_code(value: object) -> None:
    """Raises `RecordError` (`invalid-error-code`)."""
    if not isinstance(value, str) or not _ERROR_CODE.fullmatch(value):
        raise RecordError("invalid-error-code", "an error code is a lower-case word of at most 64 characters")


def require_capability(value: object) -> None:
    """Raises `RecordError` (`invalid-capability`)."""
    if not isinstance(value, str) or not _CAPABILITY.fullmatch(value) or len(value) > 255:
        raise RecordError("invalid-capability", "a capability is lower-case words joined by dots or dashes")


def require_time(value: object, label: str) -> None:
    """Raises `RecordError` (`invalid-time`)."""
    if not is_safe_integer(value) or value < 0:  # type: ignore[operator]
        raise RecordError("invalid-time", f"{label} must be milliseconds since 1970")


def _one_of(value: object, allowed: tuple[str, ...], label: str) -> None:
    if value not in allowed:
        raise RecordError("invalid-state", f"{label} is one of {', '.join(allowed)}")


def _camel(name: str) -> str:
    head, *tail = name.split("_")
    return head + "".join(part.capitalize() for part in tail)


@dataclass(frozen=True, slots=True, kw_only=True)
class Members:
    """Named members over an object of the wire; absent is None. `original` is the object it was read from."""

    OPTIONAL: ClassVar[tuple[str, ...]] = ()
    INTEGERS: ClassVar[tuple[str, ...]] = ()
    ANY: ClassVar[tuple[str, ...]] = ()

    original: dict[str, Any] | None = field(default=None, compare=False, repr=False)

    @classmethod
    @cache
    def _names(cls) -> tuple[tuple[str, str], ...]:
        """Each member by its name here and its name on the wire."""
        return tuple((entry.name, _camel(entry.name)) for entry in fields(cls) if entry.name != "original")

    @classmethod
    def from_members(cls, members: object) -> Self:
        """Read an object of the wire. Raises `RecordError` (`record-unreadable`): a member is missing or of another kind.

        Limits are not checked: what another program wrote is read as it is.
        """
        if not isinstance(members, dict):
            raise RecordError("record-unreadable", f"{cls.__name__.lower()} is no object")
        values: dict[str, Any] = {}
        for name, key in cls._names():
            value = members.get(key, UNDEFINED)
            if name in cls.ANY:
                values[name] = value
            elif value is UNDEFINED:
                if name not in cls.OPTIONAL:
                    raise RecordError("record-unreadable", f"{cls.__name__.lower()} has no {key}")
                values[name] = None
            elif name in cls.INTEGERS:
                if not is_safe_integer(value):
                    raise RecordError("record-unreadable", f"{key} is no integer")
                values[name] = value
            else:
                values[name] = cls._read(name, value)
        return cls(original=members, **values)

    @classmethod
    def _read(cls, name: str, value: Any) -> Any:
        if not isinstance(value, str):
            raise RecordError("record-unreadable", f"{_camel(name)} is no text")
        return value

    def to_members(self) -> dict[str, Any]:
        """The object of the wire: what is known here as it is now, everything else as it was."""
        members = dict(self.original or {})
        for name, key in self._names():
            value = getattr(self, name)
            if name in self.ANY:
                if value is not UNDEFINED or key in members:
                    members[key] = value
            elif value is not None:
                members[key] = self._write(name, value)
            elif members.get(key, UNDEFINED) is not UNDEFINED:
                del members[key]
        return members

    def _write(self, name: str, value: Any) -> Any:
        return value


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect(Members):
    """A risky effect under the journal."""

    KIND: ClassVar[Kind] = "effect"
    OPTIONAL: ClassVar[tuple[str, ...]] = ("target", "digest", "tenant_id", "principal_id", "error_code")
    INTEGERS: ClassVar[tuple[str, ...]] = ("created_at", "updated_at", "version")

    effect_id: str
    capability: str
    target: str | None = None
    digest: str | None = None
    tenant_id: str | None = None
    principal_id: str | None = None
    state: str
    created_at: int
    updated_at: int
    error_code: str | None = None
    version: int

    @property
    def id(self) -> str:
        return self.effect_id

    def validate(self) -> None:
        """Raises `RecordError` for a member past its limit."""
        require_token(self.effect_id, "effectId", 64)
        require_capability(self.capability)
        if self.target is not None:
            require_token(self.target, "target", 128)
        _require_digest(self.digest)
        if (self.tenant_id is None) != (self.principal_id is None):
            raise RecordError("invalid-identity", "tenantId and principalId come together")
        if self.tenant_id is not None:
            require_token(self.tenant_id, "tenantId")
            require_token(self.principal_id, "principalId")
        _one_of(self.state, EFFECT_STATES, "the state of an effect")
        if self.error_code is not None:
            require_error_code(self.error_code)
        _require_header(self.created_at, self.updated_at, self.version)

    def moved(self, to: str, now: int, error_code: str | None = None) -> Self:
        """The effect in its next state; its clock never runs backwards, and an old error code doesn't stick.

        Raises `RecordError` (`invalid-effect-transition`, which names both states, or `invalid-error-code`).
        """
        if to not in EFFECT_MOVES.get(self.state, ()):
            raise RecordError(
                "invalid-effect-transition", f"effect {self.effect_id}: {self.state}->{to} transition was rejected"
            )
        if error_code is not None:
            require_error_code(error_code)
        return replace(
            self,
            state=to,
            updated_at=max(self.updated_at, now),
            error_code=error_code,
            version=self.version + 1,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Binding:
    """What an approval was given for; whoever consumes it must present the same."""

    tenant_id: str
    principal_id: str
    capability: str
    target: str | None = None
    digest: str | None = None


Consumption = Literal["consumed", "missing", "binding", "token", "replay", "denied", "pending", "expired"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Approval(Members):
    """A question to a person: may this effect happen?"""

    KIND: ClassVar[Kind] = "approval"
    OPTIONAL: ClassVar[tuple[str, ...]] = ("target", "digest", "decided_by")
    INTEGERS: ClassVar[tuple[str, ...]] = ("created_at", "expires_at", "updated_at", "version")

    approval_id: str
    effect_id: str
    capability: str
    target: str | None = None
    digest: str | None = None
    tenant_id: str
    principal_id: str
    token_hash: str = field(repr=False)
    state: str
    created_at: int
    expires_at: int
    updated_at: int
    decided_by: str | None = None
    version: int

    @property
    def id(self) -> str:
        return self.approval_id

    def validate(self) -> None:
        """Raises `RecordError` for a member past its limit."""
        require_token(self.approval_id, "approvalId", 128)
        require_token(self.effect_id, "effectId", 64)
        require_capability(self.capability)
        if self.target is not None:
            require_token(self.target, "target", 128)
        _require_digest(self.digest)
        require_token(self.tenant_id, "tenantId")
        require_token(self.principal_id, "principalId")
        require_token(self.token_hash, "tokenHash")
        _one_of(self.state, APPROVAL_STATES, "the state of an approval")
        require_time(self.expires_at, "expiresAt")
        if self.decided_by is not None:
            require_token(self.decided_by, "decidedBy")
        _require_header(self.created_at, self.updated_at, self.version)

    def may_be_decided(self, tenant_id: str, now: int) -> bool:
        """Only what is pending, in its own tenant, before it expires."""
        return self.state == "pending" and self.tenant_id == tenant_id and self.expires_at > now

    def decided(self, decision: str, decided_by: str, now: int) -> Self:
        """The approval with a decision on it. Raises `RecordError`."""
        require_decision(decision, decided_by)
        return replace(
            self,
            state=decision,
            decided_by=decided_by,
            updated_at=max(self.updated_at, now),
            version=self.version + 1,
        )

    def consumption(self, binding: Binding, token_hash: str, now: int) -> Consumption:
        """What presenting a token comes to, in nifra's order of checks."""
        mine = Binding(
            tenant_id=self.tenant_id,
            principal_id=self.principal_id,
            capability=self.capability,
            target=self.target,
            digest=binding.digest,
        )
        if mine != binding or not same_secret(self.digest, binding.digest):
            return "binding"
        if not same_secret(self.token_hash, token_hash):
            return "token"
        match self.state:
            case "consumed":
                return "replay"
            case "denied" | "pending":
                return self.state
            case "expired":
                return "expired"
            case "approved":
                return "consumed" if self.expires_at > now else "expired"
        return "token"

    def consumed(self, now: int) -> Self:
        """The approval after its token was used."""
        return replace(self, state="consumed", updated_at=max(self.updated_at, now), version=self.version + 1)

    def may_expire(self, now: int) -> bool:
        """Whether its time is up while nobody has used it."""
        return self.state in ("pending", "approved") and self.expires_at <= now

    def expired(self, now: int) -> Self:
        """The approval after its time was up."""
        return replace(self, state="expired", updated_at=max(self.updated_at, now), version=self.version + 1)


def require_decision(decision: str, decided_by: str) -> None:
    """Raises `RecordError` (`invalid-decision`, `invalid-token`)."""
    if decision not in DECISIONS:
        raise RecordError("invalid-decision", "a decision is approved or denied")
    require_token(decided_by, "decidedBy")


@dataclass(frozen=True, slots=True, kw_only=True)
class SagaStep(Members):
    """One step of a saga: what was done, and how it is undone."""

    OPTIONAL: ClassVar[tuple[str, ...]] = ("next_attempt_at", "error_code")
    INTEGERS: ClassVar[tuple[str, ...]] = ("attempts", "next_attempt_at")
    ANY: ClassVar[tuple[str, ...]] = ("compensation_args", "result")

    name: str
    effect_id: str
    compensation_effect_id: str
    state: str
    compensation_args: Any = UNDEFINED
    result: Any = UNDEFINED
    attempts: int = 0
    next_attempt_at: int | None = None
    error_code: str | None = None

    @property
    def unsettled(self) -> bool:
        return self.state in UNSETTLED_STEPS

    def validate(self) -> None:
        """Raises `RecordError` for a member past its limit."""
        require_token(self.name, "step name", 128)
        require_token(self.effect_id, "effectId", 64)
        require_token(self.compensation_effect_id, "compensationEffectId", 64)
        _one_of(self.state, STEP_STATES, "the state of a step")
        if self.attempts < 0:
            raise RecordError("invalid-attempts", "attempts are counted from 0")
        if self.next_attempt_at is not None:
            require_time(self.next_attempt_at, "nextAttemptAt")
        if self.error_code is not None:
            require_error_code(self.error_code)


@dataclass(frozen=True, slots=True, kw_only=True)
class Saga(Members):
    """Steps that are undone one by one if a later one fails."""

    KIND: ClassVar[Kind] = "saga"
    INTEGERS: ClassVar[tuple[str, ...]] = ("created_at", "updated_at", "version")
    ANY: ClassVar[tuple[str, ...]] = ("input",)

    saga_id: str
    definition: str
    state: str
    input: Any = UNDEFINED
    steps: tuple[SagaStep, ...] = ()
    created_at: int
    updated_at: int
    version: int

    @property
    def id(self) -> str:
        return self.saga_id

    @classmethod
    def _read(cls, name: str, value: Any) -> Any:
        if name != "steps":
            return Members._read.__func__(cls, name, value)  # type: ignore[attr-defined]
        if not isinstance(value, list):
            raise RecordError("record-unreadable", "steps is no list")
        return tuple(SagaStep.from_members(entry) for entry in value)

    def _write(self, name: str, value: Any) -> Any:
        if name != "steps":
            return value
        # A step that is as it was read stays the object it was, and so does the list if none changed.
        written = [_as_it_was(step) for step in value]
        was = (self.original or {}).get("steps")
        if not isinstance(was, list) or len(was) != len(written):
            return written
        return was if all(new is old for new, old in zip(written, was, strict=True)) else written

    def validate(self) -> None:
        """Raises `RecordError` for a member past its limit."""
        require_token(self.saga_id, "sagaId", 128)
        require_token(self.definition, "definition", 128)
        _one_of(self.state, SAGA_STATES, "the state of a saga")
        for step in self.steps:
            step.validate()
        _require_header(self.created_at, self.updated_at, self.version)

    @property
    def unsettled(self) -> SagaStep | None:
        """The first step of which nobody knows whether it happened."""
        return next((step for step in self.steps if step.unsettled), None)

    def changed(self, now: int, *, state: str | None = None, steps: tuple[SagaStep, ...] | None = None) -> Self:
        """The saga in its next version."""
        return replace(
            self,
            state=self.state if state is None else state,
            steps=self.steps if steps is None else steps,
            updated_at=max(self.updated_at, now),
            version=self.version + 1,
        )

    def with_step(self, index: int, step: SagaStep, now: int, *, state: str | None = None) -> Self:
        """The saga with one step replaced."""
        steps = (*self.steps[:index], step, *self.steps[index + 1 :])
        return self.changed(now, state=state, steps=steps)

    def _step_of(self, effect_id: str, member: str, states: tuple[str, ...]) -> int:
        for index, step in enumerate(self.steps):
            if getattr(step, member) == effect_id:
                if step.state not in states:
                    raise RecordError(
                        "saga-step-settled",
                        f"step {step.name} of saga {self.saga_id} is {step.state}: nothing to resolve",
                    )
                return index
        raise RecordError("saga-step-not-found", f"saga {self.saga_id} has no step with effect {effect_id}")

    def execution_resolved(
        self, effect_id: str, *, committed: bool, now: int, result: Any = UNDEFINED, error_code: str = "not_committed"
    ) -> Self:
        """What a person found out about an execution that was left executing or ambiguous. Raises `RecordError`."""
        index = self._step_of(effect_id, "effect_id", ("executing", "ambiguous"))
        step = self.steps[index]
        if committed:
            done = replace(step, state="committed", result=result, error_code=None, next_attempt_at=None)
            return self.with_step(index, done, now, state="running")
        require_error_code(error_code)
        failed = replace(step, state="failed", error_code=error_code, next_attempt_at=None)
        return self.with_step(index, failed, now, state="compensating")

    def compensation_resolved(
        self, compensation_effect_id: str, *, compensated: bool, now: int, max_attempts: int = DEFAULT_MAX_ATTEMPTS
    ) -> Self:
        """What a person found out about a compensation that was left under way. Raises `RecordError`."""
        index = self._step_of(compensation_effect_id, "compensation_effect_id", ("compensating",))
        step = self.steps[index]
        if compensated:
            done = replace(step, state="compensated", error_code=None, next_attempt_at=None)
            return self.with_step(index, done, now, state="compensating")
        failed = replace(step, state="compensation-failed", error_code="compensation_failed", next_attempt_at=None)
        exhausted = step.attempts >= max_attempts
        return self.with_step(index, failed, now, state="manual-review" if exhausted else "compensating")

    def compensation_settled(self, compensation_effect_id: str, *, now: int) -> Self:
        """The way out of a compensation that failed for good: a person undid it by hand. Raises `RecordError`."""
        index = self._step_of(compensation_effect_id, "compensation_effect_id", ("compensation-failed",))
        done = replace(self.steps[index], state="compensated", error_code=None, next_attempt_at=None)
        return self.with_step(index, done, now, state="compensating")

    def compensation_retried(self, compensation_effect_id: str, *, now: int) -> Self:
        """The other way out: try again, counted from 0. Raises `RecordError`."""
        index = self._step_of(compensation_effect_id, "compensation_effect_id", ("compensation-failed",))
        again = replace(self.steps[index], attempts=0, next_attempt_at=None)
        return self.with_step(index, again, now, state="compensating")


def _as_it_was(step: SagaStep) -> dict[str, Any]:
    members = step.to_members()
    was = step.original
    if was is not None and len(was) == len(members) and all(was[key] is members.get(key, UNDEFINED) for key in was):
        return was
    return members


Record = Effect | Approval | Saga
CLASSES: Final[Mapping[str, type[Effect] | type[Approval] | type[Saga]]] = {
    "effect": Effect,
    "approval": Approval,
    "saga": Saga,
}


def read_record(kind: str, members: object) -> Record:
    """The record of a kind from an object of the wire. Raises `RecordError` (`record-unreadable`)."""
    return CLASSES[kind].from_members(members)


def _require_digest(digest: str | None) -> None:
    if digest is not None and not _DIGEST.fullmatch(digest):
        raise RecordError("invalid-digest", "a digest is a lower-case hex sha256")


def _require_header(created_at: int, updated_at: int, version: int) -> None:
    require_time(created_at, "createdAt")
    require_time(updated_at, "updatedAt")
    if not is_safe_integer(version) or not 1 <= version < MAX_SAFE_INTEGER:
        raise RecordError("invalid-version", "versions are counted from 1")
