"""Find effects and sagas that need a look, and have one worker at a time look at each page.

worker = Worker(Adapter(DatabaseBackend()), "effects", owner="worker-1", handle=print)
worker.run(stale_before=now - 10 * 60_000)
"""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Final, Literal

from django.db import connections

from approvals.adapter import Adapter
from approvals.backends.base import MAX_LIMIT, Lease, Page
from approvals.records import Effect, Record, RecordError, Saga

DEFAULT_LEASE_MS: Final = 30_000
DEFAULT_BATCH: Final = 100
DEFAULT_PAGES: Final = 10
DEFAULT_CONCURRENCY: Final = 4

EFFECT_STATES: Final = ("admission", "executing", "unknown")
SAGA_STATES: Final = ("running", "compensating", "manual-review")

Subject = Literal["effects", "sagas"]


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that needs a look. `reason` is incomplete or ambiguous for an effect; stale-running,
    ambiguous-execution, ambiguous-compensation or manual-review for a saga; unreadable for a record that can't be read."""

    subject: Subject
    id: str
    reason: str
    state: str = ""
    updated_at: int | None = None
    capability: str | None = None
    step: str | None = None
    effect_id: str | None = None


def effect_finding(effect: Effect, stale_before: int) -> Finding | None:
    """What is to be found of an effect that hasn't changed since `stale_before` (ms)."""
    if effect.updated_at > stale_before or effect.state not in EFFECT_STATES:
        return None
    reason = "incomplete" if effect.state == "admission" else "ambiguous"
    return Finding(
        "effects",
        effect.effect_id,
        reason,
        effect.state,
        effect.updated_at,
        effect.capability,
        effect_id=effect.effect_id,
    )


def saga_finding(saga: Saga, stale_before: int) -> Finding | None:
    """What is to be found of a saga. A step that is under way counts only once it is older than `stale_before` (ms): before,
    it is somebody's. One whose outcome a run already declared unknown counts at once."""
    old = saga.updated_at <= stale_before
    step = saga.unsettled
    if step is not None and (old or step.state == "ambiguous" or saga.state == "manual-review"):
        compensating = step.state == "compensating"
        return Finding(
            "sagas",
            saga.saga_id,
            "ambiguous-compensation" if compensating else "ambiguous-execution",
            saga.state,
            saga.updated_at,
            step=step.name,
            effect_id=step.compensation_effect_id if compensating else step.effect_id,
        )
    if saga.state == "manual-review":
        return Finding("sagas", saga.saga_id, "manual-review", saga.state, saga.updated_at)
    if saga.state in ("running", "compensating") and old:
        return Finding("sagas", saga.saga_id, "stale-running", saga.state, saga.updated_at)
    return None


def finding_of(record: Record, stale_before: int) -> Finding | None:
    """What is to be found of a record."""
    if isinstance(record, Effect):
        return effect_finding(record, stale_before)
    return saga_finding(record, stale_before) if isinstance(record, Saga) else None


def page_of_findings(
    adapter: Adapter, subject: Subject, *, stale_before: int, limit: int = DEFAULT_BATCH, cursor: str | None = None
) -> tuple[list[Finding], str | None]:
    """The findings of one page of records, and the cursor of the next."""
    if subject == "effects":
        page = adapter.effects.scan(EFFECT_STATES, limit, stale_before, cursor)
    else:
        page = adapter.sagas.scan(SAGA_STATES, limit, None, cursor)
    return list(_findings(page, subject, stale_before)), page.cursor


def _findings(page: Page, subject: Subject, stale_before: int) -> Iterator[Finding]:
    for record in page.records:
        found = finding_of(record, stale_before)
        if found is not None:
            yield found
    for id in page.unreadable:
        yield Finding(subject, id, "unreadable")


def all_findings(
    adapter: Adapter, subject: Subject, *, stale_before: int, limit: int = DEFAULT_BATCH
) -> Iterator[Finding]:
    """Every finding, page by page."""
    cursor: str | None = None
    while True:
        found, cursor = page_of_findings(adapter, subject, stale_before=stale_before, limit=limit, cursor=cursor)
        yield from found
        if cursor is None:
            return


class LeaseLost(Exception):
    """The worker's lease ran out or was taken: another one goes on where it was."""


@dataclass(slots=True)
class Outcome:
    """What one run of a worker came to. `held_elsewhere` means that another worker has the lease."""

    held_elsewhere: bool = False
    pages: int = 0
    handled: int = 0
    failed: list[tuple[Finding, Exception]] = field(default_factory=list)
    finished: bool = False


@dataclass(frozen=True, slots=True)
class Worker:
    """Hands each finding to `handle`, under the lease `name`, `concurrency` at a time. Times are milliseconds.

    A handler that fails doesn't hold the cursor up: the finding is in the outcome, and comes again with the next round. A
    worker that dies leaves its cursor at the last page that was handled whole, so nothing is lost; what it did handle of
    the page it died in is handled again, so handlers must not mind.
    """

    adapter: Adapter
    subject: Subject
    owner: str
    handle: Callable[[Finding], None]
    name: str = ""
    lease_ms: int = DEFAULT_LEASE_MS
    batch: int = DEFAULT_BATCH
    pages: int = DEFAULT_PAGES
    concurrency: int = DEFAULT_CONCURRENCY

    def __post_init__(self) -> None:
        if not 1 <= self.batch <= MAX_LIMIT:
            raise RecordError("invalid-limit", f"a page has 1 to {MAX_LIMIT} records")
        if self.pages < 1 or self.concurrency < 1:
            raise RecordError("invalid-limit", "a worker reads at least one page, one finding at a time")

    def run(self, *, stale_before: int) -> Outcome:
        """One round: up to `pages` pages from the cursor on. Raises `LeaseLost`."""
        outcome = Outcome()
        lease = self.adapter.leases.acquire(self.name or self.subject, self.owner, self.lease_ms)
        if lease is None:
            outcome.held_elsewhere = True
            return outcome
        cursor = lease.cursor
        try:
            with ThreadPoolExecutor(self.concurrency) as pool:
                while outcome.pages < self.pages and not outcome.finished:
                    self._renew(lease)
                    found, cursor = page_of_findings(
                        self.adapter, self.subject, stale_before=stale_before, limit=self.batch, cursor=cursor
                    )
                    for finding, error in pool.map(self._handled, found):
                        if error is None:
                            outcome.handled += 1
                        else:
                            outcome.failed.append((finding, error))
                    self._renew(lease)
                    if not self.adapter.leases.checkpoint(lease, cursor):
                        raise LeaseLost(f"lease {lease.name} was lost before its cursor was written")
                    outcome.pages += 1
                    outcome.finished = cursor is None
        finally:
            self.adapter.leases.release(lease)
        return outcome

    def _renew(self, lease: Lease) -> None:
        if not self.adapter.leases.renew(lease, self.lease_ms):
            raise LeaseLost(f"lease {lease.name} was lost")

    def _handled(self, finding: Finding) -> tuple[Finding, Exception | None]:
        try:
            self.handle(finding)
        except Exception as error:  # noqa: BLE001 - handed to the caller in the outcome
            return finding, error
        finally:
            # This thread is the pool's: a connection that the handler opened would stay open with it.
            connections.close_all()
        return finding, None


def expire_due(adapter: Adapter, *, limit: int = DEFAULT_BATCH) -> int:
    """Write down every pending or approved approval whose time is up. Returns how many."""
    expired = 0
    while True:
        done = sum(adapter.approvals.expire(id) for id in adapter.approvals.due(limit))
        expired += done
        if done == 0:
            return expired
