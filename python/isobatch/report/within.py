"""Limits of a run, a deadline and a budget: which rows of a table keep them, and how surely."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from isobatch import _core
from isobatch.report.table import Plans
from isobatch.words import duration, price

VERDICTS = ("met", "likely", "missed")
"""From good to bad; a row whose figure is not known has none."""


class Limits(NamedTuple):
    """The limits of a run: hours, and money; None: as much as it likes."""

    deadline: float | None = None
    budget: float | None = None

    def names(self) -> str:
        """Writes the limits.

        >>> Limits(504.0, 4e5).names(), Limits(budget=4e5).names()
        ('the deadline and the budget', 'the budget')
        """
        parts = {"the deadline": self.deadline, "the budget": self.budget}
        return " and ".join(name for name, limit in parts.items() if limit is not None)

    def text(self, currency: str) -> str:
        """Writes the limits.

        >>> Limits(504.0, 4e5).text("$")
        'the deadline of 21 d and the budget of $400,000'
        """
        parts = []
        if self.deadline is not None:
            parts.append(f"the deadline of {duration(self.deadline * 3600)}")
        if self.budget is not None:
            parts.append(f"the budget of {price(self.budget, currency)}")
        return " and ".join(parts)


def verdicts(plans: Plans, limits: Limits) -> dict[str, list[str | None]]:
    """Judges each row by each limit, under the names `deadline` and `budget`."""
    hours, error, cost = plans.spent("hours"), plans.number("hours_error"), plans.spent("cost")
    with np.errstate(divide="ignore", invalid="ignore"):
        cost_error = cost * (error / hours)
    known = {"deadline": (hours, error, limits.deadline), "budget": (cost, cost_error, limits.budget)}
    return {
        name: [_core.verdict(*each, limit) for each in zip(values.tolist(), errors.tolist(), strict=True)]
        for name, (values, errors, limit) in known.items()
        if limit is not None
    }


def together(plans: Plans, limits: Limits) -> list[str | None]:
    """Judges each row by all limits at once, at least one: the worst verdict counts."""
    rows = zip(*verdicts(plans, limits).values(), strict=True)
    return [next((each for each in ("missed", None, "likely") if each in row), "met") for row in rows]


def missed(plans: Plans, limits: Limits, row: int) -> str:
    """Names the limits missed by a row, after a semicolon; empty where it keeps all."""
    verdict_by_limit = verdicts(plans.only(np.array([row])), limits)
    names = [name for name, (verdict,) in verdict_by_limit.items() if verdict == "missed"]
    return f"; misses the {' and the '.join(names)}" if names else ""


def best_within(
    rows: NDArray[np.int64], by: NDArray[np.float64], judged: Sequence[str | None]
) -> tuple[int | None, str]:
    """Finds the row of least `by` within the limits, else one likely within them; None if there is none."""
    for verdict, note in (("met", ""), ("likely", " (likely, not surely)")):
        good = rows[[judged[row] == verdict for row in rows.tolist()]]
        if len(good):
            return int(good[np.nanargmin(by[good])]), note
    return None, ""


def jobs_within(plans: Plans, limits: Limits) -> tuple[int, int]:
    """Counts the jobs within the limits, and those only likely within them."""
    _, job = plans.text("job")
    judged = np.array([verdict or "" for verdict in together(plans, limits)])
    met, likely = (set(job[judged == name].tolist()) for name in ("met", "likely"))
    return len(met), len(likely - met)
