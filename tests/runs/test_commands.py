"""`mirror_cadence` and `verify_chain` as they are called."""

import json
import os
import signal
import subprocess
import sys
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from runs.models import Run
from tests.conftest import DATA, load
from tests.runs.stores import ROOT, Store
from tests.runs.test_mirror import _database_url

pytestmark = pytest.mark.django_db


def run(*arguments: str | Path) -> tuple[int, str, str]:
    out, err = StringIO(), StringIO()
    try:
        call_command(*map(str, arguments), stdout=out, stderr=err, no_color=True)
    except SystemExit as stop:
        return int(stop.code or 0), out.getvalue(), err.getvalue()
    except CommandError as error:
        return error.returncode, out.getvalue(), str(error)
    return 0, out.getvalue(), err.getvalue()


def test_mirror_then_verify_all(state_home: Path) -> None:
    status, out, _ = run("mirror_cadence", "--state-home", state_home)
    assert status == 0
    assert "18 runs (18 new, 0 changed, 0 missing), 100 new events" in out
    status, out, _ = run("verify_chain", "--all", "--json")
    assert status == 0
    runs = json.loads(out)["runs"]
    assert len(runs) == 18
    assert set(runs[0]) == {"run_id", "root_hash", "verdict", "sequence", "event_hash", "first_broken"}
    expected = {
        member["runId"]: member["projection"]
        for root in load("cadence/expected.json").values()
        for member in root["runs"]
    }
    for entry in runs:
        projection = expected[entry["run_id"]]
        assert (entry["verdict"], entry["first_broken"], entry["root_hash"]) == ("ok", None, ROOT)
        assert (entry["sequence"], entry["event_hash"]) == (projection["sequence"], projection["eventHash"])


@pytest.mark.parametrize("name", sorted(load("cadence/tampered.json") or {}))
def test_verify_a_tampered_file(name: str) -> None:
    path = DATA / "cadence" / f"{name}.sqlite3"
    expected = load("cadence/tampered.json")[name]
    status, out, _ = run("verify_chain", "--file", path, "--json")
    assert status == 1
    found = {entry["run_id"]: entry["verdict"] for entry in json.loads(out)["runs"] if entry["verdict"] != "ok"}
    assert found == expected
    status, out, _ = run("verify_chain", "--file", path, *expected)
    assert status == 1
    assert next(iter(expected.values())) in out
    assert Run.objects.count() == 0


def test_verify_one_run_of_a_file_and_of_the_database(tmp_path: Path) -> None:
    store = Store.in_state_home(tmp_path)
    store.add_run("run-1", "x")
    store.add_run("run-2", "y")
    store.execute("UPDATE events SET payload_json='{}' WHERE run_id='run-2'")
    assert run("verify_chain", "run-1", "--file", store.path)[0] == 0
    assert run("verify_chain", "--all", "--file", store.path)[0] == 1
    run("mirror_cadence", store.path)
    assert run("verify_chain", "run-1")[0] == 0
    status, out, _ = run("verify_chain", "run-2")
    assert status == 1
    assert "event-integrity-hash-chain  first broken at event 1" in out


@pytest.mark.parametrize(
    "arguments",
    [
        ["verify_chain"],
        ["verify_chain", "run-1", "--all"],
        ["verify_chain", "no-such-run"],
        ["verify_chain", "--file", "/nowhere/control.sqlite3"],
        ["verify_chain", "--file", __file__],
    ],
)
def test_verify_says_2_when_it_could_not_look(arguments: list[str]) -> None:
    status, _, err = run(*arguments)
    assert status == 2
    assert err


def test_mirror_reports_what_it_refused_and_goes_on(tmp_path: Path) -> None:
    good = Store.in_state_home(tmp_path / "home")
    good.add_run("run-1", "x")
    bad = Store.in_state_home(tmp_path / "home", root_hash="a" * 64)
    bad.execute("DROP TABLE events")
    status, out, err = run("mirror_cadence", "--state-home", tmp_path / "home")
    assert status == 1
    assert "1 runs (1 new" in out
    assert "run-store-schema-rejected" in err
    assert "no table events" in err
    status, out, _ = run("mirror_cadence", "--json", good.path.parent, bad.path)
    assert status == 1
    stores = json.loads(out)["stores"]
    assert [store["status"] for store in stores] == ["unchanged", "failed"]
    assert stores[1]["problems"][0]["code"] == "run-store-schema-rejected"


def test_mirror_names_a_divergence(tmp_path: Path) -> None:
    store = Store.in_state_home(tmp_path)
    store.add_run("run-1", "x", ["paused", "ready"])
    run("mirror_cadence", "--state-home", tmp_path)
    store.rewrite("run-1", 2, {"from": "created", "to": "paused", "code": "forged"})
    status, out, _ = run("mirror_cadence", "--state-home", tmp_path, "--json")
    assert status == 1
    assert json.loads(out)["stores"][0]["diverged"] == [
        {"run_id": "run-1", "root_hash": ROOT, "sequence": 2, "code": "event-changed"}
    ]
    status, _, err = run("mirror_cadence", "--state-home", tmp_path)
    assert "event-changed: run run-1 shows another history from event 2 on" in err
    status, out, _ = run("verify_chain", "run-1", "--json")
    assert status == 1
    (entry,) = json.loads(out)["runs"]
    assert (entry["verdict"], entry["first_broken"]) == ("chain-diverged", 2)


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["mirror_cadence", "--state-home", "/nowhere"], "state-component-missing"),
        (["mirror_cadence", "x", "--state-home", "y"], "not both"),
        (["mirror_cadence", "--watch", "0"], "above 0"),
    ],
)
def test_mirror_says_what_it_was_not_given(arguments: list[str], word: str) -> None:
    status, _, err = run(*arguments)
    assert status == 1
    assert word in err


@pytest.mark.django_db(transaction=True)
def test_watching_follows_the_source_and_stops_cleanly(tmp_path: Path) -> None:
    store = Store.in_state_home(tmp_path)
    store.add_run("run-1", "x")
    environment: dict[str, Any] = os.environ | {
        "DATABASE_URL": _database_url(),
        "DJANGO_SETTINGS_MODULE": "cadence_admin.settings",
    }
    command = [sys.executable, "manage.py", "mirror_cadence", str(store.path), "--watch", "0.05", "--json"]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        first = json.loads(process.stdout.readline())
        assert first["stores"][0]["new_runs"] == 1
        store.move("run-1", "paused")
        while json.loads(process.stdout.readline())["stores"][0]["new_events"] != 1:
            pass
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=20)
    assert process.returncode == 0
    assert Run.objects.get().state == "paused"
