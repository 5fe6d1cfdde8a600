"""One job over many GPU counts: which work and how, what more GPUs buy, and what they cost."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from isobatch.errors import InputError, must_be
from isobatch.fleet.best_batch import MAX_BATCH, best_batch
from isobatch.fleet.comparison import compared
from isobatch.fleet.good_counts import GoodCounts, why_none
from isobatch.fleet.plan_fleet import plan_fleet
from isobatch.fleet.results import INFEASIBLE
from isobatch.forecast.profile import Profile
from isobatch.limits import real, whole, wholes
from isobatch.planning.plan import Plan, plan
from isobatch.reason import Reason
from isobatch.recipes.cluster import Cluster
from isobatch.recipes.recipe import Recipe
from isobatch.words import counted, figure

_COLUMNS = (
    "status", "reasons", "micro_batch", "accumulation", "effective_batch", "lr", "total_steps",
    "step_seconds", "samples_per_second", "efficiency", "hours", "hours_error", "gpu_hours", "cost",
    "memory_gib", "data_parallel", "batch_change", "lr_scale", "nearest_world_size", "nearest_batch",
)  # fmt: skip

_MAX_GPU_COUNTS = 10_000_000
"""Counts in one call: a minute's work."""


class Counts(msgspec.Struct, frozen=True, kw_only=True):
    """A job over GPU counts.

    Attributes:
        columns: those of a fleet, one row a count, with `gpus` first; where a critical batch is known
            `samples_over_least` (1 + B/Bcrit) and `steps_over_least` (1 + Bcrit/B); of the best batch
            `best_micro_batch` and `best_accumulation`, −1 where it does not work.
        fastest, cheapest: counts; None where no row has the figure.
        knee: the count with the least hours × GPU-hours: past it, one percent less time costs more than one
            percent more GPU-hours. Of batches that differ the hours are to the same loss, by the critical
            batch; None where that is not known.
        critical_batch: in samples.
        definition: what the critical batch means, and its range.
        recipe, cluster, settings: the question.
        best_batch: the effective batch up to `best_batch_up_to` that works at the most counts, the largest of
            equally good ones; None where none was looked for, or none works.
    """

    columns: dict[str, NDArray[Any]]
    fastest: int | None
    cheapest: int | None
    knee: int | None
    critical_batch: float | None
    definition: str
    recipe: Recipe
    cluster: Cluster
    settings: dict[str, Any]
    best_batch: int | None = None

    @property
    def groups(self) -> list[tuple[tuple[int, int], ...]]:
        """Lists the groups of equal replicas of each row, as (replicas, samples of each in a step).

        A row has one group, two if it is uneven, and none without a plan.

        >>> counts(Recipe(effective_batch=128, lr=0.1), [8, 24, 160], split="ragged").groups
        [((8, 16),), ((8, 6), (16, 5)), ()]
        """
        names = ("reasons", "effective_batch", "data_parallel", "micro_batch")
        rows = zip(*(self.columns[name].tolist() for name in names), strict=True)
        return [_groups(*row) for row in rows]

    @property
    def working(self) -> list[int]:
        """Lists the counts with a plan."""
        return [int(gpus) for gpus, group in zip(self.columns["gpus"], self.groups, strict=True) if group]

    def good(self, deadline_hours: float | None = None) -> GoodCounts:
        """Returns the counts with a plan and the best of them, as schedulers need them.

        Where `best_batch` was looked for, they are the counts at which that batch works.

        Args:
            deadline_hours: the hours that the run may take, by default those of the settings; counts that
                take longer, or whose hours are not known, are left out.

        >>> counts(Recipe(effective_batch=12, lr=0.1), range(1, 9)).good().gpus
        [1, 2, 3, 4, 6]
        """
        if deadline_hours is None:
            deadline_hours = self.settings.get("deadline_hours")
        works = np.isin(self.columns["gpus"], self.working)
        batches = self.columns["effective_batch"]
        if "best_micro_batch" in self.columns:
            works = self.columns["best_micro_batch"] > 0
            batches = np.full(len(works), self.best_batch or -1)
        if deadline_hours is not None:
            works &= self.columns["hours"] <= deadline_hours
        gpus = np.unique(self.columns["gpus"][works]).tolist()
        samples = np.unique(batches[works]).tolist()
        best, best_by = self._best(works, deadline_hours)
        return GoodCounts(
            gpus=gpus,
            best=best,
            best_by=best_by,
            effective_batch=samples[0] if len(samples) == 1 else None,
            gpus_per_node=self.cluster.gpus_per_node if self._fills_nodes(gpus) else None,
            why=None if gpus else why_none(self.columns),
        )

    def _fills_nodes(self, gpus: Sequence[int]) -> bool:
        return bool(fills_nodes(np.array(gpus, np.int64), self.cluster.gpus_per_node).all())

    def _best(self, works: NDArray[np.bool_], deadline_hours: float | None) -> tuple[int | None, Any]:
        """Chooses the best of the working counts, and names the criterion."""
        gpus = self.columns["gpus"][works]
        if not gpus.size:
            return None, None
        if deadline_hours is not None:
            return int(gpus[np.argmin(self.columns["gpu_hours"][works])]), "deadline"
        for name in ("knee", "fastest"):
            count = getattr(self, name)
            if count is not None and count in gpus and "best_micro_batch" not in self.columns:
                return count, name
        return int(gpus.max()), "most"

    def plan_at(self, gpus: int) -> Plan:
        """Plans the job at one count, as the row has it."""
        planned: Plan = plan(self.recipe, _node_of(self.cluster, gpus), **self.settings)
        return planned

    def __repr__(self) -> str:
        """Shows the outstanding counts; `columns` has all of them."""
        gpus = self.columns["gpus"]
        critical = "None" if self.critical_batch is None else figure(self.critical_batch)
        best = f"fastest={self.fastest}, cheapest={self.cheapest}, knee={self.knee}"
        return f"Counts({counted(len(gpus), 'GPU count')}, {best}, critical_batch={critical})"


def counts(
    recipe: Recipe,
    gpus: Sequence[int] = range(1, 1025),
    *,
    profile: Profile | None = None,
    cluster: Cluster | None = None,
    critical_batch: float | None = None,
    whole_nodes: bool | None = None,
    best_batch_up_to: int | None = None,
    micro_batches: Sequence[int] | None = None,
    **settings: Any,
) -> Counts:
    """Plans a job at every GPU count.

    Args:
        recipe: what was tuned.
        gpus: the counts.
        profile: what was measured, for the times; without it hours and cost are not known, and no count is
            fastest.
        cluster: the node: its gpus_per_node, memory, price, GPU type; its number of nodes does not matter.
        critical_batch: in samples; default: the noise scale of the recipe or the profile.
        whole_nodes: leaves out counts above a node that are no whole nodes; else each is one node. Default:
            where a `cluster` or a `profile` is given, since times depend on the nodes.
        best_batch_up_to: looks for the effective batch up to this one (at most 2^26 samples) that works at
            the most counts; without a `policy`.
        micro_batches: the samples per replica per pass that such a batch may be split into; default: any.
        settings: the keywords of `plan`.

    Raises:
        InputError: a profile that is none, a count below 1, no count that fills nodes, more than 10 million
            counts, a `best_batch_up_to` or `micro_batches` outside the limits, or as `plan_fleet`.

    >>> from isobatch.forecast.profile import Constant
    >>> measured = Profile(gradient_bytes=1e8, compute_constant=Constant(value=0.01),
    ...     overlap=Constant(value=1),
    ...     compute_per_sample=Constant(value=0.001), intra_latency_us=Constant(value=5),
    ...     intra_gb_s=Constant(value=1),
    ...     noise_scale=Constant(value=2048))
    >>> found = counts(Recipe(effective_batch=256, lr=0.1, duration="1000st"), [1, 2, 4, 8], profile=measured)
    >>> found.columns["hours"].round(4).tolist(), found.fastest, found.knee
    ([0.0739, 0.0661, 0.0622, 0.0603], 8, 1)
    >>> found.columns["samples_over_least"].tolist()[0]
    1.125
    >>> wide = counts(Recipe(effective_batch=96, lr=0.1), range(1, 9), best_batch_up_to=1000,
    ...     micro_batches=[4, 6])
    >>> wide.best_batch, wide.columns["best_micro_batch"].tolist()
    (960, [6, 6, 4, 6, 6, 4, -1, 6])
    """
    if profile is not None and not isinstance(profile, Profile):
        raise must_be("a Profile", profile, field="profile")
    node = Cluster() if cluster is None else cluster
    if not isinstance(node, Cluster):
        raise must_be("a Cluster", cluster, field="cluster")
    if whole_nodes is None:
        whole_nodes = cluster is not None or profile is not None
    listed = _listed(gpus, node.gpus_per_node, whole_nodes=whole_nodes)
    clusters = [_node_of(node, count) for count in listed.tolist()]
    if profile is not None:
        settings["profile"] = profile
    planned = plan_fleet([recipe], clusters, columns=_COLUMNS, **settings)
    columns = {"gpus": listed.astype(np.int64)} | planned
    limit, definition = _critical(recipe, profile, critical_batch)
    if limit is not None:
        batch = np.where(columns["effective_batch"] > 0, columns["effective_batch"], np.nan)
        with np.errstate(over="ignore"):
            over = {"samples_over_least": 1 + batch / limit, "steps_over_least": 1 + limit / batch}
        # A figure that no float holds is not known, as it is in a plan.
        columns |= {name: np.where(np.isinf(column), np.nan, column) for name, column in over.items()}

    best = _best_batch(columns, settings, best_batch_up_to, micro_batches)

    def least(values: NDArray[np.float64]) -> int | None:
        known = ~np.isnan(values)
        return int(listed[np.argmin(np.where(known, values, np.inf))]) if known.any() else None

    return Counts(
        columns=columns,
        fastest=least(columns["hours"]),
        cheapest=least(columns["cost"]),
        knee=least(compared(columns)),
        critical_batch=limit,
        definition=definition,
        recipe=recipe,
        cluster=node,
        settings=settings,
        best_batch=best,
    )


def _listed(gpus: Sequence[int], per_node: int, *, whole_nodes: bool) -> NDArray[Any]:
    """Reads the counts, with `whole_nodes` only parts of one node and whole nodes."""
    counts = np.asarray(gpus[: _MAX_GPU_COUNTS + 1] if isinstance(gpus, range) else gpus)
    is_float = counts.dtype.kind == "f"
    if is_float and ((np.abs(counts) <= 2**53) & (np.floor(counts) == counts)).all():
        counts = counts.astype(np.int64)
    if counts.dtype.kind not in "iu" or counts.ndim != 1 or not counts.size or counts.min() < 1:
        raise InputError("gpus must be a sequence of whole numbers from 1", field="gpus")
    if counts.size > _MAX_GPU_COUNTS:
        why = f"gpus must have at most {_MAX_GPU_COUNTS:,} counts; ask for the rest in another call"
        raise InputError(why, field="gpus")
    if whole_nodes:
        counts = counts[fills_nodes(counts, per_node)]
    if not counts.size:
        why = f"no count fills nodes of {per_node} GPUs: use whole nodes, or another gpus_per_node"
        raise InputError(why, field="gpus")
    return counts


def fills_nodes(gpus: NDArray[np.int64], per_node: int) -> NDArray[np.bool_]:
    """Tells for each GPU count whether it is a part of one node, or whole nodes."""
    fills: NDArray[np.bool_] = (gpus <= per_node) | (gpus % per_node == 0)
    return fills


def _best_batch(
    columns: dict[str, NDArray[Any]],
    settings: Mapping[str, Any],
    up_to: int | None,
    micro_batches: Sequence[int] | None,
) -> int | None:
    """Finds the batch for the most counts, and adds its split at each count to the columns."""
    if up_to is None:
        if micro_batches is not None:
            raise InputError("micro_batches must come with best_batch_up_to", field="micro_batches")
        return None
    limit = whole(up_to, "best_batch_up_to", MAX_BATCH)
    if "policy" in settings:
        raise InputError("best_batch_up_to goes without a policy", field="best_batch_up_to")
    micros = wholes([1] if micro_batches is None else micro_batches, "micro_batches", 1, MAX_BATCH)
    replicas = np.maximum(columns["data_parallel"], 0).astype(np.int64)
    best = best_batch(replicas, limit, micros.tolist(), settings.get("batch_multiple", 1))
    unsplit = np.full(len(replicas), -1)
    columns["best_micro_batch"] = unsplit if best is None else best.micro_batch
    columns["best_accumulation"] = unsplit if best is None else best.accumulation
    return None if best is None else best.batch


def _node_of(node: Cluster, gpus: int) -> Cluster:
    """Returns part of one node, or whole nodes; one node for any other count."""
    per_node = node.gpus_per_node
    each = gpus if gpus < per_node or gpus % per_node else per_node
    return msgspec.structs.replace(node, nodes=gpus // each, gpus_per_node=each)


def _groups(reasons: int, batch: int, replicas: int, micro: int) -> tuple[tuple[int, int], ...]:
    """Groups the replicas of a row by their samples in a step, the larger first."""
    if reasons & int(INFEASIBLE):
        return ()
    unit = micro if reasons >> Reason.UNEVEN.bit & 1 else 1
    low, more = divmod(batch // unit, replicas)
    return tuple((some, each * unit) for some, each in ((more, low + 1), (replicas - more, low)) if some)


def _critical(
    recipe: Recipe, profile: Profile | None, critical_batch: float | None
) -> tuple[float | None, str]:
    """Returns the critical batch, and its definition with the 95 % interval."""
    if critical_batch is not None:
        legal = "a number of samples above 0"
        return real(critical_batch, "critical_batch", legal, lambda x: x > 0), "as given"
    noise, interval = recipe.noise_scale, "no range known"
    if noise is None and profile is not None:
        noise = profile.noise_scale_over_run(recipe.effective_batch)
        constant = None if profile.noise_by_progress else profile.noise_scale
        if constant is not None and constant.error:
            low, high = max(0.0, constant.value - constant.error), constant.value + constant.error
            most = f"to {figure(high)}" if np.isfinite(high) else "or more"
            interval = f"{figure(low)} {most} (95 % interval)"
    if noise is None:
        return None, "not known"
    return noise, f"the simple noise scale tr(Σ)/|G|² (McCandlish et al., 1812.06162); {interval}"
