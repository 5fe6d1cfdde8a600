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
from isobatch.words import count, counted, few, figure

Record = Mapping[str, Any]
MAX_LOG_BYTES = 1 << 27
"""Bytes of a log, all of which its page shows."""


def log_in(path: str) -> list[Record] | None:
    """Reads a log of answers of `isobatch allocate --json`, one a line, with `seconds`; None of other files.

    A single answer needs no time.
    """
    try:
        with Path(path).open(encoding="utf-8") as file:
            first = file.readline(MAX_LOG_BYTES)
            if not first.startswith("{") or not is_division(json.loads(first)):
                return None
    except (OSError, ValueError, RecursionError):
        return None
    lines = read_whole(path, MAX_LOG_BYTES).splitlines()
    records: list[Record] = []
    for row, line in enumerate(lines, 1):
        record = _answer(line, is_single=len(lines) == 1)
        if record is None or (records and record["seconds"] < records[-1]["seconds"]):
            legal = "an answer of isobatch allocate --json with its seconds, which do not fall"
            raise InputError(f"is not {legal}", file=path, row=row)
        records.append(record)
    return records


def is_division(record: Any) -> bool:
    """Tells whether a value of JSON has the keys of an answer, or of a line of a log."""
    return isinstance(record, dict) and "jobs" in record and bool({"seconds", "objective"} & record.keys())


def read_division(text: str, path: str) -> Record:
    """Reads one answer of `isobatch allocate --json`."""
    record = _answer(text, is_single=True)
    if record is None:
        raise InputError("is not an answer of isobatch allocate --json", file=path)
    return record


def _answer(line: str, *, is_single: bool) -> Record | None:
    """Reads a line; None where it is no answer."""
    try:
        record: dict[str, Any] = json.loads(line)
        if is_single:
            record.setdefault("seconds", 0)
        counts = [gpus for job in record["jobs"] for gpus in (job["job"], job["nodes"])[1].values()]
        right = all(type(gpus) is int and 0 < gpus <= 1 << 20 for gpus in counts)
        return record if right and math.isfinite(record["seconds"]) else None
    except (ValueError, TypeError, KeyError, AttributeError):
        return None


def allocation_page(records: Sequence[Record], *, title: str | None = None, currency: str = "$") -> HtmlPage:
    """Makes the page of a log; times are hours since its first line."""
    if len(records) == 1:
        return _division_page(records[0], title, currency)
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
    kinds, idle = {band["kind"] for band in bands}, "idle GPUs have no band"
    if few := len(kinds) <= len(SERIES):
        described = f"Each band is a job's GPUs on a node; {idle}."
    else:
        number = {name: at for at, name in enumerate(dict.fromkeys(band["job"] for band in bands))}
        bands = [band | {"kind": str(number[band["job"]] % len(SERIES))} for band in bands]
        described = f"Each band is a job's GPUs on a node; colours only tell neighbours apart; {idle}."
    drawings = [Drawing(held(bands, legend=few), "Who had which GPUs", described)] if bands else []
    jobs = {str(job["job"]) for record in records for job in record["jobs"]}
    answer = f"{counted(len(jobs), 'job')} used {figure(used)} GPUs on average"
    section = Section("Over time", drawings=drawings, tables=[_totals(records)])
    return HtmlPage(title or f"The pool over {figure(hours)} hours: {answer}", "", headlines, [section])


def _division_page(record: Record, title: str | None, currency: str) -> HtmlPage:
    """Makes the page of a single division: who has what, and why others wait."""
    jobs = record["jobs"]
    used, running = sum(map(_gpus, jobs)), sum(bool(job["nodes"]) for job in jobs)
    figures = {"hours left": "hours_left", "deadline, hours": "deadline_hours", f"cost, {currency}": "cost"}
    figures = {title: name for title, name in figures.items() if any(job.get(name) for job in jobs)}
    rows = [
        (
            str(job["job"]),
            count(_gpus(job)),
            *(figure(job[name]) if job.get(name) is not None else "" for name in figures.values()),
            few([f"{node}: {gpus}" for node, gpus in job["nodes"].items()]),
            str(job.get("why") or ""),
        )
        for job in jobs
    ]
    headlines = [
        Headline("GPUs used", count(used), f"{count(record['idle'])} idle" if "idle" in record else ""),
        Headline("jobs with GPUs", count(running), f"of {count(len(jobs))}"),
    ]
    columns = {"job": "text", "GPUs": "number", **dict.fromkeys(figures, "number"), "nodes": "text"}
    columns |= {"why it waits": "text"} if any(job.get("why") for job in jobs) else {}
    table = HtmlTable("Each job", columns, [row[: len(columns)] for row in rows], sortable=True)
    waiting = len(jobs) - running
    answer = f"{counted(running, 'job')} {'has' if running == 1 else 'have'} {counted(used, 'GPU')}"
    answer += f", {count(waiting)} {'waits' if waiting == 1 else 'wait'}"
    lead = (
        "One answer. To see how GPUs move over time, log each answer with its seconds, and run isobatch "
        "report on the log."
    )
    return HtmlPage(title or answer, lead, headlines, [Section("Who has what", tables=[table])])


def _gpus(job: Mapping[str, Any]) -> int:
    return sum(job["nodes"].values())


def _held_rows(records: Sequence[Record]) -> list[tuple[int, str, float, float]]:
    """Lists the holders of each GPU over time; a job keeps its rows while it holds as many GPUs there."""
    now: list[Counter[str]] = [Counter() for _ in records]
    for used, record in zip(now, records, strict=True):
        for job in record["jobs"]:
            used.update(job["nodes"])
    sizes: Counter[str] = Counter()
    for used in now:
        sizes |= used
    rows = []
    nodes = sorted(sizes, key=lambda name: [part.zfill(9) for part in re.split(r"(\d+)", name)])
    first = dict(zip(nodes, itertools.accumulate((sizes[node] for node in nodes), initial=0), strict=False))
    owners: dict[str, list[str | None]] = {node: [None] * sizes[node] for node in nodes}
    for before, after in itertools.pairwise(records):
        start, end = ((record["seconds"] - records[0]["seconds"]) / 3600 for record in (before, after))
        for node, owner in owners.items():
            owed = Counter({str(job["job"]): job["nodes"].get(node, 0) for job in before["jobs"]})
            stays: list[str | None] = []
            for job in owner:
                stays.append(job if job is not None and owed[job] > 0 else None)
                owed[str(job)] -= stays[-1] is not None
            fresh: Iterator[str] = owed.elements()
            owners[node] = [next(fresh, None) if job is None else job for job in stays]
            rows += [(first[node] + at, job, start, end) for at, job in enumerate(owners[node]) if job]
    return rows


def _bands(rows: Sequence[tuple[int, str, float, float]]) -> list[dict[str, Any]]:
    """Joins touching bands of a job: first in time, then side by side."""
    runs: list[list[Any]] = []
    for row, job, start, end in sorted(rows, key=lambda band: (band[0], band[2])):
        if runs and runs[-1][:2] == [row, job] and runs[-1][3] == start:
            runs[-1][3] = end
        else:
            runs.append([row, job, start, end])
    bands: list[dict[str, Any]] = []
    for row, job, start, end in sorted(runs, key=lambda band: (band[1], band[2], band[3], band[0])):
        band = {"job": job, "kind": re.sub(r"\W?\d+$", "", job), "start": start, "end": end}
        if bands and bands[-1] == band | {"low": bands[-1]["low"], "high": row}:
            bands[-1]["high"] = row + 1
        else:
            bands.append(band | {"low": row, "high": row + 1})
    return bands


def _totals(records: Sequence[Record]) -> HtmlTable:
    """Tables the totals of each job."""
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
    rows = [(job, figure(hours[job]), figure(waited[job]), count(changes[job])) for job in before]
    return HtmlTable("Each job in all", columns, rows, sortable=True)
