"""Runs isobatch on Windows and macOS, as `foreign.py` makes them up."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from isobatch import system
from isobatch.errors import InputError

pytest.importorskip("pyarrow", reason="tables in files come with the extra 'fleet'")

ROOT = Path(__file__).parent.parent
FOREIGN = ["win32", "darwin"]

# Libraries look at the platform while they are imported, and would look for Windows' own files.
BEFORE = """
import contextlib, importlib, io, json, sys, warnings
from importlib.util import find_spec
for name in {libraries!r}:
    if find_spec(name.partition(".")[0]):
        importlib.import_module(name)
sys.path.insert(0, {tests!r})
import foreign
if sys.argv[1] != "here":
    foreign.become(sys.argv[1])
warnings.filterwarnings("error", category=EncodingWarning, module="isobatch")
"""
PLANNER = "csv ctypes socket tempfile shutil subprocess concurrent.futures numpy msgspec yaml rich.console "
PLANNER += "pyarrow.csv pyarrow.compute pyarrow.fs pyarrow.parquet jinja2 altair"
ALL = PLANNER + " torch.distributed.elastic.multiprocessing torch.distributed.launcher.api torch._dynamo "
ALL += (
    "torch.distributed.fsdp torch.distributed.checkpoint.state_dict torch.distributed.tensor lightning ray "
)
ALL += "transformers.trainer accelerate scipy.stats optax torchdata.stateful_dataloader"

COMMANDS = """
from isobatch.cli import main
for words in json.loads(sys.argv[2]):
    streams = [io.TextIOWrapper(io.BytesIO(), encoding="cp1252") for _ in range(2)]
    with contextlib.redirect_stdout(streams[0]), contextlib.redirect_stderr(streams[1]):
        code = main(words)
    for stream in streams:
        stream.flush()
    print(json.dumps([code, *(stream.buffer.getvalue().decode("cp1252") for stream in streams)]))
"""
IMPORTS = """
for name in json.loads(sys.argv[2]):
    try:
        importlib.import_module(name)
    except Exception as error:
        if isinstance(error, ModuleNotFoundError) and find_spec(error.name.partition(".")[0]) is None:
            continue  # an extra that is not installed
        print(name, repr(error))
"""


def run_on(platform, program, values, cwd, libraries=PLANNER):
    """Runs a program as on a platform; returns its output."""
    before = BEFORE.format(libraries=libraries.split(), tests=str(ROOT / "tests"))
    process = subprocess.run(
        [sys.executable, "-X", "warn_default_encoding", "-c", before + program, platform, json.dumps(values)],
        cwd=cwd,
        capture_output=True,
        text=True,
        encoding="utf-8",
    )
    assert process.returncode == 0, process.stderr
    return process.stdout


JOBS = "job,effective_batch,lr,duration\na,256,0.1,100st\nb,96,0.2,2000st\n"
RECIPE = 'effective_batch = 256\nlr = 0.1\nduration = "100st"\nwarmup = "10st"\nschedule = "cosine"\n'
PLANNED = [
    ["--version"],
    ["plan", "job.toml", "--gpus", "64", "-o", "plan.json"],
    ["plan", "job.toml", "--gpus", "64", "-o", "plan.json"],
    ["plan", "job.toml", "--gpus", "3", "--policy", "grow"],
    ["counts", "job.toml", "--gpus", "1..64"],
    ["replan", "plan.json", "--at-step", "10", "--gpus", "16", "-o", "moved.json"],
    ["schedule", "cosine", "--steps", "9", "--plot"],
    ["fleet", "jobs.csv", "--gpus", "8,16", "-o", "plans.csv"],
    ["fleet", "jobs.csv", "--gpus", "8,16", "-o", "plans.csv"],
    ["fleet", "jobs.csv", "--gpus", "8,16", "--json"],
    ["fleet", "tables/*.csv", "--gpus", "8,16", "-o", "folder/"],
    ["fleet", "tables", "--gpus", "8,16", "-o", "folder/"],
    ["explain", "plans.csv"],
    ["explain", "--rules"],
    ["doctor", str(ROOT / "examples/training_args.json"), "--set", "gpus=4", "--gpus", "32"],
    ["plan", "--from", str(ROOT / "examples/training_args.json"), "--set", "gpus=4", "--set",
     "dataset_size=50000", "--gpus", "2", "--to", "transformers", "-o", "args.json"],
    ["allocate", str(ROOT / "examples/jobs.csv"), "64", "--profile",
     str(ROOT / "examples/pool/gpt-1.3b.json")],
    ["estimate", "--laws", "--tokens", "1e12"],
    ["report", "plan.json", "-o", "plan.html"],
]  # fmt: skip
"""Commands as people type them; some twice, over what they have written."""


@pytest.fixture(scope="module")
def answers(tmp_path_factory):
    """Answers and files of the commands on each platform."""

    def answer(platform):
        folder = tmp_path_factory.mktemp(platform)
        (folder / "tables").mkdir()
        for name, text in ("job.toml", RECIPE), ("jobs.csv", JOBS), ("tables/a.csv", JOBS):
            (folder / name).write_text(text, encoding="utf-8")
            os.utime(folder / name, (1e9, 1e9))  # a part of the digest in a folder of plans
        lines = run_on(platform, COMMANDS, PLANNED, folder).splitlines()
        files = {path.relative_to(folder): path for path in folder.rglob("*") if path.is_file()}
        return [json.loads(line) for line in lines], files

    return {platform: answer(platform) for platform in ["here", *FOREIGN]}


@pytest.mark.parametrize("platform", FOREIGN)
def test_the_planner_answers_as_on_linux(answers, platform):
    (expected_answers, files), (foreign_answers, foreign_files) = answers["here"], answers[platform]
    for words, expected, answer in zip(PLANNED, expected_answers, foreign_answers, strict=True):
        assert expected[0] in (0, 1), (words, expected)
        assert answer == expected, words
    assert files.keys() == foreign_files.keys() and len(files) == 9
    for name, path in files.items():
        assert path.suffix == ".html" or foreign_files[name].read_bytes() == path.read_bytes(), name


def test_signs_that_a_console_lacks_are_written_plainer(answers):
    _, output, _ = answers["win32"][0][1]
    assert "4 × 1 × 64" in output or "4 × accumulation 1 × 64" in output  # cp1252 has ×, and no →
    assert not any("→" in output or "?" in output for _, output, _ in answers["win32"][0][:5])


def test_paths_with_backslashes_lead_to_files(tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "in/jobs.csv").write_text(JOBS, encoding="utf-8")
    words = ["fleet", "in\\*.csv", "--gpus", "8", "-o", "out\\plans"]
    (tmp_path / "out").mkdir()
    code, _, problem = json.loads(run_on("win32", COMMANDS, [words], tmp_path))
    assert code == 0, problem
    assert (tmp_path / "out/plans/jobs.parquet").is_file()


def test_a_projects_defaults_are_read_where_files_have_no_owner(tmp_path):
    (tmp_path / "job.toml").write_text(RECIPE, encoding="utf-8")
    table = "[tool.isobatch]\ngpus_per_node = 4\n"
    (tmp_path / "pyproject.toml").write_text(table, encoding="utf-8")
    tmp_path.chmod(0o777)  # the mode of every folder on Windows
    words = ["counts", "job.toml", "--gpus", "4,8"]
    code, _, problem = json.loads(run_on("win32", COMMANDS, [words], tmp_path))
    assert code == 0 and "defaults of pyproject.toml: gpus_per_node 4" in problem


CLOSED = """
import errno, isobatch.cli.explain
def run(args):
    raise OSError(errno.EINVAL, "Invalid argument")
isobatch.cli.explain.run = run
"""


@pytest.mark.parametrize(("platform", "code"), [("win32", 0), ("here", 2)])
def test_windows_word_for_a_closed_pipe_is_no_fault(platform, code, tmp_path):
    answer = json.loads(run_on(platform, CLOSED + COMMANDS, [["explain", "--rules"]], tmp_path))
    assert (answer[0], "cannot write to stdout" in answer[2]) == (code, code == 2)


def test_every_module_is_imported(tmp_path):
    package = ROOT / "python"
    names = [
        ".".join(path.relative_to(package).with_suffix("").parts).removesuffix(".__init__")
        for path in sorted((package / "isobatch").rglob("*.py"))
        if "recorder" not in path.parts and path.name != "__main__.py"
    ]
    assert len(names) > 250
    assert run_on("win32", IMPORTS, names, tmp_path, ALL) == ""


def test_the_validator_says_that_windows_is_no_place_for_it(tmp_path):
    pytest.importorskip("torch")
    (tmp_path / "job.toml").write_text(RECIPE, encoding="utf-8")
    words = [["plan", "job.toml", "--gpus", "2", "-o", "plan.json"], ["validate", "plan.json"]]
    lines = run_on("win32", COMMANDS, words, tmp_path).splitlines()
    code, _, problem = json.loads(lines[-1])
    assert (code, len(problem.splitlines())) == (2, 1)
    assert problem.startswith("isobatch validate: the validator needs Linux or macOS, this is Windows")


def test_exec_says_that_windows_is_no_place_for_it(tmp_path):
    (tmp_path / "job.toml").write_text(RECIPE, encoding="utf-8")
    words = ["exec", "job.toml", "--gpus", "2", "--", "train", "{micro_batch}"]
    code, _, problem = json.loads(run_on("win32", COMMANDS, [words], tmp_path))
    assert (code, len(problem.splitlines())) == (2, 1)
    assert problem.startswith("isobatch exec: becoming a command needs Linux or macOS, this is Windows")


def test_survivors_say_that_windows_is_no_place_for_them(monkeypatch):
    pytest.importorskip("torch")
    from isobatch.integrations.torch import survivors

    monkeypatch.setattr(sys, "platform", "win32")
    with pytest.raises(InputError, match="^survivors needs Linux or macOS"):
        survivors(None, None, None)


def test_processes_end_with_their_children(tmp_path, monkeypatch):
    killer = tmp_path / "taskkill"
    killer.write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/words\nkill -9 "$4"\n', encoding="ascii")
    killer.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    monkeypatch.setattr(sys, "platform", "win32")
    system.end_session(process, 1.0)
    assert process.returncode is not None
    assert (tmp_path / "words").read_text(encoding="ascii").split() == ["/F", "/T", "/PID", str(process.pid)]
