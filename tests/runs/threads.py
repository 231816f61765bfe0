"""Several at once, each with a connection of its own."""

import threading
from collections.abc import Callable
from typing import Any

from django.db import connection, connections


def in_threads(*works: Callable[[], Any]) -> list[Any]:
    """What each work returned or raised; all start together."""
    barrier = threading.Barrier(len(works))
    found: list[Any] = [None] * len(works)

    def work(index: int) -> None:
        try:
            barrier.wait()  # before it has a connection: the pool has fewer than there are threads
            if connection.vendor == "postgresql":
                with connection.cursor() as cursor:  # a lock that is never given fails, and doesn't hang
                    cursor.execute("SET lock_timeout = '20s'")
            found[index] = works[index]()
        except BaseException as error:
            found[index] = error
        finally:
            connections.close_all()

    threads = [threading.Thread(target=work, args=(index,)) for index in range(len(works))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found
