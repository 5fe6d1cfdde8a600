"""A message that asks for a field is answered by that field: each setting of each reader, unknown or "auto",
is asked for, the answer typed, and asked again until a plan stands."""

import re

import pytest

import isobatch as ib
from isobatch.errors import InputError
from isobatch.recipes.recipe import Recipe
from isobatch.tools.detect import reader, readers
from isobatch.tools.page import Unknown
from isobatch.tools.read import recipe_fields
from tools.test_reading import FIELDS, probed, put

ANSWERS = {
    **{
        "lr": 1e-4,
        "effective_batch": 256,
        "batch_per_gpu": 4,
        "micro_batch": 4,
        "accumulation": 8,
        "gpus": 8,
    },
    **{"duration": "1000st", "warmup": "10st", "schedule": "cosine", "min_lr": 1e-6, "dataset_size": 100_000},
    **{"seq_len": 2048, "optimizer": "adamw", "betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.1},
    **{"momentum": 0.9, "model_parallel": 1, "expert_parallel": 1, "adapter": "lora", "coupled": "experts"},
    "ramp": "32 32 100000",
}
ASKED = re.compile(r"give (\w+)(?: and (\w+))? a value|--set (\w+)=")
BASES = {
    "torchtune": {
        "optimizer._component_": "torch.optim.AdamW", "optimizer.lr": 2e-5, "batch_size": 2, "epochs": 1,
        "dataset._component_": "torchtune.datasets.alpaca_dataset",
    },
    "hyperpod": {
        "scale_config": {"2": {"trainer": {"num_nodes": 2}, "training_config": {"training_args": {
            "train_batch_size": 128, "micro_train_batch_size": 4, "learning_rate": 0.0004}}}},
        "instance_types": ["ml.p5.48xlarge"],
    },
}  # fmt: skip
"""Settings without which a tool's file is none of its own."""
UNREADABLE = {
    "torchtune": {"optimizer"},
    "hyperpod": {"scale_config", "instance_types", "trainer.devices"},
}
"""Settings without whose table, or rows, there is nothing to plan."""


def read_names(tool):
    """The settings that a reader takes, or knows to matter."""
    _, *lines = (FIELDS / f"{tool}.txt").read_text().splitlines()
    _, probe = probed(tool, lines)
    matter = {
        name for names in reader(tool).reader.matters.values() for name in names.split() if "*" not in name
    }
    return sorted(
        {*probe.used, *matter, *(line.partition("=")[0] for line in lines)} - UNREADABLE.get(tool, set())
    )


def answered(tool, settings):
    """Types what each message asks for; the message without an answer, or "" and all that was typed."""
    typed = {}
    while True:
        try:
            recipe = Recipe(**recipe_fields([settings], typed, tool=tool)[0])
        except InputError as error:
            fields = {
                name
                for each in (error, *error.causes)
                for match in ASKED.findall(str(each))
                for name in match
            }
            more = {name: ANSWERS[name] for name in fields if name and name in ANSWERS and name not in typed}
            if not more:
                return str(error), typed
            typed |= more
            continue
        ib.plan(recipe, recipe.model_parallel * recipe.expert_parallel * 8)
        return "", typed


@pytest.mark.parametrize("tool", [name for name in readers() if name != "checkpoint"])
def test_fields_that_a_message_asks_for_are_answers(tool):
    stuck = {}
    for name in read_names(tool):
        for value in (Unknown(why="is $VALUE, which is not set in this file"), "auto"):
            settings = {}
            for place, own in BASES.get(tool, {}).items():
                put(settings, place, own)
            put(settings, name, value)
            message, typed = answered(tool, settings)
            if message:
                stuck[name] = f"{message[:300]} (typed: {', '.join(typed)})"
    assert not stuck, "\n".join(f"{name}: {message}" for name, message in stuck.items())
