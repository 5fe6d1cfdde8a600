"""`bench/gpu.py`, what one GPU is asked.

Its time, what it leaves behind, where it goes on, and that no figure is published that could mean anything.
"""

import ast
import importlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="the validator needs torch")

import fakecuda

ROOT = Path(__file__).parents[2]
BENCH = ROOT / "bench"


@pytest.fixture
def day(monkeypatch):
    monkeypatch.syspath_prepend(BENCH)
    return importlib.import_module("gpu")


def machine(**given):
    found = {
        "device": "NVIDIA H100 80GB HBM3",
        "torch": "2.15.0",
        "driver": "570.86.15",
        "clocks": {"sm_mhz": 1755, "sm_max_mhz": 1980},
        "power": {"now_w": 110.0, "limit_w": 700.0},
        "mig": False,
        "other_processes": 0,
    }
    return {name: value for name, value in (found | given).items() if value != "left out"}


def write(folder, *, rehearsal=False, faults=(), **given):
    """A day of three parts, the machine of the last one as given."""
    row = {"outcome": "done", "seconds": 12.0, "machine": machine(), "figures": {"ratio": 1.0, "says": "no"}}
    parts = {
        "faults": {"hangs": row | {"figures": {"wrong": [*faults]}}},
        "facts": {"machine": row},
        "search": {"gpt2": row | {"machine": machine(**given)}},
    }
    folder.mkdir()
    (folder / "day.json").write_text(json.dumps({"rehearsal": rehearsal, "parts": parts}))


def test_every_part_is_a_function_whose_rows_fit_a_command(day):
    tree = ast.parse((BENCH / "gpu_parts.py").read_text())
    functions = [it.name for it in tree.body if isinstance(it, ast.FunctionDef)]
    assert sorted(functions) == sorted(day.PARTS)
    assert all(part.seconds + day.LEAVE_SECONDS < 560 for part in day.PARTS.values())
    assert "test_one_rank_has_no_wire" in day.PARTS["tests"].rows


def test_all_of_the_day_is_small_enough_to_be_read():
    assert sum(len(file.read_text().splitlines()) for file in BENCH.glob("gpu*.py")) <= 930


# ---- what may be published ----


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
    write(tmp_path / "in", **given)
    assert day.collect(tmp_path / "in", tmp_path / "out") == 1
    assert why in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_page_of_good_records(day, tmp_path):
    write(tmp_path / "in", faults=["hangs: nobody | was named"])
    assert day.collect(tmp_path / "in", tmp_path / "out") == 0
    page = (tmp_path / "out" / "README.md").read_text()
    assert "H100 80GB HBM3, driver 570.86.15" in page
    rows = [line for line in page.splitlines() if line.startswith("| ")][1:]
    assert [row.split(" | ")[0] for row in rows] == ["| facts", "| search", "| faults"]
    assert "| ratio 1 |" in rows[1] and "nobody / was named" in rows[2]
    assert "**Unfinished**; not run: starts (command, torchrun, python); guards (plain, " in page
    assert "; calibration (gpt2, convnet); faults (killed, out_of_memory, asserts); tests (" in page
    found = day.load(tmp_path / "out")
    assert found == day.load(tmp_path / "in")
    row = found["parts"]["facts"]["machine"]
    assert "Unfinished" not in day.page(
        {name: dict.fromkeys(day.PARTS[name].rows, row) for name in day.PARTS}
    )
    assert day.collect(tmp_path / "none", tmp_path / "out") == 2


# ---- a run: its time, what it leaves behind, where it goes on ----

STAND_INS = """
import os, subprocess, sys, time
def played(row):
    with open(os.environ["PLAYED"], "a") as file:
        file.write(row + " ")
    if row == os.environ.get("HANGS"):
        sleep = "import time; time.sleep(600)"  # in a session of its own, as torchrun's workers
        subprocess.Popen([sys.executable, "-c", sleep], start_new_session=True)
        open(os.environ["PLAYED"] + ".hangs", "w").close()
        time.sleep(600)
    if row == "capturable":
        raise ValueError("no CUDA")
    if row == "fused":
        os._exit(7)
    return {"wrong": ["no complaint"] if row == "wrong loss" else []}
facts = starts = guards = prediction = survive = calibration = search = faults = tests = played
"""


class Copy:
    """The day with other parts, which take no time."""

    def __init__(self, folder):
        self.folder, self.out, self.copy = folder, folder / "out", folder / "copy"
        (folder / "bench").mkdir()
        (folder / "tests" / "validate").mkdir(parents=True)
        for name in ("gpu.py", "gpu_tools.py"):
            shutil.copy(BENCH / name, folder / "bench")
        shutil.copy(ROOT / "tests/validate/test_gpu.py", folder / "tests/validate")
        (folder / "bench" / "gpu_parts.py").write_text(STAND_INS)

    def start(self, *words, hangs=""):
        command = [sys.executable, str(self.folder / "bench/gpu.py"), "run", "--out", str(self.out), *words]
        env = {**os.environ, "PLAYED": str(self.folder / "played"), "HANGS": hangs}
        return subprocess.Popen(
            [*command, "--copy", str(self.copy)], env=env, stdout=subprocess.PIPE, text=True
        )

    def run(self, *words, **more):
        process = self.start(*words, **more)
        said = process.communicate(timeout=100)[0]
        return process.returncode, said

    def played(self):
        file = self.folder / "played"
        rows = file.read_text() if file.exists() else ""
        file.unlink(missing_ok=True)
        return rows

    def rows(self, part):
        return json.loads((self.out / "day.json").read_text())["parts"][part]

    def processes(self):
        """Everything that was started below the folder and is still there."""
        found = []
        for place in Path("/proc").glob("[0-9]*"):
            try:
                if f"PLAYED={self.folder}".encode() in (place / "environ").read_bytes():
                    found.append(int(place.name))
            except OSError:
                pass
        return found


@pytest.fixture
def copy(tmp_path):
    made = Copy(tmp_path)
    yield made
    for left in made.processes():
        os.kill(left, signal.SIGKILL)


def test_a_run_goes_on_where_the_last_one_ended(copy):
    # starts asks for 90 s a row: only facts fits.
    code, said = copy.run("facts", "starts", "--seconds", "80")
    assert (code, copy.played()) == (3, "machine ")
    assert "3 rows are left: give the same command again" in said
    assert copy.run("facts", "starts")[0] == 0
    assert copy.played() == "command torchrun python "
    assert copy.run("facts", "starts") == (0, "")
    assert copy.run("facts", "--again")[0] == 0
    assert copy.played() == "machine "
    assert (copy.copy / "day.json").read_bytes() == (copy.out / "day.json").read_bytes()


def test_a_row_that_fails_dies_or_is_wrong_is_said_and_the_others_are_played(copy):
    code, said = copy.run("guards")
    found = copy.rows("guards")
    assert code == 1
    assert {row: one["outcome"] for row, one in found.items() if one["outcome"] != "done"} == {
        "fused": "failed",
        "capturable": "failed",
        "wrong loss": "wrong",
    }
    assert (found["fused"]["error"], found["capturable"]["error"]) == (
        "died with exit code 7",
        "ValueError: no CUDA",
    )
    assert "no complaint" in said
    assert copy.run("guards")[0] == 1
    assert len(copy.played().split()) == 9  # each once: some have two words


def test_a_row_over_its_limit_is_ended_with_all_that_it_started(copy):
    text = (copy.folder / "bench/gpu.py").read_text()
    (copy.folder / "bench/gpu.py").write_text(text.replace('"starts": Part(90', '"starts": Part(4'))
    assert copy.run("starts", hangs="torchrun")[0] == 1
    assert {row: one.get("error") for row, one in copy.rows("starts").items()} == {
        "command": None,
        "torchrun": "over its limit of 4 s",
        "python": None,
    }
    assert copy.processes() == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_nothing_is_left_running_when_a_command_is_killed(copy, number):
    process = copy.start("facts", "starts", hangs="torchrun")
    until = time.monotonic() + 60
    while not (copy.folder / "played.hangs").exists():
        assert time.monotonic() < until
        time.sleep(0.05)
    assert (
        len(copy.processes()) == 4
    )  # the command and its guard, the row, and what that started in another session
    process.send_signal(number)
    process.communicate(timeout=10)
    until = time.monotonic() + 10
    while copy.processes() and time.monotonic() < until:
        time.sleep(0.05)
    assert copy.processes() == []
    # What was done before is there.
    assert [*copy.rows("facts")] == ["machine"] and [*copy.rows("starts")] == ["command"]
    copy.played()
    assert copy.run("facts", "starts")[0] == 0
    assert copy.played() == "torchrun python "


MACHINE = """
import contexts, gpu_tools, sys
at = gpu_tools.machine()
print(at["device"], at["other_processes"], contexts.read(0), "torch" in sys.modules)
"""
ALONE = (
    "import gc, gpu_loops\nfor _ in range(2):\n    with gpu_loops.alone():\n        "
    "gc.collect()\nprint('left')"
)


@pytest.mark.parametrize(
    ("code", "says"),
    [(MACHINE, "NVIDIA H100 80GB HBM3 0 {} False\n"), (ALONE, "left\n")],
    ids=["machine", "alone"],
)
def test_what_rows_share_leaves_nothing_on_the_gpu_and_no_file(tmp_path, code, says):
    """A context of whoever reads the machine would be the other process on the GPU.

    Torch deletes the file of a group's store.
    """
    env = fakecuda.environment(tmp_path, gpus=1)
    env["PYTHONPATH"] += os.pathsep + str(BENCH)
    words = [sys.executable, "-c", code]
    done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=200)
    assert done.stdout == says, done.stderr


def test_a_rehearsals_records_are_not_gone_on_with(copy):
    assert copy.run("facts", "--small")[0] == 0
    assert copy.run("facts")[0] == 1
    assert copy.rows("facts").keys() == {"machine"}


@pytest.mark.slow
@pytest.mark.timeout(4000)
def test_the_whole_day_on_a_gpu_that_is_made_up(day, tmp_path):
    """Every row at a small size, and by the branches of the real one, in as many commands as it takes."""
    env = fakecuda.environment(tmp_path, gpus=1, mib=4000, FAKE_SLEEP_MAX="100")
    command = [sys.executable, str(BENCH / "gpu.py"), "run", "--small", "--out", str(tmp_path / "out")]
    code, said = 3, []
    while code == 3:
        begun = time.monotonic()
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
        code = done.returncode
        said.append(done.stdout + done.stderr)
        assert time.monotonic() - begun < 565
    found = day.load(tmp_path / "out")["parts"]
    rows = {(part, row): found[part].get(row) for part in day.PARTS for row in day.PARTS[part].rows}
    wrong = [name for name, row in rows.items() if (row or {}).get("outcome") != "done"]
    assert (code, wrong) == (0, []), "".join(said)
    assert [row["machine"]["other_processes"] for row in rows.values()] == [0] * len(rows)
    assert day.collect(tmp_path / "out", tmp_path / "published") == 1  # a rehearsal
