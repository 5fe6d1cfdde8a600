"""Files are detected by keys of their tool alone; others are refused, with the way out."""

import json

import numpy as np
import pytest

import isobatch as ib
from isobatch.cli import main

FLAT = {"batch_size": 16, "gradient_accumulation_steps": 4, "learning_rate": 3e-3, "weight_decay": 0.1}
FLAT |= {"epochs": 2, "warmup_steps": 20, "lr_scheduler": "cosine"}
TRAINER = {"per_device_train_batch_size": 8, "learning_rate": 2e-5, "max_steps": 5}


def written(folder, settings, name="flat.json"):
    path = folder / name
    path.write_text(settings if isinstance(settings, str) else json.dumps(settings))
    return str(path)


def test_everybodys_names_are_nobodys_file(tmp_path, ran):
    file = written(tmp_path, FLAT)
    output = ran(["plan", "--from", file, "--gpus", "4", "--set", "gpus=1", "--set", "dataset_size=3000"], 2)
    assert not output.out
    product = "effective_batch=N   batch_size 16 × gradient_accumulation_steps 4 × the GPUs of that run"
    settings_beside = [
        f"--set {field} " for field in ("lr=0.003", "duration=2ep", "warmup=20st", "schedule=cosine")
    ]
    for part in ("--tool", product, *settings_beside):
        assert part in output.err, part


LOOP = "from torch.utils.data import DataLoader\nbase_model = 'x'\nlearning_rate = 1e-4\nnum_epochs = 3\n"
OF_NO_TOOL = [
    {"micro_batch_size": 16, "grad_accum": 4, "lr": 0.003, "optimizer": "adamw"},
    {"lr": 0.003, "batch_size": 64, "optimizer": "adamw", "epochs": 2},
    {"train": {"batch_size": 16, "lr": 0.003, "epochs": 2}},
    {"batch_size": 16, "learning_rate": 3e-3, "max_iters": 94, "lr_decay_iters": 94, "min_lr": 1e-4},
    {"batch_size": 16, "optimizer": {"type": "AdamW", "params": {"lr": 0.1}}},
    {"num_generations": 4, "pass_rate_min": 0.1, "max_completion_length": 9},  # it only generates
    LOOP,  # variables of a loop are no tool's settings
]


@pytest.mark.parametrize("settings", OF_NO_TOOL)
def test_other_scripts_settings(tmp_path, settings):
    name = "train.py" if settings is LOOP else "a.json"
    with pytest.raises(ib.InputError, match="no tool is recognized") as caught:
        ib.Recipe.read(written(tmp_path, settings, name), gpus=1)
    assert "effective_batch=N" in str(caught.value)


def test_an_empty_file_says_so(tmp_path):
    with pytest.raises(ib.InputError, match="is empty"):
        ib.Recipe.read(written(tmp_path, " \n"))


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"policy": {"train_global_batch_size": 512, "train_micro_batch_size": 4}}, "effective_batch=512   "
            "policy.train_global_batch_size"),
        ({"steps": 9, "grad_acc_steps": 2, "data": {"batch_size": 4}}, "data.batch_size 4 × grad_acc_steps "
            "2 × the GPUs of that run"),
        ({"parallelism": {"dp": 4, "tp": 2}, "tokens": {"batch_accumulation_per_replica": 4,
         "micro_batch_size": 2}},
         "effective_batch=32   tokens.micro_batch_size 2 × tokens.batch_accumulation_per_replica 4 × "
         "parallelism.dp 4"),
        ({"mbs": 2, "par": {"tp": 2, "pp": 4}}, "effective_batch=N   mbs 2 × the replicas of that run: its "
            "GPUs / (par.tp 2 × par.pp 4)"),
        ({"num_nodes": 2, "gpus_per_node": 8, "batch_size_per_gpu": 4}, "effective_batch=64 "),
        ({"total_batch_size": 524288}, "divide tokens by the sequence length"),
        ("torchrun --nproc_per_node 4 train.py --batch_size 16 --grad_accum 2 --lr 2e-5",
         "effective_batch=N   128 = batch_size 16 × grad_accum 2 × nproc_per_node 4, or 32 if batch_size "
         "counts all GPUs"),
        ({"train": {"batch_size": 128}, "nodes": 1, "gpus_per_node": 8, "vllm": {"tensor_parallel_size": 2}},
         "effective_batch=N   1024 = train.batch_size 128 × gpus_per_node 8, or 128 if train.batch_size"),
        ({"worker": {"actor": {"global_batch_size": 128}, "rollout": {"n": 5}}},
         "effective_batch=N   worker.actor.global_batch_size 128, times worker.rollout.n 5 where it counts "
         "prompts"),
        ({"global_train_batch_size": 512, "max_duration": "4800ba"}, "duration=4800st +max_duration"),
    ],
)  # fmt: skip
def test_the_advised_batch_has_all_factors_of_the_file(tmp_path, settings, says):
    with pytest.raises(ib.InputError, match=says.replace("(par", r"\(par").replace("4)", r"4\)")):
        ib.Recipe.read(written(tmp_path, settings, "run.sh" if isinstance(settings, str) else "a.json"))


@pytest.mark.parametrize(
    "flag", ["batch_size 16", "grad_accum 2", "train_micro_batch_size 4 --global_bsz 64"]
)
@pytest.mark.parametrize("tool", ["transformers", "trl", "megatron"])
def test_nothing_is_planned_while_a_batch_is_not_understood(tmp_path, flag, tool):
    file = written(
        tmp_path,
        f"torchrun --nproc_per_node 4 t.py --{flag} --lr 2e-5 --learning_rate 1 --max_steps 9",
        "run.sh",
    )
    with pytest.raises(ib.InputError, match="give (effective_batch|accumulation) a value"):
        ib.Recipe.read(file, tool=tool, lr=1e-4, duration="9st")
    assert (
        ib.Recipe.read(file, tool=tool, lr=1e-4, duration="9st", effective_batch=128).effective_batch == 128
    )


def test_no_tools_default_stands_for_a_length_by_another_name(tmp_path):
    """open-instruct's recipes say `num_epochs`, and the Trainer's default is 3."""
    settings = {"per_device_train_batch_size": 1, "learning_rate": 5e-7, "num_epochs": 1}
    settings |= {"lr_scheduler_type": "linear", "gradient_accumulation_steps": 16}
    file = written(tmp_path, settings)
    with pytest.raises(ib.InputError, match="num_epochs 1 is not a setting of .*: give duration a value"):
        ib.Recipe.read(file, gpus=8, dataset_size=1000)
    assert ib.Recipe.read(file, gpus=8, dataset_size=1000, duration="1ep").duration == "1ep"


@pytest.mark.parametrize(
    ("name", "field"),
    [
        *((f"{name}", "schedule") for name in ("lr_schedule", "scheduler_name", "lr_decay_style", "sched")),
        ("lr_scheduler_type", "schedule"),
        ("warmup_proportion", "warmup"),
    ],
)
def test_no_tools_default_stands_for_a_schedule_by_another_name(name, field, tmp_path):
    settings = {"per_device_train_batch_size": 1, "learning_rate": 5e-7, "max_steps": 100, name: "our_own"}
    file = written(tmp_path, settings | {"gradient_accumulation_steps": 16})
    with pytest.raises(
        ib.InputError, match=f"{name}.* our_own|'our_own' cannot be planned: give {field} a value"
    ):
        ib.Recipe.read(file, gpus=8)
    assert (
        ib.Recipe.read(file, gpus=8, **{field: "linear" if field == "schedule" else "10st"}).effective_batch
        == 128
    )


def test_the_advice_has_no_value_that_a_shell_would_replace(tmp_path):
    settings = {"optimizer": {"lr": 6e-4}, "scheduler": {"lr_min": "${eval:0.1 * ${optimizer.lr}}"}}
    with pytest.raises(ib.InputError, match=r"--set lr=0\.0006") as caught:
        ib.Recipe.read(written(tmp_path, settings))
    assert "min_lr" not in str(caught.value)


def test_a_named_tool_reads_it_and_lists_what_it_leaves(tmp_path, ran):
    file = written(tmp_path, {**FLAT, "micro_batch_size": 2, "num_epochs": 1})
    settings_beside = ["--set", "gpus=1", "--set", "dataset_size=3000"]
    output = ran(["plan", "--from", file, "--tool", "axolotl", "--gpus", "4", *settings_beside])
    assert "= 8 samples" in output.out and "read as" not in output.err
    assert "not understood, may change the batch: batch_size, epochs" in output.err


def test_the_guessed_tool_is_named(tmp_path, ran):
    file = written(tmp_path, {**TRAINER, "warmup_step": 2, "eval_batch_size": 3})
    output = ran(["plan", "--from", file, "--gpus", "2", "--set", "gpus=1"]).err
    assert f"{file}: read as transformers TrainingArguments" in output
    unknown = "warmup_step (warmup_steps?)"
    assert f"not understood, may change the batch: {unknown} (--set" in output


@pytest.mark.parametrize("command", [["doctor"], ["plan", "--from"]])
def test_a_recipe_is_known_as_one(tmp_path, capsys, command):
    file = written(tmp_path, 'effective_batch = 64\nlr = 3e-3\noptimizer = "adamw"\n', "recipe.toml")
    assert main([*command, file, "--gpus", "4"]) == 2
    says = f"is a recipe of isobatch, not another tool's file: isobatch plan {file}"
    assert says in capsys.readouterr().err


def test_a_plan_is_known_as_one(tmp_path):
    path = tmp_path / "plan.json"
    ib.plan(ib.Recipe(effective_batch=8, lr=0.1), 2).save(path)
    with pytest.raises(ib.InputError, match="is a plan of isobatch"):
        ib.Recipe.read(path)


@pytest.mark.parametrize("name", ["a.toml", "a.json", "a.yaml"])
def test_a_byte_order_mark_is_no_setting(tmp_path, name):
    text = {"a.toml": "effective_batch = 64\nlr = 0.1\n", "a.yaml": "effective_batch: 64\nlr: 0.1\n"}.get(
        name, '{"effective_batch": 64, "lr": 0.1}'
    )
    path = tmp_path / name
    path.write_text("\ufeff" + text, encoding="utf-8")
    assert ib.Recipe.load(path).effective_batch == 64
    path.write_text('\ufeff{"per_device_train_batch_size": 8, "learning_rate": 2e-5, "max_steps": 5}')
    if name != "a.toml":
        assert ib.Recipe.read(path, gpus=1).effective_batch == 8


@pytest.mark.parametrize("value", ["0", "-1", "one", "true", "1.5"])
def test_gpus_that_are_no_number_are_named(tmp_path, ran, value):
    file = written(tmp_path, TRAINER)
    for command in (["plan", "--from", file], ["doctor", file]):
        output = ran([*command, "--gpus", "8", "--set", f"gpus={value}"], 2).err
        assert "--set gpus must be a whole number from 1, got " in output and "missing" not in output


@pytest.mark.parametrize("value", ["1", 1.5, True, 0, -1, [8]])
def test_gpus_that_are_no_number_are_named_in_python(tmp_path, value):
    file = written(tmp_path, TRAINER)
    with pytest.raises(ib.InputError, match=r"gpus must be a whole number from 1, got") as caught:
        ib.Recipe.read(file, gpus=value)
    assert caught.value.field == "gpus"
    assert ib.Recipe.read(file, gpus=np.int64(2)).effective_batch == 16


def test_a_files_own_zero_is_named_as_there(tmp_path):
    with pytest.raises(ib.InputError, match="per_device_train_batch_size must be a whole number from 1"):
        ib.Recipe.read(written(tmp_path, {**TRAINER, "per_device_train_batch_size": 0}), gpus=1)
