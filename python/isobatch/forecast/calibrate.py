"""A profile from measurements.

The measurements are those of a validator's report: step times of some shapes and splits, and, where there are some,
times of bare all-reduces by size. :func:`calibrate` fits all constants at once, on relative errors, with a loss that
outliers hardly move, and says which constants the measurements do not tell.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from isobatch.errors import InputError, must_be
from isobatch.forecast.fit import Fit
from isobatch.forecast.measurements import SAME, Measurements, check_steps, check_tables, check_values, joined
from isobatch.forecast.profile import Constant, Profile, Reduced


def calibrate(
    measured: Measurements | Sequence[Measurements],
    *,
    older: Profile | None = None,
    names: Sequence[str] | None = None,
) -> Profile:
    """Fits a profile to measurements, and merges it with an older one of the same workload, GPU and link.

    Every configuration counts by its median. Constants that the measurements do not tell are taken from ``older``, else
    left out or, where the model needs them, set to nothing at all; ``unidentified`` names them. Constants of both
    profiles are averaged by their errors. Needs SciPy.

    ``names`` are the files that they come from, for messages.

    Raises :class:`isobatch.errors.InputError` for fewer than two configurations, times that are not above 0, medians
    of one configuration that differ by a factor of 2, measurements that no constants explain, an all-reduce table with
    one point, and profiles or measurements of different workloads, GPUs or links.

    >>> from isobatch.forecast.measurements import Measurements, StepRecord
    >>> step = lambda b, t: StepRecord(gpus=1, gpus_per_node=1, micro_batch=b, accumulation=1, step_seconds=(t,))
    >>> runs = Measurements(gradient_bytes=1e8, steps=(step(8, 0.018), step(16, 0.026), step(32, 0.042)))
    >>> profile = calibrate(runs)
    >>> round(profile.compute_constant.value, 4), round(profile.compute_per_sample.value, 4), profile.unidentified
    (0.01, 0.001, ('intra_latency_us', 'intra_gb_s', 'inter_latency_us', 'inter_gb_s', 'overlap', 'update'))
    """
    several = [measured] if isinstance(measured, Measurements) else _several(measured)
    if older is not None and not isinstance(older, Profile):
        raise must_be("a Profile", older, field="older")
    for one in several:
        check_values(one)
    records = joined(several)
    check_steps(several, names or [f"report {number}" for number in range(1, len(several) + 1)])
    check_tables(records)
    profile = Fit(records).profile()
    return profile if older is None else merge(profile, older)


def _several(measured: Sequence[Measurements]) -> Sequence[Measurements]:
    if not isinstance(measured, (list, tuple)) or not all(isinstance(one, Measurements) for one in measured):
        raise must_be("Measurements, or a list of them", measured, field="measured")
    return measured


def merge(newer: Profile, older: Profile) -> Profile:
    """The newer profile with what only the older one knows, and constants of both averaged by their errors.

    An estimate never moves a measured constant. Raises InputError for different workloads, GPUs, links or gradients.
    """
    for name in SAME:
        ours, theirs = getattr(newer, name), getattr(older, name)
        if ours != theirs:
            raise InputError(f"is {ours!r} here and {theirs!r} in the older profile", field=name)
    told = {name: constant for name, constant in newer.constants().items() if name not in newer.unidentified}
    known = {name: constant for name, constant in older.constants().items() if name not in older.unidentified}
    parts = {"memory_fixed_gib", "memory_sharded_gib", "memory_per_sample_gib"}
    if "memory_fixed_gib" in told and ("memory_sharded_gib" in told) != ("memory_sharded_gib" in known):
        # One of them splits the memory in other parts, which do not mix.
        known = {name: constant for name, constant in known.items() if name not in parts}
    both = {name: _averaged(told[name], known[name]) for name in told.keys() & known.keys()}
    ranges = {
        name: _hull(getattr(newer, name), getattr(older, name))
        for name in ("micro_batch", "replicas_per_node", "nodes")
    }
    return msgspec.structs.replace(
        newer,
        **{**known, **told, **both, **ranges},
        all_reduce=newer.all_reduce + _others(older.all_reduce, newer.all_reduce),
        noise_by_progress=newer.noise_by_progress or older.noise_by_progress,
        scatter=max(newer.scatter, older.scatter),
        unidentified=tuple(name for name in newer.unidentified if name not in known),
    )


def _others(older: tuple[Reduced, ...], newer: tuple[Reduced, ...]) -> tuple[Reduced, ...]:
    """The older tables of layouts that the newer ones do not have."""
    known = {(row.replicas_per_node, row.nodes) for row in newer}
    return tuple(row for row in older if (row.replicas_per_node, row.nodes) not in known)


def _averaged(newer: Constant, older: Constant) -> Constant:
    if older.estimated or not older.error or not newer.error:
        return newer
    if newer.estimated:
        return older
    weight = older.error**2 / (newer.error**2 + older.error**2)
    return Constant(
        value=weight * newer.value + (1 - weight) * older.value,
        error=newer.error * older.error / float(np.hypot(newer.error, older.error)),
    )


def _hull(a: tuple[int, int] | None, b: tuple[int, int] | None) -> tuple[int, int] | None:
    ends = [end for ends in (a, b) if ends is not None for end in ends]
    return (min(ends), max(ends)) if ends else None
