"""The measured constants of a workload on one kind of GPU and network, and forecasts from them.

A :class:`Profile` is a JSON file of constants, each with its error, the range it was measured over, and a
mark where it was estimated instead. ``isobatch calibrate`` fits one from measurements,
:meth:`Profile.estimate` guesses one from data sheets. The step-time model is that of Pollux (Qiao et al.,
OSDI 2021), with an all-reduce that knows the bytes of the gradient in place of Pollux's line in the number of
replicas, and a lead ℓ, which is 0 there:

    micro-batch   x = max(floor, constant + per_sample · b)
    all-reduce    s = as measured; elsewhere ring inside a node + the faster of ring and tree across nodes
    step          T = (a − 1)·x + ℓx + (((1 − ℓ)x)^γ + s^γ)^(1/γ) + update
"""

import math
import os
from collections.abc import Mapping, Sequence
from operator import lt
from typing import Any, Literal, TypeAlias

import msgspec
import numpy as np
from numpy.typing import ArrayLike, NDArray

from isobatch import _core
from isobatch.errors import InputError, must_be
from isobatch.files.whole import read_whole, save_json
from isobatch.forecast.data_sheets import memory_gib_of
from isobatch.limits import MAX_BATCH, common_rows, one_of, real, whole, wholes
from isobatch.words import count

SCHEMA = 1
GIB = 2**30


_LEGAL = {
    "overlap": ("a number from 1 to 10", 1.0, 10.0, False),
    "lead": ("a share from 0 to 1", 0.0, 1.0, False),
    **dict.fromkeys(
        ("compute_per_sample", "intra_gb_s", "inter_gb_s", "noise_scale"),
        ("a finite number above 0", 0.0, math.inf, True),
    ),
}
"""Of a constant: in words, its range, and whether the lower end is outside."""
_NOT_NEGATIVE = ("a finite number, 0 or more", 0.0, math.inf, False)


def _require(good: bool, legal: str, value: Any, field: str) -> None:
    if not good:
        raise must_be(legal, value, field=field)


class Constant(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A constant of a profile.

    Attributes:
        value: in the unit that its name ends with.
        error: half the width of its 95 % interval, in the same unit; None: not known.
        estimated: whether it was not measured.
    """

    value: float
    error: float | None = None
    estimated: bool = False


class Reduced(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The measured seconds of all-reduces of these sizes over ``nodes`` with ``replicas_per_node`` each."""

    replicas_per_node: int
    nodes: int
    bytes: tuple[float, ...]
    seconds: tuple[float, ...]

    @property
    def layout(self) -> tuple[int, int]:
        """Replicas a node, and nodes."""
        return self.replicas_per_node, self.nodes

    def __post_init__(self) -> None:
        for good, legal, value in (
            (2 <= len(self.bytes) == len(self.seconds), "as many times as sizes, two at least", self.seconds),
            (all(map(lt, (0.0, *self.bytes), (*self.bytes, math.inf))), "bytes that ascend from above 0",
            self.bytes),
            (all(0 < each < math.inf for each in self.seconds), "seconds above 0", self.seconds),
            (min(self.replicas_per_node, self.nodes) >= 1, "over counts of replicas and nodes from 1",
            (self.replicas_per_node, self.nodes)),
        ):  # fmt: skip
            _require(good, legal, value, "all_reduce")

    def of(self, sizes: Sequence[float]) -> float | None:
        """Interpolates the seconds of all-reduces one after another; None where one was not measured."""
        if not all(self.bytes[0] <= size <= self.bytes[-1] for size in sizes):
            return None
        return float(np.interp(sizes, self.bytes, self.seconds).sum())


Recompute: TypeAlias = Literal["attention", "none", "full"]


class Profile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The constants of a workload on one kind of GPU and network.

    Times are in seconds, bandwidths in GB/s (1e9 bytes), latencies in µs, memory in GiB a GPU. ``overlap`` is
    γ: 1 where no communication hides behind computation, 10 where all of it can; ``lead`` the share of a pass
    that runs before the first gradients are ready, behind which nothing hides. A constant that is ``None`` is
    not known: forecasts that need it are NaN (an unknown floor, update or lead counts as 0, an unknown
    overlap as 1). ``bucket_bytes`` are the all-reduces that the gradient goes in (empty: one), ``all_reduce``
    is the table of measured ones. ``micro_batch``, ``replicas_per_node`` and ``nodes`` are the ranges that
    were measured, both ends in them. A GPU needs ``memory_fixed_gib`` + ``memory_sharded_gib`` / replicas +
    ``memory_per_sample_gib`` × micro-batch: what is sharded are the states that the replicas share out among
    themselves (ZeRO, FSDP); unknown, it is 0. ``scatter`` is the 95 % half-width of measured configurations
    around the model, relative. ``noise_by_progress`` is a table of (progress from 0 to 1, noise scale from
    there on) for a noise scale that grows along the run. ``unidentified`` names what the measurements could
    not tell. ``parameters`` and ``seq_len`` (tokens) are the model's and a sample's: a recipe with others has
    no time or memory by this profile, beyond a tenth of difference. ``recompute`` says which
    activations an estimate recomputes: "attention" (its scores), "none" or "full" (those of every layer).
    """

    schema: int = SCHEMA
    workload: str = ""
    parameters: int | None = None
    seq_len: int | None = None
    recompute: Recompute | None = None
    gpu: str | None = None
    link: str | None = None
    gradient_bytes: float
    bucket_bytes: tuple[float, ...] = ()
    all_reduce: tuple[Reduced, ...] = ()
    compute_constant: Constant
    compute_per_sample: Constant
    compute_floor: Constant | None = None
    update: Constant | None = None
    intra_latency_us: Constant | None = None
    intra_gb_s: Constant | None = None
    inter_latency_us: Constant | None = None
    inter_gb_s: Constant | None = None
    overlap: Constant | None = None
    lead: Constant | None = None
    memory_fixed_gib: Constant | None = None
    memory_per_sample_gib: Constant | None = None
    memory_sharded_gib: Constant | None = None
    noise_scale: Constant | None = None
    noise_by_progress: tuple[tuple[float, float], ...] = ()
    scatter: float = 0.0
    micro_batch: tuple[int, int] | None = None
    replicas_per_node: tuple[int, int] | None = None
    nodes: tuple[int, int] | None = None
    unidentified: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        _require(self.schema == SCHEMA, f"{SCHEMA}, which this version reads", self.schema, "schema")
        for name, constant in self.constants().items():
            legal, least, most, strict = _LEGAL.get(name, _NOT_NEGATIVE)
            value, error = constant.value, constant.error
            good = math.isfinite(value) and least <= value <= most and not (strict and value == least)
            _require(good, legal, value, name)
            if error is not None and not (math.isfinite(error) and error >= 0):
                raise must_be("a finite number, 0 or more", error, field=f"{name}.error")
        for name in ("parameters", "seq_len"):
            size = getattr(self, name)
            _require(size is None or 0 < size < 2**63, "a whole number from 1 to 2^63 - 1", size, name)
        for name in ("gradient_bytes", "scatter"):
            value = getattr(self, name)
            _require(math.isfinite(value) and value >= 0, "a finite number, 0 or more", value, name)
        check_buckets(self.bucket_bytes, self.gradient_bytes)
        for name in ("micro_batch", "replicas_per_node", "nodes"):
            low, high = getattr(self, name) or (1, 1)
            _require(1 <= low <= high, "two counts from 1, ascending", (low, high), name)
        starts = [start for start, _ in self.noise_by_progress]
        rising = all(map(lt, starts, [*starts[1:], 1.0])) and starts[:1] in ([], [0])
        _require(rising, "progress that ascends from 0 to below 1", starts, "noise_by_progress")
        for _, noise in self.noise_by_progress:
            legal = "numbers of samples above 0"
            _require(math.isfinite(noise) and noise > 0, legal, noise, "noise_by_progress")

    def constants(self) -> dict[str, Constant]:
        """Returns the known constants by name."""
        values = ((name, getattr(self, name)) for name in self.__struct_fields__)
        return {name: value for name, value in values if isinstance(value, Constant)}

    @property
    def estimated(self) -> bool:
        """Tells whether anything in it was estimated rather than measured."""
        return any(constant.estimated for constant in self.constants().values())

    @property
    def model(self) -> str:
        """Writes the size of the model and the length of a sample, as far as they are known."""
        sizes = ("parameters", self.parameters), ("seq_len", self.seq_len)
        return ", ".join(f"{name} {count(size)}" for name, size in sizes if size is not None)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the profile as JSON; the file appears whole or not at all."""
        save_json(path, msgspec.json.format(msgspec.json.encode(self), indent=2))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "Profile":
        """Reads a profile. Raises InputError, naming the file, for one that is not readable."""
        try:
            return msgspec.json.decode(read_whole(path), type=cls)
        except msgspec.DecodeError as error:
            raise InputError(f"no profile: {error}", file=os.fspath(path)) from error

    @classmethod
    def estimate(
        cls,
        *,
        parameters: int,
        flops_per_sample: float,
        gpu_tflops: float,
        utilization: float = 0.4,
        precision: str = "bf16",
        optimizer: str = "adamw",
        model_parallel: int = 1,
        zero_stage: int = 0,
        offload: bool = False,
        memory_per_sample_gib: float | None = None,
        intra_gb_s: float | None = None,
        inter_gb_s: float | None = None,
        latency_us: float = 10.0,
        workload: str = "",
        gpu: str | None = None,
        link: str | None = None,
    ) -> "Profile":
        """Estimates a profile from the model's size and data sheets, every constant marked as an estimate.

        ``flops_per_sample`` covers forward and backward (6 × parameters × tokens for a transformer),
        ``gpu_tflops`` is the data sheet's peak at this precision, ``utilization`` the share of it that is
        reached. Memory is that of weights, gradients and optimizer state, 16 to 18 bytes a parameter for Adam
        (the error spans both); Adafactor keeps next to none, an average for each row and column of a matrix,
        taken as 1,024 × 1,024 here; activations only where ``memory_per_sample_gib`` is given. Nothing is
        taken to hide (overlap 1).

        ``zero_stage`` says what the replicas share out (Rajbhandari et al. 2020, arXiv 1910.02054, section
        5): 1 the optimizer's state with the float32 copy of the weights, 2 the gradients too, 3 (as FSDP's
        FULL_SHARD) the weights too. With ``offload`` the optimizer's state is in the host's memory, and
        counts for nothing here. Buffers that gather weights or gradients for a moment are not in the
        estimate, nor is the time that stage 3's gathers and an offloaded step take.

        >>> llama = Profile.estimate(parameters=7_000_000_000, flops_per_sample=6 * 7e9 * 4096,
        ...     gpu_tflops=989,
        ...     intra_gb_s=450, inter_gb_s=50, model_parallel=8)
        >>> round(llama.compute_per_sample.value, 4), round(llama.memory_fixed_gib.value, 1), llama.estimated
        (0.0544, 13.0, True)
        >>> shared = Profile.estimate(parameters=7_500_000_000, flops_per_sample=1e9, gpu_tflops=100,
        ...     optimizer="adam", zero_stage=2)
        >>> round(shared.memory_fixed_gib.value, 1), round(shared.memory_sharded_gib.value, 1)
        (14.0, 97.8)
        """
        parameters, model_parallel = whole(parameters, "parameters"), whole(model_parallel, "model_parallel")
        numbers = {
            "flops_per_sample": flops_per_sample,
            "gpu_tflops": gpu_tflops,
            "utilization": utilization,
            "latency_us": latency_us,
            "memory_per_sample_gib": memory_per_sample_gib,
            "intra_gb_s": intra_gb_s,
            "inter_gb_s": inter_gb_s,
        }
        optional = {"memory_per_sample_gib", "intra_gb_s", "inter_gb_s"}
        for name, number in numbers.items():
            if number is not None or name not in optional:
                real(number, name, "a finite number above 0", lambda x: x > 0)
        real(utilization, "utilization", "a share above 0, at most 1", lambda x: x <= 1)
        for name, text in {"workload": workload, "gpu": gpu, "link": link}.items():
            if not isinstance(text, str) and (text is not None or name == "workload"):
                raise must_be("a text", text, field=name)
        if type(zero_stage) is not int or not 0 <= zero_stage <= 3:
            raise must_be("0, 1, 2 or 3", zero_stage, field="zero_stage")
        if type(offload) is not bool:
            raise must_be("true or false", offload, field="offload")
        state, width = state_bytes(optimizer, precision)
        parts = 0.0 if offload else state, width, width  # as the stages of ZeRO shard them, one after another
        whole_bytes, sharded = sum(parts[zero_stage:]), sum(parts[:zero_stage])
        shard = parameters / model_parallel

        def guess(value: float, error: float | None = None) -> Constant:
            return Constant(value=value, error=error, estimated=True)

        def maybe(value: float | None) -> Constant | None:
            return None if value is None else guess(value)

        return cls(
            workload=workload,
            parameters=parameters,
            gpu=gpu,
            link=link,
            gradient_bytes=float(parameters * width),
            compute_constant=guess(0.0),
            compute_per_sample=guess(flops_per_sample / (gpu_tflops * 1e12 * utilization * model_parallel)),
            intra_latency_us=None if intra_gb_s is None else guess(latency_us),
            intra_gb_s=maybe(intra_gb_s),
            inter_latency_us=None if inter_gb_s is None else guess(latency_us),
            inter_gb_s=maybe(inter_gb_s),
            overlap=guess(1.0),
            # DeepSpeed's estimators say 4 + 16/n bytes a parameter in stage 2, 18/n in stage 3, for bf16 and
            # Adam.
            memory_fixed_gib=guess(shard * whole_bytes / GIB, shard * 2 / GIB if whole_bytes else None),
            memory_sharded_gib=guess(shard * sharded / GIB, shard * 2 / GIB) if sharded else None,
            memory_per_sample_gib=maybe(memory_per_sample_gib),
        )

    def forecast(
        self,
        *,
        gpus: ArrayLike,
        micro_batch: ArrayLike,
        accumulation: ArrayLike = 1,
        gpus_per_node: ArrayLike = 8,
        model_parallel: ArrayLike = 1,
    ) -> dict[str, NDArray[Any]]:
        """Forecasts each row; every argument is one value or one a row.

        Returns the columns ``sync_seconds`` (one all-reduce), ``step_seconds``, ``step_error`` (half the
        width of its 95 % interval, from the errors of the constants and the scatter around the model),
        ``samples_per_second``, ``efficiency`` (speed over that of the same split without an all-reduce),
        ``memory_gib`` (a GPU), and, as bool, ``inside_measured_range`` and ``all_reduce_measured`` (from the
        table; or nothing is reduced). NaN where a constant that is needed is not known.

        Raises InputError, naming row and field, for counts below 1 and a model-parallel size that does not
        divide the GPUs.

        >>> profile = Profile(gradient_bytes=1e8, compute_constant=Constant(value=0.01),
        ...     overlap=Constant(value=1),
        ...     compute_per_sample=Constant(value=0.001), intra_latency_us=Constant(value=5),
        ...     intra_gb_s=Constant(value=100))
        >>> profile.forecast(gpus=[1, 8], micro_batch=32)["step_seconds"].round(5).tolist()
        [0.042, 0.04382]
        """
        counts = {
            "gpus": gpus,
            "gpus_per_node": gpus_per_node,
            "model_parallel": model_parallel,
            "micro_batch": micro_batch,
            "accumulation": accumulation,
        }
        shapes = {name: wholes(values, name, 1, MAX_BATCH) for name, values in counts.items()}
        rows = common_rows(shapes)
        remainder = np.broadcast_to(shapes["gpus"] % shapes["model_parallel"], (rows,))
        if remainder.any():
            raise InputError(
                "does not divide the GPUs",
                row=int(remainder.argmax()) + 1 if rows > 1 else None,
                field="model_parallel",
            )
        columns, (inside, measured) = _core.forecast_rows(
            core_constants(self.constants()),
            self._core_gradient(),
            self.scatter,
            self._core_ranges(),
            rows,
            shapes,
        )
        *times, memory = columns
        names = "sync_seconds", "step_seconds", "step_error", "samples_per_second", "efficiency"
        return {
            **dict(zip(names, times, strict=True)),
            "memory_gib": memory / GIB,
            "inside_measured_range": inside,
            "all_reduce_measured": measured,
        }

    def noise_scale_over_run(self, tuned_batch: float) -> float | None:
        """Returns the one noise scale equivalent to a table by progress, at a tuned batch.

        A stretch of the run with noise scale φ costs (φ + m)/(φ + m0) of its samples, so that over stretches
        of weight w the cost is Σ w(φ + m)/(φ + m0): the same as with Σ wφ/(φ + m0) ÷ Σ w/(φ + m0), for every
        m.

        >>> profile = Profile(gradient_bytes=1e8, compute_constant=Constant(value=0.01),
        ...     compute_per_sample=Constant(value=0.001), noise_by_progress=((0, 100.0), (0.5, 1000.0)))
        >>> round(profile.noise_scale_over_run(256))
        299
        """
        if not self.noise_by_progress:
            return None if self.noise_scale is None else self.noise_scale.value
        return _core.noise_over_run(list(self.noise_by_progress), tuned_batch)

    def _core_fields(self) -> dict[str, Any]:
        """Returns the planner's input by name (`ProfileFields` in rust/py/src/forecast.rs)."""
        known = self.constants()
        memory = {"memory_fixed_gib", "memory_per_sample_gib", "memory_sharded_gib"}
        noise = self.noise_by_progress
        if not noise and self.noise_scale is not None:
            noise = ((0.0, self.noise_scale.value),)
        return {
            "gpu": self.gpu,
            "parameters": self.parameters,
            "seq_len": self.seq_len,
            "gpu_memory_gib": memory_gib_of(self.gpu),
            "constants": core_constants(known),
            "gradient": self._core_gradient(),
            "scatter": self.scatter,
            "ranges": self._core_ranges(),
            "times_estimated": any(known[name].estimated for name in known.keys() - memory),
            "memory_estimated": any(known[name].estimated for name in memory & known.keys()),
            "noise_by_progress": list(noise),
        }

    def _core_gradient(self) -> tuple[float, float, list[tuple[int, int, float]]]:
        """Returns the gradient's bytes, the number of its all-reduces, and their times where measured."""
        sizes = self.bucket_bytes or (self.gradient_bytes,)
        measured = [(row.replicas_per_node, row.nodes, row.of(sizes)) for row in self.all_reduce]
        known = [(per_node, nodes, seconds) for per_node, nodes, seconds in measured if seconds is not None]
        return self.gradient_bytes, float(len(sizes)), known

    def _core_ranges(self) -> list[tuple[int, int]]:
        return [measured or (1, 0) for measured in (self.micro_batch, self.replicas_per_node, self.nodes)]


def state_bytes(optimizer: str, precision: str) -> tuple[float, int]:
    """Returns the bytes per parameter of the optimizer's state (with a float32 copy) and of a weight."""
    states, widths = _core.optimizers(), _core.precisions()
    width = widths[one_of(precision, "precision", widths)]
    return (4 if width == 2 else 0) + states[one_of(optimizer, "optimizer", states)], width


def core_constants(known: Mapping[str, Constant]) -> dict[str, tuple[float, float]]:
    """Returns constants by the core's names and in its units, each with its error."""
    unknown = math.nan, 0.0

    def pair(name: str, missing: tuple[float, float] = unknown, unit: float = 1.0) -> tuple[float, float]:
        constant = known.get(name)
        return missing if constant is None else (constant.value * unit, (constant.error or 0.0) * unit)

    def per_byte(name: str) -> tuple[float, float]:
        bandwidth = known.get(name)
        if bandwidth is None:
            return unknown
        seconds = 1e-9 / bandwidth.value
        return seconds, seconds * (bandwidth.error or 0.0) / bandwidth.value

    return {
        "compute_constant": pair("compute_constant"),
        "compute_per_sample": pair("compute_per_sample"),
        "compute_floor": pair("compute_floor", (0.0, 0.0)),
        "update": pair("update", (0.0, 0.0)),
        "intra_latency": pair("intra_latency_us", unit=1e-6),
        "intra_per_byte": per_byte("intra_gb_s"),
        "inter_latency": pair("inter_latency_us", unit=1e-6),
        "inter_per_byte": per_byte("inter_gb_s"),
        "overlap": pair("overlap", (1.0, 0.0)),
        "lead": pair("lead", (0.0, 0.0)),
        "memory_fixed": pair("memory_fixed_gib", unit=GIB),
        "memory_sharded": pair("memory_sharded_gib", (0.0, 0.0), unit=GIB),
        "memory_per_sample": pair("memory_per_sample_gib", unit=GIB),
    }


def as_profiles(profiles: Profile | Sequence[Profile] | None) -> tuple[Profile, ...]:
    """None, one or several profiles as several. Raises InputError for anything else."""
    if profiles is None:
        return ()
    several = tuple(profiles) if isinstance(profiles, (list, tuple)) else (profiles,)
    for profile in several:
        if not isinstance(profile, Profile):
            raise must_be("a Profile or several", profile, field="profile")
    return several


def workloads_of(profiles: Sequence[Profile]) -> _core.Workloads | None:
    """Profiles as the planner takes them; None for none."""
    names = [profile.gpu for profile in profiles]
    for name in names:
        if names.count(name) > 1:
            of = "; ".join(profile.model for profile in profiles if profile.gpu == name and profile.model)
            why = f"two profiles are for {name or 'any GPU type'}{of and f' (of {of})'}"
            todo = (
                "plan the jobs of each model in a run of their own, with its profile (isobatch allocate takes"
            )
            raise InputError(f"{why}: {todo} a column profile)", field="profile")
    return _core.Workloads([profile._core_fields() for profile in profiles]) if profiles else None


def check_buckets(bucket_bytes: Sequence[float], gradient_bytes: float) -> None:
    """Raises InputError where the buckets are not the gradient."""
    whole = math.isclose(sum(bucket_bytes), gradient_bytes, rel_tol=0.01)
    if bucket_bytes and not (whole and all(0 < size < math.inf for size in bucket_bytes)):
        raise InputError(
            f"holds {sum(bucket_bytes)} bytes in {len(bucket_bytes)}, must be above 0 each and "
            f"{gradient_bytes} together",
            field="bucket_bytes",
        )
