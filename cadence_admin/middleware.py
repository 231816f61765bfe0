"""Sign-in for every page, and a lost session that HTMX can follow."""

from typing import Any
from urllib.parse import urlsplit

from django.conf import settings
from django.contrib.auth.middleware import LoginRequiredMiddleware
from django.contrib.auth.views import redirect_to_login
from django.http import HttpRequest
from django.shortcuts import resolve_url
from django_htmx.http import HttpResponseClientRedirect


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
