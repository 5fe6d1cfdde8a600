"""A shell script's launch line, recorded in the place of being started."""

import pytest

import isobatch as ib
from isobatch.cli import main
from isobatch.equivalence.commands.shell_lines import launch_words, recorded_line, shell_script
from isobatch.equivalence.recorder.record_launch import starts_training
from isobatch.errors import InputError

SCRIPT = """#!/bin/bash
set -euo pipefail
cd "$(dirname "$0")"
export PATH=/usr/bin:$PATH STAGE=two HF_TOKEN=secret
declare -A passes=([small]=2 [big]=8)
BATCH=$(python3 -c 'print(2**2)')
for kind in big; do
  torchrun --nproc_per_node 4 train.py --per_device_train_batch_size $BATCH --max_steps 100 \\
    --gradient_accumulation_steps ${passes[$kind]} --learning_rate $(cat lr.txt) 2>&1 | tee log.txt
done
"""


@pytest.fixture
def script(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.sh").write_text(SCRIPT)
    (tmp_path / "lr.txt").write_text("2e-5\n")
    return "run.sh"


def recorded(text, tmp_path):
    (tmp_path / "own.sh").write_text(text)
    return recorded_line(["bash", str(tmp_path / "own.sh")], 60)


def test_a_script_that_is_not_read_is_offered_its_recording_and_recorded(script, tmp_path, capsys):
    assert main(["plan", "--from", script, "--gpus", "8"]) == 2
    assert "isobatch doctor -- bash run.sh runs the script" in capsys.readouterr().err
    assert main(["doctor", "--gpus", "8", "-o", "r.toml", "--", "bash", script]) == 1
    shown, messages = capsys.readouterr()
    assert (
        "recorded, not started: torchrun --nproc_per_node 4 train.py --per_device_train_batch_size 4"
        in messages
    )
    assert "run.sh: transformers TrainingArguments, on 8 GPUs" in shown
    assert "--per-device-train-batch-size 4; --gradient-accumulation-steps 4" in shown
    recipe = ib.Recipe.load("r.toml")
    assert (recipe.effective_batch, recipe.gpus, recipe.lr, recipe.duration) == (128, 4, 2e-5, "100st")


def test_a_recorded_line_has_the_scripts_variables_and_folder_but_no_secret(script, tmp_path):
    line = recorded_line(["bash", script], 60)
    assert line.variables == {"STAGE": "two"}
    assert line.folder == str(tmp_path)
    assert line.text.startswith("export STAGE=two\ntorchrun --nproc_per_node 4")
    assert line.command[:2] == ["STAGE=two", "torchrun"]


def test_a_script_without_a_training_or_with_several_says_so(tmp_path):
    with pytest.raises(InputError, match="ended with exit code 3 without starting a training: .*\nno module"):
        recorded("echo no module; exit 3", tmp_path)
    with pytest.raises(InputError, match=r"starts 2 trainings: .*\n  isobatch doctor -- torchrun a.py\n"):
        recorded("torchrun a.py\ntorchrun b.py", tmp_path)
    line = recorded("for i in 1 2; do python prepare.py; nohup torchrun a.py & done; wait", tmp_path)
    assert line.words == ("torchrun", "a.py")
    with pytest.raises(InputError, match="was ended after 1 s"):
        (tmp_path / "own.sh").write_text("sleep 60")
        recorded_line(["bash", str(tmp_path / "own.sh")], 1)


def test_same_asks_about_the_line_that_a_script_starts(script, tmp_path):
    lines = []
    words = launch_words(["bash", script], 60, lines.append)
    assert words[:4] == ["STAGE=two", "torchrun", "--nproc_per_node", "4"]
    assert lines[0].startswith("run.sh starts: STAGE=two torchrun")
    for command in (["bash", script, "{micro_batch}"], ["torchrun", "t.py"]):
        assert launch_words(command, 60, lines.append) is command
    (tmp_path / "elsewhere.sh").write_text("cd /; torchrun t.py")
    with pytest.raises(
        InputError, match="(?s)another folder: ask there.*cd / && isobatch same -- torchrun t"
    ):
        launch_words(["bash", "elsewhere.sh"], 60, lines.append)
    (tmp_path / "several.sh").write_text("torchrun a.py\ntorchrun b.py")
    with pytest.raises(InputError, match=r"starts 2 trainings: .*\n  isobatch same -- torchrun a.py\n"):
        launch_words(["bash", "several.sh"], 60, lines.append)


def test_python_runs_where_it_computes_for_the_script():
    assert starts_training(["-u", "train.py", "-c", "x"])
    assert starts_training(["-m", "torch.distributed.run", "t.py"])
    for words in (["-c", "print(1)"], ["-"], ["--version"], ["-m", "pip", "list"], ["-m", "json.tool"], []):
        assert not starts_training(words), words


@pytest.mark.parametrize("variables", [["env", "LR=3e-4"], ["LR=3e-4"]])
def test_variables_in_front_of_the_shell_are_the_scripts(tmp_path, variables):
    (tmp_path / "own.sh").write_text("torchrun t.py --lr ${LR:-1}")
    line = recorded_line([*variables, "bash", str(tmp_path / "own.sh")], 60)
    assert line.words == ("torchrun", "t.py", "--lr", "3e-4") and line.variables["LR"] == "3e-4"


def test_a_shells_file_is_told_from_its_text():
    assert shell_script(["/bin/bash", "-ex", "run.sh", "8"]) == "run.sh"
    assert shell_script(["bash", "-c", "torchrun t.py"]) is None
    for words in (
        "env GPUS=64 bash",
        "GPUS=64 bash",
        "env timeout -k 5 60 bash -e",
        "nohup",
        "nice -n 5 bash",
    ):
        assert shell_script([*words.split(), "./run.sh"]) == "./run.sh"
    assert shell_script(["env", "GPUS=64", "torchrun", "t.py"]) is None
    assert shell_script(["torchrun", "t.py"]) is None
