"""`isobatch counts`: the GPU counts at which one recipe works, and why not at the others."""

import argparse
import math
from pathlib import Path
from typing import Any

from isobatch import _core
from isobatch.cli import options
from isobatch.cli.source import FROM, retyped, source, target
from isobatch.cli.tables import show_table
from isobatch.cli.terminal import say, write_json
from isobatch.errors import InputError, must_be, unknown
from isobatch.files.texts import shell_words
from isobatch.planning.refusal import LINK_UNKNOWN
from isobatch.reason import Reason
from isobatch.recipes.cluster import NODE_GPUS, Cluster
from isobatch.tools.platforms import PLATFORMS, write
from isobatch.words import count, counted, duration, few, few_gpus, figure, percent, price, real, spent

_SPLIT = ("gpus", "micro_batch", "accumulation", "effective_batch", "groups", "lr", "total_steps")
_TIMES = (*_SPLIT[:5], "efficiency", "hours", "range", "gpu_hours", "cost", "memory_gib")
_HERE = ("--gpus", "--to", "--json", "--output", "--short")
"""Options that say which counts are listed, and where."""


DESCRIPTION = (
    "Lists the GPU counts at which one recipe works, how it splits at each and, with a profile, what more "
    "GPUs buy and cost; also as a platform's own table."
)
EXAMPLES = (
    "isobatch counts job.toml --gpus 1..512 --profile profile.json --price-per-gpu-hour 2.5",
    "isobatch counts job.toml --gpus 8,16,32 --json",
    "isobatch counts job.toml --gpus 1..512 --json --short",
    "isobatch counts job.toml --gpus 1..64 --best-batch-up-to 1024 --micro-batches 8,12",
    "isobatch counts job.toml --gpus 8..128 --split ragged --to hyperpod",
    "isobatch counts --from training_args.json --gpus 1..512 -o page.html",
)

EVERYDAY = (
    f"--gpus --from --set {options.EVERYDAY_HARDWARE} {options.EVERYDAY_SETTINGS} "
    "--best-batch-up-to --micro-batches --to --json --output"
)


OPTIONS = {
    "[recipe]": "a .toml, .yaml or .json file with Recipe's fields",
    "--gpus A..B|N,N": ("the counts (default 1..1024)", range(1, 1025)),
    "recipe": FROM,
    "target cluster": {
        "--gpus-per-node N": (f"GPUs per node (default: {NODE_GPUS})", {"type": options.count}),
        **options.HARDWARE,
        **options.CURRENCY,
    },
    "how to plan": {"settings": options.add_settings},
    "--best-batch-up-to N": "name the effective batch up to N that works at the most of these counts",
    "--micro-batches N,N": "with --best-batch-up-to: split into these micro-batches (default: into any)",
    "--to PLATFORM": f"print the platform's own table of the counts: {', '.join(PLATFORMS)}; with -o, the "
    "tool whose lines the page has to copy (default: that of --from)",
    "--json": "print every count as a line of JSON, the infeasible too",
    "--short": "with --json: one object for schedulers in their place, the counts that work and the best",
    "-o/--output FILE": "write a page (.html) on which a slider shows the plan of each count, under "
    "policies keep and grow or that of --policy; or its charts (.svg, .png)",
}


def run(args: argparse.Namespace) -> int:
    """Prints the feasible counts and the reasons of the rest, or writes their page; 1 if none is feasible."""
    from isobatch.fleet.counts import counts
    from isobatch.fleet.good_counts import GoodCounts
    from isobatch.fleet.rows import UNCAPPED

    _check_options(args)
    recipe_source = source(args)
    tool = target(args) if args.output and args.to else recipe_source.tool  # whose lines a page has to copy
    tuned, keywords = recipe_source.recipe, recipe_source.settings(options.settings(args))
    profiles, deadline = _take_profile_and_deadline(keywords)
    each = args.gpus_per_node or NODE_GPUS
    node = Cluster(gpus_per_node=each, **options.hardware(args))
    whole_nodes = bool(profiles or args.gpus_per_node)
    if not len(_counts_in_nodes(args)) and args.short:
        return _short(GoodCounts.none(each))

    def under(**settings: Any) -> Any:
        profile = profiles[0] if profiles else None
        batches = {"micro_batches": args.micro_batches, "best_batch_up_to": args.best_batch_up_to}
        shared = batches | keywords | settings
        return counts(tuned, args.gpus, profile=profile, cluster=node, whole_nodes=whole_nodes, **shared)

    listing = under()
    # A count that misses the deadline has no plan, as isobatch plan says; the table has its hours.
    in_time = listing if deadline is None else under(deadline_hours=deadline)
    if args.output:
        unlimited = {"best_batch_up_to": None, "micro_batches": None}
        beside = [] if "policy" in keywords else [under(policy="grow", **unlimited)]
        _write_page(args, listing, beside=beside, tool=tool, deadline=deadline)
        return 0 if in_time.working else 1
    if args.to:
        return _write_platform(in_time, args.to)
    rows, answers = _rows(listing), _rows(in_time)
    best = {"best_batch": listing.best_batch} if "best_micro_batch" in listing.columns else {}
    feasible = [row for row in rows if row["status"] != "infeasible"]
    if profiles and (why := _unforecast(feasible, listing)):
        say(why)
    if args.short:
        return _short(listing.good(deadline))
    if args.json:
        for row in answers:
            write_json(_plain(row) | best)
    elif feasible:
        _show(feasible, _TIMES if profiles else _SPLIT, args.currency, deadline)
    planned = [row for row in answers if row["status"] != "infeasible"]
    verb = "has" if len(planned) == 1 else "have"
    say(f"{len(planned):,} of {counted(len(rows), 'GPU count')} {verb} a plan{_way_out(answers, args)}")
    say(*_refused(answers, bool(profiles)))
    if any(Reason.ABOVE_BUDGET in Reason.of(row["reasons"]) for row in rows):
        say(_over_budget(_rows(under(budget=None)), keywords["budget"], args.currency))
    is_open = feasible and listing.plan_at(int(feasible[0]["gpus"])).cap_source == "open"
    sheets = options.sheet_memory(profiles, args.memory_gib, node.gpu)
    say(*([UNCAPPED] if is_open else []), *recipe_source.recomputing(profiles), *sheets)
    if not profiles and options.typed({"price_per_gpu_hour": args.price_per_gpu_hour}, args):
        say("cost is not known: besides a price it needs --profile (isobatch estimate, isobatch calibrate)")
    say(*_summary(listing, rows, args, deadline))
    return 0 if planned or listing.best_batch else 1


def _write_platform(listing: Any, platform: str) -> int:
    """Prints the counts in a platform's own words, and its notes; 1 without a count."""
    text, notes = write(listing, platform)
    print(text, end="")
    say(*notes)
    return 0 if listing.working else 1


def _take_profile_and_deadline(keywords: dict[str, Any]) -> tuple[list[Any], float | None]:
    """Takes the profile, at most one, and the deadline in hours out of the settings of a plan."""
    profiles, deadline = keywords.pop("profile", []), keywords.pop("deadline_hours", None)
    if len(profiles) > 1:
        raise InputError(f"--profile must be one, got {len(profiles)}: counts are of one GPU type")
    if deadline is not None and not profiles:
        raise InputError("--deadline-hours needs --profile (see isobatch calibrate)")
    if deadline is not None and not 0 < deadline < math.inf:
        raise must_be("above 0", deadline, field="--deadline-hours")
    return profiles, deadline


def _check_options(args: argparse.Namespace) -> None:
    if args.to and not args.output and args.to not in PLATFORMS:
        raise unknown("platform", args.to, tuple(PLATFORMS), field="--to")
    if args.short and (not args.json or args.to or args.output):
        raise InputError("--short goes with --json, and without --to and --output", field="--short")


def _counts_in_nodes(args: argparse.Namespace) -> Any:
    """Returns the planned counts; of typed ones, and beside a table, a note names the others."""
    planned, note = options.counts_in_nodes(args)
    if note and (isinstance(args.gpus, list) or not (args.short or args.to or args.output)):
        say(note)
    return planned


def _short(good: Any) -> int:
    """Prints the answer for schedulers; 1 if no count works."""
    write_json(good)
    return 0 if good.gpus else 1


def _rows(listing: Any) -> list[dict[str, Any]]:
    """Returns a row for each count: its columns, and the groups of its replicas."""
    values = zip(*listing.columns.values(), strict=True)
    rows = [dict(zip(listing.columns, row, strict=True)) for row in values]
    return [row | {"groups": groups} for row, groups in zip(rows, listing.groups, strict=True)]


def _way_out(rows: list[dict[str, Any]], args: argparse.Namespace) -> str:
    """Writes the command for the ways out at the first infeasible count; empty if all are feasible."""
    refused = next((int(row["gpus"]) for row in rows if row["status"] == "infeasible"), None)
    again = shell_words(retyped(args, "counts", "plan", without=_HERE))
    return "" if refused is None else f"\n{again} --gpus {refused} says what would work there"


def _write_page(args: argparse.Namespace, listing: Any, **shown: Any) -> None:
    from isobatch.report.pages import write

    name = Path(args.source[0] if args.source else args.recipe or "the recipe").name
    title = f"{name}: what changes with the number of GPUs?"
    write(listing, args.output, title=title, currency=args.currency, **shown)
    size, many = Path(args.output).stat().st_size, len(listing.columns["gpus"])
    say(f"{args.output}: {counted(many, 'GPU count')}, {size / 1e6:.2f} MB")


def _show(rows: list[dict[str, Any]], names: tuple[str, ...], currency: str, deadline: float | None) -> None:
    """Prints the table: with ranges where they are known, and a verdict for each count under a deadline."""
    is_known = {
        "range": any(map(_share, rows)),
        "groups": any(len(row["groups"]) != 1 for row in rows),
        "memory_gib": any(row["memory_gib"] == row["memory_gib"] for row in rows),
    }
    headers = [name for name in names if is_known.get(name, True)]
    headers += ["deadline"] if deadline is not None else []
    cells = [[_cell(name, row, currency, deadline) for name in headers] for row in rows]
    show_table(headers, cells, spare=("efficiency", "accumulation", "micro_batch"))


def _share(row: dict[str, Any]) -> float | None:
    """Returns the relative error of a row's hours and cost; None where it is not known."""
    return row["hours_error"] / row["hours"] if row["hours_error"] > 0 and row["hours"] > 0 else None


def _refused(rows: list[dict[str, Any]], profiled: bool) -> list[str]:
    """The counts without a plan, a line for each reason."""
    counts: dict[Any, list[str]] = {}
    for row in rows:
        for reason in Reason.of(row["reasons"]) if row["status"] == "infeasible" else ():
            if reason.severity == "infeasible":
                counts.setdefault(reason, []).append(count(row["gpus"]))
    elsewhere = any(Reason.OTHER_HARDWARE in Reason.of(row["reasons"]) for row in rows)
    mute = {Reason.NEEDS_PROFILE: LINK_UNKNOWN} if profiled and not elsewhere else {}
    return [
        f"no plan on {few_gpus(gpus, 6)}: {mute.get(reason, reason.text)}" for reason, gpus in counts.items()
    ]


def _over_budget(free: list[dict[str, Any]], budget: float, currency: str) -> str:
    """Writes the costs of the counts, planned without the budget, from the least to the most."""
    costs = sorted((row["cost"], int(row["gpus"])) for row in free if row["cost"] == row["cost"])
    ends = [f"{price(cost, currency)} on {counted(gpus, 'GPU')}" for cost, gpus in (costs[0], costs[-1])]
    return f"budget {price(budget, currency)}: without it the runs cost {' to '.join(ends)}"


def _unforecast(feasible: list[dict[str, Any]], listing: Any) -> str | None:
    """Names the counts without hours, and the way to get them; None where all have some."""
    mute = [int(row["gpus"]) for row in feasible if row["hours"] != row["hours"]]
    if not mute:
        return None
    todo = listing.plan_at(mute[-1]).origin.mute
    if todo is None or all(row["total_steps"] == -1 for row in feasible):
        todo = "hours need the length of the run: --set duration=90ep"
    rest = "" if len(mute) == len(feasible) else ". The others alone are compared"
    return f"no hours at {counted(len(mute), 'GPU count')} ({few(map(str, mute), 4)}): {todo}{rest}"


def _summary(
    listing: Any, rows: list[dict[str, Any]], args: argparse.Namespace, deadline: float | None
) -> list[str]:
    """Names the fastest and the cheapest count, the knee, and the counts within the deadline."""
    from isobatch.fleet.comparison import end_of, grows_here

    columns, lines, currency = listing.columns, [], args.currency
    for best in ("fastest", "cheapest", "knee"):
        gpus = getattr(listing, best)
        if gpus is None:
            continue
        at = columns["gpus"].tolist().index(gpus)
        end = end_of(columns["gpus"], columns["hours"], columns["reasons"], at)
        took = spent(rows[at]["hours"], rows[at]["hours_error"], rows[at]["cost"], currency)
        lines.append(f"{best}: {counted(gpus, 'GPU')}, {took}" + (f" ({end})" if end else ""))
    known = [row for row in rows if row["hours"] == row["hours"]]
    if known and grows_here(columns):
        lines.append(_of_loss(listing))
    if known and not any(map(_share, known)):
        lines.append("no range known of hours and cost: the profile has no errors")
    if deadline is not None:
        lines.append(_deadline(rows, deadline, currency))
    if "best_micro_batch" in columns:
        lines.append(_best_batch(listing, args))
    if listing.critical_batch is not None:
        lines.append(f"critical batch: {figure(listing.critical_batch)} samples, {listing.definition}")
    return lines


def _best_batch(listing: Any, args: argparse.Namespace) -> str:
    """Names the batch with the most feasible counts, and these counts."""
    if listing.best_batch is None:
        return f"no batch up to {count(args.best_batch_up_to)} works at any of these GPU counts"
    gpus = listing.columns["gpus"][listing.columns["best_micro_batch"] > 0].tolist()
    most = f"the most of any up to {count(args.best_batch_up_to)}"
    where = f"{counted(len(gpus), 'GPU count')}, {most}: {few(map(str, gpus), 20)}"
    batches = ("--best-batch-up-to", "--micro-batches")
    again = shell_words(retyped(args, "counts", "plan", without=(*_HERE, *batches)))
    todo = f"{again} --policy {listing.best_batch} --gpus {gpus[0]} plans it"
    return f"effective batch {count(listing.best_batch)} works at {where}; {todo}"


def _of_loss(listing: Any) -> str:
    """Explains why the hours of growing batches are not hours to the same loss."""
    same = "the batch grows over the same samples, so hours and cost do not lead to the same loss"
    if listing.critical_batch is None:
        return f"{same}, and no knee is known: it needs a noise scale (--set noise_scale=N, or the profile's)"
    return f"{same}; the knee counts that, by the critical batch (samples_over_least)"


def _deadline(rows: list[dict[str, Any]], deadline: float, currency: str) -> str:
    """Says where the deadline is met and where only likely, and the fewest GPU-hours for it."""
    text = f"deadline {duration(deadline * 3600)}:"
    by_verdict: dict[str | None, list[dict[str, Any]]] = {}
    for row in rows:
        if row["status"] != "infeasible":
            verdict = _core.verdict(row["hours"], row["hours_error"], deadline)
            by_verdict.setdefault(verdict, []).append(row)
    good = {name: by_verdict[name] for name in ("met", "likely") if name in by_verdict}
    if not good:
        return (
            f"{text} met at none of {'the counts with known hours' if None in by_verdict else 'these counts'}"
        )
    counts = [
        f"{name} at {counted(len(some), 'count')}, from {counted(int(some[0]['gpus']), 'GPU')}"
        for name, some in good.items()
    ]
    surely = "" if "met" in good else "surely met at none, "
    least = min(next(iter(good.values())), key=lambda row: row["gpu_hours"])
    fewest = f"with the fewest GPU-hours on {counted(int(least['gpus']), 'GPU')}"
    took = spent(least["hours"], least["hours_error"], least["cost"], currency)
    return f"{text} {surely}{'; '.join(counts)}; {fewest}, {took}"


def _cell(name: str, row: dict[str, Any], currency: str, deadline: float | None) -> str:
    if name == "range":
        share = _share(row)
        return f"± {percent(share)}" if share else ""
    if name == "deadline" and deadline is not None:
        return _core.verdict(row["hours"], row["hours_error"], deadline) or ""
    value = row[name]
    if name == "groups":
        return " + ".join(f"{replicas:,} × {samples:,}" for replicas, samples in value)
    if value != value or value == -1:
        return ""
    if name == "lr":
        return real(value)
    if name == "cost":
        return price(value, currency)
    return count(value) if value == int(value) else figure(value)


def _plain(row: dict[str, Any]) -> dict[str, Any]:
    """A row as JSON has it, its unknown values null."""
    groups = [{"replicas": replicas, "samples": samples} for replicas, samples in row["groups"]]
    values = {name: value.item() for name, value in row.items() if name != "groups"}
    reasons = [reason.value for reason in Reason.of(values.pop("reasons"))]
    return {
        name: None if value in (-1, "") or value != value else value for name, value in values.items()
    } | {"reasons": reasons, "groups": groups}
