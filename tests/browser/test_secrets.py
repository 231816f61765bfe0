"""No secret leaves the database: all output of a whole session is searched for each of them."""

import io
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from django.core.management import call_command
from django.db import connection
from django.urls import reverse
from playwright.sync_api import Page, Response, expect

from approvals import tables
from approvals.adapter import Adapter
from approvals.models import DurableRecord
from runs.models import Operation
from runs.store import RunStore
from tests.approvals.test_four_eyes import asked
from tests.conftest import load
from tests.runs.stores import ROOT

pytestmark = pytest.mark.django_db(transaction=True)

MOST_PAGES = 30
OWN_LINKS = "all => all.filter(a => a.origin === location.origin).map(a => a.pathname + a.search)"


def secrets() -> set[str]:
    found = set(Operation.objects.exclude(lease_token=None).values_list("lease_token", flat=True))
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT token FROM {tables.LEASES} WHERE token IS NOT NULL")
        found |= {row[0] for row in cursor.fetchall()}
    for payload in DurableRecord.objects.filter(kind="approval").values_list("payload", flat=True):
        wire = payload if isinstance(payload, dict) else json.loads(payload)
        found.add(wire["n"][0]["v"]["tokenHash"])
    return found | {entry["token"] for entry in load("nifra/approvals.json")["approvals"]}


def test_no_secret_is_in_what_a_session_gets(
    open_page: Callable[..., Page],
    empty_tables: None,
    database: Adapter,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
) -> None:
    call_command("import_records", str(Path(__file__).parent.parent / "data" / "nifra" / "records.sqlite3"))
    record = asked(database, approval_id="mine", token_hash="7a" * 32)
    store = RunStore(ROOT)
    run = store.start_run("abel-implement", operation_id="op-1", change="c")
    for number in range(2):
        store.acquire_lease(run["runId"], f"op-{number + 2}", 60_000)
    Operation.objects.filter(operation_id="op-2").update(lease_expires_at=1)
    lease = database.leases.acquire("worker", "me", 60_000)
    assert lease is not None
    hidden = secrets()
    assert len(hidden) > 20

    page = open_page("operator")
    got: list[str] = []

    def keep(response: Response) -> None:
        got.append(f"{response.url} {response.all_headers()}")
        if response.status not in (204, 301, 302, 304) and not response.url.endswith((".css", ".js", ".svg", ".png")):
            got.append(response.text())

    page.on("response", keep)
    page.goto(reverse("approval", args=[record.id]))
    page.locator("summary", has_text="record").first.click()
    page.locator("#decide").get_by_role("button", name="Approve").click()
    expect(page.get_by_text("Approved").first).to_be_visible()
    page.goto("/leases/")
    page.get_by_role("button", name="Reclaim the chosen").click()
    page.get_by_label("Reason").fill("it is dead")
    page.get_by_role("button", name="Reclaim", exact=True).click()
    expect(page.get_by_text("marked as interrupted")).to_have_count(1)
    seen: set[str] = set()
    waiting = ["/runs/", "/approvals/", "/effects/", "/sagas/", "/leases/?show=live", "/audit/", "/admin/"]
    while waiting and len(seen) < MOST_PAGES:
        address = waiting.pop(0)
        if address in seen:
            continue
        seen.add(address)
        answer = page.goto(address)
        assert answer is not None
        assert answer.status == 200, address
        for link in page.eval_on_selector_all("a[href]", OWN_LINKS):
            # A few of each kind of page are enough.
            alike = [other for other in (*seen, *waiting) if other.split("/")[1:3] == link.split("/")[1:3]]
            if link.startswith("/") and len(alike) < 3:
                waiting.append(link)
    assert len(seen) > 15
    exported = io.StringIO()
    call_command("audit", "export", stdout=exported)
    printed = capsys.readouterr()
    everything = "\n".join([*got, caplog.text, exported.getvalue(), printed.out, printed.err])
    assert "payments.refund" in everything
    leaked = {secret for secret in hidden | {lease.token} if secret in everything}
    assert leaked == set()
