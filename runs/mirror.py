"""Bring the runs of a Cadence state root into the database, and notice when a history was rewritten.

One pass over one store: a store whose file did not change costs one query; of the others, each run that changed is
brought over in a transaction of its own, under the lock of its state root. The source is read only after that lock is
held, so what a pass reads is never older than what an earlier one stored. No event that was seen once is
ever dropped or overwritten.
"""

import hashlib
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from django.db import IntegrityError, models, transaction

from cadence_admin import audit
from cadence_admin.clock import now_ms
from cadence_admin.visible import storable
from runs.chain import ZERO_HASH, is_sha256
from runs.chain import Event as ChainEvent
from runs.integrity import DIVERGED, stream_events, verify_growth
from runs.lifecycle import OPERATION_STATES, RUN_STATES, STAGES, TASK_STATES
from runs.models import (
    ApplyTransaction,
    Artifact,
    BootstrapHandoff,
    ChainAnchor,
    DeliveryBinding,
    Divergence,
    Event,
    HashField,
    MillisecondsField,
    Operation,
    RouteHealth,
    Run,
    StateRoot,
    Task,
    WorkspaceRevision,
)
from runs.source import COLUMNS, Row, Source, SourceChanged, SourceError, find_stores, root_of, settled_fingerprint
from runs.verification import OK

EVENT_MISSING: Final = "event-missing"
EVENT_CHANGED: Final = "event-changed"
CHAIN_SHORTER: Final = "chain-shorter"
HEAD_DETACHED: Final = "head-detached"
DIVERGENCES: Final = (EVENT_MISSING, EVENT_CHANGED, CHAIN_SHORTER, HEAD_DETACHED)

_ATTEMPTS: Final = 5
_BATCH: Final = 1_000
_INT64: Final = 2**63

# The seed's rule for identifiers. Whatever else stands in a source can't be named in an address.
_IDENTIFIER: Final = re.compile(r"[a-z0-9](?:[a-z0-9._:-]{0,126}[a-z0-9])?", re.IGNORECASE | re.ASCII)

_ALLOWED: Final[dict[tuple[type[models.Model], str], tuple[str, ...]]] = {
    (Run, "state"): RUN_STATES,
    (Run, "stage"): STAGES,
    (Task, "state"): TASK_STATES,
    (Operation, "state"): OPERATION_STATES,
}


@dataclass(slots=True)
class Found:
    """A run whose source disagrees with what is kept here."""

    run_id: str
    root_hash: str
    sequence: int
    code: str


@dataclass(slots=True)
class Problem:
    """Something that could not be brought over, and why."""

    code: str
    message: str


@dataclass(slots=True)
class StoreReport:
    """What one pass over one store came to. `status` is `unchanged`, `mirrored` or `failed`."""

    path: str
    status: str = "mirrored"
    form: str = ""
    runs: int = 0
    new_runs: int = 0
    changed_runs: int = 0
    missing_runs: int = 0
    new_events: int = 0
    diverged: list[Found] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)

    @property
    def clean(self) -> bool:
        return not self.diverged and not self.problems


@dataclass(frozen=True, slots=True)
class Table:
    """One table beside `runs` and `events`: its model, whose rows it holds, and what tells them apart."""

    model: type[models.Model]
    name: str
    owner: str
    key: tuple[str, ...]

    @property
    def values(self) -> tuple[str, ...]:
        columns = ("lease_held" if column == "lease_token" else column for column in COLUMNS[self.name])
        return tuple(column for column in columns if column != self.owner and column not in self.key)

    @property
    def unique(self) -> tuple[str, ...]:
        return ("run" if self.owner == "run_id" else "state_root", *self.key)


_RUN_TABLES: Final = (
    Table(DeliveryBinding, "delivery_bindings", "run_id", ("gate", "revision")),
    Table(Task, "tasks", "run_id", ("task_id",)),
    Table(Operation, "operations", "run_id", ("operation_id",)),
    Table(Artifact, "artifacts", "owner_run_id", ("content_hash",)),
    Table(WorkspaceRevision, "workspace_revisions", "owner_run_id", ("revision_id",)),
    Table(ApplyTransaction, "apply_transactions", "owner_run_id", ("transaction_id",)),
    Table(BootstrapHandoff, "bootstrap_handoffs", "owner_run_id", ("handoff_id",)),
)
_SHARED_TABLES: Final = (
    Table(RouteHealth, "route_health", "", ("route_fingerprint",)),
    Table(Artifact, "artifacts", "owner_run_id", ("content_hash",)),
)


def mirror_state_home(
    state_home: Path, *, recheck: bool = True, on_report: Callable[[StoreReport], None] | None = None
) -> list[StoreReport]:
    """One pass over every store under `state_home`. Raises `SourceError` if it holds no state roots."""
    stores = find_stores(state_home)
    reports = mirror_stores(stores, recheck=recheck, on_report=on_report)
    found = [str(path.absolute()) for path in stores]
    gone = StateRoot.objects.filter(path__startswith=_roots_of(state_home)).exclude(path__in=found)
    _say_problem(gone, "state-component-missing", "its control.sqlite3 is no longer there.")
    return reports


def _say_problem(roots: models.QuerySet[StateRoot], code: str, message: str) -> None:
    """Keep why a store can't be mirrored, and enter it in the audit log once, not with every pass."""
    problem = f"{code}: {message}"
    with transaction.atomic():
        new = list(roots.exclude(problem=problem).order_by("pk").values_list("root_hash", flat=True))
        roots.update(problem=problem, fingerprint="")
        audit.record(*(audit.Entry(f"mirror.{code}", "root", root_hash, reason=message) for root_hash in new))


def name_state_roots(state_home: Path, name: str) -> None:
    """Give the state roots under `state_home` that have no name yet this one."""
    StateRoot.objects.filter(path__startswith=_roots_of(state_home), name="").update(name=name)


def _roots_of(state_home: Path) -> str:
    return str((state_home / "abel-cadence" / "roots").absolute()) + os.sep


def mirror_stores(
    paths: Iterable[Path], *, recheck: bool = True, on_report: Callable[[StoreReport], None] | None = None
) -> list[StoreReport]:
    """One pass over each store; one that can't be read is reported and doesn't stop the others."""
    reports = []
    for path in paths:
        try:
            report = mirror_store(path, recheck=recheck)
        except SourceError as error:
            report = StoreReport(str(path), "failed", problems=[Problem(error.code, str(error))])
            _say_problem(StateRoot.objects.filter(path=str(path.absolute())), error.code, str(error))
        reports.append(report)
        if on_report:
            on_report(report)
    return reports


def mirror_store(path: Path, *, recheck: bool = True) -> StoreReport:
    """One pass over one store. Raises `SourceError` if it can't be read.

    With `recheck` every event that was mirrored before is compared with the source's; without, the heads are (any later
    head differs if an earlier event was rewritten with right hashes, not if one was merely edited).
    """
    report = StoreReport(str(path))
    location = str(path.absolute())
    stamp = settled_fingerprint(path)
    unchanged = _fingerprints(stamp, recheck)
    if stamp and StateRoot.objects.filter(path=location, fingerprint__in=unchanged).update(checked_at=now_ms()):
        report.status = "unchanged"
        return report
    for _ in range(_ATTEMPTS):
        try:
            with Source.open(path) as source:
                _Pass(source, report, recheck).run(stamp)
            return report
        except SourceChanged:
            report.diverged.clear()
            report.problems.clear()
            stamp = settled_fingerprint(path)
    raise SourceError("run-store-unreadable", f"{path} changed each of the {_ATTEMPTS} times that it was read.")


def _fingerprints(stamp: str, recheck: bool) -> list[str]:
    """What may be stored of a store that needs no look; the first is what a pass of this kind stores."""
    return [f"events {stamp}"] if recheck else [f"heads {stamp}", f"events {stamp}"]


class _RowInvalid(Exception):
    """A row that the tables here refuse."""


class _Pass:
    def __init__(self, source: Source, report: StoreReport, recheck: bool) -> None:
        self.source = source
        self.report = report
        self.recheck = recheck
        self.now = now_ms()
        self.location = str(source.path.absolute())
        self.directory_root = root_of(source.path)

    def run(self, stamp: str) -> None:
        self.report.form = self.source.form
        roots = {root_hash: self._root(root_hash) for root_hash in self._root_hashes()}
        for root in roots.values():
            self._shared(root)
        # What is known is read before the source is listed: what the list then lacks has really gone.
        known = {
            (run.state_root_id, run.run_id): run
            for run in Run.objects.filter(state_root__in=roots.values())
            .select_related("state_root")
            .only("state_root", "run_id", "source_digest", "missing_since", "diverged_sequence", "verdict")
        }
        listed: list[tuple[StateRoot, str, str]] = []
        with self.source.snapshot():
            for row in self.source.runs():
                run_root = roots.get(self.directory_root or row["root_hash"])
                if run_root is not None:
                    listed.append((run_root, row["run_id"], self._digest(row)))
                elif not is_sha256(row["root_hash"]):
                    self._problem("source-row-invalid", f"run {row['run_id']!r}: root_hash is no sha256.")
        self.report.runs = len(listed)
        # Those that went first: they make room for a run that took over their lookup key.
        seen = {(root.pk, run_id) for root, run_id, _ in listed}
        vanished = [run.pk for key, run in known.items() if key not in seen and run.missing_since is None]
        if vanished:
            self.report.missing_runs += self._mark_missing(vanished)
        retry = []
        for root, run_id, digest in listed:
            run = known.get((root.pk, run_id))
            if run and run.source_digest == digest and run.missing_since is None and not self._rewritten(run):
                continue
            if not self._bring(root, run_id):
                retry.append((root, run_id))
        # A lookup key may also pass from a later run to an earlier one: the second try finds it free.
        for root, run_id in retry:
            if not self._bring(root, run_id):
                self._problem("source-row-conflict", f"run {run_id}: its keys are those of another run of this root.")
        StateRoot.objects.filter(pk__in=[root.pk for root in roots.values()]).update(
            checked_at=self.now,
            problem="\n".join(f"{problem.code}: {problem.message}" for problem in self.report.problems),
            # What disagrees is said again with every pass, so such a store never counts as unchanged.
            fingerprint=_fingerprints(stamp, self.recheck)[0] if stamp and self.report.clean else "",
        )

    def _mark_missing(self, vanished: list[int]) -> int:
        with transaction.atomic():
            runs = Run.objects.filter(pk__in=vanished, missing_since=None).order_by("pk")
            gone = list(runs.select_for_update(no_key=True).values_list("pk", "run_id"))
            Run.objects.filter(pk__in=[pk for pk, _ in gone]).update(missing_since=self.now)
            audit.record(*(audit.Entry("mirror.run-missing", "run", run_id) for _, run_id in gone))
        return len(gone)

    def _root_hashes(self) -> list[str]:
        if self.directory_root:
            return [self.directory_root]
        with self.source.snapshot():
            return sorted({row["root_hash"] for row in self.source.runs() if is_sha256(row["root_hash"])})

    def _problem(self, code: str, message: str) -> None:
        self.report.problems.append(Problem(code, message))

    def _root(self, root_hash: str) -> StateRoot:
        with transaction.atomic():
            root, made = StateRoot.objects.get_or_create(
                root_hash=root_hash, defaults={"first_seen_at": self.now, "checked_at": self.now}
            )
            if made:
                audit.record(audit.Entry("root.added", "root", root_hash, after=self.location))
        if (root.path, root.schema_form) != (self.location, self.source.form):
            root.path, root.schema_form = self.location, self.source.form
            root.save(update_fields=["path", "schema_form"])
        return root

    def _digest(self, run: Row) -> str:
        """What tells whether anything of a run but its events' bytes changed since it was mirrored."""
        digest = hashlib.sha256(json.dumps(list(run.values())).encode())
        for table in _RUN_TABLES:
            for row in self.source.rows_of(table.name, table.owner, run["run_id"]):
                digest.update(json.dumps([table.name, *row.values()]).encode())
        return digest.hexdigest()

    def _rechecks(self, run: Run) -> bool:
        return self.recheck or run.diverged_sequence is not None

    def _rewritten(self, run: Run) -> bool:
        if not self._rechecks(run):
            return False
        with self.source.snapshot():
            return self._difference(run, self._last(run)) is not None

    def _bring(self, root: StateRoot, run_id: str) -> bool:
        """Bring one run over, whole or not at all. False if its keys are taken."""
        brought = StoreReport(self.location)
        try:
            with transaction.atomic():
                StateRoot.objects.select_for_update(no_key=True).get(pk=root.pk)
                with self.source.snapshot():
                    self._mirror(root, run_id, brought)
        except _RowInvalid as error:
            self._problem("source-row-invalid", f"run {run_id!r}: {error}.")
            return True
        except IntegrityError:
            return False
        self.report.new_runs += brought.new_runs
        self.report.changed_runs += brought.changed_runs
        self.report.new_events += brought.new_events
        self.report.diverged += brought.diverged
        return True

    def _mirror(self, root: StateRoot, run_id: str, brought: StoreReport) -> None:
        row = self.source.run(run_id)
        if row is None:
            return  # gone since it was listed; the next pass says so
        digest = self._digest(row)
        run = Run.objects.filter(state_root=root, run_id=run_id).first()
        if run is not None:
            last = self._last(run)
            difference = self._difference(run, last)
            if difference is not None:
                brought.diverged.append(self._diverge(run, *difference))
                return
        _check(Run, row)
        if not _IDENTIFIER.fullmatch(run_id):
            raise _RowInvalid("run_id of run is no identifier")
        if run is None:
            last = ChainEvent(0, "", "", "", ZERO_HASH)
            run = Run.objects.create(state_root=root, first_seen_at=self.now, changed_at=self.now, **row)
            brought.new_runs += 1
        else:
            for name, value in row.items():
                setattr(run, name, value)
            run.changed_at = self.now
            run.missing_since = None
            brought.changed_runs += 1
        run.source_digest = digest
        run.save()
        for table in _RUN_TABLES:
            self._sync(table, root, run, self.source.rows_of(table.name, table.owner, run_id))
        head = self._append(run, last, brought)
        if head is not None:
            ChainAnchor.objects.create(run=run, sequence=head.sequence, event_hash=head.event_hash, seen_at=self.now)
        run.state_root = root
        verify_growth(run)

    def _last(self, run: Run) -> ChainEvent:
        columns = ("sequence", "type", "payload_json", "prior_hash", "event_hash")
        row = run.events.order_by("-sequence").values_list(*columns).first()
        return ChainEvent(*row) if row else ChainEvent(0, "", "", "", ZERO_HASH)

    def _difference(self, run: Run, last: ChainEvent) -> tuple[int, str, ChainEvent | None] | None:
        """Where the source first shows another history than the one kept: sequence, code, and the source's event."""
        if last.sequence == 0:
            return None
        theirs = self.source.event(run.run_id, last.sequence)
        if self._rechecks(run) or theirs != last:
            found = self._first_difference(run, last)
            if found is not None:
                return found
        following = next(self.source.events(run.run_id, after=last.sequence), None)
        if following is not None and (following.sequence, following.prior_hash) != (last.sequence + 1, last.event_hash):
            return last.sequence + 1, HEAD_DETACHED, following
        return None

    def _first_difference(self, run: Run, last: ChainEvent) -> tuple[int, str, ChainEvent | None] | None:
        theirs = self.source.events(run.run_id)
        for mine in stream_events(run):
            other = next(theirs, None)
            if other is None:
                return mine.sequence, CHAIN_SHORTER, None
            if other != mine:
                if other.sequence > mine.sequence:
                    return mine.sequence, EVENT_MISSING, None
                return other.sequence, EVENT_CHANGED, other
        return None

    def _diverge(self, run: Run, sequence: int, code: str, shown: ChainEvent | None) -> Found:
        values = {
            "code": code,
            "source_path": self.location,
            "source_type": storable(shown.type) if shown else None,
            "source_payload_json": storable(shown.payload_json) if shown else None,
            "source_prior_hash": storable(shown.prior_hash) if shown else None,
            "source_event_hash": storable(shown.event_hash) if shown else None,
        }
        repeated = Divergence.objects.filter(run=run, sequence=sequence, **values).update(last_found_at=self.now)
        if not repeated:
            Divergence.objects.create(run=run, sequence=sequence, found_at=self.now, last_found_at=self.now, **values)
        run.diverged_sequence = sequence
        if run.verdict in ("", OK):
            run.verdict, run.first_broken = DIVERGED, sequence
        run.save(update_fields=["diverged_sequence", "verdict", "first_broken"])
        if not repeated:
            after = {"sequence": sequence, "eventHash": values["source_event_hash"]}
            audit.record(audit.Entry(f"mirror.{code}", "run", run.run_id, after=after))
        return Found(run.run_id, run.state_root.root_hash, sequence, code)

    def _append(self, run: Run, last: ChainEvent, brought: StoreReport) -> ChainEvent | None:
        head: ChainEvent | None = None
        batch: list[Event] = []
        for event in self.source.events(run.run_id, after=last.sequence):
            row = {name: getattr(event, name) for name in COLUMNS["events"] if name != "run_id"}
            _check(Event, row)
            batch.append(Event(run=run, first_seen_at=self.now, **row))
            head = event
            if len(batch) == _BATCH:
                brought.new_events += len(Event.objects.bulk_create(batch))
                batch = []
        brought.new_events += len(Event.objects.bulk_create(batch))
        return head

    def _shared(self, root: StateRoot) -> None:
        with transaction.atomic():
            StateRoot.objects.select_for_update(no_key=True).get(pk=root.pk)
            with self.source.snapshot():
                for table in _SHARED_TABLES:
                    try:
                        self._sync(table, root, None, self.source.rows_of(table.name, table.owner, None))
                    except _RowInvalid as error:
                        self._problem("source-row-invalid", f"{error}.")

    def _sync(self, table: Table, root: StateRoot, run: Run | None, rows: Iterator[Row]) -> None:
        """Make our rows those of the source: new and changed ones are written, vanished ones kept and marked."""
        scope: dict[str, Any] = {table.unique[0]: run if table.owner == "run_id" else root}
        if table.owner == "owner_run_id":
            scope["owner_run"] = run
        names = (*table.key, *table.values)
        kept = {
            values[1 : 1 + len(table.key)]: values
            for values in table.model._default_manager.filter(**scope).values_list("missing_since", *names)
        }
        fresh = []
        for row in rows:
            row.pop(table.owner, None)
            _check(table.model, row)
            values = tuple(row[name] for name in names)
            if kept.pop(values[: len(table.key)], None) != (None, *values):
                fresh.append(table.model(**scope, **row))
        # First those that went: they make room for a row that took over what must be unique.
        for key, values in kept.items():
            if values[0] is None:
                table.model._default_manager.filter(**scope, **dict(zip(table.key, key, strict=True))).update(
                    missing_since=self.now
                )
        updated = ["missing_since", *table.values, *(["owner_run"] if table.owner == "owner_run_id" else [])]
        table.model._default_manager.bulk_create(
            fresh, batch_size=_BATCH, update_conflicts=True, unique_fields=table.unique, update_fields=updated
        )


def _check(model: type[models.Model], row: Row) -> None:
    """Raises `_RowInvalid` if a row of a source would not fit in our table, before the database refuses it."""
    for name, value in row.items():
        column = model._meta.get_field(name)
        assert isinstance(column, models.Field)
        problem = ""
        if value is None:
            problem = "" if column.null else "is null"
        elif isinstance(column, models.BooleanField):
            row[name] = bool(value)
        elif isinstance(column, models.BigIntegerField | MillisecondsField):
            problem = "" if isinstance(value, int) and -_INT64 <= value < _INT64 else "is no integer"
        elif not isinstance(value, str):
            problem = "is no text"
        elif "\0" in value or not _is_unicode(value):
            problem = "holds bytes that are no text"
        elif isinstance(column, HashField):
            problem = "" if is_sha256(value) else "is no sha256"
        elif column.max_length is not None and len(value) > column.max_length:
            problem = f"is longer than {column.max_length} characters"
        elif value not in _ALLOWED.get((model, name), (value,)):
            problem = f"is {value!r}, which is not known"
        if problem:
            raise _RowInvalid(f"{name} of {model._meta.verbose_name} {problem}")


def _is_unicode(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True
