"""Django's admin over the tables of runs: searchable, never a way to change a history."""

from typing import Any, Final

from django.contrib import admin, messages
from django.db.models import Q, QuerySet
from django.http import HttpRequest

from cadence_admin.admin import ConstantFilter, ReadOnlyAdmin
from runs.integrity import verify_stored
from runs.lifecycle import EVENT_TYPES, GATES, OPERATION_STATES, RUN_STATES, STAGES, TASK_STATES
from runs.mirror import DIVERGENCES
from runs.models import (
    PRESENT,
    ApplyTransaction,
    Artifact,
    BootstrapHandoff,
    ChainAnchor,
    DeliveryBinding,
    Divergence,
    Event,
    LeaseEvent,
    Operation,
    RouteHealth,
    Run,
    StateRoot,
    Task,
    WorkspaceRevision,
)
from runs.reclaiming import MOST_AT_ONCE, reclaim
from runs.scope import scope_of
from runs.source import SourceError
from runs.verification import OK
from runs.views import LARGEST_VERIFIED_HERE

MOST_VERIFIED_AT_ONCE: Final = 100


class VerdictFilter(admin.SimpleListFilter):
    title = "history"
    parameter_name = "history"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [
            ("ok", "verified"),
            ("broken", "broken or diverged"),
            ("diverged", "diverged"),
            ("none", "not verified"),
        ]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Run]) -> QuerySet[Run]:
        match self.value():
            case "ok":
                return queryset.filter(verdict=OK)
            case "broken":
                return queryset.filter(broken=True)
            case "diverged":
                return queryset.filter(diverged_sequence__isnull=False)
            case "none":
                return queryset.filter(verdict="")
        return queryset


class YesNoFilter(admin.SimpleListFilter):
    """A filter with two answers, each a condition that an index or a small table serves."""

    answers: tuple[tuple[str, Q], ...] = ()

    @classmethod
    def of(cls, title: str, **answers: Q) -> type["YesNoFilter"]:
        members = {"title": title, "parameter_name": title.replace(" ", "_"), "answers": tuple(answers.items())}
        return type(f"{title.title().replace(' ', '')}Filter", (cls,), members)

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [(name, name) for name, _ in self.answers]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        condition = dict(self.answers).get(self.value() or "")
        return queryset if condition is None else queryset.filter(condition)


class ScopedAdmin(ReadOnlyAdmin):
    """A table of which each user sees the rows of their projects; `root_path` leads from a row to its state root."""

    root_path = ""

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        return super().get_queryset(request).filter(scope_of(request.user).of(self.root_path))  # type: ignore[arg-type]


IN_SOURCE = YesNoFilter.of("in source", present=PRESENT, gone=~PRESENT)


@admin.register(StateRoot)
class StateRootAdmin(ScopedAdmin):
    root_path = "pk"
    list_filter = [YesNoFilter.of("last pass", whole=Q(problem=""), incomplete=~Q(problem=""))]
    list_display = ["__str__", "root_hash", "path", "schema_form", "problem"]
    search_fields = ["name", "root_hash__startswith"]
    changeable = ("name",)

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        mine = obj is None or scope_of(request.user).may_change(obj.pk)  # type: ignore[arg-type]
        return mine and super().has_change_permission(request, obj)


@admin.register(Run)
class RunAdmin(ScopedAdmin):
    root_path = "state_root"
    list_display = ["__str__", "state", "stage", "sequence", "verdict", "diverged_sequence", "state_root"]
    list_filter = [
        ConstantFilter.of("state", RUN_STATES),
        ConstantFilter.of("stage", STAGES),
        VerdictFilter,
        IN_SOURCE,
    ]
    list_select_related = ["state_root"]
    search_fields = ["run_id__exact", "change_name__startswith", "event_hash__exact"]
    actions = ["verify"]
    hidden = ("verified_projection_json", "source_digest")

    @admin.action(description="Verify chain", permissions=["view"])
    def verify(self, request: HttpRequest, queryset: QuerySet[Run]) -> None:
        """Recompute the chains of the selected runs."""
        chosen = list(queryset.defer("projection_json", "verified_projection_json")[: MOST_VERIFIED_AT_ONCE + 1])
        if len(chosen) > MOST_VERIFIED_AT_ONCE or sum(run.sequence for run in chosen) > LARGEST_VERIFIED_HERE:
            self.message_user(
                request,
                f"That is more than can be verified while you wait ({MOST_VERIFIED_AT_ONCE} runs, "
                f"{LARGEST_VERIFIED_HERE:,} events). On the server, run: manage.py verify_chain --all",
                messages.ERROR,
            )
            return
        for run in chosen:
            verdict = verify_stored(run)
            where = f", first broken at event {verdict.first_broken}" if verdict.first_broken is not None else ""
            self.message_user(
                request, f"{run}: {verdict.code}{where}", messages.SUCCESS if verdict.ok else messages.ERROR
            )


class OfRunAdmin(ScopedAdmin):
    """A table whose rows belong to one run."""

    owner = "run"
    own_search: tuple[str, ...] = ()

    @property
    def root_path(self) -> str:  # type: ignore[override]
        return f"{self.owner}__state_root"

    def get_list_select_related(self, request: HttpRequest) -> list[str]:
        return [self.owner]

    def get_search_fields(self, request: HttpRequest) -> list[str]:
        return [f"{self.owner}__run_id__exact", *(f"{name}__exact" for name in self.own_search)]


@admin.register(Event)
class EventAdmin(OfRunAdmin):
    list_display = ["run", "sequence", "type", "event_hash"]
    list_filter = [ConstantFilter.of("type", EVENT_TYPES)]
    ordering = ["-id"]


@admin.register(Operation)
class OperationAdmin(OfRunAdmin):
    list_display = ["operation_id", "run", "kind", "state", "lease_held", "lease_expires_at", "missing_since"]
    list_filter = [ConstantFilter.of("state", OPERATION_STATES), IN_SOURCE]
    hidden = ("lease_token",)
    actions = ["reclaim"]

    def has_reclaim_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm("runs.reclaim_operation")

    @admin.action(description="Reclaim expired leases", permissions=["reclaim"])
    def reclaim(self, request: HttpRequest, queryset: QuerySet[Operation]) -> None:
        """Interrupt the selected operations whose lease ran out."""
        scope = scope_of(request.user)  # type: ignore[arg-type]
        rows = queryset.values_list("pk", "run__state_root")[: MOST_AT_ONCE + 1]
        chosen = [pk for pk, root_id in rows if scope.may_change(root_id)]
        if len(chosen) > MOST_AT_ONCE:
            self.message_user(request, f"At most {MOST_AT_ONCE} operations at once.", messages.ERROR)
            return
        try:
            for result in reclaim(operations=chosen, actor=request.user.get_username(), reason="Django admin"):
                level = messages.SUCCESS if result.result == "reclaimed" else messages.WARNING
                self.message_user(request, f"{result.operation_id} of {result.run_id}: {result.result}", level)
        except SourceError as error:
            self.message_user(request, f"{error.code}: {error}", messages.ERROR)


@admin.register(LeaseEvent)
class LeaseEventAdmin(ScopedAdmin):
    root_path = "operation__run__state_root"
    list_filter = [ConstantFilter.of("kind", (LeaseEvent.RECLAIMED, LeaseEvent.REFUSED))]
    list_display = ["operation", "kind", "actor", "reason", "overdue_ms", "paused", "happened_at"]
    list_select_related = ["operation"]
    search_fields = ["operation__run__run_id__exact", "operation__operation_id__exact"]


@admin.register(DeliveryBinding)
class DeliveryBindingAdmin(OfRunAdmin):
    list_filter = [ConstantFilter.of("gate", GATES), IN_SOURCE]
    list_display = ["run", "gate", "revision", "receipt_hash", "record_hash", "missing_since"]


@admin.register(Task)
class TaskAdmin(OfRunAdmin):
    list_display = ["task_id", "run", "state", "phase", "missing_since"]
    list_filter = [ConstantFilter.of("state", TASK_STATES), IN_SOURCE]


@admin.register(RouteHealth)
class RouteHealthAdmin(ScopedAdmin):
    root_path = "state_root"
    list_filter = [IN_SOURCE]
    list_display = ["route_fingerprint", "state_root", "state", "next_half_open_at", "missing_since"]
    list_select_related = ["state_root"]
    search_fields = ["route_fingerprint__exact"]


@admin.register(Artifact)
class ArtifactAdmin(OfRunAdmin):
    owner = "owner_run"
    own_search = ("content_hash",)
    list_filter = [IN_SOURCE]
    list_display = ["content_hash", "owner_run", "seal_state", "size_bytes", "reference_count", "missing_since"]


@admin.register(WorkspaceRevision)
class WorkspaceRevisionAdmin(OfRunAdmin):
    owner = "owner_run"
    own_search = ("revision_id",)
    list_filter = [IN_SOURCE]
    list_display = ["revision_id", "owner_run", "parent_revision_id", "manifest_hash", "missing_since"]


@admin.register(ApplyTransaction)
class ApplyTransactionAdmin(OfRunAdmin):
    owner = "owner_run"
    own_search = ("transaction_id",)
    list_filter = [IN_SOURCE]
    list_display = ["transaction_id", "owner_run", "state", "missing_since"]


@admin.register(BootstrapHandoff)
class BootstrapHandoffAdmin(OfRunAdmin):
    owner = "owner_run"
    own_search = ("handoff_id",)
    list_filter = [IN_SOURCE]
    list_display = ["handoff_id", "owner_run", "state", "receipt_hash", "missing_since"]


@admin.register(ChainAnchor)
class ChainAnchorAdmin(OfRunAdmin):
    list_filter = [YesNoFilter.of("run", broken=Q(run__broken=True), whole=Q(run__broken=False))]
    list_display = ["run", "sequence", "event_hash", "seen_at"]
    ordering = ["-id"]


@admin.register(Divergence)
class DivergenceAdmin(OfRunAdmin):
    list_filter = [ConstantFilter.of("code", DIVERGENCES)]
    list_display = ["run", "sequence", "code", "source_path", "found_at", "last_found_at"]
    ordering = ["-id"]
