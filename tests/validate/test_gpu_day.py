"""`bench/gpu.py`, what one GPU is asked: its rehearsal on a CPU, and that no figure is published that could mean anything."""

import importlib
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="the validator needs torch")

ROOT = Path(__file__).parents[2]
FILE = ROOT / "bench" / "gpu.py"


@pytest.fixture(scope="module")
def day():
    spec = importlib.util.spec_from_file_location("gpu_day", FILE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def machine(**given):
    found = {
        "device": "NVIDIA H100 80GB HBM3",
        "torch": "2.15.0",
        "cuda": "13.2",
        "driver": "570.86.15",
        "clocks": {"sm_mhz": 1755, "sm_max_mhz": 1980},
        "power": {"now_w": 110.0, "limit_w": 700.0},
        "mig": False,
        "other_processes": 0,
    }
    return {name: value for name, value in (found | given).items() if value != "left out"}


def record(part="search", *, rehearsal=False, figures=None, **given):
    return {
        "part": part,
        "rehearsal": rehearsal,
        "outcome": "done",
        "seconds": 12.0,
        "machine": machine(**given),
        "figures": figures or {"bias_us": {"bf16": 1.0}},
    }


def test_every_part_is_a_function_with_a_limit(day, monkeypatch):
    monkeypatch.syspath_prepend(FILE.parent)
    parts = importlib.import_module("gpu_parts")
    takes_small = [name for name, it in vars(parts).items() if "small" in getattr(it, "__annotations__", {})]
    assert [*day.PARTS] == takes_small
    # The machine is lent for ten minutes a command.
    assert all(0 < seconds <= 600 for seconds in day.PARTS.values())


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"rehearsal": True}, "a rehearsal"),
        ({"device": "cpu"}, "no GPU was used"),
        ({"driver": "left out"}, "driver is not known"),
        ({"clocks": "left out"}, "clocks is not known"),
        ({"clocks": {"sm_mhz": None, "sm_max_mhz": 1980}}, "clocks is not known"),
        ({"power": "left out"}, "power is not known"),
        ({"mig": None}, "mig is not known"),
        ({"mig": True}, "divided (MIG)"),
        ({"other_processes": None}, "other_processes is not known"),
        ({"other_processes": 2}, "2 other processes"),
    ],
)
def test_figures_that_could_mean_anything_are_refused(day, tmp_path, capsys, given, why):
    (tmp_path / "in").mkdir()
    for one in record("facts"), record(**given):
        (tmp_path / "in" / f"{one['part']}.json").write_text(json.dumps(one))
    assert day.collect(tmp_path / "in", tmp_path / "out") == 1
    assert why in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_page_of_good_records(day, tmp_path):
    (tmp_path / "in").mkdir()
    for one in (
        record("facts"),
        record("search"),
        record("faults", figures={"wrong": ["hangs: nobody | was named"]}),
    ):
        (tmp_path / "in" / f"{one['part']}.json").write_text(json.dumps(one))
    assert day.collect(tmp_path / "in", tmp_path / "out") == 0
    page = (tmp_path / "out" / "README.md").read_text()
    assert "H100 80GB HBM3, driver 570.86.15" in page
    rows = [line for line in page.splitlines() if line.startswith("| [")]
    assert [row.split("]")[0] for row in rows] == ["| [facts", "| [search", "| [faults"]
    assert "bias_us bf16 1" in rows[1] and "nobody / was named" in rows[2]
    assert json.loads((tmp_path / "out" / "facts.json").read_text())["part"] == "facts"
    assert day.collect(tmp_path / "none", tmp_path / "out") == 2


def test_a_part_over_its_limit_leaves_a_record(day, tmp_path, capsys):
    assert day.run(["facts"], tmp_path, small=True, seconds=0.01) == 1
    told = json.loads((tmp_path / "facts.json").read_text())
    assert (told["outcome"], told["error"]) == ("failed", "over its limit of 0.01 s")
    assert "over its limit" in capsys.readouterr().out


def rehearse(folder, *parts):
    words = [sys.executable, str(FILE), "run", *parts, "--small", "--out", str(folder)]
    done = subprocess.run(
        words, cwd=folder, env=dict(os.environ), capture_output=True, text=True, timeout=1500
    )
    return done, {file.stem: json.loads(file.read_text()) for file in folder.glob("*.json")}


@pytest.mark.slow
@pytest.mark.timeout(1600)
def test_the_rehearsal_runs_every_part_whole(day, tmp_path):
    done, found = rehearse(tmp_path)
    assert {part: one["outcome"] for part, one in found.items()} == dict.fromkeys(day.PARTS, "done"), (
        done.stdout
    )
    assert done.returncode == 0
    assert all(one["figures"] for one in found.values())
    assert day.collect(tmp_path, tmp_path / "out") == 1


@pytest.mark.slow
def test_a_part_writes_its_figures_at_once(tmp_path):
    done, found = rehearse(tmp_path, "facts")
    assert found["facts"]["figures"]["build"], done.stdout
    assert found["facts"]["machine"]["device"]
