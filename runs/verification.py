"""The verdict on one run: its chain, and everything else that a store says of it.

Plain functions over plain data. The real program's own verdicts come first and under its own codes; after them come the
two that it misses: `run-columns-mismatch` and `delivery-bindings-mismatch`.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from cadence_admin.javascript import JsonError, canonical_json, parse_json
from runs.chain import ZERO_HASH, ChainError, Event, check_links
from runs.lifecycle import TERMINAL_STATES, Projection, Reducer

OK: Final = "ok"
MAX_LISTED_BREAKS: Final = 20

BINDING_COLUMNS: Final = ("gate", "revision", "receipt_hash", "approval_revision", "contract_hash", "record_hash")


@dataclass(frozen=True, slots=True)
class Verdict:
    """What recomputing one run came to.

    `code` is `ok` or the code of the first thing that is wrong, `detail` says it for people. `first_broken` is the
    sequence at which the chain first breaks (the missing one where one is missing), `breaks` lists up to
    `MAX_LISTED_BREAKS` of all `break_count` broken links. `sequence` and `event_hash` are the head that was found.
    `projection` is what the events add up to, None if they don't.
    """

    code: str
    detail: str = ""
    sequence: int = 0
    event_hash: str = ZERO_HASH
    first_broken: int | None = None
    breaks: tuple[int, ...] = ()
    break_count: int = 0
    projection: Projection | None = None

    @property
    def ok(self) -> bool:
        return self.code == OK


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """An earlier `ok` from which verification may go on: the head it covered and the projection up to there."""

    sequence: int
    event_hash: str
    projection: Projection


def verify_run(
    events: Iterable[Event],
    columns: Mapping[str, Any],
    bindings: Iterable[Mapping[str, Any]],
    *,
    has_proof_columns: bool = True,
    after: Checkpoint | None = None,
) -> Verdict:
    """Recompute a run in one pass, with one event in memory at a time.

    `columns` is the row of `runs`, `bindings` the rows of `delivery_bindings`, under the seed's column names;
    `has_proof_columns` is false for the old form, whose bindings lack the approval columns. With `after`, `events` are
    those past the checkpoint only.
    """
    reducer = Reducer(after.projection if after else None)
    sequence, event_hash = (after.sequence, after.event_hash) if after else (0, ZERO_HASH)
    problem: ChainError | None = None
    first_broken: int | None = None
    breaks: list[int] = []
    break_count = 0
    for link in check_links(events, after_sequence=sequence, after_hash=event_hash):
        sequence, event_hash = link.event.sequence, link.event.event_hash
        if not link.holds:
            break_count += 1
            if break_count <= MAX_LISTED_BREAKS:
                breaks.append(link.expected_sequence)
        if problem is None:
            try:
                if link.code:
                    raise ChainError(link.code, link.payload_problem)
                reducer.apply(link.event, link.payload)
            except ChainError as error:
                problem, first_broken = error, link.expected_sequence
    projection: Projection | None = None
    if problem is None:
        try:
            projection = reducer.projection()
            _check_projection(projection, columns)
            _check_columns(projection, columns)
            _check_bindings(projection, bindings, has_proof_columns)
        except ChainError as error:
            problem = error
            if projection is None and sequence:
                first_broken = sequence
    return Verdict(
        code=problem.code if problem else OK,
        detail=str(problem) if problem and str(problem) != problem.code else "",
        sequence=sequence,
        event_hash=event_hash,
        first_broken=first_broken,
        breaks=tuple(breaks),
        break_count=break_count,
        projection=projection,
    )


def _check_projection(rebuilt: Projection, columns: Mapping[str, Any]) -> None:
    try:
        stored = parse_json(columns["projection_json"])
    except JsonError as error:
        raise ChainError("run-projection-invalid", str(error)) from None
    if not isinstance(stored, dict) or not isinstance(stored.get("runId"), str):
        raise ChainError("run-projection-invalid", "the stored projection is no projection of a run")
    # As canonical text, so that values are compared and member order and Python's True == 1 are not.
    if canonical_json(stored) != canonical_json(rebuilt):
        names = sorted(
            name
            for name in stored.keys() | rebuilt.keys()
            if (name in stored) != (name in rebuilt) or canonical_json(stored[name]) != canonical_json(rebuilt[name])
        )
        raise ChainError("run-projection-integrity-mismatch", f"stored and rebuilt differ in {', '.join(names)}")


def _check_columns(rebuilt: Projection, columns: Mapping[str, Any]) -> None:
    expected = {
        "run_id": rebuilt["runId"],
        "root_hash": rebuilt["rootHash"],
        "stage": rebuilt["stage"],
        "change_name": rebuilt.get("change") or None,
        "provisional_key": rebuilt.get("provisionalKey") or None,
        "state": rebuilt["state"],
        "sequence": rebuilt["sequence"],
        "event_hash": rebuilt["eventHash"],
        "delivery_revision": rebuilt.get("deliveryRevision"),
        "terminal_tombstone": rebuilt.get("terminal"),
    }
    names = [name for name, value in expected.items() if columns[name] != value]
    if columns["lookup_key"] not in _lookup_keys(rebuilt):
        names.append("lookup_key")
    if names:
        raise ChainError("run-columns-mismatch", f"columns of runs that the chain contradicts: {', '.join(names)}")


def _lookup_keys(rebuilt: Projection) -> set[str]:
    change = rebuilt.get("change")
    keys = {f"change:{change}" if change else f"provisional:{rebuilt['provisionalKey']}"}
    if rebuilt["stage"] == "abel-design" and rebuilt["state"] in TERMINAL_STATES:
        keys.add(f"terminal:{rebuilt['runId']}")
    return keys


def _check_bindings(rebuilt: Projection, rows: Iterable[Mapping[str, Any]], has_proof_columns: bool) -> None:
    names = BINDING_COLUMNS if has_proof_columns else BINDING_COLUMNS[:3]
    stored = {(row["gate"], row["revision"]): tuple(row[name] for name in names) for row in rows}
    expected = {}
    for entry in rebuilt["deliveryBindings"]:
        proof = entry.get("approvalProof", {})
        values: tuple[Any, ...] = (entry["gate"], entry["revision"], entry["receiptHash"])
        if has_proof_columns:
            values += (proof.get("revision"), proof.get("contractHash"), proof.get("recordHash"))
        expected[values[:2]] = values
    wrong = sorted(key for key in stored.keys() | expected.keys() if stored.get(key) != expected.get(key))
    if wrong:
        listed = ", ".join(f"{gate} revision {revision}" for gate, revision in wrong[:MAX_LISTED_BREAKS])
        raise ChainError(
            "delivery-bindings-mismatch", f"rows of delivery_bindings that the chain contradicts: {listed}"
        )
