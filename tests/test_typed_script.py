"""Verdicts of users' type checkers on a script that uses isobatch."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent / "typed_script.py"

WRONG = {
    'policy="grow"': 'policy="grwo"',
    'rule="linear"': 'rulee="linear"',
    "max_micro_batch=16": 'max_micro_batch="16"',
    ".require()\n    data": "\n    data",
}


def test_the_script_runs():
    process = subprocess.run([sys.executable, str(SCRIPT)], capture_output=True, text=True, check=True)
    assert "Cannot train on 7 GPUs as asked" in process.stdout


@pytest.mark.slow
def test_it_is_typed_without_an_assertion_and_slips_are_seen(tmp_path):
    pytest.importorskip("mypy")
    words = [sys.executable, "-m", "mypy", "--strict", *right_and_wrong(tmp_path)]
    output = subprocess.run(words, capture_output=True, text=True, cwd=tmp_path).stdout
    refused = {line.partition(".py")[0] for line in output.splitlines() if ": error:" in line}
    assert refused == {f"wrong{number}" for number in range(len(WRONG))}, output


@pytest.mark.slow
def test_pyright_says_the_same(tmp_path):
    """It runs on a Node that is installed, and would download one otherwise."""
    pytest.importorskip("pyright")
    if shutil.which("node") is None:
        pytest.skip("node is not installed")
    names = right_and_wrong(tmp_path)
    (tmp_path / "pyrightconfig.json").write_text('{"typeCheckingMode": "strict"}')
    words = [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable, *names]
    environment = {**os.environ, "PYRIGHT_PYTHON_IGNORE_WARNINGS": "1"}
    output = subprocess.run(words, capture_output=True, text=True, cwd=tmp_path, env=environment).stdout
    faults = [fault for fault in json.loads(output)["generalDiagnostics"] if fault["severity"] == "error"]
    refused = {Path(fault["file"]).stem for fault in faults}
    assert refused == {f"wrong{number}" for number in range(len(WRONG))}, output


def right_and_wrong(folder):
    """Writes the script, and with each slip, and returns the files' names."""
    text = SCRIPT.read_text()
    (folder / "right.py").write_text(text)
    for number, (right, wrong) in enumerate(WRONG.items()):
        assert right in text
        (folder / f"wrong{number}.py").write_text(text.replace(right, wrong))
    return sorted(path.name for path in folder.iterdir())
