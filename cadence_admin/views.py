"""Pages that join both halves: leases of operations and of reconciliation workers, and the audit log."""

import sys
from typing import Final

from django.core.exceptions import PermissionDenied
from django.db import InterfaceError, InternalError, OperationalError
from django.http import Http404, HttpResponse
from django.shortcuts import redirect, render
from django.template.loader import render_to_string
from django.views.decorators.http import require_GET, require_POST

from approvals.decisions import DecisionError
from approvals.models import ReconciliationLease
from approvals.resolutions import RESOLVE, free_lease
from approvals.routers import nifra_alias
from cadence_admin import audit
from cadence_admin.access import access_of, sees_everything
from cadence_admin.clock import database_now
from cadence_admin.errors import ServiceError
from cadence_admin.requests import HttpRequest, client_address, instead_of_page, needs, number_in, sent_from
from runs import queries
from runs.models import Operation
from runs.reclaiming import MOST_AT_ONCE, reclaim, why_not_here
from runs.scope import scope_of
from runs.source import SourceError

MOST_WORKERS: Final = 50
LONGEST_REASON: Final = 500
RECLAIM: Final = "runs.reclaim_operation"
SEE_AUDIT: Final = "cadence_admin.view_auditentry"
# So many entries are recomputed while a person waits.
MOST_VERIFIED: Final = 50_000
WORKER_STATUS: Final = {"lease-changed": 409, "record-busy": 503}


def server_error(request: HttpRequest) -> HttpResponse:
    """What is shown when a view or a middleware raised: a database that is away, full, locked or read-only is no fault of
    the console's, passes by itself, and nothing was half done. Whether a change was done isn't said: the answer to its commit
    may be what got lost."""
    if not isinstance(sys.exc_info()[1], OperationalError | InterfaceError | InternalError):
        return HttpResponse(render_to_string("500.html"), status=500)
    template = "components/away.html" if "HX-Request" in request.headers else "503.html"
    context = {"posted": request.method == "POST", "back": sent_from(request)}
    response = HttpResponse(render_to_string(template, context), status=503)
    response["Retry-After"] = "5"
    return instead_of_page(request, response)


@needs("runs.view_operation")
@require_GET
def lease_list(request: HttpRequest) -> HttpResponse:
    """`/leases/`: who holds what, and what ran out."""
    return _render_leases(request)


def _render_leases(request: HttpRequest, refusal: DecisionError | None = None) -> HttpResponse:
    view = request.GET.get("show", "expired")
    if view not in queries.LEASE_VIEWS:
        raise Http404
    scope = scope_of(request.user)
    roots = queries.state_roots(scope)
    wanted = request.GET.get("root", "")
    root_id = next((root.pk for root in roots if root.root_hash == wanted), None)
    if wanted and root_id is None:
        raise Http404
    now = database_now("default")
    try:
        page = queries.list_leases(view, now, scope, root_id=root_id, after=request.GET.get("after"))
    except ServiceError as error:
        raise Http404(str(error)) from None
    context = {
        "view": view,
        "views": queries.LEASE_VIEWS,
        "roots": roots,
        "wanted": wanted,
        "page": page,
        "refusals": _refusals(page.rows),
        "unchangeable": {row.pk for row in page.rows if not scope.may_change(row.run.state_root_id)},
        "events": queries.recent_lease_events(scope),
        # A worker is of no tenant.
        "workers": ReconciliationLease.objects.defer("token")[:MOST_WORKERS]
        if access_of(request.user).is_whole
        else (),
        "workers_now": database_now(nifra_alias()),
        "may_reclaim": request.user.has_perm(RECLAIM),
        "may_free": request.user.has_perm(RESOLVE),
        "refusal": refusal,
        "first": "after" not in request.GET,
        "now": now,
    }
    status = 200 if refusal is None else WORKER_STATUS.get(refusal.code, 422)
    return render(request, "leases/list.html", context, status=status)


@needs(RESOLVE)
@require_POST
def worker_free(request: HttpRequest) -> HttpResponse:
    """`POST /leases/workers/free/`: take a reconciliation lease from its holder, as it was seen, and clear its cursor."""
    if not access_of(request.user).is_whole:
        raise PermissionDenied
    expires_at = number_in(request.POST, "expires_at")
    if expires_at is None:
        raise Http404
    try:
        free_lease(
            request.user,
            request.POST.get("name", ""),
            owner=request.POST.get("owner", ""),
            expires_at=expires_at,
            reason=request.POST.get("reason", "")[:LONGEST_REASON],
            came_from=client_address(request),
        )
    except DecisionError as error:
        return _render_leases(request, error)
    return redirect("leases")


@needs(RECLAIM)
@require_POST
def lease_reclaim(request: HttpRequest) -> HttpResponse:
    """`POST /leases/reclaim/`: show what is about to be reclaimed, and with `confirmed` reclaim it.

    The form carries the ids that the person saw; the filter is never run again.
    """
    scope = scope_of(request.user)
    given = request.POST.getlist("operation")[:MOST_AT_ONCE]
    if not all(text.isascii() and text.isdecimal() and len(text) < 19 for text in given):
        raise Http404
    chosen = [int(text) for text in given]
    operations = queries.operations_by_pk(chosen, scope)
    if not all(scope.may_change(row.run.state_root_id) for row in operations):
        raise PermissionDenied
    now = database_now("default")
    context = {"operations": operations, "runs": len({row.run_id for row in operations}), "now": now}
    if "confirmed" not in request.POST:
        context["ours"] = any(not row.run.state_root.path for row in operations)
        return render(request, "leases/preview.html", context, status=200 if operations else 422)
    try:
        results = list(
            reclaim(
                operations=[row.pk for row in operations],
                pause="pause" in request.POST,
                actor=request.user.get_username(),
                reason=request.POST.get("reason", "").strip()[:LONGEST_REASON],
            )
        )
    except SourceError as error:
        return render(request, "leases/results.html", context | {"refusal": error}, status=409)
    return render(request, "leases/results.html", context | {"results": results})


def _refusals(rows: list[Operation]) -> dict[str, str]:
    """For each source of the rows why it can't be written to from here, where it can't."""
    paths = {row.run.state_root.path for row in rows} - {""}
    return {path: why for path in paths if (why := why_not_here(path))}


@needs(SEE_AUDIT)
@require_GET
def audit_log(request: HttpRequest) -> HttpResponse:
    """`/audit/`: who did what, newest first."""
    return _render_audit(request, _log(request))


@needs(SEE_AUDIT)
@require_POST
def audit_verify(request: HttpRequest) -> HttpResponse:
    """`POST /audit/verify/`: recompute the log from the stored bytes; of a long one, its end."""
    log = _log(request)
    last, _ = audit.head(log)
    return _render_audit(request, log, audit.verify(log, after=max(0, last - MOST_VERIFIED)))


def _log(request: HttpRequest) -> str:
    if not sees_everything(request.user):
        raise PermissionDenied
    log = request.GET.get("log", "default")
    if log not in audit.logs():
        raise Http404
    return log


def _render_audit(request: HttpRequest, log: str, audited: audit.Audited | None = None) -> HttpResponse:
    before = number_in(request.GET, "before")
    wanted = {name: request.GET.get(name, "").strip() for name in ("actor", "action", "target")}
    rows = audit.page(
        log,
        actor=wanted["actor"],
        action=wanted["action"],
        target=wanted["target"],
        before=before,
    )
    shown = rows[: audit.PAGE_SIZE]
    context = {
        "logs": audit.logs(),
        "log": log,
        "wanted": wanted,
        "entries": [{"row": row, "said": audit.payload_of(row), "holds": audit.holds(row)} for row in shown],
        "next_key": shown[-1].sequence if len(rows) > len(shown) else None,
        "first": before is None,
        "anchor": audit.anchor(log),
        "audited": audited,
        "now": database_now("default"),
    }
    return render(request, "audit.html", context)
