"""What the pages ask of the database: filtered lists in keyset pages, and windows of a chain."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from django.db.models import Exists, Model, OuterRef, Q, QuerySet
from django.db.models.functions import Left, Length

from cadence_admin.errors import ServiceError
from runs.chain import Event as ChainEvent
from runs.chain import Link, check_links
from runs.leases import ran_out
from runs.models import BROKEN, PRESENT, Event, LeaseEvent, Operation, Run, StateRoot
from runs.scope import Scope

PAGE_SIZE: Final = 50
CHAIN_PAGE_SIZE: Final = 50
MAX_ROOTS: Final = 500
# Of a larger payload only the beginning is read, so the page can't recompute its hash; verifying the run does.
PAYLOAD_LIMIT: Final = 20_000


@dataclass(frozen=True, slots=True)
class RunFilter:
    """What a list of runs is narrowed to; an empty member doesn't narrow."""

    state: str = ""
    stage: str = ""
    root_id: int | None = None
    change: str = ""
    broken: bool = False
    expired: bool = False


Row = TypeVar("Row", bound=Model)


@dataclass(frozen=True, slots=True)
class Page(Generic[Row]):
    """One page of a list, and the key to ask for the next (None at the end)."""

    items: list[Row]
    next_key: int | None


@dataclass(frozen=True, slots=True)
class ChainRow:
    """One event of a chain page, newest first: what is stored, and what recomputing it on this page gave.

    `link` is None for a payload above `PAYLOAD_LIMIT`. `missing` counts the events that are missing right before it.
    """

    event: ChainEvent
    first_seen_at: int
    size: int
    link: Link | None
    missing: int

    @property
    def missing_from(self) -> int:
        return self.event.sequence - self.missing

    @property
    def missing_to(self) -> int:
        return self.event.sequence - 1


@dataclass(frozen=True, slots=True)
class ChainPage:
    """A window of a chain, newest first, and the sequences at which the windows beside it end."""

    rows: list[ChainRow]
    newer: int | None
    older: int | None


def expired_leases(now: int) -> QuerySet[Operation]:
    """Operations that are marked running under a lease that ran out before `now` (milliseconds), or has no end."""
    return Operation.objects.filter(PRESENT, ran_out(now), state="running")


LEASE_VIEWS: Final = ("expired", "expiring", "live")
EXPIRING_MS: Final = 60_000
MAX_ENDLESS: Final = 20


@dataclass(frozen=True, slots=True)
class LeasePage:
    """One page of leases, the one that ends first at the top, and the key of the next (None at the end)."""

    rows: list[Operation]
    next_key: str | None


def list_leases(
    view: str, now: int, scope: Scope, *, root_id: int | None = None, after: str | None = None
) -> LeasePage:
    """Running operations whose lease is expired, ends within a minute, or is live; `after` is a `next_key`.

    Raises `ServiceError` (`invalid-key`).
    """
    running = Operation.objects.filter(scope.of("run__state_root"), PRESENT, state="running")
    if root_id is not None:
        running = running.filter(run__state_root_id=root_id)
    rows = running.filter(lease_expires_at__isnull=False)
    match view:
        case "expired":
            rows = rows.filter(lease_expires_at__lt=now)
        case "expiring":
            rows = rows.filter(lease_expires_at__gte=now, lease_expires_at__lt=now + EXPIRING_MS)
        case _:
            rows = rows.filter(lease_expires_at__gte=now)
    if after is not None:
        moment, _, key = after.partition(".")
        if not (moment.lstrip("-").isdecimal() and key.isdecimal() and len(after) < 40 and after.isascii()):
            raise ServiceError("invalid-key", "That page was never given out.")
        rows = rows.filter(Q(lease_expires_at__gt=int(moment)) | Q(lease_expires_at=int(moment), pk__gt=int(key)))
    found = list(_with_run(rows).order_by("lease_expires_at", "pk")[: PAGE_SIZE + 1])
    more = len(found) > PAGE_SIZE
    last = found[PAGE_SIZE - 1] if more else None
    endless: list[Operation] = []
    if view == "expired" and after is None:
        # They end never and sort nowhere: the first page has them on top.
        endless = list(_with_run(running.filter(lease_expires_at__isnull=True))[:MAX_ENDLESS])
    return LeasePage(endless + found[:PAGE_SIZE], f"{last.lease_expires_at}.{last.pk}" if last else None)


def operations_by_pk(pks: list[int], scope: Scope) -> list[Operation]:
    """Operations by primary key, with their runs."""
    rows = Operation.objects.filter(scope.of("run__state_root"), pk__in=pks)
    return list(_with_run(rows).order_by("lease_expires_at", "pk"))


def _with_run(operations: QuerySet[Operation]) -> QuerySet[Operation]:
    """With their runs, and without the secret and the texts that no list shows."""
    return operations.select_related("run__state_root").defer(
        "lease_token", "outcome_json", "run__projection_json", "run__verified_projection_json"
    )


def recent_lease_events(scope: Scope, limit: int = 10) -> list[LeaseEvent]:
    """The latest reclaimed operations and late holders."""
    events = LeaseEvent.objects.filter(scope.of("operation__run__state_root"))
    return list(events.select_related("operation__run__state_root").order_by("-pk")[:limit])


def list_runs(
    wanted: RunFilter, now: int, scope: Scope, *, before: int | None = None, size: int = PAGE_SIZE
) -> Page[Run]:
    """Runs that match, newest first, each with `has_expired_lease`; `before` is the `next_key` of the page above."""
    expired = Exists(expired_leases(now).filter(run=OuterRef("pk")))
    runs = Run.objects.filter(scope.of("state_root")).select_related("state_root")
    runs = runs.defer("projection_json", "verified_projection_json", "verdict_detail")
    if wanted.state:
        runs = runs.filter(state=wanted.state)
    if wanted.stage:
        runs = runs.filter(stage=wanted.stage)
    if wanted.root_id is not None:
        runs = runs.filter(state_root_id=wanted.root_id)
    if wanted.change:
        runs = runs.filter(change_name__icontains=wanted.change)
    if wanted.broken:
        runs = runs.filter(BROKEN)
    if wanted.expired:
        # Of the few expired leases to their runs, not of all runs to their leases.
        runs = runs.filter(pk__in=expired_leases(now).values("run"))
    return keyset_page(runs.annotate(has_expired_lease=expired), before=before, size=size)


MOST_JOINED: Final = 200


def operation_ids(run: Run) -> list[str]:
    """The ids of a run's latest operations, at most `MOST_JOINED`."""
    return list(run.operations.order_by("-pk").values_list("operation_id", flat=True)[:MOST_JOINED])


def runs_of_operation(operation_id: str, scope: Scope) -> list[Operation]:
    """Operations of that id, with their runs: few, since an id belongs to one."""
    rows = _with_run(Operation.objects.filter(scope.of("run__state_root"), operation_id=operation_id))
    return list(rows.order_by("-pk")[:5])


def keyset_page(rows: QuerySet[Row], *, before: int | None, size: int = PAGE_SIZE) -> Page[Row]:
    """Rows by falling primary key, from below `before` on. One query, whatever the table's size."""
    if before is not None:
        rows = rows.filter(pk__lt=before)
    found = list(rows.order_by("-pk")[: size + 1])
    more = len(found) > size
    return Page(found[:size], found[size - 1].pk if more else None)


def find_runs(run_id: str, scope: Scope, root_hash: str = "") -> list[Run]:
    """The runs of that id, one per state root at most; of one root if `root_hash` is given.

    Raises `ServiceError` (`run-not-found`).
    """
    runs = Run.objects.select_related("state_root").filter(scope.of("state_root"), run_id=run_id)
    if root_hash:
        runs = runs.filter(state_root__root_hash=root_hash)
    found = list(runs.order_by("pk")[:PAGE_SIZE])
    if not found:
        raise ServiceError("run-not-found", "There is no such run.")
    return found


def chain_page(run: Run, *, upto: int | None = None, size: int = CHAIN_PAGE_SIZE) -> ChainPage:
    """The window of a run's chain that ends with event `upto` (default: the newest, or around the first break).

    Each link in it is recomputed from the stored bytes. Costs two queries, whatever the chain's length.
    """
    if upto is None and run.first_broken is not None:
        upto = run.first_broken + size // 2
    events = run.events.order_by("-sequence")
    if upto is not None:
        events = events.filter(sequence__lte=upto)
    found = list(
        events.annotate(size=Length("payload_json"), excerpt=Left("payload_json", PAYLOAD_LIMIT)).values_list(
            "sequence", "type", "excerpt", "prior_hash", "event_hash", "first_seen_at", "size"
        )[: size + 1]
    )
    newest = run.events.order_by("-sequence").values_list("sequence", flat=True).first()
    more = len(found) > size
    rows = list(_recomputed(found, size))
    newer = None
    if rows and newest is not None and rows[0].event.sequence < newest:
        newer = min(newest, rows[0].event.sequence + size)
    return ChainPage(rows, newer, rows[-1].event.sequence - 1 if rows and more else None)


def _recomputed(found: list[tuple[int, str, str, str, str, int, int]], size: int) -> Iterator[ChainRow]:
    events = [ChainEvent(*row[:5]) for row in found]
    for index, row in enumerate(found[:size]):
        event = events[index]
        before = events[index + 1] if index + 1 < len(events) else None
        link = None
        if row[6] <= PAYLOAD_LIMIT:
            if before is not None:
                link = next(check_links([event], after_sequence=before.sequence, after_hash=before.event_hash))
            else:
                link = next(check_links([event]))
        missing = event.sequence - (before.sequence if before else 0) - 1
        yield ChainRow(event, row[5], row[6], link, missing)


def state_roots(scope: Scope) -> list[StateRoot]:
    """The state roots to choose from, by name, at most `MAX_ROOTS`."""
    return list(
        StateRoot.objects.filter(scope.of("pk")).only("root_hash", "name", "problem", "checked_at", "path")[:MAX_ROOTS]
    )


def divergence_of(run: Run) -> tuple[ChainEvent | None, Event | None] | None:
    """Both versions at the latest difference that a source showed: theirs and ours; None if it never did."""
    latest = run.divergences.order_by("-id").first()
    if latest is None:
        return None
    theirs = None
    if latest.source_event_hash is not None:
        theirs = ChainEvent(
            latest.sequence,
            latest.source_type or "",
            latest.source_payload_json or "",
            latest.source_prior_hash or "",
            latest.source_event_hash,
        )
    return theirs, run.events.filter(sequence=latest.sequence).first()
