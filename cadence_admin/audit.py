"""The audit log: who did what, as a hash chain with the code of the runs' chains.

    with transaction.atomic():
        ...  # what is done
        record(Entry("run.moved", "run", run_id, before="executing", after="paused", reason="operator-asked"))

An entry is written in the transaction of what it tells, as the last thing in it: writers take turns from there to their
commit, so the shorter that is the better. Each database that holds what people change keeps a log of its own (two, if
nifra's tables are in another one), since a transaction is of one database.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from django.conf import settings
from django.db import connections

from cadence_admin.clock import now_ms
from cadence_admin.javascript import is_safe_integer, parse_json
from cadence_admin.models import AuditEntry
from cadence_admin.origin import current_origin
from cadence_admin.visible import storable
from runs.chain import ZERO_HASH, Event, check_links, create_event

LONGEST_REASON: Final = 2_000
LONGEST_NAME: Final = 500
PAGE_SIZE: Final = 50
# Any number that no other program is likely to use: PostgreSQL's lock of the log's end.
_LOCK: Final = 0x6361_6465_6E63_6501
_ANCHOR: Final = re.compile(r"(?P<log>[a-z]+) (?P<sequence>[0-9]{1,15}) (?P<hash>[a-f0-9]{64})(?: .*)?")


@dataclass(frozen=True, slots=True)
class Entry:
    """One thing that somebody did. Without an `actor` or an `address` they are those of the current request or command."""

    action: str
    target_kind: str
    target: str
    before: Any = None
    after: Any = None
    reason: str = ""
    actor: str = ""
    address: str = ""


@dataclass(frozen=True, slots=True)
class Anchor:
    """The end of a log at some time, kept where nobody who can change the log can change it."""

    log: str
    sequence: int
    event_hash: str

    def __str__(self) -> str:
        return f"{self.log} {self.sequence} {self.event_hash}"


@dataclass(slots=True)
class Audited:
    """What verifying a log came to: how many entries were recomputed, its end, and what doesn't hold."""

    log: str
    checked: int = 0
    first: int = 1
    sequence: int = 0
    event_hash: str = ZERO_HASH
    problems: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return not self.problems


def logs() -> tuple[str, ...]:
    """The databases that keep a log, the console's own first."""
    return ("default", *(alias for alias in settings.DATABASES if alias != "default"))


def record(*entries: Entry, using: str = "default") -> None:
    """Write entries, together with what the caller's transaction does or not at all.

    Raises `RuntimeError` outside a transaction: an entry on its own would prove nothing.
    """
    if not entries:
        return
    connection = connections[using]
    if not connection.in_atomic_block:
        raise RuntimeError("an audit entry is part of the transaction that it tells of")
    if connection.vendor == "postgresql":  # SQLite has one writer anyway
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_advisory_xact_lock(%s)", [_LOCK])
    rows = AuditEntry.objects.using(using)
    sequence, prior_hash = head(using)
    now = now_ms()
    made = []
    for entry in entries:
        payload = _payload(entry, now)
        event = create_event(sequence + 1, entry.action, payload, prior_hash)
        made.append(
            AuditEntry(
                sequence=event.sequence,
                action=event.type,
                payload_json=event.payload_json,
                prior_hash=event.prior_hash,
                event_hash=event.event_hash,
                **_columns(payload),
            )
        )
        sequence, prior_hash = event.sequence, event.event_hash
    rows.bulk_create(made)


def head(using: str = "default") -> tuple[int, str]:
    """Sequence and hash of the last entry; 0 and the zero hash of an empty log."""
    rows = AuditEntry.objects.using(using).order_by("-sequence")
    return rows.values_list("sequence", "event_hash").first() or (0, ZERO_HASH)


def anchor(using: str = "default") -> Anchor:
    """The end of a log as it is now."""
    return Anchor(using, *head(using))


def parse_anchors(text: str) -> list[Anchor]:
    """Anchors as `anchor` prints them, one in a line. Raises `ValueError` for a line that is none."""
    found = []
    for line in filter(None, map(str.strip, text.splitlines())):
        match = _ANCHOR.fullmatch(line)
        if match is None:
            raise ValueError(f"not an anchor: {line[:80]!r}")
        found.append(Anchor(match["log"], int(match["sequence"]), match["hash"]))
    return found


def stream(using: str = "default", *, after: int = 0) -> Iterator[AuditEntry]:
    """The log from an entry on, a part at a time."""
    while True:
        rows = list(AuditEntry.objects.using(using).filter(sequence__gt=after).order_by("sequence")[:1_000])
        yield from rows
        if len(rows) < 1_000:
            return
        after = rows[-1].sequence


def verify(using: str = "default", *, after: int = 0, anchors: Iterable[Anchor] = ()) -> Audited:
    """Recompute a log from the stored bytes: every link, every column that repeats what is hashed, and the anchors.

    With `after`, the part behind that entry; the link to it is recomputed as well.
    """
    audited = Audited(using, first=after + 1)
    kept = {anchor.sequence: anchor.event_hash for anchor in anchors if anchor.log == using}
    before = AuditEntry.objects.using(using).filter(sequence=after).values_list("event_hash", flat=True).first()
    audited.sequence, audited.event_hash = after, before or ZERO_HASH
    if after and before is None:
        audited.problems.append(f"entry {after} is missing")
    rows = {}

    def events() -> Iterator[Event]:
        for row in stream(using, after=after):
            rows[row.sequence] = row
            yield event_of(row)

    for link in check_links(events(), after_sequence=after, after_hash=before if after else ZERO_HASH):
        event = link.event
        audited.checked += 1
        problem = "" if link.holds else "is not what was hashed, or not what followed the entry before it"
        if not link.sequence_holds:
            problem = f"stands where {link.expected_sequence} is due: something was cut out"
        elif not problem and _columns(link.payload) != columns_of(rows[event.sequence]):
            problem = "shows something else than what was hashed"
        if problem:
            audited.problems.append(f"entry {event.sequence} {problem}")
        if kept.get(event.sequence, event.event_hash) != event.event_hash:
            audited.problems.append(f"entry {event.sequence} is not the one that was anchored")
        del rows[event.sequence]
        audited.sequence, audited.event_hash = event.sequence, event.event_hash
    cut = [sequence for sequence in kept if sequence > audited.sequence]
    if cut:
        audited.problems.append(
            f"the log ends at {audited.sequence}, and was anchored at {max(cut)}: its end was cut off"
        )
    return audited


def page(
    using: str, *, actor: str = "", action: str = "", target: str = "", before: int | None = None, size: int = PAGE_SIZE
) -> list[AuditEntry]:
    """The newest entries that match, at most one more than `size`: then there are more, before the last but one."""
    rows = AuditEntry.objects.using(using).order_by("-sequence")
    wanted = {"actor": actor, "action": action, "target": target}
    rows = rows.filter(**{name: value for name, value in wanted.items() if value})
    if before is not None:
        rows = rows.filter(sequence__lt=before)
    return list(rows[: size + 1])


def holds(row: AuditEntry) -> bool:
    """Whether an entry says what was hashed; whether it follows the one before it is for `verify`."""
    (link,) = check_links([event_of(row)], after_sequence=row.sequence - 1, after_hash=None)
    return link.holds and _columns(link.payload) == columns_of(row)


def event_of(row: AuditEntry) -> Event:
    """An entry as the event that was hashed."""
    return Event(row.sequence, row.action, row.payload_json, row.prior_hash, row.event_hash)


def columns_of(row: AuditEntry) -> dict[str, Any]:
    """The columns of an entry that repeat what is hashed."""
    return {name: getattr(row, name) for name in ("happened_at", "actor", "target_kind", "target")}


def payload_of(row: AuditEntry) -> dict[str, Any]:
    """What an entry says beside its action; empty if it can't be read any more."""
    try:
        found = parse_json(row.payload_json)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _payload(entry: Entry, now: int) -> dict[str, Any]:
    origin = current_origin()
    payload = {
        "happenedAt": now,
        "actor": _short(entry.actor or origin.actor),
        "targetKind": _short(entry.target_kind),
        "target": _short(entry.target),
        "before": entry.before,
        "after": entry.after,
        "reason": storable(entry.reason)[:LONGEST_REASON],
        "address": _short(entry.address or origin.address),
        "requestId": origin.request_id,
    }
    return {name: value for name, value in payload.items() if value is not None and value != ""}


def _columns(payload: Any) -> dict[str, Any]:
    members = payload if isinstance(payload, dict) else {}
    moment = members.get("happenedAt")
    return {
        "happened_at": moment if is_safe_integer(moment) else 0,
        "actor": members.get("actor", ""),
        "target_kind": members.get("targetKind", ""),
        "target": members.get("target", ""),
    }


def _short(text: str) -> str:
    return storable(text)[:LONGEST_NAME]
