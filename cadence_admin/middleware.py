"""Sign-in for every page, a lost session that HTMX can follow, and on whose behalf a request is."""

import re
import uuid
from collections.abc import Callable
from typing import Any, Final
from urllib.parse import urlsplit

from django.conf import settings
from django.contrib.auth import logout
from django.contrib.auth.middleware import LoginRequiredMiddleware
from django.contrib.auth.views import redirect_to_login
from django.core.exceptions import BadRequest
from django.http import HttpRequest, HttpResponse
from django.shortcuts import resolve_url
from django_htmx.http import HttpResponseClientRedirect

from cadence_admin import sessions
from cadence_admin.origin import Origin, acting
from cadence_admin.requests import BACKGROUND, client_address

_REQUEST_ID: Final = re.compile(r"[A-Za-z0-9._-]{8,64}")


class TextMiddleware:
    """Refuses what is no text: no address and no form of ours holds a NUL, and PostgreSQL takes none in a parameter."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        given = [request.path, *(value for _, values in request.GET.lists() for value in values)]
        given += [value for _, values in request.POST.lists() for value in values]
        if any("\0" in text for text in given):
            raise BadRequest("a NUL is no text")
        return self.get_response(request)


class SessionEndMiddleware:
    """Signs out whose session has ended, before anything else is done in its name."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        if request.user.is_authenticated:
            if sessions.is_over(request.session):
                logout(request)
            elif BACKGROUND not in request.headers:
                sessions.keep_alive(request.session)
        return self.get_response(request)


class OriginMiddleware:
    """Says on whose behalf a request is, and gives it an id: the proxy's, if there is one whose word is taken."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        given = request.headers.get("X-Request-ID", "") if settings.BEHIND_PROXY else ""
        request_id = given if _REQUEST_ID.fullmatch(given) else uuid.uuid4().hex
        with acting(Origin(request.user.get_username(), client_address(request), request_id)):
            response = self.get_response(request)
        response["X-Request-ID"] = request_id
        return response


class SignInMiddleware(LoginRequiredMiddleware):
    """Django's, but an HTMX request is told to load the sign-in page whole: it would follow a redirect unseen and swap
    the sign-in form into a fragment. `next` is then the page the person looks at, not the fragment's address."""

    def handle_no_permission(self, request: HttpRequest, view_func: Any) -> Any:
        if not getattr(request, "htmx", False):
            return super().handle_no_permission(request, view_func)
        shown = urlsplit(request.headers.get("HX-Current-URL", "/"))
        page = f"{shown.path}?{shown.query}" if shown.query else shown.path
        redirect = redirect_to_login(page, resolve_url(settings.LOGIN_URL))
        return HttpResponseClientRedirect(redirect.url)
