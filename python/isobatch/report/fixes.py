"""What would make most of the infeasible rows feasible: counted, not guessed."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from isobatch.errors import InputError
from isobatch.fleet.plan_fleet import plan_fleet
from isobatch.planning.settings import DEFAULTS
from isobatch.reason import Reason
from isobatch.report.table import INFEASIBLE, Plans
from isobatch.words import count, percent

TOLERANCES = (0.01, 0.02, 0.05, 0.1, 0.25)


class Fix(NamedTuple):
    """A change, its flags or what is to be done, how many rows it makes feasible, and of how many that it is for; `share` is how far
    it moves the batch or the GPUs, 0 where it moves neither."""

    what: str
    how: str
    rows: int
    of: int
    whose: str
    share: float = 0.0

    @property
    def text(self) -> str:
        """As a sentence."""
        return f"{self.what} makes {count(self.rows)} of {count(self.of)} {self.whose} feasible"


_UNSPLIT = "rows whose batch cannot be split evenly"
_ANY = "infeasible rows"


def from_table(plans: Plans) -> list[Fix]:
    """What the table alone says, best first: a tolerance, by each row's nearest batch, and idle GPUs, by its nearest count.

    A row counts where splitting the batch or the GPUs is all that is wrong with it. Its tuned batch is known by a row of the same
    job that can be planned.
    """
    found = [*_tolerances(plans), *_idle(plans)]
    return sorted((fix for fix in found if fix.rows), key=lambda fix: -fix.rows)


def _only(plans: Plans, reason: Reason) -> NDArray[np.bool_]:
    """Rows in which one reason is all that makes them infeasible."""
    hard = sum(1 << each.bit for each in Reason if each.severity == "infeasible")
    found: NDArray[np.bool_] = (plans.reasons & np.uint64(hard)) == np.uint64(1 << reason.bit)
    found &= plans.status == INFEASIBLE
    return found


def _tolerances(plans: Plans) -> list[Fix]:
    if plans.settings.get("policy", "keep") != "keep" or "job" not in plans.texts:
        return []
    _, job = plans.text("job")
    batch, change = plans.number("effective_batch"), plans.number("batch_change")
    tuned = np.full(int(job.max(initial=0)) + 1, np.nan)
    known = (batch >= 1) & (change > -1)
    tuned[job[known]] = np.rint(batch[known] / (1 + change[known]))
    rows = _only(plans, Reason.NOT_DIVISIBLE)
    moved = np.abs(plans.number("nearest_batch")[rows] / tuned[job[rows]] - 1)
    # The quotients are rounded; a batch that is just within must count.
    made = [(share, int((moved <= share * (1 + 1e-12)).sum())) for share in TOLERANCES]
    return [_tolerance(share, many, int(rows.sum())) for share, many in _rising(made)]


def _tolerance(share: float, made: int, of: int) -> Fix:
    what = f"a tolerance of {percent(share)} on the batch"
    return Fix(what, f"--batch-tolerance {share:g}", made, of, _UNSPLIT, share)


def _rising(made: list[tuple[float, int]]) -> list[tuple[float, int]]:
    """Of shares that rise, those which make more rows feasible than the ones before."""
    found: list[tuple[float, int]] = []
    for share, many in made:
        if many > (found[-1][1] if found else 0):
            found.append((share, many))
    return found


def _idle(plans: Plans) -> list[Fix]:
    gpus, nearest = plans.number("world_size"), plans.number("nearest_world_size")
    rows = _only(plans, Reason.NOT_DIVISIBLE) | _only(plans, Reason.MODEL_PARALLEL)
    rows &= gpus >= 1
    idle = 1 - nearest[rows] / gpus[rows]
    made = [(share, int(((idle > 0) & (idle <= share)).sum())) for share in (0.1, 0.25, 0.5)]
    return [
        Fix(
            f"leaving up to {percent(share)} of the GPUs idle",
            "fewer GPUs: the column nearest_world_size",
            many,
            int((plans.status == INFEASIBLE).sum()),
            _ANY,
            share,
        )
        for share, many in _rising(made)
    ]


def by_planning(plans: Plans, jobs: Any, clusters: Any, profile: Any = None) -> list[Fix]:
    """What planning the fleet again says, once for each change of a setting, best first.

    Args:
        plans: the fleet's table, whose settings are those that are changed.
        jobs: what it was planned from, as `plan_fleet` takes it.
        clusters: likewise; None where each row of the jobs has its own cluster.
        profile: likewise.

    Raises:
        InputError: the jobs cannot be read, or give other plans than the table has, or only chosen rows are left of these.
    """
    if plans.made.select not in (None, "all"):
        raise InputError(
            "the plans are the rows that --select kept: leave --jobs out, or make the page of a table of all rows"
        )
    settings = {name: value for name, value in plans.settings.items() if name in DEFAULTS._fields}

    def feasible(**changed: Any) -> NDArray[np.bool_]:
        asked = {**settings, **changed}
        table = plan_fleet(jobs, clusters, columns=["status"], profile=profile, **asked)
        return np.asarray([value != "infeasible" for value in texts_of(table["status"])])

    bad = plans.status == INFEASIBLE
    now = feasible()
    if len(now) != plans.rows:
        raise InputError(f"the jobs and clusters give {len(now):,} rows, and the plans have {plans.rows:,}")
    if (now == bad).any():
        row = int(np.argmax(now == bad)) + 1
        raise InputError(
            "the jobs and clusters give other plans than the table has: pass the profile and the files that it was made from",
            row=row,
        )
    unsplit = bad & plans.has(Reason.NOT_DIVISIBLE)
    tolerances = [share for share in TOLERANCES if share > float(settings.get("batch_tolerance") or 0)]
    made = [(share, int((feasible(batch_tolerance=share) & bad).sum())) for share in tolerances]
    found = [_tolerance(share, many, int(unsplit.sum())) for share, many in _rising(made)]
    for what, how, changed in _changes(settings):
        hit = feasible(**changed) & bad
        of, whose = (unsplit, _UNSPLIT) if not (hit & ~unsplit).any() else (bad, _ANY)
        found.append(Fix(what, how, int(hit.sum()), int(of.sum()), whose))
    return sorted((fix for fix in found if fix.rows), key=lambda fix: -fix.rows)


def texts_of(column: Any) -> list[Any]:
    """A column's values, of Arrow or of NumPy."""
    found: list[Any] = column.to_pylist() if hasattr(column, "to_pylist") else column.tolist()
    return found


def _changes(settings: dict[str, Any]) -> list[tuple[str, str, dict[str, Any]]]:
    """The changes beside a tolerance that are tried: those which the menu of a single plan has, too."""
    found: list[tuple[str, str, dict[str, Any]]] = []
    split = settings.get("split")
    if split != "ragged":
        ragged = {"split": "ragged", "micro_batch_multiple": 1}
        found.append(("dealing micro-batches of different sizes", "--split ragged", ragged))
    if split != "uneven":
        uneven = {"split": "uneven"}
        found.append(("dealing different numbers of micro-batches", "--split uneven", uneven))
    for name, default in DEFAULTS._asdict().items():
        if name in ("policy", "rule", "split") or settings.get(name, default) == default:
            continue
        found.append((f"leaving {name} out", f"without --{name.replace('_', '-')}", {name: default}))
    return found


def summary(fixes: list[Fix]) -> str:
    """The change that fixes most rows; a milder one where that fixes four fifths as many.

    >>> summary([Fix("a tolerance of 2 % on the batch", "--batch-tolerance 0.02", 118, 125, "infeasible rows", 0.02)])
    'a tolerance of 2 % on the batch makes 118 of 125 infeasible rows feasible (--batch-tolerance 0.02)'
    """
    if not fixes:
        return ""
    best = min((fix for fix in fixes if fix.rows >= 0.8 * fixes[0].rows), key=lambda fix: fix.share)
    return f"{best.text} ({best.how})"
