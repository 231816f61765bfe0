"""Make nifra's tables if they aren't there, and adopt them; going back leaves nifra's rows and columns."""

from django.conf import settings
from django.db import migrations, models

import approvals.models
from approvals import tables

PREFIX = settings.NIFRA_TABLE_PREFIX


def adopt(apps, schema_editor):
    tables.create(schema_editor.connection)
    tables.adopt(schema_editor.connection)


def release(apps, schema_editor):
    tables.release(schema_editor.connection)


class Migration(migrations.Migration):
    initial = True
    dependencies = []

    operations = [
        migrations.CreateModel(
            name="DurableRecord",
            fields=[
                ("rowid", models.BigAutoField(primary_key=True, serialize=False)),
                ("kind", models.TextField()),
                ("id", models.TextField()),
                ("state", models.TextField()),
                ("updated_at", models.BigIntegerField()),
                ("version", models.BigIntegerField()),
                ("payload", approvals.models.PayloadField()),
                ("tenant_id", models.TextField(editable=False, null=True)),
                ("principal_id", models.TextField(editable=False, null=True)),
                ("capability", models.TextField(editable=False, null=True)),
                ("target", models.TextField(editable=False, null=True)),
                ("effect_id", models.TextField(editable=False, null=True)),
                ("decided_by", models.TextField(editable=False, null=True)),
                ("expires_at", models.BigIntegerField(editable=False, null=True)),
            ],
            options={
                "verbose_name": "durable record",
                "db_table": f"{PREFIX}_records",
                "ordering": ["-rowid"],
                "managed": False,
            },
        ),
        migrations.CreateModel(
            name="ReconciliationLease",
            fields=[
                ("name", models.TextField(primary_key=True, serialize=False)),
                ("owner", models.TextField(null=True)),
                ("token", models.TextField(editable=False, null=True)),
                ("expires_at", models.BigIntegerField(default=0)),
                ("cursor", models.TextField(null=True)),
            ],
            options={
                "verbose_name": "reconciliation lease",
                "db_table": f"{PREFIX}_leases",
                "ordering": ["name"],
                "managed": False,
            },
        ),
        *[
            migrations.CreateModel(
                name=name,
                fields=[],
                options={"proxy": True, "indexes": [], "constraints": []},
                bases=("approvals.durablerecord",),
            )
            for name in ("Effect", "Approval", "Saga")
        ],
        # The hint lets the router send it to the database that holds these tables, and to no other.
        migrations.RunPython(adopt, release, hints={"model_name": "durablerecord"}),
    ]
