"""The page of a pool over time: who had which GPUs, from a scheduler's log of its divisions."""

import itertools
import json
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from isobatch.errors import InputError
from isobatch.files.whole import read_whole
from isobatch.report.charts import SERIES, held
from isobatch.report.page import Drawing, Headline, HtmlPage, HtmlTable, Section
from isobatch.words import count, counted, figure

Record = Mapping[str, Any]
MAX_LOG_BYTES = 1 << 27
"""Bytes of a log, all of which its page shows."""


def log_in(path: str) -> list[Record] | None:
    """Reads a log: answers of `isobatch allocate --json`, one a line, each with the `seconds` at which it was given. None of other files.

    Raises:
        InputError: a line is no such answer, or its time is before that of the line before.
    """
    try:
        with Path(path).open(encoding="utf-8") as file:
            first = file.readline(MAX_LOG_BYTES)
            if not first.startswith("{") or not {"seconds", "jobs"} <= json.loads(first).keys():
                return None
    except (OSError, ValueError, RecursionError):
        return None
    lines = read_whole(path, MAX_LOG_BYTES).splitlines()
    found: list[Record] = []
    for row, line in enumerate(lines, 1):
        record = _answer(line)
        if record is None or (found and record["seconds"] < found[-1]["seconds"]):
            legal = "an answer of isobatch allocate --json with its seconds, which do not fall"
            raise InputError(f"is not {legal}", file=path, row=row)
        found.append(record)
    return found


def _answer(line: str) -> Record | None:
    """Reads a line; None where it is no answer."""
    try:
        record: dict[str, Any] = json.loads(line)
        counts = [gpus for job in record["jobs"] for gpus in (job["job"], job["nodes"])[1].values()]
        right = all(type(gpus) is int and 0 < gpus <= 1 << 20 for gpus in counts)
        return record if right and math.isfinite(record["seconds"]) else None
    except (ValueError, TypeError, KeyError, AttributeError):
        return None


def allocation_page(records: Sequence[Record], *, title: str | None = None) -> HtmlPage:
    """Makes the page of a log; times are hours since its first line."""
    last, rows = records[-1], _held_rows(records)
    hours = (last["seconds"] - records[0]["seconds"]) / 3600
    running = [job for job in last["jobs"] if job["nodes"]]
    used = sum(end - start for _, _, start, end in rows) / hours if hours else 0.0
    headlines = [
        Headline("hours", figure(hours), counted(len(records), "division")),
        Headline("GPUs used", figure(used), "on average"),
        Headline("jobs at the end", count(len(running)), f"{count(len(last['jobs']) - len(running))} wait"),
    ]
    bands = _bands(rows)
    kinds = {band["kind"] for band in bands}
    if few := len(kinds) <= len(SERIES):
        described = "Each band is a job's GPUs on a node; white is idle."
    else:
        number = {name: at for at, name in enumerate(dict.fromkeys(band["job"] for band in bands))}
        bands = [band | {"kind": str(number[band["job"]] % len(SERIES))} for band in bands]
        described = "Each band is a job's GPUs on a node; colours tell neighbours apart only; white is idle."
    drawings = [Drawing(held(bands, legend=few), "Who had which GPUs", described)] if bands else []
    jobs = {str(job["job"]) for record in records for job in record["jobs"]}
    answer = f"{counted(len(jobs), 'job')} in {figure(hours)} hours used {figure(used)} GPUs on average"
    section = Section("Over time", drawings=drawings, tables=[_totals(records)])
    return HtmlPage(title or answer, "", headlines, [section])


def _held_rows(records: Sequence[Record]) -> list[tuple[int, str, float, float]]:
    """Finds who held each GPU of each node, from when to when; a job keeps its rows while it keeps as many GPUs there."""
    now: list[Counter[str]] = [Counter() for _ in records]
    for used, record in zip(now, records, strict=True):
        for job in record["jobs"]:
            used.update(job["nodes"])
    sizes: Counter[str] = Counter()
    for used in now:
        sizes |= used
    found = []
    nodes = sorted(sizes, key=lambda name: [it.zfill(9) for it in re.split(r"(\d+)", name)])
    first = dict(zip(nodes, itertools.accumulate((sizes[node] for node in nodes), initial=0), strict=False))
    owners: dict[str, list[str | None]] = {node: [None] * sizes[node] for node in nodes}
    for before, after in itertools.pairwise(records):
        start, end = ((it["seconds"] - records[0]["seconds"]) / 3600 for it in (before, after))
        for node, owner in owners.items():
            wanted = Counter({str(job["job"]): job["nodes"].get(node, 0) for job in before["jobs"]})
            kept: list[str | None] = []
            for job in owner:
                kept.append(job if job is not None and wanted[job] > 0 else None)
                wanted[str(job)] -= kept[-1] is not None
            fresh: Iterator[str] = wanted.elements()
            owners[node] = [next(fresh, None) if job is None else job for job in kept]
            found += [(first[node] + at, job, start, end) for at, job in enumerate(owners[node]) if job]
    return found


def _bands(rows: Sequence[tuple[int, str, float, float]]) -> list[dict[str, Any]]:
    """Joins what follows on itself in time, then what lies beside itself."""
    runs: list[list[Any]] = []
    for row, job, start, end in sorted(rows, key=lambda it: (it[0], it[2])):
        if runs and runs[-1][:2] == [row, job] and runs[-1][3] == start:
            runs[-1][3] = end
        else:
            runs.append([row, job, start, end])
    bands: list[dict[str, Any]] = []
    for row, job, start, end in sorted(runs, key=lambda it: (it[1], it[2], it[3], it[0])):
        band = {"job": job, "kind": re.sub(r"\W?\d+$", "", job), "start": start, "end": end}
        if bands and bands[-1] == band | {"low": bands[-1]["low"], "high": row}:
            bands[-1]["high"] = row + 1
        else:
            bands.append(band | {"low": row, "high": row + 1})
    return bands


def _totals(records: Sequence[Record]) -> HtmlTable:
    """Says what each job had in all."""
    hours, waited, changes, before = Counter[str](), Counter[str](), Counter[str](), dict[str, Any]()
    for record, after in itertools.pairwise(records):
        lasts = (after["seconds"] - record["seconds"]) / 3600
        for job in record["jobs"]:
            name, gpus = str(job["job"]), sum(job["nodes"].values())
            hours[name] += gpus * lasts
            waited[name] += 0 if gpus else lasts
            changes[name] += before.get(name, job["nodes"]) != job["nodes"]
            before[name] = job["nodes"]
    columns = {"job": "text", **dict.fromkeys(("GPU hours", "hours waited", "changes"), "number")}
    rows = [(it, figure(hours[it]), figure(waited[it]), count(changes[it])) for it in before]
    return HtmlTable("Each job in all", columns, rows, sortable=True)
