"""What the filter of the run list understands."""

from django import forms
from django.http import QueryDict

from runs.lifecycle import RUN_STATES
from runs.models import StateRoot
from runs.queries import RunFilter
from runs.wording import STAGES


class RunFilterForm(forms.Form):
    """The filter as it stands in the URL."""

    change = forms.CharField(required=False, max_length=128)
    state = forms.ChoiceField(
        required=False, choices=[("", "Any state"), *((name, name.replace("-", " ")) for name in RUN_STATES)]
    )
    stage = forms.ChoiceField(required=False, choices=[("", "Any stage"), *STAGES.items()])
    root = forms.ChoiceField(required=False)
    broken = forms.BooleanField(required=False, label="Only broken")
    expired = forms.BooleanField(required=False, label="Only with an expired lease")

    def __init__(self, data: QueryDict, roots: list[StateRoot]) -> None:
        super().__init__(data, auto_id="filter-%s")
        self._roots = {root.root_hash: root.pk for root in roots}
        root = self.fields["root"]
        assert isinstance(root, forms.ChoiceField)
        root.choices = [("", "Any project"), *((root.root_hash, str(root)) for root in roots)]
        change = self.fields["change"].widget
        change.input_type = "search"
        change.attrs |= {"placeholder": "Change contains", "aria-label": "Change contains"}
        for name in ("state", "stage", "root"):
            self.fields[name].widget.attrs["aria-label"] = name.capitalize()

    def wanted(self) -> RunFilter:
        """The filter; call it on a valid form."""
        values = dict(self.cleaned_data)
        return RunFilter(root_id=self._roots.get(values.pop("root")), **values)
