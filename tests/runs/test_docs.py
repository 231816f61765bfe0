"""The run store's example in the README, as it stands there."""

import re
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from runs.models import Run
from tests.runs.stores import ROOT


@pytest.mark.django_db(transaction=True)
def test_the_example_of_the_readme_runs() -> None:
    (code,) = re.findall(r"(?m)^    from runs\.store.*?(?=^## )", Path("README.md").read_text(), re.DOTALL)
    names: dict[str, Any] = {"root_hash": ROOT}
    exec(compile(dedent(code), "README.md", "exec"), names)
    assert Run.objects.get().state == "validating-delivery"
