"""What changed between two validations."""

from __future__ import annotations

from typing import Any

import msgspec

from isobatch.validate.report.document import Report


def compare(a: Report, b: Report) -> dict[str, tuple[Any, Any]]:
    """What differs from one report to another, by name: verdicts and causes of proofs, versions, options, the plan's
    fields, and the main figures.

    >>> from isobatch.validate import Options, Verdict
    >>> fields = dict(isobatch_version="0", started="", wall_seconds=1.0, rehearsal=None, plan=None, plan_digest="",
    ...               options=Options(), proofs=[])
    >>> compare(Report(verdict=Verdict.PASS, **fields), Report(verdict=Verdict.FAIL, **fields))
    {'verdict': ('pass', 'fail')}
    """
    before, after = _facts(a), _facts(b)
    names = [*before, *(name for name in after if name not in before)]
    return {
        name: (before.get(name), after.get(name)) for name in names if before.get(name) != after.get(name)
    }


def _facts(report: Report) -> dict[str, Any]:
    facts: dict[str, Any] = {"verdict": report.verdict.value, "rehearsal": report.rehearsal}
    for proof in report.proofs:
        facts[f"proof {proof.name}"] = proof.verdict.value
        if proof.diagnosis is not None:
            facts[f"cause of {proof.name}"] = proof.diagnosis.text
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
        for name in ("sync_median_seconds", "compute_median_seconds", "samples_per_second", "gradient_bytes"):
            facts[name] = getattr(report.step, name)
        # Not the last one: a search for the largest micro-batch adds its own.
        planned = (row for row in report.step.micro_batches if row.micro_batch == report.step.micro_batch)
        facts["peak_memory_bytes"] = next(planned).peak_memory_bytes
    if report.allreduce is not None:
        for row in report.allreduce.table:
            if row.mode == "isolated":
                facts[f"bus_bw_gb_s of {row.dtype} at {row.bytes} bytes"] = row.bus_bw_gb_s
    if report.noise is not None:
        facts["noise_scale"] = report.noise.noise_scale
    return facts


def show(changes: dict[str, tuple[Any, Any]]) -> str:
    """The changes as lines of text, figures with their relative change.

    >>> print(show({"verdict": ("pass", "fail"), "samples_per_second": (100.0, 90.0)}))
    verdict: pass → fail
    samples_per_second: 100 → 90 (-10.0%)
    """
    lines = []
    for name, (before, after) in changes.items():
        if isinstance(before, float) and isinstance(after, float) and before:
            lines.append(f"{name}: {before:.6g} → {after:.6g} ({after / before - 1:+.1%})")
        else:
            lines.append(f"{name}: {before} → {after}")
    return "\n".join(lines)
