"""The audit log: what an entry costs, and how long writers queue behind each other."""

import statistics
import threading
import time
from collections.abc import Callable
from typing import Final

CLIENTS: Final = (1, 8)
SECONDS: Final = 3.0


def run() -> None:
    """Print, for one client and eight: transactions a second with a row and no entry, and with an entry; and the time of
    those with one (median and 99th of a hundred)."""
    from django.db import connections, transaction

    from approvals.models import Decision
    from approvals.routers import nifra_alias
    from cadence_admin import audit

    alias = nifra_alias()

    def row(with_entry: bool) -> None:
        with transaction.atomic(using=alias):
            Decision.objects.create(
                kind="approval",
                record_id="bench",
                answer="approved",
                actor="bench",
                decided_by="bench",
                via="bench",
                version_before=1,
                version_after=2,
                happened_at=0,
            )
            if with_entry:
                audit.record(audit.Entry("bench.done", "bench", "bench", reason="a reason of some length"), using=alias)

    def work(with_entry: bool, taken: list[float]) -> None:
        until = time.perf_counter() + SECONDS
        while (begin := time.perf_counter()) < until:
            row(with_entry)
            taken.append((time.perf_counter() - begin) * 1000)
        connections.close_all()

    for clients in CLIENTS:
        figures = {False: measure(clients, lambda taken: work(False, taken))}
        figures[True] = measure(clients, lambda taken: work(True, taken))
        plain, entered = (len(figures[which]) / SECONDS for which in (False, True))
        ordered = sorted(figures[True])
        slow = ordered[len(ordered) * 99 // 100]
        print(
            f"{f'transactions with an audit entry, {clients} clients':<56} {entered:>10,.0f} /s  "
            f"{plain:,.0f}/s without; each {statistics.median(ordered):.1f} ms, 99 of 100 in {slow:.1f} ms",
            flush=True,
        )
    begin = time.perf_counter()
    audited = audit.verify(alias)
    taken = time.perf_counter() - begin
    print(f"{'verify the audit log':<56} {audited.checked / taken:>10,.0f} /s  {audited.checked:,} entries", flush=True)


def measure(clients: int, work: Callable[[list[float]], None]) -> list[float]:
    """The times of all clients' transactions, in milliseconds."""
    taken: list[float] = []
    threads = [threading.Thread(target=work, args=(taken,)) for _ in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return taken
