"""What users' type checkers say of a script that uses isobatch."""

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
    done = subprocess.run([sys.executable, str(SCRIPT)], capture_output=True, text=True, check=True)
    assert "Cannot train on 7 GPUs as asked" in done.stdout


@pytest.mark.slow
def test_it_is_typed_without_an_assertion_and_slips_are_seen(tmp_path):
    pytest.importorskip("mypy")
    text = SCRIPT.read_text()
    (tmp_path / "right.py").write_text(text)
    for number, (right, wrong) in enumerate(WRONG.items()):
        assert right in text
        (tmp_path / f"wrong{number}.py").write_text(text.replace(right, wrong))
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", *sorted(it.name for it in tmp_path.iterdir())],
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    seen = {line.partition(".py")[0] for line in done.stdout.splitlines() if ": error:" in line}
    assert seen == {f"wrong{number}" for number in range(len(WRONG))}, done.stdout
