"""Relative values and notes of a file, once all files and settings of a run are joined."""

import pytest

import isobatch as ib
from isobatch.tools.detect import reader, readers
from isobatch.tools.read import read_file
from isobatch.tools.tool import STAYS
from isobatch.tools.unread import standing_of
from tools.test_reading import ARGUMENTS, written

TITAN = {
    "optimizer": {"lr": 1e-3},
    "lr_scheduler": {"warmup_steps": 10},
    "training": {"local_batch_size": 8, "steps": 1000},
}
AXOLOTL = {
    "base_model": "m",
    "micro_batch_size": 8,
    "max_steps": 1000,
    "learning_rate": 1e-3,
    "warmup_steps": 0,
}
COSINE = {
    "type": "WarmupCosineLR",
    "params": {"total_num_steps": 1000, "warmup_num_steps": 0, "cos_min_ratio": 0.1},
}
DEEPSPEED = {
    "train_batch_size": 64,
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}},
    "scheduler": COSINE,
}
VERL = {"ppo_mini_batch_size": 64, "optim": {"lr": 1e-3, "min_lr_ratio": 0.1, "lr_scheduler_type": "cosine"}}


def titan(**scheduler):
    return {**TITAN, "lr_scheduler": {"warmup_steps": 10, **scheduler}}


def without_lr(settings):
    return {
        key: without_lr(value) if isinstance(value, dict) else value
        for key, value in settings.items()
        if key not in ("lr", "learning_rate")
    }


@pytest.mark.parametrize(
    ("tool", "settings"),
    [
        ("torchtitan", titan(min_lr_factor=0.1)),
        ("axolotl", {**AXOLOTL, "lr_scheduler": "cosine", "cosine_min_lr_ratio": 0.1}),
        ("deepspeed", DEEPSPEED),
        ("verl", {"actor_rollout_ref": {"actor": VERL}, "trainer": {"total_training_steps": 9}}),
        ("transformers", {**ARGUMENTS, "lr_scheduler_type": "cosine_with_min_lr",
         "lr_scheduler_kwargs": {"min_lr_rate": 0.1}}),
    ],
)  # fmt: skip
def test_the_least_rate_is_the_same_part_of_a_rate_given_beside_the_file(tool, settings):
    files = [settings] if tool == "verl" else [settings, without_lr(settings)]  # verl has a rate of its own
    for file in files:
        recipe = ib.Recipe.read(file, tool=tool, gpus=8, lr=4e-3)
        assert (recipe.lr, recipe.min_lr) == (4e-3, pytest.approx(4e-4, rel=1e-12))
    assert ib.Recipe.read(settings, tool=tool, gpus=8, lr=4e-3, min_lr=1e-5).min_lr == 1e-5
    assert "min_lr" in read_file(settings, tool).fields


def test_a_rate_that_another_file_gives_is_followed_too():
    auto = {**DEEPSPEED, "optimizer": {"type": "AdamW", "params": {"lr": "auto"}}}
    recipe = ib.Recipe.read(
        [auto, {**ARGUMENTS, "learning_rate": 4e-3}],
        gpus=8,
        duration="1000st",
        schedule="cosine",
        warmup="0st",
    )
    assert recipe.min_lr == pytest.approx(4e-4, rel=1e-12)


@pytest.mark.parametrize(
    ("tool", "settings", "field", "value"),
    [
        ("torchtitan", titan(decay_ratio=0.2), "schedule", "wsd(decay=400st, shape=linear)"),
        ("axolotl", {**AXOLOTL, "lr_scheduler": "cosine", "cosine_min_lr_ratio": 0.1,
         "cosine_constant_lr_ratio": 0.8},
         "schedule", "cosine(until=1600st)"),
        ("axolotl", {**AXOLOTL, "warmup_steps": None}, "warmup", "60st"),
        ("axolotl", {**AXOLOTL, "warmup_steps": None, "warmup_ratio": 0.0125}, "warmup", "25st"),
    ],
)  # fmt: skip
def test_a_share_of_the_run_is_of_a_length_given_beside_the_file(tool, settings, field, value):
    assert getattr(ib.Recipe.read(settings, tool=tool, gpus=8, duration="2000st"), field) == value
    by_samples = ib.Recipe.read(settings, tool=tool, gpus=8, duration=f"{2000 * 64}sp")
    assert getattr(by_samples, field) == value


def test_a_scheduler_of_torch_is_built_with_the_rate_given_beside_the_script(tmp_path):
    text = """
import torch, lightning as L
loader = torch.utils.data.DataLoader(rows, batch_size=8)
class Model(L.LightningModule):
    def configure_optimizers(self):
        o = torch.optim.AdamW(self.parameters(), lr=ours.lr)
        scheduler = torch.optim.lr_scheduler.ExponentialLR(o, 0.99)
        return {"optimizer": o, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}
trainer = L.Trainer(max_steps=100, devices=1)
"""
    recipe = ib.Recipe.read(written(tmp_path, "train.py", text), lr=4e-3)
    assert ib.plan(recipe, 1).lr_at(1) == pytest.approx(4e-3 * 0.99, rel=1e-12)


@pytest.mark.parametrize("duration", ["1.2.3ep", "ep", "-3ep", "1e999ep", "9" * 400 + "ep", "3", "x"])
@pytest.mark.parametrize(
    "settings", [AXOLOTL, {"per_device_train_batch_size": 8, "learning_rate": 1e-4, "num_generations": 8}]
)
def test_no_length_given_beside_a_file_is_a_fault_of_the_reader(settings, duration):
    with pytest.raises(ib.InputError):
        ib.Recipe.read(settings, gpus=8, duration=duration, dataset_size=1000)


# ---- notes ----

LAUNCH = """torchrun --nproc_per_node 4 train.py --per_device_train_batch_size 2 --learning_rate 1e-5 \\
    --gradient_accumulation_steps 4 --num_train_epochs 1 --lr_scheduler_type cosine \\
    --warmup_ratio 0.03 --deepspeed z3.json
"""
AUTO = dict.fromkeys(
    ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"), "auto"
)


def test_no_note_denies_what_another_file_gives(tmp_path):
    launch, engine = written(tmp_path, "run.sh", LAUNCH), {**AUTO, "zero_optimization": {"stage": 3}}
    alone = " ".join([*ib.Recipe.read(launch, dataset_size=20_000).notes, *read_file(engine).notes])
    for text in (
        "is not read here",
        '"auto" is not known',
        "there is no optimizer",
        "planned with a constant learning rate",
    ):
        assert text in alone
    assert ib.Recipe.read([launch, engine], dataset_size=20_000).notes == ()


@pytest.mark.parametrize(
    ("settings", "values", "text"),
    [
        ({"per_device_train_batch_size": 8, "max_steps": 9, "gradient_accumulation_steps": 1}, {"lr": 1e-4},
         "learning_rate is not in the file"),
        ({**ARGUMENTS, "max_steps": None, "gradient_accumulation_steps": 1}, {"duration": "10st"},
         "num_train_epochs is not in the file"),
        ({**ARGUMENTS}, {"accumulation": 2}, "gradient_accumulation_steps is not in the file"),
        ({**ARGUMENTS, "gradient_accumulation_steps": 1, "lr_scheduler_type": "constant", "warmup_steps": 5},
         {"schedule": "linear"},
         "ignores the warmup"),
        ({"train_batch_size": 64, "optimizer": {"type": "Adam", "params": {"lr": 1}}}, {"schedule": "cosine",
         "duration": "9st"},
         "there is no scheduler"),
    ],
)  # fmt: skip
def test_no_note_denies_what_a_setting_gives(settings, values, text):
    assert any(text in note for note in read_file(settings).notes)
    assert not any(text in note for note in ib.Recipe.read(settings, gpus=1, **values).notes)


# ---- what no pattern may hide ----

TABLES = [
    "optimizer",
    "optimizer.params",
    "optim",
    "scheduler",
    "lr_scheduler",
    "scheduler.params",
    "lr_scheduler_kwargs",
    "dataloader",
    "train_dataloader",
    "train_loader",
    "dataset",
    "model",
    "model.init_args",
    "data.init_args",
    "optimizer.init_args",
    "actor_rollout_ref.actor.optim",
    "actor_rollout_ref.model",
    "training_config.training_args",
    "training_config.model_config",
]


@pytest.mark.parametrize("tool", readers())
def test_no_pattern_hides_an_argument_of_an_optimizer_a_loader_or_a_model(tool):
    known = reader(tool).reader
    names = [f"{table}.zebra" for table in TABLES]
    names += [
        f"{name}_zebra" for name in ("muon", "optimizer", "adam", "lion", "soap", "galore", "dataloader")
    ]
    hidden = [name for name in names if standing_of(name, known) == ""]
    assert hidden == []


def test_deepspeeds_own_rate_of_muon_is_the_rate(tmp_path, ran):
    text = (
        '{"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 4, "optimizer": {"type": '
        '"Muon", "params": {%s}}}'
    )
    own = '"lr": 3e-4, "muon_lr": 0.02, "adam_lr": 3e-4, "weight_decay": 0.1, "quux": 3'
    file = written(tmp_path, "ds.json", text % own)
    fields = "--set gpus=8 --set duration=1000st"
    out, messages = ran(f"plan --from {file} {fields} --gpus 32 --policy grow --to deepspeed".split())
    assert '"muon_lr": 0.04' in out and "warmup_max_lr" not in out, "which would be every parameter's"
    assert (
        "adam_lr 0.0003 stays as it is" in messages
        and "not understood, may change the batch: optimizer.params.quux" in messages
    )
    assert "optimizer.params.lr 0.0003 stays as it is" in " ".join(
        read_file(written(tmp_path, "b.json", text % '"lr": 3e-4, "muon_lr": 0.02')).notes
    )
    assert read_file(written(tmp_path, "c.json", text % '"lr": 3e-4')).fields["lr"] == 3e-4
    assert standing_of("optimizer.params.adam_lr", reader("deepspeed").reader) == STAYS
