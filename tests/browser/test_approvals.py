"""Deciding in a browser: with and without JavaScript, twice, by two people, too late, signed out, with keys only."""

from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.sessions.models import Session
from django.db import connection
from playwright.sync_api import Page, expect

from approvals.adapter import Adapter
from approvals.backends.database import DatabaseBackend
from approvals.conformance import FAR, approval
from approvals.models import Approval as ApprovalRow
from approvals.models import Decision
from approvals.records import Approval
from approvals.tables import RECORDS
from tests.browser.conftest import fill_in

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("empty_tables")]

OpenPage = Callable[..., Page]


@pytest.fixture
def adapter() -> Adapter:
    return Adapter(DatabaseBackend())


def asked(adapter: Adapter, target: str, **values: Any) -> Approval:
    record = approval(**({"expires_at": FAR, "target": target} | values))
    assert adapter.backend.create("approval", record)
    return record


def state_of(record: Approval) -> str:
    return ApprovalRow.objects.get(id=record.id).state


def row_of(page: Page, target: str) -> Any:
    return page.locator(".item", has=page.get_by_text(target, exact=True))


def expected(errors: list[str], status: int) -> None:
    """The browser itself notes an answer of that status."""
    assert any(f"status of {status}" in text for text in errors), errors
    errors[:] = [text for text in errors if f"status of {status}" not in text]


@pytest.mark.parametrize("width", [390, 1440])
@pytest.mark.parametrize("javascript", [True, False])
def test_approve_and_deny_from_the_inbox(open_page: OpenPage, adapter: Adapter, javascript: bool, width: int) -> None:
    one, two = asked(adapter, "order:1"), asked(adapter, "order:2", expires_at=FAR + 1)
    page = open_page("approver", java_script_enabled=javascript, viewport={"width": width, "height": 844})
    page.goto("/approvals/")
    expect(page.get_by_role("heading", name="2 approvals wait")).to_be_visible()
    assert page.title() == "(2) Approvals · Cadence"
    row_of(page, "order:1").get_by_role("button", name="Approve").click()
    if javascript:
        # The row stays where it is, with what became of it.
        expect(row_of(page, "order:1").get_by_text("approved by approver")).to_be_visible()
        assert page.locator(".item").count() == 2
    else:
        expect(page.get_by_text("Approved: Write order:1")).to_be_visible()
    row = row_of(page, "order:2")
    row.get_by_text("Deny…").click()
    row.get_by_label("Reason for denying").fill("not today")
    row.get_by_role("button", name="Deny").click()
    if javascript:
        expect(row_of(page, "order:2").get_by_text("denied by approver")).to_be_visible()
    else:
        expect(page.get_by_text("Nothing waits for a decision.")).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert (state_of(one), state_of(two)) == ("approved", "denied")
    assert Decision.objects.get(answer="denied").comment == "not today"


@pytest.mark.parametrize("javascript", [True, False])
def test_approve_and_deny_from_its_own_page(open_page: OpenPage, adapter: Adapter, javascript: bool) -> None:
    one, two = asked(adapter, "bucket:logs", capability="infra.delete"), asked(adapter, "order:2")
    page = open_page("approver", java_script_enabled=javascript)
    page.goto("/approvals/")
    row_of(page, "bucket:logs").get_by_role("link", name="Look closer").click()
    page.get_by_label("To approve, type").fill("bucket:logs")
    page.get_by_label("Comment").fill("checked")
    page.get_by_role("button", name="Approve").click()
    expect(page.get_by_text("Approved by approver").first).to_be_visible()
    expect(page.get_by_text("checked")).to_be_visible()
    page.get_by_role("link", name="All approvals").click()
    page.get_by_role("link", name="Write order:2").click()
    page.get_by_label("Comment").fill("no")
    page.get_by_role("button", name="Deny").click()
    expect(page.get_by_text("Denied by approver").first).to_be_visible()
    assert (state_of(one), state_of(two)) == ("approved", "denied")


@pytest.mark.parametrize("javascript", [True, False])
def test_a_double_click_is_one_decision(open_page: OpenPage, adapter: Adapter, javascript: bool) -> None:
    record = asked(adapter, "order:1")
    page = open_page("approver", java_script_enabled=javascript)
    page.goto("/approvals/")
    row_of(page, "order:1").get_by_role("button", name="Approve").dblclick()
    expect(page.get_by_text("approved by approver" if javascript else "Approved: Write order:1")).to_be_visible()
    assert state_of(record) == "approved"
    assert Decision.objects.count() == 1


def test_two_people_on_one_item(open_page: OpenPage, adapter: Adapter, errors: list[str]) -> None:
    record = asked(adapter, "order:1")
    first, second = open_page("approver"), open_page("operator")
    for page in (first, second):
        page.goto("/approvals/")
    row_of(first, "order:1").get_by_role("button", name="Approve").click()
    expect(first.get_by_text("approved by approver")).to_be_visible()
    row_of(second, "order:1").get_by_role("button", name="Approve").click()
    card = second.get_by_role("alert")
    expect(card).to_contain_text("This was decided before you. It was approved by approver")
    assert "bad" not in (card.get_attribute("class") or "")
    second.goto(f"/approvals/{record.id}/")
    expect(second.get_by_text("Approved by approver").first).to_be_visible()
    expect(second.get_by_role("button", name="Approve")).to_have_count(0)
    assert Decision.objects.count() == 1
    expected(errors, 409)


@pytest.mark.parametrize("javascript", [True, False])
def test_it_expires_while_it_is_looked_at(
    open_page: OpenPage, adapter: Adapter, errors: list[str], javascript: bool
) -> None:
    record = asked(adapter, "order:1")
    page = open_page("approver", java_script_enabled=javascript)
    page.goto(f"/approvals/{record.id}/")
    text = str(ApprovalRow.objects.get(id=record.id).payload).replace(str(FAR), "2")
    with connection.cursor() as cursor:
        cursor.execute(f"UPDATE {RECORDS} SET payload = %s WHERE id = %s", [text, record.id])
    page.get_by_role("button", name="Approve").click()
    expect(page.get_by_text("Its time was up before anybody decided.")).to_be_visible()
    expect(page.get_by_role("button", name="Approve")).to_have_count(0)
    assert state_of(record) == "pending"
    expected(errors, 410)


@pytest.mark.layout
def test_the_time_that_is_left_runs_out_by_itself(open_page: OpenPage, adapter: Adapter) -> None:
    asked(adapter, "order:1", expires_at=adapter.backend.now() + 600_000)
    page = open_page("approver")
    page.clock.install()
    page.goto("/approvals/")
    left = row_of(page, "order:1").locator("[data-expires]")
    expect(left).to_contain_text("9 min")
    page.clock.fast_forward(450_000)
    expect(left).to_contain_text("2 min")
    assert "bad" in (left.get_attribute("class") or "")
    page.clock.fast_forward(200_000)
    expect(left).to_have_text("expired")
    expect(row_of(page, "order:1").get_by_role("button", name="Approve")).to_be_disabled()
    expect(row_of(page, "order:1").get_by_text("Its time is up.")).to_be_visible()


@pytest.mark.parametrize("javascript", [True, False])
def test_signed_out_while_it_is_open(open_page: OpenPage, adapter: Adapter, javascript: bool) -> None:
    record = asked(adapter, "order:1")
    page = open_page("approver", java_script_enabled=javascript)
    page.goto(f"/approvals/{record.id}/")
    page.get_by_label("Comment").fill("a long thought")
    Session.objects.all().delete()
    page.get_by_role("button", name="Deny").click()
    expect(page.get_by_role("heading", name="Sign in")).to_be_visible()
    fill_in(page, "approver")
    page.wait_for_url(f"**/approvals/{record.id}/")
    assert state_of(record) == "pending"
    if javascript:
        expect(page.get_by_label("Comment")).to_have_value("a long thought")
    else:
        page.get_by_label("Comment").fill("a long thought")
    page.get_by_role("button", name="Deny").click()
    expect(page.get_by_text("Denied by approver").first).to_be_visible()
    assert Decision.objects.get().comment == "a long thought"


@pytest.mark.parametrize("javascript", [True, False])
def test_back_after_deciding_shows_how_it_stands(open_page: OpenPage, adapter: Adapter, javascript: bool) -> None:
    record = asked(adapter, "order:1")
    page = open_page("approver", java_script_enabled=javascript)
    page.goto(f"/approvals/{record.id}/")
    page.get_by_role("button", name="Approve").click()
    expect(page.get_by_text("Approved by approver").first).to_be_visible()
    page.get_by_role("link", name="All approvals").click()
    expect(page.get_by_text("Nothing waits for a decision.")).to_be_visible()
    page.go_back()
    expect(page.get_by_text("Approved by approver").first).to_be_visible()
    expect(page.get_by_role("button", name="Approve")).to_have_count(0)


def test_with_keys_only(open_page: OpenPage, adapter: Adapter) -> None:
    records = [asked(adapter, f"order:{number}", expires_at=FAR + number) for number in range(3)]
    page = open_page("approver")
    page.goto("/approvals/")
    page.keyboard.press("a")  # nothing has the focus: nothing happens
    page.keyboard.press("j")
    page.keyboard.press("j")
    expect(page.get_by_role("link", name="Write order:1")).to_be_focused()
    page.keyboard.press("k")
    expect(page.get_by_role("link", name="Write order:0")).to_be_focused()
    page.keyboard.press("a")
    expect(row_of(page, "order:0").get_by_text("approved by approver")).to_be_visible()
    page.keyboard.press("j")
    page.keyboard.press("j")
    expect(page.get_by_role("link", name="Write order:1")).to_be_focused()
    page.keyboard.press("d")
    page.keyboard.type("jk? not this")
    page.keyboard.press("Enter")
    expect(row_of(page, "order:1").get_by_text("denied by approver")).to_be_visible()
    page.keyboard.press("/")
    expect(page.get_by_placeholder("Target begins with, or an id")).to_be_focused()
    page.keyboard.type("order:2")
    page.keyboard.press("Enter")
    page.wait_for_url("**q=order*")
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    page.wait_for_url(f"**/{records[2].id}/")
    page.keyboard.press("?")
    expect(page.get_by_role("dialog", name="Keys")).to_be_visible()
    page.keyboard.press("Escape")
    page.keyboard.press("a")
    expect(page.get_by_role("button", name="Approve")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.get_by_text("Approved by approver").first).to_be_visible()
    assert [state_of(record) for record in records] == ["approved", "denied", "approved"]
    assert Decision.objects.get(answer="denied").comment == "jk? not this"
    # They can be turned off.
    page.keyboard.press("?")
    page.get_by_label("Use these keys").uncheck()
    page.get_by_role("button", name="Close").click()
    page.goto("/approvals/?show=approved")
    page.keyboard.press("j")
    expect(page.locator(".item a:focus")).to_have_count(0)


def test_news_moves_nothing(open_page: OpenPage, adapter: Adapter) -> None:
    one = asked(adapter, "order:1")
    two = asked(adapter, "order:2", expires_at=FAR + 1)
    page = open_page("approver")
    page.clock.install()
    page.goto("/approvals/")
    asked(adapter, "sooner", expires_at=FAR - 1)
    page.clock.run_for(6_000)
    expect(page.get_by_role("status")).to_contain_text("1 more approval waits.")
    assert page.title() == "(3) Approvals · Cadence"
    assert (page.locator("link[rel=icon]").get_attribute("href") or "").startswith("data:image/png")
    assert page.locator(".item h2").all_inner_texts() == ["Write order:1", "Write order:2"]
    assert adapter.approvals.decide(two.id, tenant_id="acme", decision="denied", decided_by="dana")
    page.clock.run_for(6_000)
    expect(row_of(page, "order:2").get_by_text("It doesn't wait any more.")).to_be_visible()
    expect(row_of(page, "order:1").get_by_role("button", name="Approve")).to_be_enabled()
    page.get_by_role("link", name="Show", exact=True).click()
    expect(page.locator(".item h2")).to_have_text(["Write sooner", "Write order:1"])
    assert state_of(one) == "pending"


def test_the_chosen_ones_together(open_page: OpenPage, adapter: Adapter) -> None:
    records = [asked(adapter, f"order:{number}", expires_at=FAR + number) for number in range(3)]
    page = open_page("approver")
    page.goto("/approvals/")
    for target in ("order:0", "order:2"):
        row_of(page, target).get_by_role("checkbox").check()
    page.get_by_role("button", name="Approve the chosen").click()
    expect(page.get_by_role("heading", name="Approved: 2 of 2")).to_be_visible()
    assert [state_of(record) for record in records] == ["approved", "pending", "approved"]


@pytest.mark.layout
@pytest.mark.parametrize("width", [390, 1440])
def test_hostile_targets_stay_in_their_place(open_page: OpenPage, adapter: Adapter, width: int) -> None:
    targets = ("x" * 65_536, "order\u202e1488:", "a" + " " * 10_000 + "b", "</script><b>bold", "חשבון-42")
    records = [asked(adapter, target) for target in targets]
    page = open_page("approver", viewport={"width": width, "height": 844})
    own = [f"/approvals/{record.id}/{query}" for record in records for query in ("", "?whole=1")]
    for address in ("/approvals/", *own):
        page.goto(address)
        assert page.evaluate("document.documentElement.scrollWidth") <= width, address
        assert page.locator("b", has_text="bold").count() == 0
