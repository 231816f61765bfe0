"""Pages in a real Chromium, against a live server on the engine under test."""

import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.conf import settings
from django.contrib.auth.models import User
from django.test import Client
from playwright.sync_api import Browser, ConsoleMessage, Page
from pytest_django.live_server_helper import LiveServer

from tests.browser.chromium import find
from tests.conftest import PASSWORD

# Playwright's synchronous interface runs an event loop in this thread; Django's ORM is used beside it, never inside it.
os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"] = "1"


@pytest.fixture(scope="session")
def browser_type_launch_args(browser_type_launch_args: dict[str, Any]) -> dict[str, Any]:
    arguments = ["--disable-gpu", "--no-first-run", "--disable-background-networking", "--disable-component-update"]
    if os.geteuid() == 0:
        arguments.append("--no-sandbox")  # Chromium's own refuses to start for root
    path = find()
    return browser_type_launch_args | {"args": arguments} | ({"executable_path": path} if path else {})


@pytest.fixture
def errors() -> list[str]:
    return []


@pytest.fixture
def open_page(
    browser: Browser, live_server: LiveServer, transactional_db: None, accounts: dict[str, User], errors: list[str]
) -> Iterator[Callable[..., Page]]:
    """Opens a page for one of the local accounts, signed in; any error that a page reports fails the test."""
    contexts = []

    def opened(name: str | None = "operator", **options: Any) -> Page:
        context = browser.new_context(base_url=live_server.url, **options)
        contexts.append(context)
        page = context.new_page()
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("console", lambda message: _note(message, errors))
        if name:
            client = Client()
            client.force_login(accounts[name])
            cookie = client.cookies[settings.SESSION_COOKIE_NAME].value
            context.add_cookies([{"name": settings.SESSION_COOKIE_NAME, "value": cookie, "url": live_server.url}])
        return page

    yield opened
    for context in contexts:
        context.close()
    assert errors == []


def _note(message: ConsoleMessage, errors: list[str]) -> None:
    if message.type in ("error", "warning"):
        errors.append(message.text)


def fill_in(page: Page, name: str) -> None:
    """The page that asks who it is, answered."""
    page.fill("#id_username", name)
    page.fill("#id_password", PASSWORD)
    page.get_by_role("button", name="Sign in").click()
