"""What axe-core finds on each kind of page, light and dark."""

from collections.abc import Callable

import pytest
from axe_playwright_python.sync_playwright import Axe
from django.core.management import call_command
from django.urls import reverse
from playwright.sync_api import Page

from approvals.adapter import Adapter
from approvals.models import Approval, Effect, Saga
from runs.mirror import mirror_state_home
from tests.conftest import DATA

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.layout]


def violations(page: Page) -> list[str]:
    found = Axe().run(page).response["violations"]
    return [f"{rule['id']}: {node['html']}" for rule in found for node in rule["nodes"]]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_page_has_a_violation(database: Adapter, open_page: Callable[..., Page], scheme: str) -> None:
    mirror_state_home(DATA / "cadence" / "state-home")
    call_command("import_records", str(DATA / "nifra" / "records.sqlite3"), verbosity=0)
    database.leases.acquire("effects", "worker", 600_000)
    run = "00000000-0000-4000-8000-000000000010"
    pending = Approval.objects.filter(state="pending").first()
    unknown, saga = Effect.objects.filter(state="unknown").first(), Saga.objects.first()
    assert pending is not None
    assert unknown is not None
    assert saga is not None
    addresses = ["/runs/", "/runs/?change=nothing", f"/runs/{run}/", f"/runs/{run}/operations/", "/approvals/",
                 "/approvals/?show=denied", "/approvals/?show=mine", reverse("approval", args=[pending.id]), "/effects/",
                 reverse("effect", args=[unknown.id]), "/sagas/", reverse("saga", args=[saga.id]), "/leases/",
                 "/leases/?show=live", "/audit/"]  # fmt: skip
    page = open_page("operator", color_scheme=scheme)
    for address in addresses:
        page.goto(address)
        assert violations(page) == [], address
    page.goto("/leases/")
    page.get_by_role("button", name="Reclaim the chosen").click()
    page.wait_for_url("**/reclaim/")
    assert violations(page) == [], "the preview"
    page = open_page(None, color_scheme=scheme)
    page.goto("/sign-in/")
    assert violations(page) == [], "signing in"
