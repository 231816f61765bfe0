"""Pages of approvals, effects and sagas: ask a query or call a service, and render."""

import re
from dataclasses import dataclass
from typing import Any, Final

from django.conf import settings
from django.contrib import messages
from django.http import Http404, HttpResponse, HttpResponseNotModified, JsonResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils.http import url_has_allowed_host_and_scheme
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_GET, require_POST
from django.views.decorators.vary import vary_on_headers

from approvals import queries, wording
from approvals.decisions import DECIDE, DecisionError, Shown, decide, seen_of, token_of, votes_on
from approvals.forms import DecisionForm, InboxForm, ResolutionForm, SeveralForm
from approvals.items import Item, Reader, differences, item_of, names_of, reader_of
from approvals.records import Approval, Effect, RecordError, Saga
from approvals.resolutions import EFFECT_ANSWERS, RESOLVE, answers_for, close_effect, may_be_closed, resolve_step
from approvals.routers import nifra_alias
from cadence_admin.access import Access, access_of
from cadence_admin.clock import database_now
from cadence_admin.errors import ServiceError
from cadence_admin.javascript import JsonError, canonical_json, parse_json
from cadence_admin.requests import HttpRequest, client_address, needs, wants_fragment
from cadence_admin.sessions import ask_for_proof

SEE_APPROVALS: Final = "approvals.view_approval"
SEE_EFFECTS: Final = "approvals.view_effect"
SEE_SAGAS: Final = "approvals.view_saga"
MOST_AT_ONCE: Final = queries.PAGE_SIZE
_CHOICE: Final = re.compile(r"([0-9a-f]{64})\.([0-9]{1,16})\.(.+)", re.DOTALL)

# The status of each refusal; what isn't here is a form that can't be taken as it is.
STATUS: Final = {
    "not-permitted": 403,
    "own-request": 403,
    "excluded-by-policy": 403,
    "approval-not-found": 404,
    "effect-not-found": 404,
    "saga-not-found": 404,
    "approval-already-decided": 409,
    "approval-changed": 409,
    "effect-changed": 409,
    "effect-under-way": 409,
    "saga-changed": 409,
    "saga-step-settled": 409,
    "approval-expired": 410,
    "record-busy": 503,
}

vary_on_htmx = vary_on_headers("HX-Request", "HX-History-Restore-Request")


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why something didn't count, as a card; `changes` has what is different from what was seen: label, then, now."""

    code: str
    text: str
    changes: tuple[tuple[str, str, str], ...] = ()

    @property
    def status(self) -> int:
        return STATUS.get(self.code, 422)

    @property
    def tone(self) -> str:
        """Nobody did anything wrong where another was faster."""
        return "off" if self.status in (409, 410) else "wait"


def _now() -> int:
    return database_now(nifra_alias())


# Approvals


@needs(SEE_APPROVALS)
@require_GET
@never_cache
@vary_on_htmx
def inbox(request: HttpRequest) -> HttpResponse:
    """`/approvals/`: what waits for a decision, and what was decided."""
    form = InboxForm(request.GET)
    if not form.is_valid():
        raise Http404
    now = _now()
    wanted = form.wanted(token_of(request.user))
    reader = reader_of(request.user)
    access = reader.access
    try:
        page = queries.list_approvals(wanted, now, access, after=request.GET.get("after"))
    except ServiceError as error:
        raise Http404(str(error)) from None
    first = "after" not in request.GET
    live = wanted.view == "waiting" and first and not wanted.text
    context = {
        "form": form,
        "wanted": wanted,
        "views": wording.APPROVAL_VIEWS,
        "nothing": wording.NOTHING[wanted.view],
        "counts": queries.counts(queries.APPROVAL_VIEWS, now, wanted.mine, access),
        "most_counted": queries.MOST_COUNTED,
        "items": _items(reader, page.rows, now),
        "next_key": page.next_key,
        "first": first,
        "filtered": any((wanted.tenant, wanted.capability, wanted.principal, wanted.text)),
        "live": live,
        "waiting": queries.waiting(wanted, access) if live else None,
        "may_decide": request.user.has_perm(DECIDE),
        "now": now,
    }
    return render(request, "approvals/_inbox.html" if wants_fragment(request) else "approvals/inbox.html", context)


def _items(reader: Reader, rows: list[queries.Row], now: int) -> list[Item]:
    records = [row.record for row in rows if isinstance(row.record, Approval)]
    names = names_of(record.decided_by for record in records)
    effects = queries.effect_states((record.effect_id for record in records), reader.access)
    votes = votes_on(records, nifra_alias())
    return [item_of(row, reader, now, names, effects, votes.get(row.id, ())) for row in rows]


@needs(SEE_APPROVALS)
@require_GET
def waiting(request: HttpRequest) -> HttpResponse:
    """`/approvals/~waiting/`: which approvals wait, as JSON; 304 if that hasn't changed. One query."""
    form = InboxForm(request.GET)
    if not form.is_valid():
        raise Http404
    found = queries.waiting(form.wanted(""), access_of(request.user))
    tag = f'"{found.tag}"'
    response: HttpResponse
    if request.headers.get("If-None-Match") == tag:
        response = HttpResponseNotModified()
    else:
        response = JsonResponse({"ids": found.ids, "more": found.more})
    response["ETag"] = tag
    response["Cache-Control"] = "private, no-cache"
    return response


@needs(SEE_APPROVALS)
@require_GET
@never_cache
@vary_on_htmx
def approval(request: HttpRequest, approval_id: str) -> HttpResponse:
    """`/approvals/<id>/`: one approval, with everything that is needed to decide."""
    return _render_approval(request, approval_id)


@needs(DECIDE)
@never_cache
@vary_on_htmx
def decision(request: HttpRequest, approval_id: str) -> HttpResponse:
    """`POST /approvals/<id>/decision/`: approve or deny what was shown. Anything else leads to the approval."""
    if request.method != "POST":
        return redirect("approval", approval_id)
    form = DecisionForm(request.POST)
    if not form.is_valid():
        return _render_answer(
            request, approval_id, Refusal("invalid-form", "That form can't be read. Nothing was done.")
        )
    given = form.cleaned_data
    via = "inbox" if request.POST.get("from") == "inbox" else "page"
    try:
        answered = decide(
            request.user,
            approval_id,
            given["answer"],
            shown=form.shown(),
            comment=given["comment"],
            typed=given["typed"],
            came_from=client_address(request),
            via=via,
        )
    except DecisionError as error:
        changes: tuple[tuple[str, str, str], ...] = ()
        if error.approval is not None and error.code == "approval-changed":
            changes = tuple(differences(given["seen"], error.approval))
        return _render_answer(request, approval_id, Refusal(error.code, str(error), changes))
    except RecordError as error:
        return _render_answer(request, approval_id, Refusal(error.code, str(error)))
    if wants_fragment(request):
        return _render_answer(request, approval_id, None)
    if via == "inbox":
        done = wording.DECISIONS[given["answer"]]
        if answered.votes < answered.needed:
            done = f"{done} ({answered.votes} of {answered.needed})"
        messages.success(
            request, f"{done}: {wording.deed(answered.approval.capability)} {answered.approval.target or ''}"
        )
        return redirect(_back(request))
    return redirect("approval", approval_id)


def _back(request: HttpRequest) -> str:
    back = request.POST.get("back", "")
    good = url_has_allowed_host_and_scheme(back, {request.get_host()}, require_https=request.is_secure())
    return back if good and back.startswith("/approvals/") else reverse("inbox")


def _render_answer(request: HttpRequest, approval_id: str, refusal: Refusal | None) -> HttpResponse:
    """What came of a decision: the row it was made in, or the approval's page."""
    if not (wants_fragment(request) and request.POST.get("from") == "inbox"):
        return _render_approval(request, approval_id, refusal)
    now, reader = _now(), reader_of(request.user)
    try:
        row = queries.find("approval", approval_id, reader.access)
    except ServiceError:
        row = queries.Row(0, approval_id, "", None, "It is gone.")
    context = {
        "item": _items(reader, [row], now)[0],
        "refusal": refusal,
        "answered": True,
        "may_decide": request.user.has_perm(DECIDE),
        "now": now,
    }
    return render(request, "approvals/_item.html", context, status=refusal.status if refusal else 200)


def _render_approval(request: HttpRequest, approval_id: str, refusal: Refusal | None = None) -> HttpResponse:
    reader = reader_of(request.user)
    row = _found("approval", approval_id, reader.access)
    now = _now()
    context: dict[str, Any] = {"row": row, "refusal": refusal, "now": now, "raw": wording.raw(row.text)}
    if isinstance(row.record, Approval):
        whole = "whole" in request.GET or "whole" in request.POST
        votes = votes_on([row.record], nifra_alias())
        about = queries.about(row.record, row.rowid, reader.access)
        names = names_of([row.record.decided_by, *(other.decided_by for other in about.alike)])
        context |= {
            "item": item_of(row, reader, now, names, {}, votes.get(row.id, ()), whole=whole),
            "whole": whole,
            "about": about,
            "names": names,
            "given": request.POST if refusal else {},
            "may_decide": request.user.has_perm(DECIDE),
            "standing": wording.STATES.get(row.record.state, ""),
            "answers": wording.DECISIONS,
        }
    status = refusal.status if refusal else 200
    template = "approvals/_detail.html" if wants_fragment(request) else "approvals/detail.html"
    return render(request, template, context, status=status)


@needs(DECIDE)
@require_POST
@never_cache
def decide_several(request: HttpRequest) -> HttpResponse:
    """`POST /approvals/~decisions/`: one answer to the chosen approvals, each decided on its own."""
    form = SeveralForm(request.POST)
    if not form.is_valid():
        raise Http404
    chosen = list(dict.fromkeys(request.POST.getlist("chosen")[:MOST_AT_ONCE]))
    if len(chosen) > settings.PROOF_OVER and (asked := ask_for_proof(request)):
        return asked
    results = []
    for text in chosen:
        choice = _CHOICE.fullmatch(text)
        if choice is None:
            raise Http404
        results.append(_decide_one(request, form, Shown(int(choice[2]), choice[1]), choice[3]))
    context = {
        "results": results,
        "answer": wording.DECISIONS[form.cleaned_data["answer"]],
        "done": sum(refusal is None for _, refusal in results),
        "back": _back(request),
        "now": _now(),
    }
    return render(request, "approvals/results.html", context, status=200 if results else 422)


def _decide_one(request: HttpRequest, form: SeveralForm, shown: Shown, approval_id: str) -> tuple[Item, Refusal | None]:
    refusal = None
    try:
        decide(
            request.user,
            approval_id,
            form.cleaned_data["answer"],
            shown=shown,
            comment=form.cleaned_data["comment"],
            came_from=client_address(request),
            via="several",
        )
    except (DecisionError, RecordError) as error:
        refusal = Refusal(error.code, str(error))
    reader = reader_of(request.user)
    try:
        row = queries.find("approval", approval_id, reader.access)
    except ServiceError:
        row = queries.Row(0, approval_id, "", None, "It is gone.")
    return _items(reader, [row], _now())[0], refusal


# Effects


@needs(SEE_EFFECTS)
@require_GET
@never_cache
def effects(request: HttpRequest) -> HttpResponse:
    """`/effects/`: what stopped half-way, and every state."""
    return _listed(request, "effects", queries.EFFECT_VIEWS)


@needs(SEE_SAGAS)
@require_GET
@never_cache
def sagas(request: HttpRequest) -> HttpResponse:
    """`/sagas/`: what needs a person, and every state."""
    return _listed(request, "sagas", queries.SAGA_VIEWS)


def _listed(request: HttpRequest, subject: str, views: tuple[str, ...]) -> HttpResponse:
    view = request.GET.get("show", "findings")
    if view not in views:
        raise Http404
    now = _now()
    list_of = queries.list_effects if subject == "effects" else queries.list_sagas
    try:
        page = list_of(view, now, access_of(request.user), after=request.GET.get("after"))
    except ServiceError as error:
        raise Http404(str(error)) from None
    context = {"view": view, "views": views, "page": page, "first": "after" not in request.GET, "now": now}
    return render(request, f"{subject}/list.html", context)


@needs(SEE_EFFECTS)
@require_GET
@never_cache
def effect(request: HttpRequest, effect_id: str) -> HttpResponse:
    """`/effects/<id>/`: one effect, and the approvals that stopped it."""
    return _render_effect(request, effect_id)


def _render_effect(request: HttpRequest, effect_id: str, refusal: Refusal | None = None) -> HttpResponse:
    access = access_of(request.user)
    row = _found("effect", effect_id, access)
    now = _now()
    context: dict[str, Any] = {"row": row, "refusal": refusal, "now": now, "raw": wording.raw(row.text)}
    if isinstance(row.record, Effect):
        context |= {
            "effect": row.record,
            "approvals": queries.approvals_of_effects([effect_id], access),
            "sagas": queries.sagas_with(effect_id, access),
            "decisions": queries.decisions_on("effect", effect_id),
            "answers": wording.DECISIONS,
            "choices": [(name, wording.ANSWERS[name]) for name in EFFECT_ANSWERS],
            "may_close": request.user.has_perm(RESOLVE) and may_be_closed(row.record, now),
            "given": request.POST if refusal else {},
            "seen": canonical_json(seen_of(row.record)),
        }
    return render(request, "effects/detail.html", context, status=refusal.status if refusal else 200)


@needs(RESOLVE)
@never_cache
def effect_resolution(request: HttpRequest, effect_id: str) -> HttpResponse:
    """`POST /effects/<id>/resolution/`: close an effect by hand. Anything else leads to the effect."""
    if request.method != "POST":
        return redirect("effect", effect_id)
    form = ResolutionForm(request.POST)
    if not form.is_valid():
        return _render_effect(request, effect_id, Refusal("invalid-form", "That form can't be read. Nothing was done."))
    given = form.cleaned_data
    try:
        close_effect(
            request.user,
            effect_id,
            given["answer"],
            version=given["version"],
            reason=given["reason"],
            came_from=client_address(request),
        )
    except (DecisionError, RecordError) as error:
        return _render_effect(request, effect_id, _refusal(request, error, given["seen"], "effect", effect_id))
    return redirect("effect", effect_id)


# Sagas


@needs(SEE_SAGAS)
@require_GET
@never_cache
def saga(request: HttpRequest, saga_id: str) -> HttpResponse:
    """`/sagas/<id>/`: one saga with its steps, and what may be said of them."""
    return _render_saga(request, saga_id)


def _render_saga(request: HttpRequest, saga_id: str, refusal: Refusal | None = None) -> HttpResponse:
    row = _found("saga", saga_id, access_of(request.user))
    context: dict[str, Any] = {"row": row, "refusal": refusal, "now": _now(), "raw": wording.raw(row.text)}
    if isinstance(row.record, Saga):
        may = request.user.has_perm(RESOLVE)
        context |= {
            "saga": row.record,
            "input": wording.described(row.record.input),
            "steps": [
                {
                    "step": step,
                    "args": wording.described(step.compensation_args),
                    "result": wording.described(step.result),
                    "choices": [(name, wording.ANSWERS[name]) for name in answers_for(step)] if may else [],
                    "effect": step.effect_id
                    if step.state in ("executing", "ambiguous")
                    else step.compensation_effect_id,
                }
                for step in row.record.steps
            ],
            "decisions": queries.decisions_on("saga", saga_id),
            "answers": wording.DECISIONS,
            "given": request.POST if refusal else {},
            "seen": _steps_seen(row.record),
        }
    return render(request, "sagas/detail.html", context, status=refusal.status if refusal else 200)


@needs(RESOLVE)
@never_cache
def saga_resolution(request: HttpRequest, saga_id: str) -> HttpResponse:
    """`POST /sagas/<id>/resolution/`: say what became of a step. Anything else leads to the saga."""
    if request.method != "POST":
        return redirect("saga", saga_id)
    form = ResolutionForm(request.POST)
    if not form.is_valid():
        return _render_saga(request, saga_id, Refusal("invalid-form", "That form can't be read. Nothing was done."))
    given = form.cleaned_data
    try:
        resolve_step(
            request.user,
            saga_id,
            given["effect"],
            given["answer"],
            version=given["version"],
            reason=given["reason"],
            result=given["result"],
            error_code=given["error_code"],
            came_from=client_address(request),
        )
    except (DecisionError, RecordError) as error:
        return _render_saga(request, saga_id, _refusal(request, error, given["seen"], "saga", saga_id))
    return redirect("saga", saga_id)


def _steps_seen(saga: Saga) -> str:
    """What a page shows of a saga's progress: its version and state, and the state of each step."""
    steps = {f"step {step.name}": step.state for step in saga.steps}
    return canonical_json({"version": saga.version, "state": saga.state, **steps})


def _found(kind: str, id: str, access: Access) -> queries.Row:
    try:
        return queries.find(kind, id, access)
    except ServiceError as error:
        raise Http404(str(error)) from None


def _refusal(request: HttpRequest, error: DecisionError | RecordError, seen: str, kind: str, id: str) -> Refusal:
    """Why it was refused, with what changed since the person looked."""
    record = _found(kind, id, access_of(request.user)).record
    refusal = Refusal(error.code, str(error))
    if refusal.status != 409 or record is None:
        return refusal
    try:
        was = parse_json(seen)
    except JsonError:
        return refusal
    now = parse_json(_steps_seen(record)) if isinstance(record, Saga) else seen_of(record)
    if not isinstance(was, dict):
        return refusal
    changes = [
        (name, str(was.get(name, "nothing")), str(value)) for name, value in now.items() if was.get(name) != value
    ]
    return Refusal(error.code, str(error), tuple(changes))
