"""`manage.py reclaim_leases`: interrupt operations whose lease ran out."""

import json
from argparse import ArgumentParser
from dataclasses import asdict
from typing import Any

from django.core.management.base import CommandError

from cadence_admin.management.command import ConsoleCommand
from cadence_admin.management.watching import watch
from cadence_admin.wording import duration
from runs.reclaiming import reclaim
from runs.source import SourceError


class Command(ConsoleCommand):
    permission = "runs.reclaim_operation"
    help = (
        "Interrupt operations whose lease ran out, of our own runs and, in their own stores, of mirrored ones. A live lease "
        "is never taken. Several of these may run at once. Exit status 1 if something was busy or could not be written."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--dry-run", action="store_true", help="say what would be reclaimed, and change nothing")
        parser.add_argument("--root", default="", metavar="HASH", help="only of this state root")
        parser.add_argument(
            "--older-than", type=float, default=0, metavar="SECONDS", help="only what is longer overdue"
        )
        parser.add_argument("--limit", type=int, metavar="N", help="at most N operations")
        parser.add_argument("--pause", action="store_true", help="pause the runs too (never a mirrored one)")
        parser.add_argument("--reason", default="reclaim_leases", help="kept with each operation")
        parser.add_argument("--watch", type=float, metavar="SECONDS", help="go on, with a round every SECONDS")
        parser.add_argument("--json", action="store_true", help="print one JSON object for each operation")

    def handle(self, *args: Any, **options: Any) -> None:
        if options["older_than"] < 0 or (options["limit"] is not None and options["limit"] < 1):
            raise CommandError("--older-than takes a number from 0, --limit one from 1")
        if options["watch"] is None:
            if not self._round(options):
                raise SystemExit(1)
            return
        watch(options["watch"], lambda: self._round(options), self.stderr)

    def _round(self, options: dict[str, Any]) -> bool:
        whole = True
        try:
            for result in reclaim(
                root_hash=options["root"],
                older_than_ms=int(options["older_than"] * 1000),
                limit=options["limit"],
                pause=options["pause"],
                reason=options["reason"],
                dry_run=options["dry_run"],
            ):
                whole = whole and result.result != "busy"
                if options["json"]:
                    self.stdout.write(json.dumps(asdict(result)))
                    continue
                said = "would be reclaimed" if options["dry_run"] else result.result
                paused = ", run paused" if result.paused else ""
                self.stdout.write(
                    f"{result.run_id} {result.operation_id}: {said}{paused} ({duration(result.overdue_ms)} overdue)"
                )
        except SourceError as error:
            self.stderr.write(self.style.ERROR(f"{error.code}: {error}"))
            return False
        return whole
