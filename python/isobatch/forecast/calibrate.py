"""Fits a profile to measurements.

The measurements are those of a validator's report: step times of some shapes and splits, and, where there are
some, times of bare all-reduces by size. :func:`calibrate` fits all constants at once, on relative errors,
with a loss that outliers hardly move, and says which constants the measurements do not tell.
"""

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from isobatch import _core
from isobatch.errors import InputError, must_be
from isobatch.forecast.measurements import SAME, Measurements, check_steps, check_tables, check_values, joined
from isobatch.forecast.profile import GIB, Constant, Profile, Reduced, core_constants

# A constant whose logarithm is not known to better than this (one standard deviation) is not identified.
_VAGUE = 0.7
# A constant that not every workload has is believed where with it the misfit is below this share of that
# without it: a floor must explain much, a lead, which a forward pass always is, only must not explain worse.
_BELIEVED = {"lead": 1.1, "compute_floor": 0.5}


def calibrate(
    measured: Measurements | Sequence[Measurements],
    *,
    older: Profile | None = None,
    names: Sequence[str] | None = None,
) -> Profile:
    """Fits a profile to measurements, and merges it with an older one of the same workload, GPU and link.

    Every configuration counts by its median. Constants that the measurements do not tell are taken from
    `older`, else left out or, where the model needs them, set to nothing at all; `unidentified` names them.
    Constants of both profiles are averaged by their errors. Needs SciPy.

    Args:
        measured: one set of measurements, or several of one workload, GPU and link.
        older: a profile of the same; None: none.
        names: the files that `measured` comes from, for messages.

    Raises:
        InputError: fewer than two configurations, times that are not above 0, medians of one configuration
            that differ by a factor of 2, measurements that no constants explain, an all-reduce table with one
            point, or different workloads, GPUs or links.

    >>> from isobatch.forecast.measurements import Measurements, StepRecord
    >>> step = lambda b, t: StepRecord(gpus=1, gpus_per_node=1, micro_batch=b, accumulation=1,
    ...     step_seconds=(t,))
    >>> runs = Measurements(gradient_bytes=1e8, steps=(step(8, 0.018), step(16, 0.026), step(32, 0.042)))
    >>> profile = calibrate(runs)
    >>> constants = profile.compute_constant, profile.compute_per_sample
    >>> [round(constant.value, 4) for constant in constants], profile.unidentified
    ([0.01, 0.001], ('intra_latency_us', 'intra_gb_s', 'inter_latency_us', 'inter_gb_s', 'overlap', 'update'))
    """
    several = [measured] if isinstance(measured, Measurements) else measured
    if not isinstance(several, (list, tuple)) or not all(isinstance(each, Measurements) for each in several):
        raise must_be("Measurements, or a list of them", measured, field="measured")
    if older is not None and not isinstance(older, Profile):
        raise must_be("a Profile", older, field="older")
    for measurement in several:
        check_values(measurement)
    records = joined(several)
    check_steps(several, names or [f"report {number}" for number in range(1, len(several) + 1)])
    check_tables(records)
    profile = ConstantsFit(records).profile()
    return profile if older is None else merge(profile, older)


def merge(newer: Profile, older: Profile) -> Profile:
    """Averages the constants of both profiles by their errors; an estimate never moves a measured one."""
    for name in SAME:
        value, old_value = getattr(newer, name), getattr(older, name)
        if value != old_value:
            raise InputError(
                f"{name} must be the same, got {value!r} here and {old_value!r} in the older profile",
                field=name,
            )
    new_constants, old_constants = (
        {name: constant for name, constant in profile.constants().items() if name not in profile.unidentified}
        for profile in (newer, older)
    )
    parts = {"memory_fixed_gib", "memory_sharded_gib", "memory_per_sample_gib"}
    if "memory_fixed_gib" in new_constants and ("memory_sharded_gib" in new_constants) != (
        "memory_sharded_gib" in old_constants
    ):
        # One of them splits the memory in other parts, which do not mix.
        old_constants = {name: constant for name, constant in old_constants.items() if name not in parts}
    both = {
        name: _averaged(new_constants[name], old_constants[name])
        for name in new_constants.keys() & old_constants.keys()
    }
    ranges = {
        name: _hull(getattr(newer, name), getattr(older, name))
        for name in ("micro_batch", "replicas_per_node", "nodes")
    }
    layouts = {row.layout for row in newer.all_reduce}
    return msgspec.structs.replace(
        newer,
        **{**old_constants, **new_constants, **both, **ranges},
        all_reduce=newer.all_reduce + tuple(row for row in older.all_reduce if row.layout not in layouts),
        parameters=newer.parameters or older.parameters,
        seq_len=newer.seq_len or older.seq_len,
        noise_by_progress=newer.noise_by_progress or older.noise_by_progress,
        scatter=max(newer.scatter, older.scatter),
        unidentified=tuple(name for name in newer.unidentified if name not in old_constants),
    )


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


class ConstantsFit:
    """Fits the constants to the measurements. All but γ are fitted as logarithms."""

    NAMES = (
        "compute_constant",
        "compute_per_sample",
        "update",
        "intra_latency_us",
        "intra_gb_s",
        "inter_latency_us",
        "inter_gb_s",
        "overlap",
        "lead",
        "compute_floor",
    )

    def __init__(self, measured: Measurements) -> None:
        self.measured = measured
        steps, reduces = measured.steps, measured.all_reduce
        self.seconds = np.array([np.median(step.step_seconds) for step in steps])
        self.reduce_seconds = np.array([np.median(r.seconds) for r in reduces])
        columns = ("gpus", "gpus_per_node", "model_parallel", "micro_batch", "accumulation")
        self.shape = {name: np.array([getattr(s, name) for s in steps]) for name in columns}
        replicas = self.shape["gpus"] // self.shape["model_parallel"]
        per_node = np.clip(self.shape["gpus_per_node"] // self.shape["model_parallel"], 1, replicas)
        self.per_node, self.groups = per_node, -(-replicas // per_node)
        self.core_shape = {name: self.shape[name].astype(np.uint64) for name in columns}
        r_gpus = np.array([r.gpus for r in reduces], np.uint64)
        r_node = np.minimum(np.array([r.gpus_per_node for r in reduces], np.uint64), r_gpus)
        r_groups = (r_gpus + r_node - 1) // np.maximum(r_node, 1)
        self.reduce_wire = r_node, r_groups, np.array([r.bytes for r in reduces], np.float64)
        self.table = self._table()
        self.known_sync = self._known_sync()
        self.free = self._free()

    def _table(self) -> tuple[Reduced, ...]:
        """Groups the measured all-reduces by layout; a size measured twice counts by its median."""
        seconds_by_bytes: dict[tuple[int, int], dict[float, list[float]]] = {}
        node, groups, size = self.reduce_wire
        for n, g, s, seconds in zip(node, groups, size, self.reduce_seconds, strict=True):
            if n * g > 1:
                seconds_by_bytes.setdefault((int(n), int(g)), {}).setdefault(float(s), []).append(
                    float(seconds)
                )
        return tuple(
            Reduced(
                replicas_per_node=n,
                nodes=g,
                bytes=tuple(sorted(by_size)),
                seconds=tuple(float(np.median(by_size[size])) for size in sorted(by_size)),
            )
            for (n, g), by_size in sorted(seconds_by_bytes.items())
            if len(by_size) > 1
        )

    def _known_sync(self) -> NDArray[np.float64]:
        """Returns the seconds of each step's all-reduces by the table, as forecast; NaN outside of it."""
        sizes = self.measured.bucket_bytes or (self.measured.gradient_bytes,)
        known = {row.layout: row.of(sizes) for row in self.table}
        whole = self.shape["model_parallel"] == 1
        seconds = [
            known.get((int(n), int(g))) if w else None
            for n, g, w in zip(self.per_node, self.groups, whole, strict=True)
        ]
        return np.array(seconds, np.float64)

    def _free(self) -> list[str]:
        """Returns the constants with an influence on anything measured."""
        inside = np.concatenate([self.per_node, self.reduce_wire[0]]).max() > 1
        across = np.concatenate([self.groups, self.reduce_wire[1]]).max() > 1
        reduced = bool(((self.per_node > 1) | (self.groups > 1)).any())
        conditions = {
            "compute_constant": len(np.unique(self.shape["micro_batch"])) > 1,
            "compute_per_sample": True,
            "update": len(np.unique(self.shape["accumulation"])) > 1,
            "intra_latency_us": inside,
            "intra_gb_s": inside,
            "inter_latency_us": across,
            "inter_gb_s": across,
            "overlap": reduced,
        }
        return [name for name, needed in conditions.items() if needed]

    def _predict(self, c: dict[str, float]) -> tuple[NDArray[Any], NDArray[Any]]:
        """Seconds of every step and of every all-reduce."""

        constants = core_constants({name: Constant(value=value) for name, value in c.items()})
        steps = _core.step_rows(
            constants,
            self.measured.gradient_bytes,
            float(max(1, len(self.measured.bucket_bytes))),
            self.core_shape,
            self.known_sync,
        )
        return steps, _core.all_reduce_rows(constants, *self.reduce_wire)

    def _constants(self, theta: NDArray[Any], free: list[str]) -> dict[str, float]:
        nothing = dict.fromkeys(self.NAMES, 0.0)
        nothing |= {"intra_gb_s": np.inf, "inter_gb_s": np.inf, "overlap": 1.0}
        values = {name: float(np.exp(t)) for name, t in zip(free, theta, strict=True)}
        if "overlap" in values:
            values["overlap"] = 1 + 9 / (1 + 1 / values["overlap"])
        if "lead" in values:
            values["lead"] = 1 / (1 + 1 / values["lead"])
        return nothing | values

    def _start(self, gamma: float) -> dict[str, float]:
        """Guesses a start: half of the fastest sample is constant, and links are as fast as needed."""
        s = self.shape
        per_pass = self.seconds / s["accumulation"]
        fastest = int(np.argmin(per_pass / s["micro_batch"]))
        remainder = max(float(np.median(self.seconds)) * 0.2, 1e-9)
        bandwidth = max(2 * self.measured.gradient_bytes / remainder / 1e9, 1e-6)
        return {
            "compute_constant": float(per_pass[fastest]) / 5,
            "compute_per_sample": float(per_pass[fastest] / s["micro_batch"][fastest]) * 0.8,
            "update": float(np.median(self.seconds)) / 20,
            "intra_latency_us": 10.0,
            "intra_gb_s": bandwidth,
            "inter_latency_us": 30.0,
            "inter_gb_s": bandwidth,
            "overlap": (gamma - 1) / (10 - gamma),
            "lead": 0.5,
            "compute_floor": float(per_pass.min()) * 0.9,
        }

    def _solve(self, free: list[str]) -> Any:
        from scipy.optimize import least_squares

        def residuals(theta: NDArray[Any], centre: NDArray[Any]) -> NDArray[Any]:
            steps, reduces = self._predict(self._constants(theta, free))
            # A prior as wide as can be keeps what is not identified from running away.
            return np.concatenate(
                [np.log(steps / self.seconds), np.log(reduces / self.reduce_seconds), 1e-4 * (theta - centre)]
            )

        best = None
        # With a lead, little of it and much of γ explains nearly the same as the reverse: look from where a
        # lead is.
        for gamma in (9.0,) if "lead" in free else (1.2, 3.0):
            start = self._start(gamma)
            centre = np.log([start[name] for name in free])
            is_known = np.isfinite(centre).all() and np.isfinite(residuals(centre, centre)).all()
            if not (is_known and (centre - 25 < centre).all()):
                raise InputError("no constants fit the measurements: measure again")
            bounds = centre - 25, centre + 25
            solution = least_squares(
                residuals, centre, args=(centre,), loss="soft_l1", f_scale=0.05, bounds=bounds
            )
            if best is None or solution.cost < best.cost:
                best = solution
        return best

    def profile(self) -> Profile:
        free = self.free
        solution = self._solve(free)
        several = len(np.unique(self.shape["micro_batch"])) >= 3
        for name, is_needed in (("lead", several and "overlap" in free), ("compute_floor", several)):
            if is_needed:
                more = self._solve([*free, name])
                if more.cost < _BELIEVED[name] * solution.cost and solution.cost > 1e-6:
                    free, solution = [*free, name], more
        constants = self._constants(solution.x, free)
        points = len(self.seconds) + len(self.reduce_seconds)
        residual = solution.fun[:points]
        # A few outliers do not make the others scatter: 1.4826 × the median deviation stands for its square
        # root.
        typical = float(1.4826 * np.median(np.abs(residual))) * (points / max(points - len(free), 1)) ** 0.5
        if typical > 0.5:
            raise InputError(
                f"the measured times do not fit the model (the best fit is {typical:.0%} off): rerun "
                "validate on an idle host; `isobatch validate` without --quick times more steps",
                field="steps.step_seconds",
            )
        covariance = np.linalg.pinv(solution.jac.T @ solution.jac) * max(typical, 1e-4) ** 2
        spread = np.sqrt(np.diag(covariance))  # the standard deviation of every fitted logarithm
        vague = {name for name, sigma in zip(free, spread, strict=True) if sigma > _VAGUE}
        unidentified = tuple(
            name for name in (*self.NAMES[3:8], *self.NAMES[:3]) if name not in free or name in vague
        )
        noise = self.measured.noise_scale
        return Profile(
            workload=self.measured.workload,
            gpu=self.measured.gpu,
            link=self.measured.link,
            gradient_bytes=self.measured.gradient_bytes,
            bucket_bytes=self.measured.bucket_bytes,
            all_reduce=self.table,
            noise_scale=None if noise is None else Constant(value=noise),
            scatter=1.96 * typical,
            micro_batch=_ends(self.shape["micro_batch"]),
            replicas_per_node=_ends(self.per_node),
            nodes=_ends(self.groups),
            unidentified=unidentified,
            **self._fitted(constants, dict(zip(free, spread, strict=True)), vague),
            **self._memory(),
        )

    @staticmethod
    def _fitted(constants: dict[str, float], spread: dict[str, float], vague: set[str]) -> dict[str, Any]:
        fields: dict[str, Any] = {}
        for name, sigma in spread.items():
            value = constants[name]
            # d value / d logarithm: the overlap is 1 + 9·(logistic function), the lead is one.
            rises = {"overlap": (value - 1) * (10 - value) / 9, "lead": value * (1 - value)}
            rise = rises.get(name, value)
            # A vague constant is kept, since the fit leans on it, but its error is not pretended.
            fields[name] = Constant(value=value, error=None if name in vague else float(1.96 * sigma * rise))
        if "compute_constant" not in fields:
            fields["compute_constant"] = Constant(value=0.0)
        return fields

    def _memory(self) -> dict[str, Any]:
        """Fits fixed memory and memory per sample to peaks of two micro-batches or more; none lies above."""
        if self.measured.sharded:
            return self._sharded_memory()
        points = {(s.micro_batch, s.memory_gib) for s in self.measured.steps if s.memory_gib is not None}
        batch = np.array([b for b, _ in points], np.float64)
        peak = np.array([m for _, m in points], np.float64)
        if len(np.unique(batch)) < 2:
            return {}
        slope, fixed = np.polyfit(batch, peak, 1)
        slope, fixed = max(float(slope), 1 / GIB), max(float(fixed), 0.0)
        above = float(np.max(peak - fixed - slope * batch))
        return {
            "memory_fixed_gib": Constant(value=fixed + max(above, 0.0), error=abs(above)),
            "memory_per_sample_gib": Constant(value=slope),
        }

    def _sharded_memory(self) -> dict[str, Any]:
        from scipy.optimize import nnls

        rows = [
            (1.0, step.model_parallel / step.gpus, float(step.micro_batch), step.memory_gib)
            for step in self.measured.steps
            if step.memory_gib is not None
        ]
        of_rows = np.array(sorted(set(rows)), np.float64).reshape(-1, 4)
        terms, peak = of_rows[:, :3], of_rows[:, 3]
        if np.linalg.matrix_rank(terms) < 3:
            return {}  # one count of replicas, or one micro-batch: nothing tells the parts from one another
        (fixed, sharded, slope), _ = nnls(terms, peak)
        slope = max(float(slope), 1 / GIB)
        above = float(np.max(peak - terms @ (fixed, sharded, slope)))
        return {
            "memory_fixed_gib": Constant(value=float(fixed) + max(above, 0.0), error=abs(above)),
            "memory_sharded_gib": Constant(value=float(sharded)),
            "memory_per_sample_gib": Constant(value=slope),
        }


def _ends(values: NDArray[Any]) -> tuple[int, int]:
    return int(values.min()), int(values.max())
