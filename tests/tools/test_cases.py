"""Settings as people wrote them, each with the answer of its tool or its published log (cases.toml)."""

import re
import tomllib
from pathlib import Path

import pytest

HERE = Path(__file__).parent
CASES = tomllib.loads((HERE / "cases.toml").read_text(encoding="utf-8"))["case"]


@pytest.mark.parametrize(
    "case", CASES, ids=[f"{case['folder']}: {case['command'].split()[0]}" for case in CASES]
)
def test_a_case(case, monkeypatch, capsys):
    from isobatch.cli import main

    monkeypatch.chdir(HERE / "cases" / case["folder"])
    code = main(case["command"].split())
    output = "".join(capsys.readouterr())
    assert code == case.get("code", code), output
    for pattern in case.get("says", []):
        assert re.search(pattern, output), f"not said: {pattern}\n{output}"
    for pattern in case.get("never", []):
        assert not re.search(pattern, output, re.MULTILINE), f"said: {pattern}\n{output}"


def test_each_folder_has_a_case():
    assert {path.name for path in (HERE / "cases").iterdir()} == {case["folder"] for case in CASES}
