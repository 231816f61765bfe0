"""The pages of runs through Django's client: every status, what is said, and what it costs."""

import html
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from runs.mirror import mirror_state_home, mirror_store
from runs.models import Event, Operation, Run, StateRoot
from runs.queries import CHAIN_PAGE_SIZE, PAGE_SIZE
from tests.conftest import DATA
from tests.runs.stores import PROOF, ROOT, Store

pytestmark = pytest.mark.django_db

SignIn = Callable[[str], Client]
HTMX = {"HX-Request": "true"}


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.in_state_home(tmp_path / "home")


def text_of(response: object) -> str:
    content = response.content.decode()  # type: ignore[attr-defined]
    return html.unescape(re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", content)))


def changes_in(response: object) -> list[str]:
    return re.findall(r'<td class="main"><a [^>]*>([^<]*)</a>', response.content.decode())  # type: ignore[attr-defined]


# Who may look


@pytest.mark.parametrize("path", ["/", "/runs/", "/runs/x/", "/runs/x/operations/", "/runs/x/verification/"])
def test_signed_out_people_are_sent_to_sign_in(path: str) -> None:
    response = Client().get(path)
    assert response.status_code == 302
    assert response.headers["Location"] == f"/sign-in/?next={path}"


def test_a_lost_session_tells_htmx_to_load_the_sign_in_page() -> None:
    headers = HTMX | {"HX-Current-URL": "http://testserver/runs/?state=paused"}
    response = Client().get("/runs/?state=paused&before=4", headers=headers)
    assert response.status_code == 200
    assert response.headers["HX-Redirect"] == "/sign-in/?next=/runs/%3Fstate%3Dpaused"


def test_signing_in_and_out(accounts: object) -> None:
    client = Client()
    page = client.get("/sign-in/?next=/runs/")
    assert page.status_code == 200
    wrong = client.post("/sign-in/", {"username": "viewer", "password": "wrong", "next": "/runs/"})
    assert "don't open an account" in text_of(wrong)
    right = client.post(
        "/sign-in/", {"username": "viewer", "password": "correct horse battery staple", "next": "/runs/"}
    )
    assert right.headers["Location"] == "/runs/"
    assert client.get("/sign-in/").status_code == 302
    away = client.post(
        "/sign-in/", {"username": "viewer", "password": "correct horse battery staple", "next": "//evil"}
    )
    assert away.headers.get("Location", "/") == "/"
    assert client.post("/sign-out/").status_code == 302
    assert client.get("/runs/").status_code == 302


def test_local_accounts_open_nothing_where_they_are_off(accounts: object, settings: object) -> None:
    client = Client()
    settings.LOCAL_ACCOUNTS = False  # type: ignore[attr-defined]
    client.post("/sign-in/", {"username": "operator", "password": "correct horse battery staple"})
    assert client.get("/runs/").status_code == 302


def test_every_page_carries_its_policy(sign_in: SignIn) -> None:
    response = sign_in("viewer").get("/runs/")
    policy = response.headers["Content-Security-Policy"]
    assert "unsafe" not in policy
    assert "default-src 'none'" in policy
    assert response.headers["X-Frame-Options"] == "DENY"


# The list


def test_an_empty_database_says_what_to_do(sign_in: SignIn) -> None:
    assert "No run was mirrored yet. On the server: manage.py mirror_cadence" in text_of(
        sign_in("viewer").get("/runs/")
    )


def test_the_sample_is_listed_newest_first(sign_in: SignIn, state_home: Path) -> None:
    mirror_state_home(state_home)
    response = sign_in("viewer").get("/runs/")
    changes = changes_in(response)
    assert len(changes) == 18
    assert (changes[0], changes[-1]) == ("health-endpoint", "add-csv-export")
    assert "lease expired" in text_of(response)
    assert 'title="ff60da209caa30fc238af83ef10f3837dac0a010ef1ad9cb69d17df863ac260b"' in response.content.decode()


def test_filters_narrow(sign_in: SignIn, state_home: Path) -> None:
    mirror_state_home(state_home)
    client = sign_in("viewer")
    for query, changes in {
        "state=paused": ["audit-trail"],
        "state=completed&stage=abel-implement": ["stream-uploads"],
        "stage=abel-design": [],
        "change=EMAIL": ["dedupe-emails"],
        "change=%25": [],
        "broken=on": [],
        "expired=on": ["paginate-search", "reduce-bundle-size", "retry-webhooks"],
        f"root={ROOT}&state=ready": ["fix-login-redirect"],
        "state=ready&change=nothing": [],
    }.items():
        response = client.get(f"/runs/?{query}")
        assert response.status_code == 200, query
        assert changes_in(response) == changes, query
        assert ("No run matches." in text_of(response)) == (not changes), query


def test_only_broken_lists_broken_and_diverged(sign_in: SignIn) -> None:
    mirror_store(DATA / "cadence" / "missing-event.sqlite3")
    mirror_store(DATA / "cadence" / "tampered-payload.sqlite3")
    response = sign_in("viewer").get("/runs/?broken=on")
    assert changes_in(response) == ["audit-trail", "cache-price-lookup"]
    assert text_of(response).count("diverged") == 2


@pytest.mark.parametrize("query", ["state=nonsense", "stage=x", f"root={'a' * 64}", "change=" + "x" * 200])
def test_a_filter_that_cannot_be_read_is_said(sign_in: SignIn, query: str) -> None:
    response = sign_in("viewer").get(f"/runs/?{query}")
    assert response.status_code == 422
    assert "can't be read" in text_of(response)


@pytest.mark.parametrize("before", ["x", "-1", "", "9" * 30, "٣", "1.5"])
def test_a_key_that_was_never_given_out_is_not_found(sign_in: SignIn, before: str) -> None:
    assert sign_in("viewer").get(f"/runs/?before={before}").status_code == 404


def many_runs(count: int) -> None:
    root = StateRoot.objects.create(root_hash=ROOT, first_seen_at=0, checked_at=0)
    Run.objects.bulk_create(
        Run(
            state_root=root,
            run_id=f"run-{number}",
            root_hash=ROOT,
            stage="abel-implement",
            lookup_key=f"change:c{number}",
            change_name=f"c{number}",
            state="running" if number % 2 else "paused",
            sequence=1,
            event_hash="a" * 64,
            projection_json="{}",
            first_seen_at=0,
            changed_at=0,
            verdict="ok",
        )
        for number in range(count)
    )


def test_pages_follow_each_other_without_gap_or_repeat(sign_in: SignIn) -> None:
    many_runs(PAGE_SIZE * 2 + 7)
    client = sign_in("viewer")
    found: list[str] = []
    url = "/runs/?state=running"
    while url:
        response = client.get(url)
        found += changes_in(response)
        older = re.search(r'rel="next" href="([^"]*)"', response.content.decode())
        url = "/runs/" + html.unescape(older[1]) if older else ""
        assert "state=running" in url or not url
    assert found == [f"c{number}" for number in reversed(range(PAGE_SIZE * 2 + 7)) if number % 2]


def test_htmx_gets_the_list_alone_and_history_the_whole_page(sign_in: SignIn) -> None:
    client = sign_in("viewer")
    fragment = client.get("/runs/", headers=HTMX)
    assert fragment.content.lstrip().startswith(b'<div id="runs"')
    whole = client.get("/runs/", headers=HTMX | {"HX-History-Restore-Request": "true"})
    assert whole.content.startswith(b"<!doctype html>")
    assert {"HX-Request", "HX-History-Restore-Request"} <= set(fragment.headers["Vary"].split(", "))


def test_the_list_costs_the_same_for_one_run_and_for_many(sign_in: SignIn) -> None:
    client = sign_in("viewer")

    def cost() -> int:
        with CaptureQueriesContext(connection) as queries:
            assert client.get("/runs/").status_code == 200
        return len(queries)

    many_runs(1)
    one = cost()
    Run.objects.all().delete()
    StateRoot.objects.all().delete()
    many_runs(200)
    assert cost() == one == 7  # session, user, permissions (two), access, state roots, runs


# One run


def test_a_run_says_what_it_is_and_why(sign_in: SignIn, state_home: Path) -> None:
    mirror_state_home(state_home)
    response = sign_in("viewer").get("/runs/00000000-0000-4000-8000-000000000010/")
    text = text_of(response)
    assert "Paused: it waits for an operator." in text
    assert "Moved from running to paused : awaiting-operator" in text
    assert "Bound delivery gate-b revision 1, with approval proof" in text
    assert "Run created for change audit-trail" in text
    assert "status , resume , rebind , discard" in re.sub(r" ,", " ,", text).replace(",", " ,").replace("  ", " ")
    assert text.count("recomputed, holds") == 7
    assert "all links recomputed" in text


def test_commands_that_wait_for_a_delivery_say_so(sign_in: SignIn, state_home: Path) -> None:
    mirror_state_home(state_home)
    text = text_of(sign_in("viewer").get("/runs/00000000-0000-4000-8000-000000000011/"))
    assert text.count("(once a newer delivery is bound)") == 2


def test_every_table_of_a_run_is_shown(sign_in: SignIn, state_home: Path) -> None:
    mirror_state_home(state_home)
    client = sign_in("viewer")
    text = text_of(client.get("/runs/00000000-0000-4000-8000-000000000001/"))
    for word in ("Operations", "Deliveries", "Tasks", "Artifacts", "Workspace revisions", "Apply transactions",
                 "Handoffs", "Route health", "rev-1b", "tx-1", "handoff-1", "17.8 KB", "with proof"):  # fmt: skip
        assert word in text, word
    assert "task-01" in text_of(client.get("/runs/00000000-0000-4000-8000-000000000001/tasks/"))
    assert client.get("/runs/00000000-0000-4000-8000-000000000001/nonsense/").status_code == 404


@pytest.mark.parametrize(
    ("name", "run", "words"),
    [
        ("tampered-payload", "10", ["This history can't be trusted.", "The chain breaks at event 7", "only broken link",
                                    "doesn't give the recorded hash"]),
        ("missing-event", "08", ["The chain breaks at event 2", "Event 2 is missing.", "Its prior hash is not"]),
        ("truncated-tail", "08", ["doesn't add up to the state that the store shows", "eventHash, sequence, state"]),
    ],
)  # fmt: skip
def test_a_broken_run_is_explained(sign_in: SignIn, name: str, run: str, words: list[str]) -> None:
    mirror_store(DATA / "cadence" / f"{name}.sqlite3")
    text = text_of(sign_in("viewer").get(f"/runs/00000000-0000-4000-8000-0000000000{run}/"))
    for word in words:
        assert word in text, word


def test_both_versions_of_a_diverged_run_are_shown(sign_in: SignIn, store: Store) -> None:
    store.add_run("run-1", "x", ["paused", "ready"])
    mirror_store(store.path)
    store.rewrite("run-1", 2, {"from": "created", "to": "paused", "code": "forged-code"})
    mirror_store(store.path)
    text = text_of(sign_in("viewer").get("/runs/run-1/"))
    assert "Two histories from event 2 on." in text
    assert "Moved from created to paused : forged-code" in text
    assert "diverged" in text_of(sign_in("viewer").get("/runs/"))


def test_a_shorter_source_is_shown_as_no_such_event(sign_in: SignIn, store: Store) -> None:
    store.add_run("run-1", "x", ["paused"])
    mirror_store(store.path)
    store.execute("DELETE FROM events WHERE sequence=2")
    mirror_store(store.path)
    assert "Shown by the source No such event." in text_of(sign_in("viewer").get("/runs/run-1/"))


def test_what_vanished_from_its_source_says_so(sign_in: SignIn, store: Store) -> None:
    store.add_run("run-1", "x")
    mirror_store(store.path)
    store.execute("DELETE FROM runs")
    mirror_store(store.path)
    client = sign_in("viewer")
    assert "gone from source" in text_of(client.get("/runs/"))
    assert "Gone from its source" in text_of(client.get("/runs/run-1/"))


def test_an_id_known_in_two_projects_is_asked_for(sign_in: SignIn, store: Store, tmp_path: Path) -> None:
    store.add_run("run-1", "x")
    other = Store.in_state_home(tmp_path / "other", root_hash="e" * 64)
    other.add_run("run-1", "y")
    mirror_store(store.path)
    mirror_store(other.path)
    client = sign_in("viewer")
    response = client.get("/runs/run-1/")
    assert response.status_code == 300
    assert "known in 2 projects" in text_of(response)
    assert client.get(f"/runs/run-1/?root={'e' * 64}").status_code == 200
    assert client.get(f"/runs/run-1/?root={'d' * 64}").status_code == 404
    assert client.post("/runs/run-1/verification/").status_code == 300


@pytest.mark.parametrize("path", ["/runs/none/", "/runs/none/tasks/", "/runs/run-1/?upto=x", "/nowhere/"])
def test_what_is_not_there_is_not_found(sign_in: SignIn, store: Store, path: str) -> None:
    store.add_run("run-1", "x")
    mirror_store(store.path)
    response = sign_in("viewer").get(path)
    assert response.status_code == 404
    assert "There is nothing here" in text_of(response)


def test_verify_now_recomputes_and_shows(sign_in: SignIn, store: Store) -> None:
    store.add_run("run-1", "x", ["paused"])
    mirror_store(store.path)
    client = sign_in("viewer")
    Event.objects.filter(sequence=2).update(payload_json="{}")
    response = client.post("/runs/run-1/verification/")
    assert response.status_code == 302
    assert Run.objects.get().verdict == "event-integrity-hash-chain"
    assert "The chain breaks at event 2" in text_of(client.get(response.headers["Location"]))
    fragment = client.post("/runs/run-1/verification/", headers=HTMX)
    assert fragment.content.lstrip().startswith(b'<div id="run"')
    assert b"The chain breaks at event 2" in fragment.content
    assert client.get("/runs/run-1/verification/").status_code == 405
    assert Client(enforce_csrf_checks=True).post("/runs/run-1/verification/").status_code in (302, 403)


def test_a_form_without_its_token_is_refused(accounts: dict[str, object]) -> None:
    client = Client(enforce_csrf_checks=True)
    client.force_login(accounts["viewer"])  # type: ignore[arg-type]
    response = client.post("/runs/run-1/verification/")
    assert response.status_code == 403
    assert "Nothing was done" in text_of(response)


def test_too_long_a_chain_is_not_verified_while_somebody_waits(sign_in: SignIn, store: Store) -> None:
    store.add_run("run-1", "x")
    mirror_store(store.path)
    Run.objects.update(sequence=1_000_000)
    response = sign_in("viewer").post("/runs/run-1/verification/")
    assert response.status_code == 422
    assert "manage.py verify_chain run-1" in text_of(response)


def long_run(length: int) -> Run:
    """A run with `length` events, put in the database straight away."""
    from tests.runs.stores import chain

    many_runs(1)
    run = Run.objects.get()
    events = chain(length, "run-0")
    Event.objects.bulk_create(
        Event(run=run, sequence=event.sequence, type=event.type, payload_json=event.payload_json,
              prior_hash=event.prior_hash, event_hash=event.event_hash, first_seen_at=0)
        for event in events
    )  # fmt: skip
    Operation.objects.bulk_create(
        Operation(run=run, operation_id=f"op-{number}", kind="lease", state="committed") for number in range(length)
    )
    Run.objects.update(sequence=length, event_hash=events[-1].event_hash)
    return Run.objects.get()


def sequences_in(response: object) -> list[int]:
    found = re.findall(r'<li id="event-(\d+)"', response.content.decode())  # type: ignore[attr-defined]
    return [int(number) for number in found]


def test_a_long_chain_opens_in_windows(sign_in: SignIn) -> None:
    long_run(130)
    client = sign_in("viewer")
    response = client.get("/runs/run-0/")
    assert sequences_in(response) == list(range(130, 130 - CHAIN_PAGE_SIZE, -1))
    older = client.get("/runs/run-0/?upto=80")
    assert sequences_in(older) == list(range(80, 30, -1))
    assert text_of(older).count("recomputed, holds") == 50
    assert "upto=130" in older.content.decode()
    assert "upto=30" in older.content.decode()
    assert sequences_in(client.get("/runs/run-0/?upto=30")) == list(range(30, 0, -1))


def test_the_first_bad_link_is_in_view(sign_in: SignIn) -> None:
    run = long_run(400)
    Event.objects.filter(run=run, sequence=150).update(payload_json="{}")
    client = sign_in("viewer")
    response = client.post("/runs/run-0/verification/", follow=True)
    assert 150 in sequences_in(response)
    assert 'id="event-150" class="broken"' in response.content.decode()


def test_a_run_costs_the_same_at_any_length(sign_in: SignIn) -> None:
    client = sign_in("viewer")

    def cost(length: int) -> int:
        long_run(length)
        with CaptureQueriesContext(connection) as queries:
            assert client.get("/runs/run-0/").status_code == 200
        Event.objects.all()._raw_delete("default")
        Operation.objects.all().delete()
        Run.objects.all().delete()
        StateRoot.objects.all().delete()
        return len(queries)

    assert cost(3) == cost(300) == 21


# Hostile content


def test_nothing_that_a_store_says_becomes_markup(sign_in: SignIn, store: Store) -> None:
    bad = "</script><script>alert(1)</script><img src=x onerror=alert(2)>{{ 7|add:7 }}\u202e"
    store.add_run("run-1", bad[:120])
    store.append("run-1", "state-transitioned", {"from": "created", "to": "paused", "code": bad})
    store.bind("run-1", "gate-a", 1, proof=PROOF)
    store.execute("INSERT INTO operations VALUES ('run-1',?,?,'running',NULL,'t',1)", (bad, bad[:60]))
    store.execute("INSERT INTO tasks VALUES ('run-1',?,'pending',?,'{}')", (bad, bad))
    store.execute("INSERT INTO apply_transactions VALUES (?,'run-1',?,?,?)", (bad, bad[:60], bad, bad))
    store.execute("INSERT INTO bootstrap_handoffs VALUES (?,'run-1',?,?,?)", (bad, "e" * 64, bad[:60], bad))
    store.execute("INSERT INTO route_health VALUES (?,?,-5,?)", (bad, bad[:60], bad))
    store.execute("INSERT INTO workspace_revisions VALUES (?,'run-1',?,?)", (bad, bad, "e" * 64))
    report = mirror_store(store.path)
    assert report.clean, report.problems
    client = sign_in("operator")
    for path in ("/runs/", "/runs/run-1/", "/runs/run-1/operations/", "/runs/run-1/apply-transactions/"):
        content = client.get(path).content.decode()
        assert "<script>alert" not in content
        assert "<img" not in content
        assert "14" not in re.findall(r"\{\{ 7.add:7 \}\}|>14<", content)


@pytest.mark.parametrize(
    "payload",
    [
        '"' + "x" * 2_000_000 + '"',
        "[" * 5_000 + "]" * 5_000,
        '{"to":' + "[" * 3_000 + "]" * 3_000 + "}",
        "{",
        "null",
        "[1]",
    ],
    ids=["huge", "deep", "deep member", "no JSON", "null", "array"],
)
def test_any_payload_can_be_looked_at(sign_in: SignIn, store: Store, payload: str) -> None:
    store.add_run("run-1", "x", ["paused", "ready"])
    store.execute("UPDATE events SET payload_json=? WHERE sequence=2", (payload,))
    mirror_store(store.path)
    response = sign_in("viewer").get("/runs/run-1/")
    assert response.status_code == 200
    assert len(response.content) < 1_000_000
    assert "This history can't be trusted." in text_of(response)


def test_times_out_of_range_are_shown_as_numbers(sign_in: SignIn, store: Store) -> None:
    store.add_run("run-1", "x")
    store.execute("INSERT INTO operations VALUES ('run-1','a','lease','running',NULL,'t',9007199254740991)")
    store.execute("INSERT INTO operations VALUES ('run-1','b','lease','running',NULL,'t',-9007199254740991)")
    mirror_store(store.path)
    text = text_of(sign_in("viewer").get("/runs/run-1/"))
    assert "9007199254740991 ms" in text
