"""The same tests on every backend."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from approvals.adapter import Adapter
from approvals.backends.base import DurableRecordBackend
from approvals.backends.database import DatabaseBackend
from approvals.backends.keyvalue import KeyValueBackend, LmdbStore
from approvals.backends.memory import MemoryBackend


@pytest.fixture(params=["memory", "lmdb", pytest.param("database", marks=pytest.mark.django_db(transaction=True))])
def backend(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[DurableRecordBackend]:
    if request.param == "database":
        request.getfixturevalue("empty_tables")
        yield DatabaseBackend()
    elif request.param == "lmdb":
        store = LmdbStore(tmp_path)
        yield KeyValueBackend(store)
        store.close()
    else:
        yield MemoryBackend()


@pytest.fixture
def adapter(backend: DurableRecordBackend) -> Adapter:
    return Adapter(backend)
