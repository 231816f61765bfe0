"""`manage.py audit`: verify the audit log, export it, or print its end to be kept elsewhere."""

import json
from argparse import ArgumentParser
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from django.core.management.base import CommandError
from django.db import DatabaseError

from cadence_admin import audit
from cadence_admin.management.command import ConsoleCommand


class Command(ConsoleCommand):
    permission = "cadence_admin.view_auditentry"
    help = (
        "verify: recompute the audit log, and hold it against anchors that were kept elsewhere (exit status 1 if something "
        "doesn't hold). anchor: print the end of the log, for keeping. export: print every entry as a line of JSON."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        todo = parser.add_subparsers(dest="todo", required=True)
        verify = todo.add_parser("verify", help="recompute the log")
        verify.add_argument("--anchors", type=Path, metavar="FILE", help="what `anchor` printed, one or many lines")
        todo.add_parser("anchor", help="print the end of the log")
        export = todo.add_parser("export", help="print the entries")
        export.add_argument("--after", type=int, default=0, metavar="N", help="only what follows entry N")

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            getattr(self, f"_{options['todo']}")(options)
        except DatabaseError as error:
            raise CommandError(f"database-unavailable: {error}", returncode=2) from None

    def _verify(self, options: dict[str, Any]) -> None:
        anchors = []
        if options["anchors"]:
            try:
                anchors = audit.parse_anchors(options["anchors"].read_text())
            except (OSError, ValueError) as error:
                raise CommandError(f"anchors-unreadable: {error}", returncode=2) from None
        unknown = sorted({anchor.log for anchor in anchors} - set(audit.logs()))
        if unknown:
            raise CommandError(f"anchors-unreadable: there is no log {', '.join(unknown)}", returncode=2)
        whole = True
        for log in audit.logs():
            audited = audit.verify(log, anchors=anchors)
            whole = whole and audited.ok
            held = sum(anchor.log == log for anchor in anchors)
            if audited.ok:
                said = f"{audited.checked} entries, {held} anchors, head {audited.event_hash}"
                self.stdout.write(f"{log}  {self.style.SUCCESS('ok')}  {said}")
            for problem in audited.problems:
                self.stdout.write(f"{log}  {self.style.ERROR('broken')}  {problem}")
        if not whole:
            raise SystemExit(1)

    def _anchor(self, options: dict[str, Any]) -> None:
        for log in audit.logs():
            self.stdout.write(f"{audit.anchor(log)} {datetime.now(UTC).isoformat(timespec='seconds')}")

    def _export(self, options: dict[str, Any]) -> None:
        for log in audit.logs():
            for row in audit.stream(log, after=options["after"]):
                entry = {
                    "log": log,
                    "sequence": row.sequence,
                    "type": row.action,
                    "payload": row.payload_json,
                    "priorHash": row.prior_hash,
                    "eventHash": row.event_hash,
                }
                self.stdout.write(json.dumps(entry))
