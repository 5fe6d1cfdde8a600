"""Objectives: the value of a job on each count, of waiting, and of all jobs together."""

import operator
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from isobatch.allocation.jobs import Choices, Jobs
from isobatch.allocation.nodes import Pool

Reals = NDArray[np.float64]

WAITING_SHARE = 0.01
"""Speed-up of a waiting job in a mean.

At 0, one waiting job would make every division equal.
"""

_DEADLINE = 1000.0
"""Weight of a waiting job with a deadline, over one without."""


class Values:
    """Values of every choice and of waiting; larger is better.

    Attributes:
        value: of each choice; NaN if the objective lacks a figure, the choice misses its deadline, or the run
            is over.
        wait: of each job that waits.
        whole: makes the objective of the sum.
        speedup: of each choice, over the job's fair share.
        hours: of each choice, left after the move.
        can_run: each job with a choice on time; the others are in no mean and have no fair share.
    """

    def __init__(
        self, objective: str, p: float, jobs: Jobs, pool: Pool, choices: Choices, holders: NDArray[np.bool_]
    ) -> None:
        self.p, self.jobs, self.pool, self.choices = p, jobs, pool, choices
        number = jobs.number
        age, restart = number["age_seconds"], number["restart_seconds"]
        # Pollux, eq. 16: what restarts leave of a job's time until now.
        self.past = np.maximum(age - number["restarts"] * restart, 0) / np.maximum(age + restart, 1e-9)
        every, restarts = np.arange(len(choices.job)), holders[choices.job] & ~choices.is_held
        on_time = ~self._late(every, self._hours(every, restarts)) & ~np.isnan(choices.rate)
        self.can_run = np.bincount(choices.job[on_time], minlength=jobs.rows) > 0
        self.fair = _fair_rates(self.can_run, pool, choices)
        after = self._after(every, restarts)
        self.speedup, self.hours = after.speedup, after.hours
        self.worth, self.wait, self.whole = OBJECTIVES[objective](self)
        self.value = self._value(after)

    def moved(self, at: NDArray[np.int64]) -> Reals:
        """Returns the values of these choices after a restart, even on the same count."""
        return self._value(self._after(at, np.ones(len(at), bool)))

    def _after(self, at: NDArray[np.int64], restarts: NDArray[np.bool_]) -> "_After":
        job, rate = self.choices.job[at], self.choices.rate[at]
        restart, seconds = self.jobs.number["restart_seconds"][job], self.choices.hours[at] * 3600
        # As in eq. 16, what this one leaves of the time to the end.
        factor = np.fmin(self.past[job], seconds / np.maximum(seconds + restart, 1e-9))
        rate = rate * np.where(restarts & ~np.isnan(factor), factor, 1.0)
        return _After(at, job, rate, rate / self.fair[job], self._hours(at, restarts))

    def _hours(self, at: NDArray[np.int64], restarts: NDArray[np.bool_]) -> Reals:
        restart = self.jobs.number["restart_seconds"][self.choices.job[at]]
        return self.choices.hours[at] + np.where(restarts, restart / 3600, 0.0)

    def _late(self, at: NDArray[np.int64], hours: Reals) -> NDArray[np.bool_]:
        deadline = self.jobs.number["deadline_hours"][self.choices.job[at]]
        late = (hours > deadline) | (self.choices.hours[at] <= 0)
        return late | (np.isnan(hours) & ~np.isnan(deadline))

    def _value(self, after: "_After") -> Reals:
        late = self._late(after.at, after.hours)
        return np.where(late | np.isnan(self.choices.rate[after.at]), np.nan, self.worth(after))


class _After(NamedTuple):
    """Some choices, their jobs, and their rate, speed-up and hours left, some of them after a restart."""

    at: NDArray[np.int64]
    job: NDArray[np.int64]
    rate: Reals
    speedup: Reals
    hours: Reals


_Worth = tuple[Callable[[_After], Reals], Reals, Callable[[float], float]]
"""The value of choices, of waiting, and what makes the objective of their sum."""


def _smallest(jobs: int, choices: Choices, values: Reals) -> Reals:
    """Returns the value of each job on its fewest GPUs; NaN if it has none."""
    values_of = np.full(jobs, np.nan)
    known = np.flatnonzero(~np.isnan(values))
    order = known[np.lexsort((choices.kind[known], choices.gpus[known], choices.job[known]))][::-1]
    values_of[choices.job[order]] = values[order]  # of several, the last is written: the first of the table
    return values_of


def _fair_rates(can_run: NDArray[np.bool_], pool: Pool, choices: Choices) -> Reals:
    """Returns the rate of each job on its fair share.

    The share of each kind of GPU is its total divided by the jobs that could run (Pollux, eq. 15). Below a
    job's fewest GPUs it is a share of the time; over several kinds it is the mean, weighted by their GPUs.
    """
    jobs = len(can_run)
    sums, weights = np.zeros((2, jobs))
    known = np.flatnonzero(~np.isnan(choices.rate))
    several = max(int(can_run.sum()), 1)
    for at, kind in enumerate(pool.kinds):
        share = kind.total / several
        rows = known[choices.kind[known] == at]
        job, gpus, of_kind = choices.job[rows], choices.gpus[rows], choices.rate[rows]
        rate = np.full(jobs, np.nan)
        # Of several, the last is written: the fewest GPUs, and then the most that fit in the share.
        rate[job[::-1]] = (of_kind * np.minimum(1.0, share / gpus))[::-1]
        rate[job[gpus <= share]] = of_kind[gpus <= share]
        can = ~np.isnan(rate)
        sums[can] += rate[can] * kind.total
        weights[can] += kind.total
    with np.errstate(invalid="ignore"):
        return sums / weights


def _fair(values: Values) -> _Worth:
    p, weight = values.p, values.jobs.number["weight"]
    least = WAITING_SHARE if p <= 0 else 0.0
    total = weight[values.can_run].sum() or 1.0
    sign = -1.0 if p < 0 else 1.0

    def worth(speedup: Reals) -> Reals:
        return np.log(speedup) if p == 0 else sign * speedup**p

    def whole(value: float) -> float:
        if p == 0:
            return float(np.exp(value / total))
        return float((max(sign * value, 0.0) / total) ** (1 / p)) if value else 0.0

    wait = weight * worth(np.full(values.jobs.rows, least))
    return lambda after: weight[after.job] * worth(np.maximum(after.speedup, least)), wait, whole


def _throughput(values: Values) -> _Worth:
    weight, jobs = values.jobs.number["weight"], values.jobs.rows
    least = _smallest(jobs, values.choices, values.choices.rate)
    return lambda after: weight[after.job] * after.rate / least[after.job], np.zeros(jobs), float


def _finish(values: Values) -> _Worth:
    weight, jobs, choices = values.jobs.number["weight"], values.jobs.rows, values.choices
    long = _smallest(jobs, choices, values.hours)
    is_known = ~np.isnan(long)
    wait = np.zeros(jobs)
    if is_known.any():
        fewest = _smallest(jobs, choices, choices.gpus.astype(float))
        drain = (long * fewest)[is_known].sum() / values.pool.total
        # Smith's rule (1956): of jobs that cannot all run, first those with the most weight for their hours.
        wait = weight * (long + drain * long[is_known].min() / np.maximum(long, 1e-12))
    return lambda after: -weight[after.job] * after.hours, -np.where(is_known, wait, 0.0), operator.neg


def _cost(values: Values) -> _Worth:
    number, choices = values.jobs.number, values.choices
    a_gpu_hour = np.array([kind.price for kind in values.pool.kinds])[choices.kind] * choices.gpus
    cost = a_gpu_hour * values.hours
    dearest = 2 * cost[~np.isnan(cost)].max(initial=0.0)
    due = np.where(np.isnan(number["deadline_hours"]), 1.0, _DEADLINE)
    return lambda after: -a_gpu_hour[after.at] * after.hours, -number["weight"] * dearest * due, operator.neg


OBJECTIVES: dict[str, Callable[[Values], _Worth]] = {
    "fair": _fair,
    "throughput": _throughput,
    "finish": _finish,
    "cost": _cost,
}
