"""What would make most of the infeasible rows feasible: counted, not guessed."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from isobatch.planning.settings import DEFAULTS
from isobatch.reason import Reason
from isobatch.report.plans import INFEASIBLE, Plans
from isobatch.words import count, percent

TOLERANCES = (0.01, 0.02, 0.05, 0.1, 0.25)


class Fix(NamedTuple):
    """A change, its flags or what is to be done, and how many rows it makes feasible of how many that it could."""

    what: str
    how: str
    rows: int
    of: int

    @property
    def text(self) -> str:
        """As a sentence."""
        return f"{self.what} makes {count(self.rows)} of {count(self.of)} infeasible rows feasible"


def from_table(plans: Plans) -> list[Fix]:
    """What the table alone says, best first: a tolerance, by each row's nearest batch, and idle GPUs, by its nearest count.

    A row counts where splitting the batch or the GPUs is all that is wrong with it. Its tuned batch is known by a row of the same
    job that can be planned.
    """
    bad = plans.status == INFEASIBLE
    total = int(bad.sum())
    found = [*_tolerances(plans, bad, total), *_idle(plans, bad, total)]
    return sorted((fix for fix in found if fix.rows), key=lambda fix: -fix.rows)


def _only(plans: Plans, reason: Reason) -> NDArray[np.bool_]:
    """Rows in which one reason is all that makes them infeasible."""
    hard = sum(1 << each.bit for each in Reason if each.severity == "infeasible")
    found: NDArray[np.bool_] = (plans.reasons & np.uint64(hard)) == np.uint64(1 << reason.bit)
    return found


def _tolerances(plans: Plans, bad: NDArray[np.bool_], total: int) -> list[Fix]:
    if plans.settings.get("policy", "keep") != "keep" or "job" not in plans.texts:
        return []
    _, job = plans.text("job")
    batch, change = plans.number("effective_batch"), plans.number("batch_change")
    tuned = np.full(int(job.max(initial=0)) + 1, np.nan)
    known = ~np.isnan(batch) & ~np.isnan(change)
    tuned[job[known]] = np.rint(batch[known] / (1 + change[known]))
    rows = bad & _only(plans, Reason.NOT_DIVISIBLE)
    moved = np.abs(plans.number("nearest_batch")[rows] / tuned[job[rows]] - 1)
    fixes = []
    for share in TOLERANCES:
        # The core compares with the same slack for the rounding of the quotient.
        made = int((moved <= share * (1 + 1e-12)).sum())
        if made and (not fixes or made > fixes[-1].rows):
            what = f"a tolerance of {percent(share)} on the batch"
            fixes.append(Fix(what, f"--batch-tolerance {share:g}", made, total))
    return fixes


def _idle(plans: Plans, bad: NDArray[np.bool_], total: int) -> list[Fix]:
    gpus, nearest = plans.number("world_size"), plans.number("nearest_world_size")
    rows = bad & (_only(plans, Reason.NOT_DIVISIBLE) | _only(plans, Reason.MODEL_PARALLEL))
    idle = 1 - nearest[rows] / gpus[rows]
    fixes = []
    for share in (0.1, 0.25, 0.5):
        made = int(((idle > 0) & (idle <= share)).sum())
        if made and (not fixes or made > fixes[-1].rows):
            what = f"leaving up to {percent(share)} of the GPUs idle"
            fixes.append(Fix(what, "fewer GPUs: nearest_world_size", made, total))
    return fixes


def by_planning(plans: Plans, jobs: Any, clusters: Any) -> list[Fix]:
    """What planning the fleet again says, once for each change of a setting, best first.

    Args:
        plans: the fleet's table, whose settings are those that are changed.
        jobs: what it was planned from, as `plan_fleet` takes it.
        clusters: likewise; None where each row of the jobs has its own cluster.

    Raises:
        InputError: the jobs cannot be read, or give other rows than the table has.
    """
    from isobatch.errors import InputError
    from isobatch.fleet.plan_fleet import plan_table

    settings = {name: value for name, value in plans.settings.items() if name in DEFAULTS._fields}
    columns = ["status"]

    def feasible(**changed: Any) -> NDArray[np.bool_]:
        table = plan_table(jobs, clusters, columns=columns, **{**settings, **changed})
        return np.asarray([value != "infeasible" for value in table["status"].to_pylist()])

    now = feasible()
    if len(now) != plans.rows:
        raise InputError(f"the jobs and clusters give {len(now):,} rows, and the plans have {plans.rows:,}")
    bad = (plans.status == INFEASIBLE) & ~now
    found: list[Fix] = []
    for what, how, changed in _changes(settings):
        made = int((feasible(**changed) & bad).sum())
        is_wider = what.startswith("a tolerance") and any(it.rows >= made for it in found if it.what[:11] == what[:11])
        if made and not is_wider:
            found.append(Fix(what, how, made, int(bad.sum())))
    return sorted(found, key=lambda fix: -fix.rows)


def _changes(settings: dict[str, Any]) -> list[tuple[str, str, dict[str, Any]]]:
    """The changes that are tried: those which the menu of a single plan has, too."""
    found: list[tuple[str, str, dict[str, Any]]] = [
        (f"a tolerance of {percent(share)} on the batch", f"--batch-tolerance {share:g}", {"batch_tolerance": share})
        for share in TOLERANCES
        if share > float(settings.get("batch_tolerance") or 0)
    ]
    plain = {"ragged": False, "uneven": False, "require_multiple": False}
    if not settings.get("ragged"):
        found.append(("micro-batches of different sizes", "--ragged", {**plain, "ragged": True}))
    if not settings.get("uneven"):
        found.append(("micro-batches dealt unevenly", "--uneven", {**plain, "uneven": True}))
    for name, default in DEFAULTS._asdict().items():
        if name in ("policy", "rule", "ragged", "uneven", "batch_tolerance") or settings.get(name, default) == default:
            continue
        found.append((f"leaving {name} out", f"without --{name.replace('_', '-')}", {name: default}))
    return found


def summary(fixes: list[Fix]) -> str:
    """The change that fixes most rows.

    >>> summary([Fix("a tolerance of 2 % on the batch", "--batch-tolerance 0.02", 118, 125)])
    'a tolerance of 2 % on the batch makes 118 of 125 infeasible rows feasible (--batch-tolerance 0.02)'
    """
    return f"{fixes[0].text} ({fixes[0].how})" if fixes else ""
