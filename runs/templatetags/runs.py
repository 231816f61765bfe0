"""Runs in words and marks, for their pages."""

from django import template
from django.utils.safestring import SafeString

from cadence_admin.javascript import JsonError, parse_json
from cadence_admin.templatetags.console import chip
from runs import wording
from runs.models import Run
from runs.queries import ChainRow
from runs.verification import OK

register = template.Library()

register.filter("stage", wording.stage)


@register.simple_tag
def integrity(run: Run) -> SafeString:
    """Whether the run's history can be trusted, as a chip."""
    if run.diverged_sequence is not None:
        return chip("bad", "split", "diverged")
    if run.verdict == OK:
        return chip("ok", "tick", "verified")
    if run.verdict:
        return chip("bad", "broken", "broken")
    return chip("off", "dot", "not verified")


@register.simple_tag
def event_sentence(row: ChainRow) -> SafeString:
    """What the event of a chain row did."""
    return wording.event(row.event.type, row.link.payload if row.link else None)


@register.simple_tag
def stored_sentence(type: str, payload_json: str) -> SafeString:
    """What a stored event did, from its text."""
    try:
        return wording.event(type, parse_json(payload_json))
    except JsonError:
        return wording.event(type, None)
