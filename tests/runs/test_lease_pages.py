"""The pages of leases and moves: who may, what is seen, and what becomes of it."""

import html
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from cadence_admin.clock import now_ms
from runs.leases import reclaim
from runs.mirror import mirror_state_home, mirror_store
from runs.models import LeaseEvent, Operation, Run
from runs.queries import PAGE_SIZE
from runs.store import RunStore, StoreError
from tests.runs.stores import ROOT, Store

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("empty_tables")]

SignIn = Callable[[str], Client]


def text_of(response: object) -> str:
    content = response.content.decode()  # type: ignore[attr-defined]
    return html.unescape(re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", content)))


@pytest.fixture
def store() -> RunStore:
    return RunStore(ROOT)


@pytest.fixture
def run_id(store: RunStore) -> str:
    return str(store.start_run("abel-implement", "start", change="x")["runId"])


def make_expired(run_id: str, *names: str) -> list[int]:
    past = RunStore(ROOT, now=lambda: now_ms() - 600_000)
    for name in names:
        past.acquire_lease(run_id, name, 1_000)
    return list(Operation.objects.filter(operation_id__in=names).order_by("id").values_list("pk", flat=True))


def test_a_lease_without_an_end_is_expired_everywhere(sign_in: SignIn, run_id: str) -> None:
    """Nobody can renew or commit it: the list of runs, the run's page and the leases say so alike."""
    make_expired(run_id, "endless")
    Operation.objects.filter(operation_id="endless").update(lease_expires_at=None)
    client = sign_in("viewer")
    assert "lease expired" in text_of(client.get("/runs/?expired=on"))
    assert "has no end: nobody can finish it." in text_of(client.get(f"/runs/{run_id}/"))
    assert "endless" in text_of(client.get("/leases/?show=expired"))


def test_leases_are_told_apart(sign_in: SignIn, store: RunStore, run_id: str) -> None:
    make_expired(run_id, "dead")
    store.acquire_lease(run_id, "soon", 30_000)
    store.acquire_lease(run_id, "late", 600_000)
    client = sign_in("viewer")
    for view, shown, hidden in (
        ("expired", ["dead"], ["soon", "late"]),
        ("expiring", ["soon"], ["dead", "late"]),
        ("live", ["soon", "late"], ["dead"]),
    ):
        text = text_of(client.get(f"/leases/?show={view}"))
        assert all(name in text for name in shown), view
        assert not any(f" {name} lease" in text for name in hidden), view
    assert "dead" in text_of(client.get(f"/leases/?root={ROOT}"))
    for query in ("show=nonsense", f"root={'f' * 64}", "after=x", "after=1", "after=1.x", "after=" + "9" * 50 + ".1"):
        assert client.get(f"/leases/?{query}").status_code == 404, query


def test_a_lease_without_an_end_is_shown_and_can_be_reclaimed(sign_in: SignIn, store: RunStore, run_id: str) -> None:
    """Its holder can't renew or commit it, and Cadence never recovers it."""
    lease = store.acquire_lease(run_id, "endless", 60_000)
    Operation.objects.filter(operation_id="endless").update(lease_expires_at=None)
    with pytest.raises(StoreError):
        store.commit_lease(lease, {})
    client = sign_in("operator")
    response = client.get("/leases/")
    assert "has no end" in text_of(response)
    assert "lease without an end" in text_of(client.get(f"/runs/{run_id}/"))
    (pk,) = re.findall(r'name="operation" value="(\d+)"', response.content.decode())
    assert "nobody can finish it" in text_of(client.post("/leases/reclaim/", {"operation": pk}))
    client.post("/leases/reclaim/", {"operation": pk, "confirmed": "yes", "reason": "x"})
    assert Operation.objects.get(pk=pk).state == "interrupted"


def test_an_empty_page_says_that_all_is_well(sign_in: SignIn) -> None:
    text = text_of(sign_in("viewer").get("/leases/"))
    assert "No lease has expired." in text
    assert "No worker has taken a lease yet." in text


def test_pages_follow_each_other_at_a_fixed_cost(sign_in: SignIn, run_id: str) -> None:
    client = sign_in("viewer")
    make_expired(run_id, "first")

    def cost() -> int:
        with CaptureQueriesContext(connection) as queries:
            assert client.get("/leases/").status_code == 200
        return len(queries)

    one = cost()
    make_expired(run_id, *(f"dead-{number:03d}" for number in range(PAGE_SIZE + 9)))
    assert cost() == one
    found: list[str] = []
    url = "/leases/?show=expired"
    while url:
        content = client.get(url).content.decode()
        found += re.findall(r'<span class="mono">((?:dead-\d+)|first)</span>', content)
        more = re.search(r'rel="next" href="([^"]*)"', content)
        url = "/leases/" + html.unescape(more[1]) if more else ""
    assert sorted(found) == sorted(["first", *(f"dead-{number:03d}" for number in range(PAGE_SIZE + 9))])


@pytest.mark.parametrize("name", ["viewer", "approver"])
def test_only_operators_reclaim_and_move(sign_in: SignIn, run_id: str, name: str) -> None:
    (pk,) = make_expired(run_id, "dead")
    client = sign_in(name)
    assert client.post("/leases/reclaim/", {"operation": pk, "confirmed": "yes", "reason": "x"}).status_code == 403
    assert client.post(f"/runs/{run_id}/move/", {"to": "paused", "code": "x", "sequence": "1"}).status_code == 403
    assert "Reclaim the chosen" not in text_of(client.get("/leases/"))
    assert "Move to" not in text_of(client.get(f"/runs/{run_id}/"))
    assert Operation.objects.get(pk=pk).state == "running"
    assert Client().post("/leases/reclaim/", {"operation": pk}).status_code == 302


def test_a_preview_changes_nothing_and_a_confirmation_says_what_happened(
    sign_in: SignIn, store: RunStore, run_id: str
) -> None:
    chosen = make_expired(run_id, "dead", "renewed", "done")
    client = sign_in("operator")
    preview = client.post("/leases/reclaim/", {"operation": chosen})
    assert "Reclaim 3 operations of 1 run?" in text_of(preview)
    assert Operation.objects.filter(state="running").count() == 3
    store.acquire_lease(run_id, "renewed", 60_000)
    store.commit_lease(store.acquire_lease(run_id, "done", 60_000), {})
    confirmed = client.post(
        "/leases/reclaim/", {"operation": chosen, "confirmed": "yes", "reason": "worker host is gone", "pause": "yes"}
    )
    text = text_of(confirmed)
    assert "marked as interrupted, and its run paused" in text
    assert "its holder lives; left alone" in text
    assert "it isn't running any more" in text
    event = LeaseEvent.objects.get()
    assert (event.kind, event.actor, event.reason, event.paused) == (
        "reclaimed",
        "operator",
        "worker host is gone",
        True,
    )
    assert store.status(run_id)["state"] == "paused"
    # The same form again.
    again = client.post("/leases/reclaim/", {"operation": chosen[:1], "confirmed": "yes", "reason": "x"})
    assert "it isn't running any more" in text_of(again)
    assert LeaseEvent.objects.count() == 1


def test_a_holder_that_comes_too_late_is_listed(sign_in: SignIn, store: RunStore, run_id: str) -> None:
    past = RunStore(ROOT, now=lambda: now_ms() - 600_000)
    lease = past.acquire_lease(run_id, "slow", 1_000)
    list(reclaim())
    with pytest.raises(StoreError):
        store.commit_lease(lease, {"ok": True})
    with pytest.raises(StoreError):
        store.transition(run_id, "paused", "op", lease=lease)
    text = text_of(sign_in("viewer").get("/leases/"))
    assert "tried to commit" in text
    assert "tried to move to paused" in text
    assert text.count("refused") == 2
    assert store.status(run_id)["state"] == "created"


@pytest.mark.parametrize("ids", [[], ["x"], ["-1"], ["9" * 30]])
def test_ids_that_were_never_shown(sign_in: SignIn, ids: list[str]) -> None:
    assert sign_in("operator").post("/leases/reclaim/", {"operation": ids}).status_code in (404, 422)


def test_mirrored_ones_go_through_their_own_store(sign_in: SignIn, state_home: Path) -> None:
    mirror_state_home(state_home)
    client = sign_in("operator")
    content = client.get("/leases/").content.decode()
    chosen = re.findall(r'name="operation" value="(\d+)"', content)
    assert len(chosen) == 3
    assert "Pause the runs too" not in text_of(client.post("/leases/reclaim/", {"operation": chosen}))
    text = text_of(client.post("/leases/reclaim/", {"operation": chosen, "confirmed": "yes", "reason": "gone"}))
    assert text.count("marked as interrupted") == 3
    assert "No lease has expired." in text_of(client.get("/leases/"))


def test_a_store_that_cannot_be_written_offers_nothing_and_says_why(sign_in: SignIn, tmp_path: Path) -> None:
    source = Store.in_state_home(tmp_path)
    source.add_run("run-1", "x")
    source.execute("INSERT INTO operations VALUES ('run-1','dead','lease','running',NULL,'t',1)")
    mirror_store(source.path)
    source.path.unlink()
    client = sign_in("operator")
    response = client.get("/leases/")
    assert "can't be reclaimed from here" in text_of(response)
    assert 'name="operation"' not in response.content.decode()
    pk = Operation.objects.get(operation_id="dead").pk
    refused = client.post("/leases/reclaim/", {"operation": pk, "confirmed": "yes", "reason": "x"})
    assert refused.status_code == 409
    assert "state-component-missing" in text_of(refused)
    assert Operation.objects.get(pk=pk).state == "running"


def test_the_admin_reclaims_through_the_same_service(sign_in: SignIn, run_id: str) -> None:
    (pk,) = make_expired(run_id, "dead")
    data = {"action": "reclaim", "_selected_action": [pk]}
    content = sign_in("operator").post("/admin/runs/operation/", data, follow=True).content.decode()
    assert "reclaimed" in content
    assert Operation.objects.get(pk=pk).state == "interrupted"
    assert LeaseEvent.objects.get().actor == "operator"


# Moving a run


def test_a_move_needs_a_legal_target_a_code_and_fresh_eyes(sign_in: SignIn, run_id: str) -> None:
    client = sign_in("operator")
    page = text_of(client.get(f"/runs/{run_id}/"))
    assert "Move to" in page
    assert "resume, rebind (not while created)" in page

    def move(**values: str) -> object:
        return client.post(f"/runs/{run_id}/move/", {"to": "paused", "code": "by-hand", "sequence": "1"} | values)

    for values, status, word in (
        ({"code": ""}, 422, "needs a code"),
        ({"code": "Not Lower"}, 422, "needs a code"),
        ({"code": "a\n"}, 422, "needs a code"),
        ({"sequence": "7"}, 409, "has moved since"),
        ({"to": "running"}, 422, "invalid-run-transition:created:running"),
        ({"to": "nowhere"}, 422, "event-integrity-state-mismatch"),
    ):
        response = move(**values)
        assert (response.status_code, word in text_of(response)) == (status, True), values  # type: ignore[attr-defined]
    assert move().status_code == 302  # type: ignore[attr-defined]
    run = Run.objects.get()
    assert (run.state, run.sequence, run.verdict) == ("paused", 2, "ok")
    assert "by-hand" in text_of(client.get(f"/runs/{run_id}/"))
    assert move().status_code == 409  # type: ignore[attr-defined]  # the same form, sent twice


def test_a_mirrored_run_is_not_moved(sign_in: SignIn, tmp_path: Path) -> None:
    source = Store.in_state_home(tmp_path)
    source.add_run("run-1", "x")
    mirror_store(source.path)
    client = sign_in("operator")
    assert "Move to" not in text_of(client.get("/runs/run-1/"))
    response = client.post("/runs/run-1/move/", {"to": "paused", "code": "x", "sequence": "1"})
    assert response.status_code == 422
    assert "run-mirrored" in text_of(response)
    assert Run.objects.get().state == "created"
