"""Which runs a user sees: those of the projects that their access names."""

from dataclasses import dataclass
from typing import Final

from django.contrib.auth.models import User
from django.db.models import Q

from cadence_admin.access import roots_of
from runs.models import StateRoot


@dataclass(frozen=True, slots=True)
class Scope:
    """Primary keys of the state roots that somebody sees, and of those they may change; None stands for all."""

    seen: frozenset[int] | None
    changeable: frozenset[int] | None

    def of(self, path: str) -> Q:
        """What somebody sees, for rows whose state root is at `path`."""
        return Q() if self.seen is None else Q(**{f"{path}__in": self.seen})

    def may_change(self, root_id: int) -> bool:
        """Whether somebody may change the runs of a state root."""
        return self.changeable is None or root_id in self.changeable


EVERYTHING: Final = Scope(None, None)


def scope_of(user: User) -> Scope:
    """The scope of a user. One query, and one more unless they see all projects."""
    roots = roots_of(user)
    if "*" in roots.seen and "*" in roots.changeable:
        return EVERYTHING
    known = list(StateRoot.objects.values_list("pk", "name", "root_hash"))
    return Scope(
        frozenset(pk for pk, name, root_hash in known if roots.covers(name, root_hash)),
        frozenset(pk for pk, name, root_hash in known if roots.covers(name, root_hash, change=True)),
    )
