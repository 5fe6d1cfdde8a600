"""`isobatch sweep`: one recipe over many GPU counts."""

from __future__ import annotations

import argparse
import math
from typing import Any

from isobatch import words
from isobatch.cli import options
from isobatch.cli.parser import Parser, option
from isobatch.cli.source import add_from, recipe
from isobatch.cli.tables import show_table
from isobatch.cli.terminal import say, write_json
from isobatch.errors import InputError, must_be
from isobatch.reason import Reason
from isobatch.recipes.cluster import Cluster

_SPLIT = ("gpus", "micro_batch", "accumulation", "effective_batch", "lr", "total_steps")
_TIMES = (
    "gpus",
    "micro_batch",
    "accumulation",
    "effective_batch",
    "efficiency",
    "hours",
    "gpu_hours",
    "cost",
)
_EXACT = ("lr",)


DESCRIPTION = "Plans one recipe at many GPU counts: how it splits at each and, with a profile, what more GPUs buy and cost."
EXAMPLES = (
    "isobatch sweep job.toml --gpus 1..512 --profile profile.json --price-per-gpu-hour 2.5",
    "isobatch sweep job.toml --gpus 8,16,32 --json",
)

EVERYDAY = f"--gpus --from --set {options.EVERYDAY_HARDWARE} {options.EVERYDAY_SETTINGS} --currency --json"


def add(command: Parser) -> None:
    """Adds the options."""
    command.add_argument("recipe", nargs="?", help="a .toml, .yaml or .json file with Recipe's fields")
    option(
        command,
        "--gpus A..B|N,N",
        "the counts (default 1..1024)",
        type=options.gpu_counts,
        default=range(1, 1025),
    )
    add_from(command)
    where = command.add_argument_group("target cluster")
    option(
        where,
        "--gpus-per-node N",
        f"GPUs per node (default: {options.PER_NODE})",
        type=options.count,
        default=options.PER_NODE,
    )
    options.add_hardware(where)
    option(where, "--currency SIGN", "of the price (default: $)", default="$")
    options.add_settings(command)
    option(command, "--json", "print every count as a line of JSON, the infeasible too")


def run(args: argparse.Namespace) -> int:
    """Prints the feasible counts, and the best of them; 1 where there is none."""
    from isobatch.fleet.sweep import sweep

    asked = options.settings(args)
    profiles, deadline = asked.pop("profile", []), asked.pop("deadline_hours", None)
    if len(profiles) > 1:
        raise InputError(f"--profile must be one, got {len(profiles)}: a sweep is over one GPU type")
    if deadline is not None and not profiles:
        raise InputError("--deadline-hours needs --profile (see isobatch calibrate)")
    if deadline is not None and not 0 < deadline < math.inf:
        raise must_be("above 0", deadline, field="--deadline-hours")
    node = Cluster(gpus_per_node=args.gpus_per_node, **options.hardware(args))
    found = sweep(recipe(args), args.gpus, profile=profiles[0] if profiles else None, cluster=node, **asked)
    rows = [dict(zip(found.columns, row, strict=True)) for row in zip(*found.columns.values(), strict=True)]
    feasible = [row for row in rows if row["status"] != "infeasible"]
    if args.json:
        for row in rows:
            write_json(_plain(row))
    else:
        _show(feasible, _TIMES if profiles else _SPLIT, args.currency, deadline)
    if unfilled := len(args.gpus) - len(rows):
        say(
            f"left out {words.counted(unfilled, 'GPU count')} that fill no whole nodes of {args.gpus_per_node} GPUs"
        )
    without = [int(row["gpus"]) for row in rows if row["status"] == "infeasible"]
    hint = f"; isobatch plan --gpus {without[0]} says what would work there" if without else ""
    say(f"{len(feasible):,} of {words.counted(len(rows), 'GPU count')} have a plan{hint}")
    for line in _refused(rows):
        say(line)
    if profiles and (why := _unforecast(feasible, node, profiles[0])):
        say(why)
    for line in _summary(found, rows, args.currency, deadline):
        say(line)
    return 0 if feasible else 1


def _show(rows: list[dict[str, Any]], names: tuple[str, ...], currency: str, deadline: float | None) -> None:
    """The table; with a deadline its last column says where it is met."""
    headers = [*names, *(["deadline"] if deadline is not None else [])]
    cells = []
    for row in rows:
        line = [_cell(name, row[name]) for name in names]
        if "cost" in names and line[names.index("cost")]:
            line[names.index("cost")] = words.price(row["cost"], currency)
        if deadline is not None:
            line.append(_against(row["hours"], deadline))
        cells.append(line)
    show_table(headers, cells, spare=("efficiency", "accumulation", "micro_batch"))


def _refused(rows: list[dict[str, Any]]) -> list[str]:
    """The counts without a plan, a line for each reason."""
    counts: dict[Any, list[str]] = {}
    for row in rows:
        for reason in Reason.of(row["reasons"]) if row["status"] == "infeasible" else ():
            if reason.severity == "infeasible":
                counts.setdefault(reason, []).append(words.count(row["gpus"]))
    return [f"no plan on {words.few(gpus, 6)} GPUs: {reason.text}" for reason, gpus in counts.items()]


def _against(hours: float, deadline: float) -> str:
    """Compares a run's hours with the deadline; nothing where they are not known."""
    return "" if hours != hours else "met" if hours <= deadline else "late"


def _unforecast(feasible: list[dict[str, Any]], node: Any, profile: Any) -> str | None:
    """Names the counts without hours, and the way to get them; None where all have some."""
    mute = [int(row["gpus"]) for row in feasible if row["hours"] != row["hours"]]
    if not mute:
        return None
    if len(mute) < len(feasible) and min(mute) > node.gpus_per_node and profile.inter_gb_s is None:
        todo = "the profile has no network between nodes: isobatch estimate --inter-gb-s GB, or calibrate on more nodes"
    elif all(row["total_steps"] == -1 for row in feasible):
        todo = "hours need the length of the run: --set duration=90ep"
    else:
        todo = "the profile does not cover them"
    return f"no hours at {words.counted(len(mute), 'GPU count')} ({words.few(map(str, mute), 4)}): {todo}"


def _summary(found: Any, rows: list[dict[str, Any]], currency: str, deadline: float | None) -> list[str]:
    """Names the fastest, the cheapest and the knee, beside the deadline and the ends of the range."""
    feasible = [row for row in rows if row["status"] != "infeasible"]
    at = {int(row["gpus"]): row for row in feasible}
    # A count beyond which the budget ends, or the forecast, is no end of the range that was asked.
    tried = [*at, *(int(row["gpus"]) for row in rows if int(row["reasons"]) >> Reason.ABOVE_BUDGET.bit & 1)]
    lines = []
    for what in ("fastest", "cheapest", "knee"):
        gpus = getattr(found, what)
        if gpus is None:
            continue
        row, ends = at[gpus], {min(tried): "fewer", max(tried): "more"}
        cost = "" if row["cost"] != row["cost"] else f", {words.price(row['cost'], currency)}"
        known = gpus in ends and len(tried) > 1
        beyond = f" (an end of the range: {ends[gpus]} GPUs may be better)" if known else ""
        lines.append(
            f"{what}: {words.counted(gpus, 'GPU')}, {words.duration(row['hours'] * 3600)}{cost}{beyond}"
        )
    if deadline is not None:
        lines.append(_deadline(feasible, deadline))
    if found.critical_batch is not None:
        lines.append(f"critical batch: {words.figure(found.critical_batch)} samples, {found.definition}")
    return lines


def _deadline(feasible: list[dict[str, Any]], deadline: float) -> str:
    text = f"deadline {words.duration(deadline * 3600)}:"
    met = [row for row in feasible if row["hours"] <= deadline]
    if not met:
        unknown = any(row["hours"] != row["hours"] for row in feasible)
        return f"{text} met at none of {'the counts with known hours' if unknown else 'these counts'}"
    least = min(met, key=lambda row: row["gpu_hours"])
    return (
        f"{text} met at {words.counted(len(met), 'count')}, from {words.counted(int(met[0]['gpus']), 'GPU')}; with the fewest "
        f"GPU-hours on {words.counted(int(least['gpus']), 'GPU')}"
    )


def _cell(name: str, value: Any) -> str:
    if value != value or value == -1:
        return ""
    if name in _EXACT:
        return words.real(value)
    return words.count(value) if value == int(value) else words.figure(value)


def _plain(row: dict[str, Any]) -> dict[str, Any]:
    """A row as JSON has it, its unknown values null."""
    values = {name: value.item() for name, value in row.items()}
    reasons = [reason.value for reason in Reason.of(values.pop("reasons"))]
    return {
        name: None if value in (-1, "") or value != value else value for name, value in values.items()
    } | {"reasons": reasons}
