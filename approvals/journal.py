"""The effect journal: what a risky effect is about to do, does, and did.

journal = EffectJournal(Adapter(DatabaseBackend()).effects)
journal.intent(effect_id, "payments.refund", target="order:8841")
journal.executing(effect_id)
journal.committed(effect_id)
"""

from dataclasses import dataclass

from approvals.adapter import EffectStore, require_found
from approvals.records import Effect, RecordError, require_error_code


@dataclass(frozen=True, slots=True)
class EffectJournal:
    """Writes effects ahead of what they do. Every refused step is a `RecordError` that names both states."""

    effects: EffectStore

    def intent(
        self,
        effect_id: str,
        capability: str,
        *,
        target: str | None = None,
        digest: str | None = None,
        tenant_id: str | None = None,
        principal_id: str | None = None,
        now: int | None = None,
    ) -> Effect:
        """Say what is about to happen. Raises `RecordError` (`effect-exists` if the id was used before)."""
        moment = self.effects.backend.now() if now is None else now
        effect = Effect(
            effect_id=effect_id,
            capability=capability,
            target=target,
            digest=digest,
            tenant_id=tenant_id,
            principal_id=principal_id,
            state="admission",
            created_at=moment,
            updated_at=moment,
            version=1,
        )
        if not self.effects.create(effect):
            raise RecordError("effect-exists", f"durable effect {effect_id}: create transition was rejected")
        return effect

    def executing(self, effect_id: str, now: int | None = None) -> None:
        """It begins."""
        self._move(effect_id, ("admission",), "executing", None, now)

    def committed(self, effect_id: str, now: int | None = None) -> None:
        """It is done."""
        self._move(effect_id, ("executing",), "committed", None, now)

    def failed(self, effect_id: str, *, began: bool, error_code: str, now: int | None = None) -> None:
        """It failed: before it began (then it surely did nothing), or after (then nobody knows)."""
        require_error_code(error_code)
        self._move(effect_id, ("admission", "executing"), "unknown" if began else "failed", error_code, now)

    def closed(
        self, effect_id: str, *, committed: bool, error_code: str = "closed_by_operator", now: int | None = None
    ) -> None:
        """What a person found out about an effect that is unknown or was left executing."""
        to, code = ("committed", None) if committed else ("failed", error_code)
        self._move(effect_id, ("unknown", "executing"), to, code, now)

    def _move(self, effect_id: str, origins: tuple[str, ...], to: str, error_code: str | None, now: int | None) -> None:
        current = self.effects.get(effect_id)
        require_found(current, "effect", effect_id)
        assert current is not None
        refused = RecordError(
            "invalid-effect-transition", f"durable effect {effect_id}: {current.state}->{to} transition was rejected"
        )
        if current.state not in origins:
            raise refused
        moved = self.effects.transition(
            effect_id, version=current.version, origin=current.state, to=to, error_code=error_code, now=now
        )
        if not moved:
            raise refused
