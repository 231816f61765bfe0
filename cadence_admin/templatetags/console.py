"""What every page draws the same way: moments, hashes, states."""

from datetime import UTC, datetime
from typing import Any, Final

from django import template
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

from cadence_admin.clock import now_ms
from cadence_admin.javascript import canonical_json
from cadence_admin.visible import GLANCE, Part, Visible, plain, visible, visible_lines
from cadence_admin.wording import ago, laid_out, time_left, urgency

register = template.Library()
register.filter("laid_out", laid_out)
register.filter("plain", plain)

# state -> (tone, icon); the word itself is always shown beside them.
_STATES: Final = {
    "created": ("off", "dot"),
    "validating-delivery": ("run", "play"),
    "ready": ("off", "dot"),
    "queued": ("off", "dot"),
    "connecting": ("run", "play"),
    "running": ("run", "play"),
    "validating": ("run", "play"),
    "verifying": ("run", "play"),
    "retryable": ("wait", "again"),
    "paused": ("wait", "pause"),
    "approval-needed": ("wait", "hand"),
    "change-verifying": ("run", "play"),
    "ready-to-apply": ("run", "dot"),
    "applying": ("run", "play"),
    "recovering": ("wait", "again"),
    "completed": ("ok", "tick"),
    "discarded": ("off", "minus"),
    "rejected": ("bad", "cross"),
    "committed": ("ok", "tick"),
    "interrupted": ("wait", "minus"),
    "pending": ("wait", "hand"),
    "approved": ("ok", "tick"),
    "denied": ("bad", "cross"),
    "consumed": ("ok", "tick"),
    "expired": ("off", "clock"),
    "admission": ("wait", "dot"),
    "executing": ("run", "play"),
    "unknown": ("bad", "unseen"),
    "failed": ("bad", "cross"),
    "ambiguous": ("bad", "unseen"),
    "compensating": ("wait", "again"),
    "compensated": ("off", "minus"),
    "compensation-failed": ("bad", "cross"),
    "manual-review": ("bad", "hand"),
    "verified": ("ok", "tick"),
    "phase-verified": ("ok", "tick"),
    "repairable": ("wait", "again"),
    "phase-running": ("run", "play"),
}
_OTHER: Final = ("off", "dot")
_LAST_MS: Final = int(datetime(9999, 12, 31, tzinfo=UTC).timestamp() * 1000)


@register.filter
def lookup(values: dict[str, Any], key: str) -> Any:
    """A member of a dictionary by a name that the template has."""
    return values.get(key, "")


@register.filter
def as_json(value: Any) -> str:
    """A value in one line, as it was hashed; a text stays as it is."""
    return value if isinstance(value, str) else canonical_json(value)


@register.simple_tag
def icon(name: str) -> SafeString:
    """One symbol of the sprite in the base page."""
    return format_html('<svg class="icon" aria-hidden="true"><use href="#i-{}"/></svg>', name)


@register.simple_tag
def chip(tone: str, symbol: str, word: str) -> SafeString:
    """A state: symbol, word and colour, never colour alone."""
    return format_html('<span class="state {}">{}{}</span>', tone, icon(symbol), word)


@register.simple_tag
def state(name: str) -> SafeString:
    """The chip of a state: of a run, a task, an operation, an effect, an approval, a saga or a step."""
    tone, symbol = _STATES.get(name, _OTHER)
    return chip(tone, symbol, name.replace("-", " "))


@register.simple_tag
def when(milliseconds: int | None, now: int | None = None) -> SafeString:
    """A moment: relative in the text, exact (UTC; with JavaScript local too) at hand. Seen from `now` (milliseconds) where
    another clock than this process's decides."""
    if milliseconds is None:
        return SafeString("never")
    if not 0 <= milliseconds <= _LAST_MS:
        return format_html("<span>{} ms</span>", milliseconds)
    exact = datetime.fromtimestamp(milliseconds / 1000, UTC)
    return format_html(
        '<time datetime="{}" title="{} UTC">{}</time>',
        exact.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        exact.strftime("%Y-%m-%d %H:%M:%S"),
        ago(milliseconds, now_ms() if now is None else now),
    )


@register.simple_tag
def exactly(milliseconds: int, now: int | None = None) -> SafeString:
    """A moment in full: relative, UTC, and with JavaScript local."""
    if not 0 <= milliseconds <= _LAST_MS:
        return when(milliseconds, now)
    utc = datetime.fromtimestamp(milliseconds / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")
    return format_html(
        '{} <span class="exact">{} UTC</span> <span class="exact" data-local-time="{}" hidden></span>',
        when(milliseconds, now),
        utc,
        milliseconds,
    )


@register.simple_tag
def left(expires_at: int, now: int) -> SafeString:
    """The time that is left; with JavaScript it counts down by itself."""
    remaining = expires_at - now
    return format_html(
        '<span class="state {}" data-expires="{}">{}<span>{}</span></span>',
        urgency(remaining),
        expires_at,
        icon("clock"),
        time_left(remaining),
    )


@register.simple_tag
def shown(text: str | None, limit: int | None = GLANCE) -> SafeString:
    """A text from elsewhere, apart from what is around it: nothing in it is hidden or changes the order of other text."""
    found = visible(text or "", limit)
    more = format_html('<span class="odd">and {} characters more</span>', f"{found.hidden:,}") if found.hidden else ""
    return format_html("<bdi>{}</bdi>{}", _drawn(found), more)


@register.simple_tag
def shown_lines(text: str) -> SafeString:
    """A text in lines, likewise."""
    return format_html("<bdi>{}</bdi>", _drawn(visible_lines(text)))


def _drawn(found: Visible) -> SafeString:
    return format_html_join("", "{}", ((_part(part),) for part in found.parts))


def _part(part: Part) -> str | SafeString:
    return format_html('<span class="odd" title="{}">{}</span>', part.mark, part.text) if part.mark else part.text


@register.simple_tag
def swatch(value: str) -> SafeString:
    """A square whose colour is derived from the hash, so that a broken link is seen before it is read."""
    try:
        hue, saturation, light = int(value[:3], 16) % 360, 30 + int(value[3:5], 16) % 45, 38 + int(value[5:7], 16) % 30
    except ValueError:
        hue, saturation, light = 0, 0, 50
    return format_html(
        '<svg class="swatch" viewBox="0 0 1 1" aria-hidden="true">'
        '<rect width="1" height="1" fill="hsl({} {}% {}%)"/></svg>',
        hue,
        saturation,
        light,
    )


@register.simple_tag
def short_hash(value: str | None, label: str = "hash") -> SafeString:
    """A hash: square and first ten digits, the whole one in the title and, with JavaScript, copied by a click."""
    if not value:
        return SafeString('<span class="sub">none</span>')
    return format_html(
        '<button type="button" class="hash" data-copy="{}" title="{}" aria-label="{} {}, copy">{}{}</button>',
        value,
        value,
        label,
        value[:10],
        swatch(value),
        value[:10],
    )


@register.simple_tag(takes_context=True)
def query_with(context: template.Context, **changes: Any) -> str:
    """The query string of this page with some members set, or dropped where None."""
    parameters = context["request"].GET.copy()
    for name, value in changes.items():
        if value is None:
            parameters.pop(name, None)
        else:
            parameters[name] = str(value)
    return f"?{parameters.urlencode()}"
