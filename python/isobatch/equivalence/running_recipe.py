"""A run's real settings beside its command's, and the recipe made of them."""

import inspect
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from isobatch import schedules
from isobatch.equivalence.running import Running
from isobatch.errors import InputError
from isobatch.planning.plan import plan
from isobatch.recipes.recipe import Recipe
from isobatch.tools.read import read_file
from isobatch.words import count, figure, real

_OPTIMIZERS = {
    "sgd": ("SGD",),
    "adam": ("Adam",),
    "adamw": ("AdamW", "AdamW8bit", "PagedAdamW8bit", "DeepSpeedCPUAdam", "FusedAdam"),
    "rmsprop": ("RMSprop",),
    "lamb": ("LAMB", "Lamb", "FusedLamb"),
    "lion": ("Lion",),
    "muon": ("Muon",),
    "adafactor": ("Adafactor",),
}
"""By a recipe's name, the classes that are it."""
_RATE = 1e-3
"""Distance of two learning rates, as a part of the peak, that is no rounding of a length in steps."""
_CLOSE = 1e-6
"""Relative distance of two equal numbers, one of which may have been text."""
_SAID = (
    "gpus",
    "micro_batch",
    "accumulation",
    "effective_batch",
    "lr",
    "optimizer",
    "betas",
    "eps",
    "weight_decay",
    "momentum",
)
_WORDS = {
    "gpus": "ranks",
    "lr": "learning rate",
    "micro_batch": "micro-batch",
    "effective_batch": "effective batch",
}


class Mismatch(msgspec.Struct, frozen=True):
    """A setting with another value in the run than in the command.

    Attributes:
        field: of a recipe, or "schedule".
        stated: by the command, with the name of the flag or of the setting in its file.
        seen: in the run.
    """

    field: str
    stated: str
    seen: str


def recipe_of(running: Running, given: Mapping[str, Any] | None = None) -> Recipe:
    """Makes the recipe of a run; length and schedule come from the trainer's arguments or the command.

    Args:
        running: the run.
        given: fields that win over what was seen.

    Raises:
        InputError: the run does not show a field that a recipe needs; the message has the --set that gives
            it.
    """
    fields = _recipe_fields(running, given or {})
    if not {"schedule", "warmup", "lr"} & (given or {}).keys() and _first_other_rate(
        running, Recipe(**fields)
    ):
        if len({rate for _, rate in running.rates}) > 1 or running.total_steps is None:
            raise InputError(
                f"the learning rate does not follow {fields['schedule']}, warmup "
                f"{fields.get('warmup') or 'none'}: give --set schedule=NAME",
                field="schedule",
            )
        fields |= {"schedule": "constant", "warmup": None}
    return Recipe(**fields)


def _observed(running: Running) -> dict[str, Any]:
    """Returns the recipe's fields shown by the run."""
    group = running.groups[0]
    name = next(
        (optimizer for optimizer, classes in _OPTIMIZERS.items() if running.optimizer in classes), None
    )
    decays = [float(values.get("weight_decay") or 0.0) for values in running.groups]
    betas = group.get("betas")
    return {
        "gpus": running.ranks,
        "micro_batch": running.micro_batch,
        "accumulation": running.accumulation,
        "effective_batch": running.effective_batch,
        "lr": running.lr,
        "optimizer": name,
        "betas": tuple(betas) if betas else None,
        "eps": group.get("eps") if isinstance(group.get("eps"), float) else None,
        "weight_decay": max(decays),
        "momentum": group.get("momentum"),
        "clip_norm": running.clip_norm,
        "dataset_size": running.dataset_size,
    }


def differences(running: Running) -> Iterator[Mismatch]:
    """Yields the differences between the run and its command."""
    observed, stated = _observed(running), dict(running.stated)
    if running.launcher:
        stated["gpus"] = running.started
    stated.setdefault("micro_batch", stated.get("batch_per_gpu"))
    keys = {**running.keys, "gpus": running.launcher}
    keys.setdefault("micro_batch", keys.get("batch_per_gpu", ""))
    if running.typed_ranks != running.started:
        stated.pop("effective_batch", None)
    for field in (*_SAID, "clip_norm"):
        typed, seen = stated.get(field), observed[field]
        if field == "clip_norm" and running.stated and typed is None and seen is not None:
            yield Mismatch("clipping", "none", f"norm at most {real(seen)}")
        elif typed is not None and not _alike(typed, seen):
            yield Mismatch(
                _WORDS.get(field, field),
                f"{shown_value(typed)} ({keys.get(field) or 'default'})",
                shown_value(seen),
            )
    schedule = _schedule_difference(running)
    if schedule is not None:
        yield schedule


def _alike(stated: Any, observed: Any) -> bool:
    if isinstance(stated, int | float) and isinstance(observed, int | float):
        return abs(stated - observed) <= _CLOSE * max(abs(stated), abs(observed))
    if isinstance(stated, list | tuple) and isinstance(observed, list | tuple):
        return len(stated) == len(observed) and all(map(_alike, stated, observed))
    return bool(stated == observed)


def shown_value(value: Any) -> str:
    """Writes a value of a recipe or of a parameter group."""
    if value is None:
        return "not seen"
    if isinstance(value, list | tuple):
        return " ".join(map(shown_value, value))
    return real(value) if isinstance(value, float) else str(value)


def _schedule_difference(running: Running) -> Mismatch | None:
    """Compares the run's learning rates with its recipe's schedule."""
    times = (running.scheduler or {}).get("steps")
    if times is not None and times > 1:
        return Mismatch("scheduler", "one step with each of the optimizer", f"{times} steps")
    try:
        recipe = Recipe(**_recipe_fields(running, {}))
    except InputError:
        return None
    difference = _first_other_rate(running, recipe)
    if difference is None:
        return None
    step, planned, rate = difference
    stated = (
        f"{figure(planned)} at step {count(step + 1)} ({recipe.schedule}, warmup {recipe.warmup or 'none'})"
    )
    return Mismatch("learning rate", stated, figure(rate))


def _first_other_rate(running: Running, recipe: Recipe) -> tuple[int, float, float] | None:
    """Returns the first step with another learning rate: (step, the recipe's rate, the run's), or None."""
    try:
        rate_at = plan(recipe, running.ranks).lr_at
    except InputError:
        return None
    for step, rate in running.rates:
        if abs(rate_at(step) - rate) > _RATE * running.lr:
            return step, rate_at(step), rate
    return None


def _recipe_fields(running: Running, given: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a recipe: given, else seen, else of the trainer's arguments or the command.

    Raises:
        InputError: the batch, the optimizer or the schedule is in none of these.
    """
    base = dict(running.stated)
    if running.arguments is not None:
        base = {"precision": base.get("precision"), **read_file(running.arguments, "transformers").fields}
    base.pop("batch_per_gpu", None)
    observed = {name: value for name, value in _observed(running).items() if value is not None}
    fields = {
        name: value
        for name, value in {**base, **observed, **given}.items()
        if name in Recipe.__struct_fields__
    }
    typed = running.typed_ranks
    if (
        typed is not None
        and typed != running.started
        and running.ranks == running.started
        and running.effective_batch
    ):
        fields.setdefault("gpus", typed)
        fields |= {"gpus": typed, "effective_batch": running.effective_batch // running.ranks * typed}
    for name, description in (
        ("effective_batch", "the samples of a step were not seen"),
        ("optimizer", f"{running.optimizer} is none that a rule knows"),
    ):
        if name not in fields:
            raise InputError(f"{description}: give --set {name}=VALUE", field=name)
    if "schedule" not in fields:
        fields["schedule"] = _seen_schedule(running)
    if running.total_steps is not None:
        fields.setdefault("duration", f"{running.total_steps}st")
    return fields


def _seen_schedule(running: Running) -> Any:
    """The schedule of a scheduler of torch, where its values say it; constant without a scheduler.

    Raises:
        InputError: the scheduler cannot be read.
    """
    scheduler = running.scheduler
    if scheduler is None:
        return "constant"
    make = getattr(schedules.torch, scheduler["kind"], None)
    if make is not None and scheduler["steps"] == 1:
        names = [name for name in inspect.signature(make).parameters if name in scheduler["state"]]
        try:
            return make(running.lr, **{name: scheduler["state"][name] for name in names})
        except (InputError, TypeError):
            pass
    raise InputError(
        f"the schedule of {scheduler['kind']} was not recognized in the run: give --set schedule=NAME",
        field="schedule",
    )
