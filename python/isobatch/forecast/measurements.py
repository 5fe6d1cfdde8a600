"""Measurements: step times of some shapes and splits, and times of bare all-reduces by size."""

import os
from collections.abc import Sequence

import msgspec
import numpy as np

from isobatch.errors import InputError, must_be
from isobatch.files.whole import read_whole
from isobatch.forecast.profile import check_buckets
from isobatch.limits import MAX_BATCH

SAME = ("workload", "gpu", "link", "gradient_bytes", "bucket_bytes")
_JOINED = (*SAME, "sharded")
"""Fields that comparable measurements share."""

# Medians of the same configuration that differ by more than this factor contradict each other.
_CONTRADICTION = 2.0


class StepRecord(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Step times of one shape and split.

    They are seconds of whole optimizer steps on ``gpus`` over nodes of ``gpus_per_node``.

    ``memory_gib`` is the peak on one GPU, where it was measured.
    """

    gpus: int
    gpus_per_node: int
    micro_batch: int
    accumulation: int
    step_seconds: tuple[float, ...]
    model_parallel: int = 1
    memory_gib: float | None = None


class AllReduceRecord(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Times of bare all-reduces of this size over ``gpus`` on nodes of ``gpus_per_node``."""

    gpus: int
    gpus_per_node: int
    bytes: float
    seconds: tuple[float, ...]


class Measurements(msgspec.Struct, frozen=True, kw_only=True):
    """The measurements of one workload on one kind of GPU and link.

    A validator's report holds them under the key ``measurements``; a file may also hold them alone.
    ``bucket_bytes`` are the all-reduces that a step's gradient goes in, where that is known. ``sharded`` says
    that the replicas share out states among themselves (ZeRO, FSDP), so that the peaks fall with their
    number.
    """

    gradient_bytes: float
    bucket_bytes: tuple[float, ...] = ()
    steps: tuple[StepRecord, ...]
    all_reduce: tuple[AllReduceRecord, ...] = ()
    noise_scale: float | None = None
    sharded: bool = False
    workload: str = ""
    gpu: str | None = None
    link: str | None = None


class _Report(msgspec.Struct):
    measurements: Measurements


def load_measurements(path: str | os.PathLike[str]) -> Measurements:
    """Reads measurements from a validator's report or a file of their own."""
    try:
        text = read_whole(path)
        keys = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
        if "measurements" in keys:
            records = msgspec.json.decode(text, type=_Report).measurements
        elif "steps" in keys:
            records = msgspec.json.decode(text, type=Measurements)
        else:
            raise InputError(
                "is neither a validator's report nor measurements: it has neither measurements nor steps"
            )
        check_values(records)
    except InputError as error:
        raise error.at(file=os.fspath(path)) from error
    except msgspec.DecodeError as error:
        raise InputError(f"no measurements: {error}", file=os.fspath(path)) from error
    return records


def joined(measured: Sequence[Measurements]) -> Measurements:
    """Joins the measurements of several reports on the same workload, GPU and link."""
    if not measured:
        raise InputError("measurements must have at least one report, got none", field="measurements")
    first = measured[0]
    for measurement in measured[1:]:
        for name in _JOINED:
            value, another = getattr(first, name), getattr(measurement, name)
            if value != another:
                raise InputError(
                    f"{name} must be the same, got {value!r} in one report and {another!r} in another",
                    field=name,
                )
    noise = [m.noise_scale for m in measured if m.noise_scale is not None]
    return msgspec.structs.replace(
        first,
        steps=tuple(record for m in measured for record in m.steps),
        all_reduce=tuple(record for m in measured for record in m.all_reduce),
        noise_scale=float(np.median(noise)) if noise else None,
    )


def check_values(measured: Measurements) -> None:
    """Refuses impossible values."""
    for field, records in (("steps", measured.steps), ("all_reduce", measured.all_reduce)):
        for row, record in enumerate(records, 1):
            for name, value in msgspec.structs.asdict(record).items():
                if value is None:
                    continue
                values = value if isinstance(value, tuple) else (value,)
                if not values or not all(0 < v < np.inf for v in values):
                    raise must_be("above 0", value, row=row, field=f"{field}.{name}")
                if type(value) is int and value > MAX_BATCH:
                    raise must_be(f"at most {MAX_BATCH:,}", value, row=row, field=f"{field}.{name}")
            if isinstance(record, StepRecord) and record.gpus % record.model_parallel:
                raise InputError("does not divide the GPUs", row=row, field="steps.model_parallel")
    if not measured.gradient_bytes > 0:
        raise must_be("above 0", measured.gradient_bytes, field="gradient_bytes")
    check_buckets(measured.bucket_bytes, measured.gradient_bytes)
    noise = measured.noise_scale
    if noise is not None and not 0 < noise < np.inf:
        raise must_be("a number of samples above 0", noise, field="noise_scale")


def check_steps(several: Sequence[Measurements], names: Sequence[str]) -> None:
    """Refuses too few step times, and contradictory ones. `names` says where each comes from."""
    by_shape: dict[tuple[int, ...], list[float]] = {}
    pairs = zip(names, several, strict=True)
    records = (
        (name, row, step) for name, measurement in pairs for row, step in enumerate(measurement.steps, 1)
    )
    for name, row, step in records:
        shape = step.gpus, step.gpus_per_node, step.model_parallel, step.micro_batch, step.accumulation
        medians = by_shape.setdefault(shape, [])
        medians.append(float(np.median(step.step_seconds)))
        largest, smaller = medians[-1], medians[:-1]
        far = [median for median in smaller if max(largest, median) > _CONTRADICTION * min(largest, median)]
        if far:
            raise InputError(
                f"micro-batch {step.micro_batch} × accumulation {step.accumulation} on {step.gpus} GPUs "
                f"takes {largest:.4g} s here and {far[0]:.4g} s elsewhere: measure the disturbed one again",
                file=name if len(several) > 1 else None,
                row=row,
                field="steps.step_seconds",
            )
    if len(by_shape) < 2:
        raise InputError(f"steps must have two configurations or more, got {len(by_shape)}", field="steps")


def check_tables(measured: Measurements) -> None:
    """Refuses all-reduces of one size only: latency and bandwidth look alike there."""
    tables = {(record.gpus_per_node < record.gpus) for record in measured.all_reduce}
    for across in tables:
        points = {(r.gpus, r.bytes) for r in measured.all_reduce if (r.gpus_per_node < r.gpus) == across}
        if len(points) < 2:
            raise InputError("a table with one point cannot tell latency from bandwidth", field="all_reduce")
