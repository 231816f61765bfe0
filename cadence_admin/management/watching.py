"""What commands that go on for ever share: rounds, a clean stop, and patience with a database that is away."""

import signal
import threading
from collections.abc import Callable

from django.core.management.base import CommandError, OutputWrapper
from django.db import DatabaseError, close_old_connections


def watch(seconds: float, work: Callable[[], object], errors: OutputWrapper) -> None:
    """Do `work`, wait `seconds`, and so on until SIGTERM or SIGINT; the round under way is finished.

    Raises `CommandError` unless `seconds` is above 0.
    """
    if seconds <= 0:
        raise CommandError("--watch takes a number of seconds above 0")
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    while not stop.is_set():
        try:
            work()
        except DatabaseError as error:
            # The database is down or busy: the next round tries again on a new connection.
            errors.write(f"database-unavailable: {error}")
        close_old_connections()
        stop.wait(seconds)
