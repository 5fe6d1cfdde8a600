"""Compares two runs of one command in the order of a training, up to the first difference."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np

from isobatch.equivalence.evidence import Measured
from isobatch.equivalence.order import checks, inputs
from isobatch.equivalence.order.pair import Pair, Unlike, Unseen
from isobatch.equivalence.records import Recording
from isobatch.equivalence.rounding import EXACT, MOST, SHAKE, TIMES, Rounding
from isobatch.equivalence.weights import distance
from isobatch.limits import within

_SAME_DATA = "the same data first: set what loads and orders it as the other side does"


class OrderRow(NamedTuple):
    """A row of the order: the quantity, how it is compared, what to do about a difference, and its check."""

    id: str
    measures: str
    how: str
    remedy: str
    check: Callable[[Pair], Unlike | Unseen | None]


ORDER = (
    OrderRow(
        "rows",
        "dataset rows",
        "the dataset's length; rows of each pass, as drawn; passes and rows of a step",
        f"{_SAME_DATA}: batch, accumulation, seed, sampler, filters, packing",
        inputs.rows,
    ),
    OrderRow(
        "tokens",
        "tokens",
        "of each row, padding apart",
        "look at the tokenizer, the chat template, truncation and packing",
        inputs.tokens,
    ),
    OrderRow(
        "labels",
        "labels",
        "of each row: values, and how many count",
        "look at what masks labels: the collator, completion_only_loss, padding",
        inputs.labels,
    ),
    OrderRow(
        "mask",
        "attention mask and positions",
        "of each row; a mask of ones is none",
        "give attention_mask and position_ids as the other side does",
        inputs.mask,
    ),
    OrderRow(
        "inputs",
        "other inputs",
        "of each pass: shape, dtype and values",
        "look at the processor, and what the collator adds",
        inputs.inputs,
    ),
    OrderRow(
        "parameters",
        "parameters",
        "names, shapes, and whether they are trained",
        "set what is trained and tied as the other side has it",
        checks.parameters,
    ),
    OrderRow(
        "weights",
        "first weights",
        "of each tensor before the first step",
        "load the same weights in both, or set how they are initialized",
        checks.weights,
    ),
    OrderRow(
        "dtype",
        "dtype",
        "of each tensor",
        "name it: dtype=torch.float32 where the model is loaded",
        checks.dtypes,
    ),
    OrderRow(
        "precision",
        "precision and dropout",
        "autocast, bf16, fp16; probabilities of dropout",
        "name them in the arguments and in the model's configuration",
        checks.precision,
    ),
    OrderRow(
        "rate",
        "learning rate",
        "of each parameter group",
        "name the learning rate, its schedule, warmup and length",
        checks.rates,
    ),
    OrderRow(
        "groups",
        "optimizer and groups",
        "its kind; weight decay, momentum, betas and eps of each tensor",
        "name the optimizer and its settings",
        checks.groups,
    ),
    OrderRow(
        "loss",
        "loss",
        "of each pass, as it is differentiated",
        "the same weights have another loss: look at its type, scale, attention, and at inputs not compared",
        checks.losses,
    ),
    OrderRow(
        "gradient",
        "gradient",
        "that the optimizer applies, over all ranks and passes",
        "the same losses have another gradient: look at accumulation, averaging over ranks, detached parts",
        checks.gradient,
    ),
    OrderRow(
        "clip",
        "clipping",
        "how often, to which norm",
        "name max_grad_norm",
        checks.clipping,
    ),
    OrderRow(
        "update",
        "update",
        "the change of the weights by the step",
        "the same gradient and settings move the weights otherwise: look at the optimizer's implementation",
        checks.update,
    ),
)
"""The order that exit code 0 stands for."""
ESSENTIAL = ("tokens", "weights", "rate", "loss", "gradient", "update")


class OrderedRow(Measured, frozen=True, kw_only=True):
    """The state of a row after the runs.

    Attributes:
        step: the first one that differs, from 0; None without one.
        values: of both sides, in words, where they differ.
        remedy: what to do about a difference.
    """

    step: int | None = None
    values: list[str] = []
    remedy: str = ""


class OrderedComparison(msgspec.Struct, frozen=True):
    """Two runs side by side: the rows of the order, and settings of their objects that differ."""

    rows: list[OrderedRow]
    settings: dict[str, list[Any]]
    steps: int

    @property
    def first(self) -> OrderedRow | None:
        """The first difference; None without one."""
        return next((row for row in self.rows if row.holds is False), None)

    @property
    def same(self) -> bool | None:
        """Whether nothing differs; None where too little was seen to say so."""
        if self.first is not None:
            return False
        states = {row.id: row.holds for row in self.rows}
        seen = {**states, "tokens": states["tokens"] or states["inputs"]}
        return True if all(seen[name] for name in ("repeat", *ESSENTIAL)) else None


def compare_in_order(reference: Recording, second: Recording, repeat: Recording) -> OrderedComparison:
    """Compares each step of two runs row by row, up to the first difference.

    `repeat` is the reference once more, with noise of the size of rounding: what differs there may differ.
    """
    rounding = Rounding.between(reference, repeat)
    events = sorted(reference.steps, key=lambda event: (event[1], event[0]))
    states: dict[str, OrderedRow] = {}
    steps, grown = 0, 1.0
    for event in events:
        pair = Pair(reference, second, event, _tolerances(reference, repeat, event, rounding, grown))
        if event not in second.steps:
            text = f"the other side takes no step {event[1]} of optimizer {event[0]}"
            states["rows"] = OrderedRow(
                *ORDER[0][:3], False, text, step=event[1], values=["a step", "none"], remedy=ORDER[0].remedy
            )
            break
        for row in ORDER:
            outcome = row.check(pair)
            before = states.get(row.id)
            if isinstance(outcome, Unseen):
                states.setdefault(row.id, OrderedRow(*row[:3], None, outcome.reason))
            elif outcome is None:
                if before is None or before.holds is None:
                    states[row.id] = OrderedRow(*row[:3], True)
            else:
                values = [outcome.reference, outcome.second]
                states[row.id] = OrderedRow(
                    *row[:3], False, outcome.text, step=event[1], values=values, remedy=row.remedy
                )
                break
        if any(state.holds is False for state in states.values()):
            break
        if event[1] == 0:
            grown = max(grown, pair.gradient_distance() / (rounding.exact * SHAKE / EXACT))
        steps = max(steps, event[1] + 1)
    rows = [_repeat_row(rounding, reference)]
    rows += [
        states.get(row.id, OrderedRow(*row[:3], None, "it comes after the first difference")) for row in ORDER
    ]
    return OrderedComparison(rows, other_settings(reference, second), steps)


def _tolerances(
    reference: Recording, repeat: Recording, event: tuple[int, int], rounding: Rounding, grown: float
) -> tuple[float, float]:
    """Returns the rounding of a step's gradient and update, as relative distances."""
    step, again = reference.steps[event], repeat.steps.get(event)
    if again is None or again.gradients.shape != step.gradients.shape:
        return rounding.exact, TIMES * rounding.exact
    noise = distance(again.gradients.mean(0), step.gradients.mean(0)) if event[1] else 0.0
    moved = 0.0
    if step.after is not None and again.after is not None:
        moved = distance(again.after[0] - again.weights[0], step.after[0] - step.weights[0])
    return (
        max(rounding.exact, TIMES * noise * grown),
        max(TIMES * rounding.exact, TIMES * moved * grown),
    )


def _repeat_row(rounding: Rounding, reference: Recording) -> OrderedRow:
    """Makes the row of the command against itself."""
    names = ("repeat", "the command against itself", "one side is run twice: what differs then, may differ")
    noise = rounding.gradients[0] if rounding.gradients else float("inf")
    if not within(noise, MOST):
        text = (
            f"two starts of one side differ by {noise:.2g}: seed what the script draws (its data, its "
            "weights), so that two runs are the same"
        )
        return OrderedRow(*names, None, text)
    step = next(iter(reference.steps.values()))
    if not np.isfinite(step.gradients).all() or not step.gradients.any():
        return OrderedRow(*names, None, "the first step has no gradient, or none that is finite")
    return OrderedRow(*names, True)


_PLACES = (
    "output_dir",
    "logging_dir",
    "run_name",
    "transformers_version",
    "name_or_path",
    "token",
    "version",
)


def other_settings(reference: Recording, second: Recording) -> dict[str, list[Any]]:
    """Lists settings with another value on both sides, each with both; None: it has none."""
    sides = [_settings(run) for run in (reference, second)]
    return {
        name: [sides[0].get(name), sides[1].get(name)]
        for name in dict.fromkeys([*sides[0], *sides[1]])
        if sides[0].get(name) != sides[1].get(name)
        and not any(sides[0].get(name) in empty and sides[1].get(name) in empty for empty in _EMPTY)
        and not name.rpartition(".")[2].endswith(_PLACES)
    }


_EMPTY: Sequence[Sequence[Any]] = ((None, False, "None", "", "[]"),)


def _settings(run: Recording) -> dict[str, Any]:
    details = [step.first.details for step in run.steps.values()]
    return next((entry.settings for entry in details if entry is not None and entry.settings), {})
