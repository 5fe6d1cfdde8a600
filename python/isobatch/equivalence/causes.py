"""Causes of a difference between two splits, each with its name and its mend."""

from collections.abc import Mapping
from math import isclose
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from isobatch.equivalence.records import PassSamples, Vector
from isobatch.equivalence.split import Split
from isobatch.equivalence.weights import spread

ALIKE = 2e-3
"""Weights that differ by less are alike: what float32 leaves of least squares."""
PROPORTIONAL = 1e-2


class SplitCause(msgspec.Struct, frozen=True):
    """A cause of a difference: its name, the difference with its figure, and what to change."""

    name: str
    text: str
    mend: str


class Weighing(msgspec.Struct, frozen=True):
    """The weights of a step's samples in a run."""

    split: Split
    weights: Vector
    """(samples,), relative to the reference."""
    owners: list[tuple[int, int] | None]
    """The (rank, pass) that had each sample, None where that is not known."""
    passes: list[list[PassSamples]]
    """By rank."""

    def only(self, known: NDArray[np.bool_] | None) -> "Weighing":
        """Leaves out the samples without a gradient; None: there are none."""
        if known is None:
            return self
        owners = [owner for owner, is_known in zip(self.owners, known.tolist(), strict=True) if is_known]
        return msgspec.structs.replace(self, weights=self.weights[known], owners=owners)


def name_weights(weighing: Weighing) -> SplitCause | None:
    """Names the cause of weights other than 1; None if all are 1."""
    weights = weighing.weights
    if np.abs(weights - 1).max() < ALIKE:
        return None
    if spread(weights.tolist()) < ALIKE:
        return _name_factor(float(weights.mean()), weighing)
    lost = int((np.abs(weights) < ALIKE).sum())
    if lost:
        return SplitCause(
            "lost samples",
            f"{lost} of {len(weights)} samples have weight 0: they are read but do not reach the gradient",
            "look for a zero_grad() between the passes of a step, or a step that is taken before the last "
            "pass",
        )
    return _name_means(weighing) or _name_counts(weights)


def _name_factor(factor: float, weighing: Weighing) -> SplitCause:
    split = weighing.split
    passes = max(map(len, weighing.passes), default=split.accumulation)
    if passes < split.accumulation and isclose(factor, passes / split.accumulation, rel_tol=ALIKE):
        return SplitCause(
            "short window",
            f"{factor_text(factor)}: a step of {passes} passes is divided by the accumulation of "
            f"{split.accumulation}",
            "divide by the passes that the last step of an epoch has, or drop the incomplete batch "
            "(drop_last)",
        )
    return name_factors({split: factor}) or SplitCause(
        "one factor",
        f"{factor_text(factor)}, the same for every sample",
        "look at what the loss is divided by",
    )


def name_factors(factors: Mapping[Split, float]) -> SplitCause | None:
    """Names the law of ranks and accumulation for the factors of all splits, or None.

    >>> name_factors({Split(2, 2, 2): 0.25, Split(1, 4, 2): 0.25}).name
    'summed loss'
    >>> name_factors({Split(2, 2, 2): 0.5}).name  # several laws explain one split
    '1/accumulation'
    """
    for law in LAWS if factors else ():
        if all(isclose(factor, law.size(split), rel_tol=ALIKE) for split, factor in factors.items()):
            split, factor = max(factors.items(), key=lambda item: abs(item[1] - 1))
            cause = SplitCause(law.name, f"{factor_text(factor)}: {law.text}", law.mend)
            return None if law.size(split) == 1 else cause
    return None


def nearest_law(split: Split, factor: float) -> "FactorLaw | None":
    """Returns the nearest law for the factor of some tensors at a split, or None."""
    for law in LAWS:
        if law.size(split) != 1 and isclose(factor, law.size(split), rel_tol=PROPORTIONAL):
            return law
    return None


def factor_text(factor: float) -> str:
    """Says how large the gradient is."""
    return f"the gradient is {factor:.4g} × that of one pass over the batch"


class FactorLaw(NamedTuple):
    """How a gradient grows with the ranks and the accumulation: a power of each."""

    name: str
    ranks: int
    accumulation: int
    text: str
    mend: str

    def size(self, split: Split) -> float:
        """Returns the factor at a split."""
        return float(split.ranks) ** self.ranks * float(split.accumulation) ** self.accumulation


_ONCE = "divide each pass's mean loss by the accumulation before backward()"
_AVERAGED = (
    "average the ranks' gradients once: DDP does; a sum over ranks, or a loss times the ranks, counts them "
    "again"
)
_GLOBAL = (
    "DDP averages over ranks: if the loss is divided by the count of all ranks, multiply it by their number"
)
_TWICE = "the loss is divided by the accumulation twice, for example by the trainer and by the script"
_MEAN = "make the loss a mean: reduction='mean', or divide the sum by the samples of the whole step"
LAWS = (
    FactorLaw("× accumulation", 0, 1, "× accumulation", _ONCE),
    FactorLaw("1/accumulation", 0, -1, "1/accumulation", _TWICE),
    FactorLaw("× ranks", 1, 0, "× ranks", _AVERAGED),
    FactorLaw("1/ranks", -1, 0, "1/ranks", _GLOBAL),
    FactorLaw("× ranks × accumulation", 1, 1, "× ranks × accumulation", f"{_ONCE}; {_AVERAGED}"),
    FactorLaw(
        "summed loss", -1, -1, "the micro-batch over the batch, since the loss is a sum over a pass", _MEAN
    ),
    FactorLaw("accumulation/ranks", -1, 1, "accumulation/ranks", f"{_ONCE}; {_GLOBAL}"),
    FactorLaw("ranks/accumulation", 1, -1, "ranks/accumulation", f"{_AVERAGED}; {_TWICE}"),
)
"""Laws of one factor for all samples, the likeliest first."""


def _name_means(weighing: Weighing) -> SplitCause | None:
    """Names a mean of the ranks' or the passes' means: a part's samples weigh alike, by its tokens."""
    if None in weighing.owners:
        return None
    total = (
        "count the tokens of the whole step over all ranks before its first pass, and divide each pass's "
        "summed loss by that"
    )
    ranks, passes = _parts(weighing, 1), _parts(weighing, 2)
    if len(ranks) > 1 and _are_alike(ranks):
        mend = f"{total}; DDP averages over ranks, so multiply by their number"
        return _name_parts(f"mean of {weighing.split.ranks} ranks' means", "rank", ranks, weighing, mend)
    if len(passes) > 1 and _are_alike(passes):
        if _are_counted_before_the_shift(passes):
            return SplitCause(
                "tokens counted before the shift",
                "each pass is weighed by its labels before the shift, while its loss is a mean over those "
                "after it",
                "count labels[:, 1:] != -100, which the loss is a mean of",
            )
        return _name_parts("mean of passes' means", "pass", passes, weighing, total)
    return None


class _Part(NamedTuple):
    """A rank's or a pass's samples: their weights, and the tokens after and before the labels' shift."""

    weights: list[float]
    tokens: list[int]


def _parts(weighing: Weighing, depth: int) -> list[_Part]:
    """Groups the samples by their owners: by rank (depth 1), or by rank and pass (2)."""
    tokens: dict[tuple[int, ...], list[list[int]]] = {}
    for rank, passes in enumerate(weighing.passes):
        for number, samples in enumerate(passes):
            tokens.setdefault((rank, number)[:depth], []).append(samples.tokens)
    weights: dict[tuple[int, ...], list[float]] = {}
    for weight, owner in zip(weighing.weights.tolist(), weighing.owners, strict=True):
        if owner is not None:
            weights.setdefault(owner[:depth], []).append(weight)
    return [
        _Part(
            part_weights,
            [sum(counts) for counts in zip(*tokens[part], strict=True)] if all(tokens[part]) else [0, 0],
        )
        for part, part_weights in weights.items()
    ]


def _are_alike(parts: list[_Part]) -> bool:
    return all(spread(part.weights) < 1.5 * ALIKE for part in parts)


def _are_counted_before_the_shift(parts: list[_Part]) -> bool:
    """Tells whether parts weigh as their tokens before the shift per token after it."""
    if not all(part.tokens[0] for part in parts):
        return False
    shifts = [part.tokens[1] / part.tokens[0] for part in parts]
    ratios = [float(np.mean(part.weights)) / shift for part, shift in zip(parts, shifts, strict=True)]
    return spread(ratios) < ALIKE <= spread(shifts)


def _name_parts(kind: str, unit: str, parts: list[_Part], weighing: Weighing, mend: str) -> SplitCause:
    """Describes parts with equally weighted samples; weights as 1/tokens are a mean of means."""
    many = len(weighing.passes) if unit == "rank" else sum(map(len, weighing.passes))
    means = [float(np.mean(part.weights)) for part in parts]
    for column in (0, 1):
        counts = [part.tokens[column] for part in parts]
        products = [mean * count for mean, count in zip(means, counts, strict=True)]
        if not all(counts) or spread(products) >= PROPORTIONAL:
            continue
        factor = float(np.mean(products)) * many / sum(counts)
        law = nearest_law(weighing.split, factor)
        also = f", and {factor:.3g} × all of it" + (f" ({law.name})" if law else "")
        text = (
            f"samples weigh as 1/tokens of their {unit}: a {kind}, not the mean over the step's tokens"
            f"{'' if isclose(factor, 1, rel_tol=PROPORTIONAL) else also}"
        )
        return SplitCause(kind, text, mend)
    text = (
        f"samples of a {unit} weigh alike, from {min(means):.3g} in one to {max(means):.3g} in another: each "
        f"{unit} has a mean of its own"
    )
    return SplitCause(kind, text, mend)


def _name_counts(weights: Vector) -> SplitCause:
    """Names repeated samples by whole weights, or unequal weights of no known cause."""
    whole = np.round(weights)
    if np.allclose(weights, whole, rtol=0, atol=ALIKE):
        return SplitCause(
            "repeated samples",
            f"{int((whole > 1).sum())} of {len(weights)} samples weigh {whole.max():.0f} times",
            "look for a backward pass that is done twice, or a gradient that is kept",
        )
    return SplitCause(
        "unequal weights",
        f"samples weigh from {weights.min():.3g} to {weights.max():.3g} of the mean over the batch, also "
        "within a pass",
        "look for weights of samples that depend on the pass, such as lengths or class counts",
    )
