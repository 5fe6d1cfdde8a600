"""Several files of one run: named files, contradictions, and the lines of each that a plan changes."""

import json
import re

import pytest

import isobatch as ib
from isobatch.doctor.examine import examine
from isobatch.tools.detect import tool_of
from isobatch.tools.read import read_file
from isobatch.tools.sheet import Job
from isobatch.tools.tool import Weight
from tools.test_reading import PUBLISHED, written

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
    "axolotl.yml": "base_model: m\nmicro_batch_size: 2\ngradient_accumulation_steps: 8\nlearning_rate: 2e-5\n"
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


def nested(settings, changes):
    """Settings with the lines of a plan among them."""
    for key, value in changes.items():
        both = isinstance(value, dict) and isinstance(settings.get(key), dict)
        settings = {**settings, key: nested(settings[key], value) if both else value}
    return settings


def without(settings, gone, inside=""):
    return {
        key: without(value, gone, f"{inside}{key}.") if isinstance(value, dict) else value
        for key, value in settings.items()
        if f"{inside}{key}" not in gone
    }


@pytest.mark.parametrize("source", PUBLISHED)
def test_a_published_file_with_a_plans_lines_passes_doctor(source, tmp_path):
    """A setting that the plan's lines contradict is one that the plan says to remove."""
    name, text, arguments, _ = PUBLISHED[source]
    file = written(tmp_path, name, text)
    reading, recipe = read_file(file), ib.Recipe.read(file, **arguments)
    tool = tool_of(reading.tool)
    if tool.writer is None or tool.name in ("hyperpod", "accelerate"):
        pytest.skip("its file is not written by a plan")
    gpus = recipe.gpus or 8
    plans = [ib.plan(recipe, count, **reading.demands) for count in (4 * gpus, 2 * gpus, gpus // 2, gpus)]
    plan = next(plan for plan in plans if plan.status != "infeasible")
    if plan.total_steps is None:
        pytest.skip("the file has no length")
    export = plan.to(tool.name, job=Job(own=reading.settings))
    lists = [re.search(r"remove ([\w., -]+)$", note) for note in export.notes]
    gone = {
        name.lstrip("-").replace("-", "_")
        for names in lists
        if names
        for name in re.split(", | and ", names[1])
    }
    settings = without(nested(reading.settings, export.settings), gone)
    launch = ("nnodes", "nproc_per_node", "num_gpus", "master_port")
    settings = {key: value for key, value in settings.items() if key not in launch}
    beside = {key: value for key, value in arguments.items() if key not in ("gpus", "effective_batch")}
    examination = examine(
        written(tmp_path, "now.json", json.dumps(settings, default=str)),
        plan.world_size,
        tool=tool.name,
        effective_batch=recipe.effective_batch,
        **beside,
    )
    costly = [finding.what for finding in examination.findings if finding.weight is not Weight.NOTE]
    costly = [what for what in costly if "since core 0.18 the batch does not ramp" not in what]
    assert (examination.batch, costly) == (recipe.effective_batch, []), examination.text


SBATCH = """#!/bin/bash
#SBATCH --nodes=1
#SBATCH --gpus-per-node=8
srun torchrun --nproc_per_node 8 --nnodes $SLURM_NNODES --master_port 6000 pretrain_gpt.py \\
  --micro-batch-size 4 --global-batch-size 512 \\
  --lr 2.0e-4 --train-iters 1000 --lr-warmup-fraction .01 --lr-decay-style cosine
"""


def test_a_plan_names_a_launch_lines_script_nodes_and_refused_arguments(tmp_path, ran):
    file = written(tmp_path, "megatron.sh", SBATCH)
    command = ["plan", "--from", str(file), "--gpus", "64", "--to", "megatron"]
    out = ran(command).out
    assert f"# {file} changes too: #SBATCH --nodes=1 → 8\n" in out
    assert "# remove --lr-warmup-fraction\n" in out and "\npretrain_gpt.py \\\n" in out
    assert "\nmine.py -x \\\n" in ran([*command, "--script", "mine.py -x"]).out
    written(tmp_path, "megatron.sh", SBATCH.replace("$SLURM_NNODES", "1").replace("#SBATCH", "#"))
    assert f"# {file} changes too: --nnodes 1 → 8\n" in ran(command).out
