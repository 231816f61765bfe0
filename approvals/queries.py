"""What the pages ask of nifra's tables: lists in keyset pages, counts that stop early, and what belongs to one record.

Only columns that every payload can fill are read; what a record is, its payload says. Each list is made of parts, one for a
state and grant, that an index gives in order; so no page costs more when the table grows. Every function takes the access of
whoever asks: what they don't see is not there. Times are milliseconds.
"""

import hashlib
import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby, islice
from typing import Any, Final, TypeVar

from django.db import connections
from django.db.models import F, Q, QuerySet, Subquery, TextField
from django.db.models.functions import Cast, Collate

from approvals import wire
from approvals.models import Approval as ApprovalRow
from approvals.models import Decision, DurableRecord, wire_text
from approvals.models import Effect as EffectRow
from approvals.models import Saga as SagaRow
from approvals.records import APPROVAL_STATES, EFFECT_STATES, Approval, Effect, Record, RecordError, Saga
from approvals.routers import nifra_alias
from approvals.tables import LONGEST_INDEXED
from cadence_admin.access import Access
from cadence_admin.clock import now_in_statement
from cadence_admin.errors import ServiceError
from cadence_admin.visible import can_be_sent

PAGE_SIZE: Final = 50
MOST_COUNTED: Final = 100
ASIDE_SIZE: Final = 5
# No index knows the steps of sagas: of each unfinished state so many are searched.
MOST_SAGAS: Final = 100
# So old an effect or a saga that is under way needs a look.
STALE_MS: Final = 10 * 60_000

APPROVAL_VIEWS: Final = ("waiting", "approved", "denied", "consumed", "expired", "mine")
EFFECT_VIEWS: Final = ("findings", "admission", "executing", "unknown", "committed", "failed")
SAGA_VIEWS: Final = ("findings", "running", "compensating", "manual-review", "completed", "compensated")

_OPEN_EFFECTS: Final = ("admission", "executing", "unknown")
_OPEN_SAGAS: Final = ("running", "compensating", "manual-review")
_LAST: Final = "\U0010ffff"

Kind = TypeVar("Kind", Approval, Effect, Saga)


@dataclass(frozen=True, slots=True)
class Row:
    """A row of the table: its record, or why that can't be read (`problem`), and the text it was read from."""

    rowid: int
    id: str
    text: str = field(repr=False)
    record: Record | None = None
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Page:
    """One page of a list, and the key to ask for the next (None at the end)."""

    rows: list[Row]
    next_key: str | None


@dataclass(frozen=True, slots=True)
class ApprovalFilter:
    """What a list of approvals is narrowed to; an empty member doesn't narrow. `text` is an id, or what a target begins
    with; `mine` is the token of whoever asks for the view of that name."""

    view: str = "waiting"
    tenant: str = ""
    capability: str = ""
    principal: str = ""
    text: str = ""
    mine: str = ""


def list_approvals(
    wanted: ApprovalFilter, now: int, access: Access, *, after: str | None = None, size: int = PAGE_SIZE
) -> Page:
    """Approvals that match: waiting ones by soonest expiry, others by latest; those with a `text` by target.

    Raises `ServiceError` (`invalid-key`).
    """
    if wanted.text:
        return _page_by_target(wanted, now, access, after, size)
    parts = [_narrowed(part, wanted) for part in _approvals(wanted, now, access)]
    return _page(parts, "expires_at", falling=wanted.view != "waiting", after=after, size=size)


def _approvals(wanted: ApprovalFilter, now: Any, access: Access) -> list[QuerySet[Any]]:
    """The parts of a view: one for each state in it and each grant of the user, all of which an index gives in order."""
    states: list[Q]
    match wanted.view:
        case "waiting":
            states = [Q(state="pending", expires_at__gt=now)]
        case "approved":
            states = [Q(state="approved", expires_at__gt=now)]
        case "expired":
            # Also what nobody has written down yet.
            states = [Q(state=state, expires_at__lte=now) for state in ("pending", "approved")]
            states.append(Q(state="expired", expires_at__isnull=False))
        case "mine":
            states = [Q(decided_by=wanted.mine, expires_at__isnull=False)]
        case state:
            states = [Q(state=state, expires_at__isnull=False)]
    return [ApprovalRow.objects.filter(seen, state) for state in states for seen in access.conditions]


def _narrowed(rows: QuerySet[Any], wanted: ApprovalFilter) -> QuerySet[Any]:
    if wanted.tenant:
        rows = rows.filter(tenant_id=wanted.tenant)
    if wanted.capability:
        rows = rows.filter(capability=wanted.capability)
    if wanted.principal:
        rows = rows.filter(principal_id=wanted.principal)
    return rows


def list_effects(view: str, now: int, access: Access, *, after: str | None = None, size: int = PAGE_SIZE) -> Page:
    """Effects: what needs a look (the longest stuck first), or one state (the latest first).

    Raises `ServiceError` (`invalid-key`).
    """
    rows = [EffectRow.objects.filter(seen) for seen in access.conditions]
    if view == "findings":
        old = now - STALE_MS
        parts = [part.filter(state=state, updated_at__lte=old) for state in _OPEN_EFFECTS for part in rows]
        return _page(parts, "updated_at", falling=False, after=after, size=size)
    return _page([part.filter(state=view) for part in rows], "updated_at", falling=True, after=after, size=size)


def list_sagas(view: str, now: int, access: Access, *, after: str | None = None, size: int = PAGE_SIZE) -> Page:
    """Sagas: what needs a look (the longest stuck first; manual-review at once), or one state (the latest first).

    Raises `ServiceError` (`invalid-key`).
    """
    rows = _sagas(access)
    if view == "findings":
        parts = [rows.filter(state=state, updated_at__lte=now - STALE_MS) for state in _OPEN_SAGAS[:2]]
        parts.append(rows.filter(state="manual-review"))
        return _page(parts, "updated_at", falling=False, after=after, size=size)
    return _page([rows.filter(state=view)], "updated_at", falling=True, after=after, size=size)


def _sagas(access: Access) -> QuerySet[Any]:
    """A saga is of no tenant."""
    return SagaRow.objects.all() if access.is_whole else SagaRow.objects.none()


def _page(parts: Sequence[QuerySet[Any]], column: str, *, falling: bool, after: str | None, size: int) -> Page:
    """The next `size` rows of all parts, in the order of a column of milliseconds and, where that is the same, of rowid."""
    sign, beyond = ("-", "lt") if falling else ("", "gt")
    condition = Q()
    if after is not None:
        moment, _, last = after.partition(".")
        given = (_number(moment), _number(last))
        condition = Q(**{f"{column}__{beyond}": given[0]}) | Q(**{column: given[0], f"rowid__{beyond}": given[1]})
        # The bound once more, alone: that is where an index starts.
        condition &= Q(**{f"{column}__{beyond}e": given[0]})
    order = (f"{sign}{column}", f"{sign}rowid")
    found = [
        list(rows.filter(condition).order_by(*order).only("id", "kind", "payload", column)[: size + 1])
        for rows in parts
    ]
    merged = heapq.merge(*found, key=lambda row: (getattr(row, column), row.rowid), reverse=falling)
    # Two grants may cover one row.
    shown = [next(same) for _, same in islice(groupby(merged, key=lambda row: row.rowid), size + 1)]
    key = f"{getattr(shown[size - 1], column)}.{shown[size - 1].rowid}" if len(shown) > size else None
    return Page([read_row(row) for row in shown[:size]], key)


def _page_by_target(wanted: ApprovalFilter, now: int, access: Access, after: str | None, size: int) -> Page:
    """The next `size` rows whose target begins with `text`, by target; the first page has those on top whose id, or whose
    effect's id, it is, whatever their state."""
    text = wanted.text
    parts = [_narrowed(part, wanted) for part in _approvals(wanted, now, access)]
    rows: list[DurableRecord] = []
    condition = Q()
    if after is None:
        exact = _narrowed(ApprovalRow.objects.filter(access.condition, Q(id=text) | Q(effect_id=text)), wanted)
        rows += exact.only("id", "kind", "payload")[:ASIDE_SIZE]
    else:
        last = _number(after)
        # Where that row is, the database knows: its target may be something that can't be sent.
        there = Subquery(
            DurableRecord.objects.filter(rowid=last).annotate(at=_by_code_points("target")).values("at")[:1]
        )
        condition = Q(at__gte=there) & (Q(at__gt=there) | Q(rowid__gt=last))
    by_rowid: dict[int, DurableRecord] = {}
    for part in parts:
        begins = part.alias(at=_by_code_points("target")).filter(condition, at__gte=text, at__lt=text + _LAST)
        ordered = begins.order_by("at", "rowid").only("id", "kind", "payload")[: size + 1]
        by_rowid |= {row.rowid: row for row in ordered}
    found = list(by_rowid.values())
    if len(parts) > 1:
        # Of several parts the targets are compared here, where each is known from its payload.
        found.sort(key=lambda row: (_target(row), row.rowid))
    key = str(found[size - 1].rowid) if len(found) > size else None
    known = {row.rowid for row in rows}
    return Page([read_row(row) for row in [*rows, *(row for row in found[:size] if row.rowid not in known)]], key)


def _target(row: DurableRecord) -> str:
    record = read_row(row).record
    return (record.target or "")[:LONGEST_INDEXED] if isinstance(record, Approval | Effect) else ""


def _by_code_points(column: str) -> Any:
    """A column in the order of its index."""
    return F(column) if connections[nifra_alias()].vendor == "sqlite" else Collate(column, "C")


def _number(text: str) -> int:
    """A number of a key. Raises `ServiceError` (`invalid-key`)."""
    if not (text.isascii() and text.isdecimal() and len(text) < 19):
        raise ServiceError("invalid-key", "That page was never given out.")
    return int(text)


def read_row(row: DurableRecord) -> Row:
    """A row with its record, or with why that can't be read."""
    shown = Row(row.rowid, row.id, wire_text(row.payload))
    try:
        record = row.record
        if record.id != row.id:
            return replace(shown, problem=f"its payload is that of {record.id}")
        return replace(shown, record=record)
    except (wire.WireError, RecordError) as error:
        return replace(shown, problem=str(error))


def find(kind: str, id: str, access: Access) -> Row:
    """One record by its id. Raises `ServiceError` (`<kind>-not-found`): it isn't there, or isn't for the user to know."""
    seen = access.condition if kind != "saga" or access.is_whole else Q(pk__in=())
    row = DurableRecord.objects.filter(seen, kind=kind, id=id).only("id", "kind", "payload").first()
    if row is None:
        raise ServiceError(f"{kind}-not-found", f"There is no such {kind}.")
    return read_row(row)


@dataclass(frozen=True, slots=True)
class Waiting:
    """What waits now: up to `MOST_COUNTED` ids by soonest expiry, whether there are more, and a tag that changes with it."""

    ids: tuple[str, ...]
    more: bool
    tag: str


def waiting(wanted: ApprovalFilter, access: Access) -> Waiting:
    """What a list of waiting approvals is narrowed to, but for its text. One query, by the index of the inbox."""
    rows = ApprovalRow.objects.filter(access.condition, state="pending", expires_at__gt=now_in_statement(nifra_alias()))
    narrowed = _narrowed(rows, wanted).order_by("expires_at", "rowid")
    found = list(narrowed.values_list("id", "version")[: MOST_COUNTED + 1])
    said = "\n".join(f"{version} {id}" for id, version in found)
    tag = hashlib.sha256(said.encode("utf-8", "surrogatepass")).hexdigest()[:24]
    return Waiting(tuple(id for id, _ in found[:MOST_COUNTED]), len(found) > MOST_COUNTED, tag)


def counts(views: Iterable[str], now: int, mine: str, access: Access) -> dict[str, int]:
    """How many approvals each view has, counted no further than `MOST_COUNTED` + 1. One query."""
    limit = MOST_COUNTED + 1
    found = list(views)
    filters = [(view, ApprovalFilter(view=view, mine=mine)) for view in found]
    parts = [(view, part) for view, wanted in filters for part in _approvals(wanted, now, access)]
    rowids: dict[str, set[int]] = {view: set() for view in found}
    for index, rowid in _at_once([part.order_by()[:limit] for _, part in parts]):
        rowids[parts[index][0]].add(rowid)  # two grants may cover one row
    return {view: min(limit, len(of_view)) for view, of_view in rowids.items()}


def _at_once(parts: Sequence[QuerySet[Any]]) -> list[tuple[int, int]]:
    """The rowids of several bounded queries, each with the index of its query. One statement: an OR of them
    would read the whole table on PostgreSQL, and SQLite takes no UNION of queries with an order."""
    if not parts:
        return []
    alias = nifra_alias()
    compiled = [part.values("rowid").query.get_compiler(using=alias).as_sql() for part in parts]
    # Every value is a parameter.
    selects = [
        f"SELECT {index}, rowid FROM ({sql}) AS part_{index}"  # noqa: S608
        for index, (sql, _) in enumerate(compiled)
    ]
    with connections[alias].cursor() as cursor:
        cursor.execute(" UNION ALL ".join(selects), [value for _, params in compiled for value in params])
        return [(int(index), int(value)) for index, value in cursor.fetchall()]


@dataclass(frozen=True, slots=True)
class About:
    """What belongs to an approval: the effect that was stopped, later attempts at the same, sagas under way with that effect
    as a step, decisions on this record, and other approvals of the same capability and target."""

    effect: Effect | None
    attempts: list[Effect]
    sagas: list[Saga]
    decisions: list[Decision]
    alike: list[Approval]


def about(approval: Approval, rowid: int, access: Access) -> About:
    """Eight queries, each by an index or bounded."""
    stopped = approval.effect_id if can_be_sent(approval.effect_id) else ""
    effect = next(iter(_records(EffectRow.objects.filter(access.condition, id=stopped), Effect)), None)
    attempts = [
        attempt
        for attempt in _alike(EffectRow.objects.exclude(id=stopped), EFFECT_STATES, approval, Effect)
        if (attempt.digest, attempt.tenant_id, attempt.principal_id)
        == (approval.digest, approval.tenant_id, approval.principal_id)
    ]
    alike = _alike(ApprovalRow.objects.exclude(rowid=rowid), APPROVAL_STATES, approval, Approval)
    return About(effect, attempts, sagas_with(stopped, access), decisions_on("approval", approval.id), alike)


def _alike(rows: QuerySet[Any], states: Sequence[str], approval: Approval, kind: type[Kind]) -> list[Kind]:
    """The latest records of the same capability and target in the same tenant: whoever sees one sees them all."""
    target = (approval.target or "")[:LONGEST_INDEXED]
    if not target or not all(map(can_be_sent, (target, approval.capability, approval.tenant_id))):
        return []
    same = rows.alias(at=_by_code_points("target")).filter(
        at=target, capability=approval.capability, tenant_id=approval.tenant_id
    )
    latest = _at_once([same.filter(state=state).order_by("-rowid")[:ASIDE_SIZE] for state in states])
    newest = sorted((rowid for _, rowid in latest), reverse=True)[:ASIDE_SIZE]
    found = _records(rows.filter(rowid__in=newest).order_by("-rowid"), kind)
    return [record for record in found if getattr(record, "target", None) == approval.target]


def sagas_with(effect_id: str, access: Access) -> list[Saga]:
    """Sagas under way with a step of that effect, among the `MOST_SAGAS` that changed last in each state."""
    if not effect_id or not access.is_whole:
        return []
    states = [SagaRow.objects.filter(state=state).order_by("-updated_at")[:MOST_SAGAS] for state in _OPEN_SAGAS]
    newest = [rowid for _, rowid in _at_once(states)]
    rows = (
        SagaRow.objects.filter(rowid__in=newest)
        .alias(text=Cast("payload", TextField()))
        .filter(text__contains=effect_id)
    )
    return [
        saga
        for saga in _records(rows, Saga)
        if any(effect_id in (step.effect_id, step.compensation_effect_id) for step in saga.steps)
    ]


def approvals_of_effects(effect_ids: Sequence[str], access: Access) -> list[Approval]:
    """The approvals that were asked for when those effects were stopped, the latest first."""
    rows = ApprovalRow.objects.filter(access.condition, effect_id__in=effect_ids)
    return _records(rows.order_by("-rowid")[:ASIDE_SIZE], Approval)


def effect_states(effect_ids: Iterable[str], access: Access) -> dict[str, str]:
    """The states of effects by id, of those that are in the journal. One query."""
    ids = [id for id in effect_ids if can_be_sent(id)]
    rows = EffectRow.objects.filter(access.condition, id__in=ids)
    return dict(rows.values_list("id", "state")) if ids else {}


def decisions_on(kind: str, id: str) -> list[Decision]:
    """What people did to a record that the user sees, the latest first."""
    return list(Decision.objects.filter(kind=kind, record_id=id)[:PAGE_SIZE])


def _records(rows: QuerySet[Any], kind: type[Kind]) -> list[Kind]:
    found = [read_row(row).record for row in rows.only("id", "kind", "payload")]
    return [record for record in found if isinstance(record, kind)]
