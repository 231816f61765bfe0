"""When a session ends, and when whoever uses it says once more who they are.

A session ends after some time without a request that a person made (`CADENCE_SESSION_IDLE_MINUTES`; what a page asks by
itself doesn't count), and after `CADENCE_SESSION_HOURS` however busy it was. What changes rights, and a decision about
many approvals at once, asks for the password again if that is longer ago than `CADENCE_PROOF_MINUTES`.
"""

from typing import Any, Final

from django.conf import settings
from django.contrib.auth import authenticate
from django.contrib.sessions.backends.base import SessionBase
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render

from cadence_admin.clock import now_ms
from cadence_admin.models import Identity
from cadence_admin.requests import sent_from

_SIGNED_IN: Final = "signed_in_at"
_SEEN: Final = "seen_at"
_PROVED: Final = "proved_at"
_PASSWORD: Final = "confirm_password"  # noqa: S105 - the name of a field
_MINUTE: Final = 60_000
# `seen_at` is stored no more often than this, so that looking at pages doesn't write with each of them.
_STEP: Final = _MINUTE


def begin(session: SessionBase) -> None:
    """Somebody has just signed in."""
    session[_SIGNED_IN] = session[_SEEN] = session[_PROVED] = now_ms()


def prove(session: SessionBase, at: int) -> None:
    """Whoever uses it proved elsewhere, at that time in milliseconds, who they are."""
    session[_PROVED] = at


def is_over(session: SessionBase) -> bool:
    """Whether a session has ended; one that doesn't say when it began has."""
    now = now_ms()
    seen_at, signed_in_at = int(session.get(_SEEN, 0)), int(session.get(_SIGNED_IN, 0))
    idle, whole = settings.SESSION_IDLE_MINUTES * _MINUTE, settings.SESSION_HOURS * 60 * _MINUTE
    return bool(now - seen_at > idle or now - signed_in_at > whole)


def keep_alive(session: SessionBase) -> None:
    """A person has asked for something."""
    now = now_ms()
    if now - session[_SEEN] >= _STEP:
        session[_SEEN] = now


def ask_for_proof(request: HttpRequest) -> HttpResponse | None:
    """The page that asks for the password again, None if it was given lately or with this request.

    The page carries what was posted, so that it is done with the answer, and nothing is lost.
    """
    session = request.session
    wrong = False
    if _PASSWORD in request.POST:
        found = authenticate(
            request,
            username=request.user.get_username(),
            password=request.POST[_PASSWORD],
        )
        wrong = found is None or found.pk != request.user.pk
        if not wrong:
            session[_PROVED] = now_ms()
            if "asked_for_page" in request.POST:
                return redirect(request.get_full_path())
    if not wrong and now_ms() - session.get(_PROVED, 0) <= settings.PROOF_MINUTES * _MINUTE:
        return None
    hidden = {"csrfmiddlewaretoken", _PASSWORD, "asked_for_page"}
    carried = [(name, value) for name, values in request.POST.lists() if name not in hidden for value in values]
    if request.method != "POST" or "asked_for_page" in request.POST:
        carried.append(("asked_for_page", "1"))
    context: dict[str, Any] = {
        "carried": carried,
        "wrong": wrong,
        "field": _PASSWORD,
        "has_password": request.user.is_authenticated and request.user.has_usable_password(),
        "provider": settings.OIDC_NAME if settings.OIDC_ISSUER and _has_identity(request) else "",
        "back": request.get_full_path() if request.method != "POST" else sent_from(request),
    }
    return render(request, "confirm.html", context, status=403)


def _has_identity(request: HttpRequest) -> bool:
    return Identity.objects.filter(issuer=settings.OIDC_ISSUER, user__username=request.user.get_username()).exists()
