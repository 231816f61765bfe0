"""The example of docs/durable-records.md, as it stands there."""

import re
from pathlib import Path

from approvals.adapter import Adapter


def test_the_example_runs(database: Adapter) -> None:
    text = Path("docs/durable-records.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    exec(compile(code, "docs/durable-records.md", "exec"), {})
    effect = database.effects.get("effect-2")
    assert effect is not None
    assert effect.state == "committed"
