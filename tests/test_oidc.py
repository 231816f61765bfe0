"""Signing in at an OpenID Connect provider: a real one, small, on this machine."""

import time
from collections.abc import Callable
from typing import Any

import pytest
import requests
from django.contrib.auth.models import Group, User
from django.http import HttpResponse
from django.test import Client
from joserfc.jwk import OctKey, RSAKey
from pytest_django import Settings

from cadence_admin.models import AuditEntry, Identity
from tests.conftest import PASSWORD
from tests.provider import CLIENT_ID, CLIENT_SECRET, Provider

pytestmark = pytest.mark.django_db

MINUTE = 60_000


def begin(client: Client, target: str = "") -> str:
    """To the provider and back: the address that it sends the browser to."""
    there = client.get("/sign-in/oidc/", {"next": target} if target else {})
    assert there.status_code == 302
    back = requests.get(there["Location"], allow_redirects=False, timeout=5)
    return back.headers["Location"].removeprefix("http://testserver")


def sign_in(client: Client, target: str = "") -> HttpResponse:
    response: HttpResponse = client.get(begin(client, target))
    return response


def said(client: Client) -> str:
    return client.get("/sign-in/").content.decode()


def roles(name: str) -> list[str]:
    return sorted(User.objects.get(username=name).groups.values_list("name", flat=True))


def actions() -> list[tuple[str, str]]:
    return list(AuditEntry.objects.order_by("sequence").values_list("action", "target"))


def test_without_a_provider_there_is_no_such_door(client: Client) -> None:
    assert client.get("/sign-in/oidc/").status_code == 404
    assert client.get("/sign-in/oidc/callback/?code=a&state=b").status_code == 404
    assert "Sign in with" not in said(client)


def test_the_first_time_makes_an_account_with_its_roles(provider: Provider, client: Client) -> None:
    assert "Sign in with Acme" in said(client)
    before = AuditEntry.objects.count()
    response = sign_in(client, "/runs/?state=paused")
    assert (response.status_code, response["Location"]) == (302, "/runs/?state=paused")
    assert client.get("/runs/").status_code == 200
    user = User.objects.get(username="dana")
    assert (user.is_staff, user.is_superuser, user.has_usable_password()) == (False, False, False)
    assert (user.identity.issuer, user.identity.subject) == (provider.issuer, "8d1f")
    assert roles("dana") == ["operator"]
    (asked,) = provider.asked
    assert (asked["response_type"], asked["code_challenge_method"], asked["scope"]) == (
        "code",
        "S256",
        "openid profile email",
    )
    rows = AuditEntry.objects.filter(sequence__gt=before).order_by("sequence")
    assert [row.action for row in rows] == [
        "user.created",
        "identity.created",
        "user.group-put-in",
        "account.signed-in",
    ]
    assert {row.actor for row in rows[:3]} == {provider.issuer}
    assert rows[3].actor == "dana"


def test_it_is_the_same_account_whatever_its_name_becomes(provider: Provider, client: Client) -> None:
    sign_in(client)
    provider.person |= {"preferred_username": "dana.new", "groups": ["CN=audit,O=acme", "unknown", 7]}
    Group.objects.create(name="by hand").user_set.add(User.objects.get(username="dana"))
    assert sign_in(Client()).status_code == 302
    assert roles("dana") == ["auditor", "by hand"], "what the provider took is gone, what was given by hand stays"
    assert Identity.objects.count() == 1
    assert not User.objects.filter(username="dana.new").exists()


def test_no_account_is_taken_over_by_its_name(provider: Provider, client: Client) -> None:
    provider.person["preferred_username"] = "Operator"
    assert sign_in(client)["Location"] == "/sign-in/"
    assert "There is an account Operator here that isn&#x27;t yours" in said(client)
    assert not Identity.objects.exists()
    assert client.get("/runs/").status_code == 302
    # Linked by whoever looks after the accounts, it is theirs.
    Identity.objects.create(user=User.objects.get(username="operator"), issuer=provider.issuer, subject="8d1f")
    assert sign_in(client)["Location"] == "/"
    assert client.get("/runs/").context["user"].username == "operator"


def test_who_has_no_role_gets_no_account(provider: Provider, client: Client, settings: Settings) -> None:
    provider.person["groups"] = ["staff"]
    sign_in(client)
    assert "You have no role in this console" in said(client)
    assert not Identity.objects.exists()
    # Where roles are given by hand the account is made, and waits for one.
    settings.OIDC_GROUPS = {}
    sign_in(client)
    assert client.get("/runs/").status_code == 302
    User.objects.get(username="dana").groups.add(Group.objects.get(name="viewer"))
    sign_in(client)
    assert client.get("/runs/").status_code == 200


def test_who_lost_all_roles_is_out_and_has_none(provider: Provider, client: Client) -> None:
    sign_in(client)
    provider.person["groups"] = []
    assert sign_in(Client())["Location"] == "/sign-in/"
    assert roles("dana") == []
    assert client.get("/runs/").status_code == 403, "an open session has lost them too"


def test_an_account_that_is_off_stays_off(provider: Provider, client: Client) -> None:
    sign_in(client)
    User.objects.filter(username="dana").update(is_active=False)
    assert client.get("/runs/").status_code == 302
    other = Client()
    sign_in(other)
    assert "Your account is switched off" in said(other)


def test_groups_may_come_from_userinfo(provider: Provider, client: Client) -> None:
    provider.told_by_userinfo = {"sub": "8d1f", "groups": "ops", "preferred_username": "not-this"}
    provider.person = {"sub": "8d1f", "preferred_username": "dana"}
    sign_in(client)
    assert roles("dana") == ["operator"]
    provider.told_by_userinfo["sub"] = "somebody-else"
    other = Client()
    sign_in(other)
    assert "spoke of somebody else" in said(other)


@pytest.mark.parametrize(
    "changes",
    [
        {"iss": "https://evil.example"},
        {"iss": None},
        {"aud": "another-client"},
        {"aud": None},
        {"aud": ["another-client"], "azp": CLIENT_ID},
        {"exp": 1_000},
        {"exp": None},
        {"nonce": "replayed"},
        {"nonce": None},
        {"sub": None},
        {"iat": 4_000_000_000},
    ],
    ids=str,
)
def test_a_token_for_something_else_opens_nothing(provider: Provider, client: Client, changes: dict[str, Any]) -> None:
    provider.changes = changes
    assert sign_in(client)["Location"] == "/sign-in/"
    assert client.get("/runs/").status_code == 302
    assert not Identity.objects.exists()
    assert actions()[-1] == ("account.sign-in-failed", provider.issuer)


@pytest.mark.parametrize(
    ("algorithm", "key"),
    [
        ("RS256", RSAKey.generate_key(2048, {"kid": "1"})),
        ("HS256", OctKey.import_key(CLIENT_SECRET)),
        ("none", None),
    ],
)
def test_a_token_that_somebody_else_signed_opens_nothing(
    provider: Provider, client: Client, algorithm: str, key: Any
) -> None:
    provider.algorithm, provider.key = algorithm, key
    if algorithm == "none":
        provider.token = unsigned(provider)  # type: ignore[method-assign]
    assert sign_in(client)["Location"] == "/sign-in/"
    assert "isn&#x27;t valid" in said(client)
    assert not Identity.objects.exists()


def unsigned(provider: Provider) -> Callable[..., dict[str, Any]]:
    import base64
    import json

    def part(value: dict[str, Any]) -> str:
        return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=").decode()

    def token(form: dict[str, str], authorization: str) -> dict[str, Any]:
        now = int(time.time())
        claims = {"iss": provider.issuer, "aud": CLIENT_ID, "iat": now, "exp": now + 300, "sub": "8d1f"}
        claims["nonce"] = provider.asked[-1]["nonce"]
        return {"access_token": "a", "token_type": "Bearer", "id_token": f"{part({'alg': 'none'})}.{part(claims)}."}

    return token


def test_a_code_is_good_once_and_for_who_asked(provider: Provider, client: Client) -> None:
    address = begin(client)
    assert Client().get(address)["Location"] == "/sign-in/", "the code of somebody else's sign-in"
    assert client.get(address)["Location"] == "/"
    client.logout()
    assert client.get(address)["Location"] == "/sign-in/"
    begin(client)
    assert client.get("/sign-in/oidc/callback/?code=x&state=made-up")["Location"] == "/sign-in/"
    assert client.get("/runs/").status_code == 302


def test_what_the_provider_refuses_is_said(provider: Provider, client: Client) -> None:
    provider.answer_error = "access_denied"
    sign_in(client)
    assert "Acme didn&#x27;t let you in." in said(client)


def test_a_provider_that_is_away_is_said(provider: Provider, client: Client, settings: Settings) -> None:
    address = begin(client)
    settings.OIDC_ISSUER = "http://127.0.0.1:9"
    assert client.get(address)["Location"] == "/sign-in/"
    assert "Acme can&#x27;t be reached right now" in said(client)
    assert client.get("/sign-in/oidc/")["Location"] == "/sign-in/"
    # One that calls itself something else is not the one that was configured.
    settings.OIDC_ISSUER = f"{provider.issuer}/"
    assert client.get("/sign-in/oidc/")["Location"] == "/sign-in/"


@pytest.mark.parametrize("target", ["//evil.example", "https://evil.example/", "/\\evil.example", "javascript:x"])
def test_it_leads_nowhere_else(provider: Provider, client: Client, target: str) -> None:
    assert sign_in(client, target)["Location"] == "/"


def test_a_sign_in_starts_a_session_of_its_own(provider: Provider, client: Client) -> None:
    address = begin(client)
    before = client.session.session_key
    client.get(address)
    assert client.session.session_key != before


def test_a_proof_is_a_new_sign_in_there(
    provider: Provider, client: Client, monkeypatch: pytest.MonkeyPatch, accounts: dict[str, User]
) -> None:
    ahead = [0]
    monkeypatch.setattr("cadence_admin.sessions.now_ms", lambda: int(time.time() * 1_000) + ahead[0])
    sign_in(client)
    User.objects.filter(username="dana").update(is_superuser=True, is_staff=True)
    add = "/admin/cadence_admin/approvalpolicy/add/"
    assert client.get(add).status_code == 200, "who has just signed in has said it"
    ahead[0] = 16 * MINUTE
    page = client.get(add)
    assert page.status_code == 403
    assert f"/sign-in/oidc/?next={add.replace('/', '%2F')}" in page.content.decode()
    assert "Password of" not in page.content.decode()
    # The provider didn't ask, somebody else answered, or it is really them.
    provider.changes = {"auth_time": int(time.time()) - 3_600}
    assert sign_in(client, add)["Location"] == "/"
    assert client.get(add).status_code == 403
    monkeypatch.setattr("cadence_admin.oidc.now_ms", lambda: int(time.time() * 1_000) + ahead[0])
    just_now = {"auth_time": int(time.time()) + ahead[0] // 1_000}
    provider.changes = just_now | {"sub": "someone-else"}
    assert sign_in(client, add)["Location"] == "/"
    assert client.get(add).status_code == 403
    provider.changes = just_now
    assert sign_in(client, add)["Location"] == add
    assert (provider.asked[-1]["prompt"], provider.asked[-1]["max_age"]) == ("login", "0")
    assert client.get(add).status_code == 200


def test_a_session_of_the_provider_alone_is_no_proof(provider: Provider, client: Client) -> None:
    provider.changes = {"auth_time": int(time.time()) - 3_600}
    sign_in(client)
    User.objects.filter(username="dana").update(is_superuser=True, is_staff=True)
    assert client.get("/admin/cadence_admin/approvalpolicy/add/").status_code == 403


def test_a_password_opens_no_account_of_the_provider(provider: Provider, client: Client) -> None:
    sign_in(client)
    other = Client()
    assert other.post("/sign-in/", {"username": "dana", "password": ""}).status_code == 200
    assert other.post("/sign-in/", {"username": "dana", "password": PASSWORD}).status_code == 200
