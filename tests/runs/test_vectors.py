"""The rules and the readers, held against what the real program wrote."""

import hashlib
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from cadence_admin.javascript import canonical_json, parse_json, stringify
from runs.chain import ZERO_HASH, check_links, create_event, event_hash, sha256_hex
from runs.lifecycle import LEGAL_MOVES, RUN_STATES, TASK_STATES, Reducer, legal_commands, reduce_events
from runs.source import COLUMNS, Source
from runs.verification import Verdict, verify_run
from tests.conftest import DATA, entries, load

pytestmark = pytest.mark.vectors


def databases() -> list[Any]:
    found = sorted((DATA / "cadence").glob("*.sqlite3")) + sorted(
        (DATA / "cadence").glob("state-home/*/roots/*/*.sqlite3")
    )
    if not found:
        return [pytest.param(None, marks=pytest.mark.skip(f"no *.sqlite3 under {DATA / 'cadence'}"))]
    return [pytest.param(path, id=str(path.relative_to(DATA))) for path in found]


def store_of(root_hash: str) -> Path:
    path = DATA / "cadence" / "state-home" / "abel-cadence" / "roots" / root_hash / "control.sqlite3"
    if not path.exists():
        pytest.skip(f"{path} is not there")
    return path


def verdicts(path: Path) -> dict[str, Verdict]:
    with Source.open(path) as source, source.snapshot():
        return {
            row["run_id"]: verify_run(
                source.events(row["run_id"]),
                row,
                source.rows_of("delivery_bindings", "run_id", row["run_id"]),
                has_proof_columns=source.has_proof_columns,
            )
            for row in list(source.runs())
        }


@pytest.mark.parametrize("entry", entries("cadence/canonical.json"))
def test_canonical_text_and_its_hash(entry: dict[str, str]) -> None:
    text = canonical_json(parse_json(entry["text"]))
    assert text == entry["canonical"]
    assert sha256_hex(text) == entry["sha256"]
    assert canonical_json(parse_json(text)) == text


@pytest.mark.parametrize("entry", entries("cadence/events.json"))
def test_event_canonical_text_hash_and_construction(entry: dict[str, Any]) -> None:
    payload = parse_json(entry["payload_json"])
    members = {
        "sequence": entry["sequence"],
        "type": entry["type"],
        "payload": payload,
        "priorHash": entry["prior_hash"],
    }
    assert canonical_json(members) == entry["canonical"]
    assert event_hash(entry["sequence"], entry["type"], payload, entry["prior_hash"]) == entry["event_hash"]
    made = create_event(entry["sequence"], entry["type"], payload, entry["prior_hash"])
    assert made.event_hash == entry["event_hash"]
    assert made.payload_json == entry["payload_json"] == stringify(payload)


def test_states_moves_and_commands() -> None:
    expected = load("cadence/transitions.json")
    if expected is None:
        pytest.skip(f"{DATA / 'cadence/transitions.json'} is not there")
    assert list(RUN_STATES) == expected["states"]
    assert list(TASK_STATES) == expected["taskStates"]
    assert {state: list(targets) for state, targets in LEGAL_MOVES.items()} == expected["legal"]
    assert {state: list(legal_commands(state)) for state in RUN_STATES} == expected["commands"]
    assert expected["zeroHash"] == ZERO_HASH


def expected_runs() -> list[Any]:
    found = load("cadence/expected.json")
    if found is None:
        return [pytest.param("", {}, marks=pytest.mark.skip(f"{DATA / 'cadence/expected.json'} is not there"))]
    return [pytest.param(root, run, id=run["runId"]) for root, member in found.items() for run in member["runs"]]


@pytest.mark.parametrize(("root_hash", "expected"), expected_runs())
def test_what_the_real_program_says_of_each_run(root_hash: str, expected: dict[str, Any]) -> None:
    path = store_of(root_hash)
    with Source.open(path) as source, source.snapshot():
        row = source.run(expected["runId"])
        events = list(source.events(expected["runId"]))
    assert row is not None
    assert row["lookup_key"] == expected["lookupKey"]
    assert canonical_json(parse_json(row["projection_json"])) == canonical_json(expected["projection"])
    assert len(events) == expected["events"]
    chain = [
        {
            "sequence": event.sequence,
            "type": event.type,
            "payload": parse_json(event.payload_json),
            "priorHash": event.prior_hash,
            "hash": event.event_hash,
        }
        for event in events
    ]
    assert canonical_json(chain) == canonical_json(expected["chain"])
    assert canonical_json(reduce_events(events)) == canonical_json(expected["rebuilt"])
    # One by one, each step resumed from the projection before it, comes to the same.
    projection = None
    for link in check_links(events):
        reducer = Reducer(projection)
        reducer.apply(link.event, link.payload)
        projection = reducer.projection()
    assert canonical_json(projection) == canonical_json(expected["rebuilt"])


def test_the_state_home_as_a_whole() -> None:
    expected = load("cadence/expected.json")
    if expected is None:
        pytest.skip(f"{DATA / 'cadence/expected.json'} is not there")
    for root_hash, member in expected.items():
        assert hashlib.sha256(member["root"].encode()).hexdigest() == root_hash
        path = store_of(root_hash)
        assert [run["runId"] for run in member["runs"]] == sorted(verdicts(path))
        assert {verdict.code for verdict in verdicts(path).values()} == {"ok"}
        with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as database:
            states = database.execute("SELECT state, count(*) FROM operations GROUP BY state ORDER BY state").fetchall()
        assert states == [(entry["state"], entry["n"]) for entry in member["operations"]]


@pytest.mark.parametrize("path", databases())
def test_each_database_gets_exactly_its_verdicts(path: Path) -> None:
    tampered = load("cadence/tampered.json")
    if tampered is None:
        pytest.skip(f"{DATA / 'cadence/tampered.json'} is not there")
    expected = tampered.get(path.stem, {})
    found = verdicts(path)
    assert found
    assert {run_id: verdict.code for run_id, verdict in found.items() if not verdict.ok} == expected


def test_each_tampered_database_is_there() -> None:
    tampered = load("cadence/tampered.json")
    if tampered is None:
        pytest.skip(f"{DATA / 'cadence/tampered.json'} is not there")
    missing = [name for name in tampered if not (DATA / "cadence" / f"{name}.sqlite3").exists()]
    if missing:
        pytest.skip(f"not there in {DATA / 'cadence'}: {', '.join(f'{name}.sqlite3' for name in missing)}")


@pytest.mark.parametrize("path", databases())
def test_every_table_can_be_read(path: Path) -> None:
    with (
        Source.open(path) as source,
        source.snapshot(),
        closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as raw,
    ):
        for table in COLUMNS:
            assert (
                len(list(source.rows_of(table, "", None))) == raw.execute(f"SELECT count(*) FROM {table}").fetchone()[0]
            )


def test_every_file_is_the_one_that_was_written() -> None:
    """What no rule can tell (a task's state, say) is still noticed: the folder's own sums, where it has them."""
    sums = DATA / "SHA256SUMS"
    if not sums.exists():
        pytest.skip(f"{sums} is not there")
    expected = dict(reversed(line.split("  ")) for line in sums.read_text().splitlines())
    found = {
        str(path.relative_to(DATA)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in DATA.rglob("*")
        if path.is_file() and path != sums
    }
    assert found == expected
