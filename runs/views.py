"""Pages of runs: ask a query or call a service, and render."""

import re
import uuid
from dataclasses import dataclass
from typing import Any, Final

from django.core.exceptions import PermissionDenied
from django.db.models import QuerySet
from django.http import Http404, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.http import require_GET, require_POST
from django.views.decorators.vary import vary_on_headers

from cadence_admin.clock import now_ms
from cadence_admin.errors import ServiceError
from cadence_admin.requests import HttpRequest, needs, number_in, wants_fragment
from runs import queries, wording
from runs.append import StoreError
from runs.forms import RunFilterForm
from runs.integrity import verify_stored
from runs.lifecycle import COMMANDS, LEGAL_MOVES, LifecycleError, commands_awaiting_delivery, legal_commands
from runs.models import Run
from runs.scope import scope_of
from runs.store import RunStore

LARGEST_VERIFIED_HERE: Final = 250_000
ASIDE_SIZE: Final = 5
# What a person may give as the code of a move.
CODE: Final = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")

vary_on_htmx = vary_on_headers("HX-Request", "HX-History-Restore-Request")


@dataclass(frozen=True, slots=True)
class Kind:
    """One of the tables that belong to a run: its relation, its title, and the fragment that draws a row."""

    relation: str
    title: str

    @property
    def template(self) -> str:
        return f"runs/records/_{self.relation}.html"

    def rows(self, run: Run) -> QuerySet[Any]:
        rows: QuerySet[Any] = getattr(run, self.relation).all()
        return rows.defer("lease_token") if self.relation == "operations" else rows


KINDS: Final = {
    "operations": Kind("operations", "Operations"),
    "deliveries": Kind("deliveries", "Deliveries"),
    "tasks": Kind("tasks", "Tasks"),
    "artifacts": Kind("artifacts", "Artifacts"),
    "workspace-revisions": Kind("workspace_revisions", "Workspace revisions"),
    "apply-transactions": Kind("apply_transactions", "Apply transactions"),
    "bootstrap-handoffs": Kind("bootstrap_handoffs", "Handoffs"),
}


def _run(request: HttpRequest, run_id: str) -> Run | list[Run]:
    """The run that the URL means, or all of that id if several state roots have it and the URL names none."""
    try:
        runs = queries.find_runs(run_id, scope_of(request.user), request.GET.get("root", ""))
    except ServiceError as error:
        raise Http404(str(error)) from None
    return runs[0] if len(runs) == 1 else runs


def _choose(request: HttpRequest, runs: list[Run]) -> HttpResponse:
    return render(request, "runs/choose.html", {"runs": runs}, status=300)


@needs("runs.view_run")
@require_GET
@vary_on_htmx
def run_list(request: HttpRequest) -> HttpResponse:
    """`/runs/`: every run, filtered by the URL."""
    scope = scope_of(request.user)
    roots = queries.state_roots(scope)
    form = RunFilterForm(request.GET, roots)
    now = now_ms()
    page = None
    if form.is_valid():
        page = queries.list_runs(form.wanted(), now, scope, before=number_in(request.GET, "before"))
    context = {
        "form": form,
        "page": page,
        "first": "before" not in request.GET,
        "filtered": any(request.GET.get(name) for name in form.fields),
        "troubled": [root for root in roots if root.problem],
        "now": now,
    }
    template = "runs/_list.html" if wants_fragment(request) else "runs/list.html"
    return render(request, template, context, status=200 if page else 422)


@needs("runs.view_run")
@require_GET
@vary_on_htmx
def run_detail(request: HttpRequest, run_id: str) -> HttpResponse:
    """`/runs/<run_id>/`: one run."""
    run = _run(request, run_id)
    return _choose(request, run) if isinstance(run, list) else _render_run(request, run)


@needs("runs.view_run")
@require_POST
@vary_on_htmx
def run_verification(request: HttpRequest, run_id: str) -> HttpResponse:
    """`POST /runs/<run_id>/verification/`: recompute the whole chain now."""
    run = _run(request, run_id)
    if isinstance(run, list):
        return _choose(request, run)
    if run.sequence > LARGEST_VERIFIED_HERE:
        return _render_run(
            request,
            run,
            refusal=f"A chain of {run.sequence:,} events is too long to verify while you wait. "
            f"On the server, run: manage.py verify_chain {run.run_id}",
            status=422,
        )
    verify_stored(run)
    if wants_fragment(request):
        run.refresh_from_db()
        return _render_run(request, run)
    return _back_to(run)


@needs("runs.move_run")
@require_POST
def run_move(request: HttpRequest, run_id: str) -> HttpResponse:
    """`POST /runs/<run_id>/move/`: move a run of ours, from the state that the person saw, with a code."""
    run = _run(request, run_id)
    if isinstance(run, list):
        return _choose(request, run)
    if not scope_of(request.user).may_change(run.state_root_id):
        raise PermissionDenied
    code = request.POST.get("code", "")
    if not CODE.fullmatch(code):
        refusal = "A move needs a code: a lower-case word such as awaiting-operator."
        return _render_run(request, run, refusal=refusal, status=422)
    if request.POST.get("sequence") != str(run.sequence):
        refusal = "The run has moved since you looked at it. Nothing was done; this is how it stands now."
        return _render_run(request, run, refusal=refusal, status=409)
    store = RunStore(run.state_root.root_hash)
    try:
        store.transition(
            run.run_id,
            request.POST.get("to", ""),
            f"console-{uuid.uuid4()}",
            code=code,
            actor=request.user.get_username(),
        )
    except (StoreError, LifecycleError) as error:
        return _render_run(request, run, refusal=f"That was refused: {error} ({error.code}).", status=422)
    return _back_to(run)


@needs("runs.view_run")
@require_GET
def run_records(request: HttpRequest, run_id: str, kind: str) -> HttpResponse:
    """`/runs/<run_id>/<kind>/`: all rows of one table that belong to a run."""
    if kind not in KINDS:
        raise Http404
    run = _run(request, run_id)
    if isinstance(run, list):
        return _choose(request, run)
    rows = queries.keyset_page(KINDS[kind].rows(run), before=number_in(request.GET, "before"))
    context = {
        "run": run,
        "kind": KINDS[kind],
        "page": rows,
        "may_change": scope_of(request.user).may_change(run.state_root_id),
        "now": now_ms(),
    }
    return render(request, "runs/records.html", context)


def _back_to(run: Run) -> HttpResponse:
    return redirect(f"{reverse('runs:detail', args=[run.run_id])}?root={run.state_root.root_hash}")


def _render_run(request: HttpRequest, run: Run, *, refusal: str = "", status: int = 200) -> HttpResponse:
    now = now_ms()
    may_change = scope_of(request.user).may_change(run.state_root_id)
    records = [
        (slug, kind, queries.keyset_page(kind.rows(run), before=None, size=ASIDE_SIZE)) for slug, kind in KINDS.items()
    ]
    context = {
        "run": run,
        "refusal": refusal,
        "now": now,
        "standing": wording.standing(run),
        "verdict": wording.verdict(run),
        "after_the_break": wording.after_the_break(run),
        "divergence": queries.divergence_of(run) if run.diverged_sequence is not None else None,
        "overdue": queries.expired_leases(now)
        .filter(run=run)
        .defer("lease_token")
        .order_by("lease_expires_at")[:ASIDE_SIZE],
        "commands": legal_commands(run.state),
        "awaiting_delivery": commands_awaiting_delivery(run.state),
        "other_commands": [command for command in COMMANDS if command not in legal_commands(run.state)],
        "targets": () if run.state_root.path or not may_change else LEGAL_MOVES[run.state],
        "may_change": may_change,
        "chain": queries.chain_page(run, upto=number_in(request.GET, "upto")),
        "records": [record for record in records if record[2].items],
        "routes": run.state_root.routes.all()[:ASIDE_SIZE],
    }
    template = "runs/_detail.html" if wants_fragment(request) else "runs/detail.html"
    return render(request, template, context, status=status)
