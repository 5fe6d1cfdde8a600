"""`bench/gpu.py`: a quarter of an hour on one GPU, its rows, what a call leaves behind, and the page."""

import ast
import contextlib
import importlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="the validator needs torch")

import fakecuda

ROOT = Path(__file__).parents[2]
BENCH = ROOT / "bench"


@pytest.fixture
def module(monkeypatch):
    """`module("gpu_rows")` imports a file of bench/."""
    monkeypatch.syspath_prepend(BENCH)
    return importlib.import_module


@pytest.fixture
def rows(module):
    return module("gpu_rows")


MACHINE = {
    "device": "NVIDIA H100 80GB HBM3",
    "torch": "2.11.0",
    "python": "3.12.3",
    "cores": 16,
    "driver": "580.159.04",
    "clocks": {"sm_mhz": 1755, "sm_max_mhz": 1980},
    "power": {"now_w": 110.0, "limit_w": 700.0},
    "mig": False,
    "other_processes": 0,
}


def write(folder, *, rehearsal=None, wrong=(), **last):
    """Writes a day of three rows; `last` is of the machine of the last one, where None leaves a fact out."""
    machine = {name: value for name, value in (MACHINE | last).items() if value is not None}
    figures = {"ratio": 1.0, "says": "no"}
    result = {"outcome": "done", "seconds": 12.0, "machine": MACHINE, "figures": figures}
    parts = {
        "faults": {"hangs": result | {"figures": {"wrong": [*wrong]}}},
        "facts": {"machine": result},
        "search": {"gpt2": result | {"machine": machine}},
    }
    folder.mkdir(parents=True)
    day = {"rehearsal": rehearsal, "calls": [{"seconds": 540.0, "used": 36.0}], "parts": parts}
    (folder / "day.json").write_text(json.dumps(day))


def is_selected(name, expression):
    """Whether pytest's -k expression selects a test's name."""
    return any(all(word in name for word in words.split(" and ")) for words in expression.split(" or "))


# ---- the rows ----


def test_every_part_is_a_function_and_every_gpu_test_is_in_a_row(rows):
    tree = ast.parse((BENCH / "gpu_parts.py").read_text())
    functions = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    assert functions >= {*rows.PARTS}
    assert all(row.expected < row.limit <= rows.CALLS[0] - rows.LEAVE_SECONDS for row in rows.ROWS)
    source = (ROOT / "tests/validate/test_gpu.py").read_text()
    names = [*re.findall(r"^def (test_\w+)", source, re.MULTILINE)]
    names += [f"test_loops_on_a_real_gpu[{kind}]" for kind in ("eager", "compile", "optimizers")]
    chosen = [row.name for row in rows.ROWS if row.part == "tests"]
    for name in names:
        assert len([row for row in chosen if is_selected(name, row)]) == 1, name


def test_two_calls_fit_into_a_quarter_of_an_hour(rows):
    # At most two minutes for the machine's start, half a minute idle between the calls.
    assert sum(rows.CALLS) + 120 + 30 <= 900


def done(seconds, outcome="done"):
    return {"outcome": outcome, "seconds": seconds}


def test_a_row_begins_where_its_expected_seconds_fit(rows):
    long, short = rows.Row("same", "long", 60, 150), rows.Row("cores", "short", 10, 60)
    assert rows.next_row([long, short], {}, 60) == long
    assert rows.next_row([long, short], {}, 59) == short
    assert rows.next_row([long, short], {}, 9) is None


def test_a_parts_measured_median_decides_once_it_is_known(rows):
    numbers = {row.name: row.expected for row in rows.ROWS if row.part == "faults"}
    parts = {"faults": {"killed": done(2 * numbers["killed"])}}
    hangs = next(row for row in rows.ROWS if row.name == "hangs")
    assert rows.expected_seconds(hangs, {}) == numbers["hangs"]
    assert rows.expected_seconds(hangs, parts) == 2 * numbers["hangs"]
    # Rows that failed at once or were cut short say nothing of the pace.
    parts["faults"] |= {"asserts": done(1.0, "failed"), "out_of_memory": done(1.0, "cut")}
    assert rows.expected_seconds(hangs, parts) == 2 * numbers["hangs"]
    assert rows.next_row([hangs], parts, 2 * numbers["hangs"] - 1) is None


def play(rows, waiting, seconds, **took):
    """Plays rows that take so long, and returns their outcomes, their limits, and the seconds left."""
    limits = {}

    def play_row(row, limit):
        nonlocal seconds
        limits[row.name] = limit
        seconds -= min(took[row.name], limit)
        return done(min(took[row.name], limit), "done" if took[row.name] <= limit else "over its limit")

    played = rows.play_rows(waiting, {}, lambda: seconds, play_row)
    return {row.name: result["outcome"] for row, result in played}, limits, seconds


def test_a_rows_limit_is_cut_to_the_rest_of_the_call(rows):
    first, second = rows.Row("search", "first", 10, 100), rows.Row("bits", "second", 20, 100)
    outcomes = {"first": "done", "second": "cut"}
    limits = {"first": 100, "second": 40}
    assert play(rows, [first, second], 130, first=90, second=60) == (outcomes, limits, 0)
    # A row over its own limit is not merely cut.
    assert play(rows, [first], 500, first=101)[0] == {"first": "failed"}


def test_a_cut_row_is_played_again_and_a_failed_one_if_wanted(rows):
    played = {row: done(1.0) for row in rows.ROWS}
    outcomes = {"killed": "cut", "hangs": "failed", "out_of_memory": "wrong"}
    parts = {}
    for row, result in played.items():
        parts.setdefault(row.part, {})[row.name] = result | {"outcome": outcomes.get(row.name, "done")}
    parts["survive"]["killed"]["outcome"] = "done"
    assert [row.name for row in rows.rows_left(parts)] == ["killed"]
    assert [row.name for row in rows.rows_left(parts, again=True)] == ["out_of_memory", "killed", "hangs"]


@pytest.mark.parametrize("scale", [0.7, 1.0, 1.4])
def test_the_simulated_day_plays_what_matters_most_and_is_hardly_idle(rows, scale):
    parts = {}
    (first, idle), (second, rest) = rows.simulate(scale, parts)
    played = [*first, *second]
    most = rows.ROWS[: rows.ROWS.index(next(row for row in rows.ROWS if row.part == "survive"))]
    assert {*most} <= {*played}, [row for row in most if row not in played]
    assert len(played) == len({*played})
    shortest = min((rows.expected_seconds(row, parts) for row in rows.rows_left(parts)), default=0)
    assert idle <= 15 and rest <= max(15, shortest)
    assert sum(scale * row.expected for row in first) + idle <= rows.CALLS[0]


def test_the_page_has_the_simulation_of_todays_rows(module, capsys):
    module("gpu_page").print_simulation()
    assert capsys.readouterr().out in (BENCH / "results/gpu/README.md").read_text()


# ---- what may be published ----


@pytest.mark.parametrize(
    ("facts", "why"),
    [
        ({"rehearsal": "a rehearsal on a made-up GPU"}, "a rehearsal"),
        ({"device": "cpu"}, "no GPU was used"),
        ({"device": "NVIDIA H200"}, "rows of different GPUs: "),
        *(
            ({name: None}, f"{name} is not known")
            for name in ["driver", "clocks", "power", "mig", "other_processes"]
        ),
        ({"clocks": {"sm_mhz": None, "sm_max_mhz": 1980}}, "clocks is not known"),
        ({"mig": True}, "divided (MIG)"),
        ({"other_processes": 2}, "2 other processes"),
    ],
)
def test_figures_that_could_mean_anything_are_refused(module, tmp_path, capsys, facts, why):
    write(tmp_path / "in", **facts)
    assert module("gpu").collect(tmp_path / "in", tmp_path / "out") == 1
    assert why in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_page_of_good_records(module, rows, tmp_path):
    day, page = module("gpu"), module("gpu_page")
    write(tmp_path / "in", wrong=["hangs: nobody | was named"])
    (tmp_path / "out").mkdir()
    text = (BENCH / "results/gpu/README.md").read_text()
    (tmp_path / "out/README.md").write_text(text)
    assert day.collect(tmp_path / "in", tmp_path / "out") == 0
    assert day.collect(tmp_path / "in", tmp_path / "out") == 0  # Once more: the same page.
    filled = (tmp_path / "out/README.md").read_text()
    begins, ends = page.BEGINS, page.ENDS
    assert filled.partition(begins)[0] == text.partition(begins)[0]
    assert filled.partition(ends)[2] == text.partition(ends)[2]
    filled = filled.partition(begins)[2].partition(ends)[0]
    assert "H100 80GB HBM3, driver 580.159.04" in filled and "36 of 540 s" in filled
    table = [line for line in filled.splitlines() if line.startswith("| ")][1:]
    assert [line.split(" | ")[0] for line in table] == ["| facts", "| search", "| faults"]
    assert "| ratio 1; says no |" in table[1] and "nobody / was named" in table[2]
    assert "**Unfinished**, not run: facts, nccl; validation, gpt2 bf16; " in filled
    day_in, day_out = (json.loads((tmp_path / name / "day.json").read_text()) for name in ("in", "out"))
    assert day_in == day_out
    assert day.collect(tmp_path / "none", tmp_path / "out") == 2


def test_the_page_of_a_rehearsal_says_so_first(module, tmp_path):
    write(tmp_path / "in", rehearsal=module("gpu").REHEARSAL)
    page = module("gpu_page").page_of(json.loads((tmp_path / "in/day.json").read_text()))
    assert page.startswith("**A rehearsal on a made-up GPU at a small size: no evidence")


# ---- a run: its time, what it leaves behind, where it goes on ----

STAND_INS = """
import os, subprocess, sys, time
from gpu_tools import write_figures
part, row = sys.argv[1:]
with open(os.environ["PLAYED"], "a") as file:
    file.write(row + " ")
if row == os.environ.get("HANGS"):
    write_figures({"seen": 1})
    sleep = "import time; time.sleep(600)"  # in a session of its own, as torchrun's workers
    subprocess.Popen([sys.executable, "-c", sleep], start_new_session=True)
    open(os.environ["PLAYED"] + ".hangs", "w").close()
    time.sleep(600)
if row == "raises":
    raise ValueError("no CUDA")
if row == "dies":
    os._exit(7)
write_figures({"wrong": ["no complaint"] if row == "wrong" else []})
"""
ROWS = """ROWS = (
    Row("facts", "machine", 1, 60),
    Row("starts", "command", 2, 60),
    Row("starts", "torchrun", 2, 60),
    Row("starts", "notebook", 2, 60),
    Row("guards", "raises", 1, 60),
    Row("guards", "dies", 1, 60),
    Row("guards", "wrong", 1, 60),
    Row("guards", "plain", 1, 60),
)
"""


class Copy:
    """The day with short rows of its own."""

    def __init__(self, folder):
        self.folder, self.out, self.copy = folder, folder / "build/gpu/out", folder / "copy"
        (folder / "bench").mkdir()
        (folder / "scripts").mkdir()
        for name in ("gpu.py", "gpu_page.py", "gpu_tools.py"):
            shutil.copy(BENCH / name, folder / "bench")
        shutil.copy(ROOT / "scripts/gpu", folder / "scripts")
        self.give_rows(ROWS)
        (folder / "bench/gpu_parts.py").write_text(STAND_INS)
        self.env = {**os.environ, "PLAYED": str(folder / "played"), "PYTHON": sys.executable}

    def give_rows(self, rows):
        text = (BENCH / "gpu_rows.py").read_text()
        (self.folder / "bench/gpu_rows.py").write_text(
            re.sub(r"ROWS = \(.*?\n\)\n", rows, text, flags=re.DOTALL)
        )

    def start(self, *words, hangs="", **variables):
        command = [sys.executable, str(self.folder / "bench/gpu.py"), "run", *words]
        out = ["--out", str(self.out), "--out", str(self.copy)]
        env = {**self.env, "HANGS": hangs, **variables}
        return subprocess.Popen([*command, *out], env=env, stdout=subprocess.PIPE, text=True)

    def run(self, *words, **more):
        process = self.start(*words, **more)
        output = process.communicate(timeout=100)[0]
        return process.returncode, output

    def script(self, *words, **variables):
        """Runs scripts/gpu."""
        command, env = ["bash", str(self.folder / "scripts/gpu"), *words], {**self.env, **variables}
        return subprocess.run(command, env=env, capture_output=True, text=True, timeout=100)

    def played(self):
        file = self.folder / "played"
        rows = file.read_text() if file.exists() else ""
        file.unlink(missing_ok=True)
        return rows

    def day(self):
        return json.loads((self.out / "day.json").read_text())

    def rows(self, part):
        return self.day()["parts"][part]

    def processes(self):
        """Lists all processes with the folder in their environment."""
        numbers = []
        for place in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if f"PLAYED={self.folder}".encode() in (place / "environ").read_bytes():
                    numbers.append(int(place.name))
        return numbers


@pytest.fixture
def copy(tmp_path):
    day = Copy(tmp_path)
    yield day
    for number in day.processes():
        os.kill(number, signal.SIGKILL)


def test_a_run_goes_on_where_the_last_one_ended(copy):
    # Of starts each row is expected to take longer than what is left.
    copy.give_rows(re.sub(r'("starts", "\w+"), 2, 60', r"\1, 90, 200", ROWS))
    code, output = copy.run("facts", "starts", "--seconds", "80")
    assert (code, copy.played()) == (3, "machine ")
    assert "3 rows are left, first starts, command: give the same command again" in output
    assert "facts, machine: done in " in output and "(1 expected)" in output
    assert copy.run("facts", "starts")[0] == 0
    assert copy.played() == "command torchrun notebook "
    assert copy.run("facts", "starts") == (0, "")
    assert (copy.copy / "day.json").read_bytes() == (copy.out / "day.json").read_bytes()
    assert [call["seconds"] for call in copy.day()["calls"]] == pytest.approx([80, 540], abs=5)


def test_a_row_that_fails_dies_or_is_wrong_does_not_end_the_day(copy):
    code, output = copy.run("guards")
    results = copy.rows("guards")
    assert code == 1
    assert {row: result["outcome"] for row, result in results.items()} == {
        "raises": "failed",
        "dies": "failed",
        "wrong": "wrong",
        "plain": "done",
    }
    assert (results["dies"]["error"], results["raises"]["error"]) == ("exit code 7", "exit code 1")
    assert "ValueError: no CUDA" in results["raises"]["output"]
    assert "no complaint" in output
    copy.played()
    assert copy.run("guards")[0] == 1
    assert copy.played() == ""
    copy.run("guards", "--again")
    assert copy.played() == "raises dies wrong "


def test_a_row_over_its_limit_is_ended_with_all_its_processes_and_keeps_its_figures(copy):
    copy.give_rows(ROWS.replace('"torchrun", 2, 60', '"torchrun", 2, 4'))
    assert copy.run("starts", hangs="torchrun")[0] == 1
    results = copy.rows("starts")
    assert {row: result["outcome"] for row, result in results.items()} == {
        "command": "done",
        "torchrun": "failed",
        "notebook": "done",
    }
    assert results["torchrun"]["error"] == "over its limit of 4 s"
    assert results["torchrun"]["figures"] == {"seen": 1}
    assert copy.processes() == []


def test_a_row_is_cut_to_the_rest_of_the_call_and_the_next_call_has_it_whole(copy):
    begun = time.monotonic()
    assert copy.run("starts", "--seconds", "22", hangs="torchrun")[0] == 3
    assert time.monotonic() - begun < 22
    assert copy.processes() == []
    assert {row: result["outcome"] for row, result in copy.rows("starts").items()} == {
        "command": "done",
        "torchrun": "cut",
    }
    copy.played()
    assert copy.run("starts")[0] == 0
    assert copy.played() == "torchrun notebook "


def test_what_came_before_the_run_counts_among_its_seconds(copy):
    code, _ = copy.run("starts", "--seconds", "100", ISOBATCH_GPU_BEGUN=str(time.time() - 94))
    assert (code, copy.played()) == (3, "")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_nothing_is_left_running_when_a_command_is_killed(copy, number):
    process = copy.start("facts", "starts", hangs="torchrun")
    until = time.monotonic() + 60
    while not (copy.folder / "played.hangs").exists():
        assert time.monotonic() < until
        time.sleep(0.05)
    # The command and its guard, the row, and its child in another session.
    assert len(copy.processes()) == 4
    process.send_signal(number)
    process.communicate(timeout=10)
    until = time.monotonic() + 10
    while copy.processes() and time.monotonic() < until:
        time.sleep(0.05)
    assert copy.processes() == []
    # The rows before are there, in both places, whole.
    for folder in (copy.out, copy.copy):
        parts = json.loads((folder / "day.json").read_text())["parts"]
        assert {part: [*results] for part, results in parts.items()} == {
            "facts": ["machine"],
            "starts": ["command"],
        }
    copy.played()
    assert copy.run("facts", "starts")[0] == 0
    assert copy.played() == "torchrun notebook "


def test_day_json_is_whole_whatever_ends_a_write(module, tmp_path, monkeypatch):
    day = {"rehearsal": None, "calls": [], "parts": {"facts": {"machine": {"outcome": "done"}}}}
    module("gpu").save(day, tmp_path)

    def write_half(path, text):
        path.write_bytes(text[: len(text) // 2].encode())
        raise OSError("no space left")

    monkeypatch.setattr(Path, "write_text", write_half)
    with pytest.raises(OSError, match="no space"):
        module("gpu").save(day | {"calls": [{}]}, tmp_path)
    assert module("gpu").load(tmp_path) == day


def test_a_rehearsals_records_are_not_gone_on_with(copy):
    assert copy.run("facts", "--small")[0] == 0
    assert copy.day()["rehearsal"].startswith("A rehearsal on a made-up GPU")
    assert copy.run("facts")[0] == 1
    assert copy.rows("facts").keys() == {"machine"}


# ---- scripts/gpu: what travels, one command there, and the way back ----


def write_wheel(folder, name):
    """Writes a wheel of an empty package."""
    folder.mkdir(parents=True, exist_ok=True)
    about = f"{name}-1.dist-info"
    with zipfile.ZipFile(folder / f"{name}-1-py3-none-any.whl", "w") as file:
        file.writestr(f"{name}/__init__.py", "")
        file.writestr(f"{about}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n")
        file.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        file.writestr(f"{about}/RECORD", "")


def test_one_command_there_installs_what_is_lacking_and_goes_on_from_what_came_back(copy):
    wheels = copy.folder / "build/gpu/wheels"
    assert "scripts/gpu wheels" in copy.script("run").stderr
    for name in ("isobatch", "lacking_there", "pytest"):
        write_wheel(wheels, name)
    back = copy.folder / "back"
    ran = copy.script("run", "facts", "--seconds", "60", OUT=str(back))
    assert ran.returncode == 0, ran.stderr
    installed = {path.name for path in (copy.folder / "build/gpu/site").iterdir()}
    assert {"isobatch", "lacking_there"} <= installed and "pytest" not in installed
    assert [path.name for path in back.iterdir()] == ["day.json"]
    # Another machine, bare but for what travels.
    shutil.rmtree(copy.folder / "build/gpu/out")
    shutil.rmtree(copy.folder / "build/gpu/site")
    copy.played()
    assert copy.script("keep", str(back)).returncode == 0
    assert copy.script("run", "facts", "starts", "--seconds", "100").returncode == 0
    assert copy.played() == "command torchrun notebook "


def test_more_than_40_mib_do_not_travel(copy):
    pip = copy.folder / "python"
    pip.write_text(
        '#!/bin/sh\n[ "$3" = wheel ] && head -c "$BYTES" /dev/zero > build/gpu/wheels/ours.whl\nexit 0\n'
    )
    pip.chmod(0o755)
    sizes = {size: copy.script("wheels", PYTHON=str(pip), BYTES=str(size << 20)) for size in (38, 41)}
    assert (sizes[38].returncode, sizes[41].returncode) == (0, 2)
    assert "more than 40 MiB would travel" in sizes[41].stderr


def test_simulate_prints_a_line_for_each_pace(copy):
    lines = copy.script("simulate").stdout.splitlines()[2:]
    assert [line.split(" | ")[:2] for line in lines] == [
        [f"| × {pace}", "8, 0 of 8"] for pace in ("0.7", "1", "1.4")
    ]


LOOK = """
import contexts, gpu_tools, sys
at = gpu_tools.machine()
print(at["device"], at["other_processes"], contexts.read(0), "torch" in sys.modules)
"""
ALONE = """
import gc, gpu_loops
for _ in range(2):
    with gpu_loops.alone():
        gc.collect()
print('left')
"""


@pytest.mark.parametrize(
    ("code", "says"),
    [(LOOK, "NVIDIA H100 80GB HBM3 0 {} False\n"), (ALONE, "left\n")],
    ids=["machine", "alone"],
)
def test_no_row_leaves_a_context_on_the_gpu_or_a_file(tmp_path, code, says):
    """The context of a reader of the machine would be the other process; torch deletes a store's file."""
    env = fakecuda.environment(tmp_path, gpus=1)
    env["PYTHONPATH"] += os.pathsep + str(BENCH)
    words = [sys.executable, "-c", code]
    ran = subprocess.run(words, env=env, capture_output=True, text=True, timeout=200)
    assert ran.stdout == says, ran.stderr


@pytest.mark.slow
@pytest.mark.timeout(4000)
def test_the_whole_day_on_a_gpu_that_is_made_up(module, rows, tmp_path):
    """Every row at a small size, and by the branches of the real one, in as many commands as it takes."""
    env = fakecuda.environment(tmp_path, gpus=1, mib=4000, FAKE_SLEEP_MAX="100")
    command = [sys.executable, str(BENCH / "gpu.py"), "run", "--small", "--out", str(tmp_path / "out")]
    code, outputs = 3, []
    while code == 3:
        begun = time.monotonic()
        ran = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
        code = ran.returncode
        outputs.append(ran.stdout + ran.stderr)
        assert time.monotonic() - begun < 545
    parts = module("gpu").load(tmp_path / "out")["parts"]
    results = {row[:2]: parts[row.part].get(row.name) for row in rows.ROWS}
    wrong = [name for name, result in results.items() if (result or {}).get("outcome") != "done"]
    assert (code, wrong) == (0, []), "".join(outputs)
    assert [result["machine"]["other_processes"] for result in results.values()] == [0] * len(results)
    assert module("gpu").collect(tmp_path / "out", tmp_path / "published") == 1  # a rehearsal


def test_a_row_of_skipped_tests_alone_has_shown_nothing(module, tmp_path, monkeypatch):
    """Without a GPU all tests of `-m gpu` are skipped."""
    monkeypatch.chdir(tmp_path)
    figures = module("gpu_parts").tests("same_gradient")
    assert figures["wrong"], figures
    assert not figures["counts"].get("passed")
