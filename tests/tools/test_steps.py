"""Steps of published runs: each log's own count, from its settings. Facts alone, cited by place."""

import re

import pytest

import isobatch as ib
from isobatch.planning.plan import plan
from tools.test_reading import written


def trainer(epochs, micro, parts, **others):
    sizes = {"per_device_train_batch_size": micro, "gradient_accumulation_steps": parts}
    return {"num_train_epochs": epochs, **sizes, **others}


def axolotl(epochs, micro, parts, **others):
    sizes = {"micro_batch_size": micro, "gradient_accumulation_steps": parts}
    return {"base_model": "m", "num_epochs": epochs, **sizes, **others}


# place -> (settings, GPUs, rows, steps that the run's log has, whether a note on an older version says them).
# Of GRPO the rows are prompts × completions.
LOGS = {
    "hiyouga/LLaMA-Factory#4783, July 2024":
        (trainer(10, 1, 8, stage="sft", finetuning_type="lora"), 2, 900, 560, True),
    "CSDN 145152631, January 2025": (trainer(3, 2, 2), 1, 6668, 5001, False),
    "Stack Overflow: how steps are calculated in the Trainer (4,107 rows)":
        (trainer(2, 8, 8, warmup_steps=1000), 1, 4107, 128, True),
    "modelscope/ms-swift#4366, May 2025":
        (trainer(3, 4, 4, train_type="full", model="m"), 8, 396_746, 9297, True),
    "modelscope/ms-swift#1671, of 3,200 rows less 1 % for its evaluation":
        (trainer(1, 1, 16, train_type="lora", model="m"), 1, 3168, 198, False),
    "modelscope/ms-swift#5145, July 2025":
        (trainer(3, 1, 2, train_type="full", model="m", sequence_parallel_size=8), 8, 12_000, 18_000, False),
    "unslothai/unsloth#1140, October 2024": (trainer(5, 2, 4), 1, 467, 290, True),
    "unslothai/unsloth#3066, July 2025, of 16 × 2": (trainer(1, 16, 2), 1, 6261, 196, False),
    "unslothai/unsloth#3066, July 2025, of 14 × 2": (trainer(1, 14, 2), 1, 6261, 224, False),
    "huggingface/open-r1#483, March 2025":
        (trainer(1, 8, 4, num_generations=8, warmup_ratio=0.1), 7, 5498 * 8, 196, False),
    "StarsfieldAI/R1-V#122, 2025": (trainer(1, 1, 4, num_generations=7), 7, 8031 * 7, 2007, False),
    "RapidFireAI/rapidfireai#44, September 2025":
        (trainer(3, 8, 1, num_generations=8), 1, 128 * 8, 384, False),
    "huggingface/trl#3204, April 2025": (trainer(2, 4, 2, num_generations=6), 3, 8000 * 6, 4000, False),
    "GRPOTrainer of TRL 1.16, run here on 5 prompts": (trainer(1, 4, 2, num_generations=4), 1, 20, 2, False),
    "axolotl 0.19: calculate_total_num_steps on 1,000 rows": (axolotl(3, 4, 2), 4, 1000, 94, False),
    "axolotl 0.19: calculate_total_num_steps on 100,000 rows": (axolotl(10, 4, 8), 4, 100_000, 7813, False),
}  # fmt: skip


@pytest.mark.parametrize("place", LOGS)
def test_a_published_run_takes_the_steps_of_its_log(place):
    settings, gpus, rows, steps, is_older = LOGS[place]
    recipe = ib.Recipe.read({**settings, "learning_rate": 1e-5}, gpus=gpus, dataset_size=rows)
    older = re.findall(r"\(--set duration=(\d+)st\)", " ".join(recipe.notes))
    assert (older == [str(steps)]) if is_older else plan(recipe, gpus).total_steps == steps, recipe.notes


def test_axolotls_warmup_is_rounded_down_and_has_its_own_default():
    def warmup(rows, **settings):
        own = axolotl(3, 4, 2, learning_rate=1e-4, **settings)
        return plan(ib.Recipe.read(own, gpus=4, dataset_size=rows), 4).warmup_steps

    assert warmup(1000, warmup_ratio=0.1) == 9, "of 94 steps"
    assert warmup(10_000) == 28, "3 % of 938 steps"
    assert warmup(10**6) == 100, "at most"
    assert warmup(1500) == 4 and warmup(600) == 2, "of one step two"
    assert warmup(1000, warmup_steps=0) == 0


def test_packed_sequences_of_axolotl_are_rounded_down_by_the_epoch():
    packed = axolotl(3, 1, 4, learning_rate=1e-4, sample_packing=True)
    assert plan(ib.Recipe.read(packed, gpus=2, dataset_size=1007), 2).total_steps == 125 * 3


@pytest.mark.parametrize(
    ("beside", "prompts", "steps"),
    [
        ({}, 11, 2),
        ({"num_iterations": 3}, 11, 6),
        ({"steps_per_generation": 8}, 23, 4),
        ({"steps_per_generation": 1}, 11, 3),
        ({"generation_batch_size": 64}, 15, 2),
    ],
)  # fmt: skip
def test_trls_sampler_leaves_out_a_rollout_that_is_not_full(beside, prompts, steps):
    """As RepeatSampler and the Trainer count, on 2 GPUs: ⌊prompts / a rollout's⌋ × iterations × passes, in
    steps of 4 passes."""
    grpo = trainer(1, 4, 4, num_generations=8, learning_rate=1e-6, **beside)
    recipe = ib.Recipe.read(grpo, gpus=2, dataset_size=prompts * 8 * beside.get("num_iterations", 1))
    assert plan(recipe, 2).total_steps == steps, recipe.notes


def test_verls_loader_leaves_out_a_rollout_that_is_not_full():
    actor = {"ppo_mini_batch_size": 4, "optim": {"lr": 1e-6}}
    verl = {
        "actor_rollout_ref": {"actor": actor, "rollout": {"n": 2}},
        "data": {"train_batch_size": 8},
        "trainer": {"total_epochs": 3},
    }
    recipe = ib.Recipe.read(verl, dataset_size=15 * 2)
    assert plan(recipe, 8).total_steps == 2 * 3, "one rollout of 8 prompts an epoch, and two steps of it"
    assert any(
        "verl leaves out prompts that do not fill a rollout of 8: 14 of 30 samples" in note
        for note in recipe.notes
    )


def test_a_script_of_older_transformers_is_told_its_own_count(tmp_path, ran):
    text = (
        "torchrun --nproc_per_node 8 train.py --per_device_train_batch_size 4 --gradient_accumulation_steps "
        "4 --learning_rate 1e-5"
    )
    file = written(tmp_path, "run.sh", f"{text} --num_train_epochs 3")
    out, output = ran(f"plan --from {file} --gpus 8 --set dataset_size=396746".split())
    assert "9,300 steps" in out
    assert (
        "9,300 steps, as transformers 4.52 and later count them; up to 4.51 they are 9,297 (--set "
        "duration=9297st)" in output
    )
