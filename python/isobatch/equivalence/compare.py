"""Compares a run of one split with the reference.

Compared are samples, their weights, gradients, learning rates, clipping and the parameters at the end.
"""

from collections.abc import Sequence
from typing import TypeGuard

import msgspec
import numpy as np

from isobatch.equivalence.causes import (
    Weighing,
    name_weights,
    nearest_scale,
)
from isobatch.equivalence.checks import (
    check_clipping,
    check_finite,
    check_ranks,
    check_rates,
    check_samples,
    check_settings,
    check_start,
)
from isobatch.equivalence.laws import CLOCKS, SplitCause, break_of
from isobatch.equivalence.likeness import Likeness
from isobatch.equivalence.records import Event, Parts, RecordedStep, Recording
from isobatch.equivalence.rounding import Rounding
from isobatch.equivalence.weights import GroupDifference, Solution, differing_groups, distance, solve
from isobatch.limits import within

GROUP = 10.0
"""A group of tensors may be this many tolerances off: the rounding of a small group is larger."""
LATER = 500.0
"""A group of tensors after the first step may be this many tolerances off: an optimizer amplifies rounding,
most of all in the smallest tensors."""
COUPLED = 1e-3
"""Residual above which weights of samples do not explain a gradient."""

OTHER_SAMPLES = "another_samples"
OF_RANKS = ("ranks_alone", "ranks_start_apart", "never_averaged")
"""Laws of the ranks among themselves."""
OF_STEPS = frozenset({"another_batch", "early_first_step", "short_window", "not_finite"})
"""Laws of steps with other passes: a schedule beside them has another pace."""
OF_WEIGHTS = frozenset({"coupled_samples", "another_update"})
"""Laws of a gradient that other weights change too."""
_RATES = CLOCKS | {"another_lr"}
UNJUDGED = {OTHER_SAMPLES, "randomness", "another_start"}
"""Laws of splits with other samples, random draws or first weights: they say nothing about a training."""

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
        update: distance of the weights' change over all compared steps, relative L2; None where a step was
            not seen to end, or no weight changed.
        causes: why it is not the same, the likeliest first.
        notes: what differs, and is the same training.
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
    update: float | None
    seconds: float
    causes: list[SplitCause]
    notes: list[str] = []


class Comparison:
    """Compares runs of splits with the reference, the whole batch in one pass.

    `single` is the run of one sample a pass, with each pass's gradient.
    """

    def __init__(self, reference: Recording, single: Recording | None, noise: Rounding) -> None:
        self.reference, self.single, self.noise = reference, single, noise

    @property
    def tolerance(self) -> float:
        """The largest relative distance of two gradients by rounding, at the first step."""
        return self.noise.gradient(0, 0.0)

    def compare(self, recording: Recording) -> SplitResult:
        """Compares a run step by step up to the first difference, then the weights' change.

        The learning rates of later steps are compared all the same: they depend on no gradient.
        """
        events = [event for event in recording.steps if event in self.reference.steps]
        events.sort(key=lambda event: (event[1], event[0]))
        results: list[SplitResult] = []
        for number, event in enumerate(events, 1):
            results.append(self.compare_step(recording, event, results[0].difference if results else 0.0))
            if not results[-1].same:
                result = self._earlier_update(recording, event, results)
                return self._with_later_rates(recording, events[number:], result)
        result, notes = results[0], [note for result in results for note in result.notes]
        return self._compare_update(recording, msgspec.structs.replace(result, notes=[*dict.fromkeys(notes)]))

    def _with_later_rates(
        self, recording: Recording, events: Sequence[Event], result: SplitResult
    ) -> SplitResult:
        """Adds the first difference of the learning rate at a later step."""
        if any(cause.id in OF_STEPS | _RATES for cause in result.causes):
            return result
        for event in events:
            for cause in check_rates(recording, self.reference, event):
                if isinstance(cause, SplitCause):
                    later = msgspec.structs.replace(cause, text=f"{cause.text} (step {event[1]})")
                    return msgspec.structs.replace(result, causes=[*result.causes, later])
        return result

    def _earlier_update(self, recording: Recording, event: Event, results: list[SplitResult]) -> SplitResult:
        """Returns a step's result: of the update, if the gradient is the same and the update is not."""
        result = results[-1]
        if not results[:-1] or [cause.id for cause in result.causes] != ["coupled_samples"]:
            return result
        runs = (recording, self.reference)
        weights = [(run.of(event[0])[0].weights[0], run.steps[event].weights[0]) for run in runs]
        if len({entries.shape for pair in weights for entries in pair}) > 1:
            return result
        moved = [after - before for before, after in weights]
        if within(distance(*moved), self.noise.update(event[0], results[0].difference)):
            return result
        update = self._compare_update(recording, results[0])
        return result if update.same else update

    def _compare_update(self, recording: Recording, result: SplitResult) -> SplitResult:
        """Compares the change of the weights: what optimizers do with a gradient that is the same."""
        causes, largest = [], None
        for optimizer in sorted({optimizer for optimizer, _ in recording.steps}):
            update, reference = (run.update(optimizer) for run in (recording, self.reference))
            if update is None or reference is None or update.shape != reference.shape or not reference.any():
                continue
            difference = distance(update, reference)
            largest = max(difference, largest or 0.0)
            tolerance = self.noise.update(optimizer, result.difference)
            if not within(difference, tolerance):
                text = (
                    f"over {len(recording.of(optimizer))} steps the weights change otherwise than at one "
                    f"pass over the batch, by {difference:.1e} (rounding leaves {tolerance:.1e})"
                )
                causes.append(break_of("another_update", text))
        return msgspec.structs.replace(result, update=largest, causes=causes, same=not causes)

    def compare_step(self, recording: Recording, event: Event, difference_before: float) -> SplitResult:
        """Compares one step; `difference_before` is the first step's, of its gradient."""
        step, reference = recording.steps[event], self.reference.steps[event]
        columns = step.first.columns  # other optimizers' tensors count as 0
        gradient = np.where(columns, step.gradients.mean(0), 0.0)
        target = np.where(columns, reference.gradients[0], 0.0)
        like = Likeness.of(gradient, target)
        difference = like.error
        tolerance = self.noise.gradient(event[1], difference_before)
        is_update = step.first.measured == "update" and event[1] > 0
        # An optimizer may make whole updates of the rounding in small tensors.
        groups = (
            []
            if is_update
            else differing_groups(
                step.first, gradient, target, GROUP * self.tolerance * (LATER if event[1] else 1)
            )
        )
        solution = self._solve(event, step)
        # A multiple of the gradient needs no samples' gradients to be explained.
        residual = like.residual if like.own else 0.0
        if within(residual, tolerance) and not within(difference, tolerance) and not _explains(solution):
            solution = Solution(np.full(max(1, self.reference.samples(event)), like.ratio), residual)
        causes = list(check_finite(recording, event))
        if not causes:
            causes += check_ranks(recording.split, step, self.tolerance)
        apart = bool(causes)
        if not any(cause.id in ("not_finite", "other_weights") for cause in causes):
            samples = list(check_samples(recording, event, self.reference.samples(event)))
            if not samples and event[1] == 0:
                samples = list(check_start(step, reference, self.tolerance))
            # Other samples have another gradient.
            if not samples and is_update and not within(difference, tolerance):
                samples = [_name_update(step, reference, difference)]
            elif not samples and (not within(difference, tolerance) or groups):
                samples = [self._name_gradient(recording, event, groups, solution)]
            causes += samples
        clock = list(check_rates(recording, self.reference, event))
        clock_causes = [cause for cause in clock if isinstance(cause, SplitCause)]
        if clock_causes and event[1]:  # other rates before it have led to other weights
            causes = [cause for cause in causes if cause.id not in OF_WEIGHTS]
        causes += clock_causes
        causes += check_settings(step, reference, is_first=event[1] == 0, rates_differ=bool(clock_causes))
        if not apart:
            causes += check_clipping(step, reference, self.tolerance, difference)
        return SplitResult(
            split=str(recording.split),
            same=not causes,
            step=event[1],
            difference=difference,
            weights=solution.weights.tolist() if _explains(solution) else [],
            residual=None if solution is None else solution.residual,
            groups=groups,
            lrs=[rates[0] for recorded in recording.of(event[0]) if (rates := recorded.first.lrs)],
            norms=[norm for norm, _ in step.first.clips],
            samples=recording.samples(event),
            update=None,
            seconds=round(recording.seconds, 1),
            causes=causes,
            notes=[note for note in clock if isinstance(note, str)],
        )

    def _solve(self, event: Event, step: RecordedStep) -> Solution | None:
        """Solves for the weights of a step's samples, relative to those in the reference."""
        if self.single is None or event not in self.single.steps:
            return None
        if self.single.samples(event) < self.reference.samples(event):
            return None  # its step ended early
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
                return break_of(
                    OTHER_SAMPLES,
                    "it takes other samples than one pass over the batch, and not through a torch "
                    "DataLoader, whose rows can be set",
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


def _name_update(step: RecordedStep, reference: RecordedStep, difference: float) -> SplitCause:
    """Names another step of an optimizer on the same gradient."""
    update, expected = step.gradients.mean(0), reference.gradients[0]
    worst = max(
        differing_groups(step.first, update, expected, difference / 2),
        key=lambda group: group.difference,
        default=None,
    )
    where = f"; worst in {worst.name}, × {worst.factor:.3g}" if worst else ""
    return break_of(
        "another_update",
        f"{step.first.kind} moves the weights otherwise than at one pass over the batch, by {difference:.1e}"
        f"{where}",
    )


def _explains(solution: Solution | None) -> TypeGuard[Solution]:
    """Tells whether weights of the samples explain a gradient."""
    return solution is not None and within(solution.residual, COUPLED)


def _name_coupling(
    recording: Recording, groups: list[GroupDifference], solution: Solution | None
) -> SplitCause:
    """Names the cause of a gradient without weights of samples to explain it."""
    worst = groups[0] if groups else None
    residual = "" if solution is None else f" (residual {solution.residual:.1e})"
    if worst is not None and any(part in ROUTERS for part in worst.name.split(".")):
        return break_of(
            "balance_loss",
            f"the gradient of the router {worst.name} is {worst.factor:.3g} × that of one pass over the "
            f"batch{residual}",
        )
    scale = None if worst is None else nearest_scale(recording.split, worst.factor)
    if worst is not None and scale is not None:
        return break_of(
            "some_tensors",
            f"the gradient of {worst.name} is {worst.factor:.4g} × that of one pass over the batch "
            f"({scale.text}), and others are not{residual}",
        )
    if recording.notes("batch norm"):
        return break_of(
            "batch_norm",
            f"batch norm sees another batch in each pass: samples of a pass depend on each other{residual}",
        )
    draws = [*recording.notes("draws")]
    if draws:
        return break_of("randomness", f"{draws[0]} fall on other samples at another split{residual}")
    where = f"; worst in {worst.name}, × {worst.factor:.3g}" if worst else ""
    return break_of(
        "coupled_samples",
        "the loss of a pass is not a mean over its samples: they influence one another, or a term of the "
        f"loss has another weight{residual}{where}",
    )
