"""Approvals in marks, for their pages."""

from django import template
from django.utils.safestring import SafeString

from approvals import decisions
from approvals.records import Approval
from cadence_admin.templatetags.console import shown, state

register = template.Library()
register.filter("answer_on", decisions.answer_on)


@register.simple_tag
def state_at(approval: Approval, now: int) -> SafeString:
    """The chip of an approval's state as it is at `now`."""
    return state(decisions.state_at(approval, now))


@register.simple_tag
def decider(names: dict[str, str], token: str) -> SafeString:
    """Who decided: the name of a user of this console, or what another program wrote."""
    return shown(names.get(token, token))
