"""What changed between two validations, beyond what noise explains."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec
import numpy as np

from isobatch.validate.report.document import Report
from isobatch.words import figure, percent

SPREADS = 3.0
"""A figure has changed where it moved by more than this many times the spreads of both reports together."""

LEAST = 0.02
"""And by more than this, relative to what it was: two runs differ by more than the spread inside of each."""


class _Figure(NamedTuple):
    """A measured figure, and half the width of what noise makes of it."""

    value: float
    spread: float

    def unlike(self, other: _Figure) -> bool:
        """Whether two figures differ beyond their noise."""
        off = abs(self.value - other.value)
        return off > max(SPREADS * (self.spread + other.spread), LEAST * abs(self.value))


def compare(a: Report, b: Report) -> dict[str, tuple[Any, Any]]:
    """What differs from one report to another, by name: verdicts and causes of proofs, versions, options, the plan's
    fields; and the main figures that both have, where they moved by more than their spread.

    >>> from isobatch.validate import Options, Verdict
    >>> fields = dict(isobatch_version="0", started="", wall_seconds=1.0, rehearsal=None, plan=None, plan_digest="",
    ...               options=Options(), proofs=[])
    >>> compare(Report(verdict=Verdict.PASS, **fields), Report(verdict=Verdict.FAIL, **fields))
    {'verdict': ('pass', 'fail')}
    """
    before, after = _facts(a), _facts(b)
    names = [*before, *(name for name in after if name not in before)]
    changes = {
        name: (before.get(name), after.get(name)) for name in names if before.get(name) != after.get(name)
    }
    old, new = dict(_figures(a)), dict(_figures(b))
    for name in old.keys() & new.keys():
        if old[name].unlike(new[name]):
            changes[name] = old[name].value, new[name].value
    return changes


def _facts(report: Report) -> dict[str, Any]:
    facts: dict[str, Any] = {"verdict": report.verdict.value, "rehearsal": report.rehearsal}
    for proof in report.proofs:
        facts[f"proof {proof.name}"] = proof.verdict.value
        if proof.diagnosis is not None:
            facts[f"causes of {proof.name}"] = ", ".join(proof.diagnosis.causes)
    facts |= {f"option {name}": value for name, value in msgspec.structs.asdict(report.options).items()}
    if report.plan is not None:
        facts |= {f"plan {name}": value for name, value in msgspec.to_builtins(report.plan).items()}
    if report.machine is not None:
        facts |= {f"version of {name}": value for name, value in report.machine.versions.items()}
        facts |= {f"environment {name}": value for name, value in report.machine.environment.items()}
        facts["backend"] = report.machine.backend
        facts["ranks"] = len(report.machine.ranks)
        facts["nodes"] = report.machine.nodes
        facts["devices"] = sorted({rank.device for rank in report.machine.ranks})
    if report.step is not None:
        facts["gradient_bytes"] = report.step.gradient_bytes
    return facts


def _figures(report: Report) -> Iterator[tuple[str, _Figure]]:
    """The main figures, each with its spread."""
    step = report.step
    if step is not None:
        yield "sync_median_seconds", _of(step.sync_median_seconds, step.sync_seconds)
        yield "compute_median_seconds", _of(step.compute_median_seconds, step.compute_seconds)
        relative = step.spread * step.samples_per_second
        yield "samples_per_second", _Figure(step.samples_per_second, relative)
        # Not the last one: a search for the largest micro-batch adds its own.
        for row in step.micro_batches:
            if row.micro_batch == step.micro_batch:
                yield "peak_memory_bytes", _Figure(row.peak_memory_bytes, 0.0)
    if report.allreduce is not None:
        for line in report.allreduce.table:
            if line.mode == "isolated":
                median = _of(line.time_us, line.samples_us)
                name = f"bus_bw_gb_s of {line.dtype} at {line.bytes} bytes"
                yield name, _Figure(line.bus_bw_gb_s, line.bus_bw_gb_s * median.spread / line.time_us)
    noise = report.noise
    if noise is not None and noise.noise_scale is not None and noise.standard_error is not None:
        yield "noise_scale", _Figure(noise.noise_scale, noise.standard_error)


def _of(median: float, every: list[float]) -> _Figure:
    """A median of samples, with half the distance between their quartiles."""
    low, high = np.quantile(every, [0.25, 0.75]) if every else (median, median)
    return _Figure(median or statistics.median(every), float(high - low) / 2)


def show(changes: dict[str, tuple[Any, Any]]) -> str:
    """The changes as lines of text, figures with their relative change.

    >>> print(show({"verdict": ("pass", "fail"), "samples_per_second": (100.0, 90.0)}))
    verdict: pass → fail
    samples_per_second: 100 → 90 (-10 %)
    """
    lines = []
    for name, (before, after) in changes.items():
        if isinstance(before, float) and isinstance(after, float) and before:
            change = percent(after / before - 1, signed=True)
            lines.append(f"{name}: {figure(before)} → {figure(after)} ({change})")
        else:
            lines.append(f"{name}: {_word(before)} → {_word(after)}")
    return "\n".join(lines)


def _word(value: Any) -> Any:
    return "none" if value is None else value
