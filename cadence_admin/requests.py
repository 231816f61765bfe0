"""Requests as our views see them, and the permission that each view names."""

import ipaddress
from collections.abc import Callable
from functools import wraps
from typing import Any, Final
from urllib.parse import urlsplit

from django import http
from django.conf import settings
from django.contrib.auth.models import User
from django.core.exceptions import PermissionDenied
from django.utils.http import url_has_allowed_host_and_scheme
from django_htmx.middleware import HtmxDetails

# What a page asks by itself says so.
BACKGROUND: Final = "X-Background"


class HttpRequest(http.HttpRequest):
    """A request after the middleware: somebody is signed in."""

    htmx: HtmxDetails
    user: User


def wants_fragment(request: HttpRequest) -> bool:
    """Whether HTMX asks for a part of the page. A page that history restores is asked for whole."""
    return bool(request.htmx) and not request.htmx.history_restore_request


def instead_of_page(request: http.HttpRequest, response: http.HttpResponse) -> http.HttpResponse:
    """An answer that HTMX shows in place of the whole page, wherever it was asked from; to what a page asked by itself it
    shows nothing, and the page asks again."""
    if "HX-Request" in request.headers:
        response["HX-Reswap"] = "none" if BACKGROUND in request.headers else "innerHTML"
        response["HX-Retarget"] = "#main"
    return response


def client_address(request: http.HttpRequest) -> str:
    """Where a request came from. Behind a proxy, whose word is taken only if it is configured, what the proxy saw."""
    if settings.BEHIND_PROXY:
        forwarded = request.headers.get("X-Forwarded-For", "").rpartition(",")[2].strip()
        if forwarded:
            return forwarded[:64]
    return str(request.META.get("REMOTE_ADDR", ""))[:64]


def client_ip(request: http.HttpRequest) -> str:
    """The same as an address that a database takes; where a proxy sent something else, that of the proxy."""
    for text in (client_address(request), str(request.META.get("REMOTE_ADDR", ""))):
        try:
            return str(ipaddress.ip_address(text))
        except ValueError:
            continue
    return "0.0.0.0"  # noqa: S104 - a socket has no address; nothing listens here


def sent_from(request: http.HttpRequest) -> str:
    """The page of ours that a form was sent from, as an address without host; the first page if that can't be told."""
    referer = request.headers.get("Referer", "")
    if not url_has_allowed_host_and_scheme(referer, {request.get_host()}, require_https=request.is_secure()):
        return "/"
    parts = urlsplit(referer)
    return f"{parts.path}?{parts.query}" if parts.query else parts.path


def number_in(values: http.QueryDict, name: str) -> int | None:
    """A number that was sent: None if it isn't there, "not found" if it is none that we ever gave out."""
    text = values.get(name)
    if text is None:
        return None
    if not text.isascii() or not text.isdecimal() or len(text) > 18:
        raise http.Http404
    return int(text)


View = Callable[..., http.HttpResponseBase]


def needs(permission: str) -> Callable[[View], View]:
    """A view for those who have a permission; it keeps the name of it as `permission`."""

    def named(view: View) -> View:
        @wraps(view)
        def checked(request: HttpRequest, *args: Any, **kwargs: Any) -> http.HttpResponseBase:
            if not request.user.has_perm(permission):
                raise PermissionDenied
            return view(request, *args, **kwargs)

        checked.permission = permission  # type: ignore[attr-defined]
        return checked

    return named
