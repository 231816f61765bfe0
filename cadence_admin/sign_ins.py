"""Enters in the audit log who signed in and out, and who tried to."""

from typing import Any

from django.contrib.auth.models import User
from django.contrib.auth.signals import user_logged_in, user_logged_out, user_login_failed
from django.db import transaction

from cadence_admin.audit import Entry, record


def watch_sign_ins() -> None:
    """Begin to watch. Called once, when the site is ready."""
    user_logged_in.connect(_signed_in)
    user_logged_out.connect(_signed_out)
    user_login_failed.connect(_failed)


def _enter(what: str, name: str, actor: str) -> None:
    with transaction.atomic():
        record(Entry(f"account.{what}", "account", name, actor=actor))


def _signed_in(user: User, **_: Any) -> None:
    _enter("signed-in", user.get_username(), user.get_username())


def _signed_out(user: User | None, **_: Any) -> None:
    if user is not None:
        _enter("signed-out", user.get_username(), user.get_username())


def _failed(credentials: dict[str, Any], **_: Any) -> None:
    _enter("sign-in-failed", str(credentials.get("username", ""))[:150], "nobody")
