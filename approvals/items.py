"""An approval as the pages show it, to one person at one moment."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from django.contrib.auth.models import User

from approvals import decisions, wording
from approvals.models import Decision
from approvals.queries import Row
from approvals.records import Approval
from cadence_admin.access import Access, access_of
from cadence_admin.javascript import JsonError, canonical_json, parse_json
from cadence_admin.policies import Policies, groups_of, owned_by, policies
from cadence_admin.visible import plain, warnings


@dataclass(frozen=True, slots=True)
class Item:
    """`approval` is None for a record that can't be read. `decider` names who decided, `effect_state` is that of the effect
    that was stopped ("" if it isn't in the journal); of `needed` people the `voters` have approved it; `warnings` say what a
    reader should know of each text; `seen` is what the page shows of the record, as text for its form."""

    row: Row
    approval: Approval | None
    state: str = ""
    own: bool = False
    only_to_see: bool = False
    needed: int = 1
    voters: list[str] = field(default_factory=list)
    voted: bool = False
    excluded: bool = False
    decider: str = ""
    effect_state: str = ""
    to_be_opened: bool = False
    to_be_confirmed: bool = False
    warnings: list[tuple[str, str]] = field(default_factory=list)
    seen: str = ""
    digest: str = ""

    @property
    def deed(self) -> str:
        return plain(wording.deed(self.approval.capability)) if self.approval else ""

    @property
    def answer(self) -> str:
        return decisions.answer_on(self.approval) if self.approval else ""

    @property
    def is_open(self) -> bool:
        return self.state == "pending"

    @property
    def at_a_glance(self) -> bool:
        """Whether it may be approved where it is only listed."""
        return not (self.to_be_opened or self.to_be_confirmed or self.warnings)

    @property
    def may_approve(self) -> bool:
        """Whether whoever looks may be among those who approve it."""
        return not (self.own or self.only_to_see or self.voted or self.excluded)

    @property
    def choice(self) -> str:
        """What stands for it in a form that decides several."""
        return f"{self.digest}.{self.approval.version}.{self.approval.id}" if self.approval else ""


@dataclass(frozen=True, slots=True)
class Reader:
    """Who looks, and what counts for them."""

    user: User
    access: Access
    owned: frozenset[str]
    groups: frozenset[int]
    policies: Policies


def reader_of(user: User) -> Reader:
    """A fixed number of queries."""
    return Reader(user, access_of(user), owned_by(user), groups_of(user), policies())


def item_of(
    row: Row,
    reader: Reader,
    now: int,
    names: Mapping[str, str],
    effects: Mapping[str, str],
    votes: Sequence[Decision],
    *,
    whole: bool = False,
) -> Item:
    """One row as its reader sees it at `now`; with `whole` nothing of it is shortened. `names` has those of deciders by their
    tokens, `effects` states by id, `votes` who has approved it while it is pending."""
    approval = row.record
    if not isinstance(approval, Approval):
        return Item(row, None)
    token = decisions.token_of(reader.user)
    rule = reader.policies.rule_for(approval.capability)
    seen = canonical_json(decisions.seen_of(approval, whole=whole))
    texts = {
        "Its target": approval.target or "",
        "Its capability": approval.capability,
        "Its tenant": approval.tenant_id,
        "Who asks": approval.principal_id,
        "Its id": approval.approval_id,
    }
    return Item(
        row,
        approval,
        state=decisions.state_at(approval, now),
        own=approval.principal_id in reader.owned or approval.principal_id == token,
        only_to_see=not reader.access.may_decide(approval.tenant_id, approval.capability),
        needed=rule.needed,
        voters=[vote.actor for vote in votes],
        voted=any(vote.decided_by == token for vote in votes),
        excluded=bool(rule.excluded & reader.groups),
        decider=names.get(approval.decided_by or "", approval.decided_by or ""),
        effect_state=effects.get(approval.effect_id, ""),
        to_be_opened=decisions.must_be_opened(approval) and not whole,
        to_be_confirmed=decisions.must_be_confirmed(approval),
        warnings=[(label, said) for label, text in texts.items() for said in warnings(text)],
        seen=seen,
        digest=decisions.digest_of(seen),
    )


def names_of(tokens: Iterable[str | None]) -> dict[str, str]:
    """The names of the users that tokens stand for (see `approvals.decisions`). One query at most."""
    keys = {
        int(number)
        for token in tokens
        if token and token.startswith(decisions.DECIDED_BY)
        for number in [token.removeprefix(decisions.DECIDED_BY)]
        if number.isascii() and number.isdecimal() and len(number) < 10
    }
    users = User.objects.filter(pk__in=keys) if keys else ()
    return {decisions.token_of(user): user.get_username() for user in users}


def differences(seen: str, approval: Approval) -> list[tuple[str, str, str]]:
    """What changed between what a person saw and what stands there now: label, then, now."""
    try:
        was = parse_json(seen)
    except JsonError:
        return []
    if not isinstance(was, dict):
        return []
    now = decisions.seen_of(approval, whole=True)
    brief = decisions.seen_of(approval)
    return [
        (label, _said(was.get(name)), _said(now.get(name)))
        for name, label in wording.MEMBERS.items()
        if was.get(name) not in (now.get(name), brief.get(name))
    ]


def _said(value: Any) -> str:
    if value is None:
        return "nothing"
    if isinstance(value, dict):
        return f"{value.get('begins', '')}… ({value.get('length')} characters)"
    return value if isinstance(value, str) else str(value)
