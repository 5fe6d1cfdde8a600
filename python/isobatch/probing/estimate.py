"""The best learning rate from trials, with a bootstrap interval, and the words of the finding. NumPy alone.

Losses come in an array of shape (learning rates, seeds, parts): one number for each part of the evaluation
samples. A resample draws parts with replacement, and moves the mean over seeds as far as a few seeds leave it
open: by Student's distribution around the mean of all, since three seeds drawn with replacement are too much
alike (their 95 % interval held the truth in 71 to 79 % of cases). Both are the same for all learning rates,
so that what is common to them cancels. In each the best learning rate is the vertex of a parabola through the
lowest point and its neighbours over the logarithm of the learning rate. Of one seed nothing is known of how
seeds differ: the interval is that of the parts alone.
"""

from collections.abc import Sequence
from typing import Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from isobatch.limits import within
from isobatch.words import counted, figure, real

RESAMPLES = 2000
MAX_STEEPNESS = 4.0
"""A neighbour's excess counts at most so many times the other one's, which moves the vertex by 0.3 of a step
of the grid at most."""
WIDE_INTERVAL = 4.0
"""An interval that spans more hardly tells one learning rate from another: two steps of the grid."""
Floats = NDArray[np.float64]
Interval = tuple[float, float]
Doubt = Literal["short", "edge", "untuned"]
"""Why a learning rate should not be used.

"short": its trials are not whole, or of one seed. "edge": the best one at a batch is the last one tried.
"untuned": the recipe's own is far from the best one at its batch, so that a ratio to it says nothing.
"""


def best_log_lr(logs: Floats, losses: Floats) -> float:
    """Returns the logarithm of the best learning rate, of ascending ones; losses may be infinite.

    >>> round(float(np.exp(best_log_lr(np.log([1.0, 2.0, 4.0]), np.array([1.0, 0.5, 1.0])))), 6)
    2.0
    >>> round(float(np.exp(best_log_lr(np.log([1.0, 2.0, 4.0]), np.array([0.1, 0.0, 99.0])))), 3)
    1.625
    """
    at = int(np.argmin(losses))
    if not 0 < at < len(logs) - 1 or not np.isfinite(losses[at - 1 : at + 2]).all():
        return float(logs[at])
    (x0, x1, x2), (y0, y1, y2) = logs[at - 1 : at + 2], losses[at - 1 : at + 2]
    # Where one side has all but diverged, a parabola through it would leave the lowest point far behind.
    low = min(y0, y2) - y1
    y0, y2 = min(y0, y1 + MAX_STEEPNESS * low), min(y2, y1 + MAX_STEEPNESS * low)
    top = (x1 - x0) ** 2 * (y1 - y2) - (x1 - x2) ** 2 * (y1 - y0)
    bottom = (x1 - x0) * (y1 - y2) - (x1 - x2) * (y1 - y0)
    return float(x1 if bottom == 0 else x1 - top / (2 * bottom))


def resampled_means(losses: Floats, resamples: int = RESAMPLES) -> Floats:
    """Resamples the means over seeds and parts, (resamples, rows), of losses (rows, seeds, parts).

    >>> means = resampled_means(np.array([[[1.0, 1.0], [3.0, 3.0], [2.0, 2.0]]]))
    >>> low, high = interval(means[:, 0])
    >>> low < 2 - 4.30 / 3**0.5 + 0.3 and high > 2 + 4.30 / 3**0.5 - 0.3  # Student's interval of 1, 3 and 2
    True
    """
    draw = np.random.default_rng(0)  # all learning rates are resampled alike
    _, seeds, parts = losses.shape
    centre = losses.mean(axis=1)
    sound = np.asarray(np.isfinite(losses).all(axis=(1, 2)))
    apart = np.where(sound[:, None, None], losses, 0.0)
    apart = (apart - apart.mean(axis=1, keepdims=True)) / np.sqrt(seeds * max(1, seeds - 1))
    means = np.empty((resamples, len(losses)))
    for row in range(resamples):
        weights = draw.standard_normal(seeds)
        if seeds > 1:
            weights /= np.sqrt(draw.chisquare(seeds - 1) / (seeds - 1))
        moved = centre + np.tensordot(apart, weights, (1, 0))
        means[row] = moved[:, draw.integers(parts, size=parts)].mean(axis=1)
    return means


class Rates:
    """The trials of one batch at equal samples, `lrs` ascending; losses are infinite after a divergence."""

    def __init__(self, lrs: Sequence[float], losses: Floats) -> None:
        order = np.argsort(lrs)
        self.logs, self.losses = np.log(np.asarray(lrs, np.float64)[order]), losses[order]

    @property
    def means(self) -> Floats:
        """The mean loss of each learning rate."""
        return np.asarray(self.losses.mean(axis=(1, 2)))

    @property
    def best(self) -> float:
        """The best learning rate."""
        return float(np.exp(best_log_lr(self.logs, self.means)))

    @property
    def at_edge(self) -> bool:
        """Whether the lowest loss is at the first or the last learning rate: the best one may lie beyond."""
        return int(np.argmin(self.means)) in (0, len(self.logs) - 1)

    def resampled(self, resamples: int = RESAMPLES) -> tuple[Floats, Floats]:
        """Returns the best learning rates' logarithms, (resamples,), and mean losses, (resamples, rates)."""
        means = resampled_means(self.losses, resamples)
        return np.array([best_log_lr(self.logs, row) for row in means]), means

    def summary(self, batch: int, rule_lr: float, drawn: tuple[Floats, Floats]) -> "BatchRates":
        """Summarizes the trials, with intervals from the resampled ones."""
        logs, means = drawn
        losses = []
        for log, mean, column in zip(self.logs, self.means, means.T, strict=True):
            rate = Rate(lr=float(np.exp(log)), loss=None, interval=None)
            if np.isfinite(mean):
                rate = Rate(lr=rate.lr, loss=float(mean), interval=interval(column))
            losses.append(rate)
        return BatchRates(
            batch=batch,
            best_lr=self.best,
            interval=interval(np.exp(logs)),
            at_edge=self.at_edge,
            rule_lr=rule_lr,
            rates=tuple(losses),
        )


def interval(values: Floats) -> Interval:
    """Returns the middle 95 %."""
    low, high = np.percentile(values, [2.5, 97.5])
    return float(low), float(high)


def exponent(
    batches: Sequence[int], best_logs: Sequence[float], resampled: Sequence[Floats]
) -> tuple[float, Interval]:
    """Fits the slope of the best learning rate's logarithm over the batch's, and its interval."""
    x = np.log(np.asarray(batches, np.float64))
    x = x - x.mean()
    slope = x / (x @ x)
    return float(slope @ np.asarray(best_logs)), interval(np.asarray(slope @ np.stack(resampled)))


def learned(before: Floats, after: Floats) -> bool:
    """Tells whether a loss fell by more than twice the error of the difference, part by part.

    >>> learned(np.array([1.0, 1.1, 0.9]), np.array([0.5, 0.6, 0.4])), learned(np.ones(3), np.ones(3))
    (True, False)
    """
    fell = before - after
    error = float(fell.std(ddof=1) / np.sqrt(len(fell))) if len(fell) > 1 else 0.0
    return float(fell.mean()) > max(2 * error, 1e-6 * abs(float(before.mean())))


def span(ends: Interval) -> str:
    """Writes an interval."""
    return f"{figure(ends[0])} to {figure(ends[1])}"


class TrialResult(msgspec.Struct, frozen=True, kw_only=True):
    """One short training, with a loss for each part of the evaluation samples; none after a divergence."""

    batch: int
    lr: float
    seed: int
    samples: int
    losses: tuple[float, ...]
    steps: int
    seconds: float

    @property
    def diverged(self) -> bool:
        """Whether it was stopped because its loss grew, or was not finite."""
        return not self.losses

    @property
    def loss(self) -> float:
        """The mean over the evaluation samples; infinity where it diverged."""
        return sum(self.losses) / len(self.losses) if self.losses else float("inf")


class Rate(msgspec.Struct, frozen=True, kw_only=True):
    """The mean loss at one learning rate over seeds, and its 95 % interval; None where it diverged."""

    lr: float
    loss: float | None
    interval: Interval | None


class BatchRates(msgspec.Struct, frozen=True, kw_only=True):
    """Summarizes the trials at one batch; with `at_edge` the best one may lie beyond those tried."""

    batch: int
    best_lr: float
    interval: Interval
    at_edge: bool
    #: The tuned batch's, by the rule.
    rule_lr: float
    rates: tuple[Rate, ...]

    def lines(self) -> list[str]:
        """Lists the learning rates of a batch and their losses."""
        lines = [f"  batch {self.batch:,}: best {figure(self.best_lr)} ({span(self.interval)})"]
        names = [real(rate.lr) for rate in self.rates]
        width = max(len(name) for name in names)
        for name, rate in zip(names, self.rates, strict=True):
            if rate.loss is None or rate.interval is None:
                result = "diverged"
            else:
                result = f"{rate.loss:.4f} ({rate.interval[0]:.4f} to {rate.interval[1]:.4f})"
            rule = "  the rule's" if within(rate.lr / self.rule_lr - 1, 1e-6) else ""
            lines.append(f"    {name:<{width}}  {result}{rule}")
        return lines


class LrFinding(msgspec.Struct, frozen=True, kw_only=True):
    """Names the learning rate to take at the planned batch.

    Where the tuned batch was measured too, `lr` is the tuned learning rate × the ratio of the two best ones:
    a short training prefers another learning rate than a long one, and the ratio does not see that. Where
    trials are as long as the run itself (`whole_run`), it is the best one. `within`: the plan's own lies in
    the interval. `doubt`: why nothing should be done by it. `exponent`: of the best learning rate over the
    batch, None from one batch. Where the trials ended early (`complete` is false) `samples` and `seeds` may
    be fewer than `whole_samples` and `asked_seeds`. `trials` are all that were made.
    """

    samples: int
    seeds: int
    batches: tuple[BatchRates, ...]
    lr: float
    interval: Interval
    plan_lr: float
    within: bool
    doubt: Doubt | None
    whole_run: bool
    exponent: float | None
    exponent_interval: Interval | None
    complete: bool
    whole_samples: int
    asked_seeds: int
    trials: tuple[TrialResult, ...]

    def lines(self, planned: int, tuned: int, rule: str) -> list[str]:
        """Names the learning rate to take, and the trials behind it."""
        of = "95 % interval " if self.seeds > 1 else "of one seed: "
        if self.doubt is None:
            where = "lies in" if self.within else "lies outside"
            lines = [
                f"Learning rate to take at batch {planned:,}: {figure(self.lr)} ({of}{span(self.interval)}). "
                f"The plan's {real(self.plan_lr)} by rule {rule} {where} that interval."
            ]
            following = self._next(planned, tuned)
        else:
            why, following = self._refusal(planned, tuned)
            lines = [
                f"No learning rate can be named at batch {planned:,}: {why}. Taken as they are, these trials "
                f"would say {figure(self.lr)} ({of}{span(self.interval)}); the plan's is "
                f"{real(self.plan_lr)} by rule {rule}."
            ]
        if self.exponent is not None and self.exponent_interval is not None:
            low, high = self.exponent_interval
            lines.append(
                f"Exponent of the learning rate over the batch: {self.exponent:.3g} ({low:.3g} to "
                f"{high:.3g}); linear is 1, sqrt is 0.5."
            )
        lines.append(f"Next: {following}")
        lines.append(
            f"Mean losses after {self.samples:,} "
            f"samples{', as many as the run has' if self.whole_run else ''}, {counted(self.seeds, 'seed')}, "
            "on samples drawn for it:"
        )
        for batch in self.batches:
            lines += batch.lines()
        if self.seeds == 1:
            lines.append("Warning: one seed: the interval does not know how much seeds differ.")
        return lines

    def _refusal(self, planned: int, tuned: int) -> tuple[str, str]:
        """Explains why nothing should be done by these trials, and how to go on."""
        if self.doubt == "short":
            return (
                f"the trials have {self.samples:,} of {self.whole_samples:,} samples and {self.seeds} of "
                f"{counted(self.asked_seeds, 'seed')} so far, and short trials prefer other learning rates "
                "than long ones",
                "let the probe come to its end: a larger --budget.",
            )
        if self.doubt == "edge":
            edges = " and ".join(f"{batch.batch:,}" for batch in self.batches if batch.at_edge)
            return (
                f"at batch {edges} the best one is the last one tried, and may lie beyond",
                "a larger --budget looks further.",
            )
        best, at = {batch.batch: batch.best_lr for batch in self.batches}, self.batches[0].rule_lr
        ratio = best[tuned] / at
        return (
            f"the recipe's {real(at)} is far from the best one at its own batch of {tuned:,}, "
            f"{figure(best[tuned])} here: {figure(max(ratio, 1 / ratio), 2)} times "
            f"{'lower' if ratio > 1 else 'higher'}, so that it does not look tuned for this training, or the "
            "trials are too short to see that it is",
            f"longer trials (--samples), or a recipe tuned at batch {tuned:,}; of these trials the lowest "
            f"losses were at {figure(best[tuned])} there and {figure(best[planned])} at {planned:,}.",
        )

    def _next(self, planned: int, tuned: int) -> str:
        """Advises the next step."""
        low, high = self.interval
        if self.within and high > WIDE_INTERVAL * low:
            longer = "" if self.whole_run else " or longer trials (--samples)"
            return (
                "train with the plan as it is, or ask for more: the interval spans a factor of "
                f"{figure(high / low, 2)}, in which these trials can hardly tell one learning rate from "
                f"another. More --seeds{longer} narrow it."
            )
        if self.within:
            return "train with the plan as it is; these trials give no reason to change its learning rate."
        if planned == tuned and not self.whole_run:
            return (
                "be careful: the batch stays, and a short training often prefers a higher learning rate than "
                "a long one. Before you change the recipe's, compare both in longer trials (--samples)."
            )
        if self.exponent is None:
            return f"plan with lr {figure(self.lr)} (--set lr={self.lr:.3g})."
        estimates = "learning rate and the exponent" if self.whole_run else "exponent"
        return (
            f"plan with lr {figure(self.lr)}: --recipe FILE writes the {estimates} into the recipe, and "
            "`isobatch plan FILE --policy grow --rule power` plans with it."
        )
