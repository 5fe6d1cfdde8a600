"""The view on a terminal: colours where they are wanted, whole words at 80 columns, signs of any encoding."""

import json
import os
import re
import shlex
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from isobatch.cli import COMMANDS, main, parser_of, tables
from terminals import on_a_terminal

ROOT = Path(__file__).parents[2]
RECIPE = ["--set", "effective_batch=256", "--set", "lr=0.1", "--set", "gpus=8", "--set", "micro_batch=32"]
CODES = re.compile(r"\x1b\[[\d;?]*[a-zA-Z]")


@pytest.fixture
def piped(capsys, monkeypatch):
    """The output into a pipe."""

    def run(*words, **environment):
        with monkeypatch.context() as patch:
            for name in ("NO_COLOR", "FORCE_COLOR"):
                patch.delenv(name, raising=False)
            for name, value in environment.items():
                patch.setenv(name, value)
            assert main(list(words)) in (0, 1)
        return capsys.readouterr().out

    return run


def test_a_plan_has_the_colour_of_its_status():
    shown = on_a_terminal("plan", *RECIPE, "--gpus", "64")
    assert shown.startswith("\x1b[33m64 GPUs:\x1b[0m ") and "\x1b[33mWarnings:\x1b[0m" in shown
    shown = on_a_terminal("plan", *RECIPE, "--gpus", "7", code=1)
    assert shown.startswith("\x1b[1;31mCannot train on 7 GPUs as asked:\x1b[0m")
    assert on_a_terminal("plan", *RECIPE, "--gpus", "8").startswith("\x1b[32m8 GPUs:\x1b[0m ")


def test_answers_are_bold_and_sources_dim():
    shown = on_a_terminal("plan", *RECIPE, "--gpus", "64", "--policy", "grow")
    assert "micro-batch \x1b[1m32\x1b[0m ×" in shown and "Batch size 256 → \x1b[1m2,048\x1b[0m" in shown
    assert re.search(r"\x1b\[2m\s\[[^\]]*\d{4}[^\]]*\]\x1b\[0m", shown)
    menu = on_a_terminal("plan", *RECIPE, "--gpus", "7", code=1)
    assert "\x1b[36m--gpus 8\x1b[0m" in menu


def test_an_error_is_red_and_a_help_is_painted(monkeypatch, capsys, ran):
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert main(["plan", *RECIPE, "--gpu", "8"]) == 2
    assert capsys.readouterr().err.startswith("\x1b[1;31misobatch plan:\x1b[0m cluster is missing")

    def lacking(args):
        raise ModuleNotFoundError(name="pyarrow")

    with monkeypatch.context() as patch:
        patch.setattr(import_module("isobatch.cli.fleet"), "run", lacking)
        assert main(["fleet", "jobs.csv", "--gpus", "8"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("\x1b[1;31misobatch fleet:\x1b[0m") and "pip install '.[fleet]'" in error
    assert "\x1b[1;32mplan a run:\x1b[0m\n  \x1b[36mplan\x1b[0m " in ran([], 2).err
    with pytest.raises(SystemExit):
        main(["plan", "--help"])
    assert "\x1b[1;32moptions:\x1b[0m" in capsys.readouterr().out


def test_colours_can_be_refused_and_forced(piped):
    words = ["plan", *RECIPE, "--gpus", "8"]
    assert "\x1b" not in on_a_terminal(*words, NO_COLOR="1")
    assert "\x1b" not in on_a_terminal(*words, TERM="dumb")
    assert "\x1b" not in piped(*words)
    assert piped(*words, FORCE_COLOR="1").startswith("\x1b[32m")
    assert "\x1b" not in piped(*words, FORCE_COLOR="1", NO_COLOR="1")
    assert "\x1b" not in piped(*words, FORCE_COLOR="0")
    assert json.loads(piped(*words, "--json", FORCE_COLOR="1"))["status"] == "ok"


def test_no_word_is_cut_at_80_columns(piped):
    whole = piped("plan", *RECIPE, "--gpus", "64").split()
    shown = CODES.sub("", on_a_terminal("plan", *RECIPE, "--gpus", "64"))
    assert shown.split() == whole and max(map(len, shown.splitlines())) <= 80


@pytest.mark.parametrize(
    "words",
    [
        ["help"],
        ["explain", "--rules"],
        ["doctor", "examples/training_args.json", "--gpus", "32"],
        ["plan", "examples/job.toml", "--gpus", "7"],
        ["counts", "examples/job.toml", "--gpus", "1..9"],
        ["schedule", "wsd(decay=20%)", "--steps", "1000", "--warmup", "9", "--plot"],
        *(["help", command] for command in COMMANDS),
    ],
    ids=" ".join,
)
def test_nothing_is_wider_than_80_columns(words, monkeypatch):
    monkeypatch.chdir(ROOT)
    shown = CODES.sub("", on_a_terminal(*words, code=1 if "7" in words else 0))
    assert max(map(len, shown.splitlines())) <= 80


@pytest.fixture
def fleet(tmp_path):
    pytest.importorskip("pyarrow", reason="tables in files come with the extra 'fleet'")
    pytest.importorskip("rich", reason="progress on a terminal comes with the extra 'fleet'")
    jobs = tmp_path / "jobs.csv"
    rows = "resnet50-goyal-imagenet-1k,256,0.1,the first team\na-job-名前-with-wide-signs,7,0.1,x\n"
    jobs.write_text(f"job,effective_batch,lr,team\n{rows}")
    return [jobs, "--gpus", "7,8"]


def table_of(shown):
    lines = CODES.sub("", shown).splitlines()
    start = next(number for number, line in enumerate(lines) if re.match(r"\s*job\b", line))
    return lines[start:]


def test_a_narrow_terminal_leaves_columns_out_and_cuts_nothing(fleet):
    cells = pytest.importorskip("rich.cells", reason="tables on a terminal come with the extra 'fleet'")
    shown = on_a_terminal("fleet", *fleet)
    lines = table_of(shown)
    assert "resnet50-goyal-imagenet-1k" in lines[1] and "infeasible" in lines[1]
    assert "a-job-名前-with-wide-signs" in shown
    assert lines[0].split()[:3] == ["job", "cluster", "status"] and "total_steps" not in lines[0]
    assert all(cells.cell_len(line) <= 80 for line in lines[:5])
    assert re.search(r"showing 4 of 4 rows, \d of \d+ columns; use -o FILE for all", shown)
    assert "\x1b[1;31minfeasible\x1b[0m" in shown and "\x1b[32mok\x1b[0m" in shown
    wide = table_of(on_a_terminal("fleet", *fleet, columns=200))
    assert "total_steps" in wide[0] or "effective_batch" in wide[0]


def test_columns_that_were_asked_for_are_all_shown(fleet):
    words = "job,cluster,status,reasons,nearest_world_size,nearest_batch,effective_batch,team"
    shown = CODES.sub("", on_a_terminal("fleet", *fleet, "--columns", words))
    assert "status" in shown and "team" in shown
    wide = CODES.sub("", on_a_terminal("fleet", *fleet, "--columns", words, columns=200))
    assert re.search(r"\s+".join(words.split(",")), wide) and "the first team" in wide


def test_the_progress_leaves_nothing_behind(fleet):
    shown = on_a_terminal("fleet", *fleet, "-o", fleet[0].with_name("plans.parquet"))
    # The cursor is shown again, a line up, and that line is wiped.
    assert shown.rindex("\x1b[?25h") < shown.rindex("\x1b[1A\x1b[2K") < shown.index("4 rows: ")


def test_texts_are_wrapped_between_words(capsys, monkeypatch):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setenv("NO_COLOR", "1")
    names = tables.show_table(["job", "notes"], [["a", "one two three four five six seven eight nine ten"]])
    lines = capsys.readouterr().out.splitlines()
    assert names == ["job", "notes"] and len(lines) == 3 and max(map(len, lines)) <= 40
    words = "job notes a one two three four five six seven eight nine ten"
    assert " ".join(" ".join(lines).split()) == words
    assert tables.show_table(["a", "b"], [["x" * 30, "y" * 30]], spare=["b"]) == ["a"]
    capsys.readouterr()
    assert tables.show_table(["a", "b"], [["x" * 30, "y" * 30]]) == ["a", "b"]
    out = capsys.readouterr().out
    assert out.count("x") == out.count("y") == 30


def test_without_rich_a_terminal_gets_plain_columns(capsys, monkeypatch):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setitem(sys.modules, "rich.console", None)
    assert tables.show_table(["job", "lr"], [["resnet", "0.1"], ["[b]", "1"]], spare=["lr"]) == ["job", "lr"]
    assert capsys.readouterr().out == "job     lr\nresnet  0.1\n[b]     1\n"


@pytest.mark.parametrize("encoding", ["ascii", "cp1252", "latin-1"])
def test_any_encoding_can_print_what_is_said(encoding):
    program = [sys.executable, "-m", "isobatch", "plan", *RECIPE, "--gpus", "128", "--policy", "grow"]
    environment = {**os.environ, "PYTHONIOENCODING": encoding, "PYTHONUTF8": "0"}
    process = subprocess.run(program, capture_output=True, env=environment)
    text = process.stdout.decode(encoding)
    assert process.returncode == 0 and "->" in text and "?" not in text
    json_done = subprocess.run([*program, "--json"], capture_output=True, env=environment)
    assert json.loads(json_done.stdout)["micro_batch"] == 32  # UTF-8 whatever the terminal is
    if encoding == "ascii":
        assert "micro-batch 32 x accumulation 1 x 128 replicas" in text and "eta' = sqrt k*eta" in text


def test_help_has_examples_that_can_be_given(capsys):
    for name in COMMANDS:
        lines = parser_of(name).examples
        for part in (part for line in lines for part in line.split(" | ")):
            program, *words = shlex.split(part)
            if program == "isobatch":
                assert words[0] in (name, "counts")
                parser_of(words[0]).read(words[1:])
        with pytest.raises(SystemExit) as ended:
            main([name, "--help"])
        assert ended.value.code == 0
        shown = capsys.readouterr().out
        assert shown.startswith(f"usage: isobatch {name}")
        assert f"examples:\n  {lines[0]}" in shown.replace(" \\\n      ", " ")
    with pytest.raises(SystemExit):
        main(["plan", "--help"])
    shown = capsys.readouterr().out
    assert "fields of a recipe" in shown and "weight_decay" in shown and "device_batches" in shown
