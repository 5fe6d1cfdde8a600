"""The level of a plan on pages and in notebooks: a caution that says nothing of the move is a note."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from isobatch.fleet.results import STATUS
from isobatch.planning.plan import Plan
from isobatch.reason import Reason, bits_of

LEVELS = ("ok", "note", "caution", "infeasible")
"""From good to bad; `status` in files has no note."""


MEASURED = ("measured", "an estimate, measured nowhere")
"""Words for times, by whether they are estimated."""


_CAUTIONS = bits_of(reason for reason in Reason if reason.severity == "caution")
_OF_FIGURES = bits_of(("memory_estimated", "outside_measured", "forecast_estimated", "other_hardware"))
"""They say how sure hours, cost and memory are: the training is as planned."""
_OF_RECIPE = bits_of(
    ("uneven_tail", "warmup_short", "warmup_long", "short_epochs", "decay_unknown", "unequal_devices")
)
"""They are as true of the tuned run where the batch is the tuned one."""


def warnings_of(reasons: Any, batch_change: Any, tuned: int = 0) -> NDArray[np.uint64]:
    """Returns the bit sets of the cautions about the move itself, without the reasons of the tuned run."""
    stays = np.asarray(batch_change, np.float64) == 0
    noted = np.uint64(_OF_FIGURES | tuned) | np.where(stays, np.uint64(_OF_RECIPE), np.uint64(0))
    warnings: NDArray[np.uint64] = np.asarray(reasons, np.uint64) & np.uint64(_CAUTIONS) & ~noted
    return warnings


def levels_of(status: NDArray[np.int64], warnings: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Returns the places in LEVELS of statuses, given as places in STATUS, with their warnings.

    >>> no_warmup = bits_of([Reason.NO_WARMUP])
    >>> levels_of(np.array([0, 1, 1, 2]), np.array([0, 0, no_warmup, 0], np.uint64)).tolist()
    [0, 1, 2, 3]
    """
    is_note = (status == STATUS.tolist().index("caution")) & (warnings == 0)
    places = np.array([LEVELS.index(name) for name in STATUS.tolist()])
    levels: NDArray[np.int64] = np.where(is_note, LEVELS.index("note"), places[status])
    return levels


def level_of(plan: Plan, tuned: Plan | None) -> tuple[str, tuple[Reason, ...]]:
    """Returns the level of a plan, and the cautions about its move from the tuned run."""
    change = np.nan if plan.batch_change is None else plan.batch_change
    own = 0 if tuned is None else bits_of(tuned.reasons)
    warnings = warnings_of(bits_of(plan.reasons), change, own)
    status = np.array(STATUS.tolist().index(plan.status))
    return LEVELS[int(levels_of(status, warnings))], Reason.of(int(warnings))
