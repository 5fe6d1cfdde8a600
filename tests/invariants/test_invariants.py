"""A few cases of every law; `scripts/invariants` plays as many as it is given time for."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

import isobatch as ib
from invariants.calls import CALLS, check_calls
from invariants.files import LOADERS, check_files
from invariants.laws import CHECKS, LAWS

ROOT = Path(__file__).parents[2]


def test_every_public_name_has_a_law():
    assert set(LAWS) == set(ib.__all__), "a public name without a law: add it to LAWS"
    for name, laws in LAWS.items():
        assert laws, name
        for law in laws:
            assert law in CHECKS or (ROOT / law).exists(), f"{name}: {law}"


def test_every_public_function_is_called_with_anything():
    functions = {name for name in ib.__all__ if callable(getattr(ib, name)) and name.islower()}
    # One writes folders, one draws, one calls what it is given, one measures the machine, and one takes
    # nothing.
    assert functions - {name.partition(".")[0] for name in CALLS} == {
        "plan_files",
        "plot",
        "memory_of",
        "same",
        "same_model",
        "probe",
        "rules",
    }


@pytest.mark.parametrize("name", [name for name in CHECKS if name not in ("files", "calls")])
def test_a_law(name, tmp_path):
    check = CHECKS[name]
    for seed in range(2):
        assert check.run(seed, check.few, tmp_path) > 0


@pytest.mark.parametrize("kind", LOADERS)
def test_any_file_loads_checked_or_is_refused(kind, tmp_path):
    files = 40 if kind == "recipe.yaml" else 300
    assert check_files(1, files, tmp_path, (kind,)) == files


@pytest.mark.parametrize("name", CALLS)
def test_any_argument_is_used_or_refused(name):
    assert check_calls(1, 60, (name,)) == 60


HASH = """
import hashlib, sys
import isobatch as ib
from invariants.rows import planned

for seed in range(2):
    found, *_ = planned(seed, 1 << 16)
    for name in sorted(found):
        print(seed, name, hashlib.sha256(found[name].tobytes()).hexdigest())
"""


def test_one_thread_plans_what_many_plan():
    def hashes(threads):
        environment = os.environ | {"RAYON_NUM_THREADS": threads, "PYTHONPATH": str(ROOT / "tests")}
        process = subprocess.run(
            [sys.executable, "-c", HASH], env=environment, capture_output=True, text=True, check=True
        )
        return process.stdout

    assert hashes("1") == hashes("5") != ""


def test_an_array_that_no_machine_holds_is_refused():
    plan = ib.plan(ib.Recipe(effective_batch=2**31 - 1, lr=0.1), 1, max_micro_batch=1)
    with pytest.raises(ib.InputError, match="accumulation must be at most"):
        plan.micro_batches(0)


def test_a_long_text_is_read_in_time_by_its_length():
    started = time.process_time()
    ib.Recipe(
        effective_batch=8,
        lr=0.1,
        duration="9ep",
        dataset_size=9,
        schedule=f"multistep({'1ep, ' * 20_000}2ep)",
    )
    assert time.process_time() - started < 5
