"""Who sees what, who may decide it, and how many must agree. Patterns are those of `cadence_admin.patterns`."""

from django.contrib.auth.models import Group, User
from django.core.exceptions import ValidationError
from django.core.validators import MaxValueValidator, MinValueValidator
from django.db import models


class Grant(models.Model):
    """Something that is given to a user, or to all of a group."""

    user = models.ForeignKey(User, models.CASCADE, null=True, blank=True, related_name="+")
    group = models.ForeignKey(Group, models.CASCADE, null=True, blank=True, related_name="+")

    class Meta:
        abstract = True

    def clean(self) -> None:
        if (self.user is None) == (self.group is None):
            raise ValidationError("Give it to a user or to a group, and not to both.")

    @property
    def holder(self) -> str:
        """Who has it, for people."""
        return f"group {self.group}" if self.group else str(self.user)


def _one_holder(name: str) -> models.CheckConstraint:
    one = models.Q(user__isnull=True, group__isnull=False) | models.Q(user__isnull=False, group__isnull=True)
    return models.CheckConstraint(condition=one, name=name)


class TenantAccess(Grant):
    """Whose approvals and effects somebody sees, and whether they may decide them."""

    tenant = models.CharField(max_length=255, default="*", help_text="a tenant, or a pattern such as acme-*")
    capability = models.CharField(
        max_length=255, default="*", help_text="a capability, or a pattern such as payments.*"
    )
    may_decide = models.BooleanField(default=True, help_text="off: only to see")

    class Meta:
        verbose_name = "tenant access"
        verbose_name_plural = "tenant access"
        ordering = ["pk"]
        constraints = [_one_holder("tenant_access_one_holder")]
        permissions = [("use_admin", "Can use Django's admin")]

    def __str__(self) -> str:
        return f"{self.holder}: {self.capability} of {self.tenant}"


class RootAccess(Grant):
    """Which projects' runs somebody sees, and whether they may change them."""

    root = models.CharField(max_length=255, default="*", help_text="a project's name or root hash, or a pattern")
    may_change = models.BooleanField(default=True, help_text="off: only to see")

    class Meta:
        verbose_name = "root access"
        verbose_name_plural = "root access"
        ordering = ["pk"]
        constraints = [_one_holder("root_access_one_holder")]

    def __str__(self) -> str:
        return f"{self.holder}: {self.root}"


class ApprovalPolicy(models.Model):
    """How many different people must approve what a capability does, and who may not be among them. Of several that match,
    the strictest counts."""

    capability = models.CharField(max_length=255, unique=True, help_text="a capability, or a pattern such as *.delete")
    needed = models.PositiveSmallIntegerField(
        default=2,
        validators=[MinValueValidator(1), MaxValueValidator(5)],
        help_text="how many different people must approve; one denial denies",
    )
    excluded = models.ManyToManyField(
        Group, blank=True, related_name="+", help_text="members of these may not be among those who approve"
    )

    class Meta:
        verbose_name = "approval policy"
        verbose_name_plural = "approval policies"
        ordering = ["capability"]
        constraints = [
            models.CheckConstraint(condition=models.Q(needed__range=(1, 5)), name="approval_policy_needed_in_bounds")
        ]

    def __str__(self) -> str:
        return f"{self.capability}: {self.needed}"


class OwnedPrincipal(models.Model):
    """A principal that is a user's own: nobody decides what they asked for themselves."""

    user = models.ForeignKey(User, models.CASCADE, related_name="+")
    principal = models.CharField(max_length=255, help_text="principalId of the user's agent or service")

    class Meta:
        verbose_name = "owned principal"
        ordering = ["principal"]
        constraints = [models.UniqueConstraint(fields=["user", "principal"], name="owned_principal_unique")]

    def __str__(self) -> str:
        return f"{self.principal} of {self.user}"


class Identity(models.Model):
    """Whom an account belongs to at an OpenID Connect provider. Who has none signs in with a password."""

    user = models.OneToOneField(User, models.CASCADE, related_name="identity")
    issuer = models.CharField(max_length=500, help_text="the provider's address, as CADENCE_OIDC_ISSUER has it")
    subject = models.CharField(max_length=255, help_text="what the provider calls the person in `sub`")

    class Meta:
        verbose_name_plural = "identities"
        ordering = ["pk"]
        constraints = [models.UniqueConstraint(fields=["issuer", "subject"], name="identity_unique")]

    def __str__(self) -> str:
        return f"{self.user}: {self.subject} at {self.issuer}"


class AuditEntry(models.Model):
    """One link of the audit log, see `cadence_admin.audit`. The database refuses to change or delete one (triggers)."""

    sequence = models.BigIntegerField(primary_key=True)
    action = models.CharField(max_length=64)
    payload_json = models.TextField()
    prior_hash = models.CharField(max_length=64)
    event_hash = models.CharField(max_length=64)
    # What follows repeats members of the payload, to be searched.
    happened_at = models.BigIntegerField()
    actor = models.CharField(max_length=500)
    target_kind = models.CharField(max_length=500)
    target = models.CharField(max_length=500)

    class Meta:
        verbose_name = "audit entry"
        verbose_name_plural = "audit log"
        ordering = ["-sequence"]
        indexes = [
            models.Index(fields=["actor", "-sequence"], name="audit_by_actor"),
            models.Index(fields=["action", "-sequence"], name="audit_by_action"),
            models.Index(fields=["target", "-sequence"], name="audit_by_target"),
        ]
        default_permissions = ("view",)

    def __str__(self) -> str:
        return f"{self.sequence}: {self.action} {self.target}"
