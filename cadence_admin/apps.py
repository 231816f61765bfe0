"""The site: settings, accounts, roles, shared view helpers; and Django's admin with its own door."""

from django.apps import AppConfig
from django.contrib.admin.apps import AdminConfig
from django.db.models.signals import post_migrate


class CadenceAdminConfig(AppConfig):
    name = "cadence_admin"
    verbose_name = "Cadence Admin"

    def ready(self) -> None:
        from cadence_admin import patterns  # noqa: F401 - registers the lookup
        from cadence_admin.changes import watch_changes
        from cadence_admin.roles import ensure_roles
        from cadence_admin.sign_ins import watch_sign_ins

        watch_changes()
        watch_sign_ins()
        # This app is the last one: all permissions are there by then.
        post_migrate.connect(ensure_roles, sender=self)


class ConsoleAdminConfig(AdminConfig):
    default_site = "cadence_admin.site.ConsoleSite"
