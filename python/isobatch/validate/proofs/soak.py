"""The plan's step over and over: do its gradients have the same bits each time (`--soak MINUTES`)?

The weights stay, so that the step can be computed again at any time: each rank's own gradients, before the all-reduce, where other bits
name the rank and its GPU, and those after it.
"""

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch

from isobatch.diagnosis.causes import Cause
from isobatch.diagnosis.tensors import checksum
from isobatch.validate.figures import Soak
from isobatch.validate.host.checks import place
from isobatch.validate.ranks.group import Group
from isobatch.validate.report import Proof, Verdict, judge_claim, pass_claim, skip_claim
from isobatch.validate.training import Training, grads
from isobatch.validate.trial import Claim, Trial
from isobatch.words import few

TRIES = 3
"""Repetitions in the beginning, which say whether the step is deterministic at all."""
SEED = 11  # of dropout
clock = time.monotonic


class Sums(NamedTuple):
    """Checksums of a rank's own gradients, and of the averaged ones."""

    own: tuple[int, int]
    averaged: tuple[int, int]


def _repeater(training: Training) -> Callable[[bool], Sums]:
    """Returns what computes the same step again: from the same weights and batches, with the same random numbers, and with torch's
    deterministic kernels or the job's own."""
    batches = training.few_in_turn(1)
    weights = training.weights(batches)

    def gradients(sync: bool) -> tuple[int, int]:
        training.model.zero_grad(set_to_none=True)
        torch.manual_seed(SEED + training.group.rank)
        training.backward(batches, weights, sync=sync, scaler=training.scaler(), dtype=training.dtype)
        return checksum([grad for grad in grads(training.model) if grad is not None])

    def repeat(kernels: bool) -> Sums:
        with _deterministic(kernels):
            sums = Sums(*map(gradients, (False, True)))
        training.model.zero_grad(set_to_none=True)
        training.group.sync()
        return sums

    return repeat


@contextlib.contextmanager
def _deterministic(wanted: bool) -> Iterator[None]:
    """Uses torch's deterministic kernels, where there are some."""
    before = torch.are_deterministic_algorithms_enabled()
    warning = torch.is_deterministic_algorithms_warn_only_enabled()
    state = torch.random.get_rng_state()
    try:
        if wanted:
            torch.use_deterministic_algorithms(True, warn_only=True)
        yield
    finally:
        torch.use_deterministic_algorithms(before, warn_only=warning)
        torch.random.set_rng_state(state)


class Usual(NamedTuple):
    """The bits that a step's gradients usually have; whether they are the same each time, a rank's `own` and the `averaged` ones; by rank
    how often its own were not; and whether that takes torch's deterministic kernels."""

    bits: Sums
    own: bool
    averaged: bool
    differing: list[int]
    kernels: bool


def _usual(group: Group, repeat: Callable[[bool], Sums]) -> Usual:
    """Tries the step a few times, with the job's kernels and, where those give other bits each time, with deterministic ones."""
    for kernels in (False, True):
        sums = [repeat(kernels) for _ in range(TRIES)]
        bits = max(sums, key=sums.count)
        answers = group.gather([(one.own != bits.own, one.averaged != bits.averaged) for one in sums])
        differing = [sum(own for own, _ in rank) for rank in answers]
        averaged = not any(other for rank in answers for _, other in rank)
        # All ranks compute with the same kernels: where only a minority differs, it is not the kernels.
        odd = sum(map(bool, differing))
        if 2 * odd <= group.world_size and odd < group.world_size:
            return Usual(bits, True, averaged, differing, kernels)
    return Usual(bits, False, False, differing, True)


def measure(training: Training, minutes: float) -> Soak:
    """Repeats the step for so many minutes."""
    group = training.group
    training.model.train()
    repeat = _repeater(training)
    usual = _usual(group, repeat)
    differing, averaged, repeats = usual.differing, 0, TRIES
    end = clock() + 60 * minutes
    while usual.own and group.from_first(clock() < end):
        begun = clock()
        sums = repeat(usual.kernels)
        answers = group.gather((sums.own != usual.bits.own, sums.averaged != usual.bits.averaged))
        repeats += 1
        differing = [count + own for count, (own, _) in zip(differing, answers, strict=True)]
        averaged += any(other for _, other in answers) and not any(own for own, _ in answers)
        group.pulse.grant(clock() - begun)
    return Soak(
        minutes=minutes,
        repeats=repeats,
        deterministic=usual.own,
        differing=differing,
        averaged_differing=averaged if usual.averaged else None,
    )


def judge_bits(group: Group, found: Soak) -> Proof:
    """Judges whether the same step gave the same bits, and names the other ranks with their GPU."""
    values = {"repeats": found.repeats, "differing": found.differing}
    if not found.deterministic:
        text = "this step's gradients have other bits each time on most ranks, also with torch's deterministic kernels"
        return skip_claim("same_bits", text, **values)
    bad = [rank for rank, count in enumerate(found.differing) if count]
    if bad:
        rows = [f"{place(group, rank)} {found.differing[rank]} of {found.repeats} times" for rank in bad]
        cause = Cause.SILENT_CORRUPTION.likely(few([place(group, rank) for rank in bad]))
        text = f"the same step gave other bits: {few(rows)}"
        return judge_claim("same_bits", Verdict.FAIL, text, cause, 0, **values)
    if found.averaged_differing:
        text = (
            f"all ranks' own gradients had the same bits {found.repeats} times, and their average others "
            f"{found.averaged_differing} times"
        )
        cause = Cause.WRONG_SUMS.likely("or an all-reduce whose order varies")
        return judge_claim("same_bits", Verdict.CAUTION, text, cause, 0, **values)
    text = f"the same step gave the same bits {found.repeats} times on {group.world_size} ranks"
    if found.averaged_differing is None:
        text += ", before the all-reduce: that has another order each time"
    return pass_claim("same_bits", text, 0, **values)


def prove(trial: Trial) -> list[Proof]:
    """Repeats the plan's step with all its micro-batches, for as long as was asked for."""
    with trial.training.weights_kept():
        found = measure(trial.training, trial.options.soak_minutes)
    trial.add(soak=found)
    return [judge_bits(trial.group, found)]


CLAIM = Claim(
    phase="soak", names=("same_bits",), prove=prove, wanted=lambda options: options.soak_minutes > 0
)
