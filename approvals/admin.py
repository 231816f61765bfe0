"""Django's admin over nifra's tables: searchable, never edited by hand; its actions are the services of the pages."""

from collections.abc import Callable
from typing import Any, Final

from django import forms
from django.contrib import admin, messages
from django.contrib.admin.helpers import ActionForm
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.html import format_html
from django.utils.safestring import SafeString

from approvals import decisions, resolutions, wording
from approvals.models import Approval, Decision, Effect, ReconciliationLease, Saga
from approvals.queries import read_row
from approvals.records import APPROVAL_STATES, EFFECT_STATES, SAGA_STATES, RecordError
from cadence_admin.access import access_of
from cadence_admin.admin import ConstantFilter, ReadOnlyAdmin
from cadence_admin.requests import client_address
from cadence_admin.templatetags.console import when
from cadence_admin.visible import plain, plain_lines
from cadence_admin.wording import laid_out

MOST_AT_ONCE: Final = 100


def of_no_tenant(request: HttpRequest, rows: QuerySet[Any]) -> QuerySet[Any]:
    """What is of no tenant is for those who see all of them."""
    return rows if access_of(request.user).is_whole else rows.none()  # type: ignore[arg-type]


class ReasonForm(ActionForm):
    """Beside the choice of an action: why."""

    reason = forms.CharField(required=False, max_length=decisions.LONGEST_COMMENT, label="Reason:")


class RecordAdmin(ReadOnlyAdmin):
    """Records of one kind. What they say is read from their payload, without secrets."""

    list_display = ["name", "state", "about", "updated_at"]
    search_fields = ["id__exact"]
    ordering = ["-rowid"]

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        seen = access_of(request.user).condition  # type: ignore[arg-type]
        # Columns that are worked out of a payload may hold what no driver can decode.
        return (
            super().get_queryset(request).filter(seen).only("id", "kind", "state", "updated_at", "version", "payload")
        )

    def get_fields(self, request: HttpRequest, obj: Any = None) -> list[Any]:
        return ["name", "state", "version", "changed", "stored"]

    @admin.display(description="id", ordering="id")
    def name(self, row: Any) -> str:
        return plain(row.id)

    @admin.display(description="about")
    def about(self, row: Any) -> str:
        record = read_row(row).record
        if record is None:
            return "can't be read"
        parts = (getattr(record, "capability", getattr(record, "definition", "")), getattr(record, "target", None))
        return " ".join(plain(part) for part in parts if part)

    @admin.display(description="changed")
    def changed(self, row: Any) -> SafeString:
        return when(row.updated_at)

    @admin.display(description="as it is stored")
    def stored(self, row: Any) -> SafeString:
        return format_html("<pre>{}</pre>", plain_lines(laid_out(wording.raw(read_row(row).text))))

    def settle(self, request: HttpRequest, rows: QuerySet[Any], act: Callable[[Any], str]) -> None:
        """Do something to each selected row on its own, and say what came of it."""
        chosen = list(rows[: MOST_AT_ONCE + 1])
        if len(chosen) > MOST_AT_ONCE:
            self.message_user(request, f"At most {MOST_AT_ONCE} at once.", messages.ERROR)
            return
        for row in chosen:
            try:
                self.message_user(request, f"{row.kind} {plain(row.id)}: {act(row)}", messages.SUCCESS)
            except (decisions.DecisionError, RecordError) as error:
                self.message_user(request, f"{row.kind} {plain(row.id)}: {error} ({error.code})", messages.WARNING)


@admin.register(Approval)
class ApprovalAdmin(RecordAdmin):
    list_filter = [ConstantFilter.of("state", APPROVAL_STATES)]
    search_fields = ["id__exact", "effect_id__exact", "target__exact", "tenant_id__exact", "principal_id__exact"]
    action_form = ReasonForm
    actions = ["approve", "deny", "expire"]

    def has_decide_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm(decisions.DECIDE)

    @admin.action(description="Approve", permissions=["decide"])
    def approve(self, request: HttpRequest, queryset: QuerySet[Any]) -> None:
        """Approve the selected approvals, each on its own."""
        self._decide(request, queryset, "approved")

    @admin.action(description="Deny (with a reason)", permissions=["decide"])
    def deny(self, request: HttpRequest, queryset: QuerySet[Any]) -> None:
        """Deny the selected approvals, each on its own."""
        self._decide(request, queryset, "denied")

    @admin.action(description="Mark as expired", permissions=["decide"])
    def expire(self, request: HttpRequest, queryset: QuerySet[Any]) -> None:
        """Write down which of the selected approvals have run out."""

        def act(row: Any) -> str:
            done = decisions.expire(request.user, row.id, came_from=client_address(request), via="admin")  # type: ignore[arg-type]
            return "expired" if done else "its time isn't up"

        self.settle(request, queryset, act)

    def _decide(self, request: HttpRequest, queryset: QuerySet[Any], answer: str) -> None:
        def act(row: Any) -> str:
            decisions.decide(
                request.user,  # type: ignore[arg-type]
                row.id,
                answer,
                shown=None,
                comment=request.POST.get("reason", ""),
                came_from=client_address(request),
                via="admin",
            )
            return answer

        self.settle(request, queryset, act)


@admin.register(Effect)
class EffectAdmin(RecordAdmin):
    list_filter = [ConstantFilter.of("state", EFFECT_STATES)]
    action_form = ReasonForm
    actions = ["close_as_committed", "close_as_failed"]

    def has_resolve_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm(resolutions.RESOLVE)

    @admin.action(description="Close as committed (with a reason)", permissions=["resolve"])
    def close_as_committed(self, request: HttpRequest, queryset: QuerySet[Any]) -> None:
        """Say that the selected effects happened."""
        self._close(request, queryset, "committed")

    @admin.action(description="Close as failed (with a reason)", permissions=["resolve"])
    def close_as_failed(self, request: HttpRequest, queryset: QuerySet[Any]) -> None:
        """Say that the selected effects didn't happen."""
        self._close(request, queryset, "failed")

    def _close(self, request: HttpRequest, queryset: QuerySet[Any], answer: str) -> None:
        def act(row: Any) -> str:
            resolutions.close_effect(
                request.user,  # type: ignore[arg-type]
                row.id,
                answer,
                version=row.version,
                reason=request.POST.get("reason", ""),
                came_from=client_address(request),
                via="admin",
            )
            return answer

        self.settle(request, queryset, act)


@admin.register(Saga)
class SagaAdmin(RecordAdmin):
    list_filter = [ConstantFilter.of("state", SAGA_STATES)]

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        return of_no_tenant(request, super().get_queryset(request))


@admin.register(ReconciliationLease)
class ReconciliationLeaseAdmin(ReadOnlyAdmin):
    list_display = ["name", "owner", "expires_at", "cursor"]
    search_fields = ["name__exact", "owner__exact"]
    hidden = ("token",)
    action_form = ReasonForm
    actions = ["reclaim"]

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        return of_no_tenant(request, super().get_queryset(request)).defer("token")

    def has_resolve_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm(resolutions.RESOLVE)

    @admin.action(description="Reclaim from its holder (with a reason)", permissions=["resolve"])
    def reclaim(self, request: HttpRequest, queryset: QuerySet[Any]) -> None:
        """Take the selected leases from their holders and clear their cursors."""
        for row in queryset[:MOST_AT_ONCE]:
            try:
                resolutions.free_lease(
                    request.user,  # type: ignore[arg-type]
                    row.name,
                    owner=row.owner or "",
                    expires_at=row.expires_at,
                    reason=request.POST.get("reason", ""),
                    came_from=client_address(request),
                    via="admin",
                )
                self.message_user(request, f"lease {plain(row.name)}: free", messages.SUCCESS)
            except decisions.DecisionError as error:
                self.message_user(request, f"lease {plain(row.name)}: {error} ({error.code})", messages.WARNING)


@admin.register(Decision)
class DecisionAdmin(ReadOnlyAdmin):
    list_display = ["__str__", "actor", "comment", "via", "came_from", "happened_at"]
    list_filter = [
        ConstantFilter.of("kind", ("approval", "effect", "saga", "lease")),
        ConstantFilter.of("via", ("inbox", "page", "several", "admin")),
    ]
    search_fields = ["record_id__exact", "actor__exact"]

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        return super().get_queryset(request).filter(access_of(request.user).condition)  # type: ignore[arg-type]
