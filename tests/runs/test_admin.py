"""Django's admin over the tables of runs: listed, searchable, bounded, and never a way to change a history."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from django.apps import apps
from django.contrib import admin
from django.contrib.auth.models import User
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from runs.mirror import mirror_state_home
from runs.models import Event, Run, StateRoot

pytestmark = pytest.mark.django_db

MODELS = sorted(apps.get_app_config("runs").get_models(), key=lambda model: model.__name__)
NAMES = [model._meta.model_name for model in MODELS]


@pytest.fixture
def superuser(db: None) -> Client:
    client = Client()
    client.force_login(User.objects.create_superuser("root", password="x"))
    return client


def test_every_filter_of_every_table_answers(superuser: Client, state_home: Path) -> None:
    mirror_state_home(state_home)
    for name in NAMES:
        content = superuser.get(f"/admin/runs/{name}/").content.decode()
        links = set(re.findall(r'href="(\?[a-z_]+=[a-z_-]+)"', content))
        assert len(links) >= 1, f"{name} is a table without a filter"
        for link in links:
            assert superuser.get(f"/admin/runs/{name}/{link}").status_code == 200, (name, link)


def test_every_table_has_its_page() -> None:
    assert {model for model in admin.site._registry if model._meta.app_label == "runs"} == set(MODELS)


def test_lists_searches_and_rows_open_at_a_fixed_cost(superuser: Client, state_home: Path) -> None:
    mirror_state_home(state_home)
    for name in NAMES:
        with CaptureQueriesContext(connection) as queries:
            response = superuser.get(f"/admin/runs/{name}/")
        assert response.status_code == 200, name
        assert len(queries) <= 6, name
        counts = [query["sql"] for query in queries if "COUNT(" in query["sql"]]
        assert all("LIMIT 5000" in sql for sql in counts), (name, counts)
        assert superuser.get(f"/admin/runs/{name}/?q=nothing").status_code == 200, name
        row = apps.get_model("runs", name)._default_manager.first()
        if row is not None:
            assert superuser.get(f"/admin/runs/{name}/{row.pk}/change/").status_code == 200, name


def test_nothing_can_be_added_changed_or_deleted_even_by_a_superuser(superuser: Client, state_home: Path) -> None:
    mirror_state_home(state_home)
    for name in NAMES:
        _require_unchangeable(superuser, name)


def _require_unchangeable(superuser: Client, name: str) -> None:
    model = apps.get_model("runs", name)
    assert superuser.get(f"/admin/runs/{name}/add/").status_code == 403, name
    row = model._default_manager.first()
    if row is None:
        return
    before = list(model._default_manager.values_list())
    values = {field.name: "1" for field in model._meta.fields if field.name != "name"}
    response = superuser.post(f"/admin/runs/{name}/{row.pk}/change/", values)
    assert response.status_code == (302 if name == "stateroot" else 403), name
    assert superuser.post(f"/admin/runs/{name}/{row.pk}/delete/", {"post": "yes"}).status_code == 403, name
    superuser.post(f"/admin/runs/{name}/", {"action": "delete_selected", "_selected_action": [row.pk], "post": "yes"})
    assert list(model._default_manager.values_list()) == before, name


def test_a_state_root_gets_a_name(sign_in: Callable[[str], Client], state_home: Path) -> None:
    mirror_state_home(state_home)
    root = StateRoot.objects.get()
    response = sign_in("operator").post(f"/admin/runs/stateroot/{root.pk}/change/", {"name": "storefront"})
    assert response.status_code == 302
    assert str(StateRoot.objects.get()) == "storefront"


def test_secrets_and_inner_columns_are_not_shown(superuser: Client, state_home: Path) -> None:
    mirror_state_home(state_home)
    pk = Run.objects.get(run_id="00000000-0000-4000-8000-000000000010").pk
    assert "verified_projection" not in superuser.get(f"/admin/runs/run/{pk}/change/").content.decode()
    operation = apps.get_model("runs", "operation").objects.first()
    assert operation is not None
    assert "token" not in superuser.get(f"/admin/runs/operation/{operation.pk}/change/").content.decode().replace(
        "csrfmiddlewaretoken", ""
    )


def test_verify_chain_is_an_action(sign_in: Callable[[str], Client], state_home: Path) -> None:
    mirror_state_home(state_home)
    run = Run.objects.get(run_id="00000000-0000-4000-8000-000000000010")
    Event.objects.filter(run=run, sequence=3).update(payload_json="{}")
    chosen = [run.pk, Run.objects.exclude(pk=run.pk).values_list("pk", flat=True)[0]]
    response = sign_in("operator").post(
        "/admin/runs/run/", {"action": "verify", "_selected_action": chosen}, follow=True
    )
    content = response.content.decode()
    assert "Audit-trail: event-integrity-hash-chain, first broken at event 3" in content
    assert ": ok" in content


def test_too_much_is_not_verified_at_once(superuser: Client, state_home: Path) -> None:
    mirror_state_home(state_home)
    Run.objects.update(sequence=1_000_000)
    chosen = list(Run.objects.values_list("pk", flat=True))
    response = superuser.post("/admin/runs/run/", {"action": "verify", "_selected_action": chosen}, follow=True)
    assert "manage.py verify_chain --all" in response.content.decode()


@pytest.mark.parametrize("name", ["viewer", "approver"])
def test_the_admin_is_for_operators(sign_in: Callable[[str], Client], name: str) -> None:
    assert sign_in(name).get("/admin/runs/run/").status_code == 302


@pytest.mark.parametrize(
    "query", ["history=broken", "history=ok", "history=none", "history=diverged", "state=paused", "stage=abel-design"]
)
def test_filters_of_runs(superuser: Client, state_home: Path, query: str) -> None:
    mirror_state_home(state_home)
    assert superuser.get(f"/admin/runs/run/?{query}").status_code == 200
