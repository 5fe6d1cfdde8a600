"""Changes to make infeasible rows feasible, by the rows of each: counted, not guessed."""

from __future__ import annotations

from collections.abc import Iterator
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
_IDLE = (0.1, 0.25, 0.5)
_UNSPLIT = "rows whose batch cannot be split evenly"
_ANY = "infeasible rows"


class Fix(NamedTuple):
    """A change: in words, its flags, the rows it makes feasible, the rows it is for, and how far it moves the batch or the GPUs."""

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


def summary(fixes: list[Fix]) -> str:
    """Names the change with most rows; a milder one with four fifths as many is preferred.

    >>> summary([Fix("a tolerance of 2 % on the batch", "--batch-tolerance 0.02", 118, 125, "infeasible rows", 0.02)])
    'a tolerance of 2 % on the batch makes 118 of 125 infeasible rows feasible (--batch-tolerance 0.02)'
    """
    if not fixes:
        return ""
    best = min((fix for fix in fixes if fix.rows >= 0.8 * fixes[0].rows), key=lambda fix: fix.share)
    return f"{best.text} ({best.how})"


def _best_first(fixes: list[Fix]) -> list[Fix]:
    return sorted((fix for fix in fixes if fix.rows), key=lambda fix: -fix.rows)


def _rising(rows_at: dict[float, int]) -> Iterator[tuple[float, int]]:
    """Yields, of rising shares, those with more rows than all before."""
    most = 0
    for share, rows in rows_at.items():
        if rows > most:
            most = rows
            yield share, rows


def _tolerances(rows_at: dict[float, int], of: int) -> list[Fix]:
    return [
        Fix(f"a tolerance of {percent(share)} on the batch", f"--batch-tolerance {share:g}", rows, of, _UNSPLIT, share)
        for share, rows in _rising(rows_at)
    ]  # fmt: skip


# ---- by the table alone ----


def from_table(plans: Plans) -> list[Fix]:
    """Counts by the table alone, best first: a tolerance, by each row's nearest batch, and idle GPUs, by its nearest count.

    A row counts where splitting the batch or the GPUs is all that is wrong with it. Its tuned batch is known by a row of the same
    job that can be planned.
    """
    found = []
    if plans.settings.get("policy", "keep") == "keep" and "job" in plans.texts:
        _, job = plans.text("job")
        batch, change = plans.number("effective_batch"), plans.number("batch_change")
        tuned = np.full(int(job.max(initial=0)) + 1, np.nan)
        known = (batch >= 1) & (change > -1)
        tuned[job[known]] = np.rint(batch[known] / (1 + change[known]))
        rows = _only(plans, Reason.NOT_DIVISIBLE)
        change_needed = np.abs(plans.number("nearest_batch")[rows] / tuned[job[rows]] - 1)
        # The quotients are rounded; a batch that is just within must count.
        rows_at = {share: int((change_needed <= share * (1 + 1e-12)).sum()) for share in TOLERANCES}
        found += _tolerances(rows_at, int(rows.sum()))
    gpus = plans.number("world_size")
    rows = (_only(plans, Reason.NOT_DIVISIBLE) | _only(plans, Reason.MODEL_PARALLEL)) & (gpus >= 1)
    idle = 1 - plans.number("nearest_world_size")[rows] / gpus[rows]
    how, bad = "fewer GPUs: the column nearest_world_size", int((plans.status == INFEASIBLE).sum())
    for share, many in _rising({share: int(((idle > 0) & (idle <= share)).sum()) for share in _IDLE}):
        found.append(Fix(f"leaving up to {percent(share)} of the GPUs idle", how, many, bad, _ANY, share))
    return _best_first(found)


def _only(plans: Plans, reason: Reason) -> NDArray[np.bool_]:
    """Marks the rows with one reason alone against them."""
    hard = sum(1 << each.bit for each in Reason if each.severity == "infeasible")
    found: NDArray[np.bool_] = (plans.reasons & np.uint64(hard)) == np.uint64(1 << reason.bit)
    found &= plans.status == INFEASIBLE
    return found


# ---- by planning again ----


def by_planning(plans: Plans, jobs: Any, clusters: Any, profile: Any = None) -> list[Fix]:
    """Counts by planning the fleet again, once for each change of a setting, best first.

    Args:
        plans: the fleet's table, whose settings are those that are changed.
        jobs: what it was planned from, as `plan_fleet` takes it.
        clusters: likewise; None where each row of the jobs has its own cluster.
        profile: likewise.

    Raises:
        InputError: the jobs cannot be read, or give other plans than the table has, or only chosen rows are left of these.
    """
    if plans.provenance.select not in (None, "all"):
        raise InputError(
            "the plans are the rows that --select kept: leave --jobs out, or make the page of a table of all rows"
        )
    settings = {name: value for name, value in plans.settings.items() if name in DEFAULTS._fields}
    bad = plans.status == INFEASIBLE

    def feasible(**changed: Any) -> NDArray[np.bool_]:
        table = plan_fleet(jobs, clusters, columns=["status"], profile=profile, **{**settings, **changed})
        status = table["status"]
        texts = status.to_pylist() if hasattr(status, "to_pylist") else status.tolist()
        return np.asarray([text != "infeasible" for text in texts])

    now = feasible()
    if len(now) != plans.rows:
        raise InputError(f"the jobs and clusters give {len(now):,} rows, and the plans have {plans.rows:,}")
    if (now == bad).any():
        raise InputError(
            "the jobs and clusters give other plans than the table has: pass the profile and the files that it was made from",
            row=int(np.argmax(now == bad)) + 1,
        )
    unsplit = bad & plans.has(Reason.NOT_DIVISIBLE)
    wider = [share for share in TOLERANCES if share > float(settings.get("batch_tolerance") or 0)]
    rows_at = {share: int((feasible(batch_tolerance=share) & bad).sum()) for share in wider}
    found = _tolerances(rows_at, int(unsplit.sum()))
    for what, how, changed in _changes(settings):
        hit = feasible(**changed) & bad
        of, whose = (unsplit, _UNSPLIT) if not (hit & ~unsplit).any() else (bad, _ANY)
        found.append(Fix(what, how, int(hit.sum()), int(of.sum()), whose))
    return _best_first(found)


def _changes(settings: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yields the changes to try beside a tolerance: those of a single plan's menu."""
    split = settings.get("split")
    if split != "ragged":
        ragged = {"split": "ragged", "micro_batch_multiple": 1}
        yield "dealing micro-batches of different sizes", "--split ragged", ragged
    if split != "uneven":
        yield "dealing different numbers of micro-batches", "--split uneven", {"split": "uneven"}
    for name, default in DEFAULTS._asdict().items():
        tried = name in ("policy", "rule", "split")
        if not tried and settings.get(name, default) != default:
            yield f"leaving {name} out", f"without --{name.replace('_', '-')}", {name: default}
