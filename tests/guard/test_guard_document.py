"""The Python blocks of docs/guard.md run, one after another."""

import re
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="the guard needs torch")

PAGE = (Path(__file__).parents[2] / "docs" / "guard.md").read_text(encoding="utf-8")


def test_the_page_runs():
    blocks = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert blocks
    names = {}
    for block in blocks:
        exec(block, names)


def test_the_page_names_every_attribute_of_the_error():
    from isobatch.guard import Cause, GuardError

    assert [
        name for name in vars(GuardError(0, Cause.NO_STEP, "")) if name[0] != "_" and f"`{name}`" not in PAGE
    ] == []
