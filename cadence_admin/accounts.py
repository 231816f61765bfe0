"""Who may sign in, and the three local accounts that a first look uses."""

from typing import Final

from django.conf import settings
from django.contrib.auth.backends import ModelBackend
from django.contrib.auth.models import AnonymousUser, Group, Permission, User
from django.db import transaction

LOCAL_GROUP: Final = "local accounts"
LOCAL_ACCOUNTS: Final = ("viewer", "approver", "operator")
# What each may do beyond looking.
PERMISSIONS: Final = {
    "approver": ("decide_approval",),
    "operator": ("change_stateroot", "move_run", "reclaim_operation", "decide_approval", "resolve_record"),
}


class AccountBackend(ModelBackend):
    """Django's own, except that local accounts sign in only where `CADENCE_LOCAL_ACCOUNTS` is on (loopback only)."""

    def user_can_authenticate(self, user: User | AnonymousUser | None) -> bool:
        if not super().user_can_authenticate(user):
            return False
        return settings.LOCAL_ACCOUNTS or not (isinstance(user, User) and user.groups.filter(name=LOCAL_GROUP).exists())


@transaction.atomic
def ensure_local_accounts(password: str) -> list[str]:
    """Make the local accounts that don't exist yet. Returns the names that `password` opens (a changed one is left)."""
    group, _ = Group.objects.get_or_create(name=LOCAL_GROUP)
    names = []
    for name in LOCAL_ACCOUNTS:
        user, created = User.objects.get_or_create(username=name, defaults={"is_staff": name == "operator"})
        if created:
            user.set_password(password)
            user.save(update_fields=["password"])
            user.groups.add(group)
            allowed = PERMISSIONS.get(name, ())
            user.user_permissions.set(Permission.objects.filter(codename__in=allowed))
            if name == "operator":
                tables = Permission.objects.filter(
                    content_type__app_label__in=("runs", "approvals"), codename__startswith="view_"
                )
                user.user_permissions.add(*tables)
        if user.check_password(password) and user.groups.filter(pk=group.pk).exists():
            names.append(name)
    return names
