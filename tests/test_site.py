"""The site's doors: sessions that end, guessing that stops, a proof before much changes, and what no page takes."""

from collections.abc import Callable, Iterator

import pytest
from django.conf import settings
from django.contrib.auth.models import User
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import Client
from django.urls import URLPattern, URLResolver, get_resolver

from approvals.adapter import Adapter
from approvals.decisions import shown_of
from cadence_admin.models import ApprovalPolicy, AuditEntry
from cadence_admin.requests import client_address, client_ip
from tests.approvals.test_four_eyes import asked
from tests.conftest import PASSWORD

pytestmark = pytest.mark.django_db

MINUTE = 60_000


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The time of sessions, in a list of one."""
    now = [1_000_000_000_000]
    monkeypatch.setattr("cadence_admin.sessions.now_ms", lambda: now[0])
    return now


def is_in(client: Client, **headers: str) -> bool:
    return client.get("/runs/", headers=headers or None).status_code == 200


def test_a_session_ends_when_nobody_uses_it(clock: list[int], sign_in: Callable[[str], Client]) -> None:
    client = sign_in("viewer")
    for _ in range(3):
        clock[0] += 59 * MINUTE
        assert is_in(client)
    clock[0] += 61 * MINUTE
    assert not is_in(client)
    assert not is_in(client), "it stays ended"
    assert AuditEntry.objects.filter(action="account.signed-out").exists()


def test_what_a_page_asks_by_itself_keeps_no_session_alive(clock: list[int], sign_in: Callable[[str], Client]) -> None:
    client = sign_in("viewer")
    for _ in range(3):
        clock[0] += 29 * MINUTE
        answered = is_in(client, **{"X-Background": "1"})
    assert not answered


def test_a_session_ends_however_busy_it_is(clock: list[int], sign_in: Callable[[str], Client]) -> None:
    client = sign_in("viewer")
    for _ in range(24):
        clock[0] += 30 * MINUTE
        assert is_in(client)
    clock[0] += MINUTE
    assert not is_in(client)


def test_looking_writes_no_session_each_time(
    clock: list[int], sign_in: Callable[[str], Client], django_assert_num_queries: Callable[[int], object]
) -> None:
    client = sign_in("viewer")
    client.get("/runs/")
    clock[0] += 30_000
    with django_assert_num_queries(7):
        client.get("/runs/")


def test_guessing_is_stopped_for_that_name_and_address(accounts: dict[str, User]) -> None:
    client = Client()

    def attempt(name: str, password: str, address: str = "10.0.0.1") -> int:
        return client.post("/sign-in/", {"username": name, "password": password}, REMOTE_ADDR=address).status_code

    assert [attempt("viewer", f"guess-{number}") for number in range(5)] == [200, 200, 200, 200, 429]
    assert attempt("viewer", PASSWORD) == 429, "the right one doesn't help any more"
    assert attempt("auditor", "guess") == 200
    assert attempt("viewer", PASSWORD, "10.0.0.2") == 302
    assert AuditEntry.objects.filter(action="account.sign-in-failed", target="viewer").count() == 6


def test_passwords_are_kept_by_argon2() -> None:
    from cadence_admin.settings import PASSWORD_HASHERS

    assert PASSWORD_HASHERS[0] == "django.contrib.auth.hashers.Argon2PasswordHasher"


def test_a_form_that_gives_rights_asks_who_it_is(clock: list[int], accounts: dict[str, User]) -> None:
    root = User.objects.create_superuser("root", password=PASSWORD)
    client = Client()
    client.force_login(root)
    add = "/admin/cadence_admin/approvalpolicy/add/"
    assert client.get(add).status_code == 200, "who has just signed in has said it"
    clock[0] += 16 * MINUTE
    page = client.get(add)
    assert page.status_code == 403
    assert "Is it still you?" in page.content.decode()
    form = {"capability": "pay.*", "needed": "3"}
    assert client.post(add, form).status_code == 403
    assert client.post(add, form | {"confirm_password": "not it"}).status_code == 403
    assert not ApprovalPolicy.objects.exists()
    # What was posted is done with the right answer, and stays good for a while.
    assert client.post(add, form | {"confirm_password": PASSWORD}).status_code == 302
    assert ApprovalPolicy.objects.get().needed == 3
    assert client.get(add).status_code == 200
    clock[0] += 16 * MINUTE
    answered = client.post(add, {"confirm_password": PASSWORD, "asked_for_page": "1"})
    assert (answered.status_code, answered["Location"]) == (302, add)
    assert PASSWORD not in page.content.decode()


@pytest.mark.parametrize("model", ["tenantaccess", "rootaccess", "approvalpolicy", "ownedprincipal", "identity"])
def test_every_table_of_rights_asks(clock: list[int], accounts: dict[str, User], model: str) -> None:
    client = Client()
    client.force_login(User.objects.create_superuser("root", password=PASSWORD))
    clock[0] += 16 * MINUTE
    assert client.get(f"/admin/cadence_admin/{model}/add/").status_code == 403
    assert client.post(f"/admin/cadence_admin/{model}/", {"action": "delete_selected"}).status_code == 403


@pytest.mark.parametrize("path", ["user/add/", "user/{}/password/", "user/{}/change/", "user/{}/delete/", "group/add/"])
def test_accounts_and_groups_ask(clock: list[int], accounts: dict[str, User], path: str) -> None:
    client = Client()
    client.force_login(User.objects.create_superuser("root", password=PASSWORD))
    clock[0] += 16 * MINUTE
    assert client.get(f"/admin/auth/{path.format(accounts['viewer'].pk)}").status_code == 403


def test_many_decisions_at_once_ask_who_it_is(
    clock: list[int], empty_tables: None, database: Adapter, sign_in: Callable[[str], Client]
) -> None:
    client = sign_in("approver")
    records = [asked(database, approval_id=f"a-{number:02}") for number in range(11)]
    chosen = [f"{shown_of(record).digest}.1.{record.id}" for record in records]
    form = {"answer": "denied", "comment": "all of them"}
    clock[0] += 16 * MINUTE
    assert client.post("/approvals/~decisions/", form | {"chosen": chosen[:10]}).status_code == 200
    later = [*chosen[10:], *chosen[:10]]
    page = client.post("/approvals/~decisions/", form | {"chosen": later})
    assert page.status_code == 403
    assert page.content.decode().count('name="chosen"') == 11
    last = database.approvals.get("a-10")
    assert last is not None
    assert last.state == "pending"
    answer = client.post("/approvals/~decisions/", form | {"chosen": later, "confirm_password": PASSWORD})
    assert answer.status_code == 200
    last = database.approvals.get("a-10")
    assert last is not None
    assert last.state == "denied"


def paths(patterns: list[URLPattern | URLResolver], prefix: str = "/") -> Iterator[str]:
    for pattern in patterns:
        if str(pattern.pattern) == "admin/":
            continue
        if isinstance(pattern, URLResolver):
            yield from paths(pattern.url_patterns, prefix + str(pattern.pattern))
        else:
            yield prefix + str(pattern.pattern)


def test_nothing_is_changed_without_a_token(accounts: dict[str, User]) -> None:
    client = Client(enforce_csrf_checks=True)
    client.force_login(accounts["operator"])
    found = [path.replace("<str:kind>", "events") for path in paths(get_resolver().url_patterns)]
    assert len(found) > 20
    for path in found:
        address = "".join("x" if part.startswith("<") else part for part in path.replace(">", ">\0").split("\0"))
        address = "/".join("x" if "<" in part else part for part in path.split("/"))
        for headers in ({}, {"HX-Request": "true"}):
            assert client.post(address, {"answer": "approved"}, headers=headers).status_code == 403, address


@pytest.mark.parametrize(
    "target", ["//evil.example", "https://evil.example/x", "/\\evil.example", "javascript:alert(1)"]
)
def test_signing_in_leads_nowhere_else(accounts: dict[str, User], target: str) -> None:
    client = Client()
    response = client.post(f"/sign-in/?next={target}", {"username": "viewer", "password": PASSWORD, "next": target})
    assert response.status_code == 302
    assert response["Location"] == "/"


def test_files_are_not_taken(sign_in: Callable[[str], Client]) -> None:
    response = sign_in("operator").post("/leases/reclaim/", {"operation": SimpleUploadedFile("x", b"1")})
    assert response.status_code in (302, 400, 404, 422)
    assert not response.wsgi_request.FILES


def test_nothing_in_the_policy_is_unsafe(client: Client) -> None:
    policy = client.get("/sign-in/")["Content-Security-Policy"]
    assert "unsafe" not in policy
    assert "*" not in policy
    assert "default-src 'none'" in policy


def test_an_address_that_a_proxy_made_up_harms_nothing(rf: object) -> None:
    request = rf.get("/", headers={"X-Forwarded-For": "<script>"}, REMOTE_ADDR="10.0.0.9")  # type: ignore[attr-defined]
    assert settings.BEHIND_PROXY is False
    assert client_address(request) == "10.0.0.9"
    settings.BEHIND_PROXY = True
    try:
        assert client_ip(request) == "10.0.0.9"
    finally:
        settings.BEHIND_PROXY = False
