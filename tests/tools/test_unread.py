"""A reader knows what it ignores: each setting of its tool is used, known to be harmless, or named. The names in `fields/` are those of the
tools' own classes, with their versions; where a class is installed it is asked itself."""

import dataclasses
import inspect
import json
from pathlib import Path

import pytest

import isobatch as ib
from isobatch.tools.detect import reader, readers
from isobatch.tools.page import Reading, SettingsPage
from isobatch.tools.read import read_file
from isobatch.tools.unread import standing_of

FIELDS = Path(__file__).parent / "fields"


def unlisted(tool, names):
    """The names in no list; a line may give a setting its value (`optimizer="SGD"`)."""
    settings, plain = {}, []
    for line in names:
        name, _, value = line.partition("=")
        *path, last = name.split(".")
        table = settings
        for part in path:
            table = table.setdefault(part, {})
        if isinstance(table, dict):
            table[last] = json.loads(value) if value else None
        plain.append(name)
    known, found = reader(tool), Reading(tool, "", "", {})
    known.reader.read(SettingsPage(settings, found))
    return [name for name in plain if name not in found.used and standing_of(name, known.reader) is None]


@pytest.mark.parametrize("tool", [name for name in readers() if name != "checkpoint"])
def test_every_setting_of_a_tool_is_in_a_list(tool):
    version, *names = (FIELDS / f"{tool}.txt").read_text().split("\n")
    assert version and len(names) > 20
    assert unlisted(tool, filter(None, names)) == []


def test_every_argument_of_the_installed_trainer_is_in_a_list():
    arguments = pytest.importorskip("transformers").TrainingArguments
    tables = (
        "lr_scheduler_kwargs",
        "accelerator_config",
        "parallelism_config",
    )  # their own settings are asked one by one
    names = [field.name for field in dataclasses.fields(arguments) if field.name not in tables]
    assert unlisted("transformers", names) == []


def test_every_argument_of_the_installed_lightning_is_in_a_list():
    trainer = pytest.importorskip("lightning.pytorch").Trainer
    names = [f"trainer.{name}" for name in inspect.signature(trainer.__init__).parameters if name != "self"]
    assert unlisted("lightning", names) == []


def test_every_setting_of_the_installed_accelerate_is_in_a_list():
    args = pytest.importorskip("accelerate.commands.config.config_args")
    tables = [
        f"{name}_config"
        for name in ("fp8", "deepspeed", "fsdp", "parallelism", "megatron_lm", "mpirun", "dynamo")
    ]
    names = [field.name for field in dataclasses.fields(args.ClusterConfig) if field.name not in tables]
    assert unlisted("accelerate", names) == []


# ---- what a file then says ----

FILE = {"per_device_train_batch_size": 8, "learning_rate": 2e-5, "max_steps": 100, "warmup_steps": 5}


def notes(settings, tool=None):
    return read_file(settings, tool).notes


def test_an_everyday_file_has_no_note():
    everyday = {"gradient_accumulation_steps": 2, "logging_dir": "x", "hub_model_id": "y", "seed": 3}
    assert notes({**FILE, **everyday, "report_to": "wandb", "gradient_checkpointing": True}) == []


@pytest.mark.parametrize(
    ("launch", "gpus"),
    [
        ("torchrun --standalone --nproc_per_node 4 --tee 3 --start-method spawn --no-python --max-restarts 3", 4),
        ("accelerate launch --num_processes 4 --machine_rank 0 --rdzv_backend static --use_deepspeed --zero_stage 2 --gpu_ids all",
         4),
        ("deepspeed --hostfile h --num_nodes 2 --num_gpus 8 --launcher pdsh --bind_cores_to_core --no_ssh", 16),
        ("deepspeed --include localhost:0,1,4 --master_port 9", 3),
    ],
)  # fmt: skip
def test_a_launchers_own_flags_are_none_of_the_training(tmp_path, launch, gpus):
    file = tmp_path / "run.sh"
    file.write_text(
        f"{launch} train.py --gradient_accumulation_steps 2 --{' --'.join(f'{k} {v}' for k, v in FILE.items())}"
    )
    found = read_file(file)
    assert (found.tool, found.fields["gpus"], found.notes) == ("transformers", gpus, [])


def test_an_unknown_setting_is_named_with_the_right_one_beside_it():
    (note,) = notes(
        {**FILE, "gradient_accumulation_steps": 1, "warmup_stepss": 3, "zebra": 1, "off": False, "none": None}
    )
    assert note == "not understood, may change the batch: warmup_stepss, zebra (--set overrides)"
    misspelt = {"learnin_rate" if name == "learning_rate" else name: value for name, value in FILE.items()}
    assert any("learnin_rate (learning_rate?)" in note for note in notes(misspelt))


@pytest.mark.parametrize(
    ("tool", "settings", "field"),
    [
        ("transformers", {**FILE, "per_gpu_train_batch_size": 4}, "effective_batch"),
        ("axolotl", {"base_model": "x", "micro_batch_size": 1, "learning_rate": 1e-4, "max_steps": 9, "relora": True}, "schedule"),
        ("deepspeed", {"train_batch_size": 8, "elasticity": {"enabled": True}}, "effective_batch"),
        ("ultralytics", {"lr0": 0.1, "optimizer": "SGD", "time": 3}, "duration"),
    ],
)  # fmt: skip
def test_what_matters_and_is_not_modelled_is_refused_until_its_field_is_given(tool, settings, field):
    with pytest.raises(ib.InputError, match=f"is not modelled: give {field} a value|give {field} a value"):
        ib.Recipe.read(settings, tool=tool, gpus=1, dataset_size=10, lr=0.1)
    assert any(to == field for to, _ in read_file(settings, tool).faults)


def test_parallelism_of_llama_factorys_megatron_divides_the_replicas():
    sizes = {
        "tensor_model_parallel_size": 2,
        "pipeline_model_parallel_size": 2,
        "use_mca": True,
        "sequence_parallel": True,
    }
    settings = {**FILE, **sizes, "stage": "sft", "finetuning_type": "full", "bias_activation_fusion": True}
    recipe = ib.Recipe.read(settings, gpus=8)
    assert (recipe.model_parallel, recipe.effective_batch) == (4, 16)
    assert all("not understood" not in note for note in notes(settings))


def test_a_pattern_never_hides_what_looks_like_a_batch():
    assert standing_of("data.batch_size", reader("lightning").reader) is None
    assert standing_of("model.context_parallel_size", reader("lightning").reader) is None
    assert standing_of("data.num_workers", reader("lightning").reader) == ""
