"""What joins a run and the approvals of its operations: an operation's id is the id of the effect that was stopped."""

from typing import Any

from django import template

from approvals.queries import approvals_of_effects
from cadence_admin.clock import database_now
from cadence_admin.visible import can_be_sent
from runs.models import Run
from runs.queries import operation_ids, runs_of_operation

register = template.Library()


@register.inclusion_tag("components/runs_of_operation.html", name="runs_of_operation")
def show_runs(operation_id: str) -> dict[str, Any]:
    """The runs that have an operation of that id. One query."""
    return {"operations": runs_of_operation(operation_id) if can_be_sent(operation_id) else []}


@register.inclusion_tag("components/approvals_of_run.html", name="approvals_of_run")
def show_approvals(run: Run) -> dict[str, Any]:
    """The latest approvals that operations of a run waited for. Two queries, or three where there are any."""
    approvals = approvals_of_effects(operation_ids(run))
    return {"approvals": approvals, "now": database_now("default") if approvals else 0}
