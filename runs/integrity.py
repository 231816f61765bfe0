"""Verify runs from the bytes stored here, and remember what came of it."""

from collections.abc import Callable, Iterable, Iterator
from typing import Final

from django.db import transaction
from django.db.models import Exists, OuterRef

from cadence_admin.clock import now_ms
from cadence_admin.javascript import parse_json, stringify
from runs.chain import Event as ChainEvent
from runs.models import ChainAnchor, Event, Run
from runs.source import COLUMNS, OLD_FORM
from runs.verification import BINDING_COLUMNS, OK, Checkpoint, Verdict, verify_run

DIVERGED: Final = "chain-diverged"
ANCHOR_MISMATCH: Final = "anchor-mismatch"

_BATCH: Final = 2_000
_ATTEMPTS: Final = 3
_EVENT_COLUMNS: Final = ("sequence", "type", "payload_json", "prior_hash", "event_hash")
_RESULT_COLUMNS: Final = (
    "verdict",
    "verdict_detail",
    "first_broken",
    "break_count",
    "verified_at",
    "verified_sequence",
    "verified_projection_json",
)

Watcher = Callable[[Iterable[ChainEvent]], Iterable[ChainEvent]]


def stream_events(run: Run, *, after: int = 0) -> Iterator[ChainEvent]:
    """The stored events of a run past sequence `after`, in order, a bounded number of them in memory."""
    while True:
        # By key and not by cursor: server-side cursors don't survive a transaction-pooling proxy.
        rows = run.events.filter(sequence__gt=after).order_by("sequence").values_list(*_EVENT_COLUMNS)[:_BATCH]
        batch = list(rows)
        for row in batch:
            yield ChainEvent(*row)
        if len(batch) < _BATCH:
            return
        after = batch[-1][0]


def verify_stored(run: Run, *, watch: Watcher | None = None) -> Verdict:
    """Recompute the whole chain of a run and store the verdict on it.

    `watch` may wrap the events on their way, to count them. A run that grows meanwhile is read again.
    """
    for _ in range(_ATTEMPTS):
        fresh = Run.objects.select_related("state_root").get(pk=run.pk)
        verdict = _recompute(fresh, watch=watch)
        with transaction.atomic():
            current = _locked(run)
            if _head(current) == _head(fresh):
                _remember(current, verdict)
                return verdict
    with transaction.atomic():
        return _remember(current := _locked(run), _recompute(current, watch=watch))


def verify_growth(run: Run) -> Verdict:
    """Verify what a run gained since its last `ok`, or all of it. Call it with the run's row locked."""
    checkpoint = None
    if run.verdict == OK and run.verified_projection_json:
        projection = parse_json(run.verified_projection_json)
        checkpoint = Checkpoint(run.verified_sequence, projection["eventHash"], projection)
    return _remember(run, _recompute(run, after=checkpoint))


def _head(run: Run) -> tuple[int, str, str]:
    return run.sequence, run.event_hash, run.source_digest


def _locked(run: Run) -> Run:
    return Run.objects.select_related("state_root").select_for_update(of=("self",), no_key=True).get(pk=run.pk)


def _recompute(run: Run, *, after: Checkpoint | None = None, watch: Watcher | None = None) -> Verdict:
    events: Iterable[ChainEvent] = stream_events(run, after=after.sequence if after else 0)
    verdict = verify_run(
        watch(events) if watch else events,
        {column: getattr(run, column) for column in COLUMNS["runs"]},
        run.deliveries.filter(missing_since=None).values(*BINDING_COLUMNS),
        has_proof_columns=run.state_root.schema_form != OLD_FORM,
        after=after,
    )
    if verdict.ok and after is None:
        same = Event.objects.filter(run=run, sequence=OuterRef("sequence"), event_hash=OuterRef("event_hash"))
        forgotten = ChainAnchor.objects.filter(run=run).exclude(Exists(same)).order_by("sequence").first()
        if forgotten:
            return _spoiled(
                verdict,
                ANCHOR_MISMATCH,
                forgotten.sequence,
                "the stored chain is not the one that was seen here before",
            )
    if verdict.ok and run.diverged_sequence is not None:
        return _spoiled(verdict, DIVERGED, run.diverged_sequence)
    return verdict


def _spoiled(verdict: Verdict, code: str, sequence: int, detail: str = "") -> Verdict:
    return Verdict(code, detail, verdict.sequence, verdict.event_hash, sequence, projection=verdict.projection)


def _remember(run: Run, verdict: Verdict) -> Verdict:
    run.verdict = verdict.code
    run.verdict_detail = verdict.detail
    run.first_broken = verdict.first_broken
    run.break_count = verdict.break_count
    run.verified_at = now_ms()
    run.verified_sequence = verdict.sequence
    run.verified_projection_json = stringify(verdict.projection) if verdict.projection else ""
    run.save(update_fields=_RESULT_COLUMNS)
    return verdict
