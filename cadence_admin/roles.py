"""The roles of the console: groups of permissions, from this one table. `migrate` makes them, and makes them so again."""

from typing import Any, Final

from django.apps import apps as installed
from django.db import DEFAULT_DB_ALIAS, transaction
from django.db.models import Value
from django.db.models.functions import Concat

from cadence_admin.audit import Entry, record

LOOK: Final = (
    "runs.view_run",
    "runs.view_operation",
    "approvals.view_approval",
    "approvals.view_effect",
    "approvals.view_saga",
)
# The tables of the admin beside those, which all of its users see.
TABLES: Final = (
    "cadence_admin.use_admin",
    "runs.view_stateroot",
    "runs.view_event",
    "runs.view_leaseevent",
    "runs.view_deliverybinding",
    "runs.view_task",
    "runs.view_routehealth",
    "runs.view_artifact",
    "runs.view_workspacerevision",
    "runs.view_applytransaction",
    "runs.view_bootstraphandoff",
    "runs.view_chainanchor",
    "runs.view_divergence",
    "approvals.view_reconciliationlease",
    "approvals.view_decision",
)
ROLES: Final = {
    "viewer": LOOK,
    "approver": (*LOOK, "approvals.decide_approval"),
    "operator": (
        *LOOK,
        *TABLES,
        "cadence_admin.view_auditentry",
        "approvals.decide_approval",
        "approvals.resolve_record",
        "runs.reclaim_operation",
        "runs.move_run",
        "runs.change_stateroot",
    ),
    "auditor": (*LOOK, *TABLES, "cadence_admin.view_auditentry"),
}


def ensure_roles(using: str, apps: Any = installed, **_: Any) -> None:
    """Make the groups, each with exactly its permissions. Called when `migrate` is through with the last app."""
    if using != DEFAULT_DB_ALIAS:
        return
    try:
        Group, Permission = apps.get_model("auth", "Group"), apps.get_model("auth", "Permission")  # noqa: N806
        apps.get_model("cadence_admin", "AuditEntry")
    except LookupError:  # only a part was migrated, and not that one
        return
    named = Permission.objects.annotate(name_of=Concat("content_type__app_label", Value("."), "codename"))
    wanted = {name for permissions in ROLES.values() for name in permissions}
    found = dict(named.filter(name_of__in=wanted).values_list("name_of", "pk"))
    for role, permissions in ROLES.items():
        with transaction.atomic():
            group, made = Group.objects.get_or_create(name=role)
            had = set() if made else set(group.permissions.values_list("pk", flat=True))
            group.permissions.set([found[name] for name in permissions])
            if not made and had != {found[name] for name in permissions}:
                record(Entry("group.made-so-again", "group", role, after=list(permissions), actor="manage.py migrate"))
