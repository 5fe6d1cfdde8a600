"""A reader knows its ignored settings: each setting of its tool is used, known to be harmless, or named. The
names in `fields/` are those of the tools' own classes, with their versions; where a class is installed it is
asked itself."""

import dataclasses
import inspect

import pytest

import isobatch as ib
from isobatch.tools.detect import reader, readers
from isobatch.tools.read import read_file
from isobatch.tools.unread import standing_of
from tools.test_reading import FIELDS, probed, written


def unlisted(tool, names):
    """The names in no list."""
    _, reading = probed(tool, names)
    plain = {line.partition("=")[0] for line in names} - reading.used
    return [name for name in plain if standing_of(name, reader(tool).reader) is None]


@pytest.mark.parametrize("tool", [name for name in readers() if name != "checkpoint"])
def test_every_setting_of_a_tool_is_in_a_list(tool):
    version, *names = (FIELDS / f"{tool}.txt").read_text().splitlines()
    assert version and len(names) > 20
    assert unlisted(tool, names) == []


def test_every_argument_of_the_installed_trainer_is_in_a_list():
    arguments = pytest.importorskip("transformers").TrainingArguments
    # Their own settings are asked one by one.
    tables = ("lr_scheduler_kwargs", "accelerator_config", "parallelism_config")
    names = [field.name for field in dataclasses.fields(arguments) if field.name not in tables]
    assert unlisted("transformers", names) == []


def test_every_argument_of_the_installed_lightning_is_in_a_list():
    trainer = pytest.importorskip("lightning.pytorch").Trainer
    names = [f"trainer.{name}" for name in inspect.signature(trainer.__init__).parameters if name != "self"]
    assert unlisted("lightning", names) == []


def test_every_setting_of_the_installed_accelerate_is_in_a_list():
    args = pytest.importorskip("accelerate.commands.config.config_args")
    own = "fp8 deepspeed fsdp parallelism megatron_lm mpirun dynamo"
    tables = [f"{name}_config" for name in own.split()]
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
        ("torchrun --standalone --nproc_per_node 4 --tee 3 --start-method spawn --no-python --max-restarts 3",
         4),
        ("accelerate launch --num_processes 4 --machine_rank 0 --rdzv_backend static --use_deepspeed "
            "--zero_stage 2 --gpu_ids all",
         4),
        ("deepspeed --hostfile h --num_nodes 2 --num_gpus 8 --launcher pdsh --bind_cores_to_core --no_ssh",
         16),
        ("deepspeed --include localhost:0,1,4 --master_port 9", 3),
    ],
)  # fmt: skip
def test_a_launchers_own_flags_are_none_of_the_training(tmp_path, launch, gpus):
    flags = " ".join(f"--{name} {value}" for name, value in FILE.items())
    reading = read_file(
        written(tmp_path, "run.sh", f"{launch} train.py --gradient_accumulation_steps 2 {flags}")
    )
    assert (reading.tool, reading.fields["gpus"], reading.notes) == ("transformers", gpus, [])


def test_an_unknown_setting_is_named_with_the_right_one_beside_it():
    unknown = {"warmup_stepss": 3, "zebra": 1, "off": False, "none": None}
    (note,) = notes({**FILE, "gradient_accumulation_steps": 1, **unknown})
    assert note == "not understood, may change the batch: warmup_stepss, zebra (--set overrides)"
    misspelt = {"learnin_rate" if name == "learning_rate" else name: value for name, value in FILE.items()}
    assert any("learnin_rate (learning_rate?)" in note for note in notes(misspelt))


@pytest.mark.parametrize(
    ("tool", "settings", "field"),
    [
        ("transformers", {**FILE, "per_gpu_train_batch_size": 4}, "effective_batch"),
        ("axolotl", {"base_model": "x", "micro_batch_size": 1, "learning_rate": 1e-4, "max_steps": 9,
         "relora": True}, "schedule"),
        ("deepspeed", {"train_batch_size": 8, "elasticity": {"enabled": True}}, "effective_batch"),
        ("deepspeed", {"train_batch_size": 8, "pipeline": {"num_stages": 8}}, "model_parallel"),
    ],
)  # fmt: skip
def test_unmodelled_settings_are_refused_until_their_field_is_given(tool, settings, field):
    with pytest.raises(ib.InputError, match=f"is not modelled: give {field} a value|give {field} a value"):
        ib.Recipe.read(settings, tool=tool, gpus=1, dataset_size=10, lr=0.1)
    assert any(to == field for to, _ in read_file(settings, tool).faults)


def test_parallelism_of_llama_factorys_megatron_divides_the_replicas():
    sizes = dict.fromkeys(("tensor_model_parallel_size", "pipeline_model_parallel_size"), 2)
    on = dict.fromkeys(("use_mca", "sequence_parallel", "bias_activation_fusion"), True)
    settings = {**FILE, **sizes, **on, "stage": "sft", "finetuning_type": "full"}
    recipe = ib.Recipe.read(settings, gpus=8)
    assert (recipe.model_parallel, recipe.effective_batch) == (4, 16)
    assert all("not understood" not in note for note in notes(settings))


def test_a_pattern_never_hides_what_looks_like_a_batch():
    assert standing_of("data.batch_size", reader("lightning").reader) is None
    assert standing_of("model.context_parallel_size", reader("lightning").reader) is None
    assert standing_of("data.num_workers", reader("lightning").reader) == ""
