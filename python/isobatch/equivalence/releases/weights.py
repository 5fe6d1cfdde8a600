"""The weight of each sample with both releases, where their losses or gradients differ.

The present environment runs the step's samples once more, one by one and all in one pass: as for two splits,
the weights of the samples in either side's gradient follow.
"""

from typing import NamedTuple

import msgspec

from isobatch.equivalence.commands.command import read_command
from isobatch.equivalence.commands.environments import Environment
from isobatch.equivalence.commands.runs import SplitRun
from isobatch.equivalence.commands.starts import OrderedRuns
from isobatch.equivalence.compare import UNJUDGED, Comparison, SplitResult
from isobatch.equivalence.laws import SplitCause, advise
from isobatch.equivalence.order.comparison import OrderedComparison, OrderedRow
from isobatch.equivalence.order.pair import short_names
from isobatch.equivalence.records import Recording
from isobatch.equivalence.result import weights_text
from isobatch.equivalence.rounding import EXACT, HALF, Rounding
from isobatch.equivalence.split import MAX_SAMPLES, Split
from isobatch.errors import InputError

WEIGHED = ("loss", "gradient")
"""Rows with differences for weights to explain."""
_NAMES = ("samples", "weight of each sample", "in the gradient, beside one pass over the batch")


class Sides(NamedTuple):
    """Both recordings with their names."""

    reference: Recording
    second: Recording
    labels: list[str]


class Weighed(NamedTuple):
    """The row of the weights, and the laws of either side's where they are not all 1."""

    row: OrderedRow
    causes: list[SplitCause]


def weigh_samples(
    runs: OrderedRuns, environment: Environment, comparison: OrderedComparison, sides: Sides
) -> Weighed:
    """Solves for the weight of each sample on both sides.

    Args:
        runs: starts of the command.
        environment: of the reference.
        comparison: of both sides; without a difference of loss or gradient nothing is started.
        sides: of the comparison.
    """
    gradient = next(row for row in comparison.rows if row.id == "gradient")
    first = comparison.first
    if first is None or first.id not in WEIGHED:
        reason = "" if gradient.holds else "it comes after the first difference"
        return Weighed(OrderedRow(*_NAMES, gradient.holds, reason), [])
    try:
        results = _weigh(runs, environment, sides)
    except (InputError, _NotWeighedError) as error:
        return Weighed(OrderedRow(*_NAMES, None, str(error).partition("\n")[0]), [])
    values = [weights_text(result.weights) for result in results]
    causes = [
        advise(
            msgspec.structs.replace(cause, text=f"with {label}: {cause.text}"),
            side.last.first.trainer,
        )
        for result, label, side in zip(results, sides.labels, sides[:2], strict=True)
        for cause in result.causes
        if cause.id not in UNJUDGED
    ]
    same = values[0] == values[1]
    text = "" if same else "the weights of the samples in the gradient"
    return Weighed(OrderedRow(*_NAMES, same, text, step=0, values=[] if same else values), causes)


class _NotWeighedError(Exception):
    """The weights cannot be known, for a reason."""


def _weigh(runs: OrderedRuns, environment: Environment, sides: Sides) -> list[SplitResult]:
    """Runs the samples one by one and in one pass, and compares both sides with the latter."""
    reference, second = sides.reference, sides.second
    event = next(iter(reference.steps))
    batch = reference.samples(event)
    if not 1 < batch <= MAX_SAMPLES:
        raise _NotWeighedError(
            f"a step has {batch} samples, and at most {MAX_SAMPLES} are asked one by one: give a --split"
        )
    names = [short_names(side.steps[event].first) for side in (reference, second)]
    if names[0] != names[1]:
        raise _NotWeighedError("both sides have the tensors in another order")
    if runs.typed.command is None:
        command = read_command(runs.typed.words)
        runs.typed = msgspec.structs.replace(runs.typed, command=command)
        runs.settings = msgspec.structs.replace(runs.settings, sets=command.sets)
        runs.look(environment)
    fixed, loader = None, reference.training_loader()
    if loader is not None and (rows := reference.drawn_steps()):
        fixed = {"loader": loader.name, "ranks": [[row for step in rows for row in step]]}

    def run(split: Split, name: str) -> Recording:
        started: SplitRun = runs.at(split).start(environment, name, rows=fixed, steps=1)
        recording = started.recording
        if recording is None or recording.samples(event) != batch:
            raise _NotWeighedError(f"the command does not follow the split {split}")
        return msgspec.structs.replace(recording, split=split)

    single, whole = run(Split(1, batch, 1), "single"), run(Split(1, 1, batch), "whole")
    exact = HALF if reference.last.first.half else EXACT
    comparison = Comparison(whole, single, Rounding(exact=exact, gradients=[0.0], updates={}))
    results = [comparison.compare_step(side, event, 0.0) for side in (reference, second)]
    if not all(result.weights for result in results):
        raise _NotWeighedError("no weights of the samples explain the gradient of one side")
    return results
