"""Time rules, mirror and pages at small and large sizes, and print a table.

Runs on a new SQLite database, or on a new database beside the one that CADENCE_BENCH_DATABASE_URL names.
"""

import json
import os
import sqlite3
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from urllib.parse import quote

from django.db.backends.base.base import BaseDatabaseWrapper

from benchmarks import audit, durable, inbox, store
from runs.chain import Event
from runs.lifecycle import reduce_events
from tests.runs.stores import Store, chain

REPEATS = 9


def timed(work: Callable[[], object], repeats: int = REPEATS) -> float:
    """The median of several runs after one that doesn't count, in milliseconds."""
    work()
    taken = []
    for _ in range(repeats):
        begin = time.perf_counter()
        work()
        taken.append((time.perf_counter() - begin) * 1000)
    return statistics.median(taken)


def once(work: Callable[[], object]) -> float:
    """One run, in milliseconds: for what can be done only once."""
    begin = time.perf_counter()
    work()
    return (time.perf_counter() - begin) * 1000


def row(name: str, milliseconds: float, note: str = "") -> None:
    print(f"{name:<56} {milliseconds:>12,.2f} ms  {note}", flush=True)


def rules() -> None:
    for length in (100, 1_000, 10_000):
        events = chain(length)
        taken = timed(lambda events=events: reduce_events(events), 3)  # type: ignore[misc]
        row(f"recompute and reduce a chain of {length:,}", taken, f"{taken * 1000 / length:.1f} µs an event")


def mirror(directory: Path) -> None:
    from runs.integrity import verify_stored
    from runs.mirror import mirror_store
    from runs.models import Run

    for length in (10, 100_000):
        run_id = f"run-of-{length}"
        store = Store(directory / f"{length}" / "control.sqlite3", root_hash=f"{length:064d}")
        store.add_run(run_id, f"change-of-{length}")
        _fill(store, run_id, chain(length, run_id))
        row(f"first mirror of a run with {length:,} events", once(lambda store=store: mirror_store(store.path)))  # type: ignore[misc]
        row("  again, unchanged", timed(lambda store=store: mirror_store(store.path)))  # type: ignore[misc]

        def grow(store: Store = store, run_id: str = run_id) -> None:
            store.move(run_id, "paused")
            mirror_store(store.path, recheck=False)

        row("  grown by one event (watching)", timed(grow))
        run = Run.objects.get(run_id=run_id)
        row("  verify it whole", timed(lambda run=run: verify_stored(run), 1))  # type: ignore[misc]


def _fill(store: Store, run_id: str, chain: list[Event]) -> None:
    """Put a whole chain into a store at once."""
    with closing(sqlite3.connect(store.path)) as database, database:
        database.execute("DELETE FROM events WHERE run_id = ?", (run_id,))
        database.executemany(
            "INSERT INTO events VALUES (?,?,?,?,?,?)",
            ((run_id, e.sequence, e.type, e.payload_json, e.prior_hash, e.event_hash) for e in chain),
        )
        projection = reduce_events(chain)
        database.execute(
            "UPDATE runs SET state=?, sequence=?, event_hash=?, projection_json=?, root_hash=?, lookup_key='change:x',"
            " change_name='x' WHERE run_id=?",
            (
                projection["state"],
                projection["sequence"],
                projection["eventHash"],
                json.dumps(projection),
                projection["rootHash"],
                run_id,
            ),
        )


def pages() -> None:
    from django.contrib.auth.models import User
    from django.db import connection
    from django.test import Client

    from runs.models import Run, StateRoot

    client = Client()
    client.force_login(User.objects.create_superuser("bench"))
    for length in (10, 100_000):
        path = f"/runs/run-of-{length}/"
        row(f"page of a run with {length:,} events", timed(lambda path=path: client.get(path)))  # type: ignore[misc]
    root = StateRoot.objects.create(root_hash="b" * 64, first_seen_at=0, checked_at=0)
    made = 0
    for total in (1_000, 100_000):
        Run.objects.bulk_create(
            (
                Run(
                    state_root=root,
                    run_id=f"bench-{number}",
                    root_hash="b" * 64,
                    stage="abel-implement",
                    lookup_key=f"change:c{number}",
                    change_name=f"c{number}",
                    state="paused" if number % 100 == 0 else "completed",
                    sequence=1,
                    event_hash="a" * 64,
                    projection_json='{"filling":"' + "x" * 800 + '"}',
                    first_seen_at=0,
                    changed_at=0,
                    verdict="ok",
                )
                for number in range(made, total)
            ),
            batch_size=5_000,
        )
        made = total
        with connection.cursor() as cursor:
            cursor.execute("ANALYZE")
        for query in ("", "?state=paused", "?broken=on", "?expired=on", "?change=c99", "?change=nothing"):
            taken = timed(lambda query=query: client.get(f"/runs/{query}"))  # type: ignore[misc]
            row(f"list of {total:,} runs {query}", taken)


def _url(connection: BaseDatabaseWrapper) -> str:
    """The address of the database under test, for client processes."""
    settings = connection.settings_dict
    if connection.vendor == "sqlite":
        return f"sqlite:///{settings['NAME']}"
    host = settings["HOST"] or settings["OPTIONS"].get("host", "")
    password = f":{quote(settings['PASSWORD'])}" if settings["PASSWORD"] else ""
    query = f"?host={quote(host, safe='')}" if host.startswith("/") else ""
    place = "" if query else f"{host}{':' + str(settings['PORT']) if settings['PORT'] else ''}"
    return f"postgresql://{quote(settings['USER'])}{password}@{place}/{settings['NAME']}{query}"


def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        os.environ["CADENCE_VAR_DIR"] = directory
        os.environ["DATABASE_URL"] = os.environ.get(
            "CADENCE_BENCH_DATABASE_URL", f"sqlite:///{Path(directory) / 'bench.sqlite3'}"
        )
        os.environ["DJANGO_SETTINGS_MODULE"] = "cadence_admin.settings"
        import django
        from django.conf import settings

        django.setup()
        settings.ALLOWED_HOSTS = ["testserver"]
        settings.LIMITS = dict.fromkeys(settings.LIMITS, 0)  # a benchmark asks more often than a person may
        settings.STORAGES["staticfiles"] = {"BACKEND": "django.contrib.staticfiles.storage.StaticFilesStorage"}
        (Path(directory) / "static").mkdir()
        from django.db import connection

        if connection.vendor == "sqlite":
            connection.settings_dict["TEST"]["NAME"] = str(Path(directory) / "test.sqlite3")
        own_name = connection.settings_dict["NAME"]
        connection.creation.create_test_db(verbosity=0)
        try:
            print(f"Python {sys.version.split()[0]}, {connection.vendor}")
            rules()
            mirror(Path(directory))
            pages()
            store.appends()
            store.reclaiming()
            inbox.run(timed)
            audit.run()
            durable.run(_url(connection))
        finally:
            connection.creation.destroy_test_db(str(own_name), verbosity=0)


if __name__ == "__main__":
    main()
