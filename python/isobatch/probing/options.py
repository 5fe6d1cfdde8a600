"""How to probe: what a command line or a call may set. No torch."""

from __future__ import annotations

import math
import re
from typing import Literal, TypeAlias, get_args

import msgspec

from isobatch.errors import InputError, must_be, together
from isobatch.words import duration

Measure: TypeAlias = Literal["lr", "same", "critical"]
Device: TypeAlias = Literal["auto", "cpu", "cuda"]

_UNITS = {"s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}


def seconds_of(text: str | float) -> float:
    """The seconds that a budget names: a number with a unit, or of seconds.

    Raises:
        InputError: it is neither.

    >>> seconds_of("10m"), seconds_of("1.5h"), seconds_of(45)
    (600.0, 5400.0, 45.0)
    """
    found = re.fullmatch(r"\s*(\d+(?:\.\d*)?)\s*(s|m|min|h)?\s*", str(text))
    value = 0.0 if found is None else float(found[1]) * _UNITS[found[2] or "s"]
    if not 0 < value < 1e8:
        raise must_be('a time above 0 such as "90s", "10m" or "2h"', text, field="budget")
    return value


def budget_text(seconds: float) -> str:
    """A budget as it is typed, rounded up.

    >>> budget_text(44.2), budget_text(301), budget_text(9000)
    ('50s', '6m', '151m')
    """
    return f"{math.ceil(seconds / 10) * 10}s" if seconds < 120 else f"{math.ceil((seconds + 1) / 60)}m"


def stopped_after(stopped: str | None, seconds: float) -> str:
    """What ended a probe, as a sentence begins.

    >>> stopped_after("budget", 30), stopped_after("interrupted", 30)
    ('30 s were spent', 'interrupted')
    """
    return f"{duration(seconds)} were spent" if stopped == "budget" else str(stopped)


class ProbeOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How to probe.

    Args:
        measure: "lr" (the learning rate), "same" (that the plan trains the same) or "critical" (the critical batch).
        workload: "package.module:factory" of an `isobatch.validate.Workload`; None: the built-in one.
        budget_seconds: what the whole probe may take, from the call to the answer.
        seeds: how often the last learning rates are trained, each time from another seed.
        batches: effective batches to measure beside the tuned and the planned one.
        samples: of a whole trial; None: as many as the budget allows.
        step: neighbouring learning rates differ by this factor.
        checkpoint: a file of torch.save with the model's state_dict, or {"model": …, "optimizer": …}; None: from scratch.
        trials: a file in which each trial is kept, and from which a probe goes on; None: nothing is kept.
        tolerance: of `critical`: how much worse the loss of a branch may be.
        smoothing: of `critical`: the weight of the past in the average over its evaluations.
        device: "auto", "cpu" or "cuda".

    Raises:
        InputError: values are out of range; all of them are listed.
    """

    measure: Measure = "lr"
    workload: str | None = None
    budget_seconds: float = 600.0
    seeds: int = 3
    batches: tuple[int, ...] = ()
    samples: int | None = None
    step: float = 2.0
    checkpoint: str | None = None
    trials: str | None = None
    tolerance: float = 0.01
    smoothing: float = 0.5
    device: Device = "auto"

    def __post_init__(self) -> None:
        faults = []
        for name, kind in (("measure", Measure), ("device", Device)):
            values = get_args(kind)
            if getattr(self, name) not in values:
                legal = f"{', '.join(values[:-1])} or {values[-1]}"
                faults.append(must_be(legal, getattr(self, name), field=name))
        for name, legal, ok in (
            ("budget_seconds", "a number above 0", 0 < self.budget_seconds < float("inf")),
            ("seeds", "a whole number from 1 to 1,000", 1 <= self.seeds <= 1000),
            ("samples", "a whole number from 1", self.samples is None or self.samples >= 1),
            ("batches", "whole numbers from 1", all(batch >= 1 for batch in self.batches)),
            ("step", "a number above 1, at most 10", 1 < self.step <= 10),
            ("tolerance", "a number from 0", 0 <= self.tolerance < float("inf")),
            ("smoothing", "a number from 0 to below 1", 0 <= self.smoothing < 1),
        ):
            if not ok:
                faults.append(must_be(legal, getattr(self, name), field=name))
        if faults:
            raise together(faults)

    def checked(self) -> ProbeOptions:
        """These, where they go together.

        Raises:
            InputError: `trials` is asked for where none are kept.
        """
        if self.trials is not None and self.measure != "lr":
            raise InputError(f"trials are kept of learning rates only, not of {self.measure}", field="trials")
        return self
