"""Durable records per second: creates, decisions, consumptions, lease renewals, and pages of 100 in 100,000.

One client and eight, each a process of its own; on PostgreSQL also with prepared statements (`CADENCE_DATABASE_PREPARE`). The
last column is the real program's figure, measured once on PostgreSQL 18 (about 5,900 of each a second on SQLite, one client);
it was another machine, so its statements are timed here too, one client, on a table without our columns and indexes.
"""

import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

CLIENTS = (1, 8)
RECORDS = 2_000
FILLED = 100_000
REAL_PROGRAM = {
    ("creates", 1): 2_925,
    ("decisions", 1): 1_864,
    ("consumes", 1): 1_904,
    ("creates", 8): 8_012,
    ("decisions", 8): 4_954,
    ("consumes", 8): 5_276,
}


def start(url: str, prepare: bool) -> None:
    """A client process of its own."""
    import os

    os.environ["DATABASE_URL"] = url
    os.environ["CADENCE_DATABASE_PREPARE"] = "1" if prepare else "0"
    import django

    django.setup()
    from django.db import connection

    connection.ensure_connection()


def client(work: str, number: int, count: int) -> float:
    """Do `count` of some work, and return the seconds that it took."""
    from approvals import conformance
    from approvals.adapter import Adapter
    from approvals.backends.database import DatabaseBackend

    adapter = Adapter(DatabaseBackend())
    ids = [f"bench-{number}-{index}" for index in range(count)]
    lease = adapter.leases.acquire(conformance.new_id(), "bench", 600_000) if work == "lease renewals" else None
    steps: dict[str, Callable[[str], Any]] = {
        "creates": lambda name: adapter.approvals.create(
            conformance.approval(approval_id=name, expires_at=conformance.FAR)
        ),
        "decisions": lambda name: adapter.approvals.decide(
            name, tenant_id="acme", decision="approved", decided_by="bench"
        ),
        "consumes": lambda name: adapter.approvals.consume(
            name, binding=conformance.BINDING, token_hash=conformance.HASH
        ),
        "lease renewals": lambda _name: lease is not None and adapter.leases.renew(lease, 600_000),
        "pages of 100": lambda name: adapter.effects.scan(
            ("executing", "unknown"), 100, None, f"effect-{int(name[-1]) * 9}"
        ),
    }
    step = steps[work]
    expected = {"consumes": "consumed"}.get(work, True)
    begin = time.perf_counter()
    for name in ids:
        answer = step(name)
        if work != "pages of 100":
            assert answer == expected, (work, answer)
    return time.perf_counter() - begin


def fill() -> None:
    """`FILLED` effects, half of them findings."""
    from django.db import connection, transaction

    from approvals import conformance
    from approvals.adapter import Adapter
    from approvals.backends.database import DatabaseBackend

    adapter = Adapter(DatabaseBackend())
    with transaction.atomic():
        for number in range(FILLED):
            state = "executing" if number % 2 else "committed"
            adapter.effects.create(conformance.effect(effect_id=f"effect-{number:06d}", state=state))
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE")


def its_statements() -> None:
    """What the real program sends, through its own driver's twin, on the tables as it makes them."""
    from django.db import connection

    from approvals import conformance, tables
    from approvals.backends.base import write_text
    from approvals.wire import loads
    from tests.approvals.seed import OtherPostgres, OtherSqlite

    with connection.cursor() as cursor:
        cursor.execute(f"DROP TABLE {tables.RECORDS}")
    other = OtherSqlite() if connection.vendor == "sqlite" else OtherPostgres()
    other.migrate()
    asked = [
        loads(write_text(conformance.approval(approval_id=f"its-{number}", expires_at=conformance.FAR)))
        for number in range(RECORDS)
    ]
    begin = time.perf_counter()
    for members in asked:
        assert other.create("approval", members["approvalId"], members)
    say("creates (its statements)", 1, RECORDS / (time.perf_counter() - begin))
    begin = time.perf_counter()
    for members in asked:
        current = other.get("approval", members["approvalId"])
        assert current is not None
        decided = current | {"state": "approved", "decidedBy": "bench", "version": 2}
        assert other.compare_and_set("approval", members["approvalId"], 1, decided)
    say("decisions (its statements)", 1, RECORDS / (time.perf_counter() - begin))
    other.close()


def say(work: str, clients: int, rate: float, mark: int | None = None) -> None:
    """One row of the table."""
    print(f"{work:<34} {clients:>8} {rate:>12,.0f}  {f'{mark:,}' if mark else '':>12}", flush=True)


def run(url: str) -> None:
    """Print the table for the database at `url`, which has the tables and nothing in them."""
    from django.db import connection, connections

    from approvals import tables

    fill()
    print(f"{'durable records':<34} {'clients':>8} {'per second':>12}  {'real program':>12}")
    ways = (False, True) if connection.vendor == "postgresql" else (False,)
    for prepare, clients in [(prepare, clients) for prepare in ways for clients in CLIENTS]:
        with connection.cursor() as cursor:
            cursor.execute(f"DELETE FROM {tables.RECORDS} WHERE kind = 'approval'")
        connections.close_all()
        with ProcessPoolExecutor(clients, get_context("spawn"), start, (url, prepare)) as pool:
            list(pool.map(time.sleep, [0.5] * clients))  # so that every process is up before the first is timed
            for work in ("creates", "decisions", "consumes", "lease renewals", "pages of 100"):
                count = (200 if work == "pages of 100" else RECORDS) // clients
                done = list(pool.map(client, [work] * clients, range(clients), [count] * clients))
                mark = REAL_PROGRAM.get((work, clients))
                say(f"{work}{', prepared' if prepare else ''}", clients, count * clients / max(done), mark)
    its_statements()
