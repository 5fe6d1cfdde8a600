"""A plan in plain words."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from isobatch import _core
from isobatch.reason import Reason

if TYPE_CHECKING:
    from isobatch.planning.plan import Plan

_RULES = {name: (formula, source) for name, formula, _, source in _core.rules()}
_CAPS = {
    "max_micro_batch": "max_micro_batch",
    "memory": "what fits in memory by the profile",
    "tuned": "the tuned micro-batch",
}


def explain(plan: Plan) -> str:
    """What was held, what moved, by which formula, from which paper, and what to be wary of."""
    lines = list(_infeasible(plan) if plan.status == "infeasible" else _feasible(plan))
    cautions = [reason for reason in plan.reasons if reason.severity == "caution"]
    if cautions:
        lines += ["Be wary:", *(f"  - {_cited(reason.text, reason.source)}" for reason in cautions)]
    return "\n".join(lines)


def _cited(text: str, source: str) -> str:
    return f"{text} [{source}]" if source else text


def _number(x: float | None) -> str:
    return "unknown" if x is None else f"{x:.6g}"


def _infeasible(plan: Plan) -> Iterator[str]:
    yield f"No plan for {plan.world_size} GPUs (policy {plan.policy}):"
    for reason in plan.reasons:
        if reason.severity == "infeasible":
            yield f"  - {_cited(reason.text, reason.source)}"
    for what, values in (("GPU counts", plan.nearest_world_sizes), ("Batches", plan.nearest_batches)):
        found = [str(value) for value in values if value is not None]
        if found:
            yield f"{what} that work nearby: {' and '.join(found)}."


def _feasible(plan: Plan) -> Iterator[str]:
    recipe = plan.recipe
    differ = (
        " (micro-batches differ in size or number)"
        if {Reason.RAGGED, Reason.UNEVEN} & set(plan.reasons)
        else ""
    )
    yield (
        f"{plan.world_size} GPUs: micro-batch {plan.micro_batch} × accumulation {plan.accumulation} × {plan.data_parallel} "
        f"replicas, {plan.effective_batch} samples a step{differ}."
    )
    if plan.cap_source in _CAPS:
        yield f"The micro-batch is capped at {plan.micro_batch_cap} ({_CAPS[plan.cap_source]})."
    else:
        yield "The micro-batch is not capped: neither max_micro_batch nor a tuned micro-batch is known."
    if plan.policy == "keep" and Reason.BATCH_MOVED in plan.reasons:
        moved_batch = f"{recipe.effective_batch} → {plan.effective_batch}"
        yield f"Batch: {moved_batch}, to one that divides. Held: the learning rate {_number(plan.lr)} and all else."
    elif plan.policy == "keep":
        yield f"Held: the effective batch, the learning rate {_number(plan.lr)}, and every other hyperparameter."
    else:
        formula, source = _RULES[plan.rule]
        k = (plan.effective_batch or 0) / recipe.effective_batch
        yield f"Batch: {recipe.effective_batch} → {plan.effective_batch}, k = {_number(k)}."
        yield _cited(
            f"Learning rate: {_number(recipe.lr)} → {_number(plan.lr)} by rule {plan.rule} for {recipe.optimizer}, {formula}",
            source,
        )
        moved = list(_moved(plan))
        yield f"Moved with it: {'; '.join(moved)}." if moved else "Nothing else moved."
    yield from _steps(plan)
    yield from _moves(plan)
    yield from _outlook(plan)


def _outlook(plan: Plan) -> Iterator[str]:
    if plan.step_seconds is None:
        return
    error = "" if plan.step_error is None else f" ± {_number(plan.step_error)}"
    yield (
        f"A step takes {_number(plan.step_seconds)}{error} s: {_number(plan.samples_per_second)} samples a second, efficiency "
        f"{_number(plan.efficiency)}."
    )
    if plan.hours is not None:
        cost = "" if plan.cost is None else f", cost {_number(plan.cost)}"
        yield f"The run takes {_number(plan.hours)} hours, {_number(plan.gpu_hours)} GPU-hours{cost}."
    if plan.memory_gib is not None:
        yield f"Memory: {_number(plan.memory_gib)} GiB a GPU."


def _moved(plan: Plan) -> Iterator[str]:
    recipe = plan.recipe
    if plan.weight_decay != recipe.weight_decay:
        decay = recipe.decay or "lr_multiplied"
        yield (
            f"weight decay {_number(recipe.weight_decay)} → {_number(plan.weight_decay)} ({decay}; holds 1/(ηλ) in epochs, "
            "Wang & Aitchison, arXiv 2405.13698)"
        )
    if recipe.ema_decay is not None:
        yield f"EMA decay {_number(recipe.ema_decay)} → {_number(plan.ema_decay)} (ρ^k, Busbridge et al., arXiv 2307.13813)"
    if plan.rule == "sde":
        yield f"betas → ({_number(plan.beta1)}, {_number(plan.beta2)}), eps → {_number(plan.eps)}"
    elif plan.settings.beta_half_life:
        yield f"beta2 → {_number(plan.beta2)} (half-life held in samples, Marek et al., arXiv 2507.07101)"
    if plan.warmup_lr and not plan.moves:
        yield f"the warmup starts at {_number(plan.warmup_lr)}, the tuned learning rate (Goyal et al., section 2.2)"
    if recipe.min_lr:
        yield f"min_lr {_number(recipe.min_lr)} → {_number(plan.min_lr)}, with the peak"


def _steps(plan: Plan) -> Iterator[str]:
    if plan.steps_per_epoch is not None:
        extra = [
            f"{count} {what}"
            for count, what in ((plan.padded_samples, "served twice"), (plan.dropped_samples, "dropped"))
            if count
        ]
        detail = f" ({', '.join(extra)})" if extra else ""
        yield f"An epoch: {plan.steps_per_epoch} steps, {plan.samples_per_epoch} samples{detail}."
    if plan.total_steps is not None:
        yield (
            f"The run: {plan.total_steps} steps, {plan.warmup_steps} of them warmup, counted as {plan.recipe.convention} does; "
            "the samples are held."
        )


def _moves(plan: Plan) -> Iterator[str]:
    if not plan.moves:
        return
    for move, after in zip(plan.moves, [*(move.before for move in plan.moves[1:]), plan], strict=True):
        before = move.before
        yield (
            f"Moved after step {move.step} ({move.samples} samples): {before.world_size} → {after.world_size} GPUs, "
            f"{before.effective_batch} → {after.effective_batch} samples a step, learning rate {_number(before.lr)} → "
            f"{_number(after.lr)}."
        )
    move = plan.moves[-1]
    if move.epoch is not None:
        lost = [
            f"{count} samples of that epoch are {what}"
            for count, what in (
                (move.repeated_samples, "served twice, to fill up its end"),
                (move.skipped_samples, "dropped at its end"),
            )
            if count
        ]
        yield (
            f"Resume the data in epoch {move.epoch}, behind its first {move.offset} samples: "
            f"{' and '.join(lost) or 'none is repeated or skipped'}."
        )
    if move.velocity_factor != 1:
        yield _cited(
            f"A velocity that holds the learning rate is multiplied by {_number(move.velocity_factor)}; torch's SGD holds it outside.",
            "Goyal et al. 2017, arXiv 1706.02677, remark 2",
        )
