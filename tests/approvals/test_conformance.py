"""Every rule of a backend, on every backend; and the rules notice a backend that breaks them."""

from dataclasses import replace
from io import StringIO
from typing import Any

import pytest
from django.core.management import call_command

from approvals import conformance
from approvals.adapter import Adapter
from approvals.backends.base import Lease, Page
from approvals.backends.database import DatabaseBackend
from approvals.backends.memory import MemoryBackend
from approvals.conformance import CHECKS, NotConforming
from approvals.records import Approval, Record, RecordError


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.name)
def test_each_backend_conforms(adapter: Adapter, check: conformance.Check) -> None:
    check.run(adapter)


class DecidesTwice(MemoryBackend):
    def compare_and_set(self, kind: Any, id: str, expected_version: int, record: Record) -> bool:
        current = self.get(kind, id)
        if current is None:
            return False
        return super().compare_and_set(kind, id, current.version, replace(record, version=current.version + 1))


class SkipsOne(MemoryBackend):
    def scan(self, kind: Any, **values: Any) -> Page:
        page = super().scan(kind, **values)
        return replace(page, cursor=page.cursor and page.cursor + "~")


class Shortens(MemoryBackend):
    def renew_lease(self, name: str, owner: str, token: str, lease_ms: int, now: int | None = None) -> bool:
        held = super().renew_lease(name, owner, token, lease_ms, now)
        if held:
            self._leases[name] = replace(self._leases[name], expires_at=(now or 0) + lease_ms)
        return held


class Steals(MemoryBackend):
    def acquire_lease(self, name: str, owner: str, lease_ms: int, now: int | None = None) -> Lease | None:
        self._leases.pop(name, None)
        return super().acquire_lease(name, owner, lease_ms, now)


class LetsTheDeadWrite(MemoryBackend):
    def checkpoint_lease(
        self, name: str, owner: str, token: str, cursor: str | None = None, now: int | None = None
    ) -> bool:
        return super().checkpoint_lease(name, owner, token, cursor, 2)


@pytest.mark.parametrize("broken", [DecidesTwice, SkipsOne, Shortens, Steals, LetsTheDeadWrite])
def test_a_backend_that_breaks_a_rule_is_found_out(broken: type[MemoryBackend]) -> None:
    failed = []
    for check in CHECKS:
        try:
            check.run(Adapter(broken()))
        except (NotConforming, RecordError, AssertionError):
            failed.append(check.name)
    assert failed


@pytest.mark.django_db(transaction=True)
def test_the_command_prints_a_table() -> None:
    out = StringIO()
    call_command("conformance", stdout=out, no_color=True)
    assert f"{len(CHECKS)} of {len(CHECKS)} hold" in out.getvalue()


@pytest.mark.django_db(transaction=True)
def test_the_command_fails_with_its_database(monkeypatch: pytest.MonkeyPatch) -> None:
    def decide_at_once(*arguments: Any) -> bool:
        return True

    monkeypatch.setattr(DatabaseBackend, "decide_at_once", decide_at_once)
    out = StringIO()
    with pytest.raises(SystemExit):
        call_command("conformance", stdout=out, no_color=True)
    assert "failed  of many decisions at once, one counts" in out.getvalue()


def test_a_lost_race_answers_what_really_happened() -> None:
    """The seed answers replay whenever its compare-and-set is lost, whatever became of the approval."""
    backend = MemoryBackend()
    adapter = Adapter(backend)
    one = conformance.approval(state="approved", expires_at=conformance.FAR)
    adapter.approvals.create(one)

    class Loses(MemoryBackend):
        def get(self, kind: Any, id: str) -> Record | None:
            return backend.get(kind, id)

        def compare_and_set(self, kind: Any, id: str, expected_version: int, record: Record) -> bool:
            current = backend.get(kind, id)
            assert isinstance(current, Approval)
            backend.compare_and_set(kind, id, current.version, current.expired(1))
            return False

    answer = Adapter(Loses()).approvals.consume(
        one.approval_id, binding=conformance.BINDING, token_hash=conformance.HASH, now=50
    )
    assert answer == "expired"
