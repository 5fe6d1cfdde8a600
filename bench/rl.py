"""GRPO files read by TRL and verl: plain files beside `isobatch doctor`, and written ones at 1 to 64 GPUs.

    VERL=CHECKOUT python bench/rl.py    prints the first part of bench/results/rl.md

TRL is asked by its own GRPOConfig. Of verl the two functions that refuse a batch are run from the text of
VERL, a checkout of it: `validate_config` of its trainer, up to where it builds classes, and the assertions of
its workers.
"""

from __future__ import annotations

import ast
import os
import tempfile
from collections.abc import Callable
from importlib.metadata import version
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import isobatch as ib
from isobatch.doctor.examine import examine
from isobatch.tools.sheet import Job

GRPO = {
    "per_device_train_batch_size": 8,
    "gradient_accumulation_steps": 2,
    "num_generations": 8,
    "learning_rate": 1e-6,
    "max_steps": 100,
}
FINDING = (
    "TRL and `isobatch doctor` refuse the same files, and TRL accepts every written file; verl does once its "
    "rollout is set as the note says."
)
ROLLOUTS = (
    {},
    {"steps_per_generation": 1},
    {"steps_per_generation": 3},
    {"steps_per_generation": 4},
    {"generation_batch_size": 48},
    {"generation_batch_size": 64},
    {"generation_batch_size": 96, "steps_per_generation": 2},
)
EVALUATIONS = (
    {},
    {"eval_strategy": "epoch"},
    {"eval_strategy": "epoch", "per_device_eval_batch_size": 3, "num_generations_eval": 2},
)
COUNTS = (1, 2, 3, 4, 6, 7, 8, 12, 16, 64)
ACTOR = {"ppo_mini_batch_size": 64, "ppo_micro_batch_size_per_gpu": 8, "optim": {"lr": 1e-6}}
VERL = {
    "algorithm": {"adv_estimator": "grpo"},
    "data": {"train_batch_size": 256},
    "actor_rollout_ref": {"actor": ACTOR, "rollout": {"n": 8}},
    "trainer": {"nnodes": 1, "n_gpus_per_node": 8, "total_training_steps": 100},
}


def of_trl(settings: dict[str, Any], gpus: int, folder: str) -> str:
    """Gives the settings to GRPOConfig on a number of GPUs; an empty text where it takes them."""
    from transformers import TrainingArguments
    from trl import GRPOConfig

    TrainingArguments.world_size = property(lambda _: gpus)
    try:
        GRPOConfig(output_dir=folder, use_cpu=True, **settings)
    except ValueError as error:
        return str(error)
    return ""


def of_many(folder: str) -> None:
    """Prints what TRL says of many files and of what is written from them.

    And where `isobatch doctor` says otherwise.
    """
    questions, refused, differ, written, refused_here, refused_by_trl = 0, 0, 0, 0, 0, 0
    sizes = ("per_device_train_batch_size", "gradient_accumulation_steps", "num_generations")
    for numbers, rollout, evaluated in product(
        product((1, 2, 3, 8), (1, 2, 3), (1, 4, 6, 8)), ROLLOUTS, EVALUATIONS
    ):
        own = {
            "learning_rate": 1e-6,
            "max_steps": 100,
            **dict(zip(sizes, numbers, strict=True)),
            **rollout,
            **evaluated,
        }
        says = {gpus: of_trl(own, gpus, folder) for gpus in COUNTS}
        questions, refused = questions + len(says), refused + sum(map(bool, says.values()))
        differ += sum(bool(text) == examine(own, gpus, tool="trl").healthy for gpus, text in says.items())
        if says[8]:
            continue
        recipe = ib.Recipe.read(own, tool="trl", gpus=8)
        for plan in (ib.plan(recipe, gpus, batch_tolerance=0.2) for gpus in COUNTS):
            if plan.status == "infeasible":
                continue
            try:
                settings = plan.to("trl", job=Job(own=own)).settings
            except ib.InputError:
                refused_here += 1
                continue
            written += 1
            refused_by_trl += bool(of_trl({**own, **settings}, plan.world_size, folder))
    print(
        f"\n{questions:,} configurations of TRL on {len(COUNTS)} counts of {min(COUNTS)} to "
        f"{max(COUNTS)} GPUs: TRL refuses {refused:,}; "
        f"`isobatch doctor` says otherwise of {differ}."
    )
    print(
        f"{written + refused_here:,} plans of those that TRL takes on 8 GPUs: {refused_here:,} refused by "
        "`--to trl`, "
        f"{written:,} written, {refused_by_trl} of these refused by TRL."
    )


def of_verl(settings: dict[str, Any], gpus: int, checks: Callable[..., None]) -> str:
    """Gives the settings to verl's validation, and does what its workers assert of a step."""
    actor, each = settings["actor_rollout_ref"]["actor"], settings["actor_rollout_ref"]["rollout"]["n"]
    trainer = {"n_gpus_per_node": gpus, "nnodes": 1}
    full = {
        **settings,
        "trainer": trainer,
        "actor_rollout_ref": {
            "actor": {"use_dynamic_bsz": False, "strategy": "fsdp", **actor},
            "rollout": {"n": each},
        },
    }
    step = actor["ppo_mini_batch_size"] * each
    try:
        checks(spaces(full))
        # verl, workers/engine_workers.py: train_mini_batch; workers/fsdp_workers.py: normalized
        # ppo_mini_batch_size
        assert step % gpus == 0, f"Got mini_batch_size={step} and {gpus} data-parallel ranks"
        assert step // gpus % actor["ppo_micro_batch_size_per_gpu"] == 0, "normalized ppo_mini_batch_size"
    except AssertionError as error:
        return str(error)
    return ""


def spaces(table: Any) -> Any:
    """Reads a dict as attributes, as OmegaConf does."""
    return SimpleNamespace(**{k: spaces(v) for k, v in table.items()}) if isinstance(table, dict) else table


def verls_checks(checkout: Path) -> Callable[..., None]:
    """The first two statements of verl's validate_config, which divide the rollout by the GPUs."""
    tree = ast.parse((checkout / "verl/utils/config.py").read_text())
    checks = next(
        node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "validate_config"
    )
    body = [node for node in checks.body if isinstance(node, ast.Assign | ast.If)][:2]
    arguments = ast.parse("def checks(config): pass").body[0]
    arguments.body = body
    scope: dict[str, Any] = {}
    exec(compile(ast.fix_missing_locations(ast.Module([arguments], [])), "validate_config", "exec"), scope)
    return scope["checks"]


def row(title: str, planned: dict[int, dict[str, Any]], ask: Callable[[dict[str, Any], int], str]) -> None:
    """Prints how many of the counts are written, taken and refused, and the first refusal."""
    answers = {gpus: ask(settings, gpus) for gpus, settings in planned.items()}
    refused = {gpus: text for gpus, text in answers.items() if text}
    first = next((f"{gpus}: {text.partition(' must be')[0]}" for gpus, text in refused.items()), "")
    print(f"| {title} | {len(planned)} | {len(planned) - len(refused)} | {len(refused)} | {first} |")


def plans(recipe: ib.Recipe, tool: str, group: int | None) -> dict[int, dict[str, Any]]:
    """The settings that are written, at each count with a plan, of a batch that may move by a tenth."""
    figures = {
        gpus: ib.plan(recipe, gpus, batch_tolerance=0.1, batch_multiple=group or 1) for gpus in range(1, 65)
    }
    return {
        gpus: dict(plan.to(tool).settings) for gpus, plan in figures.items() if plan.status != "infeasible"
    }


def main() -> None:
    """Prints the table."""
    print("# TRL and verl at 1 to 64 GPUs\n")
    print(f"> {FINDING}\n")
    print(f"Made by `VERL=CHECKOUT python bench/rl.py`; TRL {version('trl')}; counts of 1 to 64 GPUs.\n")
    print("| file | written | taken | refused | the first refusal |\n|---|---|---|---|---|")
    recipe = ib.Recipe.read(GRPO, gpus=8)
    with tempfile.TemporaryDirectory() as folder:
        ask = lambda settings, gpus: of_trl({**GRPO, **settings}, gpus, folder)  # noqa: E731
        row("TRL: the plain file, 8 × 2 a GPU", {gpus: {} for gpus in range(1, 65)}, ask)
        threes = {"per_device_train_batch_size": 3, "gradient_accumulation_steps": 1}
        row("TRL: the plain file, 3 × 1 a GPU", dict.fromkeys(range(1, 65), threes), ask)
        row("TRL: written without its groups", plans(recipe, "trl", None), ask)
        row("TRL: written with its groups", plans(recipe, "trl", GRPO["num_generations"]), ask)
    checks = verls_checks(Path(os.environ["VERL"]))
    tuned = ib.Recipe.read(VERL)
    check_verl = lambda settings, gpus: of_verl({**VERL, **settings}, gpus, checks)  # noqa: E731
    row("verl: the plain file, 64 × 8", {gpus: {} for gpus in range(1, 65)}, check_verl)
    planned = plans(tuned, "verl", 8)
    row("verl: written, `data.train_batch_size` as it was", planned, check_verl)
    for settings in planned.values():
        settings["data"] = {
            "train_batch_size": 4 * settings["actor_rollout_ref"]["actor"]["ppo_mini_batch_size"]
        }
    row("verl: written, `data.train_batch_size` a multiple as its note says", planned, check_verl)
    with tempfile.TemporaryDirectory() as folder:
        of_many(folder)


if __name__ == "__main__":
    main()
