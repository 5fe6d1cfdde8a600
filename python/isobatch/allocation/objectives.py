"""What a division is worth: for each objective the value of a job on each count, of one that waits, and of all together."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from isobatch.allocation.jobs import Choices, Jobs
from isobatch.allocation.nodes import Pool

Reals = NDArray[np.float64]

WAITING_SHARE = 0.01
"""The speed-up at which a mean counts a job that waits: at 0, one job that waits would make every division alike."""

_DEADLINE = 1000.0
"""How many times more it counts that a job with a deadline waits."""


class Values:
    """Of every choice and of waiting, larger is better.

    Attributes:
        value: of each choice; NaN where the objective knows too little of it, it misses its deadline, or nothing of the run is left.
        wait: of each job that waits.
        whole: makes the objective of the sum.
        speedup: of each choice, over the job's fair share.
        hours: of each choice, left after the move.
    """

    def __init__(
        self, objective: str, p: float, jobs: Jobs, pool: Pool, choices: Choices, holders: NDArray[np.bool_]
    ) -> None:
        self.jobs, self.choices = jobs, choices
        number = jobs.number
        age, restart = number["age_seconds"], number["restart_seconds"]
        # Pollux, eq. 16: what restarts leave of a job's time until now.
        self.past = np.maximum(age - number["restarts"] * restart, 0) / np.maximum(age + restart, 1e-9)
        self.fair = _fair_rates(jobs.rows, pool, choices)
        every = np.arange(len(choices.job))
        rate, self.speedup, self.hours = self._after(every, holders[choices.job] & ~choices.held)
        self.worth, self.wait, self.whole = OBJECTIVES[objective](
            _Known(p, number["weight"], self.hours, jobs, pool, choices)
        )
        self.value = self._value(every, rate, self.speedup, self.hours)

    def moved(self, at: NDArray[np.int64]) -> Reals:
        """The values of these choices where a job that runs is started again, also on the count that it has."""
        return self._value(at, *self._after(at, np.ones(len(at), bool)))

    def _after(self, at: NDArray[np.int64], restarts: NDArray[np.bool_]) -> tuple[Reals, Reals, Reals]:
        """Rate, speed-up and hours left of these choices, some after a restart."""
        job, rate, hours = self.choices.job[at], self.choices.rate[at], self.choices.hours[at]
        restart, left = self.jobs.number["restart_seconds"][job], hours * 3600
        # As in eq. 16, what this one leaves of the time to the end.
        factor = np.fmin(self.past[job], left / np.maximum(left + restart, 1e-9))
        rate = rate * np.where(restarts & ~np.isnan(factor), factor, 1.0)
        return rate, rate / self.fair[job], hours + np.where(restarts, restart / 3600, 0.0)

    def _value(self, at: NDArray[np.int64], rate: Reals, speedup: Reals, hours: Reals) -> Reals:
        deadline = self.jobs.number["deadline_hours"][self.choices.job[at]]
        late = (hours > deadline) | (self.choices.hours[at] <= 0) | (np.isnan(hours) & ~np.isnan(deadline))
        value = self.worth(_After(at, self.choices.job[at], rate, speedup, hours))
        return np.where(late | np.isnan(self.choices.rate[at]), np.nan, value)


class _Known(NamedTuple):
    """What the objectives know before: `hours` are left on each choice after the move."""

    p: float
    weight: Reals
    hours: Reals
    jobs: Jobs
    pool: Pool
    choices: Choices


class _After(NamedTuple):
    """Some choices, their jobs, and their rate, speed-up and hours after the move."""

    at: NDArray[np.int64]
    job: NDArray[np.int64]
    rate: Reals
    speedup: Reals
    hours: Reals


_Worth = tuple[Callable[[_After], Reals], Reals, Callable[[float], float]]
"""The value of choices, of waiting, and what makes the objective of their sum."""


def _smallest(jobs: int, choices: Choices, values: Reals) -> Reals:
    """The value on the fewest GPUs of each job; NaN where it has none."""
    found = np.full(jobs, np.nan)
    known = np.flatnonzero(~np.isnan(values))
    order = known[np.lexsort((choices.kind[known], choices.gpus[known], choices.job[known]))][::-1]
    found[choices.job[order]] = values[order]  # of several, the last is written: the first of the table
    return found


def _fair_rates(jobs: int, pool: Pool, choices: Choices) -> Reals:
    """The rate of each job on its share: of each kind of GPU one part in as many as there are jobs that could run (Pollux, eq. 15). Below
    its fewest GPUs a share is a share of the time; over several kinds it is the mean, by their GPUs."""
    sums, weights = np.zeros((2, jobs))
    known = np.flatnonzero(~np.isnan(choices.rate))
    several = max(int(np.count_nonzero(np.bincount(choices.job[known]))), 1)
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


def _fair(it: _Known) -> _Worth:
    least = WAITING_SHARE if it.p <= 0 else 0.0
    can = np.bincount(it.choices.job[~np.isnan(it.choices.rate)], minlength=it.jobs.rows) > 0
    total = it.weight[can].sum() or 1.0
    sign = -1.0 if it.p < 0 else 1.0

    def worth(s: Reals) -> Reals:
        return np.log(s) if it.p == 0 else sign * s**it.p

    def whole(value: float) -> float:
        if it.p == 0:
            return float(np.exp(value / total))
        return float((max(sign * value, 0.0) / total) ** (1 / it.p)) if value else 0.0

    wait = it.weight * worth(np.full(it.jobs.rows, least))
    return lambda after: it.weight[after.job] * worth(np.maximum(after.speedup, least)), wait, whole


def _throughput(it: _Known) -> _Worth:
    least = _smallest(it.jobs.rows, it.choices, it.choices.rate)
    return (lambda after: it.weight[after.job] * after.rate / least[after.job], np.zeros(it.jobs.rows), float)


def _finish(it: _Known) -> _Worth:
    long = _smallest(it.jobs.rows, it.choices, it.choices.hours)
    known = ~np.isnan(long)
    wait = np.zeros(it.jobs.rows)
    if known.any():
        fewest = _smallest(it.jobs.rows, it.choices, it.choices.gpus.astype(float))
        drain = (long * fewest)[known].sum() / it.pool.total
        # Smith's rule (1956): of jobs that cannot all run, first those with the most weight for their hours.
        wait = it.weight * (long + drain * long[known].min() / np.maximum(long, 1e-12))
    return (
        lambda after: -it.weight[after.job] * after.hours,
        -np.where(known, wait, 0.0),
        lambda value: -value,
    )


def _cost(it: _Known) -> _Worth:
    a_gpu_hour = np.array([kind.price for kind in it.pool.kinds])[it.choices.kind] * it.choices.gpus
    cost = a_gpu_hour * it.hours
    dearest = 2 * cost[~np.isnan(cost)].max(initial=0.0)
    due = np.where(np.isnan(it.jobs.number["deadline_hours"]), 1.0, _DEADLINE)
    return lambda after: -a_gpu_hour[after.at] * after.hours, -it.weight * dearest * due, lambda value: -value


OBJECTIVES: dict[str, Callable[[_Known], _Worth]] = {
    "fair": _fair,
    "throughput": _throughput,
    "finish": _finish,
    "cost": _cost,
}
