"""The pages of approvals, effects and sagas. Ids are any printable characters: `IdConverter` keeps them apart from paths."""

import re

from django.urls import path, register_converter

from approvals import views
from cadence_admin.visible import can_be_sent


class IdConverter:
    """An id in one part of a path: what is not a letter, a digit or one of `._:@$-` is `~` and two hex digits."""

    regex = r"(?:[A-Za-z0-9._:@$-]|~[0-9A-F]{2})+"

    def to_python(self, value: str) -> str:
        found = re.sub(rb"~([0-9A-F]{2})", lambda match: bytes([int(match[1], 16)]), value.encode())
        text = found.decode()  # a ValueError (no UTF-8) is "not found"
        if not can_be_sent(text):
            raise ValueError("no database keeps such an id")
        return text

    def to_url(self, value: str) -> str:
        if not value.strip("."):  # a browser takes those for the way up
            return value.replace(".", "~2E")
        return "".join(
            character
            if re.fullmatch(r"[A-Za-z0-9._:@$-]", character)
            else "".join(f"~{byte:02X}" for byte in character.encode())
            for character in value
        )


register_converter(IdConverter, "id")

urlpatterns = [
    path("approvals/", views.inbox, name="inbox"),
    path("approvals/~waiting/", views.waiting, name="waiting"),
    path("approvals/~decisions/", views.decide_several, name="decide-several"),
    path("approvals/<id:approval_id>/", views.approval, name="approval"),
    path("approvals/<id:approval_id>/decision/", views.decision, name="decision"),
    path("effects/", views.effects, name="effects"),
    path("effects/<id:effect_id>/", views.effect, name="effect"),
    path("effects/<id:effect_id>/resolution/", views.effect_resolution, name="effect-resolution"),
    path("sagas/", views.sagas, name="sagas"),
    path("sagas/<id:saga_id>/", views.saga, name="saga"),
    path("sagas/<id:saga_id>/resolution/", views.saga_resolution, name="saga-resolution"),
]
