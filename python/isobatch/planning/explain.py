"""A plan in plain words."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

from isobatch import _core
from isobatch.planning import refusal
from isobatch.planning.record import Handover, PlanRecord
from isobatch.planning.settings import DEFAULTS, HOLDS_LOSS
from isobatch.reason import Reason
from isobatch.words import cited, count, counted, duration, exact, figure, percent, price

if TYPE_CHECKING:
    from isobatch.planning.course import Legs
    from isobatch.planning.leg import Stage

_RULES = {name: (formula, source) for name, formula, _, source in _core.rules()}
_FREE = {
    name: getattr(DEFAULTS, name)
    for name in (
        "micro_batch_multiple",
        "accumulation_multiple",
        "batch_multiple",
        "max_batch",
        "min_micro_batch",
        "split",
    )
}
"""Settings that leave all batches that the replicas divide."""


class Topic(StrEnum):
    """The topic of a sentence in a feasible plan's explanation."""

    LIMIT = "limit"
    SPLIT = "split"
    CAP = "cap"
    CHANGE = "change"
    OTHER_CHANGES = "other changes"
    EPOCH = "epoch"
    RUN = "run"
    STAGES = "stages"
    MOVES = "moves"
    OUTLOOK = "outlook"


class Sentence(NamedTuple):
    """A sentence of an explanation.

    Attributes:
        verdict: of a deadline or budget: "met", "likely" or "missed"; None for other topics.
    """

    topic: Topic
    text: str
    verdict: str | None = None


class Explanation(NamedTuple):
    """A plan in words, by topics.

    Attributes:
        headline: the first line.
        sentences: of a feasible plan, `headline` first; empty if it is infeasible.
        reasons: of an infeasible plan, each with why it is met.
        cautions: each with its decisive figures.
        menu: lines of what would work, with their head; empty where nothing is to be chosen.
    """

    headline: str
    sentences: list[Sentence]
    reasons: list[tuple[Reason, str]]
    cautions: list[tuple[Reason, str]]
    menu: list[str]

    def text(self) -> str:
        """Writes all of it in lines."""
        lines = [sentence.text for sentence in self.sentences] or [self.headline]
        lines += [f"  - {why}" for _, why in self.reasons]
        lines += self.menu if self.reasons else []
        lines += ["Warnings:", *(f"  - {why}" for _, why in self.cautions)] if self.cautions else []
        lines += [] if self.reasons else self.menu
        return "\n".join(lines)


def explanation(
    plan: PlanRecord,
    moves: Sequence[Handover],
    plan_legs: Legs,
    options: Sequence[PlanRecord],
    stages: Sequence[Stage],
    currency: str = "$",
) -> Explanation:
    """Explains a plan: changes by formula and paper, and warnings; or why there is none, and the ways out."""
    cautions = [(reason, _warning(plan, reason)) for reason in plan.reasons if reason.severity == "caution"]
    if plan.status == "infeasible":
        headline = f"Cannot train on {counted(plan.world_size, 'GPU')} as asked:"
        reasons = [*refusal.refusal(plan, options, currency)]
        return Explanation(headline, [], reasons, cautions, [*refusal.menu(plan, options, currency)])
    sentences = [*_verdicts(plan, currency)]
    for topic, texts in (
        (Topic.SPLIT, _split(plan)),
        (Topic.CAP, _cap(plan)),
        (Topic.CHANGE, _changes(plan)),
        (Topic.OTHER_CHANGES, _other_changes(plan, moved=bool(moves))),
        (Topic.EPOCH, _epoch(plan)),
        (Topic.RUN, _run(plan)),
        (Topic.STAGES, stage_lines(plan, stages)),
        (Topic.MOVES, _moves(moves, plan_legs)),
        (Topic.OUTLOOK, _outlook(plan, currency)),
        (Topic.OUTLOOK, _unknown(plan)),
    ):
        sentences += [Sentence(topic, text) for text in texts]
    menu = [*refusal.menu(plan, options, currency)] if Reason.COUPLED_MOVED in plan.reasons else []
    return Explanation(sentences[0].text, sentences, [], cautions, menu)


def _smallest_pass(plan: PlanRecord) -> int:
    """Returns the samples of the smallest micro-batch: of a ragged step the last ones are smaller."""
    layout = plan.layout
    if Reason.RAGGED not in plan.reasons:
        return layout.micro_batch
    ends = (
        layout.effective_batch // layout.data_parallel,
        -(-layout.effective_batch // layout.data_parallel),
    )
    return min((samples - 1) % layout.micro_batch + 1 for samples in ends)


def _warning(plan: PlanRecord, reason: Reason) -> str:
    """Writes a caution with its decisive figures."""
    if reason is Reason.ABOVE_CRITICAL_BATCH and plan.recipe.noise_scale is not None:
        noise = f"noise_scale {figure(plan.recipe.noise_scale)} of the recipe, whose range is not known"
        batch = f"the batch of {exact(plan.layout.effective_batch)}"
        return cited(f"{reason.text.replace('the batch', batch, 1)} ({noise})", reason.source)
    if reason is Reason.COUPLED_MOVED:
        why = " and ".join(refusal.couplings(plan.recipe))
        tuned, micro = exact(plan.recipe.micro_batch), counted(plan.layout.micro_batch, "sample")
        least = _smallest_pass(plan)
        micro = micro if least == plan.layout.micro_batch else f"{count(least)} to {micro}"
        return f"{why}: {micro}, {tuned} when tuned. This is not the same training"
    if reason is Reason.OTHER_HARDWARE and plan.origin.mute is not None:
        return f"time and cost are not known: {plan.origin.mute}"
    if reason is Reason.LIMIT_LIKELY:
        likely = [name for name, verdict in _limits(plan).items() if verdict == "likely"]
        return f"{' and '.join(likely)}: likely met, not surely: its range goes past the limit"
    return cited(reason.text, reason.source)


# ---- a plan that can be ----


def _verdicts(plan: PlanRecord, currency: str) -> Iterator[Sentence]:
    """Says of the deadline and the budget how surely they are met."""
    settings, verdicts = plan.settings, _limits(plan)
    sure = "" if refusal.error_share(plan) else ", but no range is known"
    how = {
        name: "likely met, not surely" if verdict == "likely" else f"{verdict}{sure}"
        for name, verdict in verdicts.items()
    }
    if "deadline_hours" in how:
        limit = duration((settings.deadline_hours or 0.0) * 3600)
        text = f"Deadline of {limit}: {how['deadline_hours']}; the run takes {refusal.time_of(plan)}."
        yield Sentence(Topic.LIMIT, text, verdicts["deadline_hours"])
    if "budget" in how:
        limit, cost = price(settings.budget or 0.0, currency), refusal.cost_of(plan, currency)
        text = f"Budget of {limit}: {how['budget']}; the run costs {cost}."
        yield Sentence(Topic.LIMIT, text, verdicts["budget"])


def _limits(plan: PlanRecord) -> dict[str, str | None]:
    """Judges the hours by the deadline and the cost by the budget, where they are known."""
    settings, share = plan.settings, refusal.error_share(plan)
    limits = {"deadline_hours": (plan.hours, settings.deadline_hours), "budget": (plan.cost, settings.budget)}
    return {
        name: _core.verdict(value, math.nan if share is None else value * share, limit)
        for name, (value, limit) in limits.items()
        if value is not None and limit is not None
    }


def _split(plan: PlanRecord) -> Iterator[str]:
    micro, accumulation, replicas, batch, irregular = plan.layout
    differ = " (micro-batches differ in size or number)" if irregular else ""
    equals = "=" if not irregular else "for"
    yield (
        f"{counted(plan.world_size, 'GPU')}: micro-batch {exact(micro)} × accumulation {exact(accumulation)} "
        f"× {counted(replicas, 'replica')} {equals} {counted(batch, 'sample')} per step{differ}."
    )


def _cap(plan: PlanRecord) -> Iterator[str]:
    if plan.cap_source in refusal.CAPS:
        yield f"The micro-batch is capped at {exact(plan.micro_batch_cap)} ({refusal.CAPS[plan.cap_source]})."
    else:
        yield "The micro-batch is not capped: neither max_micro_batch nor a tuned micro-batch is known."


def _holds_all(plan: PlanRecord) -> bool:
    """Tells whether the learning rate and all other hyperparameters stay."""
    return plan.settings.policy == "keep" and plan.lr == plan.recipe.lr


def _changes(plan: PlanRecord) -> Iterator[str]:
    recipe, batch, lr = plan.recipe, plan.layout.effective_batch, exact(plan.lr)
    tuned = recipe.effective_batch
    change = f" ({percent(batch / tuned - 1, signed=True)})" if batch != tuned else ""
    if _holds_all(plan):
        divides = f"Batch size {exact(tuned)} → {exact(batch)}{change}, which divides evenly{_nearer(plan)}. "
        moves, stays = ("", "batch size, ") if batch == tuned else (divides, "")
        but = ", but not the micro-batch (see the warnings)" if Reason.COUPLED_MOVED in plan.reasons else ""
        yield f"{moves}Unchanged: {stays}learning rate {lr} and all other hyperparameters{but}."
        return
    if plan.settings.policy == "keep":
        yield (
            f"Batch size {exact(batch)}{change}: the rule changes nothing. Learning rate {exact(recipe.lr)} "
            f"→ {lr}."
        )
    else:
        formula, source = _RULES[plan.rule]
        k = f", k = {exact(batch / tuned)}" if batch != tuned else ""
        yield f"Batch size {exact(tuned)} → {exact(batch)}{k}."
        by = f"by rule {plan.rule} for {recipe.optimizer}: {formula}"
        yield cited(f"Learning rate {exact(recipe.lr)} → {lr} {by}", source)
    yield from _by_length(plan)


def _other_changes(plan: PlanRecord, *, moved: bool) -> Iterator[str]:
    if _holds_all(plan):
        return
    changes = list(_others(plan, moved=moved))
    yield f"Also changed: {'; '.join(changes)}." if changes else "Unchanged: all other hyperparameters."


def _by_length(plan: PlanRecord) -> Iterator[str]:
    """Says how another length than the tuned one changes the learning rate, where asked for."""
    ratio, power = plan.settings.duration
    if power is not None:
        yield (
            f"The learning rate includes the factor {figure(ratio**-power)} for the run's length: "
            f"{exact(ratio)} × the tuned one, to the power −{exact(power)} (contested)."
        )


def _nearer(plan: PlanRecord) -> str:
    """Names a nearer batch passed over for its much smaller micro-batches."""
    target, (_, _, replicas, batch, _) = plan.asked_batch or 0, plan.layout
    near = min(
        (target // replicas * replicas, -(-target // replicas) * replicas),
        key=lambda near_batch: (abs(near_batch - target), near_batch),
    )
    plain = plan.recipe.ramp is None and plan.settings._replace(**_FREE) == plan.settings
    if not plain or near == 0 or abs(near - target) >= abs(batch - target):
        return ""
    return f" ({exact(near)} is nearer, but its micro-batches would be less than ¾ as large)"


def _others(plan: PlanRecord, *, moved: bool) -> Iterator[str]:
    """Names the changes beside the learning rate."""
    recipe = plan.recipe
    if plan.weight_decay != recipe.weight_decay:
        decay = recipe.decay or "lr_multiplied"
        how = f"{decay}; keeps 1/(ηλ) in epochs, Wang & Aitchison, arXiv 2405.13698"
        if recipe.optimizer == "muon":
            how = "by √k and the samples, as nanochat does"
        yield f"weight decay {exact(recipe.weight_decay)} → {exact(plan.weight_decay)} ({how})"
    if recipe.ema_decay is not None:
        yield (
            f"EMA decay {exact(recipe.ema_decay)} → {exact(plan.ema_decay)} (ρ^k, Busbridge et al., arXiv "
            "2307.13813)"
        )
    if plan.rule in ("sde", "sde_smooth"):
        yield f"betas → ({exact(plan.beta1)}, {exact(plan.beta2)}), eps → {exact(plan.eps)}{_floored(plan)}"
    elif plan.settings.beta2_rule.startswith("half_life"):
        why = "keeps its half-life in samples, Marek et al., arXiv 2507.07101"
        yield f"beta2 → {exact(plan.beta2)} ({why}){_floored(plan)}"
    if plan.warmup_lr and plan.warmup_steps and not moved:
        is_whole = (plan.effective_batch or 0) >= 2 * recipe.effective_batch
        start = f"{'' if is_whole else '(k − 1) × '}the tuned learning rate"
        yield f"the warmup starts at {exact(plan.warmup_lr)}, {start} (Goyal et al., section 2.2)"
    if recipe.min_lr:
        yield f"min_lr {exact(recipe.min_lr)} → {exact(plan.min_lr)}, with the peak"


def _floored(plan: PlanRecord) -> str:
    """Says if beta2 lies on its floor."""
    floor = plan.settings.beta2_floor
    return f" (beta2 is at its floor of {exact(floor)})" if floor and plan.beta2 == floor else ""


def _intervals(plan: PlanRecord) -> Iterator[str]:
    """Says how often the run evaluates, saves and logs, in the plan's steps."""
    named = (("evaluate", plan.eval_steps), ("save", plan.save_steps), ("log", plan.log_steps))
    intervals = [
        f"{event} every {'step' if steps == 1 else f'{exact(steps)} steps'}"
        for event, steps in named
        if steps is not None
    ]
    if intervals:
        yield f"After the same samples as in the tuned run: {', '.join(intervals)}."


def _epoch(plan: PlanRecord) -> Iterator[str]:
    if plan.steps_per_epoch is not None:
        ends = (plan.padded_samples, "repeated as padding"), (plan.dropped_samples, "dropped")
        extra = [f"{count(samples)} {fate}" for samples, fate in ends if samples]
        detail = f" ({', '.join(extra)})" if extra else ""
        yield (
            f"Per epoch: {counted(plan.steps_per_epoch, 'step')}, {exact(plan.samples_per_epoch)} "
            f"samples{detail}."
        )


def _run(plan: PlanRecord) -> Iterator[str]:
    if plan.total_steps is not None:
        stretched = plan.rule in HOLDS_LOSS or plan.settings.policy == "goodput"
        length = (
            "long enough to reach the same loss" if stretched else "same number of samples as the tuned run"
        )
        yield (
            f"The run: {counted(plan.total_steps, 'step')}, {exact(plan.warmup_steps)} of them warmup, then "
            f"{_curve(plan)}; {length} (steps counted as {plan.recipe.convention} counts them)."
        )
    yield from _intervals(plan)


def _curve(plan: PlanRecord) -> str:
    """Names the schedule of the learning rate: a recipe that names none has a cosine's."""
    spec, end = plan.recipe.schedule, plan.min_lr
    name = spec if isinstance(spec, str) else "its own schedule"
    return f"{name} to {exact(end)}" if spec in ("cosine", "linear") else name


def _moves(moves: Sequence[Handover], plan_legs: Legs) -> Iterator[str]:
    if not moves:
        return
    for move, (_, before), (_, after) in zip(moves, plan_legs[:-1], plan_legs[1:], strict=True):
        changes = (
            ("", before.world_size, after.world_size, " GPUs"),
            ("batch size ", before.effective_batch, after.effective_batch, ""),
            ("learning rate ", before.lr, after.lr, ""),
        )
        yield (
            f"Moved after step {exact(move.step)} ({exact(move.samples)} samples): "
            f"{', '.join(_change(*figures) for figures in changes)}."
        )
    move, optimizer = moves[-1], plan_legs[-1][1].recipe.optimizer
    if move.epoch is not None:
        ends = (
            (move.repeated_samples, "repeated to fill up its end"),
            (move.skipped_samples, "dropped at its end"),
        )
        lost = [f"{count(samples)} samples of that epoch are {fate}" for samples, fate in ends if samples]
        yield (
            f"Resume epoch {exact(move.epoch)} at sample {exact(move.offset)}: "
            f"{' and '.join(lost) or 'none is repeated or skipped'}."
        )
    if move.velocity_factor != 1 and optimizer in ("sgd", "lars"):
        yield cited(
            "If your optimizer folds the learning rate into its momentum, multiply the buffers by "
            f"{figure(move.velocity_factor)} (torch SGD does not)",
            "Goyal et al. 2017, arXiv 1706.02677, remark 2",
        )


def _change(before: str, old: float | None, new: float | None, behind: str) -> str:
    return f"{before}{exact(old)}{'' if old == new else f' → {exact(new)}'}{behind}"


def _outlook(plan: PlanRecord, currency: str) -> Iterator[str]:
    if plan.step_seconds is None:
        return
    error = "" if not plan.step_error else f" ± {figure(plan.step_error)}"
    yield (
        f"A step takes {figure(plan.step_seconds)}{error} s: {figure(plan.samples_per_second)} samples per "
        f"second, efficiency {figure(plan.efficiency)}."
    )
    if plan.hours is not None:
        cost = "" if plan.cost is None else f", cost {refusal.cost_of(plan, currency)}"
        share = refusal.error_share(plan)
        sure = "no range known: the profile has no errors" if share is None else f"± {percent(share)}"
        yield (
            f"The run takes {refusal.time_of(plan)}, {refusal.spent_of(plan, plan.gpu_hours)} "
            f"GPU-hours{cost}; {sure}."
        )
    if plan.memory_gib is not None:
        most = plan.cluster.memory_gib
        over = f", above its {figure(most)} GiB" if most is not None and plan.memory_gib > most else ""
        yield f"Memory: {figure(plan.memory_gib)} GiB per GPU{over}."


def _unknown(plan: PlanRecord) -> Iterator[str]:
    """Names the unknown figures of time, money and memory, where a profile or a price was given."""
    if plan.step_seconds is not None:
        if plan.hours is None:
            yield "Time and cost of the run are not known: the recipe has no duration."
        if plan.memory_gib is None:
            yield (
                "Memory is not known: the profile has none per sample (isobatch estimate of a model's "
                "config, isobatch calibrate)."
            )
    elif plan.memory_gib is not None:
        yield f"Time and cost are not known: {refusal.LINK_UNKNOWN}."
    elif plan.cluster.price_per_gpu_hour is not None:
        yield (
            "Cost is not known: besides a price it needs a profile of these GPUs and links "
            "(isobatch estimate, isobatch calibrate)."
        )
    if plan.step_seconds is None and plan.memory_gib is None and plan.cluster.memory_gib is not None:
        yield (
            "The GPU's memory limits nothing here: besides it a plan needs a profile with memory per sample "
            "(isobatch estimate of a model's config, isobatch calibrate)."
        )


# ---- a batch that grows ----

MAX_STAGES_SHOWN = 8
"""Stages that are listed one by one."""


def stage_lines(plan: PlanRecord, stages: Sequence[Stage]) -> Iterator[str]:
    """Lists the stages left of a growing batch: step, batch, split, and the learning rate over its peak."""
    if len(stages) < 2:
        return
    yield f"The batch grows in {count(len(stages))} stages:"
    lines = [_line(plan, stage) for stage in stages]
    if len(lines) > MAX_STAGES_SHOWN:
        left_out = len(lines) - MAX_STAGES_SHOWN + 1
        half = MAX_STAGES_SHOWN // 2
        lines[half : len(lines) - half + 1] = [f"  … {count(left_out)} more …"]
    yield from lines


def _line(plan: PlanRecord, stage: Stage) -> str:
    micro, _, replicas, _, irregular = plan.layout
    passes = math.ceil(stage.batch / (micro * replicas))
    micro = min(micro, math.ceil(stage.batch / replicas))
    split = f"{micro} × {passes} × {replicas}{', weighted' if irregular else ''}"
    scale = "" if stage.lr_scale == 1 else f", learning rate × {figure(stage.lr_scale)}"
    return f"  from step {count(stage.step)}: {count(stage.batch)} samples ({split}){scale}"
