"""Do again what the database gave up for a reason of its own, where that is safe."""

from collections.abc import Callable
from functools import wraps
from typing import Final, ParamSpec, TypeVar

import psycopg.errors
from django.db import OperationalError, connections

MOST_TRIES: Final = 4
# PostgreSQL chose this transaction to end a deadlock, or can't order it among others. All of it was rolled back.
_PASSING: Final = (psycopg.errors.DeadlockDetected, psycopg.errors.SerializationFailure)


P = ParamSpec("P")
R = TypeVar("R")


def retried(service: Callable[P, R]) -> Callable[P, R]:
    """A service that is one transaction and nothing else: it is done again, up to `MOST_TRIES` times in all, if PostgreSQL
    ended it for a deadlock or a serialization failure. Inside of a caller's transaction it is not: that is the caller's to
    do again, whole."""

    @wraps(service)
    def tried(*args: P.args, **kwargs: P.kwargs) -> R:
        for _ in range(MOST_TRIES - 1):
            try:
                return service(*args, **kwargs)
            except OperationalError as error:
                inside = any(connection.in_atomic_block for connection in connections.all(initialized_only=True))
                if inside or not isinstance(error.__cause__, _PASSING):
                    raise
        return service(*args, **kwargs)

    return tried
