"""Signing in at a provider, and proving it there once more, in a browser that follows all redirects."""

import re
from collections.abc import Callable

import pytest
from django.contrib.auth.models import Group
from playwright.sync_api import Page, expect
from pytest_django import Settings

from approvals.adapter import Adapter
from cadence_admin.models import TenantAccess
from tests.approvals.test_four_eyes import asked
from tests.provider import Provider

pytestmark = pytest.mark.django_db(transaction=True)


def test_a_person_of_the_provider_decides(
    database: Adapter, provider: Provider, open_page: Callable[..., Page], settings: Settings, errors: list[str]
) -> None:
    settings.PROOF_OVER = 0
    TenantAccess.objects.create(group=Group.objects.get(name="operator"))
    record = asked(database)
    page = open_page(None)
    page.goto("/approvals/?tenant=acme")
    page.get_by_role("link", name="Sign in with Acme").click()
    expect(page).to_have_url(re.compile(r"/approvals/\?tenant=acme$"))
    expect(page.get_by_text("dana")).to_be_visible()
    settings.PROOF_MINUTES = -1

    def choose() -> None:
        page.locator("[name=chosen]").first.check()
        page.get_by_role("button", name="Approve the chosen").click()

    choose()
    expect(page.get_by_role("heading", name="Is it still you?")).to_be_visible()
    assert page.locator("[type=password]").count() == 0
    assert "403" in errors.pop()  # the page that asks
    settings.PROOF_MINUTES = 15
    page.get_by_role("link", name="Sign in again with Acme").click()
    expect(page).to_have_url(re.compile(r"/approvals/\?tenant=acme$"))
    assert [asking.get("prompt") for asking in provider.asked] == [None, "login"]
    choose()
    expect(page.get_by_text("Approved").first).to_be_visible()
    found = database.approvals.get(record.id)
    assert found is not None
    assert found.state == "approved"
