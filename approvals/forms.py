"""What the forms of these pages understand."""

from typing import Any

from django import forms
from django.http import QueryDict

from approvals.decisions import LONGEST_COMMENT, Shown
from approvals.queries import APPROVAL_VIEWS, ApprovalFilter
from approvals.records import DECISIONS
from cadence_admin.javascript import MAX_SAFE_INTEGER


class InboxForm(forms.Form):
    """The filter of the inbox as it stands in the URL."""

    show = forms.ChoiceField(required=False, choices=[(name, name) for name in APPROVAL_VIEWS])
    q = forms.CharField(required=False, max_length=255, strip=True)
    tenant = forms.CharField(required=False, max_length=255)
    capability = forms.CharField(required=False, max_length=255)
    principal = forms.CharField(required=False, max_length=255)

    def __init__(self, data: QueryDict) -> None:
        super().__init__(data, auto_id="filter-%s")
        labels = {
            "q": "Target begins with, or an id",
            "tenant": "Tenant",
            "capability": "Capability",
            "principal": "Who asks",
        }
        for name, label in labels.items():
            widget: Any = self.fields[name].widget
            widget.input_type = "search"
            widget.attrs |= {"placeholder": label, "aria-label": label, "autocapitalize": "none", "autocomplete": "off"}

    def wanted(self, mine: str) -> ApprovalFilter:
        """The filter; call it on a valid form."""
        values = self.cleaned_data
        return ApprovalFilter(
            view=values["show"] or "waiting",
            tenant=values["tenant"],
            capability=values["capability"],
            principal=values["principal"],
            text=values["q"],
            mine=mine,
        )


class DecisionForm(forms.Form):
    """One decision, and what the person saw."""

    answer = forms.ChoiceField(choices=[(name, name) for name in DECISIONS])
    comment = forms.CharField(required=False, max_length=LONGEST_COMMENT)
    typed = forms.CharField(required=False, strip=False)
    version = forms.IntegerField(min_value=1, max_value=MAX_SAFE_INTEGER)
    digest = forms.RegexField(r"^[0-9a-f]{64}\Z")
    seen = forms.CharField(required=False, max_length=500_000, strip=False)

    def shown(self) -> Shown:
        """What the person saw; call it on a valid form."""
        return Shown(self.cleaned_data["version"], self.cleaned_data["digest"])


class SeveralForm(forms.Form):
    """One answer to several approvals; each is named with what the person saw of it."""

    answer = forms.ChoiceField(choices=[(name, name) for name in DECISIONS])
    comment = forms.CharField(required=False, max_length=LONGEST_COMMENT)


class ResolutionForm(forms.Form):
    """What an operator says of an effect or of a step."""

    answer = forms.CharField(max_length=32)
    reason = forms.CharField(required=False, max_length=LONGEST_COMMENT)
    version = forms.IntegerField(min_value=1, max_value=MAX_SAFE_INTEGER)
    effect = forms.CharField(required=False, max_length=1_000, strip=False)
    result = forms.CharField(required=False, max_length=100_000)
    error_code = forms.CharField(required=False, max_length=64)
    seen = forms.CharField(required=False, max_length=500_000, strip=False)
