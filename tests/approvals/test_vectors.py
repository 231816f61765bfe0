"""The wire codec, the tokens, the stores and the findings, held against what the real program wrote."""

import sqlite3
from contextlib import closing
from typing import Any

import pytest

from approvals import wire
from approvals.adapter import Adapter
from approvals.backends.base import Lease
from approvals.coordinator import ApprovalCoordinator, ApprovalError
from approvals.reconcile import all_findings
from approvals.records import CLASSES, Binding, RecordError, read_record
from approvals.tokens import TokenError, hash_token, sign, verify
from cadence_admin.javascript import canonical_json
from tests.conftest import DATA, entries, load

pytestmark = pytest.mark.vectors

ERRORS = {
    "ApprovalPendingError": "approval-pending",
    "ApprovalDeniedError": "approval-denied",
    "ApprovalBindingError": "approval-binding",
    "ApprovalTokenReplayError": "approval-replay",
    "ApprovalTokenExpiredError": "approval-expired",
}


@pytest.mark.parametrize("entry", entries("nifra/wire.json"))
def test_every_value_round_trips_to_the_same_text(entry: dict[str, str]) -> None:
    assert wire.dumps(wire.loads(entry["text"])) == entry["text"]


@pytest.mark.parametrize("entry", entries("nifra/wire-bad.json"))
def test_bad_wire_is_refused_with_the_same_message(entry: dict[str, str]) -> None:
    expected = {"SyntaxError": wire.WireSyntaxError, "WireDecodeError": wire.WireDecodeError}[entry["error"]]
    with pytest.raises(expected) as error:
        wire.loads(entry["text"])
    assert str(error.value) == entry["message"]


@pytest.mark.parametrize("entry", entries("nifra/records.json"))
def test_every_record_is_read_and_written_as_it_was(entry: dict[str, Any]) -> None:
    record = read_record(entry["kind"], wire.loads(entry["payload"]))
    record.validate()
    assert wire.dumps(record.to_members()) == entry["payload"]
    assert (record.id, record.state, record.updated_at, record.version) == (
        entry["id"],
        entry["state"],
        entry["updated_at"],
        entry["version"],
    )
    assert canonical_json(as_json(record.to_members())) == canonical_json(entry["record"])


def test_the_database_holds_the_records_that_the_list_says() -> None:
    path, records = DATA / "nifra" / "records.sqlite3", load("nifra/records.json")
    leases = load("nifra/leases.json")
    if not path.exists() or records is None or leases is None:
        pytest.skip(f"{path}, records.json or leases.json is not there")
    with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as database:
        database.row_factory = sqlite3.Row
        rows = [dict(row) for row in database.execute("SELECT * FROM nifra_durable_records ORDER BY kind, id")]
        held = [dict(row) for row in database.execute("SELECT * FROM nifra_durable_leases ORDER BY name")]
    listed = sorted(records, key=lambda entry: (entry["kind"], entry["id"]))
    assert rows == [{name: entry[name] for name in rows[0]} for entry in listed]
    assert held == sorted(leases, key=lambda entry: entry["name"])


def as_json(value: Any) -> Any:
    """A wire value as the lists of the real program print it."""
    if isinstance(value, dict):
        return {key: as_json(item) for key, item in value.items() if item is not wire.UNDEFINED}
    if isinstance(value, list):
        return [as_json(item) for item in value]
    if isinstance(value, wire.Set):
        return [as_json(item) for item in value.items]
    if isinstance(value, wire.BigInt):
        return f"{value.digits}n"
    return value.iso if isinstance(value, wire.Date) else value


def approvals_of_the_file() -> list[Any]:
    found = load("nifra/approvals.json")
    if found is None:
        path = DATA / "nifra" / "approvals.json"
        return [pytest.param("", {}, marks=pytest.mark.skip(f"{path} is not there"), id="approvals.json not there")]
    return [pytest.param(found["secretUtf8"], entry, id=f"approvals.json-{entry['n']}") for entry in found["approvals"]]


@pytest.mark.parametrize(("secret", "entry"), approvals_of_the_file())
def test_tokens_are_signed_read_and_hashed_alike(secret: str, entry: dict[str, Any]) -> None:
    record = entry["record"]
    repeated = {"effectId": "effectId", "approvalId": "approvalId", "capability": "cap", "target": "target",
                "digest": "digest", "tenantId": "tenantId", "principalId": "principalId"}  # fmt: skip
    assert {name: record.get(name) for name in repeated} == {name: entry.get(key) for name, key in repeated.items()}
    for listed in load("nifra/records.json") or []:
        if listed["id"] == record["approvalId"]:
            assert listed["record"] == record
    claims = verify(entry["token"], secret.encode(), record["expiresAt"] - 1)
    assert (claims.approval_id, claims.expires_at) == (entry["approvalId"], record["expiresAt"])
    assert sign(claims, secret.encode()) == entry["token"]
    assert hash_token(entry["token"]) == record["tokenHash"]
    with pytest.raises(TokenError) as error:
        verify(entry["token"], secret.encode(), record["expiresAt"])
    assert error.value.code == "approval-token-expired"


@pytest.mark.parametrize(("secret", "entry"), approvals_of_the_file())
def test_presenting_a_token_comes_to_the_same(secret: str, entry: dict[str, Any], adapter: Adapter) -> None:
    record = read_record("approval", dict(entry["record"]))
    now = record.expires_at - 1  # type: ignore[union-attr]
    # Where the real program's answers include a consumption, the record is what it became: begin before that.
    if "consumed" in entry["outcomes"]:
        record = read_record("approval", entry["record"] | {"state": "approved", "version": record.version - 1})
    adapter.backend.create("approval", record)
    coordinator = ApprovalCoordinator(adapter.approvals, secret.encode())
    binding = Binding(
        tenant_id=entry["tenantId"],
        principal_id=entry["principalId"],
        capability=entry["cap"],
        target=entry.get("target"),
        digest=entry.get("digest"),
    )
    for outcome in entry["outcomes"]:
        presented = binding
        if outcome == "ApprovalBindingError":
            presented = Binding(
                tenant_id=binding.tenant_id,
                principal_id="somebody-else",
                capability=binding.capability,
                target=binding.target,
                digest=binding.digest,
            )
        try:
            coordinator.authorize("effect-again", presented, entry["token"], now=now)
            answer = "consumed"
        except ApprovalError as error:
            answer = error.code
        assert answer == ERRORS.get(outcome, outcome)


# Scenarios


def camel_to_snake(name: str) -> str:
    return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name)


class Replay:
    """Plays the steps of a scenario. Lease tokens are written $1, $2 in the order in which they were handed out."""

    def __init__(self, adapter: Adapter) -> None:
        self.adapter = adapter
        self.leases: dict[str, Lease] = {}
        self.now: int | None = None

    def play(self, step: dict[str, Any]) -> Any:
        arguments = step["args"]
        if isinstance(arguments, dict):
            self.now = arguments.get("now", self.now)
        return getattr(self, f"{step['view']}_{step['call']}")(arguments)

    def effects_create(self, members: dict[str, Any]) -> bool:
        return self.adapter.effects.create(read_record("effect", members))  # type: ignore[arg-type]

    def effects_get(self, id: str) -> Any:
        return members_of(self.adapter.effects.get(id))

    def effects_transition(self, arguments: dict[str, Any]) -> bool:
        return self.adapter.effects.transition(
            arguments["effectId"],
            version=arguments["version"],
            origin=arguments["from"],
            to=arguments["to"],
            now=arguments["updatedAt"],
            error_code=arguments.get("errorCode"),
        )

    def approvals_create(self, members: dict[str, Any]) -> bool:
        return self.adapter.approvals.create(read_record("approval", members))  # type: ignore[arg-type]

    def approvals_get(self, id: str) -> Any:
        return members_of(self.adapter.approvals.get(id))

    def approvals_decide(self, arguments: dict[str, Any]) -> bool:
        return self.adapter.approvals.decide(
            arguments["approvalId"],
            tenant_id=arguments["tenantId"],
            decision=arguments["decision"],
            decided_by=arguments["decidedBy"],
            now=arguments["now"],
        )

    def approvals_consume(self, arguments: dict[str, Any]) -> dict[str, str]:
        names = ("tenantId", "principalId", "capability", "target", "digest")
        binding = Binding(**{camel_to_snake(name): arguments.get(name) for name in names})
        answer = self.adapter.approvals.consume(
            arguments["approvalId"], binding=binding, token_hash=arguments["tokenHash"], now=arguments["now"]
        )
        return {"state": answer}

    def sagas_create(self, members: dict[str, Any]) -> bool:
        return self.adapter.sagas.create(read_record("saga", members))  # type: ignore[arg-type]

    def sagas_get(self, id: str) -> Any:
        return members_of(self.adapter.sagas.get(id))

    def sagas_compareAndSet(self, arguments: dict[str, Any]) -> bool:
        return self.adapter.sagas.compare_and_set(
            read_record("saga", arguments["record"]),  # type: ignore[arg-type]
            arguments["version"],
        )

    def leases_acquire(self, arguments: dict[str, Any]) -> Any:
        lease = self.adapter.leases.acquire(
            arguments["name"], arguments["owner"], arguments["leaseMs"], arguments["now"]
        )
        if lease is None:
            return None
        name = f"${len(self.leases) + 1}"
        self.leases[name] = lease
        cursor = {} if lease.cursor is None else {"cursor": lease.cursor}
        return {"name": lease.name, "owner": lease.owner, "token": name, "expiresAt": lease.expires_at} | cursor

    def _lease(self, arguments: dict[str, Any]) -> Lease:
        known = self.leases.get(arguments["token"])
        token = known.token if known else arguments["token"]
        return Lease(arguments["name"], arguments["owner"], token, 0)

    def leases_renew(self, arguments: dict[str, Any]) -> bool:
        return self.adapter.leases.renew(self._lease(arguments), arguments["leaseMs"], self.now)

    def leases_checkpoint(self, arguments: dict[str, Any]) -> bool:
        return self.adapter.leases.checkpoint(self._lease(arguments), arguments.get("cursor"), self.now)

    def leases_release(self, arguments: dict[str, Any]) -> bool:
        return self.adapter.leases.release(self._lease(arguments), self.now)


def members_of(record: Any) -> Any:
    return None if record is None else as_json(record.to_members())


@pytest.mark.parametrize("scenario", entries("nifra/scenarios.json"))
def test_scenarios(scenario: dict[str, Any], adapter: Adapter) -> None:
    replay = Replay(adapter)
    for number, step in enumerate(scenario["steps"]):
        where = f"step {number}, {step['view']}.{step['call']}"
        if "raises" in step:
            with pytest.raises((RecordError, ApprovalError)):
                replay.play(step)
            continue
        assert canonical_json(replay.play(step)) == canonical_json(step["returns"]), where
    for row in scenario["rows"]:
        record = adapter.backend.get(row["kind"], row["id"])
        assert record is not None
        assert {"state": record.state, "updated_at": record.updated_at, "version": record.version} == {
            name: row[name] for name in ("state", "updated_at", "version")
        }
    for lease in scenario["leases"]:
        taken = adapter.leases.acquire(lease["name"], "probe", 1, lease["expires_at"] - 1)
        assert (taken is None) == bool(lease["held"])
        taken = adapter.leases.acquire(lease["name"], "probe", 1, max(lease["expires_at"], 1))
        assert taken is not None
        assert taken.cursor == lease["cursor"]


# Findings


@pytest.fixture
def filled(adapter: Adapter) -> Adapter:
    records = load("nifra/records.json")
    if records is None or load("nifra/reconcile.json") is None:
        pytest.skip(f"{DATA / 'nifra'} lacks records.json or reconcile.json")
    for entry in records:
        adapter.backend.create(entry["kind"], CLASSES[entry["kind"]].from_members(wire.loads(entry["payload"])))
    return adapter


def test_findings_are_the_same(filled: Adapter) -> None:
    expected = load("nifra/reconcile.json")
    for limit in (1, 4, 100):
        effects = [
            {"effectId": found.id, "capability": found.capability, "state": found.reason, "updatedAt": found.updated_at}
            for found in all_findings(filled, "effects", stale_before=expected["staleBefore"], limit=limit)
        ]
        assert effects == expected["effects"]
        sagas = [
            {"sagaId": found.id, "state": found.state, "reason": found.reason}
            | ({"step": found.step, "effectId": found.effect_id} if found.step else {})
            for found in all_findings(filled, "sagas", stale_before=expected["staleBefore"], limit=limit)
        ]
        assert sagas == expected["sagas"]


def test_pages_are_the_same(filled: Adapter) -> None:
    expected = load("nifra/reconcile.json")
    cursor = None
    for name in ("page", "page2"):
        size = len(expected[name]["records"])
        page = filled.effects.scan(("executing", "unknown"), size, None, cursor)
        assert [members_of(record) for record in page.records] == expected[name]["records"]
        assert page.cursor == expected[name]["cursor"]
        cursor = page.cursor
