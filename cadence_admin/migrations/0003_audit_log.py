"""The audit log, which the database itself refuses to change."""

from django.db import migrations, models

TABLE = "cadence_admin_auditentry"

GUARDS = {
    "postgresql": (
        f"""
        CREATE OR REPLACE FUNCTION {TABLE}_stands() RETURNS trigger LANGUAGE plpgsql AS
        $$ BEGIN RAISE EXCEPTION 'audit entries are never changed or deleted' USING ERRCODE = 'restrict_violation'; END $$
        """,
        f"""
        CREATE TRIGGER {TABLE}_row_stands BEFORE UPDATE OR DELETE ON {TABLE}
        FOR EACH ROW EXECUTE FUNCTION {TABLE}_stands()
        """,
        f"""
        CREATE TRIGGER {TABLE}_table_stands BEFORE TRUNCATE ON {TABLE}
        FOR EACH STATEMENT EXECUTE FUNCTION {TABLE}_stands()
        """,
    ),
    "sqlite": tuple(
        f"""
        CREATE TRIGGER {TABLE}_{event.lower()}_refused BEFORE {event} ON {TABLE}
        BEGIN SELECT RAISE(ABORT, 'audit entries are never changed or deleted'); END
        """
        for event in ("UPDATE", "DELETE")
    ),
}


def guard(apps, schema_editor):
    with schema_editor.connection.cursor() as cursor:
        for statement in GUARDS[schema_editor.connection.vendor]:
            cursor.execute(statement)


def unguard(apps, schema_editor):
    # The triggers go with the table.
    if schema_editor.connection.vendor == "postgresql":
        schema_editor.execute(f"DROP FUNCTION {TABLE}_stands() CASCADE")


class Migration(migrations.Migration):
    dependencies = [("cadence_admin", "0002_four_eyes")]

    operations = [
        migrations.CreateModel(
            name="AuditEntry",
            fields=[
                ("sequence", models.BigIntegerField(primary_key=True, serialize=False)),
                ("action", models.CharField(max_length=64)),
                ("payload_json", models.TextField()),
                ("prior_hash", models.CharField(max_length=64)),
                ("event_hash", models.CharField(max_length=64)),
                ("happened_at", models.BigIntegerField()),
                ("actor", models.CharField(max_length=500)),
                ("target_kind", models.CharField(max_length=500)),
                ("target", models.CharField(max_length=500)),
            ],
            options={
                "verbose_name": "audit entry",
                "verbose_name_plural": "audit log",
                "ordering": ["-sequence"],
                "default_permissions": ("view",),
                "indexes": [
                    models.Index(fields=["actor", "-sequence"], name="audit_by_actor"),
                    models.Index(fields=["action", "-sequence"], name="audit_by_action"),
                    models.Index(fields=["target", "-sequence"], name="audit_by_target"),
                ],
            },
        ),
        migrations.RunPython(guard, unguard, hints={"model_name": "auditentry"}),
    ]
