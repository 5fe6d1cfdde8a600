"""torchtune's recipes: its epochs of whole steps, its cosine, and what it refuses when it starts."""

import math

import pytest

import isobatch as ib
from isobatch.doctor.examine import examine
from isobatch.tools.read import read_file
from isobatch.tools.sheet import Job
from tools.test_reading import written
from tools.test_rl import stops

COSINE = "torchtune.training.lr_schedulers.get_cosine_schedule_with_warmup"
LORA = f"""\
output_dir: /tmp/lora
tokenizer: {{_component_: torchtune.models.llama3.llama3_tokenizer, path: /tmp/tokenizer.model,
             max_seq_len: 4096}}
model: {{_component_: torchtune.models.llama3_1.lora_llama3_1_8b, lora_rank: 8, lora_alpha: 16}}
dataset: {{_component_: torchtune.datasets.alpaca_cleaned_dataset, packed: True}}
batch_size: 2
batch_size_val: ${{batch_size}}
peak: 3e-4
optimizer: {{_component_: torch.optim.AdamW, fused: True, weight_decay: 0.01, lr: "${{peak}}"}}
lr_scheduler: {{_component_: {COSINE}, num_warmup_steps: 10}}
epochs: 2
max_steps_per_epoch: null
gradient_accumulation_steps: 8
clip_grad_norm: inf
run_val_every_n_steps: 50
dtype: bf16
"""
PPO = """\
policy_model: {_component_: torchtune.models.mistral.mistral_7b}
batch_size: 64
num_steps: 6400
ppo_epochs: 2
ppo_batch_size: 32
gradient_accumulation_steps: 4
optimizer: {_component_: bitsandbytes.optim.PagedAdamW, lr: 3e-6}
"""
FULL = {
    "optimizer": {"_component_": "torch.optim.AdamW", "lr": 2e-5},
    "model": {"_component_": "torchtune.models.llama3_1.llama3_1_8b"},
}
FULL |= {"batch_size": 2, "epochs": 3, "max_steps_per_epoch": 100}


@pytest.fixture
def lora(tmp_path):
    return written(tmp_path, "lora.yaml", LORA)


def torchtunes_rate(step, warmup, total, peak):
    """torchtune/training/lr_schedulers.py."""
    if step < warmup:
        return peak * step / warmup
    return peak * max(0.0, 0.5 * (1 + math.cos(math.pi * (step - warmup) / (total - warmup))))


def test_a_recipe_is_read(lora):
    reading = read_file(lora)
    assert (reading.tool, reading.faults) == ("torchtune", [])
    want = {"batch_per_gpu": 2, "accumulation": 8, "lr": 3e-4, "duration": "2ep", "warmup": "10st",
     "schedule": "cosine", "adapter": "lora",
            "seq_len": 4096, "optimizer": "adamw", "weight_decay": 0.01, "eval_every": "50st",
             "precision": "bf16"}  # fmt: skip
    assert {name: reading.fields.get(name) for name in want} == want
    assert "clip_norm" not in reading.fields, "inf only logs the norm"
    assert "dataset.packed: dataset_size is the number of packed sequences" in reading.notes
    assert not any("not understood" in note for note in reading.notes)


@pytest.mark.parametrize("gpus", [1, 2, 3, 8, 12])
def test_a_written_configuration_takes_the_plans_steps_and_rates(lora, gpus):
    """However many an epoch would have: torchtune takes min(max_steps_per_epoch, ⌈samples / GPUs⌉ //
    batch_size // accumulation)."""
    plan = ib.plan(ib.Recipe.read(lora, gpus=4, dataset_size=5203), gpus, batch_tolerance=0.1)
    settings = plan.to("torchtune").settings
    natural = math.ceil(5203 / gpus) // settings["batch_size"] // settings["gradient_accumulation_steps"]
    total = settings["epochs"] * min(settings["max_steps_per_epoch"], natural)
    warmup, peak = settings["lr_scheduler"]["num_warmup_steps"], settings["optimizer"]["lr"]
    assert total == plan.total_steps
    assert [plan.lr_at(step) for step in range(total)] == pytest.approx(
        [torchtunes_rate(step, warmup, total, peak) for step in range(total)]
    )


def test_a_cap_on_an_epochs_steps_is_the_length(tmp_path):
    reading = read_file(FULL)
    assert (reading.fields["duration"], reading.fields["schedule"]) == ("300st", "constant")
    plan = ib.plan(ib.Recipe.read(FULL, gpus=4), 2, policy=4)
    settings = plan.to("torchtune", job=Job(own=FULL)).settings
    assert (settings["epochs"], settings["max_steps_per_epoch"], settings["lr_scheduler"]) == (3, 200, None)
    assert plan.to("torchtune").settings["epochs"] == 1, "without the file, all steps in one"
    script = plan.to("torchtune", form="sh").text
    assert "tune run RECIPE \\\n  --config CONFIG \\\n  batch_size=2 \\\n" in script
    assert "'optimizer.betas=[0.9,0.999]'" in script and "lr_scheduler=null" in script


def test_ppo_trains_on_one_device(tmp_path):
    (tmp_path / "ppo.yaml").write_text(PPO)
    reading = read_file(tmp_path / "ppo.yaml")
    want = {"effective_batch": 32, "accumulation": 4, "gpus": 1, "duration": "400st", "lr": 3e-6}
    assert {name: reading.fields[name] for name in want} == want and not reading.faults
    with pytest.raises(ib.InputError, match="a PPO recipe is read alone"):
        ib.plan(ib.Recipe.read(tmp_path / "ppo.yaml"), 1).to("torchtune", job=Job(own={"ppo_batch_size": 32}))


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({**FULL, "grpo_samples": 16}, "grpo_samples 16 changes the training, and is not modelled"),
        ({**FULL, "lr_scheduler": {"_component_": "my.wsd"}}, "the scheduler my.wsd"),
        ({**FULL, "lr_scheduler": {"_component_": COSINE, "num_cycles": 1}}, "give schedule a value"),
        ({"model": FULL["model"], "checkpointer": {"_component_": "x"}, "max_new_tokens": 9}, "no optimizer"),
    ],
)
def test_unmodelled_settings_are_asked_for_or_refused(settings, says):
    with pytest.raises(ib.InputError, match=says):
        ib.Recipe.read(settings, gpus=8)


def test_an_optimizer_in_the_backward_pass_is_not_written_with_an_accumulation():
    own = {**FULL, "optimizer_in_bwd": True}
    recipe = ib.Recipe.read(own, gpus=4)
    assert ib.plan(recipe, 4).to("torchtune", job=Job(own=own)).settings["gradient_accumulation_steps"] == 1
    with pytest.raises(ib.InputError, match="optimizer_in_bwd needs gradient_accumulation_steps 1"):
        ib.plan(recipe, 2).to("torchtune", job=Job(own=own))


@pytest.mark.parametrize(
    ("beside", "says"),
    [
        ({}, None),
        ({"optimizer_in_bwd": True, "gradient_accumulation_steps": 2}, "with gradient_accumulation_steps 2"),
        ({"optimizer_in_bwd": True, "clip_grad_norm": 1.0}, "with clip_grad_norm 1.0"),
        ({"tensor_parallel_dim": 2}, "without a tensor_parallel_plan"),
        ({"dataset": {"packed": True}}, "packed without tokenizer.max_seq_len"),
        ({"data_parallel_shard_dim": 4},
         "data_parallel_shard_dim 4 × data_parallel_replicate_dim 1 is not 8"),
        ({"data_parallel_shard_dim": 4, "data_parallel_replicate_dim": 2}, None),
    ],
)  # fmt: skip
def test_doctor_names_what_stops_torchtune(beside, says):
    reading = stops(examine({**FULL, **beside}, 8))
    assert [bool(reading), says is None or says in reading[0]] == [says is not None, True], reading
