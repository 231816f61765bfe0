"""Run stores as the real program lays them out, written by the tests."""

import hashlib
import json
import sqlite3
from collections.abc import Iterable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from cadence_admin.javascript import parse_json, stringify
from runs.chain import ZERO_HASH, Event, create_event
from runs.lifecycle import Reducer

ROOT = hashlib.sha256(b"/srv/projects/storefront").hexdigest()
PROOF = {"revision": 1, "contractHash": "c" * 64, "recordHash": "d" * 64}

_PROOF_SQL = "approval_revision INTEGER, contract_hash TEXT, record_hash TEXT,"
_SCHEMA = """
CREATE TABLE runs (run_id TEXT PRIMARY KEY, root_hash TEXT NOT NULL, stage TEXT NOT NULL, lookup_key TEXT NOT NULL,
  change_name TEXT, provisional_key TEXT, state TEXT NOT NULL, sequence INTEGER NOT NULL, event_hash TEXT NOT NULL,
  delivery_revision INTEGER, projection_json TEXT NOT NULL, terminal_tombstone TEXT,
  UNIQUE (root_hash, stage, lookup_key)) STRICT;
CREATE TABLE delivery_bindings (run_id TEXT NOT NULL REFERENCES runs(run_id) ON DELETE CASCADE, gate TEXT NOT NULL,
  revision INTEGER NOT NULL, receipt_hash TEXT NOT NULL, {proof} operation_id TEXT NOT NULL,
  PRIMARY KEY (run_id, gate, revision), UNIQUE (run_id, operation_id)) STRICT;
CREATE TABLE events (run_id TEXT NOT NULL REFERENCES runs(run_id) ON DELETE CASCADE, sequence INTEGER NOT NULL,
  type TEXT NOT NULL, payload_json TEXT NOT NULL, prior_hash TEXT NOT NULL, event_hash TEXT NOT NULL,
  PRIMARY KEY (run_id, sequence), UNIQUE (run_id, event_hash)) STRICT;
CREATE TABLE tasks (run_id TEXT NOT NULL, task_id TEXT NOT NULL, state TEXT NOT NULL, phase TEXT,
  projection_json TEXT NOT NULL, PRIMARY KEY (run_id, task_id)) STRICT;
CREATE TABLE operations (run_id TEXT NOT NULL, operation_id TEXT NOT NULL, kind TEXT NOT NULL, state TEXT NOT NULL,
  outcome_json TEXT, lease_token TEXT, lease_expires_at INTEGER, PRIMARY KEY (run_id, operation_id)) STRICT;
CREATE TABLE route_health (route_fingerprint TEXT PRIMARY KEY, state TEXT NOT NULL, next_half_open_at INTEGER,
  projection_json TEXT NOT NULL) STRICT;
CREATE TABLE artifacts (content_hash TEXT PRIMARY KEY, size_bytes INTEGER NOT NULL, seal_state TEXT NOT NULL,
  owner_run_id TEXT, reference_count INTEGER NOT NULL) STRICT;
CREATE TABLE workspace_revisions (revision_id TEXT PRIMARY KEY, owner_run_id TEXT NOT NULL, parent_revision_id TEXT,
  manifest_hash TEXT NOT NULL) STRICT;
CREATE TABLE apply_transactions (transaction_id TEXT PRIMARY KEY, owner_run_id TEXT NOT NULL, state TEXT NOT NULL,
  intent_json TEXT NOT NULL, recovery_json TEXT) STRICT;
CREATE TABLE bootstrap_handoffs (handoff_id TEXT PRIMARY KEY, owner_run_id TEXT NOT NULL,
  receipt_hash TEXT NOT NULL UNIQUE, state TEXT NOT NULL, facts_json TEXT NOT NULL) STRICT;
"""


class Store:
    """A `control.sqlite3` to write to, as a Cadence process would."""

    def __init__(self, path: Path, *, form: str = "4", root_hash: str = ROOT) -> None:
        self.path = path
        self.root_hash = root_hash
        path.parent.mkdir(parents=True, exist_ok=True)
        with closing(sqlite3.connect(path)) as database:
            database.executescript(_SCHEMA.format(proof="" if form == "2" else _PROOF_SQL))
            if form in ("2", "4"):
                database.executescript(
                    f"CREATE TABLE schema_meta (version INTEGER PRIMARY KEY CHECK (version = {form})) STRICT;"
                    f"INSERT INTO schema_meta VALUES ({form});"
                )

    @classmethod
    def in_state_home(cls, home: Path, *, root_hash: str = ROOT, form: str = "4") -> "Store":
        return cls(home / "abel-cadence" / "roots" / root_hash / "control.sqlite3", form=form, root_hash=root_hash)

    def execute(self, statement: str, parameters: Sequence[Any] = ()) -> list[Any]:
        with closing(sqlite3.connect(self.path)) as database, database:
            return database.execute(statement, parameters).fetchall()

    def add_run(self, run_id: str, change: str, moves: Iterable[str] = (), *, stage: str = "abel-implement") -> None:
        payload = {"runId": run_id, "rootHash": self.root_hash, "stage": stage, "change": change}
        event = create_event(1, "run-created", payload, ZERO_HASH)
        reducer = Reducer()
        reducer.apply(event, payload)
        projection = reducer.projection()
        self.execute(
            "INSERT INTO runs VALUES (?,?,?,?,?,NULL,?,1,?,NULL,?,NULL)",
            (
                run_id,
                self.root_hash,
                stage,
                f"change:{change}",
                change,
                "created",
                event.event_hash,
                stringify(projection),
            ),
        )
        self._insert(run_id, event)
        self.move(run_id, *moves)

    def move(self, run_id: str, *states: str, code: str | None = None) -> None:
        for state in states:
            current = self.projection(run_id)["state"]
            self.append(run_id, "state-transitioned", {"from": current, "to": state} | ({"code": code} if code else {}))

    def append(self, run_id: str, type: str, payload: dict[str, Any]) -> Event:
        projection = self.projection(run_id)
        event = create_event(projection["sequence"] + 1, type, payload, projection["eventHash"])
        reducer = Reducer(projection)
        reducer.apply(event, payload)
        projection = reducer.projection()
        self._insert(run_id, event)
        self._store(run_id, projection)
        return event

    def bind(self, run_id: str, gate: str, revision: int, *, proof: dict[str, Any] | None = None) -> None:
        receipt = hashlib.sha256(f"{run_id} {gate} {revision}".encode()).hexdigest()
        payload: dict[str, Any] = {"gate": gate, "revision": revision, "receiptHash": receipt}
        values: list[Any] = [run_id, gate, revision, receipt]
        if proof:
            payload["approvalProof"] = proof
        columns = "run_id, gate, revision, receipt_hash"
        if proof:
            columns += ", approval_revision, contract_hash, record_hash"
            values += [proof["revision"], proof["contractHash"], proof["recordHash"]]
        self.execute(
            f"INSERT INTO delivery_bindings({columns}, operation_id) VALUES ({','.join('?' * len(values))},?)",
            (*values, f"bind-{gate}-{revision}"),
        )
        self.append(run_id, "delivery-bound", payload)

    def projection(self, run_id: str) -> dict[str, Any]:
        ((text,),) = self.execute("SELECT projection_json FROM runs WHERE run_id = ?", (run_id,))
        projection: dict[str, Any] = parse_json(text)
        return projection

    def rewrite(self, run_id: str, sequence: int, payload: dict[str, Any]) -> None:
        """Rewrite the history from `sequence` on, with right hashes and a right projection: a perfect forgery."""
        rows = self.execute(
            "SELECT sequence, type, payload_json FROM events WHERE run_id = ? ORDER BY sequence", (run_id,)
        )
        self.execute("DELETE FROM events WHERE run_id = ?", (run_id,))
        reducer = Reducer()
        prior = ZERO_HASH
        for number, type, text in rows:
            said = payload if number == sequence else parse_json(text)
            event = create_event(number, type, said, prior)
            self._insert(run_id, event)
            reducer.apply(event, said)
            prior = event.event_hash
        self._store(run_id, reducer.projection())

    def _insert(self, run_id: str, event: Event) -> None:
        self.execute(
            "INSERT INTO events VALUES (?,?,?,?,?,?)",
            (run_id, event.sequence, event.type, event.payload_json, event.prior_hash, event.event_hash),
        )

    def _store(self, run_id: str, projection: dict[str, Any]) -> None:
        self.execute(
            "UPDATE runs SET state=?, sequence=?, event_hash=?, delivery_revision=?, projection_json=?,"
            " terminal_tombstone=? WHERE run_id=?",
            (
                projection["state"],
                projection["sequence"],
                projection["eventHash"],
                projection.get("deliveryRevision"),
                json.dumps(projection),
                projection.get("terminal"),
                run_id,
            ),
        )


def chain(length: int, run_id: str = "run-1") -> list[Event]:
    """A legal chain of `length` events in memory: created, then paused over and over."""
    payload: dict[str, Any] = {"runId": run_id, "rootHash": ROOT, "stage": "abel-implement", "change": "x"}
    events = [create_event(1, "run-created", payload, ZERO_HASH)]
    state = "created"
    while len(events) < length:
        payload = {"from": state, "to": "paused", "code": f"code-{len(events)}"}
        events.append(create_event(len(events) + 1, "state-transitioned", payload, events[-1].event_hash))
        state = "paused"
    return events
