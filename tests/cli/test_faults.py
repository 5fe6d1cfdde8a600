"""A failed command says so in a line and by its exit code: 2 for wrong use, 3 for our own faults."""

import json
import os
import subprocess
import sys

import pytest

from isobatch.cli import main
from isobatch.cli.terminal import say
from terminals import on_a_terminal

RECIPE = {"effective_batch": 256, "lr": 0.1}
SET = ["--set", "effective_batch=256", "--set", "lr=0.1"]


@pytest.fixture
def recipe(tmp_path):
    path = tmp_path / "job.json"
    path.write_text(json.dumps(RECIPE))
    return str(path)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["pln"], "isobatch: unknown command 'pln': did you mean 'plan'?"),
        (["plan", "--from", "a.py", "--tool", "mmengine"],
            "any other tool is planned as a recipe, with --set (docs/tools.md"),
        (["plan", "--gpu-s", "8"], "isobatch plan: unknown option '--gpu-s': did you mean '--gpus'?"),
        (["plan", "job.json", "--gpus", "8", "--to", "hyperpod"],
            "which isobatch counts prints (--to hyperpod, without -o)"),
        (["plan", "--gpus", "8", "--max-micro", "4"], "unknown option '--max-micro'"),
        (["plan", *SET, "--gpu", "64"], "did you mean --gpus 64?"),
        (["plan", "--micro-batch", "8"], "isobatch plan: unknown option '--micro-batch': did you mean"),
        (["plan", "--batch", "8"],
            "unknown option '--batch': recipe fields go with --set effective_batch=VALUE"),
        (["plan", "--gpus", "x"], "isobatch plan: --gpus must be a whole number, at least 1, got 'x'"),
        (["plan", "--gpus", "0"], "isobatch plan: --gpus must be at least 1, got 0"),
        (["plan", "--gpus"], "isobatch plan: --gpus needs a value"),
        (["plan", "--gpus", "8,7"], "got '8,7' (isobatch counts lists several)"),
        (["plan", "--gpus", "1..6"], "got '1..6' (isobatch counts lists several)"),
        (["plan", "--gpus", "8", "--max-batch", "1,2"], "--max-batch"),
        (["schedule", "cosine", "--steps", "10,20"],
            "--steps must be a whole number, at least 1, got '10,20'"),
        (["counts", "job.json", "--gpus", "1,024"], "without separators of thousands, got '1,024'"),
        (["plan", *SET, "--gpus", "12", "--gpus-per-node", "8"],
            "fills no whole nodes of 8 GPUs: use 8 or 16 GPUs, or another --gpus-per-node"),
        (["plan", "--memory-gib", "much"], "isobatch plan: --memory-gib must be a number, got 'much'"),
        (["replan", "plan.json"], "isobatch replan: --at-step is missing"),
        (["fleet", "a.csv", "b.csv", "c.csv"], "isobatch fleet: unexpected argument 'c.csv'"),
        (["counts", "a.toml", "1..64"], "isobatch counts: unexpected argument '1..64': use --gpus 1..64"),
        (["plan", "a.toml", "24"], "isobatch plan: unexpected argument '24': use --gpus 24"),
        (["fleet", "a.csv", "b.csv", "-o", ""], "isobatch fleet: -o must be a path, got ''"),
        (["plan", "job.json", "--gpus", "8", "-o", ""], "isobatch plan: -o must be a path, got ''"),
        (["fleet", "a.csv", "--columns", "job,,lr"], "--columns must be names between commas"),
        (["validate", "--device", "tpu"],
            "isobatch validate: unknown --device 'tpu': there are auto, cpu, cuda"),
        (["fleet", "a.csv", "--top", "3"],
            "isobatch fleet: --top needs select: fastest, cheapest or goodput"),
        (["fleet", "a.csv", "--select", "fast"],
            "isobatch fleet: --select: unknown choice 'fast': did you mean"),
        (["fleet", "a.csv", "--policy", "grw"], "isobatch fleet: --policy must be keep, grow"),
        (["fleet", "a.csv", "-o", "/dev/null"], "is no regular file: leave -o out to write to stdout"),
        (["--completion", "fish"], "isobatch: unknown --completion 'fish': there are bash, zsh, tcsh"),
    ],
)  # fmt: skip
def test_wrong_use_is_one_line(words, message, ran):
    captured = ran(words, 2)
    assert captured.out == "" and captured.err.startswith("isobatch") and message in captured.err
    assert "usage:" not in captured.err and captured.err.count("\n") == 1


def test_each_option_that_is_wrong_is_named_as_it_was_typed(ran):
    output = ran(["validate", "plan.json", "--noise-steps", "1", "--memory-limit", "-1"], 2).err
    assert "--noise-steps must be 0, or at least 2, got 1" in output
    assert "--memory-limit must be a number above 0, got -1.0" in output
    assert "--full not allowed with argument --quick" in ran(["validate", "a", "--quick", "--full"], 2).err


def broken(error):
    def run(_):
        raise error

    return run


def test_a_fault_of_our_own_is_exit_3_in_one_line(recipe, ran, monkeypatch):
    monkeypatch.setattr("isobatch.cli.plan.run", broken(ZeroDivisionError("division\nby zero\x1b[2J")))
    output = ran(["plan", recipe, "--gpus", "8"], 3).err
    assert "a fault of isobatch itself (ZeroDivisionError: division\\nby zero\\x1b[2J)" in output
    assert "CONTRIBUTING.md" in output and output.count("\n") == 1 and "Traceback" not in output
    monkeypatch.setenv("ISOBATCH_TRACEBACK", "1")
    assert "Traceback" in ran(["plan", recipe, "--gpus", "8"], 3).err


@pytest.mark.parametrize(
    ("package", "extra"), [("pyarrow.fs", "fleet"), ("torch", "validate"), ("ray", "ray"), ("yaml", "fleet")]
)
def test_a_missing_extra_says_what_to_install(recipe, ran, monkeypatch, package, extra):
    error = ModuleNotFoundError(f"No module named {package!r}", name=package)
    monkeypatch.setattr("isobatch.cli.plan.run", broken(error))
    assert f"pip install '.[{extra}]'" in ran(["plan", recipe, "--gpus", "8"], 2).err
    monkeypatch.setattr("isobatch.cli.plan.run", broken(ModuleNotFoundError("no", name="isobatch.nothing")))
    assert main(["plan", recipe, "--gpus", "8"]) == 3


PROGRAM = f"{sys.executable} -m isobatch plan --set effective_batch=256 --set lr=0.1 --gpus 8"


@pytest.mark.parametrize(
    ("to", "code", "message"),
    [
        ("> /dev/full", 2, "isobatch plan: cannot write to stdout: No space left on device\n"),
        (">&-", 2, "isobatch plan: stdout is closed: send it to a file, or to /dev/null\n"),
        ("| true", 0, ""),
    ],
)
@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="a disk that is full")  # noqa: PTH110
def test_a_stdout_that_takes_nothing(to, code, message):
    process = subprocess.run(["sh", "-c", f"{PROGRAM} {to}"], capture_output=True, text=True, timeout=60)
    assert (process.returncode, process.stderr) == (code, message)


def test_control_characters_of_names_do_not_reach_the_terminal(tmp_path, capsys):
    pytest.importorskip("pyarrow", reason="tables in files come with the extra 'fleet'")
    name = "a\x1b[2J\u202e.csv"
    (tmp_path / name).write_text('job,effective_batch,lr\n"x\x1b[2J\nisobatch fleet: all is well",256,nan\n')
    (tmp_path / "c.csv").write_text("nodes\n1\n")
    for words in (["-o", str(tmp_path / "o.csv")], ["--columns", "nothing"]):
        main(["fleet", str(tmp_path / name), str(tmp_path / "c.csv"), *words])
        output = capsys.readouterr().err
        assert not any(part in output for part in ("\x1b", "\u202e", "\nisobatch fleet: all is well"))
    say("a\x1b[2J\nb")
    assert capsys.readouterr().err == "a\\x1b[2J\nb\n"


@pytest.fixture
def fleet(tmp_path):
    pytest.importorskip("pyarrow", reason="tables in files come with the extra 'fleet'")
    pytest.importorskip("rich", reason="tables on a terminal come with the extra 'fleet'")
    (tmp_path / "c.csv").write_text("nodes\n1\n")
    return ["fleet", tmp_path / "jobs.csv", tmp_path / "c.csv"]


def test_cells_are_no_markup(fleet):
    fleet[1].write_text(
        "job,effective_batch,lr\n[/nope],256,0.1\n[link=file:///etc]x[/link] :smile:,256,0.1\n"
    )
    shown = on_a_terminal(*fleet, columns=200)
    assert "[/nope]" in shown and "[link=file:///etc]x[/link] :smile:" in shown


def test_a_terminal_shows_the_columns_that_were_asked_for(fleet):
    rows = "".join(f"j{n},256,0.1\n" for n in range(459))
    fleet[1].write_text(f"job,effective_batch,lr\n{rows}")
    shown = on_a_terminal(*fleet, "--columns", "job,beta2", columns=200)
    assert "beta2" in shown and "0.999" in shown and "j39" in shown and "j40" not in shown
    assert "showing 40 of 459 rows, 2 of 2 columns; use -o FILE for all" in shown
    assert "showing 40 of 459 rows, 9 of " in on_a_terminal(*fleet, columns=200)


def test_columns_that_are_no_fields_are_said_once(fleet, tmp_path, ran):
    fleet[1].write_text("job,effective_batch,lr,weight_dcay,team\na,256,0.1,0.1,x\nb,256,0.1,0.1,x\n")
    for output in ([], ["-o", str(tmp_path / "o.csv")], ["-o", str(tmp_path / "plans/")]):
        printed = ran([*map(str, fleet), *output]).err
        assert printed.count("not fields, carried along: weight_dcay (weight_decay?), team") == 1


def test_a_slip_in_a_column_is_a_warning():
    import isobatch as ib

    with pytest.warns(UserWarning, match=r"carried along: weight_dcay \(weight_decay\?\)$") as output:
        ib.plan_fleet({"effective_batch": [8], "lr": [0.1], "weight_dcay": [1], "team": [1]}, [8])
    assert output[0].filename == __file__  # the line that called, not one of ours


def test_a_training_command_goes_to_the_commands_that_take_one(ran):
    text = ran(["plan", "--gpus", "1", "--", "python", "train.py"], 2).err
    assert "isobatch doctor --gpus N -o recipe.toml -- COMMAND" in text and "isobatch exec FILE" in text
