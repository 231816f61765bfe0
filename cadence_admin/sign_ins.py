"""Signing in: the page, and the audit log's entries of who signed in and out, and who tried to."""

from typing import Any

from django.conf import settings
from django.contrib.auth.forms import AuthenticationForm
from django.contrib.auth.models import User
from django.contrib.auth.signals import user_logged_in, user_logged_out, user_login_failed
from django.contrib.auth.views import LoginView
from django.db import transaction
from django.http import HttpRequest, HttpResponse

from cadence_admin.audit import Entry, record
from cadence_admin.sessions import begin


class SignIn(LoginView):
    """`/sign-in/`: Django's; the session and its entry in the audit log are made together or not at all."""

    template_name = "sign_in.html"
    redirect_authenticated_user = True

    def get_context_data(self, **kwargs: Any) -> dict[str, Any]:
        return super().get_context_data(**kwargs) | {"provider": settings.OIDC_NAME if settings.OIDC_ISSUER else ""}

    def form_valid(self, form: AuthenticationForm) -> HttpResponse:
        with transaction.atomic():
            return super().form_valid(form)


def watch_sign_ins() -> None:
    """Begin to watch. Called once, when the site is ready."""
    user_logged_in.connect(_signed_in)
    user_logged_out.connect(_signed_out)
    user_login_failed.connect(_failed)


def _enter(what: str, name: str, actor: str) -> None:
    with transaction.atomic():
        record(Entry(f"account.{what}", "account", name, actor=actor))


def _signed_in(user: User, request: HttpRequest, **_: Any) -> None:
    begin(request.session)
    _enter("signed-in", user.get_username(), user.get_username())


def _signed_out(user: User | None, **_: Any) -> None:
    if user is not None:
        _enter("signed-out", user.get_username(), user.get_username())


def _failed(credentials: dict[str, Any], **_: Any) -> None:
    _enter("sign-in-failed", str(credentials.get("username", ""))[:150], "nobody")
