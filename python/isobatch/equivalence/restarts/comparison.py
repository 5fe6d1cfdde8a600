"""Compares a restart with the run without a stop: the restored state, then each step."""

from typing import NamedTuple

import msgspec

from isobatch.equivalence.laws import RESTART, SplitCause, advise, break_of
from isobatch.equivalence.order import checks
from isobatch.equivalence.order.comparison import OrderedRow
from isobatch.equivalence.order.pair import Pair, Unlike, Unseen
from isobatch.equivalence.records import Recording
from isobatch.equivalence.restarts.checks import (
    Faulty,
    Outcome,
    compare_beside,
    compare_random,
    compare_rates,
    compare_samples,
    compare_state,
    compare_weights,
    draws_in_step,
    epoch_starts,
    events_of,
    taken,
)
from isobatch.words import counted


class ResumeRow(NamedTuple):
    """A row of the comparison: the quantity, and how it is compared."""

    id: str
    measures: str
    how: str


ROWS = (
    ResumeRow(
        "repeat",
        "the command against itself",
        "it is started twice: samples, losses and gradients before the checkpoint",
    ),
    ResumeRow("rows", "samples", "of each step after the restart"),
    ResumeRow("weights", "weights", "before the first step after the restart"),
    ResumeRow("state", "optimizer's state", "of each tensor, before the first step after the restart"),
    ResumeRow(
        "beside",
        "states beside the optimizer's",
        "buffers, averaged weights, a loss scale: before the first step after the restart",
    ),
    ResumeRow("rate", "learning rate", "of each group at each step"),
    ResumeRow(
        "groups",
        "optimizer and groups",
        "its kind; weight decay, momentum, betas, eps and tensors of each group",
    ),
    ResumeRow("random", "random states", "of torch, Python and NumPy, where something is drawn from them"),
    ResumeRow("loss", "loss", "of each pass"),
    ResumeRow("gradient", "gradient", "that the optimizer applies"),
    ResumeRow("update", "update", "the change of the weights by each step"),
    ResumeRow("length", "steps to the end", "of both starts together, where the script ends by itself"),
)
"""In the order in which things happen."""
ESSENTIAL = ("repeat", "rows", "weights", "state", "rate", "gradient", "update")
"""Rows without which nothing is called the same."""

TOLERANCES = 1e-4, 1e-3
"""Relative distances of a step's gradient and update: both runs have the same threads."""
OVER_RANKS = 1e-3, 2e-2
"""The same at another number of ranks, which add up in another order."""


class Resumed(msgspec.Struct, frozen=True):
    """The comparison after one checkpoint: its place in words, each row's state, and the faults."""

    where: str
    rows: list[OrderedRow]
    causes: list[SplitCause]
    steps: int

    @property
    def same(self) -> bool | None:
        """Whether nothing differs; None where too little was seen to say so."""
        if self.causes:
            return False
        states = {row.id: row.holds for row in self.rows}
        return True if all(states[name] for name in ESSENTIAL) else None


class ResumedTable:
    """The state of each row while the steps are compared: a difference stays."""

    def __init__(self) -> None:
        self.rows = {row.id: OrderedRow(*row, None, "it was not reached") for row in ROWS}
        self.causes: list[SplitCause] = []

    @property
    def differs(self) -> bool:
        """Whether a row differs."""
        return bool(self.causes)

    def settle(self, name: str, outcome: Outcome, step: int | None = None) -> None:
        """Takes the outcome of a row's check at a step."""
        row = self.rows[name]
        texts = row.id, row.measures, row.how
        if row.holds is False:
            return
        if outcome is None:
            self.rows[name] = OrderedRow(*texts, True)
        elif isinstance(outcome, Unseen):
            if not row.holds:
                self.rows[name] = OrderedRow(*texts, None, outcome.reason)
        else:
            law = outcome.law if isinstance(outcome, Faulty) else f"resume_{name}"
            values = [*outcome.values] if isinstance(outcome, Faulty) else [outcome.reference, outcome.second]
            shown = f" ({values[0]} without a stop, {values[1]} after the restart)" if values else ""
            cause = advise(break_of(law, outcome.text + shown), RESTART)
            self.rows[name] = OrderedRow(
                *texts, False, outcome.text, step=step, values=values, remedy=cause.remedy
            )
            self.causes.append(cause)

    def note(self, name: str, text: str) -> None:
        """Keeps a remark on a row without a difference."""
        self.rows[name] = msgspec.structs.replace(self.rows[name], holds=True, text=text)

    def is_noted(self, name: str) -> bool:
        """Tells whether a row without a difference has a remark."""
        return bool(self.rows[name].holds and self.rows[name].text)

    def blame_random(self, outcome: Unlike, step: int) -> None:
        """Names the random states in the place of their consequences."""
        self.causes.clear()
        for name in ("rows", "loss", "gradient", "update"):
            if self.rows[name].holds is False:
                row = self.rows[name]
                reason = "it follows from the random states"
                self.rows[name] = OrderedRow(row.id, row.measures, row.how, None, reason)
        self.settle("random", outcome, step)

    def name_beginning(self) -> None:
        """Names a restart from the beginning once, in the place of its consequences."""
        ids = {cause.id for cause in self.causes}
        from_start = any(
            "before the first step" in cause.text for cause in self.causes if cause.id == "resume_weights"
        )
        if (
            from_start
            and "new_state" in ids
            and ids & {"resume_epoch_anew", "resume_other_order", "resume_repeated"}
        ):
            text = "samples, weights and the optimizer's state are those of the run's beginning"
            self.causes = [break_of("resume_not_resumed", text)]


def repeats(whole: Recording, killed: Recording, step: int) -> str:
    """Compares two starts of the command up to a checkpoint; returns the difference, empty without one."""
    for event in events_of(whole):
        if event[1] >= step or event not in killed.steps:
            break
        if taken(whole, event) != taken(killed, event):
            return f"two starts of the command take other samples at step {event[1]}: seed what draws them"
        for check in (checks.losses, checks.gradient):
            outcome = check(Pair(whole, killed, event, TOLERANCES))
            if isinstance(outcome, Unlike):
                text = f"two starts of the command differ at step {event[1]}, {outcome.text}"
                return f"{text}: seed what the script draws"
    return ""


def compare_resumed(
    whole: Recording,
    again: Recording | None,
    step: int,
    *,
    repeat: str,
    ends: int | None,
    same_ranks: bool,
) -> Resumed:
    """Compares the steps after a checkpoint with those of the run without a stop.

    Args:
        whole: the run without a stop.
        again: the restart; None where it took no step.
        step: the steps before the checkpoint.
        repeat: how two starts of the command differ before it; empty where they do not.
        ends: the steps to the script's own end; None where it was ended.
        same_ranks: whether the restart has as many ranks.
    """
    epochs = epoch_starts(whole)
    where = f"after step {step}, {'at the end of an epoch' if step in epochs else 'in mid-epoch'}"
    table = ResumedTable()
    table.settle("repeat", Unseen(repeat) if repeat else None)
    compared = 0
    if again is None and not repeat:
        text = f"the run without a stop takes {counted(len(events_of(whole)), 'step')}"
        table.settle("rows", Faulty("resume_ended", text), step)
    elif again is not None and not repeat:
        compared = _compare_steps(table, whole, again, step, epochs, same_ranks=same_ranks)
        if ends is not None and not table.differs:
            steps = step + len(again.last_steps)
            counts = counted(ends, "step"), counted(steps, "step")
            same = steps == ends
            table.settle("length", None if same else Unlike(*counts, "the steps of both starts together"))
        table.name_beginning()
    return Resumed(where, [*table.rows.values()], table.causes, compared)


def _compare_steps(
    table: ResumedTable, whole: Recording, again: Recording, step: int, epochs: list[int], *, same_ranks: bool
) -> int:
    """Compares step by step, up to the first difference; returns the number of equal steps."""
    numbered = {(optimizer, number + step): taken for (optimizer, number), taken in again.steps.items()}
    moved, compared = msgspec.structs.replace(again, steps=numbered), 0
    for event in events_of(whole):
        if event[1] < step or event not in moved.steps:
            continue
        pair = Pair(whole, moved, event, TOLERANCES if same_ranks else OVER_RANKS)
        samples = compare_samples(pair, epochs)
        table.settle("rows", samples, event[1])
        if event[1] == step:
            table.settle("weights", compare_weights(pair, step), event[1])
            table.settle("state", compare_state(pair), event[1])
            if same_ranks and table.rows["weights"].holds:
                table.settle("beside", compare_beside(pair), event[1])
        table.settle("rate", compare_rates(pair), event[1])
        table.settle("groups", checks.groups(pair), event[1])
        random = compare_random(pair) if same_ranks else Unseen("other ranks draw otherwise: dropout was off")
        may_be_drawn = isinstance(samples, Faulty) and samples.may_be_drawn and _only_samples(table)
        if may_be_drawn and isinstance(random, Unlike) and event[1] > step:
            table.blame_random(random, event[1])
        if table.differs:
            break
        for name, check in (
            ("loss", checks.losses),
            ("gradient", checks.gradient),
            ("update", checks.update),
        ):
            if name == "loss" and not same_ranks:
                table.settle(name, Unseen("passes over other ranks have other losses"))
                continue
            table.settle(name, check(pair), event[1])
            if table.differs:
                break
        if isinstance(random, Unlike):
            if table.differs and draws_in_step(pair):
                table.blame_random(random, event[1])
            elif not table.differs:
                table.note("random", "they differ, and nothing was drawn from them")
        elif not table.is_noted("random"):
            table.settle("random", random, event[1])
        if table.differs:
            break
        compared += 1
    return compared


def _only_samples(table: ResumedTable) -> bool:
    """Tells whether the samples alone differ: a later epoch's order may be drawn from the random states."""
    return all(row.id == "rows" for row in table.rows.values() if row.holds is False)
