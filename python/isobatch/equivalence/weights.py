"""The weight of each sample in a gradient, by least squares over the gradients of single samples."""

from collections.abc import Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from isobatch.equivalence.likeness import Likeness
from isobatch.equivalence.records import RankStep, Vector
from isobatch.limits import within

CONDITION = 1e5
"""Above it the samples' gradients, rounded to float32, do not stand apart, and no weight is known."""
FAINT = 1e-5
"""A group of tensors under this part of the gradient's norm is rounding: the gradient of a key's bias is 0 in
truth."""


class Solution(msgspec.Struct, frozen=True):
    """Weights of samples in a gradient.

    Attributes:
        weights: (samples,), 1 where a sample weighs as in the reference.
        residual: the part of the gradient, by norm, that no weights explain.
        known: (samples,), False of a sample without a gradient, which could weigh anything; None: all are.
    """

    weights: Vector
    residual: float
    known: npt.NDArray[np.bool_] | None = None


class GroupDifference(msgspec.Struct, frozen=True):
    """A group of tensors with another gradient: its name (`*` for a layer), relative L2, and factor."""

    name: str
    difference: float
    factor: float


def solve(changes: Vector, gradient: Vector) -> Solution | None:
    """Solves for the weight of each sample in a gradient, by the sketches (samples, buckets) and (buckets,).

    None if the samples' gradients are too alike.
    """
    norms = np.linalg.norm(changes, axis=1)
    if len(changes) and norms.any() and not norms.all():
        # A sample without a gradient, such as one without labels, is shown with the mean of the others.
        solution = solve(changes[norms > 0], gradient)
        if solution is None:
            return None
        weights = np.full(len(changes), solution.weights.mean())
        weights[norms > 0] = solution.weights
        return Solution(weights, solution.residual, norms > 0)
    finite = np.isfinite(changes).all() and np.isfinite(gradient).all()
    if not len(changes) or not norms.all() or not finite:
        return None
    scaled = (changes / norms[:, None]).T
    weights, _, rank, singular = np.linalg.lstsq(scaled, gradient, rcond=None)
    if rank < len(changes) or singular[0] > CONDITION * singular[-1]:
        return None
    return Solution(weights / norms, distance(scaled @ weights, gradient))


def distance(gradient: Vector, reference: Vector) -> float:
    """Returns the relative L2 distance of a gradient; infinite if only the reference is 0."""
    return Likeness.of(gradient, reference).error


def differing_groups(
    record: RankStep, gradient: Vector, reference: Vector, tolerance: float
) -> list[GroupDifference]:
    """Lists the groups of tensors, one for all layers, with a difference above a tolerance, worst first."""
    groups = [".".join("*" if part.isdigit() else part for part in name.split(".")) for name in record.names]
    group_of = np.repeat(np.array(groups), record.sizes)
    total = float(np.linalg.norm(reference))
    differences = []
    for name in dict.fromkeys(groups):
        columns = (group_of == name) & record.columns
        group, reference_group = gradient[columns], reference[columns]
        norm = float(np.linalg.norm(reference_group))
        error = float(np.linalg.norm(group - reference_group))
        if norm > FAINT * total and not within(error, tolerance * norm):
            differences.append(GroupDifference(name, error / norm, float(group @ reference_group) / norm**2))
        elif norm <= FAINT * total and not within(error, 10 * FAINT * total):
            differences.append(GroupDifference(name, error / max(norm, 1e-300), float("inf")))
    return sorted(differences, key=lambda group: -group.difference)


def spread(values: Sequence[float]) -> float:
    """Returns how far values are apart, relative to the largest."""
    largest = max(map(abs, values))
    return (max(values) - min(values)) / largest if largest else 0.0
