"""Each kind of training script, whole, in two processes: the guard raises no false alarm, and names the cause
of each fault.
"""

import importlib
import subprocess
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="the guard needs torch")

from guard.faults import FAULTS
from guard.healthy import SCRIPTS
from guard.injected import FAULTS as INJECTED
from guard.runs import NEEDS, NO_SHARDS, SHARDS_ON_A_CPU, plan_of, run
from isobatch.guard import Cause

QUICK_SCRIPTS = ("plain", "iterable", "nanogpt")
QUICK_KINDS = {
    "sam_by_hand",
    "noise",
    "all_reduce",
    "l2",
    "teacher",
    "generator",
    "curriculum",
    "tokens",
    "swa",
    "gan",
    "reinforce",
    "compiled step",
    "flow",
    "labels",
    "untrained",
    "warms up",
    "augmented",
    "by weights",
    "unfrozen",
    "fetched_ahead",
    "rollouts",
}
SLOW_CAUSES = (
    Cause.ANOTHER_LOSS,
    Cause.ANOTHER_LENGTH,
    Cause.DIVIDED_BY_RANKS,
    Cause.DIVIDED_TWICE,
    Cause.SAMPLES_PADDED,
    Cause.SAMPLES_REPEATED,
    Cause.SCHEDULER_NEVER,
    Cause.SCHEDULER_TOO_EARLY,
)
QUICK_FAULTS = {
    *(
        ("plain", entry.cause)
        for entry in FAULTS
        if entry.script == "plain" and entry.cause not in SLOW_CAUSES
    ),
    ("iterable", Cause.WORKERS_REPEAT),
    ("nanogpt", Cause.SAME_DATA),
    ("nanogpt", Cause.GROUP_STRAYS),
    *(("hf_trainer", cause) for cause in (Cause.SUMMED_LOSS, Cause.RANKS_OWN_UNITS, Cause.SAMPLES_DROPPED)),
    *(("lit", cause) for cause in (Cause.SUMMED_LOSS, Cause.NOT_DISTRIBUTED, Cause.OTHER_WEIGHTS)),
    ("hf_trainer", "summed loss beside the trainers factor"),
    ("accelerated", Cause.SCHEDULER_PER_PROCESS),
    ("loop", Cause.NOT_DIVIDED),
    ("loop", Cause.ANOTHER_LR),
}
"""The others are slow; fully sharded gradients have quick tests of their own in test_guard_wrappers.py."""


def row(entry, name, quick):
    return pytest.param(entry, id=name, marks=() if quick else pytest.mark.slow)


def healthy_row(entry):
    options = entry.options | entry.fields
    name = ", ".join(f"{key}={value}" for key, value in options.items())
    kind = options.get("kind", options.get("loop"))
    quick = kind in QUICK_KINDS or (entry.script in QUICK_SCRIPTS and "compiled" not in options)
    return row(entry, f"{entry.script}: {name}" if name else entry.script, quick)


def fault_row(entry):
    return row(
        entry,
        f"{entry.options.get('kind', entry.script)}: {entry.name}",
        bool({(entry.script, entry.cause), (entry.script, entry.name)} & QUICK_FAULTS),
    )


def need(script):
    if script == "titan" and not SHARDS_ON_A_CPU:
        pytest.skip(NO_SHARDS)
    for module in NEEDS.get(script, ()):
        pytest.importorskip(module, reason="the script uses it")


def begin(texts, expected):
    """Whether each text begins as expected, and none is left."""
    assert len(texts) == len(expected), texts
    assert [text for text, start in zip(texts, expected, strict=True) if not text.startswith(start)] == []


@pytest.mark.parametrize("healthy", map(healthy_row, SCRIPTS))
def test_a_script_as_people_write_it_goes_through(two, healthy):
    need(healthy.script)
    plan = plan_of(healthy.script, **healthy.fields)
    for error, unchecked, notes in two(run, healthy.script, plan.to_json(), healthy.options):
        assert error is None, str(error)
        begin(unchecked, healthy.unchecked)
        begin(notes, healthy.notes)


@pytest.mark.parametrize("fault", map(fault_row, FAULTS))
def test_a_fault_is_named(two, fault):
    need(fault.script)
    plan = plan_of(fault.script, **fault.fields)
    errors = [outcome.error for outcome in two(run, fault.script, plan.to_json(), fault.options, fault.name)]
    assert fault.named_by(errors), [str(error) for error in errors]


@pytest.fixture
def bench(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "bench")
    return importlib.import_module("guard_faults")


def test_a_run_of_the_tables_goes_on_with_good_rows_of_its_own_version(bench, tmp_path):
    part, played = tmp_path / "guard.md.part", []

    def play(version, good):
        def row(_, entry):
            played.append(entry)
            return entry in good, f"{entry} in {version}"

        return bench.rows(None, ["a", "b"], row, part, bench.resume(part, version))

    assert play("1", good="a") == [(True, "a in 1"), (False, "b in 1")]
    assert play("1", good="ab") == [(True, "a in 1"), (True, "b in 1")]
    assert play("1 dirty", good="ab") == [(True, "a in 1 dirty"), (True, "b in 1 dirty")]
    assert played == [*"ab", *"b", *"ab"]


def test_the_version_of_a_work_tree_is_its_commit_and_its_changes(bench, tmp_path):
    def git(*words):
        command = ["git", "-c", "user.name=n", "-c", "user.email=e", *words]
        return subprocess.check_output(command, cwd=tmp_path, text=True).strip()

    git("init", "-q")
    file, versions = tmp_path / "guard.py", []
    for text in ("1", "2", "3"):
        file.write_text(text)
        if text == "1":
            git("add", ".")
            git("commit", "-qm", "first")
        versions.append(bench.version(tmp_path))
    commit = git("rev-parse", "HEAD")
    assert versions[0] == commit
    assert all(version.startswith(f"{commit} dirty ") for version in versions[1:])
    assert versions[1] != versions[2]


def test_the_table_is_whole():
    assert len(FAULTS) >= 72
    assert len({(fault.script, fault.name, fault.options.get("kind")) for fault in FAULTS}) == len(FAULTS)
    assert {fault.name for fault in FAULTS} == set(INJECTED)
    assert {quick for _, quick in QUICK_FAULTS} <= {
        part for fault in FAULTS for part in (fault.cause, fault.name)
    }
