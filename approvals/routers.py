"""Which database holds nifra's tables: the console's own, or the one that CADENCE_NIFRA_DATABASE_URL names."""

from typing import Any, Final

from django.conf import settings
from django.db import models

SHARED: Final = frozenset({"durablerecord", "effect", "approval", "saga", "reconciliationlease", "decision"})
AUDIT_LOG: Final = ("cadence_admin", "auditentry")


def nifra_alias() -> str:
    """The alias of the database with nifra's tables."""
    return "nifra" if "nifra" in settings.DATABASES else "default"


class NifraRouter:
    """Sends the shared tables to their database, and nothing else there."""

    def db_for_read(self, model: type[models.Model], **hints: Any) -> str | None:
        return nifra_alias() if _is_shared(model._meta.app_label, model._meta.model_name) else None

    db_for_write = db_for_read

    def allow_migrate(self, db: str, app_label: str, model_name: str | None = None, **hints: Any) -> bool | None:
        if _is_shared(app_label, model_name):
            return db == nifra_alias()
        if (app_label, model_name) == AUDIT_LOG:  # one in each database, for the transactions of each
            return True
        return False if db == "nifra" else None


def _is_shared(app_label: str, model_name: str | None) -> bool:
    return app_label == "approvals" and model_name in SHARED
