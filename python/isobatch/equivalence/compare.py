"""Compares a run of one split with the reference.

Compared are samples, their weights, gradients, learning rates, clipping and the parameters at the end.
"""

from collections.abc import Sequence
from typing import TypeGuard

import msgspec
import numpy as np

from isobatch.equivalence.causes import (
    ALIKE,
    LAWS,
    SplitCause,
    Weighing,
    factor_text,
    name_factors,
    name_weights,
    nearest_law,
)
from isobatch.equivalence.checks import check_clipping, check_ranks, check_rates, check_samples
from isobatch.equivalence.records import Event, Parts, RecordedStep, Recording
from isobatch.equivalence.split import Split
from isobatch.equivalence.weights import GroupDifference, Solution, differing_groups, distance, solve, spread

EXACT = 1e-4
"""Relative distance of two gradients that is rounding in float32."""
HALF = 3e-2
"""The same where parameters are bfloat16 or float16."""
GROUP = 10.0
"""A group of tensors may be this many tolerances off: the rounding of a small group is larger."""
LATER = 500.0
"""Gradients after the first step may be this many tolerances off: an optimizer amplifies rounding."""
COUPLED = 1e-3
"""Residual above which weights of samples do not explain a gradient."""

OTHER_SAMPLES = "other samples"
RANDOMNESS = "randomness"
UNJUDGED = {OTHER_SAMPLES, RANDOMNESS}
"""Causes that say nothing about the training: the split has other samples, or other random draws."""

ROUTERS = ("gate", "router", "gating")
"""Names of a router of experts, as a part of a tensor's name."""


class SplitResult(msgspec.Struct, frozen=True, kw_only=True):
    """One split beside the reference.

    Attributes:
        step: the first step that differs, else the first one, from 0.
        difference: of the gradient at that step, relative L2.
        weights: of each sample in the gradient, in the order of the step's samples; empty where unknown.
        residual: the part of the gradient that no weights explain; None where they are unknown.
        groups: tensors that differ, the worst first.
        lrs: learning rate of the first parameter group at each step.
        norms: what clipping saw at that step.
        weights_after: relative L2 distance of the parameters after the last compared step.
        causes: why it is not the same, the likeliest first.
    """

    split: str
    same: bool
    step: int
    difference: float
    weights: list[float]
    residual: float | None
    groups: list[GroupDifference]
    lrs: list[float]
    norms: list[float]
    samples: int
    weights_after: float
    seconds: float
    causes: list[SplitCause]


class Comparison:
    """Compares runs of splits with the reference, the whole batch in one pass.

    `single` is the run of one sample a pass, with each pass's gradient; `noise` the relative distance of the
    gradients of one split that was run twice.
    """

    def __init__(self, reference: Recording, single: Recording | None, noise: float) -> None:
        self.reference, self.single = reference, single
        self.tolerance = max(HALF if reference.last.first.half else EXACT, 10 * noise)

    def compare(self, recording: Recording) -> SplitResult:
        """Compares a run step by step, up to the first difference."""
        events = [event for event in recording.steps if event in self.reference.steps]
        events.sort(key=lambda event: (event[1], event[0]))
        results = []
        for event in events:
            results.append(self._compare_step(recording, event, max(events, key=lambda event: event[1])))
            if not results[-1].same:
                return results[-1]
        return results[0]

    def _compare_step(self, recording: Recording, event: Event, last: Event) -> SplitResult:
        step, reference = recording.steps[event], self.reference.steps[event]
        columns = step.first.columns  # other optimizers' tensors count as 0
        gradient = np.where(columns, step.gradients.mean(0), 0.0)
        target = np.where(columns, reference.gradients[0], 0.0)
        difference = distance(gradient, target)
        tolerance = self.tolerance * (1 if event[1] == 0 else LATER)
        groups = differing_groups(step.first, gradient, target, GROUP * tolerance)
        solution = self._solve(event, step)
        if difference > tolerance and (solution is None or solution.residual > COUPLED):
            # A multiple of the gradient needs no samples' gradients to be explained.
            factor = float(gradient @ target) / float(target @ target or 1.0)
            residual = distance(gradient, factor * target)
            if residual <= tolerance:
                solution = Solution(np.full(max(1, self.reference.samples(event)), factor), residual)
        causes = list(check_ranks(recording.split, step, self.tolerance))
        apart = bool(causes)
        if not any(cause.name == "ranks start with different weights" for cause in causes):
            samples = list(check_samples(recording, event, self.reference.samples(event)))
            # Other samples have another gradient.
            if not samples and (difference > tolerance or groups):
                samples = [self._name_gradient(recording, event, groups, solution)]
            causes += samples
        optimizer = event[0]
        causes += check_rates(
            step, reference, recording.steps[optimizer, 0], self.reference.steps[optimizer, 0]
        )
        if not apart:
            causes += check_clipping(step, reference, self.tolerance, difference)
        weights, reference_weights = recording.steps[last].weights, self.reference.steps[last].weights
        same_shape = weights.shape[1] == reference_weights.shape[1]
        return SplitResult(
            split=str(recording.split),
            same=not causes,
            step=event[1],
            difference=difference,
            weights=solution.weights.tolist() if _explains(solution) else [],
            residual=None if solution is None else solution.residual,
            groups=groups,
            lrs=[rates[0] for recorded in recording.of(optimizer) if (rates := recorded.first.lrs)],
            norms=[norm for norm, _ in step.first.norms],
            samples=recording.samples(event),
            weights_after=distance(weights[0], reference_weights[0]) if same_shape else float("inf"),
            seconds=round(recording.seconds, 1),
            causes=causes,
        )

    def _solve(self, event: Event, step: RecordedStep) -> Solution | None:
        """Solves for the weights of a step's samples, relative to those in the reference."""
        if self.single is None or event not in self.single.steps:
            return None
        columns = step.first.columns
        changes = self.single.steps[event].changes[:, columns]
        whole = solve(changes, self.reference.steps[event].gradients[0][columns])
        solution = solve(changes, step.gradients.mean(0)[columns])
        if whole is None or solution is None or not np.abs(whole.weights).min():
            return None
        # Where single samples do not explain the reference, a weight beside it says nothing.
        residual = max(solution.residual, whole.residual)
        return Solution(solution.weights / whole.weights, residual, solution.known)

    def _name_gradient(
        self, recording: Recording, event: Event, groups: list[GroupDifference], solution: Solution | None
    ) -> SplitCause:
        """Names the cause of another gradient of the same number of samples."""
        step = recording.steps[event]
        if _explains(solution):
            passes = [record.passes for record in step.ranks]
            weighing = Weighing(recording.split, solution.weights, self._owners(recording, event), passes)
            if (cause := name_weights(weighing.only(solution.known))) is not None:
                return cause
        if recording.rows(event) is None or self.reference.rows(event) is None:
            hashes, reference_hashes = (
                sorted(sample for rank in run.steps[event].hashes for samples in rank for sample in samples)
                for run in (recording, self.reference)
            )
            if hashes and reference_hashes and hashes != reference_hashes:
                return SplitCause(
                    OTHER_SAMPLES,
                    "it takes other samples than one pass over the batch, and not through a torch "
                    "DataLoader, whose rows can be set",
                    "draw the rows through a torch DataLoader, or by a seed that is the same for every split",
                )
        return _name_coupling(recording, groups, solution)

    def _owners(self, recording: Recording, event: Event) -> list[tuple[int, int] | None]:
        """Finds the rank and the pass of each sample of the one-by-one run, by dataset row or by hash."""
        if self.single is None or event not in self.single.steps:
            return []
        named: Parts | None = recording.rows(event)
        singles: Parts | None = self.single.rows(event)
        if named is None or singles is None:
            named, singles = recording.steps[event].hashes, self.single.steps[event].hashes
        places: dict[object, list[tuple[int, int]]] = {}
        for rank, passes in enumerate(named):
            for number, samples in enumerate(passes):
                for sample in samples:
                    places.setdefault(sample, []).append((rank, number))
        candidates = [places.get(samples[0], []) if samples else [] for samples in singles[0]]
        return [owners.pop(0) if owners else None for owners in candidates]


def _explains(solution: Solution | None) -> TypeGuard[Solution]:
    """Tells whether weights of the samples explain a gradient."""
    return solution is not None and solution.residual <= COUPLED


def _name_coupling(
    recording: Recording, groups: list[GroupDifference], solution: Solution | None
) -> SplitCause:
    """Names the cause of a gradient without weights of samples to explain it."""
    notes = recording.notes
    worst = groups[0] if groups else None
    residual = "" if solution is None else f" (residual {solution.residual:.1e})"
    if worst is not None and any(part in ROUTERS for part in worst.name.split(".")):
        return SplitCause(
            "balance loss of experts",
            f"the gradient of the router {worst.name} is {worst.factor:.3g} × that of one pass over the "
            f"batch{residual}",
            "the balance loss depends on the samples of a pass: keep the micro-batch, and divide it by "
            "the accumulation and the ranks as the rest of the loss",
        )
    law = None if worst is None else nearest_law(recording.split, worst.factor)
    if worst is not None and law is not None:
        return SplitCause(
            "a term of the loss",
            f"the gradient of {worst.name} is {worst.factor:.4g} × that of one pass over the batch "
            f"({law.name}), and others are not: a term of the loss is not divided as the rest{residual}",
            law.mend,
        )
    if notes["batch norm"]:
        return SplitCause(
            "batch norm",
            f"batch norm sees another batch in each pass: samples of a pass depend on each other{residual}",
            "keep the micro-batch that was tuned, use SyncBatchNorm (over ranks), or a norm without batch "
            "statistics",
        )
    draws = next((note for note in notes if note.startswith("random draws of")), None)
    if draws is not None:
        return SplitCause(
            RANDOMNESS,
            f"{draws} fall on other samples at another split{residual}",
            "seed each sample's own draw, or ask again without it",
        )
    where = f"; worst in {worst.name}, × {worst.factor:.3g}" if worst else ""
    return SplitCause(
        "coupled samples",
        "the loss of a pass is not a mean over its samples: they influence one another, or a term of the "
        f"loss has another weight{residual}{where}",
        "a balance loss of experts, in-batch negatives and the like depend on the micro-batch: keep it, and "
        "divide every term of the loss alike",
    )


def share_factor(results: Sequence[SplitResult]) -> list[SplitResult]:
    """Names one cause for all splits with equally weighted samples: their factors leave one law."""
    factors = {
        Split.parse(result.split): float(np.mean(result.weights))
        for result in results
        if result.step == 0 and result.weights and spread(result.weights) < ALIKE
    }
    cause = name_factors(factors)
    laws = {law.name for law in LAWS}
    shared = []
    for result in results:
        factor = factors.get(Split.parse(result.split))
        further = [old for old in result.causes if old.name not in laws]
        if cause is not None and factor is not None and len(further) < len(result.causes):
            text = f"{factor_text(factor)}: {cause.text.rpartition(': ')[2]}"
            result = msgspec.structs.replace(
                result, causes=[msgspec.structs.replace(cause, text=text), *further]
            )
        shared.append(result)
    return shared


def repeat_noise(first: Recording, second: Recording) -> float:
    """Returns the distance of the gradients of two runs of one split at the first step."""
    event = next(iter(first.steps))
    step, repeat = first.steps[event], second.steps.get(event)
    if repeat is None or step.gradients.shape != repeat.gradients.shape:
        return float("inf")
    return distance(repeat.gradients[0], step.gradients[0])
