"""The tables of durable records and reconciliation leases, as Django sees them.

They are shared with nifra applications and made by `approvals.tables`; they are written by `approvals.backends.database`
only, never through these models. `Decision` is ours, and lives beside them so that a decision and its entry are one
transaction. Times are milliseconds since 1970-01-01 UTC.
"""

import json
from typing import TYPE_CHECKING, Any, ClassVar

from django.db import models
from django.db.backends.base.base import BaseDatabaseWrapper

from approvals import tables, wire
from approvals.records import Record, read_record

if TYPE_CHECKING:
    _Field = models.Field[Any, Any]
else:
    _Field = models.Field


def wire_text(payload: str) -> str:
    """The wire text of a stored payload, which some drivers store as a JSON string that holds it."""
    if payload.startswith('"'):
        inner = json.loads(payload)
        return inner if isinstance(inner, str) else payload
    return payload


class PayloadField(_Field):
    """The wire form: TEXT on SQLite, JSONB on PostgreSQL. Read as text, so that numbers stay JavaScript's."""

    def db_type(self, connection: BaseDatabaseWrapper) -> str:
        return "text" if connection.vendor == "sqlite" else "jsonb"

    def select_format(self, compiler: Any, sql: str, params: Any) -> tuple[str, Any]:
        return (f"{sql}::text" if compiler.connection.vendor == "postgresql" else sql), params


class DurableRecord(models.Model):
    """One effect, approval or saga. `payload` is what it is; the other columns repeat or derive from it."""

    rowid = models.BigAutoField(primary_key=True)
    kind = models.TextField()
    id = models.TextField()
    state = models.TextField()
    updated_at = models.BigIntegerField()
    version = models.BigIntegerField()
    payload = PayloadField()

    tenant_id = models.TextField(null=True, editable=False)
    principal_id = models.TextField(null=True, editable=False)
    capability = models.TextField(null=True, editable=False)
    target = models.TextField(null=True, editable=False)
    effect_id = models.TextField(null=True, editable=False)
    decided_by = models.TextField(null=True, editable=False)
    expires_at = models.BigIntegerField(null=True, editable=False)

    class Meta:
        managed = False
        db_table = tables.RECORDS
        ordering = ["-rowid"]
        verbose_name = "durable record"

    def __str__(self) -> str:
        return f"{self.kind} {self.id}"

    @property
    def record(self) -> Record:
        """The record itself. Raises `WireError` or `RecordError` if it can't be read."""
        return read_record(self.kind, wire.loads(wire_text(self.payload)))


class _OfKind(models.Manager[Any]):
    def __init__(self, kind: str = "") -> None:
        super().__init__()
        self._kind = kind

    def get_queryset(self) -> models.QuerySet[Any]:
        return super().get_queryset().filter(kind=self._kind)


class Effect(DurableRecord):
    """Durable records that are effects."""

    objects: ClassVar[models.Manager[Any]] = _OfKind("effect")

    class Meta:
        proxy = True


class Approval(DurableRecord):
    """Durable records that are approvals."""

    objects: ClassVar[models.Manager[Any]] = _OfKind("approval")

    class Meta:
        proxy = True


class Saga(DurableRecord):
    """Durable records that are sagas."""

    objects: ClassVar[models.Manager[Any]] = _OfKind("saga")

    class Meta:
        proxy = True


class ReconciliationLease(models.Model):
    """Which worker may reconcile what, until when, and where it is. The token is a secret of its holder."""

    name = models.TextField(primary_key=True)
    owner = models.TextField(null=True)
    token = models.TextField(null=True, editable=False)
    expires_at = models.BigIntegerField(default=0)
    cursor = models.TextField(null=True)

    class Meta:
        managed = False
        db_table = tables.LEASES
        ordering = ["name"]
        verbose_name = "reconciliation lease"

    def __str__(self) -> str:
        return self.name


class Decision(models.Model):
    """What a person did to a record: approved or denied an approval, closed an effect, resolved a step, freed a lease.

    `actor` is the user's name then, `decided_by` the token that the record carries (see `approvals.decisions`);
    `shown_digest` is the sha256 of what the person was shown.
    """

    kind = models.CharField(max_length=16)
    record_id = models.TextField()
    tenant_id = models.TextField(blank=True)
    capability = models.TextField(blank=True)
    answer = models.CharField(max_length=32)
    actor = models.CharField(max_length=150)
    decided_by = models.CharField(max_length=255)
    comment = models.TextField(blank=True)
    came_from = models.CharField(max_length=64, blank=True)
    via = models.CharField(max_length=16)
    version_before = models.BigIntegerField()
    version_after = models.BigIntegerField()
    shown_digest = models.CharField(max_length=64, blank=True)
    happened_at = models.BigIntegerField()

    class Meta:
        # It may lie in another application's database: its name says whose it is.
        db_table = "cadence_admin_decision"
        indexes = [models.Index(fields=["kind", "record_id"], name="decision_of_record")]
        ordering = ["-id"]
        permissions = [
            ("decide_approval", "Can approve and deny"),
            ("resolve_record", "Can close effects, resolve sagas and free reconciliation leases"),
        ]

    def __str__(self) -> str:
        return f"{self.answer} {self.kind} {self.record_id}"
