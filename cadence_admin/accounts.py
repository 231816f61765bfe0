"""Who may sign in, and the local accounts that a first look uses."""

from typing import Final

from django.conf import settings
from django.contrib.auth.backends import ModelBackend
from django.contrib.auth.models import AnonymousUser, Group, User
from django.db import transaction

from cadence_admin.models import RootAccess, TenantAccess

LOCAL_GROUP: Final = "local accounts"
LOCAL_ACCOUNTS: Final = ("viewer", "approver", "operator", "auditor")


class AccountBackend(ModelBackend):
    """Django's own, except that local accounts sign in only where `CADENCE_LOCAL_ACCOUNTS` is on (loopback only)."""

    def user_can_authenticate(self, user: User | AnonymousUser | None) -> bool:
        if not super().user_can_authenticate(user):
            return False
        return settings.LOCAL_ACCOUNTS or not (isinstance(user, User) and user.groups.filter(name=LOCAL_GROUP).exists())


@transaction.atomic
def ensure_local_accounts(password: str) -> list[str]:
    """Make the local accounts that don't exist yet: one of each role, for all tenants and projects. Returns the names that
    `password` opens (a changed one is left)."""
    local, made = Group.objects.get_or_create(name=LOCAL_GROUP)
    if made:
        TenantAccess.objects.create(group=local)
        RootAccess.objects.create(group=local)
    names = []
    for name in LOCAL_ACCOUNTS:
        user, created = User.objects.get_or_create(username=name)
        if created:
            user.set_password(password)
            user.save(update_fields=["password"])
            user.groups.set([local, Group.objects.get(name=name)])
        if user.check_password(password) and user.groups.filter(pk=local.pk).exists():
            names.append(name)
    return names
