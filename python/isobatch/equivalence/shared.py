"""Compares all splits, and names one cause for them: one split alone may not tell a factor or a clock."""

from collections.abc import Sequence

import msgspec
import numpy as np

from isobatch.equivalence.causes import ALIKE, factor_text, name_factors
from isobatch.equivalence.compare import Comparison, SplitResult
from isobatch.equivalence.laws import CLOCKS, SCALES, advise, break_of
from isobatch.equivalence.records import Recording
from isobatch.equivalence.rounding import Rounding
from isobatch.equivalence.split import Split
from isobatch.equivalence.weights import spread
from isobatch.limits import within


def compare_splits(
    reference: Recording, single: Recording | None, noise: Rounding, recordings: Sequence[Recording]
) -> tuple[Comparison, list[SplitResult]]:
    """Compares runs of splits, and names one cause for those of one factor.

    Passes of two samples explain themselves, whatever acts in them: where `single` has pairs, it says nothing
    if they do not explain every split.
    """
    comparison = Comparison(reference, single, noise)
    results = share_factor([comparison.compare(recording) for recording in recordings])
    has_pairs = single is not None and single.split.micro_batch > 1
    if has_pairs and any(result.causes and not result.weights for result in results):
        return compare_splits(reference, None, noise, recordings)
    return comparison, results


def share_factor(results: Sequence[SplitResult]) -> list[SplitResult]:
    """Names one cause for all splits with equally weighted samples: their factors leave one law."""
    factors = {
        Split.parse(result.split): float(np.mean(result.weights))
        for result in results
        if result.step == 0 and result.weights and within(spread(result.weights), ALIKE)
    }
    cause = name_factors(factors)
    shared = []
    for result in results:
        factor = factors.get(Split.parse(result.split))
        further = [old for old in result.causes if old.id not in SCALES]
        if cause is not None and factor is not None and len(further) < len(result.causes):
            text = f"{factor_text(factor)}: {cause.text.rpartition(': ')[2]}"
            further = [msgspec.structs.replace(cause, text=text), *further]
            result = msgspec.structs.replace(result, causes=further)
        shared.append(result)
    return shared


def share_clock(results: Sequence[SplitResult]) -> list[SplitResult]:
    """Names one cause for a schedule of two clocks: passes at one split, processes at another.

    A split of as many passes as ranks tells neither from the other, and one whose schedule is over may tell
    none: they take the cause of the others.
    """
    telling = [result for result in results if _tells_clocks(result)]
    laws = {cause.id for result in telling for cause in result.causes if cause.id in CLOCKS}
    if not laws:
        return list(results)
    law = laws.pop() if len(laws) == 1 else "scheduler_per_both"
    return [
        msgspec.structs.replace(
            result,
            causes=[
                break_of(law, cause.text)
                if cause.id in CLOCKS or (cause.id == "another_lr" and _has_clock(result, law))
                else cause
                for cause in result.causes
            ],
        )
        for result in results
    ]


def _has_clock(result: SplitResult, law: str) -> bool:
    """Tells whether a split has several ranks or passes for a law to count."""
    split = Split.parse(result.split)
    ranks, passes = law != "scheduler_per_micro_batch", law != "scheduler_per_process"
    return (ranks and split.ranks > 1) or (passes and split.accumulation > 1)


def _tells_clocks(result: SplitResult) -> bool:
    split = Split.parse(result.split)
    return split.ranks != split.accumulation


def advised(results: Sequence[SplitResult], trainer: str) -> list[SplitResult]:
    """Gives a trainer's users its remedies, once all causes have their names."""
    return [
        msgspec.structs.replace(result, causes=[advise(cause, trainer) for cause in result.causes])
        for result in results
    ]
