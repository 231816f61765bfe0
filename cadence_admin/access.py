"""What a user may see and decide: the one place that says so, for queries and for single records alike.

Nobody sees anything without a grant; superusers see everything. What has no tenant (sagas, workers, effects without one) is
for those who see all tenants.
"""

from dataclasses import dataclass
from typing import Final

from django.contrib.auth.models import User
from django.db.models import Q

from cadence_admin.models import RootAccess, TenantAccess
from cadence_admin.patterns import matches


@dataclass(frozen=True, slots=True)
class Seen:
    """One grant: the tenants and capabilities it is about."""

    tenant: str
    capability: str
    may_decide: bool

    @property
    def condition(self) -> Q:
        """The same as `covers`, for the columns tenant_id and capability."""
        return _condition("tenant_id", self.tenant) & _condition("capability", self.capability)

    def covers(self, tenant_id: str | None, capability: str) -> bool:
        """Whether it is about such a record."""
        if self.tenant == self.capability == "*":
            return True
        return tenant_id is not None and matches(self.tenant, tenant_id) and matches(self.capability, capability)


@dataclass(frozen=True, slots=True)
class Access:
    """What somebody sees of approvals, effects and sagas."""

    grants: tuple[Seen, ...]

    @property
    def is_whole(self) -> bool:
        """Whether they see everything, also what has no tenant."""
        return any(grant.tenant == grant.capability == "*" for grant in self.grants)

    @property
    def conditions(self) -> list[Q]:
        """Conditions of which a record meets at least one; none at all for somebody who sees nothing."""
        return [Q()] if self.is_whole else [grant.condition for grant in self.grants]

    @property
    def condition(self) -> Q:
        """All of them as one."""
        found = Q(pk__in=())
        for condition in self.conditions:
            found |= condition
        return Q() if self.is_whole else found

    def may_see(self, tenant_id: str | None, capability: str) -> bool:
        """Whether somebody may know that such a record is there."""
        return any(grant.covers(tenant_id, capability) for grant in self.grants)

    def may_decide(self, tenant_id: str | None, capability: str) -> bool:
        """Whether somebody may decide it, as far as tenants go."""
        return any(grant.may_decide and grant.covers(tenant_id, capability) for grant in self.grants)


EVERYTHING: Final = Access((Seen("*", "*", True),))


def access_of(user: User) -> Access:
    """The access of a user, by grants of their own and of their groups. One query."""
    if user.is_superuser and user.is_active:
        return EVERYTHING
    rows = TenantAccess.objects.filter(_held_by(user)).values_list("tenant", "capability", "may_decide")
    return Access(tuple(Seen(*row) for row in dict.fromkeys(rows)))


@dataclass(frozen=True, slots=True)
class Roots:
    """Patterns of the projects that somebody sees, and of those they may change."""

    seen: tuple[str, ...]
    changeable: tuple[str, ...]

    def covers(self, name: str, root_hash: str, *, change: bool = False) -> bool:
        """Whether a project is one of them."""
        patterns = self.changeable if change else self.seen
        return any(matches(pattern, name) or matches(pattern, root_hash) for pattern in patterns)


ALL_ROOTS: Final = Roots(("*",), ("*",))


def roots_of(user: User) -> Roots:
    """The projects of a user. One query."""
    if user.is_superuser and user.is_active:
        return ALL_ROOTS
    rows = list(RootAccess.objects.filter(_held_by(user)).values_list("root", "may_change"))
    return Roots(tuple(root for root, _ in rows), tuple(root for root, may_change in rows if may_change))


def sees_everything(user: User) -> bool:
    """Whether somebody sees all tenants and all projects, as the audit log does."""
    return access_of(user).is_whole and "*" in roots_of(user).seen


def _held_by(user: User) -> Q:
    return Q(user=user.pk) | Q(group__in=user.groups.all())


def _condition(column: str, pattern: str) -> Q:
    if pattern == "*":
        return Q()
    return Q(**{f"{column}__pattern" if "*" in pattern else column: pattern})
