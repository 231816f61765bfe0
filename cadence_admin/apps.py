"""The site: settings, accounts, shared view helpers."""

from django.apps import AppConfig


class CadenceAdminConfig(AppConfig):
    name = "cadence_admin"
    verbose_name = "Cadence Admin"
