"""A plan in plain words."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from isobatch import _core
from isobatch.planning.moves import Legs, Moved
from isobatch.planning.planned import Planned
from isobatch.planning.settings import DEFAULTS
from isobatch.reason import Reason
from isobatch.words import count, duration, figure, percent, real

_RULES = {name: (formula, source) for name, formula, _, source in _core.rules()}
_CAPS = {
    "max_micro_batch": "max_micro_batch",
    "memory": "what fits in memory by the profile",
    "tuned": "the tuned micro-batch",
}


def explain(plan: Planned, moves: Sequence[Moved], legs: Legs, options: Sequence[Planned]) -> str:
    """What stays, what changes, by which formula and paper, and warnings; why there is no plan, and what would work instead.

    Args:
        plan: what is explained.
        moves: what its moves mean.
        legs: the parts of its run.
        options: what would work instead, where it is infeasible.
    """
    if plan.status == "infeasible":
        lines = [*_infeasible(plan), *_menu(plan, options)]
    else:
        lines = [
            *_split(plan),
            *_changes(plan, moved=bool(moves)),
            *_steps(plan),
            *_moves(moves, legs),
            *_outlook(plan),
        ]
    cautions = [reason for reason in plan.reasons if reason.severity == "caution"]
    if cautions:
        lines += ["Warnings:", *(f"  - {_cited(reason.text, reason.source)}" for reason in cautions)]
    return "\n".join(lines)


# ---- numbers ----


def _cited(text: str, source: str) -> str:
    return f"{text} [{source}]" if source else text


def _number(x: float | None) -> str:
    """An exact number: 1,281,216 or 2e-5."""
    return "unknown" if x is None else count(x) if isinstance(x, int) else real(x)


def _figure(x: float | None) -> str:
    """An approximate number."""
    return "unknown" if x is None else figure(x)


def _by(plan: Planned) -> str:
    micro, accumulation, replicas, *_ = plan.layout
    return f"{micro} × {accumulation} × {replicas}"


# ---- a plan that can be ----


def _split(plan: Planned) -> Iterator[str]:
    micro, accumulation, replicas, batch, irregular = plan.layout
    differ = " (micro-batches differ in size or number)" if irregular else ""
    equals = "=" if not irregular else "for"
    yield (
        f"{_number(plan.world_size)} GPUs: micro-batch {_number(micro)} × accumulation {_number(accumulation)} × "
        f"{_number(replicas)} replicas {equals} {_number(batch)} samples per step{differ}."
    )
    if plan.cap_source in _CAPS:
        yield f"The micro-batch is capped at {_number(plan.micro_batch_cap)} ({_CAPS[plan.cap_source]})."
    else:
        yield "The micro-batch is not capped: neither max_micro_batch nor a tuned micro-batch is known."


def _changes(plan: Planned, *, moved: bool) -> Iterator[str]:
    tuned, batch, lr = plan.recipe.effective_batch, plan.layout.effective_batch, _number(plan.lr)
    change = f" ({percent(batch / tuned - 1, signed=True)})" if batch != tuned else ""
    if plan.settings.policy == "keep":
        if batch == tuned:
            yield f"Unchanged: batch size, learning rate {lr} and all other hyperparameters."
        else:
            yield (
                f"Batch size {_number(tuned)} → {_number(batch)}{change}, which divides evenly. Unchanged: learning rate "
                f"{lr} and all other hyperparameters."
            )
        return
    formula, source = _RULES[plan.rule]
    k = f", k = {_number(batch / tuned)}" if batch != tuned else ""
    yield f"Batch size {_number(tuned)} → {_number(batch)}{k}."
    yield _cited(
        f"Learning rate {_number(plan.recipe.lr)} → {lr} by rule {plan.rule} for {plan.recipe.optimizer}: {formula}",
        source,
    )
    others = list(_others(plan, moved=moved))
    yield f"Also changed: {'; '.join(others)}." if others else "Unchanged: all other hyperparameters."


def _others(plan: Planned, *, moved: bool) -> Iterator[str]:
    """What changes beside the learning rate."""
    recipe = plan.recipe
    if plan.weight_decay != recipe.weight_decay:
        decay = recipe.decay or "lr_multiplied"
        yield (
            f"weight decay {_number(recipe.weight_decay)} → {_number(plan.weight_decay)} ({decay}; keeps 1/(ηλ) in epochs, "
            "Wang & Aitchison, arXiv 2405.13698)"
        )
    if recipe.ema_decay is not None:
        yield f"EMA decay {_number(recipe.ema_decay)} → {_number(plan.ema_decay)} (ρ^k, Busbridge et al., arXiv 2307.13813)"
    if plan.rule == "sde":
        yield f"betas → ({_number(plan.beta1)}, {_number(plan.beta2)}), eps → {_number(plan.eps)}"
    elif plan.settings.beta_half_life:
        yield f"beta2 → {_number(plan.beta2)} (keeps its half-life in samples, Marek et al., arXiv 2507.07101)"
    if plan.warmup_lr and not moved:
        yield f"the warmup starts at {_number(plan.warmup_lr)}, the tuned learning rate (Goyal et al., section 2.2)"
    if recipe.min_lr:
        yield f"min_lr {_number(recipe.min_lr)} → {_number(plan.min_lr)}, with the peak"


def _steps(plan: Planned) -> Iterator[str]:
    if plan.steps_per_epoch is not None:
        extra = [
            f"{count(samples)} {what}"
            for samples, what in (
                (plan.padded_samples, "repeated as padding"),
                (plan.dropped_samples, "dropped"),
            )
            if samples
        ]
        detail = f" ({', '.join(extra)})" if extra else ""
        yield f"Per epoch: {_number(plan.steps_per_epoch)} steps, {_number(plan.samples_per_epoch)} samples{detail}."
    if plan.total_steps is not None:
        stretched = plan.rule == "adascale" or plan.settings.policy == "goodput"
        length = (
            "long enough to reach the same loss" if stretched else "same number of samples as the tuned run"
        )
        yield (
            f"The run: {_number(plan.total_steps)} steps, {_number(plan.warmup_steps)} of them warmup; {length} (steps counted as "
            f"{plan.recipe.convention} counts them)."
        )


def _moves(moves: Sequence[Moved], legs: Legs) -> Iterator[str]:
    if not moves:
        return
    for move, (_, before), (_, after) in zip(moves, legs[:-1], legs[1:], strict=True):
        changes = (
            ("", before.world_size, after.world_size, " GPUs"),
            ("batch size ", before.effective_batch, after.effective_batch, ""),
            ("learning rate ", before.lr, after.lr, ""),
        )
        yield (
            f"Moved after step {_number(move.step)} ({_number(move.samples)} samples): "
            f"{', '.join(_change(*figures) for figures in changes)}."
        )
    move, optimizer = moves[-1], legs[-1][1].recipe.optimizer
    if move.epoch is not None:
        lost = [
            f"{count(samples)} samples of that epoch are {what}"
            for samples, what in (
                (move.repeated_samples, "repeated to fill up its end"),
                (move.skipped_samples, "dropped at its end"),
            )
            if samples
        ]
        yield (
            f"Resume epoch {_number(move.epoch)} at sample {_number(move.offset)}: "
            f"{' and '.join(lost) or 'none is repeated or skipped'}."
        )
    if move.velocity_factor != 1 and optimizer in ("sgd", "lars"):
        yield _cited(
            "If your optimizer folds the learning rate into its momentum, multiply the buffers by "
            f"{_figure(move.velocity_factor)} (torch SGD does not)",
            "Goyal et al. 2017, arXiv 1706.02677, remark 2",
        )


def _change(before: str, old: float | None, new: float | None, behind: str) -> str:
    return f"{before}{_number(old)}{'' if old == new else f' → {_number(new)}'}{behind}"


def _outlook(plan: Planned) -> Iterator[str]:
    if plan.step_seconds is None:
        return
    error = "" if plan.step_error is None else f" ± {_figure(plan.step_error)}"
    yield (
        f"A step takes {_figure(plan.step_seconds)}{error} s: {_figure(plan.samples_per_second)} samples per second, "
        f"efficiency {_figure(plan.efficiency)}."
    )
    if plan.hours is not None:
        cost = "" if plan.cost is None else f", cost {_figure(plan.cost)}"
        yield f"The run takes {duration(plan.hours * 3600)}, {_figure(plan.gpu_hours)} GPU-hours{cost}."
    if plan.memory_gib is not None:
        yield f"Memory: {_figure(plan.memory_gib)} GiB per GPU."


# ---- a plan that cannot be ----


def _infeasible(plan: Planned) -> Iterator[str]:
    yield f"Cannot train on {_number(plan.world_size)} GPUs as asked:"
    for reason in plan.reasons:
        if reason.severity == "infeasible":
            text = _WHY.get(reason)
            yield f"  - {_cited((text and text(plan)) or reason.text, reason.source)}"


def _wanted(plan: Planned) -> int | None:
    """The batch that was asked for, where that is known without a plan."""
    policy = plan.settings.policy
    return policy if isinstance(policy, int) else plan.recipe.effective_batch if policy == "keep" else None


def _not_divisible(plan: Planned) -> str | None:
    batch = _wanted(plan)
    if batch is None:
        return None
    return f"{_number(batch)} samples cannot be split evenly over {_number(plan.data_parallel)} replicas"


def _model_parallel(plan: Planned) -> str:
    parallel = plan.cluster.model_parallel or plan.recipe.model_parallel
    return f"{_number(plan.world_size)} GPUs are not a multiple of model_parallel {_number(parallel)}"


def _above_max_batch(plan: Planned) -> str | None:
    batch = _wanted(plan)
    if batch is None:
        return None
    return f"batch size {_number(batch)} is above max_batch {_number(plan.settings.max_batch)}"


def _above_dataset(plan: Planned) -> str:
    return f"an epoch of {_number(plan.recipe.dataset_size)} samples is less than one step"


_WHY: dict[Reason, Callable[[Planned], str | None]] = {
    Reason.NOT_DIVISIBLE: _not_divisible,
    Reason.MODEL_PARALLEL: _model_parallel,
    Reason.ABOVE_MAX_BATCH: _above_max_batch,
    Reason.BATCH_ABOVE_DATASET: _above_dataset,
}


def _menu(plan: Planned, options: Sequence[Planned]) -> Iterator[str]:
    """What would work: each with its batch, its split, its price and the flags to copy."""
    rows = [(_what(plan, it), _how(it), _price(it), _flags(plan, it)) for it in options]
    if not rows:
        yield "Nothing close to it would work."
        return
    yield "What would work:"
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True) if width]
        yield f"  {'   '.join(cells).rstrip()}"


def _what(asked: Planned, plan: Planned) -> str:
    batch = plan.layout.effective_batch
    tuned = asked.recipe.effective_batch
    gpus = "" if plan.world_size == asked.world_size else f"{_number(plan.world_size)} GPUs, "
    change = "exact" if batch == tuned else percent(batch / tuned - 1, signed=True)
    return f"{gpus}{_number(batch)} samples ({change})"


def _how(plan: Planned) -> str:
    return f"{_by(plan)}{', weighted' if plan.layout.irregular else ''}"


def _price(plan: Planned) -> str:
    if plan.hours is None:
        return ""
    return duration(plan.hours * 3600) + ("" if plan.cost is None else f", cost {_figure(plan.cost)}")


def _flags(asked: Planned, plan: Planned) -> str:
    """The options of the command line that make the plan from what was asked."""
    flags = []
    if plan.cluster != asked.cluster:
        one = plan.cluster.nodes == 1
        flags.append(
            f"--gpus {plan.world_size}"
            if one
            else f"--nodes {plan.cluster.nodes} --gpus-per-node {plan.cluster.gpus_per_node}"
        )
    for name, old, new, default in zip(
        asked.settings._fields, asked.settings, plan.settings, DEFAULTS, strict=True
    ):
        option = f"--{name.replace('_', '-')}"
        if new == old:
            continue
        if new is True:
            flags.append(option)
        elif new in (None, False):
            flags.append(f"without {option}")
        else:
            flags.append(
                f"{option} {new}" if new != default or name in ("rule", "policy") else f"without {option}"
            )
    return " ".join(flags)
