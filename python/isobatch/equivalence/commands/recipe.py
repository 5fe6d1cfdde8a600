"""A run's real settings: beside its command's, as a recipe, and in words."""

import contextlib
import inspect
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from isobatch import schedules
from isobatch.equivalence.commands.running import Running
from isobatch.errors import InputError
from isobatch.limits import within
from isobatch.planning.plan import plan
from isobatch.recipes.recipe import Recipe
from isobatch.tools.read import read_file
from isobatch.words import count, counted, few, figure, real

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
_SHOWN_RATES = 3
"""Learning rates that are shown of the first steps, and of the rest of the run."""
_CLOSE = 1e-6
"""Relative distance of two equal numbers, one of which may have been text."""
_LABELS = {
    "gpus": "ranks",
    "micro_batch": "micro-batch",
    "accumulation": "accumulation",
    "effective_batch": "effective batch",
    "lr": "learning rate",
    **{name: name for name in ("optimizer", "betas", "eps", "weight_decay", "momentum", "clip_norm")},
}
"""Fields that are compared, with their names in the text."""


class Mismatch(msgspec.Struct, frozen=True):
    """A setting with another value in the run than in the command."""

    field: str
    """Of a recipe, or "scheduler"."""
    stated: str
    """By the command, with the name of the flag or of the setting in its file."""
    observed: str


def recipe_of(running: Running, changes: Mapping[str, Any] | None = None) -> Recipe:
    """Makes the recipe of a run; length and schedule come from the trainer's arguments or the command.

    `changes` win over the run's fields. An InputError has the --set of a field that the run does not show.
    """
    changes = changes or {}
    fields = _recipe_fields(running, changes)
    recipe = Recipe(**fields)
    if {"schedule", "warmup", "lr"} & changes.keys() or _first_other_rate(running, recipe) is None:
        return recipe
    if len({rate for _, rate in running.rates}) > 1 or running.total_steps is None:
        raise InputError(
            f"the learning rate does not follow {fields['schedule']}, warmup "
            f"{fields.get('warmup') or 'none'}: give --set schedule=NAME",
            field="schedule",
        )
    return Recipe(**fields | {"schedule": "constant", "warmup": None})


def _observed(running: Running) -> dict[str, Any]:
    """Returns the recipe's fields shown by the run."""
    group = running.groups[0]
    names = (name for name, classes in _OPTIMIZERS.items() if running.optimizer in classes)
    return {
        "gpus": running.ranks,
        "micro_batch": running.micro_batch,
        "accumulation": running.accumulation,
        "effective_batch": running.effective_batch,
        "lr": running.lr,
        "optimizer": next(names, None),
        "betas": tuple(group["betas"]) if group.get("betas") else None,
        "eps": group.get("eps") if isinstance(group.get("eps"), float) else None,
        "weight_decay": max(float(values.get("weight_decay") or 0.0) for values in running.groups),
        "momentum": group.get("momentum"),
        "clip_norm": running.clip_norm,
        "dataset_size": running.dataset_size,
        "drop_last": running.drop_last or None,
    }


def _group_values(running: Running) -> dict[str, list[float]]:
    """Returns the learning rates and the weight decays of the parameter groups, 0 apart, each once."""
    names = {"lr": ("initial_lr", "lr"), "weight_decay": ("weight_decay",)}
    values = {
        field: [next((group[name] for name in keys if name in group), 0.0) for group in running.groups]
        for field, keys in names.items()
    }
    return {field: [*dict.fromkeys(filter(None, each))] for field, each in values.items()}


def differences(running: Running) -> Iterator[Mismatch]:
    """Yields the differences between the run and its command."""
    values, stated = _observed(running), dict(running.stated)
    if running.launcher:
        stated["gpus"] = running.started
    stated.setdefault("micro_batch", stated.get("batch_per_gpu"))
    keys = {**running.keys, "gpus": running.launcher}
    keys.setdefault("micro_batch", keys.get("batch_per_gpu", ""))
    if running.typed_ranks != running.started:
        stated.pop("effective_batch", None)
    for field, label in _LABELS.items():
        typed, observed = stated.get(field), values[field]
        if typed is not None and not _are_alike(typed, observed):
            place = keys.get(field) or "default"
            yield Mismatch(label, f"{shown_value(typed)} ({place})", shown_value(observed))
    clip_norm = running.clip_norm
    if running.stated and stated.get("clip_norm") is None and clip_norm is not None:
        yield Mismatch("clipping", "none", f"norm at most {real(clip_norm)}")
    yield from _schedule_difference(running)


def _are_alike(stated: Any, observed: Any) -> bool:
    if isinstance(stated, int | float) and isinstance(observed, int | float):
        return within(stated - observed, _CLOSE * max(abs(stated), abs(observed)))
    if isinstance(stated, list | tuple) and isinstance(observed, list | tuple):
        return len(stated) == len(observed) and all(map(_are_alike, stated, observed))
    return bool(stated == observed)


def shown_value(value: Any) -> str:
    """Writes a value of a recipe or of a parameter group."""
    if value is None:
        return "not seen"
    if isinstance(value, list | tuple):
        return " ".join(map(shown_value, value))
    return real(value) if isinstance(value, float) else str(value)


def _schedule_difference(running: Running) -> Iterator[Mismatch]:
    """Compares the run's learning rates with its recipe's schedule."""
    times = (running.scheduler or {}).get("steps")
    if times is not None and times > 1:
        yield Mismatch("scheduler", "one step with each of the optimizer", f"{times} steps")
        return
    try:
        recipe = Recipe(**_recipe_fields(running, {}))
    except InputError:
        return
    difference = _first_other_rate(running, recipe)
    if difference is not None:
        step, planned, rate = difference
        where = f"at step {count(step + 1)} ({recipe.schedule}, warmup {recipe.warmup or 'none'})"
        yield Mismatch("learning rate", f"{figure(planned)} {where}", figure(rate))


def _first_other_rate(running: Running, recipe: Recipe) -> tuple[int, float, float] | None:
    """Returns the first step with another learning rate: (step, the recipe's rate, the run's), or None."""
    if recipe.duration is None and recipe.schedule == "constant":  # of any length
        recipe = msgspec.structs.replace(recipe, duration=f"{running.rates[-1][0] + 1}st")
    try:
        rate_at = plan(recipe, running.ranks).lr_at
    except InputError:
        return None
    for step, rate in running.rates:
        if not within(rate_at(step) - rate, _RATE * running.lr):
            return step, rate_at(step), rate
    return None


def rate_difference(running: Running, recipe: Recipe) -> str | None:
    """Describes the first step with another learning rate than the run's; None: there is none."""
    difference = _first_other_rate(running, recipe)
    if difference is None:
        return None
    step, planned, rate = difference
    return (
        f"at step {count(step + 1)} the recipe has learning rate {figure(planned)} ({recipe.schedule}, "
        f"warmup {recipe.warmup or 'none'}), and the run {figure(rate)}: a guard would stop it. Give its "
        "schedule and warmup, in Python any rates by isobatch.schedules.table, or change the script's"
    )


def unseen_end(running: Running, recipe: Recipe) -> str | None:
    """Describes the assumption on an epoch's last passes, where they are no whole step of a loop; or None."""
    size, micro_batch = running.dataset_size, running.micro_batch or 0
    if running.arguments is not None or running.stated or not size or not micro_batch:
        return None
    rows = micro_batch * running.ranks
    passes = size // rows if running.drop_last else -(-size // rows)
    rest = passes % running.accumulation
    if not rest or recipe.convention == "exact":
        return None
    return (
        f"an epoch has {counted(passes, 'pass', 'passes')}, no whole number of steps of "
        f"{running.accumulation}: planned with a last step of {counted(rest, 'pass', 'passes')}; a script "
        "that leaves them out is planned by --set convention=exact --set drop_last=true"
    )


def _recipe_fields(running: Running, changes: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a recipe's fields: of the changes, else of the run, else of its arguments or command."""
    base = dict(running.stated)
    if running.arguments is not None:
        base = {"precision": base.get("precision"), **read_file(running.arguments, "transformers").fields}
    base.pop("batch_per_gpu", None)
    observed = {name: value for name, value in _observed(running).items() if value is not None}
    if base.get("drop_last"):
        observed.pop("drop_last", None)  # one rank does not show which of sampler and loader drops
    for name, value in _group_values(running).items():
        if len(value) > 1 and name not in changes:
            raise InputError(
                f"the parameter groups have {len(value)} values of {_LABELS[name]}: "
                f"{few(map(real, value), 3)}; a recipe has one: give --set {name}={real(value[0])}, "
                "and scale the others alike",
                field=name,
            )
    fields = {**base, **observed, **changes}
    fields = {name: value for name, value in fields.items() if name in Recipe.__struct_fields__}
    typed, batch = running.typed_ranks, running.effective_batch
    if typed not in (None, running.started) and running.ranks == running.started and batch:
        fields |= {"gpus": typed, "effective_batch": batch // running.ranks * typed}
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
    """Returns the schedule of a scheduler of torch by its values; constant without a scheduler."""
    scheduler = running.scheduler
    if scheduler is None:
        return "constant"
    make = getattr(schedules.torch, scheduler["kind"], None)
    if make is not None and scheduler["steps"] == 1:
        names = inspect.signature(make).parameters.keys() & scheduler["state"].keys()
        with contextlib.suppress(InputError, TypeError):
            return make(running.lr, **{name: scheduler["state"][name] for name in names})
    raise InputError(
        f"the schedule of {scheduler['kind']} was not recognized in the run: give --set schedule=NAME",
        field="schedule",
    )


def text_of(running: Running, different: Sequence[Mismatch]) -> str:
    """Describes a run, and its differences from its command."""
    return "\n".join(_lines(running, different))


def _lines(running: Running, different: Sequence[Mismatch]) -> Iterator[str]:
    yield f"Runs {running.title}, seen for {running.seconds:.0f} s and ended before its second optimizer step"
    if running.effective_batch is None:
        passes = counted(running.accumulation, "pass", "passes")
        yield f"A step: {counted(running.ranks, 'rank')} × {passes} of a batch that was not seen"
    else:
        yield (
            f"A step has {counted(running.effective_batch, 'sample')}: {counted(running.ranks, 'rank')} × "
            f"{counted(running.accumulation, 'pass', 'passes')} × "
            f"{counted(running.micro_batch or 0, 'sample')}"
        )
    size = running.dataset_size
    yield "Dataset: its size was not seen" if size is None else f"Dataset: {counted(size, 'row')}"
    yield f"Optimizer: {running.optimizer} of {counted(running.parameters, 'parameter')}"
    yield from (f"  {_group_line(group)}" for group in running.groups)
    clip = running.clip_norm
    yield "Clipping: none in this step" if clip is None else f"Clipping: gradient norm at most {real(clip)}"
    yield from _schedule_lines(running)
    yield from running.notes
    if different:
        yield "Not as the command says:"
        yield from (
            f"  {difference.field}: expected {difference.stated}, runs {difference.observed}"
            for difference in different
        )
    elif running.stated:
        yield "As the command says."


def _group_line(group: Mapping[str, Any]) -> str:
    names = ("initial_lr" if "initial_lr" in group else "lr", "betas", "eps", "momentum", "weight_decay")
    values = {name: group[name] for name in names if group.get(name) is not None}
    tensors = f"{group['tensors']} tensors: " if "tensors" in group else ""
    return tensors + ", ".join(
        f"{name.removeprefix('initial_')} {shown_value(value)}" for name, value in values.items()
    )


def _schedule_lines(running: Running) -> Iterator[str]:
    scheduler, total = running.scheduler, running.total_steps
    of = "a run of unknown length" if total is None else counted(total, "step")
    if scheduler is None:
        yield f"Learning rate: {real(running.lr)}, no scheduler of torch; {of}"
        return
    steps = scheduler["steps"]
    if steps == 0:
        yield f"Learning rate: {scheduler['kind']}, which the script does not step with its optimizer; {of}"
        return
    shown = {
        *range(_SHOWN_RATES),
        *(len(running.rates) * part // _SHOWN_RATES for part in range(_SHOWN_RATES)),
        len(running.rates) - 1,
    }
    rates = [
        f"{figure(rate)} at step {count(at + 1)}"
        for place, (at, rate) in enumerate(running.rates)
        if place in shown
    ]
    yield f"Learning rate: {scheduler['kind']}, {of}: {few(rates, 2 * _SHOWN_RATES + 1)}"
