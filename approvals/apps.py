"""nifra: wire codec, records, backends, adapter, journal, coordinator, sagas, reconciliation."""

from django.apps import AppConfig


class ApprovalsConfig(AppConfig):
    name = "approvals"
    verbose_name = "Approvals"
