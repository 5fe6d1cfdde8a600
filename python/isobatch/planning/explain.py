"""A plan in plain words."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from isobatch import _core
from isobatch.planning.course import Stage
from isobatch.planning.moves import Legs, Moved
from isobatch.planning.planned import Planned
from isobatch.planning.ramps import refused_stage, stage_lines
from isobatch.planning.settings import DEFAULTS, HOLDS_LOSS
from isobatch.reason import Reason
from isobatch.words import count, counted, duration, figure, percent, real

_RULES = {name: (formula, source) for name, formula, _, source in _core.rules()}
_FREE = {
    name: getattr(DEFAULTS, name)
    for name in (
        "require_multiple",
        "accumulation_multiple",
        "min_accumulation",
        "batch_multiple",
        "max_batch",
        "fixed_micro_batch",
        "min_micro_batch",
        "decrease_batch",
    )
}
"""Settings that leave all batches that the replicas divide."""
_CAPS = {
    "fixed_micro_batch": "fixed_micro_batch",
    "max_micro_batch": "max_micro_batch",
    "memory": "what fits in memory by the profile",
    "tuned": "the tuned micro-batch",
}


def explain(
    plan: Planned,
    moves: Sequence[Moved],
    legs: Legs,
    options: Sequence[Planned],
    stages: Sequence[Stage],
) -> str:
    """What stays, what changes, by which formula and paper, and warnings; why there is no plan, and what would work instead.

    Args:
        plan: what is explained.
        moves: what its moves mean.
        legs: the parts of its run.
        options: what would work instead, where it is infeasible.
        stages: those of its ramp that are left.
    """
    if plan.status == "infeasible":
        lines = [*_infeasible(plan, options), *_menu(plan, options)]
    else:
        lines = [
            *_split(plan),
            *_changes(plan, moved=bool(moves)),
            *_steps(plan),
            *stage_lines(plan, stages),
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
        f"{counted(plan.world_size, 'GPU')}: micro-batch {_number(micro)} × accumulation {_number(accumulation)} × "
        f"{counted(replicas, 'replica')} {equals} {counted(batch, 'sample')} per step{differ}."
    )
    if plan.cap_source in _CAPS:
        yield f"The micro-batch is capped at {_number(plan.micro_batch_cap)} ({_CAPS[plan.cap_source]})."
    else:
        yield "The micro-batch is not capped: neither max_micro_batch nor a tuned micro-batch is known."


def _changes(plan: Planned, *, moved: bool) -> Iterator[str]:
    tuned, batch, lr = plan.recipe.effective_batch, plan.layout.effective_batch, _number(plan.lr)
    change = f" ({percent(batch / tuned - 1, signed=True)})" if batch != tuned else ""
    if plan.settings.policy == "keep" and plan.settings.duration_power is not None:
        yield f"Batch size {_number(batch)}{change}: the rule changes nothing."
        yield from _by_length(plan)
        others = list(_others(plan, moved=moved))
        yield f"Also changed: {'; '.join(others)}." if others else "Unchanged: all other hyperparameters."
        return
    if plan.settings.policy == "keep":
        if batch == tuned:
            yield f"Unchanged: batch size, learning rate {lr} and all other hyperparameters."
        else:
            yield (
                f"Batch size {_number(tuned)} → {_number(batch)}{change}, which divides evenly{_nearer(plan)}. Unchanged: "
                f"learning rate {lr} and all other hyperparameters."
            )
        return
    formula, source = _RULES[plan.rule]
    k = f", k = {_number(batch / tuned)}" if batch != tuned else ""
    yield f"Batch size {_number(tuned)} → {_number(batch)}{k}."
    yield _cited(
        f"Learning rate {_number(plan.recipe.lr)} → {lr} by rule {plan.rule} for {plan.recipe.optimizer}: {formula}",
        source,
    )
    yield from _by_length(plan)
    others = list(_others(plan, moved=moved))
    yield f"Also changed: {'; '.join(others)}." if others else "Unchanged: all other hyperparameters."


def _by_length(plan: Planned) -> Iterator[str]:
    """What another length than the tuned one changes, where that was asked for."""
    ratio, power = plan.settings.duration_ratio, plan.settings.duration_power
    if power is not None:
        yield (
            f"Of the learning rate, {_number(plan.lr)}, the factor {_figure(ratio**-power)} is for the run's length: {_number(ratio)} × the "
            f"tuned one, to the power −{_number(power)} (contested)."
        )


def _nearer(plan: Planned) -> str:
    """Which nearer batch was passed over, since its micro-batches are much smaller."""
    wanted, (_, _, replicas, batch, _) = _wanted(plan) or 0, plan.layout
    near = min(
        (wanted // replicas * replicas, -(-wanted // replicas) * replicas),
        key=lambda it: (abs(it - wanted), it),
    )
    plain = plan.recipe.ramp is None and plan.settings._replace(**_FREE) == plan.settings
    if not plain or near == 0 or abs(near - wanted) >= abs(batch - wanted):
        return ""
    return f" ({_number(near)} is nearer, but its micro-batches would be less than ¾ as large)"


def _others(plan: Planned, *, moved: bool) -> Iterator[str]:
    """What changes beside the learning rate."""
    recipe = plan.recipe
    if plan.weight_decay != recipe.weight_decay:
        decay = recipe.decay or "lr_multiplied"
        how = f"{decay}; keeps 1/(ηλ) in epochs, Wang & Aitchison, arXiv 2405.13698"
        if recipe.optimizer == "muon":
            how = "by √k and the samples, as nanochat does"
        yield f"weight decay {_number(recipe.weight_decay)} → {_number(plan.weight_decay)} ({how})"
    if recipe.ema_decay is not None:
        yield f"EMA decay {_number(recipe.ema_decay)} → {_number(plan.ema_decay)} (ρ^k, Busbridge et al., arXiv 2307.13813)"
    if plan.rule in ("sde", "sde_smooth"):
        yield f"betas → ({_number(plan.beta1)}, {_number(plan.beta2)}), eps → {_number(plan.eps)}{_floored(plan)}"
    elif plan.settings.beta_half_life:
        kept = "keeps its half-life in samples, Marek et al., arXiv 2507.07101"
        yield f"beta2 → {_number(plan.beta2)} ({kept}){_floored(plan)}"
    if plan.warmup_lr and not moved:
        yield f"the warmup starts at {_number(plan.warmup_lr)}, the tuned learning rate (Goyal et al., section 2.2)"
    if recipe.min_lr:
        yield f"min_lr {_number(recipe.min_lr)} → {_number(plan.min_lr)}, with the peak"


def _floored(plan: Planned) -> str:
    """Whether the floor under beta2 is what beta2 is."""
    return (
        " (beta2 held at min_beta2)"
        if plan.settings.min_beta2 and plan.beta2 == plan.settings.min_beta2
        else ""
    )


def _intervals(plan: Planned) -> Iterator[str]:
    """How often something is done, in the plan's steps."""
    named = (("evaluate", plan.eval_steps), ("save", plan.save_steps), ("log", plan.log_steps))
    found = [
        f"{what} every {'step' if steps == 1 else f'{_number(steps)} steps'}"
        for what, steps in named
        if steps is not None
    ]
    if found:
        yield f"After the same samples as in the tuned run: {', '.join(found)}."


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
        stretched = plan.rule in HOLDS_LOSS or plan.settings.policy == "goodput"
        length = (
            "long enough to reach the same loss" if stretched else "same number of samples as the tuned run"
        )
        yield (
            f"The run: {_number(plan.total_steps)} steps, {_number(plan.warmup_steps)} of them warmup, then {_curve(plan)}; {length} "
            f"(steps counted as {plan.recipe.convention} counts them)."
        )
    yield from _intervals(plan)


def _curve(plan: Planned) -> str:
    """The schedule that the learning rate follows: a recipe that names none has a cosine's."""
    spec, end = plan.recipe.schedule, plan.min_lr
    name = spec if isinstance(spec, str) else "its own schedule"
    return f"{name} to {_number(end)}" if spec in ("cosine", "linear") else name


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
    error = "" if not plan.step_error else f" ± {_figure(plan.step_error)}"
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


def _infeasible(plan: Planned, options: Sequence[Planned]) -> Iterator[str]:
    yield f"Cannot train on {counted(plan.world_size, 'GPU')} as asked:"
    for reason in plan.reasons:
        if reason.severity == "infeasible":
            text = _WHY.get(reason)
            why = (text and text(plan)) or _over(plan, reason, options) or reason.text
            yield f"  - {_cited(why, reason.source)}"


def _over(plan: Planned, reason: Reason, options: Sequence[Planned]) -> str | None:
    """By how much the run is above its limit: what it takes here without the limit, where that is among what would work."""
    limit = {Reason.MISSES_DEADLINE: "deadline_hours", Reason.ABOVE_BUDGET: "budget"}.get(reason)
    if limit is None:
        return None
    without: dict[str, Any] = {limit: None}
    free = plan.settings._replace(**without)
    here = next((it for it in options if (it.cluster, it.settings) == (plan.cluster, free)), None)
    if here is None:
        return None
    if reason is Reason.MISSES_DEADLINE:
        most = (plan.settings.deadline_hours or 0.0) * 3600
        return f"the run takes {duration((here.hours or 0.0) * 3600)}, over the deadline of {duration(most)} (deadline_hours)"
    return f"the run costs {_figure(here.cost)}, above the budget of {_figure(plan.settings.budget)}"


def _wanted(plan: Planned) -> int | None:
    """The batch that was asked for, where that is known without a plan."""
    policy = plan.settings.policy
    return policy if isinstance(policy, int) else plan.recipe.effective_batch if policy == "keep" else None


def _not_divisible(plan: Planned) -> str | None:
    batch, groups = _wanted(plan), plan.settings.batch_multiple
    if batch is None:
        return None
    if batch % groups:
        return f"{_number(batch)} samples are not a multiple of batch_multiple {_number(groups)}"
    return f"{counted(batch, 'sample')} cannot be split evenly over {_number(plan.data_parallel)} replicas"


def _accumulation_unmet(plan: Planned) -> str | None:
    batch, replicas, settings = _wanted(plan), plan.data_parallel, plan.settings
    if batch is None or replicas is None:
        return None
    wants = [
        text
        for text, is_asked in (
            (f"a multiple of {_number(settings.accumulation_multiple)}", settings.accumulation_multiple > 1),
            (f"at least {_number(settings.min_accumulation)}", settings.min_accumulation > 1),
        )
        if is_asked
    ]
    share = f"{counted(batch // replicas, 'sample')} for each of {counted(replicas, 'replica')}"
    return f"{share} cannot be split into micro-batches whose number is {' and '.join(wants)}"


def _micro_batch_unmet(plan: Planned) -> str | None:
    batch, replicas, settings = _wanted(plan), plan.data_parallel, plan.settings
    if plan.micro_batch_cap is not None and plan.micro_batch_cap < settings.min_micro_batch:
        return f"{_CAPS[plan.cap_source]} {_number(plan.micro_batch_cap)} is below min_micro_batch {_number(settings.min_micro_batch)}"
    if batch is None or replicas is None or batch % replicas:
        return None
    fixed = settings.fixed_micro_batch
    size = f"of {_number(fixed)}" if fixed else f"from {_number(settings.min_micro_batch)}"
    cap = "" if fixed or plan.micro_batch_cap is None else f" to {_number(plan.micro_batch_cap)}"
    share = f"{counted(batch // replicas, 'sample')} for each of {counted(replicas, 'replica')}"
    return f"{share} cannot be split into micro-batches {size}{cap}"


def _ramp_not_divisible(plan: Planned) -> str | None:
    batch = _wanted(plan)
    return None if batch is None else refused_stage(plan, batch)


def _model_parallel(plan: Planned) -> str:
    parallel = plan.cluster.model_parallel or plan.recipe.model_parallel
    are = "is" if plan.world_size == 1 else "are"
    return f"{counted(plan.world_size, 'GPU')} {are} not a multiple of model_parallel {_number(parallel)}"


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
    Reason.ACCUMULATION_UNMET: _accumulation_unmet,
    Reason.MICRO_BATCH_UNMET: _micro_batch_unmet,
    Reason.RAMP_NOT_DIVISIBLE: _ramp_not_divisible,
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
    idle = asked.world_size - plan.world_size
    left = f" ({_number(idle)} idle)" if idle > 0 else ""
    gpus = f"{counted(plan.world_size, 'GPU')}{left}, " if idle else ""
    change = "exact" if batch == tuned else percent(batch / tuned - 1, signed=True)
    return f"{gpus}{counted(batch, 'sample')} ({change})"


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
        if name == "policy" and type(old) is int and getattr(plan, "moves", None):
            flags.append("without --effective-batch")  # as `isobatch replan` calls it
        elif new is True:
            flags.append(option)
        elif new in (None, False):
            flags.append(f"without {option}")
        else:
            flags.append(
                f"{option} {new}" if new != default or name in ("rule", "policy") else f"without {option}"
            )
    return " ".join(flags)
