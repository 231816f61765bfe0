"""What joins a run and the approvals of its operations: an operation's id is the id of the effect that was stopped."""

from typing import Any

from django import template

from approvals.queries import approvals_of_effects
from cadence_admin.access import access_of
from cadence_admin.clock import database_now
from cadence_admin.visible import can_be_sent
from runs.models import Run
from runs.queries import operation_ids, runs_of_operation
from runs.scope import scope_of

register = template.Library()


@register.inclusion_tag("components/runs_of_operation.html", takes_context=True, name="runs_of_operation")
def show_runs(context: template.Context, operation_id: str) -> dict[str, Any]:
    """The runs that have an operation of that id, of those that the user sees. A fixed number of queries."""
    user = context["request"].user
    if not user.has_perm("runs.view_run") or not can_be_sent(operation_id):
        return {"operations": []}
    return {"operations": runs_of_operation(operation_id, scope_of(user))}


@register.inclusion_tag("components/approvals_of_run.html", takes_context=True, name="approvals_of_run")
def show_approvals(context: template.Context, run: Run) -> dict[str, Any]:
    """The latest approvals that operations of a run waited for, of those that the user sees. A fixed number of queries."""
    user = context["request"].user
    if not user.has_perm("approvals.view_approval"):
        return {"approvals": []}
    approvals = approvals_of_effects(operation_ids(run), access_of(user))
    return {"approvals": approvals, "now": database_now("default") if approvals else 0}
