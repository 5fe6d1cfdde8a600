"""What the trials of a search say: the learning rate to take, its interval, the exponent. No torch."""

from __future__ import annotations

import math

import numpy as np

from isobatch.errors import InputError
from isobatch.probing.estimate import Floats, Rates, exponent, interval
from isobatch.probing.findings import BatchRates, Doubt, LrFinding, Rate
from isobatch.probing.rounds import HALF, WIDE, Round, Rounds

SPARE = 0.6
"""Of a budget, what is planned for: the rest is for grids that grow and for a machine that others use."""


FAR = 4.0
"""Short trials prefer a learning rate a few times as high: a tuned one farther than this from their interval was not tuned for this training."""


def advance(rounds: Rounds) -> None:
    """Plays the rounds as far as the journal's trials reach.

    Raises:
        InputError: as `Rounds.wanted`.
    """
    for one in rounds.wanted():
        if rounds.journal.get(one.batch, one.lr, one.seed, one.samples) is None:
            return


def trials_of(seeds: int) -> tuple[int, float]:
    """(trials that a batch needs, their samples in whole trials), where no grid grows.

    >>> trials_of(3)
    (20, 12.75)
    """
    counts = 2 * WIDE + 1, HALF, 3 * seeds
    return sum(counts), counts[0] / 4 + counts[1] / 2 + counts[2]


def seconds_needed(rounds: Rounds, beside: float) -> float | None:
    """A budget that would do for all trials, by how long those that were made took; None where none was made.

    Args:
        rounds: with their journal.
        beside: seconds that went elsewhere: starting, looking at the workload, stopping.
    """
    made = [trial for trial in rounds.journal.found if trial.seconds > 0]
    if not made:
        return None
    trials, wholes = trials_of(rounds.scope.options.seeds)
    total = 0.0
    for batch in rounds.scope.batches:
        alike = [trial for trial in made if trial.batch == batch] or made
        fixed = sum(t.beside_seconds for t in alike) / len(alike)
        each = sum(t.seconds - t.beside_seconds for t in alike) / sum(t.samples for t in alike)
        total += fixed * trials + each * wholes * rounds.whole
    return beside + total / SPARE


def lr_finding(rounds: Rounds, needed: float | None) -> LrFinding | None:
    """What the last round that is complete says; None where none is.

    Args:
        rounds: played as far as they go.
        needed: seconds of a budget that would do, where it is known and the rounds are not done.

    Raises:
        InputError: every trial diverged at a batch.
    """
    found, scope = rounds.round, rounds.scope
    if found is None:
        return None
    rates = {
        batch: rounds.rates(batch, list(found.places[batch]), found.samples, found.seeds)
        for batch in scope.batches
    }
    for batch, one in rates.items():
        if not np.isfinite(one.means).any():
            raise InputError(f"every trial diverged at batch {batch:,}", field="workload")
    drawn = {batch: one.resampled() for batch, one in rates.items()}
    logs = {batch: both[0] for batch, both in drawn.items()}
    lr, ends = _to_take(rounds, found, rates, logs)
    plan_lr = scope.plan.require().lr
    slope, span = None, None
    if len(scope.batches) > 1:
        best = [math.log(rates[batch].best) for batch in scope.batches]
        slope, span = exponent(scope.batches, best, [logs[batch] for batch in scope.batches])
    place = rounds.rule_place()
    return LrFinding(
        samples=found.samples,
        seeds=found.seeds,
        batches=tuple(
            _of(batch, rates[batch], drawn[batch], rounds.lr(batch, place)) for batch in scope.batches
        ),
        lr=lr,
        interval=ends,
        plan_lr=plan_lr,
        within=ends[0] * (1 - 1e-9) <= plan_lr <= ends[1] * (1 + 1e-9),
        doubt=_doubt(rounds, found, rates, logs),
        whole_run=_whole_run(rounds, found.samples),
        exponent=slope,
        exponent_interval=span,
        complete=rounds.done,
        whole_samples=rounds.whole,
        asked_seeds=scope.options.seeds,
        needed_seconds=None if rounds.done else needed,
    )


def _to_take(
    rounds: Rounds, found: Round, rates: dict[int, Rates], logs: dict[int, Floats]
) -> tuple[float, tuple[float, float]]:
    """The learning rate at the planned batch, and its interval."""
    scope = rounds.scope
    first, planned = scope.tuned_batch, scope.plan.require().effective_batch
    tuned_lr = scope.plan_of(first).require().lr
    if _whole_run(rounds, found.samples):
        return rates[planned].best, interval(np.exp(logs[planned]))
    if first != planned:
        lr = tuned_lr * rates[planned].best / rates[first].best
        return lr, _times(interval(np.exp(logs[planned] - logs[first])), tuned_lr)
    if scope.stand_in:  # the built-in workload says nothing of the tuned learning rate
        return tuned_lr, _times(interval(np.exp(logs[first])), tuned_lr / rates[first].best)
    return rates[first].best, interval(np.exp(logs[first]))


def _whole_run(rounds: Rounds, samples: int) -> bool:
    """Whether the trials are as long as the planned run, but for less than a step of each quarter."""
    scope = rounds.scope
    if scope.stand_in or scope.run_samples is None or scope.options.checkpoint is not None:
        return False
    return samples + 4 * max(scope.batches) > scope.run_samples


def _doubt(rounds: Rounds, found: Round, rates: dict[int, Rates], logs: dict[int, Floats]) -> Doubt | None:
    scope = rounds.scope
    if found.samples < rounds.whole or found.seeds == 1 < scope.options.seeds:
        return "short"
    if any(one.at_edge for one in rates.values()):
        return "edge"
    first, planned = scope.tuned_batch, scope.plan.require().effective_batch
    if scope.stand_in or first == planned or _whole_run(rounds, found.samples):
        return None
    low, high = interval(np.exp(logs[first]))
    return None if low / FAR <= scope.plan_of(first).require().lr <= high * FAR else "untuned"


def _of(batch: int, rates: Rates, drawn: tuple[Floats, Floats], rule_lr: float) -> BatchRates:
    logs, means = drawn
    gap = rates.gap(rule_lr, means)
    return BatchRates(
        batch=batch,
        best_lr=rates.best,
        interval=interval(np.exp(logs)),
        at_edge=rates.at_edge,
        rule_lr=rule_lr,
        rule_gap=None if gap is None else gap[0],
        rule_gap_interval=None if gap is None else gap[1],
        rates=tuple(
            Rate(
                lr=float(np.exp(log)),
                loss=float(mean) if np.isfinite(mean) else None,
                interval=interval(column) if np.isfinite(mean) else None,
            )
            for log, mean, column in zip(rates.logs, rates.means, means.T, strict=True)
        ),
    )


def _times(ends: tuple[float, float], factor: float) -> tuple[float, float]:
    return ends[0] * factor, ends[1] * factor
