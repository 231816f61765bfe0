"""Ask a person before a risky effect, and use the answer once.

coordinator = ApprovalCoordinator(Adapter(DatabaseBackend()).approvals, secret)
try:
    coordinator.authorize(effect_id, binding, resume_token)  # returns: go ahead, once
except ApprovalRequired as question:
    ...  # keep question.resume_token, ask again with it when somebody has approved question.approval_id
"""

import secrets
import uuid
from dataclasses import dataclass, field
from typing import Final

from approvals.adapter import ApprovalStore
from approvals.records import Approval, Binding, RecordError, require_token
from approvals.tokens import NONCE_BYTES, Claims, TokenError, hash_token, new_nonce, require_secret, sign, verify

DEFAULT_TTL_MS: Final = 15 * 60_000


class ApprovalError(Exception):
    """An effect that may not happen, now or ever. `code` names why: `approval-pending`, `approval-denied`,
    `approval-expired`, `approval-replay`, `approval-binding` or `approval-token-invalid`."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class ApprovalRequired(ApprovalError):
    """A person was asked. The resume token is the caller's secret: it is neither stored nor shown anywhere."""

    def __init__(self, approval_id: str, effect_id: str, resume_token: str, expires_at: int) -> None:
        super().__init__("approval-required", "capability approval is required")
        self.approval_id = approval_id
        self.effect_id = effect_id
        self.resume_token = resume_token
        self.expires_at = expires_at


_REFUSALS: Final = {
    "pending": ApprovalError("approval-pending", "capability approval is still pending"),
    "denied": ApprovalError("approval-denied", "capability approval was denied"),
    "expired": ApprovalError("approval-expired", "approval resume token has expired"),
    "replay": ApprovalError("approval-replay", "approval resume token has already been consumed"),
    "binding": ApprovalError("approval-binding", "approval resume token is bound to another request"),
    "missing": ApprovalError("approval-token-invalid", "approval resume token is invalid"),
    "token": ApprovalError("approval-token-invalid", "approval resume token is invalid"),
}


@dataclass(frozen=True, slots=True)
class ApprovalCoordinator:
    """`secret` is at least 32 random bytes, kept apart from the store; `ttl_ms` is how long a question stays open."""

    approvals: ApprovalStore
    secret: bytes = field(repr=False)
    ttl_ms: int = DEFAULT_TTL_MS

    def __post_init__(self) -> None:
        require_secret(self.secret)
        if self.ttl_ms < 1:
            raise ValueError("approval ttlMs must be a positive safe integer")

    def authorize(
        self, effect_id: str, binding: Binding, resume_token: str | None = None, *, now: int | None = None
    ) -> None:
        """Returns if the effect may happen now. Raises `ApprovalRequired` without a token, `ApprovalError` otherwise,
        `TokenError` for a token that says nothing, and `RecordError` for a request past its limits."""
        require_token(binding.tenant_id, "approval tenantId")
        require_token(binding.principal_id, "approval principalId")
        moment = self.approvals.backend.now() if now is None else now
        if resume_token is None:
            raise self._ask(effect_id, binding, moment)
        claims = verify(resume_token, self.secret, moment)
        answer = self.approvals.consume(
            claims.approval_id, binding=binding, token_hash=hash_token(resume_token), now=now
        )
        if answer != "consumed":
            refusal = _REFUSALS[answer]
            raise ApprovalError(refusal.code, str(refusal))

    def decide(
        self, approval_id: str, *, tenant_id: str, decision: str, decided_by: str, now: int | None = None
    ) -> None:
        """Approve or deny. Raises `RecordError` (`approval-decision-rejected`: not pending, not there, or expired)."""
        require_token(approval_id, "approval id", 128)
        require_token(tenant_id, "approval tenantId")
        if not self.approvals.decide(
            approval_id, tenant_id=tenant_id, decision=decision, decided_by=decided_by, now=now
        ):
            raise RecordError("approval-decision-rejected", "approval decision rejected")

    def _ask(self, effect_id: str, binding: Binding, moment: int) -> ApprovalRequired:
        approval_id = str(uuid.uuid4())
        expires_at = moment + self.ttl_ms
        nonce = new_nonce(secrets.token_bytes(NONCE_BYTES))
        token = sign(Claims(approval_id, nonce, expires_at), self.secret)
        approval = Approval(
            approval_id=approval_id,
            effect_id=effect_id,
            capability=binding.capability,
            target=binding.target,
            digest=binding.digest,
            tenant_id=binding.tenant_id,
            principal_id=binding.principal_id,
            token_hash=hash_token(token),
            state="pending",
            created_at=moment,
            expires_at=expires_at,
            updated_at=moment,
            version=1,
        )
        if not self.approvals.create(approval):
            raise RecordError("approval-exists", "approval store rejected a unique approval id")
        return ApprovalRequired(approval_id, effect_id, token, expires_at)


__all__ = ["ApprovalCoordinator", "ApprovalError", "ApprovalRequired", "TokenError"]
