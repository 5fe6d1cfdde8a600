"""DeepSpeed, where the Trainer or Accelerate starts it: asked by the update, at the split of the run."""

import sys

import pytest

pytest.importorskip("torch")

from equivalence import in_code
from isobatch.equivalence.commands.runs import Recorded, start_run
from isobatch.equivalence.records import Recording
from isobatch.equivalence.split import Split
from isobatch.launch.command_line import CPU

CONFIG = """
config = {
    **dict.fromkeys(("train_micro_batch_size_per_gpu", "train_batch_size"), "auto"),
    "gradient_accumulation_steps": 1 if "config" in sys.argv else "auto",
    "zero_optimization": {"stage": 2, "overlap_comm": False},
}
"""
SCRIPTS = {
    "transformers": in_code.TRAINER.replace("bf16=True", "deepspeed=config"),
    "accelerate": in_code.ACCELERATE.replace(
        'mixed_precision="fp16"', "deepspeed_plugin=DeepSpeedPlugin(hf_ds_config=config)"
    ).replace("import Accelerator", "import Accelerator, DeepSpeedPlugin"),
}
SETS = {"transformers": ("arguments",), "accelerate": ("accelerate",)}
pytestmark = pytest.mark.slow


def recorded(tmp_path, monkeypatch, library: str, split: Split, *words: str) -> Recording:
    for name in ("deepspeed", library):
        pytest.importorskip(name)
    alone = {
        "RANK": "0",
        "LOCAL_RANK": "0",
        "WORLD_SIZE": "1",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "0",
    }
    for name, value in alone.items():
        monkeypatch.setenv(name, value)
    path = tmp_path / "train.py"
    path.write_text(in_code.HEAD + CONFIG + SCRIPTS[library])
    settings = Recorded(str(tmp_path / f"record-{split}"), 1, split=split, sets=SETS[library])
    line = [sys.executable, str(path), *words]
    # The loader of a loop is the script's own: its batch of 2 is that of each split here.
    run = start_run(line, CPU, settings, split, 300)
    assert run.recording is not None, run.output
    return run.recording


@pytest.mark.parametrize("library", SCRIPTS)
def test_deepspeed_runs_on_a_cpu_too_and_follows_the_split(tmp_path, monkeypatch, library):
    recording = recorded(tmp_path, monkeypatch, library, Split(1, 3, 2))
    step = recording.last.first
    assert step.measured == "update" and step.kind != "SGD"
    assert [len(samples.hashes) for samples in step.passes] == [2, 2, 2]  # the evaluation is no pass
    assert any("=4) set by the split" in change for change in recording.changes)


def test_another_accumulation_in_the_configuration_is_left_to_be_found(tmp_path, monkeypatch):
    recording = recorded(tmp_path, monkeypatch, "accelerate", Split(1, 3, 2), "config")
    assert [len(samples.hashes) for samples in recording.last.first.passes] == [2]
