"""The Python blocks of docs/schedules.md run, one after another."""

import re
from pathlib import Path


def test_the_page_runs():
    page = (Path(__file__).parents[2] / "docs" / "schedules.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    assert len(blocks) >= 5
    names: dict = {}
    for block in blocks:
        exec(block, names)
