"""Enters in the audit log who got which rights: accounts, roles, access, policies, wherever they are changed from.

Signals, since all of these are plain models that Django's admin, commands and a shell change. The entry is part of
the same transaction wherever there is one, as in the admin.
"""

from typing import Any, Final

from django.contrib.auth.models import Group, Permission, User
from django.db import transaction
from django.db.models import Model
from django.db.models.signals import m2m_changed, post_delete, post_save, pre_delete, pre_save

from cadence_admin.audit import Entry, record
from cadence_admin.models import ApprovalPolicy, Identity, OwnedPrincipal, RootAccess, TenantAccess

WATCHED: Final = (User, Group, TenantAccess, RootAccess, ApprovalPolicy, OwnedPrincipal, Identity)
SETS: Final = (User.groups, User.user_permissions, Group.permissions, ApprovalPolicy.excluded)
# A secret, and what each sign-in changes.
_LEFT_OUT: Final = frozenset({"id", "last_login", "date_joined", "password"})


def watch_changes() -> None:
    """Begin to watch. Called once, when the site is ready."""
    for model in WATCHED:
        pre_save.connect(_remember, sender=model)
        post_save.connect(_saved, sender=model)
        pre_delete.connect(_remember, sender=model)
        post_delete.connect(_deleted, sender=model)
    for related in SETS:
        m2m_changed.connect(_set_changed, sender=related.through)


def _enter(row: Model, what: str, before: Any, after: Any) -> None:
    with transaction.atomic():
        record(Entry(f"{row._meta.model_name}.{what}", str(row._meta.verbose_name), str(row), before, after))


def _values(row: Model) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for column in row._meta.concrete_fields:
        if column.name not in _LEFT_OUT:
            found = getattr(row, column.attname)
            values[column.name] = found if isinstance(found, str | int | None) else str(found)
    return values


def _remember(instance: Model, raw: bool = False, **_: Any) -> None:
    stored = type(instance)._base_manager.filter(pk=instance.pk).first() if instance.pk and not raw else None
    instance._before = stored  # type: ignore[attr-defined]


def _saved(instance: Model, created: bool, raw: bool = False, **_: Any) -> None:
    before: Model | None = getattr(instance, "_before", None)
    if raw or (before is None and not created):
        return
    after = _values(instance)
    if before is None:
        _enter(
            instance, "created", None, {name: value for name, value in after.items() if value not in ("", None, False)}
        )
        return
    was = _values(before)
    changed = [name for name in after if was[name] != after[name]]
    if changed:
        _enter(instance, "changed", {name: was[name] for name in changed}, {name: after[name] for name in changed})
    if isinstance(instance, User) and isinstance(before, User) and before.password != instance.password:
        _enter(instance, "password-changed", None, None)


def _deleted(instance: Model, **_: Any) -> None:
    before: Model | None = getattr(instance, "_before", None)
    _enter(instance, "deleted", _values(before or instance), None)


def _set_changed(
    instance: Model, sender: Any, action: str, model: type[Model], pk_set: set[Any] | None, **_: Any
) -> None:
    """What is put in or taken out, from either side; before it is cleared, since afterwards nobody knows what was there."""
    what = {"post_add": "put-in", "post_remove": "taken-out", "pre_clear": "taken-out"}.get(action)
    if what is None or pk_set == set():
        return
    if pk_set is None:
        near, far = _sides(sender, type(instance), model)
        pk_set = set(sender._base_manager.filter(**{f"{near}_id": instance.pk}).values_list(f"{far}_id", flat=True))
    others = sorted(_name(row) for row in model._base_manager.filter(pk__in=pk_set))
    if not others:
        return
    kind = f"{model._meta.model_name}-{what}"
    _enter(instance, kind, *((None, others) if what == "put-in" else (others, None)))


def _sides(through: Any, near: type[Model], far: type[Model]) -> tuple[str, str]:
    names = {column.related_model: column.name for column in through._meta.fields if column.related_model}
    return names[near], names[far]


def _name(row: Model) -> str:
    if isinstance(row, Permission):
        return f"{row.content_type.app_label}.{row.codename}"
    return str(row)
