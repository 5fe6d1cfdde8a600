"""`isobatch exec`: the innermost launcher's count, the plan in the command, the command's end."""

import fcntl
import json
import os
import re
import shlex
import signal
import stat
import subprocess
import sys
import termios
import time
from array import array
from pathlib import Path

import pytest

import isobatch as ib
from isobatch.guard import guard

ROOT = Path(__file__).parents[2]
WORDS = ("{gpus}", "{micro_batch}", "{accumulation}", "{lr}", "{total_steps}")
FLAGS = ("--per_device_train_batch_size", "64", "--output_dir", "out")


def test_literal_braces_have_a_way_through(become):
    typed = ['{"a":{"b":{micro_batch}}}', "{{print}}", "${lr}", "{}", "x{1,2}", "{{{{messages}}}}", "{ lr }"]
    words, _ = become("--gpus", "2", "--", "t", *typed)
    assert words[1:] == ['{"a":{"b":12}}', "{print}", "${lr}", "{}", "x{1,2}", "{{messages}}", "{ lr }"]


def test_the_words_behind_the_dashes_are_the_commands(become):
    words, _ = become("--gpus", "2", "--", "t", "--gpus", "3", "--", "--help", "{lr}")
    assert words == ["t", "--gpus", "3", "--", "--help", "0.1"]


def test_a_count_that_cannot_be_trained_ends_with_the_menu_of_rank_0(become):
    code, error = become("--", "t", "{micro_batch}", WORLD_SIZE="5", RANK="0")
    assert code == 1
    assert "Cannot train on 5 GPUs as asked" in error and "--batch-tolerance" in error
    assert "split" not in error.partition("What would work:")[2]  # flags cannot weight a loss
    assert become("--", "t", "{micro_batch}", WORLD_SIZE="5", RANK="1") == (1, "")


def test_a_saved_plan_is_planned_for_these_processes(become, tmp_path):
    recipe = ib.Recipe(effective_batch=24, lr=0.1, duration="10st", gpus=2, micro_batch=12, accumulation=1)
    saved = ib.plan(recipe, ib.Cluster(gpus_per_node=2, gpu="H100"), policy="grow", rule="linear")
    saved.save(tmp_path / "p.json")
    words, handed = become(
        "--gpus", "4", "--", "t", "{lr}", "{effective_batch}", file=str(tmp_path / "p.json")
    )
    assert words == ["t", "0.2", "48"]
    assert ib.Plan.load(handed["ISOBATCH_PLAN"]).cluster == ib.Cluster(gpus_per_node=4, gpu="H100")


def test_options_of_plan_and_fields_of_the_recipe(become):
    words, _ = become("--gpus", "4", "--max-micro-batch", "2", "--set", "lr=0.3", "--", "t", *WORDS)
    assert words == ["t", "4", "2", "3", "0.3", "84"]


def test_flags_of_a_known_tool_take_the_values(become):
    command = ["t.py", FLAGS[0], "9", "--learning_rate=1", "--output_dir", "out", "--bf16"]
    words, _ = become("--gpus", "4", "--max-micro-batch", "2", "--", "python", *command)
    assert words[:4] == ["python", "t.py", "--per_device_train_batch_size", "2"]
    assert words[4:8] == ["--learning_rate=0.1", "--output_dir", "out", "--bf16"]
    flags = dict(zip(words[8::2], words[9::2], strict=True))
    assert flags["--gradient_accumulation_steps"] == "3"
    assert (flags["--max_steps"], flags["--warmup_steps"]) == ("84", "8")


def test_a_file_of_a_tool_that_the_command_names_is_copied_with_the_values(become, tmp_path):
    file = tmp_path / "args.json"
    own = {"per_device_train_batch_size": 8, "gradient_accumulation_steps": 3, "learning_rate": 1e-4}
    file.write_text(json.dumps({**own, "output_dir": "out", "num_train_epochs": 2, "max_steps": 84}))
    options = ["--set", "gpus=1", "--gpus", "2"]
    words, _ = become(*options, "--", "python", "t.py", str(file), file=str(file))
    copy = json.loads(Path(words[2]).read_text())
    assert words[:2] == ["python", "t.py"] and words[2] != str(file)
    assert copy["per_device_train_batch_size"] * copy["gradient_accumulation_steps"] == 12
    assert (copy["output_dir"], copy["learning_rate"], copy["max_steps"]) == ("out", 1e-4, 84)
    assert json.loads(file.read_text())["gradient_accumulation_steps"] == 3


def test_a_file_whose_batch_has_a_name_of_the_users_is_left_alone(become):
    file = str(ROOT / "examples" / "configs" / "lightning.yaml")
    words, _ = become("--gpus", "2", "--", "python", "main.py", "--config", file)
    assert words == ["python", "main.py", "--config", file]


def test_a_misspelt_recipe_is_still_read_as_one(become, tmp_path):
    (tmp_path / "typo.toml").write_text('effective_bacth = 24\nlr = 0.1\nduration = "84st"\n')
    code, error = become("--gpus", "2", "--", "t", "{lr}", file=str(tmp_path / "typo.toml"))
    assert code == 2 and "did you mean 'effective_batch'" in error


def test_a_command_with_neither_is_started_as_typed_and_said_once(become, capsys):
    command = ["python", "t.py", "--seed", "3"]
    assert become("--gpus", "2", "--", *command)[0] == command
    assert "neither braces nor a known tool's flags" in capsys.readouterr().err
    become("--gpus-per-process", "1", "--", "t", WORLD_SIZE="2", RANK="1")
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("command", "refused"),
    [
        (("t.py", "--bsz", "3"), "--bsz 3 is not this plan's"),
        (("t.py", "--n", "{gpus}", "--bsz", "3"), "--bsz 3 is not this plan's"),
        (("t.py", "--bs={micro_batch}", "--grad-accum=7"), "write --grad-accum {accumulation}"),
        (("t.py", "--bsz", "12", "--accum", "1", "--eval-batch-size", "3"), None),
        (("t.py", "--batch-size", "24"), None),  # of all ranks
    ],
)
def test_a_typed_batch_that_is_not_the_plans_does_not_start(become, command, refused):
    answer = become("--gpus", "2", "--", "python", *command)
    if refused is None:
        assert answer[0] == ["python", *command]
    else:
        assert answer[0] == 2 and refused in answer[1]


def test_a_launch_script_that_was_read_is_not_started_as_it_was_tuned(become, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    flags = "--per_device_train_batch_size 24 --learning_rate 0.1 --max_steps 9 --output_dir out"
    (tmp_path / "run.sh").write_text(f"torchrun --nproc-per-node 1 t.py {flags}\n")
    code, error = become("--gpus", "2", "--", "./run.sh", file="run.sh")
    assert code == 2 and "is FILE and the command" in error


@pytest.mark.parametrize(
    ("launcher", "file", "text"),
    [
        ("", "model.yaml", "d_model: 64\n"),
        ("", "model.json", '{"d_model": 64, "batch_size": 9}'),
        ("accelerate launch --config_file acc.yaml", "acc.yaml", "distributed_type: NO\nnum_processes: 4\n"),
    ],
)
def test_flags_are_set_as_flags_beside_a_file_of_another_kind(
    become, tmp_path, monkeypatch, launcher, file, text
):
    monkeypatch.chdir(tmp_path)
    Path(file).write_text(text)
    before = [*(launcher.split() or ["python"]), "t.py", *([] if launcher else ["--config", file])]
    words, _ = become("--gpus", "4", "--max-micro-batch", "2", "--", *before, *FLAGS)
    assert words[: len(before) + 2] == [*before, FLAGS[0], "2"]
    flags = dict(zip(words[len(before) :: 2], words[len(before) + 1 :: 2], strict=True))
    assert (flags["--gradient_accumulation_steps"], flags["--max_steps"]) == ("3", "84")


def test_a_file_of_the_tool_of_the_flags_is_still_copied(become, tmp_path):
    file = tmp_path / "sft.yaml"
    file.write_text("per_device_train_batch_size: 9\nmax_length: 64\npacking: true\nnum_train_epochs: 1\n")
    words, _ = become("--gpus", "4", "--max-micro-batch", "2", "--", "t.py", "--config", str(file), *FLAGS)
    assert words[2] != str(file) and "gradient_accumulation_steps: 3" in Path(words[2]).read_text()


def test_a_brace_outside_of_the_split_leaves_the_flags_to_the_plan(become):
    command = ["t.py", "--output_dir", "out-{gpus}", "--per_device_train_batch_size", "64"]
    words, _ = become("--gpus", "4", "--", "python", *command)
    assert words[3:6] == ["out-4", "--per_device_train_batch_size", "6"]
    assert "--gradient_accumulation_steps" in words


@pytest.mark.parametrize(
    ("command", "note"),
    [
        ("t {lr} --seed 64", "no {micro_batch} is in the command: it must read its batch from ISOBATCH_PLAN"),
        ("t {micro_batch}", "no {accumulation} is in the command, and the plan accumulates 3 times"),
        ("t {micro_batch} {passes} '{a: 1}' '{{ lr }}' {x:1}", ""),
        ("sh -c 'echo $ISOBATCH_MICRO_BATCH {lr}'", ""),
    ],
)
def test_braces_missing_in_the_command_are_named(become, capsys, command, note):
    become("--max-micro-batch", "2", "--", *shlex.split(command), WORLD_SIZE="4", RANK="0")
    error = capsys.readouterr().err
    assert (note in error and error.count("\n") == 1) if note else error == ""
    become("--", *shlex.split(command), RANK="1")
    assert capsys.readouterr().err == ""


def test_values_that_move_with_the_batch_and_are_not_in_the_command_are_named(become, capsys):
    grown = (
        "--set",
        "gpus=2",
        "--policy",
        "grow",
        "--gpus",
        "8",
        "--",
        "t",
        "{micro_batch}",
        "{accumulation}",
    )
    become(*grown, "--lr", "0.001")
    error = capsys.readouterr().err
    assert "not in the command, and other than in the tuned run: {lr} " in error and " (was " in error
    become(*grown, "{lr}", "{warmup_steps}", "{beta1}", "{beta2}", "{weight_decay}", "{eps}", "{min_lr}")
    assert capsys.readouterr().err == ""


def test_a_setting_by_another_name_is_taken_out_and_clipping_stays_as_typed(become):
    typed = ("--warmup_ratio", "0.1", "--num_train_epochs=3", "--max_grad_norm", "1.0", "--bf16")
    words, _ = become("--gpus", "4", "--", "python", "t.py", *typed, *FLAGS)
    assert words[2:6] == ["--max_grad_norm", "1.0", "--bf16", "--per_device_train_batch_size"]
    assert not {"--warmup_ratio", "--num_train_epochs=3"} & {*words}
    assert words[words.index("--warmup_steps") + 1] == "8"
    clipped, _ = become("--gpus", "4", "--set", "clip_norm=0.5", "--", "python", "t.py", *typed, *FLAGS)
    assert clipped[clipped.index("--max_grad_norm") + 1] == "0.5"


def test_the_tools_notes_are_printed_but_those_for_who_copies_a_file(become, capsys):
    become("--gpus", "4", "--set", "schedule=step(every=9st)", "--", "python", "t.py", *FLAGS)
    error = capsys.readouterr().err
    assert "the Trainer has no scheduler such as step" in error and "for the plan's own curve" in error
    assert "these lines hold for" not in error and "only what the plan decides" not in error


def test_a_number_has_one_form_and_an_outer_plan_leaves_nothing(become):
    words, handed = become(
        *("--gpus", "4", "--set", "lr=1e-05", "--", "t", "{lr}", "{replicas}"),
        ISOBATCH_CLIP_NORM="5",
        ISOBATCH_PRECISION="fp8",
        ISOBATCH_TRACEBACK="0",
    )
    assert words == ["t", handed["ISOBATCH_LR"], "4"]
    assert handed["ISOBATCH_TRACEBACK"] == "0"
    assert not {"ISOBATCH_CLIP_NORM", "ISOBATCH_PRECISION"} & handed.keys()
    flags, _ = become("--gpus", "4", "--set", "lr=1e-05", "--", "python", "t.py", *FLAGS)
    assert flags[flags.index("--learning_rate") + 1] == words[1]


def test_defaults_of_a_project_are_named_and_leave_a_saved_plan_alone(become, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("pyproject.toml").write_text('[tool.isobatch]\ngpu = "H100-80"\ntuned_gpus = 4\n')
    Path("each.toml").write_text('batch_per_gpu = 6\nlr = 0.1\nduration = "84st"\n')
    words, handed = become("--", "t", "{effective_batch}", file="each.toml", WORLD_SIZE="2", RANK="0")
    assert words == ["t", "24"]
    assert "isobatch exec: defaults of pyproject.toml: gpu H100-80, tuned_gpus 4" in capsys.readouterr().err
    assert ib.Plan.load(handed["ISOBATCH_PLAN"]).cluster.gpu == "H100-80"
    saved = ib.plan(ib.Recipe(effective_batch=24, lr=0.1), ib.Cluster(gpus_per_node=2, gpu="A100-40"))
    saved.save("plan.json")
    handed = become("--", "t", "{effective_batch}", file="plan.json")[1]
    assert ib.Plan.load(handed["ISOBATCH_PLAN"]).cluster.gpu == "A100-40"
    assert "defaults" not in capsys.readouterr().err


def test_the_example_of_the_page_runs(job):
    page = (ROOT / "docs" / "exec.md").read_text().partition("```console\n")[2].partition("```")[0]
    examples = re.findall(r"\$ (.+)\n(.+)", page)
    assert len(examples) == 2
    for command, shown in examples:
        words = command.replace("isobatch exec", f"{sys.executable} -m isobatch exec")
        started = subprocess.run(["bash", "-c", f"{words} 2>&1"], stdout=subprocess.PIPE, text=True, cwd=ROOT)
        assert started.stdout.splitlines()[0] == shown


# ---- the file of the plan ----


def test_ranks_and_runs_of_one_plan_share_a_file_that_only_this_user_writes(become, tmp_path):
    plans = [become("--", "t", "{lr}", WORLD_SIZE="2", RANK=rank)[1]["ISOBATCH_PLAN"] for rank in "01"]
    (path,) = map(Path, {*plans})
    before = path.stat().st_ino
    become("--", "t", "{lr}", WORLD_SIZE="2")
    assert path.stat().st_ino == before
    assert path.parent == tmp_path / f"isobatch-{os.getuid()}"
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert [*path.parent.iterdir()] == [path]
    path.write_text("cut")
    become("--", "t", "{lr}", WORLD_SIZE="2")
    assert ib.Plan.load(path).world_size == 2


@pytest.mark.parametrize("is_link", [True, False])
def test_a_folder_of_another_hand_is_not_used(become, tmp_path, is_link):
    (tmp_path / "elsewhere").mkdir()
    folder = tmp_path / f"isobatch-{os.getuid()}"
    if is_link:
        folder.symlink_to(tmp_path / "elsewhere")
    else:  # others may write there
        folder.mkdir()
        folder.chmod(0o777)
    path = Path(become("--gpus", "2", "--", "t", "{lr}")[1]["ISOBATCH_PLAN"])
    assert path.exists() and tmp_path not in path.parents


def test_folders_of_others_everywhere_are_named(become, monkeypatch):
    nobody = 100_000 + os.getpid()
    monkeypatch.setattr(os, "getuid", lambda: nobody)
    code, error = become("--gpus", "2", "--", "t", "{lr}")
    assert code == 2 and "the plan cannot be saved" in error
    assert f"isobatch-{nobody}: is not this user's alone" in error and error.endswith("pass -o FILE\n")
    for folder in (Path(place, f"isobatch-{nobody}") for place in ("/tmp", "/var/tmp", "/dev/shm", ".")):
        if folder.exists():
            folder.rmdir()


def test_a_plan_without_a_suffix_has_the_copies_of_files_beside_it(become, tmp_path):
    file = tmp_path / "args.json"
    file.write_text('{"per_device_train_batch_size": 8, "num_train_epochs": 2, "output_dir": "out"}')
    words, _ = become("--gpus", "2", "-o", str(tmp_path / "plan"), "--", "python", "t.py", str(file))
    assert json.loads(Path(words[2]).read_text())["per_device_train_batch_size"] == 12
    assert (tmp_path / "plan.files") in Path(words[2]).parents


def test_the_plan_goes_where_it_is_asked_to(become, tmp_path):
    path = tmp_path / "shared.json"
    assert become("--gpus", "2", "-o", str(path), "--", "t", "{lr}")[1]["ISOBATCH_PLAN"] == str(path)
    assert ib.Plan.load(path).world_size == 2


# ---- what a script finds in its environment ----


def test_guard_without_arguments_takes_the_handed_plan(become, monkeypatch):
    pytest.importorskip("torch")
    handed = become("--gpus", "2", "--", "t", "{lr}")[1]
    monkeypatch.setenv("ISOBATCH_PLAN", handed["ISOBATCH_PLAN"])
    assert guard().plan.world_size == 2
    monkeypatch.setenv("ISOBATCH_PLAN", "/nowhere/plan.json")
    with pytest.raises(
        ib.InputError, match=r"ISOBATCH_PLAN names a file that is not on this host: put isobatch"
    ):
        guard()
    monkeypatch.delenv("ISOBATCH_PLAN")
    with pytest.raises(ib.InputError, match="ISOBATCH_PLAN is missing: start the script by isobatch exec"):
        guard()


def test_an_elastic_run_takes_the_handed_plan_also_of_a_run_that_moved(become, tmp_path, monkeypatch):
    pytest.importorskip("torch")
    from isobatch.integrations.torch import ElasticRun

    recipe = ib.Recipe(effective_batch=24, lr=0.1, optimizer="sgd", dataset_size=240, duration="4ep")
    running = ib.plan(recipe, 2, policy=48, rule="sqrt")
    running.save(tmp_path / "plan.json")
    monkeypatch.setenv("ISOBATCH_PLAN", str(tmp_path / "plan.json"))
    run = ElasticRun.from_env(max_micro_batch=8)
    assert run.recipe == recipe
    assert (run.plan.world_size, run.plan.effective_batch, run.plan.micro_batch) == (1, 48, 8)
    ib.replan(running, at_step=4, cluster=1).save(tmp_path / "plan.json")
    assert ElasticRun.from_env(state=run.state_dict()).plan.rule == "sqrt"


NOTHING = "isobatch guard: the script made no Trainer of transformers: nothing was watched\n"


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["ends.py", "--lr", "1"], 0, NOTHING),
        (["-m", "ends", "--lr", "1"], 0, NOTHING),
        (["-m"], 2, "usage: python -m isobatch.guard train.py [ARGUMENTS], or -m MODULE [ARGUMENTS]\n"),
        (["nowhere.py"], 2, "isobatch guard: nowhere.py: there is no such script\n"),
    ],
)
def test_the_guard_of_a_script_says_how_it_ended(become, tmp_path, words, code, message):
    (tmp_path / "ends.py").write_text("import sys; print(sys.argv[1:], sys.path[0]); sys.exit(0)")
    handed = become("--gpus", "2", "--", "t", "{lr}")[1]
    command = [sys.executable, "-m", "isobatch.guard", *words]
    ended = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=handed)
    assert (ended.returncode, ended.stderr) == (code, message)
    assert ended.stdout == (f"['--lr', '1'] {tmp_path}\n" if message == NOTHING else "")
    none = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert code or (none.returncode == 2 and "ISOBATCH_PLAN is missing" in none.stderr)


@pytest.mark.slow
def test_the_guard_stops_an_unchanged_trainer_script(job, tmp_path):
    pytest.importorskip("transformers")
    fields = 'dataset_size = 96\nconvention = "transformers"\nschedule = "linear"\nclip_norm = 1.0\n'
    Path(job).write_text(f'effective_batch = 12\nlr = 0.05\nduration = "4st"\n{fields}')
    script = str(Path(__file__).parent / "exec_scripts" / "trainer.py")
    flags = "--per_device_train_batch_size 4 --output_dir out --use_cpu --report_to none --save_strategy no"
    flags += " --remove_unused_columns False"
    words = [sys.executable, "-m", "isobatch.guard", script, *flags.split()]
    command = [sys.executable, "-m", "isobatch", "exec", job, "--gpus", "1", "--max-micro-batch", "4", "--"]
    same = subprocess.run([*command, *words], capture_output=True, text=True, cwd=tmp_path)
    assert same.returncode == 0, same.stderr
    flags = ["--learning_rate", "0.2", "--gradient_accumulation_steps", "{accumulation}", "--max_steps", "4"]
    wrong = subprocess.run([*command, *words, *flags], capture_output=True, text=True, cwd=tmp_path)
    assert wrong.returncode == 1
    assert "learning rate 0.2, 0.05 planned" in wrong.stderr


# ---- becoming the command ----


def process(job, *words, **options):
    """Starts `isobatch exec` as a process of its own."""
    command = [sys.executable, "-m", "isobatch", "exec", job, "--gpus", "2", *words]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options)


def test_the_process_is_the_command(job):
    script = 'echo $$ {lr}; read line; echo "$line"; yes | head -n 1; kill -TERM $$'
    started = process(job, "--", "sh", "-c", script, stdin=subprocess.PIPE)
    out, error = started.communicate("from stdin\n", timeout=60)
    assert out.split("\n")[:3] == [f"{started.pid} 0.1", "from stdin", "y"]
    assert started.returncode == -signal.SIGTERM
    assert "Broken pipe" not in error  # Python ignores SIGPIPE, and the command must not


@pytest.mark.parametrize(
    ("command", "code", "message"),
    [
        ("exit 7", 7, ""),
        ("nowhere-{lr}", 127, "isobatch exec: nowhere-0.1: command not found"),
        ("job.toml", 127, "isobatch exec: job.toml: command not found: write ./job.toml or python job.toml"),
        ("./job.toml", 126, "isobatch exec: ./job.toml: cannot be started: Permission denied"),
    ],
)
def test_exit_codes_are_the_commands_or_a_shells(job, tmp_path, command, code, message):
    words = ["sh", "-c", command] if code == 7 else [command]
    started = process(job, "--", *words, "{lr}", cwd=tmp_path)
    assert message in started.communicate(timeout=60)[1]
    assert started.returncode == code


def test_a_signal_while_it_plans_ends_it_before_anything_starts(job, tmp_path):
    read, write = os.pipe()
    (tmp_path / "slow.toml").symlink_to(f"/dev/fd/{read}")  # as bash hands on <(command)
    words = [str(tmp_path / "slow.toml"), "--", "touch", "{lr}"]
    started = process(*words, cwd=tmp_path, pass_fds=(read,))
    os.write(write, b"lr = 0.1\n")
    unread = array("i", [1])
    while unread[0]:
        time.sleep(0.01)
        fcntl.ioctl(read, termios.FIONREAD, unread)
    started.send_signal(signal.SIGTERM)
    assert started.communicate(timeout=30) == ("", "")
    os.close(write)
    os.close(read)
    assert started.returncode == -signal.SIGTERM
    assert not (tmp_path / "0.1").exists()


def test_a_read_only_working_folder_is_enough(job, tmp_path):
    folder = tmp_path / "read-only"
    folder.mkdir(mode=0o500)
    started = process(job, "--", "echo", "{micro_batch}", cwd=folder)
    assert started.communicate(timeout=60) == ("12\n", "")
    assert not [*folder.iterdir()]


def test_neither_numpy_nor_other_tools_are_imported_for_a_recipe(job):
    modules = ("numpy", "torch", "isobatch.tools.read", "isobatch.schedules", "isobatch.cli.source")
    code = f"""
import os, sys
os.execvpe = lambda *_: sys.exit(print(*({{*sys.modules}} & {{*{modules}}})))
from isobatch.cli import command
command()
"""
    words = ["exec", job, "--gpus", "2", "--", "t", "{micro_batch}"]
    ended = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, timeout=60)
    assert (ended.stdout, ended.stderr) == ("\n", "")


def test_two_runs_at_once_have_their_own_plans(job):
    runs = [
        process(job, "--max-micro-batch", str(most), "--", "sh", "-c", "cat $ISOBATCH_PLAN; : {lr}")
        for most in (2, 4)
    ]
    assert [json.loads(run.communicate(timeout=60)[0])["micro_batch"] for run in runs] == [2, 4]
