"""On whose behalf this thread works: set once for each request and command, read where something is written down."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Origin:
    """`actor` is the name of an account, or of a command; the address and the id are those of a request."""

    actor: str = ""
    address: str = ""
    request_id: str = ""


_NOBODY: Final = Origin()
_current: ContextVar[Origin] = ContextVar("origin", default=_NOBODY)


def current_origin() -> Origin:
    """On whose behalf; an empty one for code that said nothing, such as a worker's."""
    return _current.get()


@contextmanager
def acting(origin: Origin) -> Iterator[None]:
    """Work on behalf of somebody."""
    before = _current.set(origin)
    try:
        yield
    finally:
        _current.reset(before)
