"""The ten tables of a Cadence run store, for many state roots in one database, and what we remember beside them.

Column names are the seed's. What is unique in one store is unique per state root here. Times are integer milliseconds
since 1970-01-01 UTC. JSON that is hashed is kept as the text it came in.
"""

from typing import TYPE_CHECKING, Any

from django.db import models
from django.db.models import Q

from runs.lifecycle import OPERATION_STATES, RUN_STATES, STAGES, TASK_STATES
from runs.verification import OK

# \Z and not $: Python's $ also matches before a last newline; PostgreSQL knows \Z too.
SHA256_PATTERN = r"^[0-9a-f]{64}\Z"

if TYPE_CHECKING:
    _TextColumn = models.CharField[Any, Any]
    _NumberColumn = models.BigIntegerField[Any, Any]
else:
    _TextColumn, _NumberColumn = models.CharField, models.BigIntegerField

PRESENT = Q(missing_since__isnull=True)
# Conditions of partial indexes name no values: a query's own values are bound, and SQLite can't match those.
BROKEN = Q(broken=True)
HAS_LEASE = Q(lease_expires_at__isnull=False)


class IdField(_TextColumn):
    """An identifier that another program gave: text of at most 255 characters."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        kwargs.setdefault("max_length", 255)
        super().__init__(*args, **kwargs)


class HashField(_TextColumn):
    """A lower-case hex sha256."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        kwargs["max_length"] = 64
        super().__init__(*args, **kwargs)

    def deconstruct(self) -> Any:
        name, path, args, kwargs = super().deconstruct()
        del kwargs["max_length"]
        return name, path, args, kwargs


class MillisecondsField(_NumberColumn):
    """A moment: milliseconds since 1970-01-01 UTC."""


def _one_of(field: str, values: tuple[str, ...], name: str) -> models.CheckConstraint:
    return models.CheckConstraint(condition=Q(**{f"{field}__in": values}), name=name)


def _sha256(field: str, name: str, *, null: bool = False) -> models.CheckConstraint:
    condition = Q(**{f"{field}__regex": SHA256_PATTERN})
    return models.CheckConstraint(
        condition=condition | Q(**{f"{field}__isnull": True}) if null else condition, name=name
    )


class StateRoot(models.Model):
    """One Cadence state root: the store of one project directory, known by the hash of that directory's path."""

    root_hash = HashField(unique=True, help_text="sha256 of the project directory's real path")
    name = models.CharField(
        max_length=80, blank=True, help_text="what people call this project; the path can't be had back"
    )
    path = models.TextField(blank=True, help_text="the control.sqlite3 it was last mirrored from")
    schema_form = models.CharField(max_length=20, blank=True, help_text="which form of the store was found there")
    fingerprint = models.CharField(
        max_length=200, blank=True, help_text="size and times of the file after the last whole pass"
    )
    problem = models.TextField(blank=True, help_text="why the last pass could not bring everything")
    first_seen_at = MillisecondsField()
    checked_at = MillisecondsField(help_text="when the source was last looked at")

    class Meta:
        ordering = ["name", "root_hash"]
        verbose_name = "state root"
        constraints = [_sha256("root_hash", "stateroot_root_hash_sha256")]
        indexes = [models.Index(fields=["path"], name="stateroot_path")]

    def __str__(self) -> str:
        return self.name or self.root_hash[:10]


class Kept(models.Model):
    """A row that stays when its source drops it, and says since when it is missing there."""

    missing_since = MillisecondsField(
        null=True, blank=True, editable=False, help_text="when the source no longer had it"
    )

    class Meta:
        abstract = True


class Run(Kept):
    """One run: its row in `runs`, when we saw it, and what verifying it came to."""

    state_root = models.ForeignKey(StateRoot, models.PROTECT, related_name="runs", db_index=False)
    run_id = IdField()
    root_hash = IdField()
    stage = models.CharField(max_length=20)
    lookup_key = IdField()
    change_name = IdField(null=True, blank=True)
    provisional_key = IdField(null=True, blank=True)
    state = models.CharField(max_length=20)
    sequence = models.BigIntegerField()
    event_hash = HashField()
    delivery_revision = models.BigIntegerField(null=True, blank=True)
    projection_json = models.TextField()
    terminal_tombstone = models.CharField(max_length=20, null=True, blank=True)

    first_seen_at = MillisecondsField()
    changed_at = MillisecondsField(help_text="when we last saw it change")
    source_digest = models.CharField(max_length=64, blank=True, editable=False)

    verdict = models.CharField(max_length=120, blank=True, help_text="ok, or the code of the first thing that is wrong")
    verdict_detail = models.TextField(blank=True)
    broken = models.GeneratedField(
        expression=models.ExpressionWrapper(~Q(verdict__in=["", OK]), output_field=models.BooleanField()),
        output_field=models.BooleanField(),
        db_persist=True,
    )
    first_broken = models.BigIntegerField(null=True, blank=True, help_text="sequence at which the chain first breaks")
    break_count = models.BigIntegerField(default=0)
    diverged_sequence = models.BigIntegerField(
        null=True, blank=True, help_text="where a source last showed another history than the one kept here"
    )
    verified_at = MillisecondsField(null=True, blank=True)
    verified_sequence = models.BigIntegerField(default=0)
    verified_projection_json = models.TextField(blank=True, editable=False)

    class Meta:
        ordering = ["-id"]
        permissions = [("move_run", "Can move a run to another state")]
        constraints = [
            models.UniqueConstraint(fields=["state_root", "run_id"], name="run_unique_per_root"),
            models.UniqueConstraint(
                fields=["state_root", "root_hash", "stage", "lookup_key"], condition=PRESENT, name="run_lookup_unique"
            ),
            _one_of("state", RUN_STATES, "run_state_known"),
            _one_of("stage", STAGES, "run_stage_known"),
            _sha256("event_hash", "run_event_hash_sha256"),
        ]
        indexes = [
            models.Index(fields=["run_id"], name="run_by_run_id"),
            models.Index(fields=["state", "-id"], name="run_by_state"),
            models.Index(fields=["stage", "-id"], name="run_by_stage"),
            models.Index(fields=["state_root", "-id"], name="run_by_root"),
            models.Index(fields=["-id"], condition=BROKEN, name="run_broken"),
        ]

    def __str__(self) -> str:
        return self.change_name or f"unnamed design {self.run_id[:13]}"


class Event(models.Model):
    """One event of a run's chain. Never changed, never deleted."""

    run = models.ForeignKey(Run, models.PROTECT, related_name="events", db_index=False)
    sequence = models.BigIntegerField()
    type = models.CharField(max_length=60)
    payload_json = models.TextField()
    prior_hash = HashField()
    event_hash = HashField()
    first_seen_at = MillisecondsField()

    class Meta:
        ordering = ["run", "sequence"]
        constraints = [
            models.UniqueConstraint(fields=["run", "sequence"], name="event_sequence_unique"),
            models.UniqueConstraint(fields=["run", "event_hash"], name="event_hash_unique"),
            _sha256("prior_hash", "event_prior_hash_sha256"),
            _sha256("event_hash", "event_event_hash_sha256"),
        ]

    def __str__(self) -> str:
        return f"{self.sequence} {self.type}"


class DeliveryBinding(Kept):
    """A delivery bound at a gate, with the proof of its approval if it has one."""

    run = models.ForeignKey(Run, models.PROTECT, related_name="deliveries", db_index=False)
    gate = models.CharField(max_length=20)
    revision = models.BigIntegerField()
    receipt_hash = HashField()
    approval_revision = models.BigIntegerField(null=True, blank=True)
    contract_hash = HashField(null=True, blank=True)
    record_hash = HashField(null=True, blank=True)
    operation_id = IdField()

    class Meta:
        ordering = ["-id"]
        verbose_name = "delivery binding"
        constraints = [
            models.UniqueConstraint(fields=["run", "gate", "revision"], name="delivery_unique"),
            models.UniqueConstraint(
                fields=["run", "operation_id"], condition=PRESENT, name="delivery_operation_unique"
            ),
            _sha256("receipt_hash", "delivery_receipt_sha256"),
            _sha256("contract_hash", "delivery_contract_sha256", null=True),
            _sha256("record_hash", "delivery_record_sha256", null=True),
        ]
        indexes = [models.Index(fields=["run", "-id"], name="delivery_by_run")]

    def __str__(self) -> str:
        return f"{self.gate} revision {self.revision}"


class Task(Kept):
    """One task of a run."""

    run = models.ForeignKey(Run, models.PROTECT, related_name="tasks", db_index=False)
    task_id = IdField()
    state = models.CharField(max_length=20)
    phase = IdField(null=True, blank=True)
    projection_json = models.TextField()

    class Meta:
        ordering = ["-id"]
        constraints = [
            models.UniqueConstraint(fields=["run", "task_id"], name="task_unique"),
            _one_of("state", TASK_STATES, "task_state_known"),
        ]
        indexes = [models.Index(fields=["run", "-id"], name="task_by_run")]

    def __str__(self) -> str:
        return str(self.task_id)


class Operation(Kept):
    """One operation of a run and its lease.

    `lease_token` is a secret of the worker that holds the lease: it is never shown, and never mirrored; of a mirrored
    operation we only know whether a lease is held (`lease_held`).
    """

    run = models.ForeignKey(Run, models.PROTECT, related_name="operations", db_index=False)
    operation_id = IdField()
    kind = models.CharField(max_length=60)
    state = models.CharField(max_length=20)
    outcome_json = models.TextField(null=True, blank=True)
    lease_token = models.CharField(max_length=255, null=True, blank=True, editable=False)
    lease_held = models.BooleanField(default=False)
    lease_expires_at = MillisecondsField(null=True, blank=True)

    class Meta:
        ordering = ["-id"]
        permissions = [("reclaim_operation", "Can reclaim expired leases")]
        constraints = [
            models.UniqueConstraint(fields=["run", "operation_id"], name="operation_unique"),
            _one_of("state", OPERATION_STATES, "operation_state_known"),
        ]
        indexes = [
            models.Index(fields=["run", "-id"], name="operation_by_run"),
            models.Index(fields=["run", "lease_expires_at"], condition=HAS_LEASE, name="operation_lease_by_run"),
            models.Index(fields=["state", "lease_expires_at", "id"], name="operation_lease_by_expiry"),
            models.Index(fields=["operation_id"], name="operation_by_name"),
        ]

    def __str__(self) -> str:
        return str(self.operation_id)


class LeaseEvent(models.Model):
    """What happened to the lease of an operation from outside: it was reclaimed, or a holder came too late."""

    RECLAIMED = "reclaimed"
    REFUSED = "refused"

    operation = models.ForeignKey(Operation, models.PROTECT, related_name="lease_events", db_index=False)
    kind = models.CharField(max_length=20)
    actor = models.CharField(max_length=150, blank=True, help_text="who reclaimed; empty for a worker or a command")
    reason = models.TextField(blank=True, help_text="why, or what the late holder tried")
    overdue_ms = models.BigIntegerField(null=True, blank=True)
    paused = models.BooleanField(default=False)
    happened_at = MillisecondsField()

    class Meta:
        ordering = ["-id"]
        verbose_name = "lease event"
        constraints = [_one_of("kind", ("reclaimed", "refused"), "lease_event_kind_known")]
        indexes = [models.Index(fields=["operation", "-id"], name="lease_event_by_operation")]

    def __str__(self) -> str:
        return f"{self.operation} {self.kind}"


class RouteHealth(Kept):
    """How a route to a model provider is doing, as one store sees it."""

    state_root = models.ForeignKey(StateRoot, models.PROTECT, related_name="routes", db_index=False)
    route_fingerprint = IdField()
    state = models.CharField(max_length=60)
    next_half_open_at = MillisecondsField(null=True, blank=True)
    projection_json = models.TextField()

    class Meta:
        ordering = ["state_root", "route_fingerprint"]
        verbose_name = "route health"
        verbose_name_plural = "route health"
        constraints = [models.UniqueConstraint(fields=["state_root", "route_fingerprint"], name="route_unique")]

    def __str__(self) -> str:
        return str(self.route_fingerprint[:10])


class Artifact(Kept):
    """A stored artifact, owned by a run or by none."""

    state_root = models.ForeignKey(StateRoot, models.PROTECT, related_name="artifacts", db_index=False)
    content_hash = HashField()
    size_bytes = models.BigIntegerField()
    seal_state = models.CharField(max_length=60)
    owner_run = models.ForeignKey(Run, models.PROTECT, related_name="artifacts", null=True, blank=True, db_index=False)
    reference_count = models.BigIntegerField()

    class Meta:
        ordering = ["-id"]
        indexes = [models.Index(fields=["owner_run", "-id"], name="artifact_by_run")]
        constraints = [
            models.UniqueConstraint(fields=["state_root", "content_hash"], name="artifact_unique"),
            _sha256("content_hash", "artifact_content_sha256"),
        ]

    def __str__(self) -> str:
        return str(self.content_hash[:10])


class WorkspaceRevision(Kept):
    """One revision of a run's workspace."""

    state_root = models.ForeignKey(StateRoot, models.PROTECT, related_name="+", db_index=False)
    revision_id = IdField()
    owner_run = models.ForeignKey(Run, models.PROTECT, related_name="workspace_revisions", db_index=False)
    parent_revision_id = IdField(null=True, blank=True)
    manifest_hash = HashField()

    class Meta:
        ordering = ["-id"]
        verbose_name = "workspace revision"
        indexes = [models.Index(fields=["owner_run", "-id"], name="revision_by_run")]
        constraints = [
            models.UniqueConstraint(fields=["state_root", "revision_id"], name="revision_unique"),
            _sha256("manifest_hash", "revision_manifest_sha256"),
        ]

    def __str__(self) -> str:
        return str(self.revision_id)


class ApplyTransaction(Kept):
    """An attempt to apply a run's result to the project."""

    state_root = models.ForeignKey(StateRoot, models.PROTECT, related_name="+", db_index=False)
    transaction_id = IdField()
    owner_run = models.ForeignKey(Run, models.PROTECT, related_name="apply_transactions", db_index=False)
    state = models.CharField(max_length=60)
    intent_json = models.TextField()
    recovery_json = models.TextField(null=True, blank=True)

    class Meta:
        ordering = ["-id"]
        verbose_name = "apply transaction"
        indexes = [models.Index(fields=["owner_run", "-id"], name="transaction_by_run")]
        constraints = [models.UniqueConstraint(fields=["state_root", "transaction_id"], name="transaction_unique")]

    def __str__(self) -> str:
        return str(self.transaction_id)


class BootstrapHandoff(Kept):
    """A run handed over from the tool that started it."""

    state_root = models.ForeignKey(StateRoot, models.PROTECT, related_name="+", db_index=False)
    handoff_id = IdField()
    owner_run = models.ForeignKey(Run, models.PROTECT, related_name="bootstrap_handoffs", db_index=False)
    receipt_hash = HashField()
    state = models.CharField(max_length=60)
    facts_json = models.TextField()

    class Meta:
        ordering = ["-id"]
        verbose_name = "bootstrap handoff"
        indexes = [models.Index(fields=["owner_run", "-id"], name="handoff_by_run")]
        constraints = [
            models.UniqueConstraint(fields=["state_root", "handoff_id"], name="handoff_unique"),
            models.UniqueConstraint(
                fields=["state_root", "receipt_hash"], condition=PRESENT, name="handoff_receipt_unique"
            ),
            _sha256("receipt_hash", "handoff_receipt_sha256"),
        ]

    def __str__(self) -> str:
        return str(self.handoff_id)


class ChainAnchor(models.Model):
    """The head of a run at a moment at which we saw it grow. How a history that was rewritten later is found out."""

    run = models.ForeignKey(Run, models.PROTECT, related_name="anchors", db_index=False)
    sequence = models.BigIntegerField()
    event_hash = HashField()
    seen_at = MillisecondsField()

    class Meta:
        ordering = ["run", "sequence"]
        verbose_name = "chain anchor"
        constraints = [
            models.UniqueConstraint(fields=["run", "sequence"], name="anchor_unique"),
            _sha256("event_hash", "anchor_event_hash_sha256"),
        ]

    def __str__(self) -> str:
        return f"{self.sequence} {self.event_hash[:10]}"


class Divergence(models.Model):
    """The first difference between the history we keep of a run and one that a source showed later.

    What we keep is the event at `sequence` (or none); what the source showed is here, all null where it had no event.
    """

    run = models.ForeignKey(Run, models.PROTECT, related_name="divergences", db_index=False)
    sequence = models.BigIntegerField()
    code = models.CharField(max_length=40)
    source_path = models.TextField()
    source_type = models.TextField(null=True)
    source_payload_json = models.TextField(null=True)
    source_prior_hash = models.TextField(null=True)
    source_event_hash = models.TextField(null=True)
    found_at = MillisecondsField()
    last_found_at = MillisecondsField()

    class Meta:
        ordering = ["run", "id"]
        indexes = [models.Index(fields=["run", "id"], name="divergence_by_run")]

    def __str__(self) -> str:
        return f"{self.code} at {self.sequence}"
