"""Reclaiming with a mouse, on a copy of the real program's store."""

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from runs.mirror import mirror_state_home

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.mark.parametrize("javascript", [True, False])
def test_the_real_file_shows_interrupted(open_page: Callable[..., Page], state_home: Path, javascript: bool) -> None:
    mirror_state_home(state_home)
    page = open_page("operator", java_script_enabled=javascript)
    page.goto("/leases/")
    expect(page.locator(".leases tbody tr")).to_have_count(3)
    page.get_by_role("button", name="Reclaim the chosen").click()
    expect(page.get_by_role("heading", name="Reclaim 3 operations of 3 runs?")).to_be_visible()
    page.get_by_label("Reason").fill("host is gone")
    page.get_by_role("button", name="Reclaim", exact=True).click()
    expect(page.get_by_text("marked as interrupted")).to_have_count(3)
    path = next(state_home.rglob("control.sqlite3"))
    with closing(sqlite3.connect(path)) as database:
        query = "SELECT count(*) FROM operations WHERE state = 'running' AND lease_expires_at < 1800000000000"
        assert database.execute(query).fetchone() == (0,)
    page.get_by_role("link", name="Back to the leases").click()
    expect(page.get_by_text("No lease has expired.")).to_be_visible()


@pytest.mark.layout
@pytest.mark.parametrize("width", [390, 1440])
def test_the_page_fits_its_window(open_page: Callable[..., Page], state_home: Path, width: int) -> None:
    mirror_state_home(state_home)
    page = open_page("operator", viewport={"width": width, "height": 844})
    page.goto("/leases/")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
