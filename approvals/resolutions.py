"""What an operator settles by hand: effects that nobody knows the end of, ambiguous steps of sagas, leases of dead workers.

Each is one transaction with an entry of who and why, and counts only for the version that the operator looked at.
"""

from collections.abc import Callable
from typing import Any, Final

from django.contrib.auth.models import User

from approvals.adapter import Adapter
from approvals.backends.database import DatabaseBackend
from approvals.decisions import DecisionError, changing, enter, token_of
from approvals.models import Decision
from approvals.queries import STALE_MS
from approvals.records import DEFAULT_MAX_ATTEMPTS, Effect, Saga, SagaStep
from approvals.sagas import SagaEngine, SagaError
from approvals.wire import UNDEFINED
from cadence_admin import audit
from cadence_admin.access import access_of
from cadence_admin.javascript import JsonError, parse_json
from cadence_admin.retrying import retried

RESOLVE: Final = "approvals.resolve_record"

# What may be said of a step, by its state: the answer, and what it means.
STEP_ANSWERS: Final = {
    "executing": ("committed", "not-committed"),
    "ambiguous": ("committed", "not-committed"),
    "compensating": ("compensated", "not-compensated"),
    "compensation-failed": ("undone-by-hand", "try-again"),
}
EFFECT_ANSWERS: Final = ("committed", "failed")


def may_be_closed(effect: Effect, now: int) -> bool:
    """An effect is closed by hand if its end is unknown, or if it has been executing for too long to be alive."""
    return effect.state == "unknown" or (effect.state == "executing" and effect.updated_at <= now - STALE_MS)


def answers_for(step: SagaStep) -> tuple[str, ...]:
    """What a person may say of a step; nothing if it is settled."""
    return STEP_ANSWERS.get(step.state, ())


@retried
def close_effect(
    user: User, effect_id: str, answer: str, *, version: int, reason: str, came_from: str = "", via: str = "page"
) -> Effect:
    """Say that an effect was committed, or failed. Raises `DecisionError`: `not-permitted`, `reason-required`,
    `effect-not-found`, `effect-changed`, `effect-under-way`."""
    _require(user, answer in EFFECT_ANSWERS, reason)
    access = access_of(user)
    backend = DatabaseBackend()
    with changing(backend):
        effect = backend.get("effect", effect_id, lock=True)
        if not isinstance(effect, Effect) or not access.may_see(effect.tenant_id, effect.capability):
            raise DecisionError("effect-not-found", "There is no such effect any more.")
        if not access.may_decide(effect.tenant_id, effect.capability):
            raise DecisionError("not-permitted", "Your account may look at this tenant's effects, but not settle them.")
        now = backend.now()
        if effect.version != version:
            raise DecisionError("effect-changed", "It changed after you looked at it. Nothing was done.")
        if not may_be_closed(effect, now):
            raise DecisionError(
                "effect-under-way",
                "Only an unknown effect, or one that has been executing for long, is closed by hand.",
            )
        closed = effect.moved(answer, now, None if answer == "committed" else "closed_by_operator")
        if not backend.compare_and_set("effect", effect_id, version, closed):
            raise DecisionError("effect-changed", "It changed in this very moment. Nothing was done.")
        enter(user, effect, closed, answer, comment=reason, came_from=came_from, via=via, now=now, using=backend.alias)
        return closed


@retried
def resolve_step(
    user: User,
    saga_id: str,
    effect_id: str,
    answer: str,
    *,
    version: int,
    reason: str,
    result: str = "",
    error_code: str = "",
    came_from: str = "",
    via: str = "page",
) -> Saga:
    """Say what became of a step, which is named by its effect id, or by its compensation's for an answer about that.
    `result` is JSON, `error_code` what a step that didn't happen keeps.

    Raises `DecisionError` (`not-permitted`, `reason-required`, `invalid-result`, `saga-changed`) and `RecordError`.
    """
    _require(user, any(answer in answers for answers in STEP_ANSWERS.values()), reason)
    _require_whole(user)
    value: Any = UNDEFINED
    if result.strip():
        try:
            value = parse_json(result)
        except JsonError:
            raise DecisionError("invalid-result", "The result is no JSON.") from None
    backend = DatabaseBackend()
    engine = SagaEngine(Adapter(backend).sagas)
    by_answer: dict[str, Callable[[], Saga]] = {
        "committed": lambda: engine.resolve_execution(
            saga_id, effect_id, committed=True, result=value, version=version
        ),
        "not-committed": lambda: engine.resolve_execution(
            saga_id, effect_id, committed=False, error_code=error_code or "not_committed", version=version
        ),
        "compensated": lambda: engine.resolve_compensation(saga_id, effect_id, compensated=True, version=version),
        "not-compensated": lambda: engine.resolve_compensation(
            saga_id, effect_id, compensated=False, max_attempts=DEFAULT_MAX_ATTEMPTS, version=version
        ),
        "undone-by-hand": lambda: engine.settle_failed_compensation(
            saga_id, effect_id, undone_by_hand=True, version=version
        ),
        "try-again": lambda: engine.settle_failed_compensation(
            saga_id, effect_id, undone_by_hand=False, version=version
        ),
    }
    with changing(backend):
        before = backend.get("saga", saga_id)
        try:
            saga = by_answer[answer]()
        except SagaError as error:
            raise DecisionError("saga-changed", "It changed after you looked at it. Nothing was done.") from error
        assert before is not None, "the engine just found it"
        now = backend.now()
        enter(user, before, saga, answer, comment=reason, came_from=came_from, via=via, now=now, using=backend.alias)
        return saga


@retried
def free_lease(
    user: User, name: str, *, owner: str, expires_at: int, reason: str, came_from: str = "", via: str = "page"
) -> None:
    """Take a reconciliation lease from its holder, live or not, and let the next one start from the beginning.

    Raises `DecisionError` (`not-permitted`, `reason-required`, `lease-changed`).
    """
    _require(user, True, reason)
    _require_whole(user)
    backend = DatabaseBackend()
    with changing(backend):
        if not backend.free_lease(name, owner, expires_at):
            raise DecisionError("lease-changed", "It was renewed, taken or released after you looked at it.")
        Decision.objects.using(backend.alias).create(
            kind="lease",
            record_id=name,
            answer="freed",
            actor=user.get_username(),
            decided_by=token_of(user),
            comment=reason.strip(),
            came_from=came_from,
            via=via,
            version_before=expires_at,
            version_after=0,
            happened_at=backend.now(),
        )
        audit.record(
            audit.Entry(
                "lease.freed",
                "lease",
                name,
                before={"owner": owner, "expiresAt": expires_at},
                reason=reason,
                actor=user.get_username(),
                address=came_from,
            ),
            using=backend.alias,
        )


def _require(user: User, known: bool, reason: str) -> None:
    if not user.has_perm(RESOLVE):
        raise DecisionError("not-permitted", "Your account may look at this, but not settle it.")
    if not known:
        raise DecisionError("invalid-answer", "That is no answer to this.")
    if not reason.strip():
        raise DecisionError("reason-required", "Say how you know.")


def _require_whole(user: User) -> None:
    """Sagas and workers are of no tenant."""
    if not access_of(user).may_decide(None, ""):
        raise DecisionError("not-permitted", "This is for those who may decide for all tenants.")
