"""What the page of a validation says: the verdicts, the all-reduce with its fit, the step's time as forecast and as measured."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from isobatch import words
from isobatch.report.page import Drawing, Headline, Page, Section, Table
from isobatch.validate.figures import AllReduce, StepTimes
from isobatch.validate.report import Report
from isobatch.words import count, counted, percent


def page_of(report: Report, *, title: str | None = None) -> Page:
    """The page of a validation."""
    title = title or "Validation of a plan"
    sections = [
        _verdicts(report),
        *_all_reduce(report.allreduce),
        *_step(report),
        *_machine(report),
    ]
    return Page(title, _lead(report), _headlines(report), sections, str(report.verdict))


def _lead(report: Report) -> str:
    many = len(report.proofs)
    passed = sum(proof.verdict == "pass" for proof in report.proofs)
    unchecked = sum(proof.verdict == "unchecked" for proof in report.proofs)
    rehearsal = f" A rehearsal: {report.rehearsal} ranks of the plan." if report.rehearsal else ""
    return f"{count(passed)} of {counted(many, 'proof')} passed, {count(unchecked)} not checked.{rehearsal}"


def _headlines(report: Report) -> list[Headline]:
    found = []
    if report.machine is not None:
        ranks = report.machine.ranks
        devices = ", ".join(dict.fromkeys(rank.device for rank in ranks))
        where = counted(report.machine.nodes, "node")
        found.append(Headline("ranks", count(len(ranks)), f"{where}, {report.machine.backend}, {devices}"))
    if report.step is not None:
        found.append(
            Headline(
                "step", words.duration(report.step.planned_step_seconds), f"{report.step.workload}, measured"
            )
        )
        found.append(
            Headline("samples per second", words.figure(report.step.samples_per_second), "over all ranks")
        )
    if report.plan is not None and report.plan.effective_batch is not None:
        found.append(
            Headline(
                "samples per step",
                count(report.plan.effective_batch),
                f"{count(report.plan.world_size)} GPUs planned",
            )
        )
    return found


def _verdicts(report: Report) -> Section:
    rows = []
    for proof in report.proofs:
        advice = "" if proof.diagnosis is None else f"{proof.diagnosis.text}: {proof.diagnosis.advice}"
        rows.append((proof.name, str(proof.verdict), proof.text, advice))
    headers, kinds = ("proof", "verdict", "what was found", "what to do"), ("text", "status", "text", "text")
    width = 4 if any(advice for *_, advice in rows) else 3
    shown = [row[:width] for row in rows]
    table = Table("Each claim of the plan, and how it came out", headers[:width], shown, kinds[:width])
    return Section("Verdicts", tables=[table])


def _all_reduce(found: AllReduce | None) -> list[Section]:
    if found is None or not found.table:
        return []
    from isobatch.charts.measured import all_reduce

    points = [
        {"kind": row.dtype, "bytes": row.bytes, "time_us": row.time_us}
        for row in found.table
        if row.time_us > 0 and row.bytes > 0
    ]
    fits = []
    for fit in found.fits:
        sizes = [row.bytes for row in found.table if row.dtype == fit.dtype and row.bytes]
        for size in np.geomspace(min(sizes), max(sizes), 40).tolist() if sizes else ():
            time_us = fit.alpha_us + fit.us_per_byte * size
            if time_us > 0:
                fits.append({"kind": fit.dtype, "bytes": size, "time_us": time_us})
    large = max(found.table, key=lambda row: row.bytes)
    described = (
        f"Points: measured, medians of the slowest rank. Dashed: the fitted line, latency + bytes / bandwidth. The largest, "
        f"{_bytes(large.bytes)}, took {words.duration(large.time_us / 1e6)}: {words.figure(large.bus_bw_gb_s)} GB/s bus bandwidth."
    )
    rows = [
        (
            fit.dtype,
            words.figure(fit.alpha_us),
            words.figure(1e-3 / fit.us_per_byte) if fit.us_per_byte > 0 else "",
            percent(round(fit.median_residual, 5)),
            percent(round(fit.worst_residual, 5)),
        )
        for fit in found.fits
    ]
    headers = ("fit", "latency, µs", "bandwidth, GB/s", "off in the median", "off at worst")
    tables = [Table("The fitted lines", headers, rows, ("text", *("number",) * 4))] if rows else []
    drawing = Drawing(all_reduce(points, fits), "All-reduce by size", described)
    return [Section("All-reduce", drawings=[drawing] if points else [], tables=[*tables, _sizes(found)])]


def _bytes(size: float) -> str:
    for unit, name in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if size >= unit:
            return f"{words.figure(size / unit)} {name}"
    return f"{count(size)} bytes"


def _sizes(found: AllReduce) -> Table:
    rows = [
        (
            _bytes(row.bytes),
            row.dtype,
            "yes" if row.bucket else "",
            words.figure(row.time_us),
            words.figure(row.p95_us),
            words.figure(row.bus_bw_gb_s),
            count(row.wrong_elements),
        )
        for row in found.table[:200]
    ]
    headers = (
        "array",
        "number format",
        "a bucket of DDP",
        "median, µs",
        "95 %, µs",
        "bus bandwidth, GB/s",
        "wrong elements",
    )
    return Table("All-reduce as measured", headers, rows, ("text", "text", "text", *("number",) * 4))


def _step(report: Report) -> list[Section]:
    step = report.step
    if step is None:
        return []
    from isobatch.charts.measured import step_parts

    forecast = report.options.step_seconds or (report.plan.step_seconds if report.plan is not None else None)
    parts = _parts(step)
    if forecast is not None:
        parts.insert(0, {"bar": "forecast", "part": "whole step, forecast", "seconds": forecast, "order": 0})
    known = f"{words.duration(forecast)} forecast" if forecast is not None else "no forecast of this workload"
    off = f" ({percent(step.planned_step_seconds / forecast - 1, signed=True)})" if forecast else ""
    described = f"Measured: {words.duration(step.planned_step_seconds)} a step; {known}{off}."
    drawing = Drawing(step_parts(parts), "A step's time, forecast and measured", described)
    rows = [
        ("whole step, measured", words.duration(step.planned_step_seconds)),
        ("whole step, forecast", words.duration(forecast) if forecast is not None else "not known"),
        ("computing, median", words.duration(step.compute_median_seconds)),
        ("with its all-reduce, median", words.duration(step.sync_median_seconds)),
        ("with its all-reduce, 95 %", words.duration(step.sync_p95_seconds)),
        ("added by communication", words.duration(max(0.0, step.exposed_seconds))),
        ("overlap of communication", "" if step.overlap is None else percent(step.overlap)),
    ]
    table = Table(
        f"{step.workload}, {counted(step.parameters, 'parameter')}, micro-batch {count(step.micro_batch)}",
        ("figure", "value"),
        rows,
        ("text", "number"),
    )
    return [Section("The step", drawings=[drawing], tables=[table])]


def _parts(step: StepTimes) -> list[dict[str, Any]]:
    """The measured step as computing and what communication adds; a long accumulation by its share."""
    scale = step.planned_step_seconds / step.sync_median_seconds if step.sync_median_seconds else 1.0
    added = max(0.0, step.sync_median_seconds - step.compute_median_seconds)
    seconds: Sequence[tuple[str, float]] = (
        ("computing", scale * (step.sync_median_seconds - added)),
        ("added by communication", scale * added),
    )
    return [
        {"bar": "measured", "part": part, "seconds": took, "order": 1 + at}
        for at, (part, took) in enumerate(seconds)
    ]


def _machine(report: Report) -> list[Section]:
    if report.machine is None:
        return []
    rows = [
        (
            count(rank.rank),
            rank.host,
            rank.device,
            "" if rank.matmul_gflops is None else words.figure(rank.matmul_gflops),
            "" if rank.window_spread is None else words.figure(rank.window_spread),
        )
        for rank in report.machine.ranks[:512]
    ]
    headers = ("rank", "host", "device", "matrix product, GFLOP/s", "slowest window / fastest")
    versions = [(name, value) for name, value in report.machine.versions.items()]
    return [
        Section(
            "The machine",
            tables=[
                Table("Ranks", headers, rows, ("text", "text", "text", "number", "number")),
                Table("Versions", ("software", "version"), versions, ("text", "text")),
            ],
        )
    ]
