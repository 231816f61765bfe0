"""Requests as our views see them."""

from django import http
from django_htmx.middleware import HtmxDetails


class HttpRequest(http.HttpRequest):
    """A request after the middleware."""

    htmx: HtmxDetails


def wants_fragment(request: HttpRequest) -> bool:
    """Whether HTMX asks for a part of the page. A page that history restores is asked for whole."""
    return bool(request.htmx) and not request.htmx.history_restore_request
