"""`manage.py verify_chain`: recompute chains, from the database or straight from a file."""

import json
import sys
from argparse import ArgumentParser
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from django.core.management.base import CommandError
from django.db import DatabaseError
from tqdm import tqdm

from cadence_admin.management.command import ConsoleCommand
from runs.chain import Event
from runs.integrity import verify_stored
from runs.models import Run
from runs.source import Source, SourceChanged, SourceError, store_at
from runs.verification import Verdict, verify_run

COULD_NOT_LOOK = 2


class Command(ConsoleCommand):
    permission = "runs.view_run"
    help = (
        "Recompute event chains and compare them with what the store says. "
        "Exit status 0 if every run is ok, 1 if one is not, 2 if it could not look."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("run_ids", nargs="*", metavar="RUN_ID", help="the runs to verify")
        parser.add_argument("--all", action="store_true", help="every run (the default with --file)")
        parser.add_argument(
            "--file", type=Path, metavar="PATH", help="a control.sqlite3 to read instead of the database"
        )
        parser.add_argument("--json", action="store_true", help="print one JSON object")

    def handle(self, *args: Any, **options: Any) -> None:
        if bool(options["run_ids"]) == options["all"] and not (options["file"] and not options["all"]):
            raise CommandError("name runs, or give --all", returncode=COULD_NOT_LOOK)
        self._json = options["json"]
        results = []
        try:
            verdicts = self._from_file(options) if options["file"] else self._from_database(options)
            for run_id, root_hash, verdict in verdicts:
                results.append((run_id, root_hash, verdict))
                if not self._json:
                    self._say(run_id, verdict)
        except SourceError as error:
            raise CommandError(f"{error.code}: {error}", returncode=COULD_NOT_LOOK) from None
        except SourceChanged:
            raise CommandError(
                f"run-store-unreadable: {options['file']} changed while it was read; try again",
                returncode=COULD_NOT_LOOK,
            ) from None
        except DatabaseError as error:
            raise CommandError(f"database-unavailable: {error}", returncode=COULD_NOT_LOOK) from None
        unknown = sorted(set(options["run_ids"]) - {run_id for run_id, _, _ in results})
        if self._json:
            self.stdout.write(json.dumps({"runs": [_as_json(*result) for result in results]}))
        if unknown:
            raise CommandError(f"run-not-found: {', '.join(unknown)}", returncode=COULD_NOT_LOOK)
        if not all(verdict.ok for _, _, verdict in results):
            raise SystemExit(1)

    def _from_database(self, options: dict[str, Any]) -> Iterator[tuple[str, str, Verdict]]:
        runs = Run.objects.select_related("state_root").order_by("id")
        if not options["all"]:
            runs = runs.filter(run_id__in=options["run_ids"])
        # Ids first: verifying writes, and an open read would see other rows or hold the writer up.
        for pk in list(runs.values_list("pk", flat=True)):
            run = runs.get(pk=pk)
            verdict = verify_stored(run, watch=partial(self._count, run_id=run.run_id, total=run.sequence))
            yield run.run_id, run.root_hash, verdict

    def _from_file(self, options: dict[str, Any]) -> Iterator[tuple[str, str, Verdict]]:
        wanted = set(options["run_ids"])
        with Source.open(store_at(options["file"])) as source, source.snapshot():
            for row in list(source.runs()):
                if wanted and row["run_id"] not in wanted:
                    continue
                yield (
                    row["run_id"],
                    row["root_hash"],
                    verify_run(
                        self._count(source.events(row["run_id"]), row["run_id"], row["sequence"]),
                        row,
                        source.rows_of("delivery_bindings", "run_id", row["run_id"]),
                        has_proof_columns=source.has_proof_columns,
                    ),
                )

    def _count(self, events: Iterable[Event], run_id: str, total: int) -> Iterable[Event]:
        """A progress bar, on a terminal only (tqdm's `disable=None`)."""
        disable = True if self._json else None
        return tqdm(events, desc=run_id, total=total, unit=" events", leave=False, disable=disable, file=sys.stderr)

    def _say(self, run_id: str, verdict: Verdict) -> None:
        if verdict.ok:
            self.stdout.write(
                f"{run_id}  {self.style.SUCCESS('ok')}  {verdict.sequence} events, head {verdict.event_hash}"
            )
            return
        where = f"  first broken at event {verdict.first_broken}" if verdict.first_broken is not None else ""
        more = f", {verdict.break_count} broken links" if verdict.break_count > 1 else ""
        detail = f" ({verdict.detail})" if verdict.detail else ""
        self.stdout.write(f"{run_id}  {self.style.ERROR(verdict.code)}{where}{more}{detail}")


def _as_json(run_id: str, root_hash: str, verdict: Verdict) -> dict[str, Any]:
    return {
        "run_id": run_id,
        "root_hash": root_hash,
        "verdict": verdict.code,
        "sequence": verdict.sequence,
        "event_hash": verdict.event_hash,
        "first_broken": verdict.first_broken,
    }
