"""A rule, a column, a law and a tool, typed in a copy by the rows of CONTRIBUTING.md.

The copy is built and works, and a check or a test names each place that is left out. For a tool in a package
of its own see tests/tools/test_installed.py.
"""

import csv
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parent.parent
TARGET = ROOT / "target" / "additions"
"""The dependencies are compiled once, and the copy lies where it lay in the last run."""
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        sys.platform != "linux" or not shutil.which("cargo"), reason="builds by cargo on Linux"
    ),
    pytest.mark.skipif(not (ROOT / ".git").exists(), reason="copies what git tracks"),
]
(MYTRAINER,) = [
    re.sub(r"    keys=Keys\(.*\n", "", block)
    for block in re.findall(r"```python\n(.*?)```", (ROOT / "docs/tools.md").read_text(), re.DOTALL)
    if "MYTRAINER =" in block
]
COMPILES = ("cargo", "check", "--locked", "-p", "isobatch-core")


class Place(NamedTuple):
    """A place of a row, its text and the text before which it comes; the check without it, and its words."""

    file: str
    text: str
    before: str = ""
    check: str | tuple[str, ...] = ()
    words: str = ""


RULE = "rust/core/src/rules/scaling.rs"
SETTINGS = "python/isobatch/planning/settings.py"
UNCOVERED = "Rule::Cbrt` not covered"
DIFFER = "settings.py and the core differ in ['cbrt']"
NAMES = "tests/planning/test_settings.py::test_the_names_in_types_are_those_of_the_core"
ORACLE = "tests/planning/test_oracle.py::test_random_rows_are_the_oracles"
TOOLS = "tests/tools/test_tools.py"
PLACES = {
    "rule's line": Place(
        RULE, '    Cbrt "cbrt" "η\' = ∛k·η" "in a test" ""\n', '    Auto "auto"\n', COMPILES, "Cbrt"
    ),
    "rule's optimizers": Place(RULE, "Rule::Cbrt | ", "Rule::Auto => false", COMPILES, UNCOVERED),
    "rule's formula": Place(
        RULE, "        Rule::Cbrt => k.cbrt(),\n", "        Rule::Power => k.powf", COMPILES, UNCOVERED
    ),
    "rule's name": Place(SETTINGS, '    "cbrt",\n', '    "auto",\n]', NAMES, DIFFER),
    "ramp rule's name": Place(SETTINGS, '"cbrt", ', '"auto"]', NAMES, DIFFER),
    "rule's oracle": Place(
        "tests/reference/rules.py",
        '    if rule == "cbrt":\n        return k ** (1 / 3)\n',
        '    if rule == "power":',
        ORACLE,
        "tests/reference/rules.py knows no rule cbrt",
    ),
    "column's entry": Place(
        "rust/core/src/plan/results.rs",
        """\
            /// samples in a pass over all replicas
            PassSamples pass_samples {
                type: i64, element: I64, moved: last, role: figure,
                row: row.pass_samples, lane: column((l.micro_batch[i] * l.replicas[i]).max(-1.0)),
            }
""",
        "            /// effective batch / tuned effective batch − 1\n",
        COMPILES,
        "no field `pass_samples`",
    ),
    "column's value": Place(
        "rust/core/src/plan/single.rs",
        "    row.pass_samples = as_column(micro_batch * count);\n",
        "    row.batch_change = ",
    ),
    "column's field": Place(
        "python/isobatch/planning/record.py",
        "    pass_samples: int | None = None\n",
        "    batch_change: float",
        (sys.executable, "-c", "import isobatch as ib; ib.Plan"),
        "the core has pass_samples",
    ),
    "column's formula": Place(
        "tests/reference/plan.py",
        '    row["pass_samples"] = row["micro_batch"] * row["data_parallel"]\n',
        '    row["batch_change"] = batch',
        ORACLE,
        "pass_samples is ",
    ),
    "law's row": Place(
        "python/isobatch/equivalence/laws.py",
        '    RANKS_SQUARED = ("ranks_squared", "× ranks²", "take the root", Scale("× ranks²", ranks=2))\n',
        "    # Samples that weigh unlike.",
        "tests/equivalence/test_compare.py::test_ranks_squared",
        "'× ranks²'",
    ),
    "law's fault": Place(
        "tests/equivalence/test_compare.py",
        """\
def test_ranks_squared(comparison):
    assert names(comparison.compare(recording("2x1x4", factor=4.0))) == ["× ranks²"]
    assert comparison.compare(recording("2x1x4")).same


""",
        "def test_all_that_is_measured_and_holds_is_the_same",
        "tests/equivalence/test_laws.py::test_every_law_is_met_by_a_test",
        "no test meets ['ranks_squared'] of python/isobatch/equivalence/laws.py",
    ),
    "tool's file": Place(
        "python/isobatch/tools/mytrainer.py", MYTRAINER, "", TOOLS, "isobatch.tools.mytrainer"
    ),
    "tool's line": Place(
        "python/isobatch/tools/detect.py",
        '    "mytrainer": Keys("images_per_gpu base_lr", common="accumulate max_iter"),\n',
        '    "hyperpod": Keys',
        TOOLS,
        "TOOLS in tools/detect.py and the records differ in {('mytrainer', 'mytrainer')}",
    ),
    "tool's document": Place(
        "docs/tools.md",
        "| `mytrainer` | 1 to 2 | YAML | YAML, JSON |\n",
        "| `hyperpod` |",
        TOOLS,
        "the rows of docs/tools.md and TOOLS differ in {'mytrainer'}",
    ),
}
GENERATED = {"planning.md", "fleet.md", "laws.md", "tools.md", "plan.schema.json"}
"""Made by the scripts of tables and schemas, from what is added here."""


def run(checkout, *words):
    """Runs a command in the copy, by the copy's package, and returns how it ended."""
    environment = {**os.environ, "PYTHONPATH": str(checkout / "python"), "PYO3_PYTHON": sys.executable}
    return subprocess.run(
        words,
        cwd=checkout,
        env=environment | {"CARGO_TARGET_DIR": str(TARGET)},
        capture_output=True,
        text=True,
    )


def output_of(checkout, *words):
    """Runs a command that must succeed, and returns what it printed."""
    process = run(checkout, *words)
    assert process.returncode == 0, process.stdout + process.stderr
    return process.stdout + process.stderr


ISOBATCH = (sys.executable, "-m", "isobatch")
PYTEST = (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider")


def write(checkout, place, *, omit=False):
    """Types a place, or takes it out again."""
    path = checkout / place.file
    if not place.before:
        path.unlink() if omit else path.write_text(place.text)
        return
    text, whole = path.read_text(), place.text + place.before
    old, new = (whole, place.before) if omit else (place.before, whole)
    assert text.count(old) == 1, f"{place.file} has {old!r} {text.count(old)} times"
    path.write_text(text.replace(old, new))


@pytest.fixture(scope="module")
def checkout():
    """A copy of the checkout with all additions, built, its tables and schemas written."""
    copy = TARGET / os.environ.get("PYTEST_XDIST_WORKER", "checkout")
    shutil.rmtree(copy, ignore_errors=True)
    files = output_of(ROOT, "git", "ls-files", "-z")
    # Not this file: a test that names the law would meet it.
    for file in {*files.split("\0")} - {"", "tests/test_additions.py"}:
        (copy / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / file, copy / file)
    for place in PLACES.values():
        write(copy, place)
    output_of(copy, "cargo", "build", "--locked", "--profile", "thin", "-p", "isobatch-py")
    shutil.copy(TARGET / "thin/lib_core.so", copy / "python/isobatch/_core.abi3.so")
    stale = [
        run(copy, sys.executable, f"scripts/{name}.py", "--check").stderr for name in ("tables", "schemas")
    ]
    assert {file for file in GENERATED if file in "".join(stale)} == GENERATED
    for name in ("tables", "schemas"):
        output_of(copy, sys.executable, f"scripts/{name}.py")
    yield copy
    shutil.rmtree(copy)


def test_nothing_is_missing_with_all_places(checkout):
    laws = (f"tests/equivalence/test_{name}.py" for name in ("compare", "laws"))
    output_of(checkout, *PYTEST, "tests/test_guards.py", TOOLS, NAMES, ORACLE, *laws)


def test_a_rule_gives_its_rate(checkout):
    fields = ["--set", "effective_batch=64", "--set", "lr=0.1"]
    words = ["plan", *fields, "--gpus", "8", "--policy", "512", "--rule", "cbrt", "--json"]
    plan = json.loads(output_of(checkout, *ISOBATCH, *words))
    assert (plan["rule"], plan["lr"]) == ("cbrt", pytest.approx(0.2))


def test_a_column_comes_out_of_a_fleet(checkout, tmp_path):
    files = ["examples/jobs.csv", "examples/clusters.csv", "-o", str(tmp_path / "plans.csv")]
    names = "status,micro_batch,data_parallel,pass_samples"
    output_of(checkout, *ISOBATCH, "fleet", *files, "--columns", names)
    with (tmp_path / "plans.csv").open() as file:
        rows = [*csv.DictReader(file)]
    assert {"ok", "infeasible"} < {row["status"] for row in rows}
    for row in rows:
        feasible = row["micro_batch"] != ""
        expected = int(row["micro_batch"]) * int(row["data_parallel"]) if feasible else ""
        assert row["pass_samples"] == str(expected)


def test_a_law_is_on_the_page_of_laws(checkout):
    assert "- **× ranks²** (`ranks_squared`): take the root" in (checkout / "docs/laws.md").read_text()


def test_a_tool_is_detected_read_and_written(checkout, tmp_path):
    file = tmp_path / "train.yaml"
    file.write_text("images_per_gpu: 4\nbase_lr: 0.1\nmax_iter: 90\n")
    words = ["plan", "--from", str(file), "--set", "gpus=8", "--gpus", "4", "--to", "mytrainer"]
    moved = output_of(checkout, *ISOBATCH, *words)
    assert "read as My Trainer" in moved and "\naccumulate: 2  # was 1\n" in moved


@pytest.mark.parametrize("name", [name for name, place in PLACES.items() if place.check])
def test_a_place_that_is_left_out_is_named(checkout, name):
    place = PLACES[name]
    write(checkout, place, omit=True)
    try:
        process = run(checkout, *((*PYTEST, place.check) if isinstance(place.check, str) else place.check))
    finally:
        write(checkout, place)
    assert process.returncode != 0
    assert place.words in process.stdout + process.stderr
