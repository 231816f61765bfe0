"""What people decided, and the indexes of the inbox."""

from django.db import migrations, models

from approvals import tables


def adopt(apps, schema_editor):
    # Those of before have the same names and other columns.
    with schema_editor.connection.cursor() as cursor:
        for name in ("page", "inbox", "tenant_inbox", "alike", "effect"):
            cursor.execute(f"DROP INDEX IF EXISTS {tables.RECORDS}_{name}")
    tables.adopt(schema_editor.connection)


class Migration(migrations.Migration):
    dependencies = [("approvals", "0001_initial")]

    operations = [
        migrations.CreateModel(
            name="Decision",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("kind", models.CharField(max_length=16)),
                ("record_id", models.TextField()),
                ("tenant_id", models.TextField(blank=True)),
                ("capability", models.TextField(blank=True)),
                ("answer", models.CharField(max_length=32)),
                ("actor", models.CharField(max_length=150)),
                ("decided_by", models.CharField(max_length=255)),
                ("comment", models.TextField(blank=True)),
                ("came_from", models.CharField(blank=True, max_length=64)),
                ("via", models.CharField(max_length=16)),
                ("version_before", models.BigIntegerField()),
                ("version_after", models.BigIntegerField()),
                ("shown_digest", models.CharField(blank=True, max_length=64)),
                ("happened_at", models.BigIntegerField()),
            ],
            options={
                "db_table": "cadence_admin_decision",
                "ordering": ["-id"],
                "permissions": [
                    ("decide_approval", "Can approve and deny"),
                    ("resolve_record", "Can close effects, resolve sagas and free reconciliation leases"),
                ],
                "indexes": [models.Index(fields=["kind", "record_id"], name="decision_of_record")],
            },
        ),
        migrations.RunPython(adopt, migrations.RunPython.noop, hints={"model_name": "durablerecord"}),
    ]
