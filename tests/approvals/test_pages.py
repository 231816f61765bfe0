"""The pages of approvals, effects and sagas: every status, who may, fixed numbers of queries, hostile data."""

import html
import json
import re
from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import resolve, reverse
from hypothesis import given
from hypothesis import strategies as st

from approvals import wire
from approvals.adapter import Adapter
from approvals.conformance import FAR, approval, effect, saga
from approvals.decisions import decide, seen_of, shown_of
from approvals.items import item_of, reader_of
from approvals.models import Decision, DurableRecord, ReconciliationLease
from approvals.queries import MOST_COUNTED, PAGE_SIZE, Row
from approvals.records import Approval, SagaStep
from approvals.tables import RECORDS
from cadence_admin.javascript import canonical_json
from runs.store import RunStore
from tests.runs.stores import ROOT

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("empty_tables")]

SignIn = Callable[[str], Client]
HTMX = {"HX-Request": "true"}


def text_of(response: Any) -> str:
    return html.unescape(re.sub(r"\s+", " ", re.sub(r"<[^>]+>", "", response.content.decode())))


def asked(adapter: Adapter, **values: Any) -> Approval:
    record = approval(**({"expires_at": FAR} | values))
    assert adapter.backend.create("approval", record)
    return record


def form_of(record: Approval, answer: str = "approved", *, whole: bool = False, **more: Any) -> dict[str, Any]:
    shown = shown_of(record, whole=whole)
    seen = canonical_json(seen_of(record, whole=whole))
    return {"answer": answer, "version": shown.version, "digest": shown.digest, "seen": seen} | more


def decision_of(record: Approval) -> str:
    return reverse("decision", args=[record.id])


def targets_of(response: Any) -> list[str]:
    return re.findall(r'<h2><a [^>]*>[^<]*<span class="mono"><bdi>([^<]*)</bdi>', response.content.decode())


def store_raw(id: str, payload: str, state: str = "pending") -> None:
    """A row as a hostile program would insert it."""
    as_payload = "%s" if connection.vendor == "sqlite" else "%s::jsonb"
    with connection.cursor() as cursor:
        cursor.execute(
            f"INSERT INTO {RECORDS} (kind, id, state, updated_at, version, payload) "
            f"VALUES ('approval', %s, %s, 1, 1, {as_payload})",
            [id, state, payload],
        )


# The inbox


def test_the_soonest_to_expire_comes_first(database: Adapter, sign_in: SignIn) -> None:
    now = database.backend.now()
    database.backend.create("effect", effect(effect_id="stopped", state="executing"))
    for target, left in (("late", 900_000), ("soon", 60_000), ("past", -1)):
        asked(database, target=target, expires_at=now + left, effect_id="stopped" if target == "soon" else "other")
    response = sign_in("approver").get("/approvals/")
    assert targets_of(response) == ["soon", "late"]
    assert "2 approvals wait" in text_of(response)
    assert text_of(response).count("; effect executing") == 1
    assert response.content.decode().count("data-approve") == 2
    assert "no-store" in response["Cache-Control"]
    expired = sign_in("approver").get("/approvals/?show=expired")
    assert targets_of(expired) == ["past"]


def test_who_may_only_look_has_nothing_to_press(database: Adapter, sign_in: SignIn) -> None:
    record = asked(database)
    client = sign_in("viewer")
    for page in ("/approvals/", reverse("approval", args=[record.id])):
        response = client.get(page)
        assert response.status_code == 200
        assert "data-approve" not in response.content.decode()
    assert client.post(decision_of(record), form_of(record)).status_code == 403
    assert database.approvals.get(record.id) == record


def test_the_filters_narrow(database: Adapter, sign_in: SignIn, accounts: dict[str, User]) -> None:
    asked(database, target="order:1", tenant_id="acme", capability="payments.refund", principal_id="bot")
    asked(database, target="order:2", tenant_id="globex", capability="mail.send", principal_id="bot")
    mine = asked(database, target="pr:3", tenant_id="acme", capability="repo.merge", principal_id="ci",
                 effect_id="stopped")  # fmt: skip
    decide(accounts["approver"], mine.id, "approved", shown=None, via="page")
    client = sign_in("approver")
    for query, targets in (
        ("", ["order:1", "order:2"]),
        ("tenant=globex", ["order:2"]),
        ("capability=payments.refund", ["order:1"]),
        ("principal=bot", ["order:1", "order:2"]),
        ("principal=ci", []),
        ("q=order:", ["order:1", "order:2"]),
        ("q=order:2", ["order:2"]),
        ("q=rder", []),
        (f"q={mine.id}", ["pr:3"]),
        ("q=stopped&tenant=acme", ["pr:3"]),
        ("q=stopped&tenant=globex", []),
        ("show=approved", ["pr:3"]),
        ("show=mine", ["pr:3"]),
        ("show=denied", []),
    ):
        assert targets_of(client.get(f"/approvals/?{query}")) == targets, query
    for bad in ("show=nothing", "after=x", "after=1.2.3", "after=99999999999999999999.1"):
        assert client.get(f"/approvals/?{bad}").status_code == 404, bad
    assert client.get("/approvals/?q=a%00b").status_code == 400
    assert "approved by approver" in text_of(client.get("/approvals/?show=mine"))
    assert targets_of(sign_in("operator").get("/approvals/?show=mine")) == []


@pytest.mark.parametrize("query", ["show=waiting", "show=waiting&q=t", "show=expired"])
def test_pages_follow_one_another_without_gaps(database: Adapter, sign_in: SignIn, query: str) -> None:
    now = database.backend.now()
    total = 2 * PAGE_SIZE + 3
    for number in range(total):
        # Several with one expiry, and for the list of expired ones also several states.
        ends = now - 1_000 + number // 4 if "expired" in query else FAR + number // 4
        state = ("pending", "approved", "expired")[number % 3] if "expired" in query else "pending"
        asked(database, target=f"t{number:03d}", expires_at=ends, state=state)
    client = sign_in("viewer")
    seen: list[str] = []
    address = f"/approvals/?{query}"
    while address:
        response = client.get(address)
        seen += targets_of(response)
        link = re.search(r'rel="next" href="([^"]+)"', response.content.decode())
        address = f"/approvals/{html.unescape(link[1])}" if link else ""
    assert len(seen) == total
    assert sorted(seen) == [f"t{number:03d}" for number in range(total)]
    if "expired" not in query:
        assert seen == sorted(seen)


def test_counts_stop_early(database: Adapter, sign_in: SignIn) -> None:
    for number in range(MOST_COUNTED + 5):
        asked(database, target=f"t{number}")
    said = text_of(sign_in("viewer").get("/approvals/"))
    assert f"More than {MOST_COUNTED} approvals wait" in said
    assert f"{MOST_COUNTED}+" in said


def test_the_number_of_queries_is_fixed(database: Adapter, sign_in: SignIn) -> None:
    client = sign_in("approver")

    def count(address: str) -> int:
        with CaptureQueriesContext(connection) as queries:
            assert client.get(address).status_code == 200
        return len(queries)

    first = asked(database, target="t", effect_id="e")
    pages = ["/approvals/", "/approvals/?q=t", "/approvals/?show=expired", "/effects/", "/sagas/"]
    pages += ["/approvals/~waiting/", reverse("approval", args=[first.id])]

    def more(number: int) -> None:
        database.backend.create("effect", effect(effect_id="e"))
        asked(database, target="t", effect_id="e")
        asked(database, target="t", state="approved", decided_by=f"cadence-admin:{number}", expires_at=1)
        database.backend.create("effect", effect(state="executing"))
        database.backend.create("effect", effect(target="t", tenant_id="acme", principal_id="bot"))
        database.backend.create("saga", saga())

    more(0)
    before = {address: count(address) for address in pages}
    for number in range(PAGE_SIZE):
        more(number)
    after = {address: count(address) for address in pages}
    assert after == before
    # Session, user, permissions (two) and access, and then one.
    assert after["/approvals/~waiting/"] == 6
    with CaptureQueriesContext(connection) as queries:
        client.get("/approvals/~waiting/")
    assert sum(RECORDS in query["sql"] for query in queries) == 1


def test_the_poll_answers_304_while_nothing_changes(database: Adapter, sign_in: SignIn) -> None:
    client = sign_in("approver")
    record = asked(database)
    first = client.get("/approvals/~waiting/?tenant=acme")
    assert json.loads(first.content) == {"ids": [record.id], "more": False}
    same = client.get("/approvals/~waiting/?tenant=acme", headers={"If-None-Match": first["ETag"]})
    assert (same.status_code, same.content, same["ETag"]) == (304, b"", first["ETag"])
    assert first["ETag"].strip('"') in client.get("/approvals/?tenant=acme").content.decode()
    other = asked(database, tenant_id="globex")
    assert client.get("/approvals/~waiting/?tenant=acme", headers={"If-None-Match": first["ETag"]}).status_code == 304
    changed = client.get("/approvals/~waiting/", headers={"If-None-Match": first["ETag"]})
    assert (changed.status_code, set(json.loads(changed.content)["ids"])) == (200, {record.id, other.id})


# Deciding


def test_a_decision_from_the_page_and_from_the_inbox(database: Adapter, sign_in: SignIn) -> None:
    client = sign_in("approver")
    one, two, three, four = (asked(database, target=f"order:{number}") for number in range(4))
    page = client.post(decision_of(one), form_of(one, comment="fine"))
    assert (page.status_code, page["Location"]) == (302, reverse("approval", args=[one.id]))
    shown = text_of(client.get(page["Location"]))
    assert "Approved by approver" in shown
    assert "fine" in shown
    listed = client.post(decision_of(two), form_of(two, **{"from": "inbox", "back": "/approvals/?tenant=acme"}))
    assert (listed.status_code, listed["Location"]) == (302, "/approvals/?tenant=acme")
    assert "Approved: Write order:1" in text_of(client.get(listed["Location"]))
    for back in ("https://evil.example/", "//evil.example/approvals/", "/admin/", "javascript:alert(1)"):
        again = client.post(decision_of(two), form_of(two, **{"from": "inbox", "back": back}))
        assert again["Location"] == "/approvals/"
    fragment = client.post(decision_of(three), form_of(three, **{"from": "inbox"}), headers=HTMX)
    assert fragment.status_code == 200
    assert fragment.content.decode().startswith("<li class=")
    assert "approved by approver" in text_of(fragment)
    detail = client.post(decision_of(four), form_of(four, "denied", comment="no"), headers=HTMX)
    assert detail.status_code == 200
    assert "<html" not in detail.content.decode()
    assert "Denied by approver" in text_of(detail)
    assert client.get(decision_of(one))["Location"] == reverse("approval", args=[one.id])


@pytest.mark.parametrize("place", ["page", "inbox"])
@pytest.mark.parametrize("htmx", [True, False])
def test_every_refusal_has_its_status_and_says_how_it_stands(
    database: Adapter, sign_in: SignIn, accounts: dict[str, User], place: str, htmx: bool
) -> None:
    client = sign_in("approver")
    headers = HTMX if htmx else {}
    now = database.backend.now()

    def post(record: Approval, **more: Any) -> Any:
        return client.post(decision_of(record), form_of(record, **({"from": place} | more)), headers=headers)

    taken = asked(database)
    decide(accounts["operator"], taken.id, "denied", shown=None, comment="no", via="page")
    response = post(taken)
    assert response.status_code == 409
    assert "This was decided before you. It was denied by operator just now." in text_of(response)
    past = post(asked(database, expires_at=now - 1))
    assert (past.status_code, "Its time was up" in text_of(past)) == (410, True)
    own = post(asked(database, principal_id="approver"))
    assert (own.status_code, "your own request" in text_of(own)) == (403, True)
    unsaid = post(asked(database), answer="denied")
    assert (unsaid.status_code, "Say why" in text_of(unsaid)) == (422, True)
    assert post(asked(database), digest="x").status_code == 422
    assert client.post(reverse("decision", args=["nothing"]), form_of(taken)).status_code == 404
    assert Decision.objects.count() == 1


def test_what_changed_since_is_shown(database: Adapter, sign_in: SignIn) -> None:
    record = asked(database, target="order:1")
    text = str(DurableRecord.objects.get(id=record.id).payload).replace("order:1", "order:999")
    with connection.cursor() as cursor:
        cursor.execute(f"UPDATE {RECORDS} SET payload = %s WHERE id = %s", [text, record.id])
    response = sign_in("approver").post(decision_of(record), form_of(record))
    assert response.status_code == 409
    said = text_of(response)
    assert "It changed after you looked at it. Nothing was decided." in said
    assert re.search(r"target\s*order:1\s*order:999", said)
    assert not Decision.objects.exists()


def test_several_are_decided_each_on_its_own(database: Adapter, sign_in: SignIn, accounts: dict[str, User]) -> None:
    good, taken, risky = asked(database), asked(database), asked(database, capability="infra.delete")
    choices = []
    for record in (good, taken, risky):
        row = Row(1, record.id, "", record)
        choices.append(item_of(row, reader_of(accounts["approver"]), database.backend.now(), {}, {}, ()).choice)
    decide(accounts["operator"], taken.id, "denied", shown=None, comment="no", via="page")
    client = sign_in("approver")
    response = client.post("/approvals/~decisions/", {"chosen": choices, "answer": "approved", "comment": "all fine"})
    said = text_of(response)
    assert "Approved: 1 of 3" in said
    assert "This was decided before you. It was denied by operator." in said
    assert "confirmation-mismatch" in said
    assert [
        current.state for current in (database.approvals.get(record.id) for record in (good, taken, risky)) if current
    ] == [
        "approved",
        "denied",
        "pending",
    ]
    assert client.post("/approvals/~decisions/", {"answer": "approved"}).status_code == 422
    assert client.post("/approvals/~decisions/", {"answer": "approved", "chosen": "x"}).status_code == 404
    assert (
        sign_in("viewer")
        .post("/approvals/~decisions/", {"chosen": choices, "answer": "denied", "comment": "x"})
        .content
    )
    assert Decision.objects.filter(via="several").count() == 1


# One approval


def test_everything_that_is_needed_is_on_its_page(
    database: Adapter, sign_in: SignIn, accounts: dict[str, User]
) -> None:
    stopped = effect(effect_id="stopped-1", capability="test.write", target="t")
    database.backend.create("effect", stopped)
    step = SagaStep(name="write", effect_id="stopped-1", compensation_effect_id="undo-1", state="executing")
    database.backend.create("saga", saga(saga_id="saga-7", steps=(step,)))
    before = asked(database)
    decide(accounts["operator"], before.id, "denied", shown=None, comment="no", via="page")
    record = asked(database, effect_id="stopped-1")
    store = RunStore(ROOT)
    run_id = store.start_run("abel-implement", "start", change="fix-it")["runId"]
    store.acquire_lease(run_id, "stopped-1", 60_000)
    response = sign_in("viewer").get(reverse("approval", args=[record.id]))
    said = text_of(response)
    for words in ("Write t", "bot of acme asks to run test.write on t", record.digest, "stopped-1", "saga-7", "fix-it",
                  "denied by operator", "over a year left"):  # fmt: skip
        assert str(words) in said, words
    assert record.token_hash not in response.content.decode()
    assert '"tokenHash": "(left out)"' in said
    run = text_of(sign_in("viewer").get(reverse("runs:detail", args=[run_id])))
    assert "for operation stopped-1" in run
    assert sign_in("viewer").get(reverse("approval", args=["nothing"])).status_code == 404


@pytest.mark.parametrize(
    "target",
    [
        "<script>alert(1)</script>",
        "</script><img src=x onerror=alert(1)>",
        "order\u202e1488:",
        "pay\u200bpal",
        "\u202d" * 50,
        "a" + " " * 10_000 + "b",
        "x" * 65_536,
        "p\u0430ypal",
        "חשבון-42 فاتورة",
        "{{ settings.SECRET_KEY }}",
        "line\nbreak\ttab\x7f\x1b[31m",
        "' OR 1=1 --",
    ],
)
def test_hostile_texts_are_shown_harmlessly(database: Adapter, sign_in: SignIn, target: str) -> None:
    record = approval(expires_at=FAR, target=target)
    assert database.backend.create("approval", record)
    client = sign_in("approver")
    for address in (
        "/approvals/",
        reverse("approval", args=[record.id]),
        f"{reverse('approval', args=[record.id])}?whole=1",
    ):
        response = client.get(address)
        assert response.status_code == 200
        body = response.content.decode()
        assert "<script>alert" not in body
        assert "<img src=x" not in body
        assert not re.search("[\u202a-\u202e\u200b\x00\x1b\x7f]", re.sub(r'value="[^"]*"', "", body))
    assert len(client.get("/approvals/").content) < 200_000
    if target.startswith("חשבון") or (len(target) < 100 and target.isascii() and target.isprintable()):
        assert target in text_of(client.get(address))


def test_a_long_text_is_opened_first(database: Adapter, sign_in: SignIn) -> None:
    record = approval(expires_at=FAR, target="x" * 65_536)
    assert database.backend.create("approval", record)
    client = sign_in("approver")
    page = reverse("approval", args=[record.id])
    assert "data-approve" not in client.get("/approvals/").content.decode()
    assert "data-approve disabled" in client.get(page).content.decode()
    assert "and 65,376 characters more" in text_of(client.get(page))
    assert client.post(decision_of(record), form_of(record)).status_code == 422
    assert "data-approve disabled" not in client.get(f"{page}?whole=1").content.decode()
    assert client.post(decision_of(record), form_of(record, whole=True)).status_code == 302


def test_records_that_cannot_be_read_are_shown_and_not_decided(database: Adapter, sign_in: SignIn) -> None:
    members = ('"approvalId":"odd","effectId":"e","capability":"a.b","tenantId":"t","principalId":"p","state":"pending",'
               '"createdAt":9007199254740993,"expiresAt":4000000000000,"updatedAt":1,"version":1,"tokenHash":"hidden"')  # fmt: skip
    store_raw("odd", '{"r":{"$w":"ref","i":0},"n":[{"$w":"obj","v":{' + members + "}}]}")
    client = sign_in("approver")
    assert "This record can't be read" in text_of(client.get("/approvals/"))
    response = client.get("/approvals/odd/")
    said = text_of(response)
    assert "so it can't be decided" in said
    assert "9007199254740993" in said
    assert "hidden" not in said
    refused = client.post("/approvals/odd/decision/", {"answer": "approved", "version": 1, "digest": "0" * 64})
    assert refused.status_code == 422
    assert "record-unreadable" in text_of(refused)


def test_a_row_with_the_payload_of_another_imitates_nothing(database: Adapter, sign_in: SignIn) -> None:
    record = asked(database)
    store_raw("other", str(DurableRecord.objects.get(id=record.id).payload))
    client = sign_in("approver")
    assert f"its payload is that of {record.id}" in text_of(client.get("/approvals/other/"))
    assert client.post("/approvals/other/decision/", form_of(record)).status_code == 422
    assert not Decision.objects.exists()


@pytest.mark.skipif("os.environ.get('CADENCE_TEST_ENGINE') == 'postgresql'", reason="JSONB refuses these")
@pytest.mark.parametrize("odd", ["\\ud800", "a\\u0000b", "\\udc00\\ud800"])
def test_half_characters_and_nul_break_no_page(database: Adapter, sign_in: SignIn, odd: str) -> None:
    members = (f'"approvalId":"odd","effectId":"{odd}","capability":"a.b","target":"{odd}","tenantId":"{odd}","principalId":"p",'
               '"state":"pending","createdAt":1,"expiresAt":4000000000000,"updatedAt":1,"version":1,"tokenHash":"h"')  # fmt: skip
    store_raw("odd", '{"r":{"$w":"ref","i":0},"n":[{"$w":"obj","v":{' + members + "}}]}")
    client = sign_in("approver")
    for address in (
        "/approvals/",
        "/approvals/?q=a",
        "/approvals/?tenant=x",
        "/approvals/odd/",
        "/approvals/~waiting/",
    ):
        assert client.get(address).status_code == 200, address
    assert "U+" in text_of(client.get("/approvals/odd/"))


@given(st.text(st.characters(codec="utf-8", min_codepoint=1), min_size=1, max_size=40))
def test_every_id_has_an_address_of_its_own(id: str) -> None:
    address = reverse("approval", args=[id])
    assert re.fullmatch(r"/approvals/[A-Za-z0-9._:@$~-]+/", address)
    found = resolve(address)
    assert (found.url_name, found.kwargs) == ("approval", {"approval_id": id})
    assert address not in ("/approvals/~waiting/", "/approvals/~decisions/", "/approvals/./", "/approvals/../")


# Effects and sagas


def test_an_effect_is_closed_by_hand(database: Adapter, sign_in: SignIn) -> None:
    now = database.backend.now()
    unknown = effect(state="unknown", error_code="timeout")
    fresh = effect(state="executing", updated_at=now)
    for record in (unknown, fresh):
        database.backend.create("effect", record)
    client = sign_in("operator")
    assert unknown.id in text_of(client.get("/effects/"))
    assert fresh.id not in text_of(client.get("/effects/"))
    assert fresh.id in text_of(client.get("/effects/?show=executing"))
    address = reverse("effect-resolution", args=[unknown.id])
    form = {"answer": "committed", "version": 1, "reason": "seen at the provider", "seen": '{"version":1}'}
    assert sign_in("approver").post(address, form).status_code == 403
    assert client.post(address, form | {"reason": " "}).status_code == 422
    assert client.post(address, form | {"answer": "unknown"}).status_code == 422
    stale = client.post(address, form | {"version": 2, "seen": '{"version":2,"state":"unknown"}'})
    assert stale.status_code == 409
    assert re.search(r"version\s*2\s*1", text_of(stale))
    assert client.post(reverse("effect-resolution", args=[fresh.id]), form).status_code == 409
    assert client.post(address, form).status_code == 302
    closed = database.effects.get(unknown.id)
    assert closed is not None
    assert (closed.state, closed.error_code, closed.version) == ("committed", None, 2)
    assert "seen at the provider" in text_of(client.get(reverse("effect", args=[unknown.id])))
    assert client.get(address).status_code == 302
    for missing in ("/effects/nothing/", "/effects/?show=x", "/effects/?after=x", "/sagas/nothing/", "/sagas/?show=x"):
        assert client.get(missing).status_code == 404


@pytest.mark.parametrize(
    ("state", "answer", "more", "step_state", "saga_state"),
    [
        ("ambiguous", "committed", {"result": '{"id": 12}'}, "committed", "running"),
        ("executing", "not-committed", {"error_code": "card_declined"}, "failed", "compensating"),
        ("compensating", "compensated", {}, "compensated", "compensating"),
        ("compensating", "not-compensated", {}, "compensation-failed", "compensating"),
        ("compensation-failed", "undone-by-hand", {}, "compensated", "compensating"),
        ("compensation-failed", "try-again", {}, "compensation-failed", "compensating"),
    ],
)
def test_a_step_is_settled_by_hand(
    database: Adapter, sign_in: SignIn, state: str, answer: str, more: dict[str, str], step_state: str, saga_state: str
) -> None:
    step = SagaStep(name="charge", effect_id="e1", compensation_effect_id="c1", state=state, attempts=1,
                    compensation_args={"amount": wire.BigInt("9007199254740993")})  # fmt: skip
    record = saga(state="manual-review", steps=(step,))
    database.backend.create("saga", record)
    client = sign_in("operator")
    page = client.get(reverse("saga", args=[record.id]))
    assert "amount: 9007199254740993n" in text_of(page)
    assert f'value="{answer}"' in page.content.decode()
    assert f'value="{answer}"' not in sign_in("approver").get(reverse("saga", args=[record.id])).content.decode()
    named = "e1" if state in ("ambiguous", "executing") else "c1"
    form = {"answer": answer, "effect": named, "version": 1, "reason": "looked it up", "seen": '{"version":1}'} | more
    address = reverse("saga-resolution", args=[record.id])
    assert sign_in("approver").post(address, form).status_code == 403
    assert client.post(address, form | {"effect": "other"}).status_code == 422
    stale = client.post(address, form | {"version": 3, "seen": '{"version":3}'})
    assert (stale.status_code, "It changed after you looked at it" in text_of(stale)) == (409, True)
    assert client.post(address, form).status_code == 302
    after = database.sagas.get(record.id)
    assert after is not None
    assert (after.steps[0].state, after.state) == (step_state, saga_state)
    if "result" in more:
        assert after.steps[0].result == {"id": 12}
    if "error_code" in more:
        assert after.steps[0].error_code == "card_declined"
    assert [entry.comment for entry in Decision.objects.all()] == ["looked it up"]
    assert client.post(address, form | {"result": "{"}).status_code == 422


def test_a_reconciliation_lease_is_freed(database: Adapter, sign_in: SignIn) -> None:
    lease = database.leases.acquire("effects", "worker-a", 600_000)
    assert lease is not None
    assert database.leases.checkpoint(lease, "effect-9")
    form = {"name": "effects", "owner": "worker-a", "expires_at": lease.expires_at, "reason": "host is gone"}
    address = "/leases/workers/free/"
    client = sign_in("operator")
    page = client.get("/leases/").content.decode()
    assert "Take it from its holder" in page
    assert lease.token not in page
    assert sign_in("approver").post(address, form).status_code == 403
    assert client.post(address, form | {"reason": ""}).status_code == 422
    assert client.post(address, form | {"expires_at": lease.expires_at - 1}).status_code == 409
    assert client.post(address, form | {"expires_at": "x"}).status_code == 404
    assert client.post(address, form).status_code == 302
    row = ReconciliationLease.objects.get(name="effects")
    assert (row.owner, row.token, row.expires_at, row.cursor) == (None, None, 0, None)
    assert not database.leases.renew(lease, 1_000)
    assert database.leases.acquire("effects", "worker-b", 1_000) is not None
