"""What every admin page of the console shares: read-only tables, bounded counting, filters with fixed choices."""

from collections.abc import Callable, Iterable
from functools import cache, cached_property
from typing import Any, Final

from django.contrib import admin
from django.contrib.auth.admin import GroupAdmin, UserAdmin
from django.contrib.auth.models import Group, User
from django.core.paginator import Paginator
from django.db.models import Model, QuerySet
from django.http import HttpRequest
from django.utils.safestring import SafeString

from cadence_admin.access import sees_everything
from cadence_admin.models import ApprovalPolicy, AuditEntry, Identity, OwnedPrincipal, RootAccess, TenantAccess
from cadence_admin.sessions import ask_for_proof
from cadence_admin.templatetags.console import when

MOST_COUNTED: Final = 5_000
# The names by which a column of milliseconds is told (`lease_expires_at`, `missing_since`).
MOMENT_SUFFIXES: Final = ("_at", "_since")


@cache
def moment(name: str) -> Callable[[Model], SafeString]:
    """A column of milliseconds as people read it."""

    @admin.display(description=name.replace("_", " "), ordering=name)
    def show(row: Model) -> SafeString:
        return when(getattr(row, name))

    show.__name__ = f"{name}_shown"
    return show


class BoundedPaginator(Paginator):  # type: ignore[type-arg]
    """Counts no further than `MOST_COUNTED`: what lies beyond is reached by search and filter, not by paging."""

    @cached_property
    def count(self) -> int:
        rows = self.object_list
        assert isinstance(rows, QuerySet)
        return rows.order_by()[:MOST_COUNTED].count()


class ConstantFilter(admin.SimpleListFilter):
    """A filter over a column whose values are known, so that the table isn't read to list them."""

    choices_given: tuple[str, ...] = ()

    @classmethod
    def of(cls, column: str, values: Iterable[str]) -> type["ConstantFilter"]:
        members = {"title": column, "parameter_name": column, "choices_given": tuple(values)}
        return type(f"{column.title()}Filter", (cls,), members)

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [(value, value) for value in self.choices_given]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        return queryset.filter(**{self.parameter_name or "": self.value()}) if self.value() else queryset


class ReadOnlyAdmin(admin.ModelAdmin):  # type: ignore[type-arg]
    """A table that is looked at: nothing is added, deleted or edited, except the columns in `changeable`."""

    changeable: tuple[str, ...] = ()
    hidden: tuple[str, ...] = ()
    paginator = BoundedPaginator
    show_full_result_count = False
    list_per_page = 50
    list_max_show_all = 0
    show_facets = admin.ShowFacets.NEVER

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return bool(self.changeable) and super().has_change_permission(request, obj)

    def get_list_display(self, request: HttpRequest) -> list[Any]:
        return [self._readable(name) for name in self.list_display]

    def get_fields(self, request: HttpRequest, obj: Model | None = None) -> list[Any]:
        return [self._readable(field.name) for field in self.opts.fields if field.name not in self.hidden]

    def get_readonly_fields(self, request: HttpRequest, obj: Model | None = None) -> list[Any]:
        return [name for name in self.get_fields(request, obj) if name not in self.changeable]

    def _readable(self, name: Any) -> Any:
        return moment(name) if isinstance(name, str) and name.endswith(MOMENT_SUFFIXES) else name


class ProvedAdmin(admin.ModelAdmin):  # type: ignore[type-arg]
    """A table that gives rights: whoever opens a form of it, or does something to its rows, has said lately who they are."""

    def changeform_view(self, request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
        return ask_for_proof(request) or super().changeform_view(request, *args, **kwargs)

    def delete_view(self, request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
        return ask_for_proof(request) or super().delete_view(request, *args, **kwargs)

    def changelist_view(self, request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
        asked = ask_for_proof(request) if request.method == "POST" else None
        return asked or super().changelist_view(request, *args, **kwargs)


class ProvedUserAdmin(ProvedAdmin, UserAdmin):  # type: ignore[type-arg]
    def user_change_password(self, request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
        return ask_for_proof(request) or super().user_change_password(request, *args, **kwargs)


class ProvedGroupAdmin(ProvedAdmin, GroupAdmin):
    pass


for model, page in ((User, ProvedUserAdmin), (Group, ProvedGroupAdmin)):
    admin.site.unregister(model)
    admin.site.register(model, page)


@admin.register(AuditEntry)
class AuditEntryAdmin(ReadOnlyAdmin):
    list_display = ["sequence", "action", "actor", "target_kind", "target", "happened_at"]
    search_fields = ["actor__exact", "action__exact", "target__exact"]

    def has_view_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        # As on its own page: it tells of every tenant and every project.
        return super().has_view_permission(request, obj) and sees_everything(request.user)  # type: ignore[arg-type]


@admin.register(TenantAccess)
class TenantAccessAdmin(ProvedAdmin):
    list_display = ["__str__", "user", "group", "tenant", "capability", "may_decide"]
    list_select_related = ["user", "group"]
    search_fields = ["user__username", "group__name", "tenant"]


@admin.register(RootAccess)
class RootAccessAdmin(ProvedAdmin):
    list_display = ["__str__", "user", "group", "root", "may_change"]
    list_select_related = ["user", "group"]
    search_fields = ["user__username", "group__name", "root"]


@admin.register(ApprovalPolicy)
class ApprovalPolicyAdmin(ProvedAdmin):
    list_display = ["capability", "needed"]
    search_fields = ["capability"]
    filter_horizontal = ["excluded"]


@admin.register(OwnedPrincipal)
class OwnedPrincipalAdmin(ProvedAdmin):
    list_display = ["principal", "user"]
    list_select_related = ["user"]
    search_fields = ["principal", "user__username"]


@admin.register(Identity)
class IdentityAdmin(ProvedAdmin):
    list_display = ["user", "issuer", "subject"]
    list_select_related = ["user"]
    search_fields = ["user__username", "subject__exact"]
