"""Options of a probe, and its budget. No torch."""

import math
import re
import time
from typing import Literal, TypeAlias, get_args

import msgspec

from isobatch.errors import must_be, raise_all

Device: TypeAlias = Literal["auto", "cpu", "cuda"]

_UNITS = {"s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}


class ProbeOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How to probe; `samples` of a whole trial are as many as the budget allows where None."""

    seeds: int = 3
    batches: tuple[int, ...] = ()
    samples: int | None = None
    device: Device = "auto"

    def __post_init__(self) -> None:
        checks = (
            ("device", "auto, cpu or cuda", self.device in get_args(Device)),
            ("seeds", "a whole number from 1 to 1,000", 1 <= self.seeds <= 1000),
            ("samples", "a whole number from 1", self.samples is None or self.samples >= 1),
            ("batches", "whole numbers from 1", all(batch >= 1 for batch in self.batches)),
        )
        raise_all(must_be(legal, getattr(self, name), field=name) for name, legal, ok in checks if not ok)


class Expired(Exception):
    """The budget is spent."""


class Budget:
    """Counts the seconds left, from the call: importing torch, and trials."""

    clock = staticmethod(time.monotonic)

    def __init__(self, seconds: float) -> None:
        self.seconds, self.begun = seconds, self.clock()

    def spent(self) -> float:
        """Returns the seconds since the call."""
        return self.clock() - self.begun

    def left(self) -> float:
        """Returns the seconds left for trials."""
        return self.seconds - self.spent()

    def check(self) -> None:
        """Ends trials where no time is left."""
        if self.left() <= 0:
            raise Expired


def seconds_of(text: str | float) -> float:
    """Reads a budget: a number with a unit, or of seconds.

    >>> seconds_of("10m"), seconds_of("1.5h"), seconds_of(45)
    (600.0, 5400.0, 45.0)
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d*)?)\s*(s|m|min|h)?\s*", str(text))
    value = 0.0 if match is None else float(match[1]) * _UNITS[match[2] or "s"]
    if not 0 < value < 1e8:
        raise must_be('a time above 0 such as "90s", "10m" or "2h"', text, field="budget")
    return value


def budget_text(seconds: float) -> str:
    """Writes a budget as it is typed, rounded up.

    >>> budget_text(44.2), budget_text(301), budget_text(9000)
    ('50s', '6m', '151m')
    """
    return f"{math.ceil(seconds / 10) * 10}s" if seconds < 120 else f"{math.ceil((seconds + 1) / 60)}m"
