"""Four eyes: several must approve, nobody their own, one denial denies."""

import html
import re
from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.auth.models import Group, User
from django.core.exceptions import ValidationError
from django.db import IntegrityError, connection
from django.test import Client
from django.urls import reverse

from approvals.adapter import Adapter
from approvals.conformance import FAR, approval
from approvals.decisions import DecisionError, decide, shown_of, token_of
from approvals.models import Approval as ApprovalRow
from approvals.models import Decision
from approvals.records import Approval
from approvals.tables import RECORDS
from cadence_admin.models import ApprovalPolicy, OwnedPrincipal, TenantAccess
from cadence_admin.policies import Policies, Rule, policies
from tests.runs.threads import in_threads

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("empty_tables")]


def text_of(response: Any) -> str:
    return html.unescape(re.sub(r"\s+", " ", re.sub(r"<[^>]+>", "", response.content.decode())))


@pytest.fixture
def people(accounts: dict[str, User]) -> list[User]:
    """Five approvers."""
    found = []
    for number in range(5):
        user = User.objects.create_user(f"person-{number}")
        user.groups.set([Group.objects.get(name="approver")])
        TenantAccess.objects.create(user=user)
        found.append(user)
    return found


def asked(adapter: Adapter, **values: Any) -> Approval:
    record = approval(**({"expires_at": FAR} | values))
    assert adapter.backend.create("approval", record)
    return record


def approve(user: User, record: Approval) -> Any:
    return decide(user, record.id, "approved", shown=shown_of(record), via="page")


def refusal(call: Callable[[], Any]) -> str:
    with pytest.raises(DecisionError) as error:
        call()
    return error.value.code


def state_of(adapter: Adapter, record: Approval) -> tuple[str, int]:
    found = adapter.approvals.get(record.id)
    assert found is not None
    return found.state, found.version


def test_the_record_changes_with_the_last_of_those_who_are_needed(database: Adapter, people: list[User]) -> None:
    ApprovalPolicy.objects.create(capability="test.*", needed=3)
    record = asked(database)
    for number, person in enumerate(people[:2], start=1):
        answered = approve(person, record)
        assert (answered.votes, answered.needed, answered.again) == (number, 3, False)
        assert state_of(database, record) == ("pending", 1)
        # Twice is still one person.
        assert approve(person, record).again
    last = approve(people[2], record)
    assert (last.votes, last.needed) == (3, 3)
    assert state_of(database, record) == ("approved", 2)
    assert [entry.actor for entry in Decision.objects.order_by("pk")] == ["person-0", "person-1", "person-2"]
    assert approve(people[2], record).again
    assert refusal(lambda: approve(people[3], record)) == "approval-already-decided"


def test_one_denial_denies(database: Adapter, people: list[User]) -> None:
    ApprovalPolicy.objects.create(capability="*", needed=5)
    record = asked(database)
    approve(people[0], record)
    decide(people[1], record.id, "denied", shown=shown_of(record), comment="no", via="page")
    assert state_of(database, record) == ("denied", 2)


def test_of_many_at_once_each_counts_once(database: Adapter, people: list[User]) -> None:
    ApprovalPolicy.objects.create(capability="test.write", needed=4)
    record = asked(database)
    found = in_threads(*[lambda person=person: approve(person, record) for person in people[:4] * 2])
    assert not [answer for answer in found if isinstance(answer, BaseException)], found
    assert state_of(database, record) == ("approved", 2)
    assert sorted(Decision.objects.values_list("actor", flat=True)) == [person.username for person in people[:4]]


def test_approvals_of_what_was_changed_since_do_not_count(database: Adapter, people: list[User]) -> None:
    ApprovalPolicy.objects.create(capability="*", needed=2)
    record = asked(database, target="order:1")
    approve(people[0], record)
    text = str(ApprovalRow.objects.get(id=record.id).payload).replace("order:1", "order:999")
    with connection.cursor() as cursor:
        cursor.execute(f"UPDATE {RECORDS} SET payload = %s WHERE id = %s", [text, record.id])
    changed = database.approvals.get(record.id)
    assert changed is not None
    assert approve(people[1], changed).votes == 1
    assert state_of(database, record)[0] == "pending"
    assert approve(people[0], changed).votes == 2
    assert state_of(database, record)[0] == "approved"


def test_who_may_not_be_among_them(database: Adapter, people: list[User]) -> None:
    policy = ApprovalPolicy.objects.create(capability="*", needed=1)
    authors = Group.objects.create(name="authors")
    policy.excluded.add(authors)
    people[0].groups.add(authors)
    record = asked(database)
    assert refusal(lambda: approve(people[0], record)) == "excluded-by-policy"
    # To deny is always right.
    other = asked(database)
    decide(people[0], other.id, "denied", shown=shown_of(other), comment="no", via="page")
    approve(people[1], record)
    assert state_of(database, record)[0] == "approved"


def test_nobody_decides_what_their_own_principal_asks(database: Adapter, people: list[User]) -> None:
    OwnedPrincipal.objects.create(user=people[0], principal="deploy-bot")
    for principal in ("deploy-bot", "person-0", token_of(people[0])):
        record = asked(database, principal_id=principal)
        for answer in ("approved", "denied"):
            with pytest.raises(DecisionError) as error:
                decide(people[0], record.id, answer, shown=shown_of(record), comment="x", via="page")
            assert error.value.code == "own-request"
        approve(people[1], record)


@pytest.mark.parametrize(
    ("capability", "rule"),
    [
        ("mail.send", Rule()),
        ("infra.delete", Rule(3, frozenset({1, 2}))),
        ("infra.restart", Rule(3, frozenset({1}))),
        ("db.delete", Rule(2, frozenset({2}))),
    ],
)
def test_the_strictest_policy_counts(capability: str, rule: Rule) -> None:
    found = Policies((("infra.*", Rule(3, frozenset({1}))), ("*.delete", Rule(2, frozenset({2})))))
    assert found.rule_for(capability) == rule


@pytest.mark.parametrize("needed", [0, 6])
def test_policies_have_bounds(needed: int) -> None:
    with pytest.raises(ValidationError):
        ApprovalPolicy(capability="*", needed=needed).full_clean()
    with pytest.raises(IntegrityError):
        ApprovalPolicy.objects.create(capability="*", needed=needed)
    assert policies() == Policies(())


def test_the_pages_say_how_many_and_who(database: Adapter, people: list[User]) -> None:
    ApprovalPolicy.objects.create(capability="*", needed=2)
    record = asked(database)
    clients = [Client(), Client()]
    for client, person in zip(clients, people, strict=False):
        client.force_login(person)
    form = {"answer": "approved", "version": 1, "digest": shown_of(record).digest, "seen": "{}", "from": "inbox"}
    assert "0 of 2 approvals" in text_of(clients[0].get("/approvals/"))
    page = reverse("approval", args=[record.id])
    assert "2 different people must approve this. Nobody has yet." in text_of(clients[0].get(page))
    listed = clients[0].post(reverse("decision", args=[record.id]), form, follow=True)
    assert "Approved (1 of 2): Write t" in text_of(listed)
    assert "1 of 2 approvals (person-0)" in text_of(listed)
    assert "you approved" in text_of(listed)
    assert "data-approve" not in listed.content.decode()
    assert "So far: person-0 (1 of 2)" in text_of(clients[1].get(page))
    assert "data-approve" in clients[1].get(page).content.decode()
    clients[1].post(reverse("decision", args=[record.id]), form)
    assert state_of(database, record)[0] == "approved"
    assert "person-0" in text_of(clients[0].get(page))
