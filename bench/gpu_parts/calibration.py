"""The error of a calibration on what it has not seen: fitted to small micro-batches, asked about the largest."""

from __future__ import annotations

from typing import Any

import msgspec

import isobatch as ib
from gpu_parts import models
from gpu_parts.tools import bad, plan, validate
from isobatch.forecast.measurements import Measurements

LIMIT_SECONDS = 300


def run(small: bool) -> dict[str, Any]:
    """By model: predicted and measured time and memory at the micro-batch that was left out."""
    found: dict[str, Any] = {"wrong": []}
    for name in ("mlp",) if small else ("resnet50", "gpt2"):
        micro = models.MICRO[name]
        told = validate(
            plan(1, micro, precision=None if small else "bf16"),
            *(["--quick"] if small else []),
            "--workload",
            f"gpu_parts.models:{name}",
            seconds=140,
        )
        measured = told.get("report", {}).get("measurements")
        if measured is None:
            found["wrong"].append(f"{name}: no measurements: {bad(told)}")
            continue
        whole = msgspec.convert(measured, Measurements)
        steps = sorted(whole.steps, key=lambda one: one.micro_batch)
        held, kept = steps[-1], tuple(steps[:-1])
        if (
            len(kept) < 2
        ):  # a quick run has two sizes: the smaller one is asked about twice then, and nothing is left out
            kept, held = tuple(steps), steps[0]
        try:
            profile = ib.calibrate(msgspec.structs.replace(whole, steps=kept))
        except (
            ib.InputError
        ) as error:  # times among noise: on a busy CPU, where it is only rehearsed, that is no fault
            found[name] = {"refused": str(error)}
            found["wrong"] += [] if small else [f"{name}: {error}"]
            continue
        update = 0.0 if profile.update is None else profile.update.value
        time = profile.compute_constant.value + profile.compute_per_sample.value * held.micro_batch + update
        real = sorted(held.step_seconds)[len(held.step_seconds) // 2]
        row: dict[str, Any] = {
            "held_out_micro_batch": held.micro_batch,
            "left_out": held not in kept,
            "predicted_seconds": time,
            "measured_seconds": real,
            "time_error": time / real - 1,
        }
        fixed, per = profile.memory_fixed_gib, profile.memory_per_sample_gib
        if fixed is not None and per is not None and held.memory_gib:
            row["memory_error"] = (fixed.value + per.value * held.micro_batch) / held.memory_gib - 1
        found[name] = row
    return found
