"""Four eyes: how many must approve, who may not, and what is whose own."""

from collections.abc import Iterable
from dataclasses import dataclass

from django.contrib.auth.models import User

from cadence_admin.models import ApprovalPolicy, OwnedPrincipal
from cadence_admin.patterns import matches


@dataclass(frozen=True, slots=True)
class Rule:
    """What a policy asks: so many different people, none of them in these groups (by primary key)."""

    needed: int = 1
    excluded: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Policies:
    """All policies, as they stand."""

    rules: tuple[tuple[str, Rule], ...]

    def rule_for(self, capability: str) -> Rule:
        """The strictest of those that match: the most people, and everybody excluded that one of them excludes."""
        found = [rule for pattern, rule in self.rules if matches(pattern, capability)]
        return Rule(
            max((rule.needed for rule in found), default=1),
            frozenset().union(*(rule.excluded for rule in found)),
        )


def policies() -> Policies:
    """As stored. Two queries at most."""
    rows = ApprovalPolicy.objects.prefetch_related("excluded")
    return Policies(
        tuple((row.capability, Rule(row.needed, frozenset(group.pk for group in row.excluded.all()))) for row in rows)
    )


def groups_of(user: User) -> frozenset[int]:
    """Primary keys of a user's groups. One query."""
    return frozenset(user.groups.values_list("pk", flat=True))


def owned_by(user: User) -> frozenset[str]:
    """The principals that are a user's own, the name of the account among them. One query."""
    owned: Iterable[str] = OwnedPrincipal.objects.filter(user=user).values_list("principal", flat=True)
    return frozenset({user.get_username(), *owned})
