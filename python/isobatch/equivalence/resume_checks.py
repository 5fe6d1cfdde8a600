"""Checks of one step after a restart: its samples, the restored weights and states, the learning rate."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from isobatch.equivalence import order_checks
from isobatch.equivalence.checks import EQUAL
from isobatch.equivalence.order_pair import Pair, Unlike, Unseen
from isobatch.equivalence.records import Event, Recording
from isobatch.equivalence.weights import distance
from isobatch.limits import within
from isobatch.words import counted, few

RESTORED = 1e-3
"""Distance of restored weights, relative to what the steps before the checkpoint changed."""
STATE = 1e-5
"""Relative distance of an optimizer's restored state."""


class Faulty(NamedTuple):
    """A fault with its own law; both values, where there are some."""

    law: str
    text: str
    values: tuple[str, ...] = ()


Outcome = Faulty | Unlike | Unseen | None


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
    whole, (optimizer, at) = pair.run, pair.event
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
    known = {sample for event in events_of(whole) for sample in taken(whole, event)}
    beside = {
        sample for event in events_of(whole) if abs(event[1] - at) <= 1 for sample in taken(whole, event)
    }
    shared = len({*own} & {*expected})
    if shared and {*own} <= beside:
        law = "resume_repeated" if {*own} & {*_near(whole, (optimizer, at - 1))} else "resume_skipped"
        return Faulty(
            law, f"step {at} takes {shared} of its {len(own)} samples, and others of the step beside it"
        )
    share = len({*own} & known)
    return Faulty(
        "resume_other_order",
        f"step {at} takes samples of no step of the run without a stop "
        f"({share} of {len(own)} came in another order)",
    )


def _near(run: Recording, event: Event) -> list[str]:
    return taken(run, event) if event in run.steps else []


def compare_weights(pair: Pair, step: int) -> Outcome:
    """Compares the weights with those before the same step, relative to their change until then."""
    own, whole = pair.steps[1].weights[0], pair.steps[0].weights[0]
    if own.shape != whole.shape:
        return order_checks.parameters(pair)
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
    if not whole and not own:
        return None  # plain SGD has none
    missing = sorted(whole.keys() - own.keys())
    if missing:
        return Faulty("new_state", f"there is no {few(missing)} before the first step")
    if not whole:
        return Unseen("the run without a stop has none to compare with")
    for name, rows in whole.items():
        values, others = (np.array(side, dtype=float)[:, 1] for side in (rows, own[name]))
        if values.shape != others.shape:
            return Faulty("new_state", f"{name} has {len(others)} tensors in the place of {len(values)}")
        signed = [np.array(side, dtype=float)[:, 0] for side in (rows, own[name])]
        scale = float(np.linalg.norm(values))
        if not within(float(np.linalg.norm(signed[1] - signed[0])), STATE * scale):
            if name == "step":
                text = "the optimizer's count of steps"
                return Faulty("new_state", text, (f"{abs(signed[0][0]):g}", f"{abs(signed[1][0]):g}"))
            norms = (f"norm {scale:.4g}", f"norm {float(np.linalg.norm(others)):.4g}")
            return Faulty("new_state", f"{name} is another", norms)
    return None


def compare_rates(pair: Pair) -> Outcome:
    """Compares the learning rate; another one is named by its step of the schedule."""
    outcome = order_checks.rates(pair)
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


def events_of(run: Recording) -> list[Event]:
    """Lists the steps of the optimizer with the most."""
    optimizer = max({optimizer for optimizer, _ in run.steps}, key=lambda number: len(run.of(number)))
    return sorted(event for event in run.steps if event[0] == optimizer)
