"""`scripts/gpu`: the rows of a day with one GPU, and how a day is gone on with."""

import importlib
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="the validator needs torch")

import fakecuda

ROOT = Path(__file__).parents[2]
BENCH = ROOT / "bench"
GPU = dict.fromkeys(["name", "driver_version", "mig.mode.current"], "H100") | {"other_processes": 0}


@pytest.fixture
def day(monkeypatch):
    """`bench/gpu.py` with four short rows."""
    monkeypatch.syspath_prepend(BENCH)
    module = importlib.import_module("gpu")
    rows = [("first", 1, "true"), ("fails", 1, "false"), ("long", 60, "true"), ("last", 1, "true")]
    monkeypatch.setattr(module, "ROWS", tuple(module.Row(*row) for row in rows))
    monkeypatch.setattr(module, "machine", lambda: GPU)
    monkeypatch.delenv(module.BEGUN, raising=False)
    return module


def outcomes(day, folder):
    return {name: result["outcome"] for name, result in day.load(folder).items()}


def test_every_gpu_test_is_in_one_row(monkeypatch):
    monkeypatch.syspath_prepend(BENCH)
    chosen = [
        row.words.split(" tests ")[1] for row in importlib.import_module("gpu").ROWS if " tests " in row.words
    ]
    source = (ROOT / "tests/validate/test_gpu.py").read_text()
    names = [*re.findall(r"^def (test_\w+)", source, re.MULTILINE)]
    names += [f"test_loops_on_a_real_gpu[{kind}]" for kind in ("eager", "compile", "optimizers")]
    for name in names:
        rows = [
            row
            for row in chosen
            if any(all(word in name for word in words.split(" and ")) for words in row.split(" or "))
        ]
        assert len(rows) == 1, name


def test_a_day_goes_on_where_the_last_call_ended(day, tmp_path):
    """A row begins if it fits; one that failed ends nothing, and is played again if wanted."""
    assert day.run([], [tmp_path], seconds=30, again=False) == 3
    assert outcomes(day, tmp_path) == {"first": "done", "fails": "failed", "last": "done"}
    before = day.load(tmp_path)
    assert day.run([], [tmp_path, tmp_path], seconds=90, again=False) == 1
    after = day.load(tmp_path)
    assert after.pop("long")["outcome"] == "done" and after == before
    day.run([], [tmp_path], seconds=90, again=True)
    assert day.load(tmp_path)["fails"] != before["fails"]
    assert day.load(tmp_path)["first"] == before["first"]


def test_a_row_over_its_time_leaves_no_process_and_a_cut_one_comes_again(day, tmp_path, monkeypatch):
    # A child in a session of its own, as torchrun's workers are.
    (tmp_path / "hang.sh").write_text(f"setsid sleep 300 & echo $! > {tmp_path}/child; sleep 300\n")
    rows = [day.Row("hangs", 0.5, f"bash {tmp_path}/hang.sh"), day.Row("cut", 2, f"bash {tmp_path}/hang.sh")]
    monkeypatch.setattr(day, "ROWS", tuple(rows))
    assert day.run([], [tmp_path], seconds=10, again=False) == 3
    assert outcomes(day, tmp_path) == {"hangs": "failed", "cut": "cut"}
    number = int((tmp_path / "child").read_text())
    until = time.monotonic() + 10
    while Path(f"/proc/{number}").exists() and "Z" not in Path(f"/proc/{number}/stat").read_text().split():
        assert time.monotonic() < until
        time.sleep(0.05)
    monkeypatch.setattr(day, "ROWS", (rows[0], day.Row("cut", 2, "true")))
    assert day.run(["cut"], [tmp_path], seconds=20, again=False) == 0


@pytest.mark.parametrize(
    ("state", "why"),
    [
        ({}, "no GPU"),
        (GPU | {"name": "H200"}, "rows of different GPUs"),
        (GPU | {"other_processes": 2}, "shared or divided"),
        (GPU | {"mig.mode.current": "Enabled"}, "shared or divided"),
    ],
)
def test_figures_that_could_mean_anything_are_refused(day, tmp_path, capsys, monkeypatch, state, why):
    day.run(["first"], [tmp_path], seconds=30, again=False)
    assert day.collect(tmp_path, tmp_path / "good") == 0
    assert "| first | done | 1 | " in (tmp_path / "good/day.md").read_text()
    assert json.loads((tmp_path / "good/day.json").read_text()) == day.load(tmp_path)
    monkeypatch.setattr(day, "machine", lambda: state)
    day.run(["last"], [tmp_path], seconds=30, again=False)
    assert day.collect(tmp_path, tmp_path / "bad") == 1
    assert why in capsys.readouterr().err and not (tmp_path / "bad").exists()


ALONE = """
import gpu_parts, torch
from isobatch.validate import Workload
def small():
    net = torch.nn.Linear(4, 1)
    batch = lambda n, generator, device: torch.randn(n, 4, generator=generator).to(device)
    return Workload(net, torch.optim.AdamW, batch, lambda net, x: net(x).square().mean())
gpu_parts.small = small
for _ in range(2):
    print(gpu_parts.bare_loop("small", 2, None)["bare_step_seconds"] > 0)
"""


def test_a_bare_loop_leaves_no_group_and_no_file(tmp_path):
    """Torch deletes a store's file when its group ends: a folder of its own is left alone."""
    env = fakecuda.environment(tmp_path, gpus=1)
    env["PYTHONPATH"] += os.pathsep + str(BENCH)
    ran = subprocess.run([sys.executable, "-c", ALONE], env=env, capture_output=True, text=True, timeout=200)
    assert ran.stdout == "True\nTrue\n", ran.stderr


def test_skipped_tests_alone_have_shown_nothing():
    """Without a GPU all tests of `-m gpu` are skipped."""
    words = [sys.executable, str(BENCH / "gpu_parts.py"), "tests", "one_rank_has_no_wire"]
    ran = subprocess.run(words, capture_output=True, text=True, check=False)
    assert ran.returncode == 1 and "not all passed: {'skipped': " in ran.stderr
