"""Names the differences under a mesh: a dimension's factor, a sum that is not reduced, a norm of shards."""

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, product
from math import isfinite, sqrt
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from isobatch.equivalence.laws import SplitCause, break_of
from isobatch.equivalence.meshes.shards import Part, Tensor
from isobatch.equivalence.records import Recording, Vector
from isobatch.equivalence.weights import GroupDifference, spread
from isobatch.limits import within
from isobatch.words import few

ROUNDING = 1e-3
"""Relative distance of two gradients of a tensor that is rounding; 30 times that with half precision."""
FAINT = 1e-5
"""Part of the whole gradient's norm below which a tensor's is rounding."""
SEEN = 1e-2
"""An update is compared where the gradient is at least this part of its tensor's mean: an optimizer that
divides by the gradient makes whole updates of rounding."""

ULP = 2.4e-7
"""Of a weight: what rounding leaves of its change."""


class MeshStep(NamedTuple):
    """The first step under a mesh: its dimensions' sizes, its record, and the tensors in their places."""

    sizes: Mapping[str, int]
    recording: Recording
    parts: list[Part]


class TensorDifference(NamedTuple):
    """A tensor with another gradient: the law, the name by the dimension, and what was seen."""

    law: str
    name: str
    tensor: str
    text: str
    factor: float
    distance: float


def compare_steps(
    step: MeshStep, reference: Recording, tensors: Sequence[Tensor]
) -> tuple[list[SplitCause], list[GroupDifference], tuple[float, float | None]]:
    """Compares gradient, norm and update; returns causes, differing tensors and distances."""
    whole = {tensor.name: tensor for tensor in tensors}
    half = next(iter(reference.steps.values())).first.half
    rounding = ROUNDING * (30 if half else 1)
    total = _norm([tensor.gradient for tensor in tensors])
    by_name: dict[str, list[Part]] = {name: [] for name in whole}
    for part in step.parts:
        by_name[part.name].append(part)
    differences, worst = [], 0.0
    for name, parts in by_name.items():
        gradient = whole[name].gradient.reshape(-1).astype(np.float64)
        apart = max(_norm([_gradient(part) - gradient[part.places]]) for part in parts)
        worst = max(worst, apart / total) if isfinite(apart) else float("inf")
        limits = [rounding * _norm([gradient[part.places]]) + FAINT * total for part in parts]
        if any(
            not within(_norm([_gradient(part) - gradient[part.places]]), limit)
            for part, limit in zip(parts, limits, strict=True)
        ):
            differences.append(_name(name, parts, gradient, step.sizes, rounding, total))
    causes = [*_by_cause(differences, len(whole))]
    first, reference_first = (next(iter(run.steps.values())).first for run in (step.recording, reference))
    if not causes and (cause := _norm_cause(step, reference, rounding)) is not None:
        causes.append(cause)
    if {*first.lrs} != {*reference_first.lrs}:
        rates, expected = (few([f"{rate:.4g}" for rate in record.lrs]) for record in (first, reference_first))
        causes.append(break_of("another_lr", f"the learning rate is {rates}, without {expected}"))
    update = None if causes else _update(step.parts, whole, total)
    if update is not None and not within(update[0], 10 * rounding):
        text = f"{first.kind} moves {update[1]} otherwise than without the mesh, by {update[0]:.1e}"
        causes.append(break_of("another_update", text))
    groups = [GroupDifference(d.tensor, d.distance, d.factor) for d in differences]
    groups.sort(key=lambda group: -group.difference)
    return causes, groups, (worst, None if update is None else update[0])


def starts_apart(reference: Sequence[Tensor], ranks: Sequence[Sequence[Tensor]]) -> SplitCause | None:
    """Names tensors held whole by all ranks, with different first weights; None without any."""
    whole = {tensor.name: tensor.weights for tensor in reference}
    apart: dict[str, list[str]] = {}
    for name, weights in whole.items():
        copies = [
            (rank, tensor.weights)
            for rank, tensors in enumerate(ranks)
            for tensor in tensors
            if tensor.name == name and tensor.weights.shape == weights.shape
        ]
        # A stage may count its layers anew: weights of another place are not wrong.
        wrong = [
            str(rank)
            for rank, copy in copies
            if not any(np.array_equal(copy, placed) for placed in whole.values())
        ]
        if len(copies) == len(ranks) and 0 < len(wrong) < len(copies):
            apart[name] = wrong
    if not apart:
        return None
    text = f"{few([*apart])} of rank {few([*dict.fromkeys(chain.from_iterable(apart.values()))])} is another"
    cause = break_of(
        "other_weights", f"before the first step {text} than without the mesh, and that of others is not"
    )
    return msgspec.structs.replace(cause, name=f"{cause.name}: {few([*apart])}")


def _gradient(part: Part) -> Vector:
    return part.tensor.gradient.reshape(-1).astype(np.float64)


def _norm(arrays: Sequence[npt.NDArray[Any]]) -> float:
    return sqrt(sum(float(np.square(array.astype(np.float64)).sum()) for array in arrays))


def _name(
    name: str, parts: Sequence[Part], whole: Vector, sizes: Mapping[str, int], rounding: float, total: float
) -> TensorDifference:
    """Names the difference of one tensor's gradient."""
    factors: dict[int, float] = {}
    residuals, worst = list[float](), 0.0
    for part in parts:
        gradient, target = _gradient(part), whole[part.places]
        size = _norm([target])
        if not np.isfinite(gradient).all():
            return TensorDifference(
                "not_finite", "", name, f"rank {part.rank}'s is not finite", float("nan"), float("inf")
            )
        factor = float(gradient @ target) / (size**2 or 1.0)
        factors.setdefault(part.rank, factor)
        residuals.append(_norm([gradient - factor * target]) / (size + FAINT * total))
        worst = max(worst, _norm([gradient - target]) / (size or 1e-300))
    values = [*factors.values()]
    explained = all(within(residual, 5 * rounding) for residual in residuals)
    if explained and within(spread(values), 5 * rounding):
        factor = values[0]
        law, word = _dimension(factor, sizes, rounding)
        return TensorDifference(law, word, name, f"× {factor:.4g}", factor, worst)
    reduced = _partial(parts, whole, rounding, FAINT * total)
    if reduced:
        return TensorDifference("partial_sum", "", name, reduced, float("nan"), worst)
    zero = [rank for rank, factor in factors.items() if within(factor, rounding)]
    if explained and zero:
        text = f"none on rank{'s' if zero[1:] else ''} {few([str(rank) for rank in zero])}"
        return TensorDifference("part_without_gradient", "", name, text, float("nan"), worst)
    if explained:
        text = few([f"× {factor:.3g} on rank {rank}" for rank, factor in factors.items()])
        return TensorDifference("mesh_factor", "", name, text, float("nan"), worst)
    return TensorDifference("mesh_gradient", "", name, f"by {worst:.2g}", float("nan"), worst)


def _dimension(factor: float, sizes: Mapping[str, int], rounding: float) -> tuple[str, str]:
    """Names a factor by the mesh's dimensions, one better than two; ("mesh_factor", "") where none fits."""
    if within(factor, rounding):
        return "part_without_gradient", ""
    names = [name for name, size in sizes.items() if size > 1]
    powers = sorted(product((0, 1, -1), repeat=len(names)), key=lambda power: sum(map(abs, power)))
    for power in powers[1:]:
        expected = float(np.prod([sizes[name] ** float(p) for name, p in zip(names, power, strict=True)]))
        if within(factor / expected - 1, 5 * rounding):
            above = [name for name, p in zip(names, power, strict=True) if p > 0]
            below = [name for name, p in zip(names, power, strict=True) if p < 0]
            text = " ".join(f"× {name}" for name in above)
            text = f"{text} / {' / '.join(below)}" if above and below else text or f"1/{'/'.join(below)}"
            return "mesh_multiplies" if above else "mesh_divides", text
    return "mesh_factor", ""


def _partial(parts: Sequence[Part], whole: Vector, rounding: float, faint: float) -> str:
    """Tells whether the ranks of a place have parts of a sum there; else empty."""
    holders: dict[bytes, list[Part]] = {}
    for part in parts:
        holders.setdefault(part.places.tobytes(), []).append(part)
    if any(len(group) < 2 for group in holders.values()):
        return ""
    text = ""
    for group in holders.values():
        target, different = whole[group[0].places], list[Vector]()
        size = _norm([target])
        for part in group:
            gradient = _gradient(part)
            if all(_norm([gradient - earlier]) > rounding * size for earlier in different):
                different.append(gradient)
        total = np.sum(different, axis=0)
        factor = float(total @ target) / (size**2 or 1.0)
        if len(different) < 2 or not within(_norm([total - target * factor]), 10 * rounding * size + faint):
            return ""
        ranks = few([str(part.rank) for part in group])
        if within(factor - 1, 10 * rounding) or within(_norm([total - target]), faint):
            text = f"the sum over ranks {ranks} is right"
        elif within(factor / len(different) - 1, 10 * rounding):
            text = f"the mean over ranks {ranks} is right"
        else:
            return ""
    return text


def _by_cause(differences: Sequence[TensorDifference], tensors: int) -> Iterator[SplitCause]:
    """Yields each cause once, with its tensors."""
    causes: dict[tuple[str, str], list[TensorDifference]] = {}
    for difference in differences:
        causes.setdefault((difference.law, difference.name), []).append(difference)
    for (law, name), members in causes.items():
        groups = dict.fromkeys(re.sub(r"\.\d+\.", ".*.", member.tensor) for member in members)
        of = "all tensors" if len(members) == tensors > 1 else few([*groups], 4)
        texts = dict.fromkeys(member.text for member in members)
        cause = break_of(law, f"the gradient of {of}: {few([*texts])}")
        label = name or cause.name
        label = label if len(members) == tensors > 1 else f"{label}: {of}"
        yield msgspec.structs.replace(cause, name=label)


def _norm_cause(step: MeshStep, reference: Recording, rounding: float) -> SplitCause | None:
    """Compares the norm seen by each rank's clipping with the one without the mesh."""
    ranks = next(iter(step.recording.steps.values())).ranks
    norms, expected = [record.clips for record in ranks], next(iter(reference.steps.values())).first.clips
    if any(len(clips) != len(expected) for clips in norms):
        return break_of(
            "clipped_otherwise", f"clipping is called {len(norms[0])} times, without {len(expected)}"
        )
    for number, (norm, _) in enumerate(expected):
        seen = [clips[number][0] for clips in norms]
        wrong = [
            rank for rank, value in enumerate(seen) if not within(value / (norm or 1e-300) - 1, rounding)
        ]
        if not wrong:
            continue
        values = few([f"{value:.4g}" for value in dict.fromkeys(seen)])
        text = f"clipping sees {values}, without the mesh {norm:.4g}"
        held = [record.held_norm for record in ranks]
        copies = sqrt(sum(value**2 for value in held) / step.sizes.get("dp", 1))
        if all(within(seen[rank] / (held[rank] or 1e-300) - 1, rounding) for rank in wrong):
            return break_of("norm_of_shards", f"{text}: each rank's is that of its own shards")
        if all(within(value / copies - 1, rounding) for value in seen):
            return break_of("norm_of_copies", f"{text}: tensors that several ranks hold count once for each")
        added = within(seen[0] / (sum(held) or 1e-300) - 1, rounding)
        return break_of("mesh_norm", f"{text}{': norms are added, not their squares' if added else ''}")
    return None


def _update(parts: Sequence[Part], whole: Mapping[str, Tensor], total: float) -> tuple[float, str] | None:
    """Returns the largest distance of a tensor's change from the one without, and its name."""
    worst = None
    for part in parts:
        tensor, target = part.tensor, whole[part.name]
        if tensor.ended is None or target.ended is None:
            continue
        gradient = target.gradient.reshape(-1)[part.places]
        if within(_norm([gradient]), FAINT * total):
            continue
        seen = np.abs(gradient) > SEEN * float(np.abs(gradient).mean())
        expected = (target.ended - target.weights).reshape(-1)[part.places][seen].astype(np.float64)
        change = (tensor.ended - tensor.weights).reshape(-1)[seen].astype(np.float64)
        if size := _norm([expected]):
            rounded = ULP * _norm([tensor.weights.reshape(-1)[seen]])
            distance = max(0.0, _norm([change - expected]) - rounded) / size
            worst = max(worst or (0.0, ""), (distance, part.name))
        elif change.any():
            return float("inf"), part.name
    return worst
