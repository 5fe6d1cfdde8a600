"""Names the broken law by the weights of a step's samples."""

from collections.abc import Mapping
from math import isclose
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from isobatch.equivalence.laws import SCALES, Cause, Diagnosis, Scale, SplitCause, break_of, either
from isobatch.equivalence.records import PassSamples, Vector
from isobatch.equivalence.split import Split
from isobatch.equivalence.weights import spread
from isobatch.limits import within

ALIKE = 2e-3
"""Weights that differ by less are alike: what float32 leaves of least squares."""
PROPORTIONAL = 1e-2
_PLURALS = {"rank": "ranks", "pass": "passes"}


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
    if within(np.abs(weights - 1).max(), ALIKE):
        return None
    if within(spread(weights.tolist()), ALIKE):
        return _name_factor(float(weights.mean()), weighing)
    lost = sum(within(weight, ALIKE) for weight in weights.tolist())
    if lost:
        if (passes := _lost_passes(weighing)) is not None:
            return passes
        return break_of(
            "lost_samples",
            f"{lost} of {len(weights)} samples have weight 0: they are read but do not reach the gradient",
        )
    return _name_means(weighing) or _name_counts(weights)


def _lost_passes(weighing: Weighing) -> SplitCause | None:
    """Names passes without any weight, where no other sample is lost."""
    by_pass: dict[tuple[int, int], list[float]] = {}
    for owner, weight in zip(weighing.owners, weighing.weights.tolist(), strict=True):
        if owner is None:
            return None
        by_pass.setdefault(owner, []).append(weight)
    if len(by_pass) < 2:
        return None
    lost = [owner for owner, weights in by_pass.items() if all(within(weight, ALIKE) for weight in weights)]
    others = [weight for owner, weights in by_pass.items() if owner not in lost for weight in weights]
    if not lost or any(within(weight, ALIKE) for weight in others):
        return None
    numbers = sorted({number + 1 for _, number in lost})
    few_passes = f"pass{'es' if len(numbers) > 1 else ''} {', '.join(map(str, numbers))}"
    return break_of(
        "lost_passes",
        f"the samples of {few_passes} of {weighing.split.accumulation} have weight 0, the others from "
        f"{min(others):.3g} to {max(others):.3g}: their gradient does not reach the update",
    )


def _name_factor(factor: float, weighing: Weighing) -> SplitCause:
    split = weighing.split
    passes = max(map(len, weighing.passes), default=split.accumulation)
    if passes < split.accumulation and isclose(factor, passes / split.accumulation, rel_tol=ALIKE):
        return break_of(
            "short_window",
            f"{factor_text(factor)}: a step of {passes} passes is divided by the accumulation of "
            f"{split.accumulation}",
        )
    return name_factors({split: factor}) or break_of(
        "gradient_factor", f"{factor_text(factor)}, the same for every sample"
    )


def name_factors(factors: Mapping[Split, float]) -> SplitCause | None:
    """Names the law of ranks and accumulation for the factors of all splits, or None.

    >>> name_factors({Split(2, 2, 2): 0.25, Split(1, 4, 2): 0.25}).name
    'summed loss'
    >>> name_factors({Split(1, 4, 2): 0.25}).text.partition(": ")[2]
    '1/accumulation, or summed loss (these splits cannot tell which)'
    """
    fitting = [
        law
        for law, scale in (SCALES.items() if factors else ())
        if all(isclose(factor, scale.size(split), rel_tol=ALIKE) for split, factor in factors.items())
    ]
    if not fitting or all(SCALES[fitting[0]].size(split) == 1 for split in factors):
        return None
    law, *others = (law for law in fitting if SCALES[law].faults <= SCALES[fitting[0]].faults)
    text = f"{factor_text(max(factors.values(), key=lambda factor: abs(factor - 1)))}: {SCALES[law].text}"
    if others:
        text += f", or {', or '.join(law.text for law in others)} (these splits cannot tell which)"
    cause = break_of(law, text)
    remedies = dict.fromkeys(candidate.advice for candidate in (law, *others))
    return msgspec.structs.replace(cause, remedy="; or ".join(remedies))


def nearest_scale(split: Split, factor: float) -> Scale | None:
    """Returns the law for the factor of some tensors at a split, or None."""
    for scale in SCALES.values():
        if scale.size(split) != 1 and isclose(factor, scale.size(split), rel_tol=PROPORTIONAL):
            return scale
    return None


class Share(NamedTuple):
    """A step's division: what a factor of the gradient may consist of."""

    ranks: int
    accumulation: int
    micro_batch: float

    def size(self, causes: tuple[Cause, ...]) -> float:
        """Returns the factor of several faults together, beside the mean over the step."""
        return float(np.prod([SCALES[cause].times(*self) for cause in causes]))


_TOGETHER = [
    *((cause,) for cause in SCALES),
    *((Cause.SUMMED_LOSS, cause) for cause, scale in SCALES.items() if not scale.micro_batch),
]


def explain_factor(ratio: float, share: Share, tolerance: float = 0.02) -> Diagnosis | None:
    """Explains a gradient `ratio` times too large, its direction being right; None if no law does.

    DDP averages over ranks, so a faulty gradient is not multiplied by the effective batch. The fewest faults
    explain best; where numbers coincide, all fitting causes are named.

    >>> explain_factor(4.0, Share(ranks=2, accumulation=4, micro_batch=8)).text
    '× accumulation (4×)'
    """
    fitting = [
        (sum(SCALES[cause].faults for cause in causes), causes)
        for causes in _TOGETHER
        if (size := share.size(causes)) != 1 and within(ratio / size - 1, tolerance)
    ]
    fewest = [causes for faults, causes in fitting if faults == min(fitting)[0]]
    if not fewest:
        return None
    words = ", or ".join(" and ".join(cause.text for cause in causes) for causes in fewest)
    return Diagnosis(
        causes=tuple(dict.fromkeys(cause for causes in fewest for cause in causes)),
        text=f"{words} ({ratio:.4g}×)",
    )


def explain_trainer(
    ratio: float, multiplied: float, share: Share, tolerance: float = 0.02
) -> Diagnosis | None:
    """Explains a gradient `ratio` times too large under transformers' Trainer.

    `multiplied`: its factor, where the model's loss ignores the labels of a step; 1 where a loss of the
    script's own may ignore them, which is not multiplied by the processes.
    """
    trainer, why = Cause.TRAINER_MULTIPLIES.likely(f"{ratio:.4g}×"), explain_factor(ratio, share, tolerance)
    ranks, accumulation = share.ranks, share.accumulation

    def is_factor(factor: float) -> bool:
        return factor != 1 and within(ratio / factor - 1, tolerance)

    if multiplied == 1:
        if min(ranks, accumulation) > 1 and is_factor(ranks * accumulation):
            return trainer
        return either(why, trainer) if why is not None and is_factor(accumulation) else why
    if is_factor(multiplied) or is_factor(accumulation):
        return trainer
    rest = ratio / multiplied
    beside = explain_factor(rest, share, tolerance) or Cause.GRADIENT_FACTOR.likely(f"{rest:.4g}×")
    text = f"{Cause.TRAINER_MULTIPLIES.likely(f'{multiplied:.4g}×').text}, and {beside.text}"
    return Diagnosis(causes=(Cause.TRAINER_MULTIPLIES, *beside.causes), text=text)


def factor_text(factor: float) -> str:
    """Says how large the gradient is."""
    return f"the gradient is {factor:.4g} × that of one pass over the batch"


def _name_means(weighing: Weighing) -> SplitCause | None:
    """Names a mean of the ranks' or the passes' means: a part's samples weigh alike, by its tokens."""
    if None in weighing.owners:
        return None
    ranks, passes = _parts(weighing, 1), _parts(weighing, 2)
    if len(ranks) > 1 and _are_alike(ranks):
        return _name_parts("ranks_own_units", "rank", ranks, weighing)
    if len(passes) > 1 and _are_alike(passes):
        if _are_counted_before_the_shift(passes):
            return break_of(
                "before_the_shift",
                "each pass is weighed by its labels before the shift, while its loss is a mean over those "
                "after it",
            )
        return _name_parts("own_units", "pass", passes, weighing)
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
    return all(within(spread(part.weights), 1.5 * ALIKE) for part in parts)


def _are_counted_before_the_shift(parts: list[_Part]) -> bool:
    """Tells whether parts weigh as their tokens before the shift per token after it."""
    if not all(part.tokens[0] for part in parts):
        return False
    shifts = [part.tokens[1] / part.tokens[0] for part in parts]
    ratios = [float(np.mean(part.weights)) / shift for part, shift in zip(parts, shifts, strict=True)]
    return within(spread(ratios), ALIKE) and not within(spread(shifts), ALIKE)


def _name_parts(law: str, unit: str, parts: list[_Part], weighing: Weighing) -> SplitCause:
    """Describes parts with equally weighted samples; weights as 1/tokens are a mean of means."""
    many = len(weighing.passes) if unit == "rank" else sum(map(len, weighing.passes))
    means = [float(np.mean(part.weights)) for part in parts]
    for column in (0, 1):
        counts = [part.tokens[column] for part in parts]
        products = [mean * count for mean, count in zip(means, counts, strict=True)]
        if not all(counts) or not within(spread(products), PROPORTIONAL):
            continue
        factor = float(np.mean(products)) * many / sum(counts)
        scale = nearest_scale(weighing.split, factor)
        also = f", and {factor:.3g} × all of it" + (f" ({scale.text})" if scale else "")
        return break_of(
            law,
            f"samples weigh as 1/tokens of their {unit}: a mean of {many} {_PLURALS[unit]}' means, not the "
            f"mean over the step's tokens{'' if isclose(factor, 1, rel_tol=PROPORTIONAL) else also}",
        )
    return break_of(
        law,
        f"samples of a {unit} weigh alike, from {min(means):.3g} in one to {max(means):.3g} in another: each "
        f"{unit} has a mean of its own",
    )


def _name_counts(weights: Vector) -> SplitCause:
    """Names repeated samples by whole weights, or unequal weights of no known cause."""
    whole = np.round(weights)
    if np.allclose(weights, whole, rtol=0, atol=ALIKE):
        return break_of(
            "repeated_samples",
            f"{int((whole > 1).sum())} of {len(weights)} samples weigh {whole.max():.0f} times",
        )
    return break_of(
        "unequal_weights",
        f"samples weigh from {weights.min():.3g} to {weights.max():.3g} of the mean over the batch, also "
        "within a pass",
    )
