"""Defaults of a project: which pyproject.toml is taken, what its values replace, and what is refused."""

import json
import os
import subprocess
import sys

import pytest

import isobatch as ib
from isobatch.cli import parser_of, project

RECIPE = ib.Recipe(effective_batch=64, lr=0.1, duration="100st")
TRAINER = {"per_device_train_batch_size": 8, "learning_rate": 1e-4, "max_steps": 100}
TABLE = "[tool.isobatch]\ngpus_per_node = 4\nmemory_gib = 80\nprice_per_gpu_hour = 2.5\ntuned_gpus = 4\n"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The folder `a/b` of a project, with a recipe and a tool's file in it."""
    inner = tmp_path / "a" / "b"
    inner.mkdir(parents=True)
    RECIPE.save(inner / "job.json")
    (inner / "args.json").write_text(json.dumps(TRAINER))
    (tmp_path / "pyproject.toml").write_text(TABLE)
    monkeypatch.chdir(inner)
    return inner


def values_of(ran, *words):
    """Runs `plan --show-config` and returns its values and their origins."""
    rows = json.loads(ran(["plan", *words, "--show-config", "--json"]).out)
    return {name: (row["value"], row["from"]) for name, row in rows.items()}


def test_values_come_from_flag_file_project_or_default(folder, ran):
    typed = ("--memory-gib", "40", "--policy", "grow", "--set", "lr=0.2")
    values = values_of(ran, "job.json", "--gpus", "8", *typed)
    file = "../../pyproject.toml"
    assert values["memory_gib"] == (40, "--memory-gib") and values["policy"] == ("grow", "--policy")
    assert values["gpus_per_node"] == (4, file) and values["price_per_gpu_hour"] == (2.5, file)
    assert values["nodes"] == (2, "--gpus") and values["split"] == ("even", "default")
    assert values["lr"] == (0.2, "--set") and values["effective_batch"] == (64, "job.json")
    shown = ran(["plan", "job.json", "--gpus", "8", "--show-config"]).out
    assert [line.split() for line in shown.splitlines() if "memory" in line] == [["memory_gib", "80", file]]


def test_values_of_another_tools_file_are_its_own_or_its_tools_defaults(folder, ran):
    values = values_of(ran, "--from", "args.json", "--gpus", "8")
    assert values["lr"] == (1e-4, "args.json")
    assert values["clip_norm"] == (1.0, "default of transformers TrainingArguments")
    assert values["tuned_gpus"] == (4, "../../pyproject.toml")


def test_a_schedule_of_a_table_is_shown_in_words(folder, ran):
    linear = ib.schedules.linear(0.1, 100)
    ib.Recipe(effective_batch=8, lr=0.1, duration="100st", schedule=linear).save(folder / "linear.json")
    assert values_of(ran, "linear.json", "--gpus", "8")["schedule"] == (str(linear), "linear.json")


def test_every_command_with_the_option_takes_the_value_and_says_so(folder, ran):
    defaults = "defaults of ../../pyproject.toml: gpus_per_node 4"
    counts = ran(["counts", "job.json", "--gpus", "1..8", "--json"])
    rows = [json.loads(line)["gpus"] for line in counts.out.splitlines()]
    assert rows == [1, 2, 3, 4, 8] and defaults in counts.err
    (folder / "jobs.csv").write_text("job,effective_batch,lr\na,64,0.1\n")
    fleet = ran(["fleet", "jobs.csv", "--gpus", "6,8", "--columns", "world_size"])
    assert "8" in fleet.out and "left out 1 GPU count not of whole nodes of 4 GPUs" in fleet.err
    doctor = ran(["doctor", "args.json", "--gpus", "8"], 1)
    assert "2 × the 32 that it was tuned with" in doctor.out and defaults in doctor.err
    plan = json.loads(ran(["plan", "--from", "args.json", "--gpus", "8", "--json"]).out)
    assert plan["effective_batch"] == 32 and plan["recipe"]["gpus"] == 4


def test_the_tuned_gpus_of_a_file_without_a_batch_are_known(folder, ran):
    (folder / "ds.json").write_text('{"zero_optimization": {"stage": 2}, "train_batch_size": "auto"}')
    doctor = ran(["doctor", "ds.json", "--gpus", "8"])
    assert "does not say the batch" in doctor.out and "are not known" not in doctor.out
    assert "tuned_gpus 4" in doctor.err


def test_a_typed_option_and_a_files_own_gpus_win(folder, ran):
    typed = ran(["plan", "--from", "args.json", "--set", "gpus=2", "--gpus", "8", "--json"]).out
    assert json.loads(typed)["effective_batch"] == 16
    (folder / "own.json").write_text('{"batch_per_gpu": 8, "gpus": 16, "lr": 0.1}')
    assert json.loads(ran(["plan", "own.json", "--gpus", "8", "--json"]).out)["effective_batch"] == 128
    (folder / "open.json").write_text('{"batch_per_gpu": 8, "lr": 0.1}')
    assert json.loads(ran(["plan", "open.json", "--gpus", "8", "--json"]).out)["effective_batch"] == 32
    typed = ran(["counts", "job.json", "--gpus", "1..8", "--gpus-per-node", "8", "--json"])
    assert "left out" not in typed.err and "gpus_per_node" not in typed.err


def test_commands_without_a_cluster_ignore_the_projects(folder, ran):
    ran(["plan", "job.json", "--gpus", "4", "-o", "plan.json"])
    assert "ISOBATCH_MICRO_BATCH" in ran(["plan", "plan.json", "--to", "torchrun"]).out
    moved = ran(["replan", "plan.json", "--at-step", "5", "--effective-batch", "32", "--json"])
    assert json.loads(moved.out)["cluster"]["gpus_per_node"] == 4
    (folder / "jobs.csv").write_text("job,effective_batch,lr\na,64,0.1\n")
    (folder / "clusters.csv").write_text("cluster,nodes,gpus_per_node\nc,1,8\n")
    fleet = ran(["fleet", "jobs.csv", "clusters.csv", "--columns", "world_size"])
    assert "8" in fleet.out and "defaults" not in fleet.err
    assert parser_of("validate").get_default("memory_gib") is None
    assert project.read(parser_of("validate"), ["plan.json"]).memory_gib is None


def test_the_answers_on_stdin_depend_on_their_requests_alone(folder):
    request = '{"recipe": {"effective_batch": 64, "lr": 0.1}, "gpus": 8}'
    run = subprocess.run(
        [sys.executable, "-m", "isobatch", "plan", "-"],
        input=request,
        capture_output=True,
        text=True,
        check=True,
    )
    cluster = json.loads(run.stdout)["plan"]["cluster"]
    assert (cluster["nodes"], cluster["gpus_per_node"], run.stderr) == (1, 8, "")


def test_profiles_are_relative_to_the_file(folder, ran):
    measured = ib.Profile.estimate(parameters=10**9, flops_per_sample=6e12, gpu_tflops=989)
    measured.save(folder.parent / "speed.json")
    (folder.parent / "pyproject.toml").write_text('[tool.isobatch]\nprofile = "speed.json"\n')
    values = values_of(ran, "job.json", "--gpus", "8")
    assert values["profile"] == (["../speed.json"], "../pyproject.toml")
    assert "hours" in ran(["counts", "job.json", "--gpus", "1..8"]).out
    (folder.parent / "pyproject.toml").write_text('[tool.isobatch]\nprofile = "gone.json"\n')
    assert "../gone.json: cannot be read" in ran(["plan", "job.json", "--gpus", "8"], 2).err


@pytest.mark.parametrize(
    "text",
    [
        "[project]\nname = 'another'\n[tool.ruff]\nline-length = 80\n",
        "[tool.poetry.dependencies]\nisobatch = '^0.1'\n",
        "[project.scripts]\nisobatch = 'x:y'\n",
        "this is no TOML = = [",
        "[tool.isobatch-extra\nx = 1\n",
        "",
    ],
)
def test_a_nearer_file_without_the_table_is_passed_over(folder, ran, text):
    (folder / "pyproject.toml").write_text(text)
    assert values_of(ran, "job.json", "--gpus", "8")["gpus_per_node"][0] == 4


def test_the_nearest_table_wins_whole(folder, ran):
    (folder.parent / "pyproject.toml").write_text("[tool.isobatch]\nmemory_gib = 40\n")
    values = values_of(ran, "job.json", "--gpus", "8")
    assert values["memory_gib"] == (40, "../pyproject.toml") and values["gpus_per_node"] == (8, "--gpus")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("tool.isobatch = 5", "pyproject.toml: tool.isobatch must be a table, got 5"),
        ("[[tool.isobatch]]", "tool.isobatch must be a table, got [{}]"),
        ("[tool]\nisobatch = 'x'", "tool.isobatch must be a table, got 'x'"),
        ("[tool.isobatch]\ngpus-per-node = 4",
            "unknown key of [tool.isobatch] 'gpus-per-node': did you mean 'gpus_per_node'?"),
        ("[tool.isobatch]\nprice = 4", "'price': did you mean 'price_per_gpu_hour'?"),
        ("[tool.isobatch.gpus_per_node]\nx = 1", "gpus_per_node must be a number, got {'x': 1}"),
        ("[tool.isobatch]\ngpus_per_node = 0", "gpus_per_node must be at least 1, got 0"),
        ("[tool.isobatch]\ngpus_per_node = true", "gpus_per_node must be a number, got True"),
        ("[tool.isobatch]\nmemory_gib = '80 GB'", "memory_gib must be a number, got '80 GB': write 74.5058"),
        ("[tool.isobatch]\nprice_per_gpu_hour = nan", "price_per_gpu_hour must be a finite number"),
        ("[tool.isobatch]\ninter_gb_s = '1,5'", "inter_gb_s must be a number, got '1,5'"),
        ("[tool.isobatch]\ngpu = 5", "gpu must be a text, got 5"),
        ("[tool.isobatch]\nprofile = ['']", "profile must be a path, or a list of paths, got ['']"),
        ("[tool.isobatch]\ntuned_gpus = 2.5", "tuned_gpus must be a whole number, at least 1, got '2.5'"),
        ("[tool.isobatch]\ngpus_per_node = [", "pyproject.toml: cannot be read: "),
        ("[tool.isobatch\ngpus_per_node = 4",
            "pyproject.toml: cannot be read: Expected ']' at the end of a table declaration "
            "(at line 1, column 15)"),
        ("[ tool . 'isobatch' # hours\n", "pyproject.toml: cannot be read: "),
    ],
)  # fmt: skip
def test_a_table_that_cannot_be_is_refused_with_its_file(folder, ran, text, message):
    (folder / "pyproject.toml").write_text(text)
    error = ran(["plan", "job.json", "--gpus", "8"], 2).err
    assert message in error.replace("\n", " ") and "pyproject.toml" in error


def test_strange_files_are_passed_over_with_a_note(folder, ran, monkeypatch):
    (folder / "pyproject.toml").write_text(f"{TABLE}# {'x' * project.MAX_BYTES}\n")
    passed = ran(["plan", "job.json", "--gpus", "8"]).err
    assert "pyproject.toml: passed over: it has more than 1,048,576 bytes" in passed
    (folder / "pyproject.toml").unlink()
    os.mkfifo(folder / "pyproject.toml")
    (folder.parent / "pyproject.toml").mkdir()
    assert "../../pyproject.toml: gpus_per_node" in ran(["plan", "job.json", "--gpus", "8"]).err
    (folder / "pyproject.toml").unlink()
    (folder / "pyproject.toml").write_text("[tool.isobatch]\nmemory_gib = 1\n")
    folder.chmod(0o777)
    if os.geteuid() == 0:
        os.chown(folder / "pyproject.toml", 12345, -1)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: 12345)
    passed = ran(["plan", "job.json", "--gpus", "8"]).err
    assert "pyproject.toml: passed over: it is another user's" in passed and "memory_gib 80" in passed
    folder.chmod(0o755)
    assert "memory_gib 1" in ran(["plan", "job.json", "--gpus", "8"]).err


def test_a_folder_that_is_gone_has_no_project(folder):
    folder.joinpath("job.json").unlink()
    folder.joinpath("args.json").unlink()
    folder.rmdir()
    assert project.find() is None


def test_a_file_without_the_table_is_not_parsed(tmp_path):
    (tmp_path / "pyproject.toml").write_text("[tool.ruff]\nline-length = 80\n")
    code = "import sys; from isobatch.cli import project; assert project.find() is None; "
    code += "print('tomllib' in sys.modules)"
    for table, is_parsed in (("", "False"), ("[tool.isobatch]\n[tool.y]\n", "AssertionError")):
        (tmp_path / "pyproject.toml").write_text(f"[tool.x]\n{table}")
        run = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
        assert is_parsed in run.stdout + run.stderr


def test_values_of_a_stranger_control_no_terminal(folder, ran):
    text = '[tool.isobatch]\ngpu = "\\u001b]0;owned\\u0007"\ncurrency = "\\u001b[2J"\nprofile = "\\u0000"\n'
    (folder / "pyproject.toml").write_text(text)
    shown = ran(["plan", "job.json", "--gpus", "8", "--profile", "x", "--show-config"])
    counted = ran(["counts", "job.json", "--gpus", "8"], 2)
    assert "owned" in shown.out and "owned" in shown.err and "[2J" in counted.err
    assert "\x1b" not in shown.out + shown.err + counted.err and "\x00" not in counted.err
