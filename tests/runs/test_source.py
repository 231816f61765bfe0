"""Reading a store: every form, live and at rest, and nothing of it touched."""

import os
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from runs.source import Source, SourceChanged, SourceError, find_stores, fingerprint, root_of, settled_fingerprint
from tests.runs.stores import ROOT, Store


def snapshot_of(directory: Path) -> dict[str, tuple[bytes, int, int]]:
    return {
        path.name: (path.read_bytes(), path.stat().st_mtime_ns, path.stat().st_mode)
        for path in sorted(directory.iterdir())
    }


def read(path: Path) -> list[str]:
    with Source.open(path) as source, source.snapshot():
        return [row["run_id"] for row in source.runs()]


def code_of(path: Path) -> str:
    with pytest.raises(SourceError) as error:
        read(path)
    assert str(path) in str(error.value) or str(path.parent) in str(error.value)
    return error.value.code


@pytest.mark.parametrize("form", ["2", "4", "unversioned"])
def test_all_three_forms_are_read(tmp_path: Path, form: str) -> None:
    store = Store(tmp_path / "control.sqlite3", form=form)
    store.add_run("run-1", "x")
    with Source.open(store.path) as source:
        assert source.form == form
        assert source.has_proof_columns == (form != "2")
    assert read(store.path) == ["run-1"]


def test_tables_of_other_modules_are_no_error(tmp_path: Path) -> None:
    store = Store(tmp_path / "control.sqlite3")
    store.execute("CREATE TABLE design_notes (id INTEGER PRIMARY KEY)")
    store.execute("CREATE TABLE workflow_engine_jobs (id INTEGER PRIMARY KEY)")
    assert read(store.path) == []


def test_a_store_at_rest_in_wal_mode_is_read_and_left_as_it_was(tmp_path: Path) -> None:
    store = Store(tmp_path / "control.sqlite3")
    store.execute("PRAGMA journal_mode = WAL")
    store.add_run("run-1", "x")
    os.chmod(store.path, 0o600)
    before = snapshot_of(tmp_path)
    assert list(before) == ["control.sqlite3"]
    assert read(store.path) == ["run-1"]
    assert snapshot_of(tmp_path) == before


def test_a_store_in_a_directory_that_cannot_be_written_is_read(tmp_path: Path) -> None:
    directory = tmp_path / "sealed"
    store = Store(directory / "control.sqlite3")
    store.execute("PRAGMA journal_mode = WAL")
    store.add_run("run-1", "x")
    directory.chmod(0o500)
    try:
        assert read(store.path) == ["run-1"]
    finally:
        directory.chmod(0o700)


def test_a_live_store_is_read_while_another_process_writes(tmp_path: Path) -> None:
    store = Store(tmp_path / "control.sqlite3")
    store.execute("PRAGMA journal_mode = WAL")
    store.add_run("run-1", "x")
    with closing(sqlite3.connect(store.path, isolation_level=None)) as writer:
        writer.execute("BEGIN IMMEDIATE")
        writer.execute("INSERT INTO runs SELECT 'run-2', root_hash, stage, 'change:y', 'y', NULL, state, sequence,"
                       " event_hash, NULL, projection_json, NULL FROM runs")  # fmt: skip
        assert read(store.path) == ["run-1"]
        writer.execute("COMMIT")
        before = snapshot_of(tmp_path)
        assert set(before) == {"control.sqlite3", "control.sqlite3-wal", "control.sqlite3-shm"}
        assert read(store.path) == ["run-1", "run-2"]
        after = snapshot_of(tmp_path)
        for name in ("control.sqlite3", "control.sqlite3-wal"):
            assert after[name] == before[name]
        # One view for all reads within a snapshot, whatever is committed meanwhile.
        with Source.open(store.path) as source, source.snapshot():
            first = len(list(source.runs()))
            writer.execute("DELETE FROM runs WHERE run_id = 'run-2'")
            assert len(list(source.runs())) == first
        assert read(store.path) == ["run-1"]


def test_a_store_that_wakes_up_while_it_is_read_at_rest_is_noticed(tmp_path: Path) -> None:
    store = Store(tmp_path / "control.sqlite3")
    store.execute("PRAGMA journal_mode = WAL")
    store.add_run("run-1", "x")
    with pytest.raises(SourceChanged), Source.open(store.path) as source, source.snapshot():
        list(source.runs())
        store.move("run-1", "paused")


def test_lease_tokens_never_leave_the_file(tmp_path: Path) -> None:
    store = Store(tmp_path / "control.sqlite3")
    store.add_run("run-1", "x")
    store.execute("INSERT INTO operations VALUES ('run-1', 'op', 'lease', 'running', NULL, 'secret-token', 5)")
    with Source.open(store.path) as source, source.snapshot():
        (row,) = source.rows_of("operations", "run_id", "run-1")
    assert row["lease_held"] == 1
    assert "secret-token" not in str(row)


def test_links_and_other_things_are_refused(tmp_path: Path) -> None:
    real = Store(tmp_path / "real" / "control.sqlite3")
    (tmp_path / "linked").mkdir()
    (tmp_path / "linked" / "control.sqlite3").symlink_to(real.path)
    assert code_of(tmp_path / "linked" / "control.sqlite3") == "state-component-symlink"
    (tmp_path / "link").symlink_to(tmp_path / "real")
    assert code_of(tmp_path / "link" / "control.sqlite3") == "state-component-symlink"
    (tmp_path / "directory" / "control.sqlite3").mkdir(parents=True)
    assert code_of(tmp_path / "directory" / "control.sqlite3") == "state-component-type"
    os.mkfifo(tmp_path / "pipe")
    assert code_of(tmp_path / "pipe") == "state-component-type"
    assert code_of(tmp_path / "nothing") == "state-component-missing"
    (tmp_path / "real" / "control.sqlite3-wal").symlink_to(tmp_path / "nothing")
    assert code_of(real.path) == "state-component-symlink"


@pytest.mark.parametrize("component", ["abel-cadence", "abel-cadence/roots", f"abel-cadence/roots/{ROOT}"])
def test_a_link_anywhere_below_the_state_home_is_refused(tmp_path: Path, component: str) -> None:
    home, elsewhere = tmp_path / "home", tmp_path / "elsewhere"
    Store.in_state_home(home)
    (home / component).rename(elsewhere)
    (home / component).symlink_to(elsewhere)
    with pytest.raises(SourceError) as error:
        for path in find_stores(home):
            read(path)
    assert error.value.code == "state-component-symlink"


def test_what_is_no_run_store_is_refused_and_named(tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.write_text("not a database, but long enough to be looked at as one" * 40)
    assert code_of(text) == "run-store-unreadable"
    empty = tmp_path / "empty"
    empty.touch()
    assert code_of(empty) == "run-store-schema-rejected"
    foreign = tmp_path / "foreign"
    with closing(sqlite3.connect(foreign)) as database:
        database.execute("CREATE TABLE customers (id INTEGER)")
    with pytest.raises(SourceError, match="customers"):
        read(foreign)


def test_newer_schemas_are_refused_and_named(tmp_path: Path) -> None:
    newer = Store(tmp_path / "newer", form="unversioned")
    newer.execute("CREATE TABLE schema_meta (version INTEGER)")
    newer.execute("INSERT INTO schema_meta VALUES (5)")
    with pytest.raises(SourceError, match="version 5") as error:
        read(newer.path)
    assert error.value.code == "run-store-schema-version-rejected"
    newer.execute("INSERT INTO schema_meta VALUES (4)")
    assert code_of(newer.path) == "run-store-schema-version-rejected"
    wider = Store(tmp_path / "wider")
    wider.execute("ALTER TABLE events ADD COLUMN created_at INTEGER")
    with pytest.raises(SourceError, match="created_at") as error:
        read(wider.path)
    assert error.value.code == "run-store-schema-rejected"


def test_a_view_is_no_table(tmp_path: Path) -> None:
    store = Store(tmp_path / "control.sqlite3")
    store.execute("ALTER TABLE tasks RENAME TO tasks2")
    store.execute("CREATE VIEW tasks AS SELECT * FROM tasks2")
    assert code_of(store.path) == "run-store-schema-rejected"


def test_names_with_special_characters_are_opened(tmp_path: Path) -> None:
    store = Store(tmp_path / "a?b#c%20 d" / "control.sqlite3")
    assert read(store.path) == []


def test_the_fingerprint_changes_with_every_write(tmp_path: Path) -> None:
    store = Store(tmp_path / "control.sqlite3")
    store.execute("PRAGMA journal_mode = WAL")
    with closing(sqlite3.connect(store.path, isolation_level=None)) as writer:
        writer.execute("CREATE TABLE other (x)")
        seen = {settled_fingerprint(store.path)}
        for number in range(5):
            writer.execute("INSERT INTO other VALUES (?)", (number,))
            seen.add(settled_fingerprint(store.path))
        assert len(seen) == 6
        assert "" not in seen
        times = store.path.stat()
        before = fingerprint(store.path)
        os.utime(store.path, ns=(times.st_atime_ns, times.st_mtime_ns))
        assert fingerprint(store.path) != before  # the change time can't be set back


def test_the_directory_names_the_root(tmp_path: Path) -> None:
    assert root_of(tmp_path / ROOT / "control.sqlite3") == ROOT
    assert root_of(tmp_path / "control.sqlite3") is None
