"""How often a person may ask for what costs much, and an address for a sign-in (`CADENCE_LIMITS`, a minute).

Each server process counts for itself: what a limit protects is the process and its database, and it still holds where the
database is slow. Who guesses passwords is locked out for all processes by django-axes.
"""

import ipaddress
import logging
from collections.abc import Callable
from dataclasses import dataclass
from math import ceil
from typing import Any, Final

from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from limits import RateLimitItemPerMinute
from limits.storage import MemoryStorage
from limits.strategies import FixedWindowRateLimiter

from cadence_admin.clock import now_ms
from cadence_admin.requests import client_ip, instead_of_page

# A network that is one subscriber's: an address of it costs nothing.
_IPV6_PREFIX: Final = 64

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Limit:
    """Requests that count together: those to one of `routes` by `method`, or that carry one of `parameters`."""

    name: str
    method: str
    who: Callable[[HttpRequest], str]
    routes: frozenset[str] = frozenset()
    parameters: frozenset[str] = frozenset()

    def counts(self, request: HttpRequest) -> bool:
        """Whether a request is one of these."""
        if request.method != self.method:
            return False
        route = request.resolver_match.view_name if request.resolver_match else ""
        return route in self.routes or any(request.GET.get(name) for name in self.parameters)


def _user(request: HttpRequest) -> str:
    return f"user {request.user.pk}"


def _network(request: HttpRequest) -> str:
    address = ipaddress.ip_address(client_ip(request))
    if address.version == 4:
        return str(address)
    if address.ipv4_mapped:
        return str(address.ipv4_mapped)
    return str(ipaddress.ip_network((address, _IPV6_PREFIX), strict=False))


LIMITS: Final = (
    Limit("sign-in", "POST", _network, routes=frozenset({"sign-in"})),
    Limit("provider", "GET", _network, routes=frozenset({"oidc", "oidc-callback"})),
    Limit("search", "GET", _user, parameters=frozenset({"q", "change"})),
    Limit("verify", "POST", _user, routes=frozenset({"runs:verification", "audit-verify"})),
    Limit("bulk", "POST", _user, routes=frozenset({"decide-several", "lease-reclaim"})),
)
counted: Final = MemoryStorage()
_limiter: Final = FixedWindowRateLimiter(counted)


class ThrottleMiddleware:
    """Answers 429 to whoever asks too often. After sign-in: it counts by person."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        return self.get_response(request)

    def process_view(self, request: HttpRequest, *_: Any) -> HttpResponse | None:
        for limit in LIMITS:
            most = settings.LIMITS[limit.name]
            if not most or not limit.counts(request):
                continue
            item, who = RateLimitItemPerMinute(most), limit.who(request)
            if not _limiter.hit(item, limit.name, who):
                logger.warning("%s asks too often: %s", who, limit.name)
                again_at = _limiter.get_window_stats(item, limit.name, who).reset_time
                return _refused(request, max(1, ceil(again_at - now_ms() / 1_000)))
        return None


def _refused(request: HttpRequest, seconds: int) -> HttpResponse:
    template = "components/too_often.html" if "HX-Request" in request.headers else "429.html"
    response = render(request, template, {"seconds": seconds}, status=429)
    response["Retry-After"] = str(seconds)
    return instead_of_page(request, response)
