"""What costs much is refused to whoever asks too often, and to nobody else."""

from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.urls import reverse
from pytest_django import Settings

from approvals.adapter import Adapter
from runs.store import RunStore
from tests.approvals.test_four_eyes import asked
from tests.conftest import PASSWORD

pytestmark = pytest.mark.django_db
SignIn = Callable[[str], Client]


@pytest.fixture(autouse=True)
def few(settings: Settings) -> None:
    settings.LIMITS = dict.fromkeys(settings.LIMITS, 2)


def statuses(ask: Callable[[], Any], times: int = 3) -> list[int]:
    return [ask().status_code for _ in range(times)]


@pytest.mark.parametrize(
    "address",
    ["/runs/?change=x", "/approvals/?q=x", "/admin/runs/run/?q=x", "/admin/approvals/approval/?q=x&o=1"],
)
def test_searching(sign_in: SignIn, address: str) -> None:
    client = sign_in("operator")
    assert statuses(lambda: client.get(address)) == [200, 200, 429]
    # Another person may, and so may this one where nothing is searched for.
    other = Client()
    other.force_login(User.objects.create_superuser("other"))
    assert other.get(address).status_code == 200
    assert client.get(address.partition("?")[0] + "?q=").status_code == 200


def test_verifying_and_what_it_says(sign_in: SignIn, caplog: pytest.LogCaptureFixture) -> None:
    run_id = RunStore("a" * 64).start_run("abel-implement", "start", change="x")["runId"]
    client = sign_in("operator")
    address = reverse("runs:verification", args=[run_id])
    assert statuses(lambda: client.post(address)) == [302, 302, 429]
    refused = client.post(address)
    assert 1 <= int(refused["Retry-After"]) <= 60
    assert f"again in {refused['Retry-After']} second" in refused.content.decode()
    assert "HX-Retarget" not in refused
    assert "asks too often: verify" in caplog.text
    by_htmx = client.post(address, headers={"HX-Request": "true"})
    assert (by_htmx.status_code, by_htmx["HX-Retarget"], by_htmx["HX-Reswap"]) == (429, "#main", "innerHTML")
    assert by_htmx.content.startswith(b"<section")
    by_itself = client.post(address, headers={"HX-Request": "true", "X-Background": "1"})
    assert by_itself["HX-Reswap"] == "none"


def test_verifying_the_audit_log(accounts: dict[str, User], client: Client) -> None:
    client.force_login(User.objects.create_superuser("root"))
    assert statuses(lambda: client.post("/audit/verify/")) == [200, 200, 429]


def test_many_at_once(database: Adapter, sign_in: SignIn) -> None:
    client = sign_in("operator")
    record = asked(database)
    chosen = {"answer": "approved", "chosen": [f"{'0' * 64}.1.{record.id}"]}
    assert statuses(lambda: client.post("/approvals/~decisions/", chosen)) == [200, 200, 429]
    assert client.post("/leases/reclaim/", {"operation": ["1"]}).status_code == 429
    # One at a time is a person's pace.
    assert client.post(reverse("decision", args=[record.id]), {"answer": "approved"}).status_code == 422


@pytest.mark.parametrize(
    ("first", "second", "status"),
    [
        ("203.0.113.7", "203.0.113.7", 429),
        ("203.0.113.7", "203.0.113.8", 200),
        ("2001:db8:1:2::1", "2001:db8:1:2:ffff::9", 429),
        ("2001:db8:1:2::1", "2001:db8:1:3::1", 200),
        ("::ffff:203.0.113.7", "203.0.113.7", 429),
        ("::ffff:203.0.113.7", "::ffff:203.0.113.8", 200),
    ],
)
def test_signing_in_from_one_place(
    accounts: dict[str, User], client: Client, first: str, second: str, status: int
) -> None:
    def attempt(name: str, address: str) -> int:
        form = {"username": name, "password": "wrong " + PASSWORD}
        return client.post("/sign-in/", form, REMOTE_ADDR=address).status_code

    assert [attempt(f"somebody-{number}", first) for number in range(2)] == [200, 200]
    assert attempt("somebody-else", second) == status
    assert client.get("/sign-in/", REMOTE_ADDR=first).status_code == 200


def test_going_to_the_provider(client: Client) -> None:
    # Not set up here: each is "not found", and counts.
    assert statuses(lambda: client.get("/sign-in/oidc/")) == [404, 404, 429]
    assert client.get("/sign-in/oidc/callback/").status_code == 429


def test_without_a_limit(sign_in: SignIn, settings: Settings) -> None:
    settings.LIMITS |= {"search": 0}
    client = sign_in("viewer")
    assert statuses(lambda: client.get("/runs/?change=x"), 5) == [200] * 5


def test_who_is_not_signed_in_counts_for_nobody(client: Client) -> None:
    assert statuses(lambda: client.get("/runs/?change=x"), 4) == [302] * 4
