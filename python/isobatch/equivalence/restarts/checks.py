"""Checks of one step after a restart: its samples, the restored weights and states, the learning rate."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from isobatch.equivalence.checks import EQUAL
from isobatch.equivalence.order import checks
from isobatch.equivalence.order.pair import Pair, Unlike, Unseen
from isobatch.equivalence.records import Event, Recording
from isobatch.equivalence.weights import distance
from isobatch.limits import within
from isobatch.words import counted, few

RESTORED = 1e-3
"""Distance of restored weights, relative to what the steps before the checkpoint changed."""
STATE = 1e-5
"""Relative distance of an optimizer's restored state."""


class Faulty(NamedTuple):
    """A fault with its own law; both values, where there are some.

    `may_be_drawn`: whether it may come from other random draws.
    """

    law: str
    text: str
    values: tuple[str, ...] = ()
    may_be_drawn: bool = False


Outcome = Faulty | Unlike | Unseen | None
States = dict[str, list[list[float | None]]]


def taken(run: Recording, event: Event) -> list[str]:
    """Lists the samples of a step over all ranks: hashes of the model's input, else dataset rows."""
    hashes = [sample for rank in run.steps[event].hashes for samples in rank for sample in samples]
    if hashes:
        return sorted(hashes)
    rows = run.rows(event, own=True) or []
    return sorted(str(row) for rank in rows for batch in rank for row in batch)


def epoch_starts(run: Recording) -> list[int]:
    """Lists the first steps of epochs, from 0: there a sample comes again."""
    starts, seen = [0], set[str]()
    for event in events_of(run):
        samples = {*taken(run, event)}
        if samples & seen:
            starts.append(event[1])
            seen = set()
        seen |= samples
    return starts


def compare_samples(pair: Pair, epochs: Sequence[int]) -> Outcome:
    """Compares the samples of a step; others are named by their step in the run without a stop."""
    whole, at = pair.run, pair.event[1]
    own, expected = taken(pair.second_run, pair.event), taken(whole, pair.event)
    if not own and not expected:
        return Unseen("neither a loader nor the model's input shows them")
    if own == expected:
        return None
    if whole.rows(pair.event, own=True) == pair.second_run.rows(pair.event, own=True) is not None:
        return None  # the same rows, with other random draws
    if len(own) != len(expected):
        values = (counted(len(expected), "sample"), counted(len(own), "sample"))
        return Faulty("another_batch", "the samples of a step", values)
    places = [event[1] for event in events_of(whole) if taken(whole, event) == own]
    epoch = max((start for start in epochs if start <= at), default=0)
    if places:
        place = min(places, key=lambda place: abs(place - at))
        if place == 0 and at == epoch:
            return Faulty(
                "resume_other_order",
                f"step {at}, the first of an epoch, takes the samples of the run's first step",
            )
        if place < at:
            law = "resume_epoch_anew" if place == epoch else "resume_repeated"
            first = ", the first of the epoch" if place == epoch else ""
            return Faulty(law, f"step {at} takes the samples of step {place}{first}")
        ending = ", the first of a later epoch" if place in epochs else ""
        return Faulty("resume_skipped", f"step {at} takes the samples of step {place}{ending}")
    steps = _steps_of(own, whole, at)
    if len(steps) == 2 and steps[1] - steps[0] == 1:
        law = "resume_repeated" if steps[0] < at else "resume_skipped"
        return Faulty(law, f"step {at} takes samples of steps {steps[0]} and {steps[1]}")
    known = {sample for event in events_of(whole) for sample in taken(whole, event)}
    return Faulty(
        "resume_other_order",
        f"step {at} takes samples of no step of the run without a stop "
        f"({len({*own} & known)} of {len(own)} came in another order)",
        may_be_drawn=True,
    )


def _steps_of(samples: Sequence[str], run: Recording, at: int) -> list[int]:
    """Lists the steps with some samples in a run, each the nearest to a step; none if one is unknown."""
    places: dict[str, int] = {}
    for event in sorted(events_of(run), key=lambda event: -abs(event[1] - at)):
        places |= dict.fromkeys(taken(run, event), event[1])
    return sorted({places[sample] for sample in samples}) if {*samples} <= places.keys() else []


def compare_weights(pair: Pair, step: int) -> Outcome:
    """Compares the weights with those before the same step, relative to their change until then."""
    own, whole = pair.steps[1].weights[0], pair.steps[0].weights[0]
    if own.shape != whole.shape:
        return checks.parameters(pair)
    start = pair.run.steps[pair.event[0], 0].weights[0]
    change = float(np.linalg.norm(whole - start))
    apart = float(np.linalg.norm(own - whole))
    if within(apart, RESTORED * change):
        return None
    if within(float(np.linalg.norm(own - start)), RESTORED * change):
        return Faulty("resume_weights", "they are those before the first step")
    for near in (step - 1, step + 1):
        event = pair.event[0], near
        if event in pair.run.steps and within(distance(own, pair.run.steps[event].weights[0]), 1e-7):
            return Faulty("resume_weights", f"they are those before step {near}, not before step {step}")
    share = apart / change if change else float("inf")
    precision = ": as half precision rounds" if within(distance(own, whole), 4e-3) else ""
    return Faulty(
        "resume_weights",
        f"they differ by {share:.2g} of what the steps before the checkpoint changed{precision}",
    )


def compare_state(pair: Pair) -> Outcome:
    """Compares the state of the optimizer, name by name."""
    if pair.details is None:
        return Unseen("the recorder kept no details")
    whole, own = (details.state for details in pair.details)
    if own and not whole:
        return Unseen("the run without a stop has none to compare with")
    return _compare_states("new_state", whole, own)  # plain SGD has none


def compare_beside(pair: Pair) -> Outcome:
    """Compares buffers, averaged weights and loss scales."""
    if pair.details is None:
        return Unseen("the recorder kept no details")
    return _compare_states("resume_beside", *(details.beside for details in pair.details))


def _compare_states(law: str, whole: States, own: States) -> Faulty | None:
    """Compares the sums and norms of states, name by name."""
    missing = sorted(whole.keys() - own.keys())
    if missing:
        return Faulty(law, f"there is no {few(missing)} before the first step")
    for name, rows in whole.items():
        values, others = (np.array(side, dtype=float)[:, 1] for side in (rows, own[name]))
        if values.shape != others.shape:
            return Faulty(law, f"{name} has {len(others)} tensors in the place of {len(values)}")
        signed = [np.array(side, dtype=float)[:, 0] for side in (rows, own[name])]
        scale = float(np.linalg.norm(values))
        if not within(float(np.linalg.norm(signed[1] - signed[0])), STATE * scale):
            if len(values) == 1 or name == "step":
                text = "the optimizer's count of steps" if name == "step" else f"{name} is another"
                return Faulty(law, text, (f"{values[0]:g}", f"{others[0]:g}"))
            norms = (f"norm {scale:.4g}", f"norm {float(np.linalg.norm(others)):.4g}")
            return Faulty(law, f"{name} is another", norms)
    return None


def compare_rates(pair: Pair) -> Outcome:
    """Compares the learning rate; another one is named by its step of the schedule."""
    outcome = checks.rates(pair)
    if not isinstance(outcome, Unlike):
        return outcome
    optimizer, at = pair.event
    own = pair.records[1].lrs
    text = outcome.text
    for place, words in (
        (0, "the schedule starts anew"),
        (at - 1, "a step behind"),
        (at + 1, "a step ahead"),
    ):
        step = pair.run.steps.get((optimizer, place))
        rates = [] if step is None or place == at else step.first.lrs
        if len(rates) == len(own) and all(
            within(a - b, EQUAL * abs(b)) for a, b in zip(rates, own, strict=True)
        ):
            text = f"{text}: {words}"
            break
    return Faulty("another_lr", text, outcome[:2])


def compare_random(pair: Pair) -> Unlike | None:
    """Compares the states of the random generators."""
    if pair.details is None:
        return None
    whole, own = (details.random for details in pair.details)
    names = [name for name in whole if own.get(name) != whole[name]]
    return Unlike("as saved", "others", f"the states of {few(names)}") if names else None


def draws_in_step(pair: Pair) -> bool:
    """Tells whether a step draws from a generator with another state: a loader draws once an epoch."""
    if pair.details is None:
        return False
    whole, own = (details.random for details in pair.details)
    near = [pair.run.steps.get((pair.event[0], pair.event[1] + by)) for by in (-1, 1)]
    beside = [step.first.details.random for step in near if step is not None and step.first.details]
    return any(
        own.get(name) != state and all(states.get(name) != state for states in beside)
        for name, state in whole.items()
    )


def events_of(run: Recording) -> list[Event]:
    """Lists the steps of the optimizer with the most."""
    optimizer = max({optimizer for optimizer, _ in run.steps}, key=lambda number: len(run.of(number)))
    return sorted(event for event in run.steps if event[0] == optimizer)
