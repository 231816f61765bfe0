"""Signing in at an OpenID Connect provider (`CADENCE_OIDC_ISSUER`): the authorization code flow with PKCE, by Authlib.

An account belongs to the provider's `iss` and `sub`, which stay the same for ever; its name is only what people read. One
that was made here is never taken over because somebody has its name at the provider. Nothing of a provider is kept in the
process: its configuration and its keys are read with each sign-in.
"""

import logging
import re
from dataclasses import replace
from typing import Any, Final

from authlib.common.errors import AuthlibBaseError
from authlib.integrations.django_client import OAuth
from authlib.integrations.django_client.apps import DjangoOAuth2App
from django.conf import settings
from django.contrib import messages
from django.contrib.auth import login
from django.contrib.auth.decorators import login_not_required
from django.contrib.auth.models import Group, User
from django.db import transaction
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, resolve_url
from django.urls import reverse
from django.utils.http import url_has_allowed_host_and_scheme
from django.views.decorators.http import require_GET
from joserfc.errors import JoseError
from requests import RequestException

from cadence_admin import sessions
from cadence_admin.audit import Entry, record
from cadence_admin.clock import now_ms
from cadence_admin.errors import ServiceError
from cadence_admin.models import Identity
from cadence_admin.origin import acting, current_origin

BACKEND: Final = "cadence_admin.accounts.AccountBackend"
# A token that anybody could have made, or whose key is our own secret, is none.
ALGORITHMS: Final = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
PATIENCE_S: Final = 5
# So far the clocks of the provider and of this host may differ.
LEEWAY_S: Final = 60
_NEXT: Final = "oidc_next"
_STARTED: Final = "oidc_started_at"
_ODD: Final = re.compile(r"[^\w.@+-]+")

logger = logging.getLogger(__name__)


class SignInError(ServiceError):
    """Why somebody who comes from the provider isn't let in."""


@login_not_required
@require_GET
def start(request: HttpRequest) -> HttpResponse:
    """`/sign-in/oidc/`: to the provider; for somebody who is signed in, to prove it again."""
    if not settings.OIDC_ISSUER:
        raise Http404
    request.session[_NEXT] = request.GET.get("next", "")
    request.session[_STARTED] = now_ms()
    asks = {"prompt": "login", "max_age": "0"} if request.user.is_authenticated else {}
    try:
        there: HttpResponse = _provider().authorize_redirect(
            request, request.build_absolute_uri(reverse("oidc-callback")), **asks
        )
    except (RequestException, RuntimeError, ValueError) as error:
        return _refused(request, _unreachable(error))
    return there


@login_not_required
@require_GET
def callback(request: HttpRequest) -> HttpResponse:
    """`/sign-in/oidc/callback/`: back from the provider, with a code that is good once."""
    if not settings.OIDC_ISSUER:
        raise Http404
    started_at = request.session.pop(_STARTED, None)
    target = request.session.pop(_NEXT, "")
    try:
        if started_at is None:
            raise SignInError("not-asked", "This sign-in was not begun here, or it was used before. Begin again.")
        claims = _claims(request)
        proved_at = _proved_at(claims)
        if request.user.is_authenticated:
            _require_same(request, claims)
            if proved_at < started_at - LEEWAY_S * 1_000:
                raise SignInError("not-proved", f"{settings.OIDC_NAME} didn't ask who you are; that is no proof.")
            proved_at = now_ms()
        else:
            with acting(replace(current_origin(), actor=settings.OIDC_ISSUER)):
                user = account_of(claims)
            if not user.is_superuser and not user.groups.exists():
                raise _no_role()
            with transaction.atomic():
                login(request, user, backend=BACKEND)
    except SignInError as error:
        return _refused(request, error)
    sessions.prove(request.session, proved_at)
    safe = url_has_allowed_host_and_scheme(target, {request.get_host()}, require_https=request.is_secure())
    return redirect(target if safe else resolve_url(settings.LOGIN_REDIRECT_URL))


@transaction.atomic
def account_of(claims: dict[str, Any]) -> User:
    """The account of a provider's person, made if there is none, with the groups that the provider says; where those are
    given by hand, a new one has none yet. Raises `SignInError` (`name-taken`, `account-inactive`, `no-role`)."""
    subject = str(claims["sub"])
    identity = Identity.objects.select_related("user").filter(issuer=settings.OIDC_ISSUER, subject=subject).first()
    if identity is None:
        # Only with a role: nobody gets an account by trying.
        if settings.OIDC_GROUPS and not _mapped(claims):
            raise _no_role()
        name = _name_of(claims)
        if User.objects.filter(username__iexact=name).exists():
            raise SignInError(
                "name-taken", f"There is an account {name} here that isn't yours. Ask for it to be linked."
            )
        user = User.objects.create_user(name)
        Identity.objects.create(user=user, issuer=settings.OIDC_ISSUER, subject=subject)
    else:
        user = identity.user
    if not user.is_active:
        raise SignInError("account-inactive", "Your account is switched off.")
    if settings.OIDC_GROUPS:
        _set_groups(user, _mapped(claims))
    return user


def _no_role() -> SignInError:
    return SignInError("no-role", "You have no role in this console. Ask whoever looks after it.")


def _provider() -> DjangoOAuth2App:
    """The provider, its configuration read and checked. Raises `RequestException`, `ValueError`."""
    provider: DjangoOAuth2App = OAuth().register(
        "oidc",
        client_id=settings.OIDC_CLIENT_ID,
        client_secret=settings.OIDC_CLIENT_SECRET,
        server_metadata_url=f"{settings.OIDC_ISSUER.rstrip('/')}/.well-known/openid-configuration",
        client_kwargs={
            "scope": settings.OIDC_SCOPES,
            "code_challenge_method": "S256",
            "default_timeout": PATIENCE_S,
        },
    )
    metadata = provider.load_server_metadata()
    if metadata.get("issuer") != settings.OIDC_ISSUER:
        raise ValueError(f"it calls itself {metadata.get('issuer')!r}, not {settings.OIDC_ISSUER!r}")
    offered = metadata.get("id_token_signing_alg_values_supported") or ["RS256"]
    metadata["id_token_signing_alg_values_supported"] = [name for name in offered if name in ALGORITHMS]
    return provider


def _claims(request: HttpRequest) -> dict[str, Any]:
    """What the provider says of who comes back, verified. Raises `SignInError`."""
    if "error" in request.GET:
        logger.warning("the provider answered %.200r", request.GET["error"])
        raise SignInError("refused", f"{settings.OIDC_NAME} didn't let you in.")
    try:
        provider = _provider()
        expected = {
            "iss": {"essential": True, "value": settings.OIDC_ISSUER},
            "aud": {"essential": True, "value": settings.OIDC_CLIENT_ID},
            "sub": {"essential": True},
        }
        token = provider.authorize_access_token(request, claims_options=expected, leeway=LEEWAY_S)
        claims = dict(token.get("userinfo") or {})
        if not claims.get("sub"):
            raise SignInError("no-id-token", f"{settings.OIDC_NAME} didn't say who you are.")
        if settings.OIDC_GROUPS_CLAIM not in claims and provider.server_metadata.get("userinfo_endpoint"):
            told = provider.userinfo(token=token)
            if told.get("sub") != claims["sub"]:
                raise SignInError("other-subject", f"{settings.OIDC_NAME} spoke of somebody else.")
            claims = {**told, **claims}
    except (AuthlibBaseError, JoseError) as error:
        logger.warning("a sign-in was refused: %s", error)
        raise SignInError("not-valid", "This sign-in isn't valid, or it took too long. Begin again.") from error
    except (RequestException, RuntimeError, ValueError) as error:
        raise _unreachable(error) from error
    return claims


def _unreachable(error: Exception) -> SignInError:
    logger.error("the OpenID Connect provider can't be used: %s", error)
    return SignInError("provider-unavailable", f"{settings.OIDC_NAME} can't be reached right now. Try again soon.")


def _proved_at(claims: dict[str, Any]) -> int:
    """When the person last proved who they are, in milliseconds; 0 if the provider doesn't say."""
    told = claims.get("auth_time")
    return int(told * 1_000) if isinstance(told, int | float) else 0


def _require_same(request: HttpRequest, claims: dict[str, Any]) -> None:
    theirs = Identity.objects.filter(issuer=settings.OIDC_ISSUER, subject=str(claims["sub"]))
    if not theirs.filter(user__username=request.user.get_username()).exists():
        raise SignInError("other-person", "That is another account than the one that is signed in here.")


def _name_of(claims: dict[str, Any]) -> str:
    """A name that Django takes, from what the provider calls the person."""
    told = claims.get(settings.OIDC_NAME_CLAIM) or claims.get("email") or claims["sub"]
    return _ODD.sub("-", str(told))[:150]


def _mapped(claims: dict[str, Any]) -> set[str]:
    """The groups here that a person's groups at the provider stand for (`CADENCE_OIDC_GROUPS`)."""
    told = claims.get(settings.OIDC_GROUPS_CLAIM)
    names = [told] if isinstance(told, str) else told if isinstance(told, list) else []
    return {settings.OIDC_GROUPS[name] for name in names if isinstance(name, str) and name in settings.OIDC_GROUPS}


def _set_groups(user: User, wanted: set[str]) -> None:
    """Put into and take out of the groups that the provider decides about; others, given by hand, stay."""
    decided = set(settings.OIDC_GROUPS.values())
    has = set(user.groups.filter(name__in=decided).values_list("name", flat=True))
    if has - wanted:
        user.groups.remove(*Group.objects.filter(name__in=has - wanted))
    if wanted - has:
        user.groups.add(*(Group.objects.get_or_create(name=name)[0] for name in sorted(wanted - has)))


def _refused(request: HttpRequest, error: SignInError) -> HttpResponse:
    with transaction.atomic():
        name = request.user.get_username() or settings.OIDC_ISSUER
        record(Entry("account.sign-in-failed", "account", name, reason=error.code))
    messages.error(request, str(error))
    return redirect(resolve_url(settings.LOGIN_REDIRECT_URL if request.user.is_authenticated else settings.LOGIN_URL))
