"""Compares a run of one split with the reference.

Compared are samples, their weights, gradients, learning rates, clipping and the parameters at the end.
"""

from collections.abc import Iterator, Sequence

import msgspec
import numpy as np
import numpy.typing as npt

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
from isobatch.equivalence.records import RecordedStep, Recording, Vector
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
"""The name of a cause that leaves a split unasked."""

ROUTERS = ("gate", "router", "gating")
"""Names of a router of experts, as a part of a tensor's name."""

Event = tuple[int, int]


class SplitResult(msgspec.Struct, frozen=True, kw_only=True):
    """One split beside the reference.

    Attributes:
        split: RANKSxACCUMULATIONxMICRO_BATCH.
        same: whether nothing differs.
        step: the first step that differs, else the first one, from 0.
        difference: of the gradient at that step, relative L2.
        weights: of each sample in the gradient, in the order of the step's samples; empty where they are not
            known.
        residual: the part of the gradient that no weights explain; None where they are not known.
        groups: tensors that differ, the worst first.
        lrs: learning rate of the first parameter group at each step.
        norms: what clipping saw at that step.
        samples: samples of the step.
        weights_after: relative L2 distance of the parameters after the last compared step.
        seconds: that the run took.
        causes: why it is not the same, the first being the likeliest.
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
    """Compares recordings with a reference.

    Args:
        reference: the run of the whole batch in one pass.
        single: the run of one sample a pass, with each pass's gradient; None where there is none.
        noise: relative distance of the gradients of one split that was run twice.
    """

    def __init__(self, reference: Recording, single: Recording | None, noise: float) -> None:
        self.reference, self.single = reference, single
        half = reference.last.first.half
        self.tolerance = max(HALF if half else EXACT, 10 * noise)

    def compare(self, recording: Recording) -> SplitResult:
        """Compares a run step by step, up to the first difference.

        Args:
            recording: of the split.
        """
        events = [event for event in recording.events() if self.reference.at(event) is not None]
        events.sort(key=lambda event: (event[1], event[0]))
        results = [self._compare_step(recording, events[0])]
        for event in events[1:]:
            if not results[-1].same:
                return results[-1]
            results.append(self._compare_step(recording, event))
        return results[0] if results[-1].same else results[-1]

    def _compare_step(self, recording: Recording, event: Event) -> SplitResult:
        step, reference = recording.at(event), self.reference.at(event)
        if step is None or reference is None:
            raise AssertionError("both runs have taken the steps that are compared")
        columns = step.first.columns
        gradient, target = _own(step.gradients.mean(0), columns), _own(reference.gradients[0], columns)
        solution = self._solve(recording, event)
        difference = distance(gradient, target)
        tolerance = self.tolerance * (1 if event[1] == 0 else LATER)
        groups = differing_groups(step, gradient, target, GROUP * tolerance)
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
            differs = difference > tolerance
            causes += samples or self._compare_gradient(recording, event, step, differs, groups, solution)
        before, reference_before = recording.steps[event[0]][0], self.reference.steps[event[0]][0]
        causes += check_rates(step, reference, before, reference_before)
        if not apart:
            causes += check_clipping(step, reference, self.tolerance, difference)
        last = max((e for e in recording.events() if self.reference.at(e)), key=lambda e: e[1])
        return SplitResult(
            split=str(recording.split),
            same=not causes,
            step=event[1],
            difference=difference,
            weights=[] if solution is None or solution.residual > COUPLED else solution.weights.tolist(),
            residual=None if solution is None else solution.residual,
            groups=groups,
            lrs=[rates[0] for recorded in recording.steps[event[0]] if (rates := recorded.first.lrs)],
            norms=[norm for norm, _ in step.first.norms],
            samples=recording.samples(event),
            weights_after=_parameters_apart(recording, self.reference, last),
            seconds=round(recording.seconds, 1),
            causes=causes,
        )

    def _solve(self, recording: Recording, event: Event) -> Solution | None:
        """Solves for the weights of a step's samples, relative to those in the reference."""
        step, reference = recording.at(event), self.reference.at(event)
        single = None if self.single is None else self.single.at(event)
        if single is None or step is None or reference is None:
            return None
        columns = step.first.columns
        changes = single.changes[:, columns]
        whole = solve(changes, reference.gradients[0][columns])
        solution = solve(changes, step.gradients.mean(0)[columns])
        if whole is None or solution is None or not np.abs(whole.weights).min():
            return None
        # Where single samples do not explain the reference, a weight beside it says nothing.
        residual = max(solution.residual, whole.residual)
        return Solution(solution.weights / whole.weights, residual, solution.known)

    def _compare_gradient(
        self,
        recording: Recording,
        event: Event,
        step: RecordedStep,
        differs: bool,
        groups: list[GroupDifference],
        solution: Solution | None,
    ) -> Iterator[SplitCause]:
        if not differs and not groups:
            return
        if solution is not None and solution.residual <= COUPLED:
            passes = [record.passes for record in step.ranks]
            weighing = Weighing(recording.split, solution.weights, self._owners(recording, event), passes)
            weighing = weighing.only(solution.known)
            if (cause := name_weights(weighing)) is not None:
                yield cause
                return
        if self._has_other_samples(recording, event):
            yield SplitCause(
                OTHER_SAMPLES,
                "it takes other samples than one pass over the batch, and not through a torch DataLoader, "
                "whose rows can be set",
                "draw the rows through a torch DataLoader, or by a seed that is the same for every split",
            )
            return
        yield self._name_coupling(recording, groups, solution)

    def _has_other_samples(self, recording: Recording, event: Event) -> bool:
        """Compares a step's samples with the reference's by their hashes, unless their rows are known."""
        if recording.rows(event) is not None and self.reference.rows(event) is not None:
            return False
        hashes = [
            sorted(sample for record in step.ranks for samples in record.passes for sample in samples.hashes)
            for step in (recording.at(event), self.reference.at(event))
            if step is not None
        ]
        return all(hashes) and hashes[0] != hashes[1]

    def _name_coupling(
        self, recording: Recording, groups: list[GroupDifference], solution: Solution | None
    ) -> SplitCause:
        notes = recording.notes
        worst = groups[0] if groups else None
        where = f"; worst in {worst.name}, × {worst.factor:.3g}" if worst else ""
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
        if notes.get("batch norm"):
            return SplitCause(
                "batch norm",
                "batch norm sees another batch in each pass: samples of a pass depend on each other"
                f"{residual}",
                "keep the micro-batch that was tuned, use SyncBatchNorm (over ranks), or a norm without "
                "batch statistics",
            )
        random = [note for note in notes if note.startswith("random draws of")]
        if random:
            return SplitCause(
                RANDOMNESS,
                f"{random[0]} fall on other samples at another split{residual}",
                "seed each sample's own draw, or ask again without it",
            )
        return SplitCause(
            "coupled samples",
            "the loss of a pass is not a mean over its samples: they influence one another, or a term of "
            f"the loss has another weight{residual}{where}",
            "a balance loss of experts, in-batch negatives and the like depend on the micro-batch: keep it, "
            "and divide every term of the loss alike",
        )

    def _owners(self, recording: Recording, event: Event) -> list[tuple[int, int] | None]:
        """Finds the rank and the pass of each sample of the one-by-one run, by dataset row or by hash."""
        step = recording.at(event)
        single = None if self.single is None else self.single.at(event)
        if step is None or single is None or self.single is None:
            return []
        keys: Sequence[Sequence[object]]
        places: dict[object, list[tuple[int, int]]] = {}
        rows, single_rows = recording.rows(event), self.single.rows(event)
        if rows is not None and single_rows is not None:
            keys = single_rows[0]
            named: Sequence[Sequence[Sequence[object]]] = rows
        else:
            keys = [samples_of_pass.hashes for samples_of_pass in single.first.passes]
            named = [[samples_of_pass.hashes for samples_of_pass in record.passes] for record in step.ranks]
        for rank, passes in enumerate(named):
            for number, samples in enumerate(passes):
                for sample in samples:
                    places.setdefault(sample, []).append((rank, number))
        owners: list[tuple[int, int] | None] = []
        for samples in keys:
            candidates = places.get(samples[0], []) if samples else []
            owners.append(candidates.pop(0) if candidates else None)
        return owners


def share_factor(results: Sequence[SplitResult]) -> list[SplitResult]:
    """Names one cause for all splits with equally weighted samples.

    The factor of one split may have several causes; the factors of all splits leave one.
    """
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
        if cause is not None and factor is not None and any(old.name in laws for old in result.causes):
            text = f"{factor_text(factor)}: {cause.text.rpartition(': ')[2]}"
            further_causes = [old for old in result.causes if old.name not in laws]
            result = msgspec.structs.replace(
                result, causes=[msgspec.structs.replace(cause, text=text), *further_causes]
            )
        shared.append(result)
    return shared


def repeat_noise(first: Recording, second: Recording) -> float:
    """Returns the distance of the gradients of two runs of one split at the first step."""
    event = next(first.events())
    step, repeat = first.at(event), second.at(event)
    if step is None or repeat is None or step.gradients.shape != repeat.gradients.shape:
        return float("inf")
    return distance(repeat.gradients[0], step.gradients[0])


def _own(sketch: Vector, columns: npt.NDArray[np.bool_]) -> Vector:
    """Returns a sketch with the buckets of other optimizers' tensors at 0."""
    return np.where(columns, sketch, 0.0)


def _parameters_apart(recording: Recording, reference: Recording, event: Event) -> float:
    step, reference_step = recording.at(event), reference.at(event)
    if step is None or reference_step is None:
        return float("inf")
    if step.weights.shape[1] != reference_step.weights.shape[1]:
        return float("inf")
    return distance(step.weights[0], reference_step.weights[0])
