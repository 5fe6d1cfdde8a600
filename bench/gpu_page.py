"""The page of a day with one GPU, and the reasons against publishing it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gpu_rows import ROWS, rows_left, simulate

NEEDED = ("driver", "clocks", "power", "mig", "other_processes")
BEGINS, ENDS = "<!-- the day -->", "<!-- /the day -->"
"""Marks of the page's part that a day fills; the rest is written by hand."""


def refusals(day: dict[str, Any]) -> list[str]:
    """Lists why the figures of a day are not published."""
    if day["rehearsal"]:
        return [day["rehearsal"]]
    results = [result for rows in day["parts"].values() for result in rows.values()]
    kinds = sorted({str(result["machine"]["device"]) for result in results})
    reasons = [f"rows of different GPUs: {', '.join(kinds)}"] if len(kinds) > 1 else []
    for part, rows in day["parts"].items():
        for name, result in rows.items():
            where, machine = f"{part}, {name}: ", result["machine"]
            if machine["device"] == "cpu":
                return [where + "no GPU was used"]
            for needed in NEEDED:
                value = machine.get(needed)
                if value is None or (isinstance(value, dict) and None in value.values()):
                    reasons.append(f"{where}{needed} is not known")
            if machine.get("other_processes"):
                reasons.append(f"{where}{machine['other_processes']} other processes were on the GPU")
            if machine.get("mig"):
                reasons.append(where + "the GPU was divided (MIG)")
    return reasons


def reasons(result: dict[str, Any]) -> list[str]:
    """Lists why a row is not done."""
    return [*filter(None, [result.get("error")]), *map(str, result.get("figures", {}).get("wrong", []))]


def figures_of(result: dict[str, Any]) -> list[str]:
    """Lists a row's figures in a few words each; long texts are only in the JSON."""
    figures = {name: value for name, value in result.get("figures", {}).items() if name != "wrong"}
    texts = {
        name: f"{value:.4g}" if isinstance(value, float) else str(value) for name, value in figures.items()
    }
    return [f"{name} {text.strip()}" for name, text in texts.items() if len(text) <= 160]


def page_of(day: dict[str, Any]) -> str:
    """Returns the day for people: the machine, what is left, and a table in the order of the rows."""
    state = next(result["machine"] for rows in day["parts"].values() for result in rows.values())
    calls = "; ".join(f"{call['used']:.0f} of {call['seconds']:.0f} s" for call in day["calls"])
    waiting = "; ".join(f"{row.part}, {row.name}" for row in rows_left(day["parts"]))
    lines = [
        f"**{day['rehearsal']}.**" if day["rehearsal"] else "[All figures](day.json).",
        f"{state['device']}, driver {state.get('driver')}, torch {state['torch']}, Python {state['python']}, "
        f"{state['cores']} cores; at the start clocks {state.get('clocks')}, power {state.get('power')}; "
        f"not divided, no other process. Two ranks on it prove function, not speed. Calls: {calls}.",
        *(["", f"**Unfinished**, not run: {waiting}."] if waiting else []),
        "",
        "| part | row | outcome | expected, s | measured, s | figures |",
        "|---|---|---|---|---|---|",
    ]
    for row in ROWS:
        if result := day["parts"].get(row.part, {}).get(row.name):
            text = "; ".join(reasons(result) or figures_of(result)).replace("|", "/").replace("\n", " ")[:600]
            numbers = f"{row.expected:g} | {result['seconds']}"
            lines.append(f"| {row.part} | {row.name} | {result['outcome']} | {numbers} | {text} |")
    return "\n".join([*lines, ""])


def write_page(file: Path, day: dict[str, Any]) -> None:
    """Puts a day into the page, between its two marks."""
    text = file.read_text() if file.exists() else f"# On one GPU\n\n{BEGINS}{ENDS}\n"
    before, _, rest = text.partition(BEGINS)
    file.write_text(f"{before}{BEGINS}\n\n{page_of(day)}\n{ENDS}{rest.partition(ENDS)[2]}")


def print_simulation() -> None:
    """Prints each call's whole rows where rows take 0.7, 1 and 1.4 times their expected seconds."""
    print("| pace | rows, whole: first call, second | idle, s | left |\n|---|---|---|---|")
    for scale in (0.7, 1.0, 1.4):
        parts: Any = {}
        calls = simulate(scale, parts)
        counts, idle = zip(*((len(rows), round(seconds)) for rows, seconds in calls), strict=True)
        rest = "; ".join(f"{row.part}, {row.name}" for row in rows_left(parts))
        print(f"| × {scale:g} | {counts[0]}, {counts[1]} of {len(ROWS)} | {idle[0]}, {idle[1]} | {rest} |")
