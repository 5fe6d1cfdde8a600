"""What a division is worth: for each objective the value of a job on each count, of one that waits, and of all together."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
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


@dataclass(frozen=True)
class Values:
    """Of every choice and of waiting, larger is better; `whole` makes the objective of their sum."""

    value: Reals
    wait: Reals
    speedup: Reals
    hours: Reals
    """Left after the move."""
    whole: Callable[[float], float]


def values_of(
    objective: str,
    p: float,
    jobs: Jobs,
    pool: Pool,
    choices: Choices,
    holders: NDArray[np.bool_],
    stays: NDArray[np.bool_],
) -> Values:
    """Computes what each choice is worth; NaN where the objective knows too little of it, it misses its deadline, or nothing of
    the run is left. `holders` are the jobs that run now, `stays` the choices without a restart."""
    job, number = choices.job, jobs.number
    age, restart = number["age_seconds"], number["restart_seconds"]
    # Pollux, eq. 16: what restarts leave of a job's time until now; and what this one leaves of the time to its end.
    past = np.maximum(age - number["restarts"] * restart, 0) / np.maximum(age + restart, 1e-9)
    left = choices.hours * 3600
    factor = np.fmin(past[job], left / np.maximum(left + restart[job], 1e-9))
    changes = holders[job] & ~stays
    rate = choices.rate * np.where(changes & ~np.isnan(factor), factor, 1.0)
    hours = choices.hours + np.where(changes, restart[job] / 3600, 0.0)
    fair = _fair_rates(jobs.rows, pool, choices)
    speedup = rate / fair[job]
    late = hours > number["deadline_hours"][job]
    late |= choices.hours <= 0
    late |= np.isnan(hours) & ~np.isnan(number["deadline_hours"][job])
    known = _Known(p, number["weight"], rate, speedup, hours, jobs, pool, choices)
    value, wait, whole = OBJECTIVES[objective](known)
    value = np.where(late | np.isnan(choices.rate), np.nan, value)
    return Values(value, wait, speedup, hours, whole)


class _Known(NamedTuple):
    """What the objectives look at: of each choice, its rate, speed-up and hours after the move."""

    p: float
    weight: Reals
    rate: Reals
    speedup: Reals
    hours: Reals
    jobs: Jobs
    pool: Pool
    choices: Choices


_Worth = tuple[Reals, Reals, Callable[[float], float]]
"""Of every choice, of waiting, and what makes the objective of their sum."""


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
    total = (
        it.weight[np.bincount(it.choices.job[~np.isnan(it.choices.rate)], minlength=it.jobs.rows) > 0].sum()
        or 1.0
    )
    sign = -1.0 if it.p < 0 else 1.0

    def worth(s: Reals) -> Reals:
        return np.log(s) if it.p == 0 else sign * s**it.p

    def whole(value: float) -> float:
        if it.p == 0:
            return float(np.exp(value / total))
        return float((max(sign * value, 0.0) / total) ** (1 / it.p)) if value else 0.0

    value = it.weight[it.choices.job] * worth(np.maximum(it.speedup, least))
    return value, it.weight * worth(np.full(it.jobs.rows, least)), whole


def _throughput(it: _Known) -> _Worth:
    least = _smallest(it.jobs.rows, it.choices, it.choices.rate)
    job = it.choices.job
    return it.weight[job] * it.rate / least[job], np.zeros(it.jobs.rows), float


def _finish(it: _Known) -> _Worth:
    long = _smallest(it.jobs.rows, it.choices, it.choices.hours)
    known = ~np.isnan(long)
    fewest = _smallest(it.jobs.rows, it.choices, it.choices.gpus.astype(float))
    drain = (long * fewest)[known].sum() / it.pool.total
    shortest = long[known].min(initial=np.inf)
    # Smith's rule (1956): of jobs that cannot all run, first those with the most weight for their hours.
    wait = it.weight * (long + drain * shortest / np.maximum(long, 1e-12))
    return -it.weight[it.choices.job] * it.hours, -np.where(known, wait, 0.0), lambda value: -value


def _cost(it: _Known) -> _Worth:
    price = np.array([kind.price for kind in it.pool.kinds])[it.choices.kind]
    cost = price * it.choices.gpus * it.hours
    known = cost[~np.isnan(cost)]
    dearest = 2 * known.max(initial=0.0)
    due = np.where(np.isnan(it.jobs.number["deadline_hours"]), 1.0, _DEADLINE)
    return -cost, -it.weight * dearest * due, lambda value: -value


OBJECTIVES: dict[str, Callable[[_Known], _Worth]] = {
    "fair": _fair,
    "throughput": _throughput,
    "finish": _finish,
    "cost": _cost,
}
