"""What a probe found, in words: first the answer and what to do with it, then what it rests on. No torch."""

from __future__ import annotations

from isobatch.probing.findings import BatchRates, CriticalFinding, Interval, LrFinding, SameFinding
from isobatch.words import counted, figure, real

WIDE = 4.0
"""An interval that spans more hardly tells one learning rate from another: two steps of the grid."""


def lr_lines(found: LrFinding, *, planned: int, tuned: int, rule: str, stand_in: bool) -> list[str]:
    """The learning rate to take, and the trials behind it."""
    of = "95 % interval " if found.seeds > 1 else "of one seed: "
    if found.doubt is None:
        where = "lies in" if found.within else "lies outside"
        lines = [
            f"Learning rate to take at batch {planned:,}: {figure(found.lr)} ({of}{_span(found.interval)}). "
            f"The plan's {real(found.plan_lr)} by rule {rule} {where} that interval."
        ]
    else:
        lines = [
            f"No learning rate can be named at batch {planned:,}: {_why(found, tuned)}. Taken as they are, these trials would say "
            f"{figure(found.lr)} ({of}{_span(found.interval)}); the plan's is {real(found.plan_lr)} by rule {rule}."
        ]
    if found.exponent is not None and found.exponent_interval is not None:
        low, high = found.exponent_interval
        lines.append(
            f"Exponent of the learning rate over the batch: {found.exponent:.3g} ({low:.3g} to {high:.3g}); "
            "linear is 1, sqrt is 0.5."
        )
    lines.append(f"Next: {_next(found, planned=planned, tuned=tuned, stand_in=stand_in)}")
    lines.append(
        f"Mean losses after {found.samples:,} samples{', as many as the run has' if found.whole_run else ''}, "
        f"{counted(found.seeds, 'seed')}, on samples drawn for it:"
    )
    for one in found.batches:
        lines += _batch_lines(one)
    if found.seeds == 1:
        lines.append("Warning: one seed: the interval does not know how much seeds differ.")
    return lines


def _why(found: LrFinding, tuned: int) -> str:
    """Why nothing should be done by these trials."""
    if found.doubt == "short":
        return (
            f"the trials have {found.samples:,} of {found.whole_samples:,} samples and {found.seeds} of "
            f"{counted(found.asked_seeds, 'seed')} so far, and short trials prefer other learning rates than long ones"
        )
    if found.doubt == "edge":
        edges = " and ".join(f"{one.batch:,}" for one in found.batches if one.at_edge)
        return f"at batch {edges} the best one is the last one tried, and may lie beyond"
    best = _at(found, tuned)
    ratio = best.best_lr / best.rule_lr
    return (
        f"the recipe's {real(best.rule_lr)} is far from the best one at its own batch of {tuned:,}, {figure(best.best_lr)} here: "
        f"{figure(max(ratio, 1 / ratio), 2)} times {'lower' if ratio > 1 else 'higher'}, so that it does not look tuned for this training, "
        "or the trials are too short to see that it is"
    )


def _at(found: LrFinding, batch: int) -> BatchRates:
    """What was found at one of the batches."""
    return next(one for one in found.batches if one.batch == batch)


def _next(found: LrFinding, *, planned: int, tuned: int, stand_in: bool) -> str:
    """What to do with it."""
    if stand_in:
        return (
            "this is how the rule does on one cheap problem, and no learning rate for your model: give your own training as "
            "--workload package.module:factory."
        )
    if found.doubt == "short":
        return "let the probe come to its end: a larger --budget; --trials FILE keeps what was trained."
    if found.doubt == "edge":
        return "a larger --budget looks further; --trials FILE keeps what was trained."
    if found.doubt == "untuned":
        return (
            f"longer trials (--samples, --checkpoint), or a recipe tuned at batch {tuned:,}; of these trials the lowest losses were at "
            f"{figure(_at(found, tuned).best_lr)} there and {figure(_at(found, planned).best_lr)} at {planned:,}."
        )
    low, high = found.interval
    if found.within and high > WIDE * low:
        return (
            f"train with the plan as it is, or ask for more: the interval spans a factor of {figure(high / low, 2)}, in which these trials can "
            "hardly tell one learning rate from another. More --seeds, longer trials (--samples) or a larger --budget narrow it."
        )
    if found.within:
        return "train with the plan as it is; these trials give no reason to change its learning rate."
    if planned == tuned and not found.whole_run:
        return (
            "be careful: the batch stays, and a short training often prefers a higher learning rate than a long one. Before you change "
            "the recipe's, compare both in longer trials (--samples)."
        )
    if found.exponent is None:
        return f"plan with lr {figure(found.lr)} (--set lr={found.lr:.3g})."
    what = "learning rate and the exponent" if found.whole_run else "exponent"
    return (
        f"plan with lr {figure(found.lr)}: --recipe FILE writes the {what} into the recipe, and `isobatch plan FILE --policy grow --rule "
        "power` plans with it."
    )


def _batch_lines(one: BatchRates) -> list[str]:
    """The learning rates of a batch and their losses."""
    lines = [f"  batch {one.batch:,}: best {figure(one.best_lr)} ({_span(one.interval)})"]
    names = [real(rate.lr) for rate in one.rates]
    width = max(len(name) for name in names)
    for name, rate in zip(names, one.rates, strict=True):
        if rate.loss is None or rate.interval is None:
            said = "diverged"
        else:
            said = f"{rate.loss:.4f} ({rate.interval[0]:.4f} to {rate.interval[1]:.4f})"
        rule = ""
        if abs(rate.lr / one.rule_lr - 1) < 1e-6:
            rule = "  the rule's"
            if one.rule_gap and one.rule_gap_interval is not None:
                rule += f", {one.rule_gap:.4f} above the lowest ({_signed(one.rule_gap_interval)})"
        lines.append(f"    {name:<{width}}  {said}{rule}")
    return lines


def same_lines(found: SameFinding) -> list[str]:
    """Whether every split trains the same, or the gap."""
    if found.gap is not None and found.gap_interval is not None:
        low, high = found.gap_interval
        means = (
            "the plan trains worse"
            if low > 0
            else "the plan trains better"
            if high < 0
            else "no difference can be told"
        )
        lines = [
            f"The batch grows, so that this is another training. After {found.samples or 0:,} samples the loss is {found.planned_loss:.4f} where "
            f"the tuned recipe has {found.tuned_loss:.4f}: a gap of {found.gap:+.4f} (95 % interval {_signed(found.gap_interval)}, "
            f"{counted(found.seeds, 'seed')}): {means}."
        ]
        if found.seeds == 1:
            lines.append("Warning: one seed: the interval does not know how much seeds differ.")
        return lines
    lines = [
        f"{counted(found.steps, 'step')} from one seed in double precision, against the whole batch on one replica:"
    ]
    width = max(len(name) for name in (*(split.split for split in found.splits), *found.missing))
    lines += [
        f"  {split.split:<{width}}  weights differ by {split.difference:.1e}{'' if split.same else '  NOT THE SAME'}"
        for split in found.splits
    ]
    lines += [f"  {name:<{width}}  not trained" for name in found.missing]
    if found.same:
        lines.append("The same training at every split: the weights agree within floating point.")
    elif all(split.same for split in found.splits):
        lines.append("The same training at every split that was trained; the others are not known.")
    else:
        lines.append(
            "Not the same training at every split. What depends on the micro-batch does that: batch norm, noise drawn in the model, "
            "or a loss that is no mean over samples."
        )
    return lines


def critical_lines(found: CriticalFinding, *, planned: int, stand_in: bool) -> list[str]:
    """The critical batch, and the branches behind it."""
    more = "" if found.bounded else ", or more: no larger one was tried that fails"
    if len([one for one in found.branches if one.holds]) == 1 and found.bounded:
        more = ", or less: already twice the batch fails"
    lines = [
        f"Critical batch by branched training (Merrill et al. 2025, arXiv 2505.23971): {found.critical_batch:,}{more}.",
        f"Next: {_critical_next(found, planned=planned, stand_in=stand_in)}",
        f"Branches of {found.samples:,} samples and {counted(found.seeds, 'seed')} from one checkpoint; a branch holds where its "
        f"smoothed loss is at most {figure(found.tolerance)} above that at k = 1:",
    ]
    lines += [
        f"  k = {one.k}: batch {one.batch:,}, learning rate {figure(one.lr)}, loss "
        f"{'diverged' if one.loss is None else f'{one.loss:.4f}'}{'' if one.error is None or one.k == 1 else f' ± {one.error:.4f}'}, "
        f"{'holds' if one.holds else 'does not hold'}"
        for one in found.branches
    ]
    errors = [one.error for one in found.branches if one.error is not None]
    if not errors or max(errors) > found.tolerance / 2:
        lines.append(
            "Warning: the branches scatter by more than half the tolerance, or there is one seed only: take more --seeds, longer "
            "branches (--samples) or a larger --tolerance before you rely on it."
        )
    if found.noise_scale is not None and found.noise_error is not None:
        trust = "" if found.noise_error < found.noise_scale / 2 else ", too uncertain to use"
        lines.append(
            f"The simple noise scale there (McCandlish et al. 2018): {figure(found.noise_scale)} ± {figure(found.noise_error, 2)}"
            f"{trust}. It is another quantity, and known to be lower in pre-training."
        )
    else:
        lines.append(
            "The noise scale could not be told from infinity: the mean gradient is lost in the noise."
        )
    return lines


def _critical_next(found: CriticalFinding, *, planned: int, stand_in: bool) -> str:
    """What to do with a critical batch."""
    if stand_in:
        return (
            "this is the built-in workload, and your own model has another critical batch: give your own training as --workload "
            "package.module:factory."
        )
    if planned <= found.critical_batch:
        return f"train with the plan as it is: its batch of {planned:,} is not above that."
    if not found.bounded:
        return f"a larger --budget, so that larger batches are tried: the plan's {planned:,} was not."
    return (
        f"the plan's batch of {planned:,} is above that, where the same loss takes more samples: plan with --policy "
        f"{found.critical_batch}, or keep the tuned batch."
    )


def _span(ends: Interval) -> str:
    return f"{figure(ends[0])} to {figure(ends[1])}"


def _signed(ends: Interval) -> str:
    return f"{ends[0]:+.4f} to {ends[1]:+.4f}"
