"""`manage.py mirror_cadence`: bring Cadence state roots into the database."""

import json
import time
from argparse import ArgumentParser
from dataclasses import asdict
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.base import CommandError

from cadence_admin.management.command import ConsoleCommand
from cadence_admin.management.watching import watch
from runs.mirror import StoreReport, mirror_state_home, mirror_stores
from runs.source import SourceError, store_at

RECHECK_EVERY_S = 600


class Command(ConsoleCommand):
    permission = "runs.change_stateroot"
    help = (
        "Mirror Cadence run stores, read-only and incrementally. Without PATH: every state root under the state home. "
        "Exit status 1 if a store could not be read whole or shows another history than before."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("paths", nargs="*", type=Path, metavar="PATH", help="a control.sqlite3, or its directory")
        parser.add_argument(
            "--state-home", type=Path, metavar="DIR", help=f"holds abel-cadence/roots (default {settings.STATE_HOME})"
        )
        parser.add_argument(
            "--watch",
            type=float,
            metavar="SECONDS",
            help=f"go on, with a pass every SECONDS; all events are compared every {RECHECK_EVERY_S // 60} minutes",
        )
        parser.add_argument("--json", action="store_true", help="print one JSON object per pass")

    def handle(self, *args: Any, **options: Any) -> None:
        if options["paths"] and options["state_home"]:
            raise CommandError("give PATHs or --state-home, not both")
        if options["watch"] is None:
            if not all(report.clean for report in self._pass(options, recheck=True)):
                raise SystemExit(1)
            return
        self._rechecked = -float("inf")
        watch(options["watch"], lambda: self._watched_pass(options), self.stderr)

    def _watched_pass(self, options: dict[str, Any]) -> None:
        recheck = time.monotonic() - self._rechecked >= RECHECK_EVERY_S
        try:
            self._pass(options, recheck=recheck)
        except CommandError as error:
            self.stderr.write(str(error))
            return
        if recheck:
            self._rechecked = time.monotonic()

    def _pass(self, options: dict[str, Any], *, recheck: bool) -> list[StoreReport]:
        say = None if options["json"] else self._say
        if options["paths"]:
            reports = mirror_stores([store_at(path) for path in options["paths"]], recheck=recheck, on_report=say)
        else:
            home = options["state_home"] or settings.STATE_HOME
            try:
                reports = mirror_state_home(home, recheck=recheck, on_report=say)
            except SourceError as error:
                raise CommandError(f"{error.code}: {error}") from None
            if say and not reports:
                self.stdout.write(f"{home} holds no state roots yet.")
        if options["json"]:
            self.stdout.write(json.dumps({"stores": [asdict(report) for report in reports]}))
        return reports

    def _say(self, report: StoreReport) -> None:
        if report.status == "unchanged":
            if self._verbose:
                self.stdout.write(f"{report.path}: unchanged")
            return
        if report.status == "mirrored":
            self.stdout.write(
                f"{report.path}: {report.runs} runs ({report.new_runs} new, {report.changed_runs} changed, "
                f"{report.missing_runs} missing), {report.new_events} new events"
            )
        for found in report.diverged:
            self.stderr.write(
                self.style.ERROR(
                    f"{found.code}: run {found.run_id} shows another history from event {found.sequence} on"
                )
            )
        for problem in report.problems:
            self.stderr.write(self.style.ERROR(f"{problem.code}: {problem.message}"))

    def execute(self, *args: Any, **options: Any) -> str | None:
        self._verbose = options["watch"] is None or options["verbosity"] > 1
        return super().execute(*args, **options)
