"""A request has so long and no longer (`CADENCE_REQUEST_SECONDS`): what it still asks of a database then is cancelled.

The cancelled statement raises as one that failed, so nothing is half done, and the page says that the database is away. It
is done from outside, since a timeout that the server keeps for a connection would outlive the request behind PgBouncer, and
SQLite has none.
"""

import logging
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import psycopg
from django.conf import settings
from django.db import connections
from django.http import HttpRequest, HttpResponse

logger = logging.getLogger(__name__)

# How often what goes on after the end is cancelled.
_AGAIN_S: Final = 0.5


class DeadlineMiddleware:
    """Gives each request its time."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        with limited(settings.REQUEST_SECONDS):
            return self.get_response(request)


@contextmanager
def limited(seconds: float) -> Iterator[None]:
    """What this thread asks of its databases inside is cancelled after so many seconds; 0 is without an end."""
    if not seconds:
        yield
        return
    ended = threading.Event()
    one_at_a_time = threading.Lock()
    wrappers = [connections[alias] for alias in connections]

    def watch() -> None:
        wait = seconds
        while not ended.wait(wait):
            # Never after the end: the connection may be somebody else's by then.
            with one_at_a_time:
                if not ended.is_set():
                    for wrapper in wrappers:
                        _cancel(wrapper.connection)
            wait = _AGAIN_S

    watching = threading.Thread(target=watch, name="deadline", daemon=True)
    watching.start()
    try:
        yield
    finally:
        with one_at_a_time:
            ended.set()


def _cancel(connection: Any) -> None:
    try:
        if isinstance(connection, sqlite3.Connection):
            connection.interrupt()
        elif isinstance(connection, psycopg.Connection) and not connection.closed:
            connection.cancel_safe(timeout=2)
    except (sqlite3.Error, psycopg.Error) as error:
        logger.warning("a statement that took too long could not be cancelled: %s", error)
