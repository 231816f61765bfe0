"""What happens when a person decides: one transaction, one winner, and an entry that says who, what and why.

    answered = decide(user, approval_id, "approved", shown=shown_of(approval), comment="checked with billing", via="inbox")

The record's `decidedBy` is `cadence-admin:<primary key of the user>`: printable, unique, and the same for ever, also if the
user is renamed. Every refusal is a `DecisionError`; what was decided before is not lost in it.
"""

import hashlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Final

import psycopg.errors
from django.conf import settings
from django.contrib.auth.models import User
from django.db import OperationalError, connections, transaction
from django.db.models import F

from approvals.backends.database import DatabaseBackend
from approvals.models import Decision
from approvals.records import DECISIONS, Approval, Record, RecordError
from cadence_admin import audit
from cadence_admin.access import Access, access_of
from cadence_admin.errors import ServiceError
from cadence_admin.javascript import canonical_json
from cadence_admin.policies import groups_of, owned_by, policies
from cadence_admin.retrying import retried
from cadence_admin.visible import GLANCE

DECIDE: Final = "approvals.decide_approval"
DECIDED_BY: Final = "cadence-admin:"
LONGEST_COMMENT: Final = 2_000
# So long a person waits for somebody else's transaction on the same record.
PATIENCE: Final = "5s"

# What a person is shown of an approval, by the names of the wire.
SHOWN: Final = (
    "approvalId",
    "capability",
    "target",
    "digest",
    "tenantId",
    "principalId",
    "effectId",
    "createdAt",
    "expiresAt",
    "version",
)


class DecisionError(ServiceError):
    """A decision that didn't count. `approval` is how the record stands, where there is one."""

    def __init__(self, code: str, message: str, approval: Approval | None = None) -> None:
        super().__init__(code, message)
        self.approval = approval


@dataclass(frozen=True, slots=True)
class Shown:
    """What a page showed of a record: its version, and the digest of the whole of it."""

    version: int
    digest: str


@dataclass(frozen=True, slots=True)
class Answered:
    """A decision that counts; `again` if the same person had given the same answer before. `votes` of `needed` people have
    approved: the record changes with the last of them."""

    approval: Approval
    again: bool = False
    votes: int = 1
    needed: int = 1


def token_of(user: User) -> str:
    """What stands as `decidedBy` in a record that this user decided."""
    return f"{DECIDED_BY}{user.pk}"


def seen_of(record: Record, *, whole: bool = False) -> dict[str, Any]:
    """The members of a record that a page shows; a text longer than a glance as its beginning, length and sha256, unless
    the `whole` of it is shown."""
    members = record.to_members()
    names = SHOWN if isinstance(record, Approval) else tuple(name for name in members if name != "tokenHash")
    seen = {name: members[name] for name in names if name in members}
    if not whole:
        for name, value in seen.items():
            if isinstance(value, str) and len(value) > GLANCE:
                digest = hashlib.sha256(value.encode("utf-8", "surrogatepass")).hexdigest()
                seen[name] = {"begins": value[:GLANCE], "length": len(value), "sha256": digest}
    return seen


def shown_of(approval: Approval, *, whole: bool = False) -> Shown:
    """What a page shows of an approval, by its digest."""
    return Shown(approval.version, digest_of(canonical_json(seen_of(approval, whole=whole))))


def digest_of(seen: str) -> str:
    """The digest of what a page shows, from its canonical text."""
    return hashlib.sha256(seen.encode()).hexdigest()


def must_be_opened(approval: Approval) -> bool:
    """Whether something of it is too long to be read at a glance."""
    members = approval.to_members()
    return any(isinstance(members.get(name), str) and len(members[name]) > GLANCE for name in SHOWN)


def must_be_confirmed(approval: Approval) -> bool:
    """Whether who approves it types what it is about (`CADENCE_CONFIRM_CAPABILITIES`)."""
    return any(fnmatchcase(approval.capability, pattern) for pattern in settings.CONFIRM_CAPABILITIES)


def confirmation_of(approval: Approval) -> str:
    """What is typed then: the target, or the capability of one without."""
    return approval.target or approval.capability


def answer_on(approval: Approval) -> str:
    """What was decided about an approval that has a decider: one that was used or ran out later was approved before."""
    return "denied" if approval.state == "denied" else "approved"


def state_at(approval: Approval, now: int) -> str:
    """The state that a person is shown: what is past its time is expired, also before somebody writes that down."""
    return "expired" if approval.may_expire(now) else approval.state


@retried
def decide(
    user: User,
    approval_id: str,
    answer: str,
    *,
    shown: Shown | None,
    comment: str = "",
    typed: str = "",
    came_from: str = "",
    via: str,
    using: str | None = None,
) -> Answered:
    """Approve or deny, if it is still what the person was shown (`shown` None: whatever stands there now).

    Raises `DecisionError`: `not-permitted`, `reason-required`, `approval-not-found`, `own-request`,
    `excluded-by-policy`, `approval-already-decided`, `approval-expired`, `approval-changed`, `approval-not-read`,
    `confirmation-mismatch`, `record-busy`; and `RecordError` (`record-unreadable`).
    """
    if not user.has_perm(DECIDE):
        raise DecisionError("not-permitted", "Your account may look at approvals, but not decide them.")
    if answer not in DECISIONS:
        raise DecisionError("invalid-decision", "A decision is to approve or to deny.")
    access, owned, policy, groups = access_of(user), owned_by(user), policies(), groups_of(user)
    backend = DatabaseBackend(using)
    with changing(backend):
        approval = _locked(backend, approval_id, access)
        if approval.id != approval_id:
            raise RecordError("record-unreadable", f"{approval_id}: its payload is that of {approval.id}")
        now = backend.now()
        if _is_same(user, approval, answer, backend.alias):
            return Answered(approval, again=True)
        _require_open(approval, now)
        if approval.principal_id in owned or approval.principal_id == token_of(user):
            raise DecisionError("own-request", "This is your own request: somebody else has to decide it.", approval)
        _require_seen(approval, answer, shown)
        if answer == "denied" and not comment.strip():
            raise DecisionError("reason-required", "Say why: who asked will want to know.", approval)
        if answer == "approved" and must_be_confirmed(approval) and typed != confirmation_of(approval):
            raise DecisionError("confirmation-mismatch", "What you typed is not what this is about.", approval)
        seen = shown or shown_of(approval)
        rule, votes = policy.rule_for(approval.capability), 1
        if answer == "approved":
            if rule.excluded & groups:
                raise DecisionError("excluded-by-policy", "A policy leaves the approval of this to others.", approval)
            others = {vote.decided_by for vote in votes_on([approval], backend.alias).get(approval.id, ())}
            if token_of(user) in others:
                return Answered(approval, again=True, votes=len(others), needed=rule.needed)
            votes = len(others) + 1
        decided = approval
        if answer == "denied" or votes >= rule.needed:
            decided = approval.decided(answer, token_of(user), now)
            if not backend.compare_and_set("approval", approval_id, approval.version, decided):
                raise DecisionError("approval-changed", "It changed in this very moment.", approval)
        enter(
            user,
            approval,
            decided,
            answer,
            comment=comment,
            came_from=came_from,
            via=via,
            shown=seen.digest,
            now=now,
            using=backend.alias,
        )
        return Answered(decided, votes=votes, needed=rule.needed)


def votes_on(records: Iterable[Approval], using: str) -> dict[str, list[Decision]]:
    """Who has approved what is still pending, by the id of the record: only votes for it as it stands. One query."""
    by_id = {record.id: record for record in records}
    rows = Decision.objects.using(using).filter(
        kind="approval", record_id__in=list(by_id), answer="approved", version_after=F("version_before")
    )
    found: dict[str, list[Decision]] = {}
    for vote in rows.order_by("pk") if by_id else ():
        record = by_id[vote.record_id]
        digests = {shown_of(record).digest, shown_of(record, whole=True).digest}
        if vote.version_before == record.version and vote.shown_digest in digests:
            found.setdefault(record.id, []).append(vote)
    return found


@retried
def expire(user: User, approval_id: str, *, came_from: str = "", via: str, using: str | None = None) -> bool:
    """Write down that an approval's time is up. False if it isn't. Raises `DecisionError` (`not-permitted`,
    `approval-not-found`)."""
    if not user.has_perm(DECIDE):
        raise DecisionError("not-permitted", "Your account may look at approvals, but not decide them.")
    access = access_of(user)
    backend = DatabaseBackend(using)
    with changing(backend):
        approval = _locked(backend, approval_id, access)
        now = backend.now()
        if not approval.may_expire(now):
            return False
        expired = approval.expired(now)
        if not backend.compare_and_set("approval", approval_id, approval.version, expired):
            return False
        enter(user, approval, expired, "expired", came_from=came_from, via=via, now=now, using=backend.alias)
        return True


@contextmanager
def changing(backend: DatabaseBackend) -> Iterator[None]:
    """A transaction in which a person waits for others only so long. Raises `DecisionError` (`record-busy`)."""
    busy = DecisionError("record-busy", "Somebody else is changing this right now. Nothing was done; try again.")
    try:
        with transaction.atomic(using=backend.alias):
            if connections[backend.alias].vendor == "postgresql":
                with connections[backend.alias].cursor() as cursor:
                    cursor.execute(f"SET LOCAL lock_timeout = '{PATIENCE}'")
            yield
    except OperationalError as error:
        if isinstance(error.__cause__, psycopg.errors.LockNotAvailable) or "database is locked" in str(error):
            raise busy from error
        raise


def enter(
    user: User,
    before: Record,
    record: Record,
    answer: str,
    *,
    comment: str = "",
    came_from: str = "",
    via: str,
    shown: str = "",
    now: int,
    using: str,
) -> None:
    """The entries of what a person made of a record, as it was `before` and as it is now; the last thing of a transaction."""
    Decision.objects.using(using).create(
        kind=record.KIND,
        record_id=record.id,
        tenant_id=getattr(record, "tenant_id", None) or "",
        capability=getattr(record, "capability", ""),
        answer=answer,
        actor=user.get_username(),
        decided_by=token_of(user),
        comment=comment.strip()[:LONGEST_COMMENT],
        came_from=came_from,
        via=via,
        version_before=before.version,
        version_after=record.version,
        shown_digest=shown,
        happened_at=now,
    )
    audit.record(
        audit.Entry(
            f"{record.KIND}.{answer}",
            record.KIND,
            record.id,
            before={"state": before.state, "version": before.version},
            after={"state": record.state, "version": record.version},
            reason=comment,
            actor=user.get_username(),
            address=came_from,
        ),
        using=using,
    )


def _locked(backend: DatabaseBackend, approval_id: str, access: Access) -> Approval:
    """The approval, if it is there and for the user to know and to decide."""
    approval = backend.get("approval", approval_id, lock=True)
    if not isinstance(approval, Approval) or not access.may_see(approval.tenant_id, approval.capability):
        raise DecisionError("approval-not-found", "There is no such approval any more.")
    if not access.may_decide(approval.tenant_id, approval.capability):
        raise DecisionError("not-permitted", "Your account may look at this tenant's approvals, but not decide them.")
    return approval


def _is_same(user: User, approval: Approval, answer: str, using: str) -> bool:
    """Whether the answer that was given is this person's own, alone or with others."""
    # One that was approved stays approved by the same people once its token was used.
    if approval.state == "pending" or approval.decided_by is None or answer != answer_on(approval):
        return False
    if approval.decided_by == token_of(user):
        return True
    mine = Decision.objects.using(using).filter(kind="approval", record_id=approval.id, decided_by=token_of(user))
    return mine.filter(answer=answer).exists()


def _require_open(approval: Approval, now: int) -> None:
    if state_at(approval, now) == "expired":
        raise DecisionError("approval-expired", "Its time was up before anybody decided.", approval)
    if approval.state != "pending":
        raise DecisionError("approval-already-decided", "This was decided before you.", approval)


def _require_seen(approval: Approval, answer: str, shown: Shown | None) -> None:
    if shown is None or shown == shown_of(approval, whole=True):
        return
    if shown != shown_of(approval):
        raise DecisionError("approval-changed", "It changed after you looked at it. Nothing was decided.", approval)
    if answer == "approved":
        raise DecisionError("approval-not-read", "Open the whole of it before you approve it.", approval)
