"""What only a browser shows of the pages of runs."""

from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from runs.mirror import mirror_state_home, mirror_store
from runs.models import Event, Run
from tests.browser.conftest import fill_in
from tests.conftest import DATA
from tests.runs.stores import Store

OpenPage = Callable[..., Page]
PAUSED = "00000000-0000-4000-8000-000000000010"
BROKEN = "00000000-0000-4000-8000-000000000008"

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def sample(transactional_db: None) -> None:
    mirror_state_home(DATA / "cadence" / "state-home")


def rows(page: Page) -> list[str]:
    return page.locator(".runs .main a").all_inner_texts()


def test_from_sign_in_to_a_run_and_back(open_page: OpenPage, sample: None) -> None:
    page = open_page(None)
    page.goto("/runs/")
    fill_in(page, "viewer")
    page.wait_for_url("**/runs/")
    assert len(rows(page)) == 18
    page.get_by_role("link", name="audit-trail").click()
    expect(page.get_by_role("heading", name="audit-trail")).to_be_visible()
    expect(page.get_by_text("Paused: it waits for an operator.")).to_be_visible()
    page.go_back()
    assert len(rows(page)) == 18
    page.get_by_role("button", name="Sign out").click()
    expect(page.get_by_role("heading", name="Sign in")).to_be_visible()


def test_filters_narrow_at_once_and_live_in_the_address(open_page: OpenPage, sample: None) -> None:
    page = open_page()
    page.goto("/runs/")
    page.get_by_label("State").select_option("paused")
    expect(page.locator(".runs .main a")).to_have_text(["audit-trail"])
    assert page.url.endswith("/runs/?state=paused")
    page.get_by_label("State").select_option("")
    expect(page.locator(".runs .main a")).to_have_count(18)
    page.get_by_placeholder("Change contains").fill("email")
    expect(page.locator(".runs .main a")).to_have_text(["dedupe-emails"])
    assert page.url.endswith("/runs/?change=email")
    page.get_by_label("Only with an expired lease").check()
    expect(page.get_by_text("No run matches.")).to_be_visible()
    # Back, and reopening the address, give whole pages.
    page.go_back()
    expect(page.locator(".runs .main a")).to_have_text(["dedupe-emails"])
    page.reload()
    expect(page.locator(".runs .main a")).to_have_text(["dedupe-emails"])
    expect(page.get_by_placeholder("Change contains")).to_have_value("email")


def test_verify_now_finds_what_changed(open_page: OpenPage, sample: None) -> None:
    page = open_page()
    page.goto(f"/runs/{PAUSED}/")
    expect(page.locator(".head").get_by_text("verified")).to_be_visible()
    Event.objects.filter(run__run_id=PAUSED, sequence=4).update(payload_json='{"from":"created","to":"paused"}')
    page.get_by_role("button", name="Verify now").dblclick()
    expect(page.get_by_text("This history can't be trusted.")).to_be_visible()
    expect(page.locator("#event-4.broken")).to_contain_text("changed after it was written")
    assert Run.objects.get(run_id=PAUSED).first_broken == 4
    page.get_by_role("link", name="Show event 4").click()
    expect(page.locator("#event-4")).to_be_in_viewport()


def test_a_missing_event_is_in_view(open_page: OpenPage, transactional_db: None) -> None:
    mirror_store(DATA / "cadence" / "missing-event.sqlite3")
    page = open_page()
    page.goto(f"/runs/{BROKEN}/")
    expect(page.get_by_text("Event 2 is missing.")).to_be_visible()


def test_everything_works_without_javascript(open_page: OpenPage, sample: None) -> None:
    page = open_page("viewer", java_script_enabled=False)
    page.goto("/runs/")
    assert len(rows(page)) == 18
    page.get_by_label("State").select_option("paused")
    page.get_by_role("button", name="Filter").click()
    assert rows(page) == ["audit-trail"]
    page.get_by_role("link", name="audit-trail").click()
    page.get_by_role("button", name="Verify now").click()
    expect(page.get_by_role("heading", name="audit-trail")).to_be_visible()
    expect(page.get_by_text("all links recomputed just now and hold")).to_be_visible()


def test_a_lost_session_leads_to_sign_in_and_back(open_page: OpenPage, sample: None) -> None:
    page = open_page("viewer")
    page.goto("/runs/?change=a")
    page.context.clear_cookies()
    page.get_by_label("State").select_option("paused")
    expect(page.get_by_role("heading", name="Sign in")).to_be_visible()
    assert "next=/runs/%3Fchange%3Da" in page.url


def test_a_live_list_shows_a_new_run_by_itself(open_page: OpenPage, tmp_path: Path) -> None:
    store = Store.in_state_home(tmp_path)
    store.add_run("run-1", "first")
    mirror_store(store.path)
    page = open_page("viewer", timezone_id="Europe/Berlin")
    page.clock.install()
    page.goto("/runs/")
    expect(page.locator(".runs .main a")).to_have_text(["first"])
    store.add_run("run-2", "second")
    mirror_store(store.path)
    page.clock.run_for(11_000)
    expect(page.locator(".runs .main a")).to_have_text(["second", "first"])
    # Not under a hand that is typing.
    page.get_by_placeholder("Change contains").focus()
    store.add_run("run-3", "third")
    mirror_store(store.path)
    page.clock.run_for(30_000)
    expect(page.locator(".runs .main a")).to_have_text(["second", "first"])


@pytest.mark.layout
def test_times_tick_and_show_local_and_utc(open_page: OpenPage, sample: None) -> None:
    page = open_page("viewer", timezone_id="Asia/Tokyo", locale="en-GB")
    page.goto("/runs/")
    title = page.locator(".runs time").first.get_attribute("title") or ""
    assert " here, " in title
    assert title.endswith(" UTC")


@pytest.mark.layout
def test_a_click_copies_the_whole_hash(open_page: OpenPage, sample: None) -> None:
    page = open_page("viewer", permissions=["clipboard-read", "clipboard-write"])
    page.goto(f"/runs/{PAUSED}/")
    button = page.locator("#event-1 .hash")
    button.click()
    expect(button).to_have_class("hash copied")
    assert page.evaluate("navigator.clipboard.readText()") == button.get_attribute("data-copy")


@pytest.mark.layout
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1440])
def test_no_page_is_wider_than_its_window_and_contrast_holds(
    open_page: OpenPage, sample: None, scheme: str, width: int
) -> None:
    page = open_page("operator", color_scheme=scheme, viewport={"width": width, "height": 844})
    for path in ("/runs/", f"/runs/{PAUSED}/", f"/runs/{PAUSED}/operations/", "/runs/?state=created&change=zzz"):
        page.goto(path)
        assert page.evaluate("document.documentElement.scrollWidth") <= width, path
        assert page.evaluate(_LOWEST_CONTRAST) >= 4.5, path


@pytest.mark.layout
def test_the_keyboard_reaches_everything(open_page: OpenPage, sample: None) -> None:
    page = open_page("viewer")
    page.goto("/runs/")
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to content")).to_be_focused()
    page.keyboard.press("Enter")
    for _ in range(20):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.closest('.main') !== null"):
            break
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="health-endpoint")).to_be_visible()


# The lowest contrast of any visible text with the background that lies behind it (WCAG 2 formula).
_LOWEST_CONTRAST = """() => {
  const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const rgba = (color) => {
    canvas.clearRect(0, 0, 1, 1);
    canvas.fillStyle = color;
    canvas.fillRect(0, 0, 1, 1);
    return [...canvas.getImageData(0, 0, 1, 1).data];
  };
  const light = ([r, g, b]) => {
    const [x, y, z] = [r, g, b].map((v) => v / 255).map((v) => (v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
    return 0.2126 * x + 0.7152 * y + 0.0722 * z;
  };
  let lowest = 21;
  const walker = document.createTreeWalker(document.querySelector("main"), NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement;
    if (!walker.currentNode.textContent.trim() || !element.checkVisibility()) continue;
    if (["OPTION", "NOSCRIPT"].includes(element.tagName)) continue;
    let behind = element;
    while (behind && rgba(getComputedStyle(behind).backgroundColor)[3] < 255) behind = behind.parentElement;
    const back = light(rgba(getComputedStyle(behind ?? document.body).backgroundColor));
    const front = light(rgba(getComputedStyle(element).color));
    lowest = Math.min(lowest, (Math.max(front, back) + 0.05) / (Math.min(front, back) + 0.05));
  }
  return lowest;
}"""
