"""The table of measurements behind "the same training", and its state after the runs."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from isobatch.equivalence.checks import check_finite
from isobatch.equivalence.compare import SplitResult
from isobatch.equivalence.laws import CLOCKS
from isobatch.equivalence.records import Event, Recording
from isobatch.equivalence.rounding import MOST, Rounding
from isobatch.limits import within
from isobatch.words import counted, few


class Requirement(NamedTuple):
    """A row of the table: the quantity, how it is measured, and the laws of its differences."""

    id: str
    measures: str
    how: str
    laws: frozenset[str]


REQUIRED = (
    Requirement(
        "repeat",
        "the command against itself",
        "one split is run twice: what differs then, a split may differ by",
        frozenset(),
    ),
    Requirement(
        "split",
        "ranks, passes and samples",
        "each run has those of its split, the reference too",
        frozenset({"ranks_alone", "same_data", "another_batch", "early_first_step"}),
    ),
    Requirement(
        "gradient",
        "the gradient of each step",
        "finite and not 0, alike on all ranks, and that of the reference",
        frozenset(),  # all others
    ),
    Requirement(
        "settings",
        "learning rate, weight decay, momentum, betas and eps",
        "of each parameter group, at each step",
        frozenset({"another_lr", *CLOCKS, "another_setting"}),
    ),
    Requirement(
        "update",
        "the change of the weights",
        "over all compared steps, within what the same split leaves when it is run twice",
        frozenset({"another_update"}),
    ),
)
"""The list that exit code 0 stands for."""
WITHOUT_GRADIENT = "not measured, for want of a gradient"


class Measured(msgspec.Struct, frozen=True):
    """The state of a requirement.

    Attributes:
        id: of its row in REQUIRED.
        measures: what is measured.
        how: it is measured.
        holds: None where it could not be measured.
        text: why it does not hold, or could not be measured; else empty.
    """

    id: str
    measures: str
    how: str
    holds: bool | None
    text: str = ""


def measure(
    runs: Sequence[Recording], reference: Recording, results: Sequence[SplitResult], noise: Rounding
) -> list[Measured]:
    """Tells of each requirement whether it was measured, and whether it holds.

    Args:
        runs: all runs that are compared, the reference among them.
        reference: that the others are compared with.
        results: of the other runs.
        noise: of a split that was run twice.
    """
    gradient = _without_gradient(reference)
    missing = {
        "repeat": WITHOUT_GRADIENT if gradient else _noisy(noise),
        "split": _unfollowed(runs),
        "gradient": gradient,
        "update": WITHOUT_GRADIENT if gradient else _without_update(reference, results),
    }
    others = frozenset().union(*(row.laws for row in REQUIRED))
    states = []
    for row in REQUIRED:
        broken = {
            cause.name: None
            for result in results
            for cause in result.causes
            if (cause.id in row.laws if row.id != "gradient" else cause.id not in others)
        }
        reason = missing.get(row.id) or ""
        holds = None if reason else not broken
        states.append(Measured(row.id, row.measures, row.how, holds, reason or ", ".join(broken)))
    return states


def verdict(
    measured: Sequence[Measured],
    reference: Recording,
    results: Sequence[SplitResult],
    *,
    whole_question: bool,
) -> bool | None:
    """Returns whether a training is the same; None where too little was measured to say so.

    A difference is one whatever else is missing, but for the noise and the reference's own gradient and
    samples, without which no difference means anything. `whole_question`: each split that was asked for was
    compared.
    """
    state = {row.id: row.holds for row in measured}
    if state["repeat"] is None or state["gradient"] is None:
        return None
    if state["split"] is None and not _has_its_samples(reference):
        return None
    if not all(result.same for result in results):
        return False
    return True if results and whole_question and None not in state.values() else None


def _noisy(noise: Rounding) -> str:
    distance = noise.gradients[0] if noise.gradients else float("inf")
    if within(distance, MOST):
        return ""
    return (
        f"two runs of one split differ by {distance:.2g}: no split can be told from it. Seed what the script "
        "draws (its data, its weights), so that two runs are the same"
    )


def _unfollowed(runs: Sequence[Recording]) -> str:
    """Compares the passes and their rows with the requested split.

    A pass of a script may take two rows for a sample (a pair of answers), or a step two passes for one: they
    must be as many times the split's in each run.
    """
    shapes = {str(run.split): run.shape(next(iter(run.steps))) for run in runs}
    passes = {len(rank) / run.split.accumulation for run in runs for rank in shapes[str(run.split)]}
    rows = {
        count / run.split.micro_batch for run in runs for rank in shapes[str(run.split)] for count in rank
    }
    if rows == {0}:
        return "the samples of a pass are not seen: neither a torch DataLoader nor the model's input has rows"
    if len(passes) == 1 and len(rows) == 1:
        return ""
    texts = {split: _shape_text(shape) for split, shape in shapes.items()}
    if len({*texts.values()}) == 1:
        seen = f"{next(iter(texts.values()))} at each split"
    else:
        seen = few([f"{split} ran {text}" for split, text in texts.items()])
    return f"the command does not follow the micro-batch and the accumulation it was given: {seen}"


def _has_its_samples(reference: Recording) -> bool:
    """Tells whether a run has the passes of its split and their rows, or as many times each."""
    shape = reference.shape(next(iter(reference.steps)))
    return all(
        len(rank) % reference.split.accumulation == 0
        and all(rows and rows % reference.split.micro_batch == 0 for rows in rank)
        for rank in shape
    )


def _shape_text(shape: Sequence[Sequence[int]]) -> str:
    passes = sorted({len(rank) for rank in shape})
    rows = sorted({count for rank in shape for count in rank})
    many = " or ".join(map(str, passes))
    return f"{many} pass{'es' if passes != [1] else ''} of {' or '.join(map(str, rows))} rows"


def _without_gradient(reference: Recording) -> str:
    for event in reference.steps:
        for cause in check_finite(reference, event):
            return f"{cause.text}, at one pass over the batch ({reference.split})"
    empty = [event for event in _trained(reference) if not reference.steps[event].gradients.any()]
    if empty:
        return f"no gradient at step {empty[0][1]}: all of its entries are 0, and nothing was compared"
    return ""


def _trained(reference: Recording) -> Iterator[Event]:
    """Yields the steps of optimizers with parameters."""
    for event, step in reference.steps.items():
        if step.first.columns.any():
            yield event


def _without_update(reference: Recording, results: Sequence[SplitResult]) -> str:
    updates = [reference.update(optimizer) for optimizer in {optimizer for optimizer, _ in reference.steps}]
    if any(update is None for update in updates):
        return "the last optimizer step was not seen to end: the weights after it are not known"
    if not any(np.any(update) for update in updates if update is not None):
        steps = list(reference.steps.values())
        if not any(rate for step in steps for rate in step.first.lrs):
            return (
                f"the learning rate is 0 at each of {counted(len(steps), 'step')}, so that no weight "
                "changes: does the script continue from a checkpoint, or a finished run? Move it away, or "
                "compare more --steps of a warmup"
            )
        return "no weight changed in the compared steps"
    if any(result.same and result.update is None for result in results):
        return "the last optimizer step of a split was not seen to end: the weights after it are not known"
    return ""
