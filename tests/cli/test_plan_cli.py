"""`isobatch plan`: what people see, and exit codes."""

import json
import re
import subprocess
import sys

import pytest

import isobatch as ib
from isobatch import _core
from isobatch.cli import COMMANDS, main, parser_of
from isobatch.forecast.measurements import load_measurements
from isobatch.validate import Report
from plan_of import plan_of

JOB = """\
effective_batch = 256
gpus = 32
micro_batch = 8
lr = 0.1
optimizer = "sgd"
dataset_size = 1281167
duration = "90ep"
warmup = "5ep"
"""


@pytest.fixture
def job(tmp_path):
    path = tmp_path / "job.toml"
    path.write_text(JOB)
    return str(path)


def test_keep_in_words(job, ran):
    assert (
        ran(["plan", job, "--gpus", "64"]).out
        == """\
64 GPUs: micro-batch 4 × accumulation 1 × 64 replicas = 256 samples per step.
The micro-batch is capped at 8 (the tuned micro-batch).
Unchanged: batch size, learning rate 0.1 and all other hyperparameters.
Per epoch: 5,005 steps, 1,281,216 samples (49 repeated as padding).
The run: 450,450 steps, 25,025 of them warmup, then cosine to 0; same number of samples as the \
tuned run (steps counted as torch counts them).
Warnings:
  - the micro-batch is at most half the tuned one; GPU utilization may drop
"""
    )


def test_infeasible_in_words(job, ran):
    out = ran(["plan", job, "--gpus", "7"], 1).out
    why = "  - 256 samples cannot be split evenly over 7 replicas"
    assert out.startswith(f"Cannot train on 7 GPUs as asked:\n{why}\nWhat would work:\n")
    menu = [line.split("   ")[-1].strip() for line in out.splitlines()[3:]]
    assert menu[-4:] == ["--batch-tolerance 0.016", "--split ragged", "--gpus 4", "--gpus 8"]
    for flags in menu:  # to be copied
        expected = flags.split() if "--gpus" in flags else ["--gpus", "7", *flags.split()]
        assert main(["plan", job, *expected]) == 0


@pytest.mark.parametrize("name", ["no/such/plan.json", "."])
def test_a_place_that_cannot_be_written_is_named(job, tmp_path, ran, name):
    path = tmp_path / name
    shown = ran(["plan", job, "--gpus", "64", "-o", str(path)], 2)
    assert shown.out == "" and f"isobatch plan: {path}: cannot be written" in shown.err
    assert sorted(item.name for item in tmp_path.iterdir()) == ["job.toml"]


def test_grow_cites_its_rule(job, ran):
    out = ran(["plan", job, "--gpus", "128", "--policy", "grow"]).out
    assert "Batch size 256 → 1,024, k = 4." in out
    assert "Learning rate 0.1 → 0.4 by rule linear for sgd: η' = kη [Goyal et al. 2017" in out


def test_json_and_output_are_the_plan(job, tmp_path, ran):
    saved = tmp_path / "plan.json"
    printed = ran(["plan", job, "--nodes", "8", "--max-micro-batch", "2", "--json", "-o", str(saved)]).out
    plan = ib.Plan.load(saved)
    assert json.loads(printed)["schema"] == "isobatch.plan/2"
    assert ib.Plan.from_json(printed) == plan
    assert (plan.micro_batch, plan.accumulation) == (2, 2)
    assert plan == ib.plan(plan.recipe, ib.Cluster(nodes=8, gpus_per_node=8), max_micro_batch=2)


def test_fields_on_the_command_line_win(job, ran):
    words = ["plan", job, "--gpus", "8", "--set", "lr=0.5", "--set", "optimizer=adamw", "--json"]
    recipe = json.loads(ran(words).out)["recipe"]
    assert (recipe["lr"], recipe["optimizer"]) == (0.5, "adamw")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "cluster is missing: pass --gpus N, or --nodes N --gpus-per-node M"),
        (["--gpus", "8", "--nodes", "1"], "--gpus goes without --nodes"),
        (["--gpus", "8", "--rule", "lineer"], "rule must be none, linear"),
        (["--gpus", "8", "--policy", "shrink"], "policy must be keep, grow"),
        (["--gpus", "8", "--set", "optimzer=sgd"], "unknown field 'optimzer': did you mean 'optimizer'?"),
        (["--gpus", "8", "--set", "lr=NaN"],
            "isobatch plan: --set lr must be a finite number above 0, got nan"),
        (["--gpus", "8", "--split", "smaller", "--batch-tolerance", "0.1"], "split"),
    ],
)  # fmt: skip
def test_wrong_use_is_exit_2(job, ran, words, message):
    captured = ran(["plan", job, *words], 2)
    assert captured.out == "" and message in captured.err


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.toml", "lr = ", "cannot be read"),
        ("a.json", "[1]", "the file must be a table of fields, got [1]"),
        ("a.yaml", "lr: [", "cannot be read"),
        ("a.ini", "x", "cannot tell the format: use .toml, .yaml or .json"),
        ("a.sh", "x", "use .toml, .yaml or .json; a script is read by --from (ib.Recipe.read)"),
        ("a.csv", "x", "use .toml, .yaml or .json; a table of jobs is planned by isobatch fleet"),
        ("a.toml", "lr = 0.1", "effective_batch is missing"),
        ("a.json", '{"schema": "isobatch.plan/2", "recipe": {}}',
            "is a plan, not a recipe: isobatch replan moves the run"),
        ("a.toml", 'lr = "fast"\neffective_batch = 8',
            "lr must be a finite number above 0, got the text 'fast'"),
    ],
)  # fmt: skip
def test_a_bad_file_is_named(tmp_path, ran, name, text, message):
    if name.endswith("yaml"):
        pytest.importorskip("yaml", reason="PyYAML comes with the extra 'fleet'")
    path = tmp_path / name
    path.write_text(text)
    error = ran(["plan", str(path), "--gpus", "8"], 2).err
    assert name in error and message in error


def test_recipes_in_three_formats_are_one(tmp_path):
    pytest.importorskip("yaml", reason="PyYAML comes with the extra 'fleet'")

    fields = {"batch_per_gpu": 32, "gpus": 8, "lr": 0.1, "betas": [0.9, 0.95], "duration": "90st"}
    (tmp_path / "a.json").write_text(json.dumps(fields))
    (tmp_path / "a.yaml").write_text("".join(f"{k}: {json.dumps(v)}\n" for k, v in fields.items()))
    (tmp_path / "a.toml").write_text("".join(f"{k} = {json.dumps(v)}\n" for k, v in fields.items()))
    plans = [ib.Recipe.load(tmp_path / f"a.{kind}") for kind in ("json", "yaml", "toml")]
    expected = ib.Recipe.from_gpus(gpus=8, batch_per_gpu=32, lr=0.1, betas=(0.9, 0.95), duration="90st")
    assert plans == [expected] * 3


LOADERS = [ib.Plan.load, ib.Profile.load, load_measurements, ib.Recipe.load, Report.load]


@pytest.mark.parametrize("load", LOADERS)
def test_a_file_that_cannot_be_read_is_named(tmp_path, load):
    file = tmp_path / "it.json"
    with pytest.raises(ib.InputError, match=r"it\.json: cannot be read: No such file or directory"):
        load(file)
    for content in (b"\xff\xfe", b"[]", b'{"schema": "\xff"}', b"{"):
        file.write_bytes(content)
        with pytest.raises(ib.InputError, match=r"it\.json[:,]") as refused:
            load(file)
    assert load is not ib.Plan.load or re.search("is not a plan: .*isobatch plan RECIPE", str(refused.value))


def test_rules_are_printed(ran):
    rules = {rule["rule"]: rule for rule in json.loads(ran(["explain", "--rules", "--json"]).out)}
    assert set(rules) == {name for name, *_ in _core.rules()}
    assert "1706.02677" in rules["linear"]["source"]
    assert "η' = √k·η" in ran(["explain", "--rules"]).out


def test_no_command_is_wrong_use(capsys, ran):
    request = ran([], 2).err
    assert request.startswith("usage: isobatch COMMAND") and "exit codes: 0 done" in request
    for word in ("--version", "-V", "version"):
        assert ran([word]).out == f"isobatch {ib.__version__}\n"
    for words in (["help"], ["--help"], ["-h"]):
        with pytest.raises(SystemExit) as ended:
            main(words)
        assert ended.value.code == 0 and capsys.readouterr().out == request


@pytest.mark.parametrize(
    ("command", "answer"),
    [
        ("sweep", "did you mean 'counts'?"),
        ("elastic", "did you mean 'counts'? It can list the GPU counts that work;"),
        ("node", "did you mean 'validate'?"),
        ("rules", "did you mean 'explain'?"),
        ("count", "did you mean 'counts'?"),
        ("zebra", "there are plan, counts,"),
    ],
)
def test_an_unknown_command_is_answered_with_the_one_that_does_the_job(ran, command, answer):
    assert ran([command, "x"], 2).err.startswith(f"isobatch: unknown command {command!r}: {answer}")


@pytest.mark.parametrize(("name", "hint"), [("sweep", "counts"), ("fit_power", "probe"), ("Plans", "Plan")])
def test_an_unknown_public_name_is_answered_with_the_nearest(name, hint):
    with pytest.raises(AttributeError, match=f"no attribute '{name}': did you mean '{hint}'"):
        getattr(ib, name)
    assert not hasattr(ib, "zebra")


def test_a_command_imports_no_other():
    program = "import sys; from isobatch.cli import COMMANDS, main; main(sys.argv[1:]); "
    program += "print([n for n in COMMANDS if f'isobatch.cli.{n}' in sys.modules])"
    words = ["plan", "--set", "effective_batch=8", "--set", "lr=1", "--gpus", "8"]
    process = subprocess.run([sys.executable, "-c", program, *words], capture_output=True, text=True)
    assert process.stdout.splitlines()[-1] == "['plan']"


def test_help_shows_the_everyday_options_and_all_on_request(capsys):
    assert len(COMMANDS) <= 16
    for name in COMMANDS:
        shown = []
        for words in (["--help"], ["--help", "all"]):
            with pytest.raises(SystemExit):
                main([name, *words])
            shown.append(re.findall(r"^  (-\S+)", capsys.readouterr().out, re.MULTILINE))
        everyday, every = shown
        parser = parser_of(name)
        known = {option for action in parser._actions for option in action.option_strings}
        assert len(everyday) <= 20 and set(everyday) <= set(every)
        assert len(every) == sum(bool(action.option_strings) for action in parser._actions)
        assert set(parser.everyday or ()) <= known


def test_the_shell_completes(job, tmp_path, ran):
    pytest.importorskip("shtab", reason="comes with the extra 'fleet'")
    (tmp_path / "isobatch.sh").write_text(ran(["--completion", "bash"]).out)

    def completed(*words):
        line = f"source isobatch.sh; COMP_WORDS=({' '.join(words)}); COMP_CWORD={len(words) - 1}; "
        line += '_shtab_isobatch 2>/dev/null; echo "${COMPREPLY[@]}"'
        words = ["bash", "-c", line]
        return subprocess.run(words, cwd=tmp_path, capture_output=True, text=True).stdout.split()

    assert completed("isobatch", "cou") == ["counts"]
    assert completed("isobatch", "plan", "--batch-t") == ["--batch-tolerance"]
    assert completed("isobatch", "plan", "jo") == ["job.toml"]
    assert completed("isobatch", "calibrate", "--merge", "jo") == ["job.toml"]


def test_another_tools_file_in_the_place_of_a_recipe_names_from(tmp_path, ran):
    file = tmp_path / "training_args.json"
    file.write_text(
        '{"per_device_train_batch_size": 2, "num_train_epochs": 3, "lr_scheduler_type": "cosine"}'
    )
    err = ran(["plan", str(file), "--gpus", "8"], 2).err
    assert (
        "is not a recipe, but a configuration of transformers TrainingArguments: read it with --from" in err
    )
    with pytest.raises(ib.InputError, match=r"Recipe\.read"):
        ib.Recipe.load(file)
    # Nothing is guessed for what was tuned: the target's GPUs are not proposed.
    assert "--set gpus=N " in ran(["plan", "--from", str(file), "--gpus", "8"], 2).err


def test_a_batch_below_the_replicas_may_grow_to_them(ran):
    words = ["plan", "--set", "effective_batch=4", "--set", "lr=2e-4", "--gpus", "8"]
    menu = ran(words, 1).out.splitlines()
    assert menu[-1].split() == ["8", "samples", "(+100", "%)", "1", "×", "1", "×", "8", "--policy", "8"]
    assert "learning rate" in ran([*words, "--policy", "8"]).out.lower()


def test_a_sweep_says_how_to_find_what_would_work(ran):
    fields = ["--set", "effective_batch=8", "--set", "lr=0.1", "--gpus"]
    hint = "isobatch plan --set effective_batch=8 --set lr=0.1 --gpus 3 says what would work there"
    assert f"2 of 3 GPU counts have a plan\n{hint}" in ran(["counts", *fields, "2,3,4"]).err
    assert ran(["counts", *fields, "2,4"]).err.startswith("2 of 2 GPU counts have a plan\n")
    assert ran(["counts", *fields, "2"]).err.startswith("1 of 1 GPU count has a plan\n")


def test_every_step_is_no_plural():
    text = plan_of(2, effective_batch=8, duration="90st", log_every="1st", eval_every="30st").explain()
    assert "evaluate every 30 steps, log every step." in text


def test_a_menu_leaves_out_what_the_tool_cannot_run(ran, tmp_path):
    fields = ["--set", "effective_batch=32", "--set", "lr=0.1", "--set", "duration=90st"]
    left_out = "Left out: weighted splits; {} gives every replica the same micro-batches."
    out = ran(["plan", *fields, "--gpus", "3", "--to", "transformers"], 1).out
    assert "--split" not in out and out.endswith(f"{left_out.format('transformers')}\n")
    assert "--split ragged" in ran(["plan", *fields, "--gpus", "3", "--to", "torchrun"], 1).out
    file = tmp_path / "ds.json"
    optimizer = {"type": "SGD", "params": {"lr": 0.1}}
    file.write_text(json.dumps({"train_batch_size": 32, "zero_optimization": {}, "optimizer": optimizer}))
    out = ran(["plan", "--from", str(file), "--gpus", "3", "--tool", "deepspeed"], 1).out
    assert "--split" not in out and left_out.format("deepspeed") in out


def test_a_tools_file_is_what_is_written(ran, tmp_path):
    """`-o` is the tool's file with `--to`, of a new, moved or saved plan; without `--to` it is the plan."""
    fields = ["--set", "effective_batch=32", "--set", "lr=0.1", "--set", "duration=90st", "--gpus", "4"]
    file, saved = tmp_path / "out.yaml", tmp_path / "plan.json"
    written = ["plan", *fields, "--to", "lightning", "-o"]
    assert ran([*written, str(file)]).out.startswith("4 GPUs: micro-batch 8")
    assert "accumulate_grad_batches: 1" in file.read_text()
    assert "is there already: --force replaces it" in ran([*written, str(file)], 2).err
    assert json.loads(ran([*written, str(file), "--force", "--json"]).out)["micro_batch"] == 8
    assert "accumulate_grad_batches" in ran([*written, "-"]).out.partition("trainer:")[2]
    assert "Lightning has no .sh files" in ran([*written, str(tmp_path / "a.sh")], 2).err
    ran(["plan", *fields, "-o", str(saved)])
    assert ib.Plan.load(saved).micro_batch == 8
    moved = ["replan", str(saved), "--at-step", "9", "--gpus", "2", "--to", "slurm"]
    ran([*moved, "-o", str(tmp_path / "job.sbatch")])
    assert (tmp_path / "job.sbatch").read_text().startswith("#!/usr/bin/env bash\n#SBATCH")


@pytest.mark.parametrize(
    "words",
    [
        "estimate --parameters 7e9 --gpu H100-80 --seq-len 4096",
        "plan --set effective_batch=8 --set lr=0.1 --gpus 8",
        "calibrate report.json",
        "exec examples/job.toml --gpus 8 -- true",
    ],
)
def test_json_is_not_written_into_a_file_of_another_format(words, tmp_path, ran):
    first, *rest = words.split()
    page = tmp_path / "x.html"
    text = ran([first, "-o", str(page), *rest], 2).err
    assert "x.html: is written as JSON: name it .json, not .html" in text and not page.exists()
