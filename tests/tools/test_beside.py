"""Several files of one run: the files that one names, contradictions, and the lines of each that a plan changes."""

import json

import pytest

from isobatch.doctor.examine import examine
from isobatch.tools.tool import Weight
from tools.test_reading import written

TRAINER = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 8, "learning_rate": 2e-5}
TRAINER |= {"max_steps": 100, "deepspeed": "ds.json"}
AUTO = dict.fromkeys(
    ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"), "auto"
)
SCRIPT = "from transformers import TrainingArguments\nargs = TrainingArguments({})\n"
FLAGS = " ".join(f"--{key} {value}" for key, value in TRAINER.items())
NAMING = {
    "a.json": json.dumps(TRAINER),
    "train.py": SCRIPT.format(", ".join(f"{key}={value!r}" for key, value in TRAINER.items())),
    "run.sh": f"torchrun --nproc_per_node 8 train.py {FLAGS}",
    "axolotl.yml": "base_model: m\nmicro_batch_size: 2\ngradient_accumulation_steps: 8\nlearning_rate: 0.00002\n"
    "max_steps: 100\ndeepspeed: ds.json\n",
    "sft.yaml": "stage: sft\nfinetuning_type: full\nper_device_train_batch_size: 2\nlearning_rate: 0.00002\n"
    "gradient_accumulation_steps: 8\nmax_steps: 100\ndeepspeed: ds.json\n",
}


def at_eight(folder, name, **engine):
    written(folder, "ds.json", json.dumps({**AUTO, "zero_optimization": {"stage": 2}, **engine}))
    return examine(written(folder, name, NAMING[name]), 8, tuned_gpus=8)


@pytest.mark.parametrize("name", NAMING)
def test_the_file_that_a_file_names_is_read_and_compared(tmp_path, name):
    healthy = at_eight(tmp_path, name)
    assert healthy.healthy, healthy.text
    assert "ds.json: read too" in healthy.text and "is not read here" not in healthy.text
    stopped = at_eight(tmp_path, name, gradient_accumulation_steps=4)
    finding = stopped.findings[0]
    assert finding.weight is Weight.STOPS and stopped.batch == 128
    assert "gradient_accumulation_steps is 4 in" in finding.what and "8 in" in finding.what
    assert finding.change.startswith('gradient_accumulation_steps: 8, or "auto", in ')
    (tmp_path / "ds.json").unlink()
    assert "ds.json is not read here" in examine(tmp_path / name, 8, tuned_gpus=8).text


@pytest.mark.parametrize(
    ("engine", "says"),
    [
        ({"train_micro_batch_size_per_gpu": 4}, "train_micro_batch_size_per_gpu is 4"),
        ({"train_batch_size": 256}, "256 samples are not 2 × 8 × 8 replicas"),
        ({"gradient_clipping": 0.5}, "gradient_clipping is 0.5"),
        ({"optimizer": {"type": "AdamW", "params": {"lr": 1e-4}}}, "optimizer.params.lr is 0.0001"),
    ],
)
def test_the_trainer_refuses_each_number_that_differs_also_from_its_default(tmp_path, engine, says):
    findings = at_eight(tmp_path, "a.json", **engine).findings
    assert [says in finding.what for finding in findings if finding.weight is Weight.STOPS] == [True]


def test_an_engine_without_an_accumulation_accumulates_once(tmp_path):
    """The Trainer finds nothing to compare, and Accelerate then takes DeepSpeed's 1."""
    written(tmp_path, "ds.json", '{"train_micro_batch_size_per_gpu": 2, "zero_optimization": {"stage": 2}}')
    findings = examine(written(tmp_path, "a.json", NAMING["a.json"]), 8, tuned_gpus=8).findings
    assert findings[0].weight is Weight.CHANGES and "gradient_accumulation_steps is 1 in" in findings[0].what


@pytest.mark.parametrize("name", ["/etc/ds.json", "../ds.json"])
def test_no_named_file_outside_of_the_folder_is_read(tmp_path, name):
    written(tmp_path, "ds.json", '{"gradient_accumulation_steps": 4}')
    (tmp_path / "b").mkdir()
    inside = tmp_path / "b" / "a.json"
    inside.write_text(json.dumps({**TRAINER, "deepspeed": name}))
    assert f"{name} is not read here" in examine(inside, 8, tuned_gpus=8).text


ENGINE = {"gradient_accumulation_steps": 8, "train_micro_batch_size_per_gpu": 2, "zero_optimization": {}}
LAUNCHER = {"num_processes": 8, "compute_environment": "LOCAL_MACHINE", "distributed_type": "DEEPSPEED",
            "deepspeed_config": {"gradient_accumulation_steps": 8}}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "settings", "lines"),
    [
        ("ds.json", ENGINE, 'gradient_accumulation_steps 8 → 1 (or "auto")'),
        (
            "accelerate.yaml",
            LAUNCHER,
            "deepspeed_config.gradient_accumulation_steps 8 → 1, num_processes 8 → 64",
        ),
    ],
)
def test_a_plan_names_the_lines_of_the_runs_other_files(tmp_path, ran, name, settings, lines):
    first = written(tmp_path, "a.json", NAMING["a.json"])
    second = written(tmp_path, name, json.dumps(settings))
    command = ["plan", "--from", str(first), "--from", str(second), "--set", "gpus=8", "--to", "transformers"]
    assert f"# {second} changes too: {lines}\n" in ran([*command, "--gpus", "64"]).out
    assert "changes too" not in ran([*command, "--gpus", "8"]).out


def test_doctor_compares_the_files_of_from(tmp_path, ran):
    first = written(tmp_path, "a.json", json.dumps({**TRAINER, "gradient_accumulation_steps": 1}))
    second = written(tmp_path, "accelerate.yaml", json.dumps(LAUNCHER))
    out = ran(["doctor", str(first), "--from", str(second), "--gpus", "8"], 1).out
    assert "deepspeed_config.gradient_accumulation_steps is 8 in" in out
    assert "\nStops the run:\n" in out
