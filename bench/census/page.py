"""Writes docs/census.md from the answers alone: counts, a line for each cause, and a list by head."""

import json
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
ANSWERS = ROOT / "bench" / "results" / "census.jsonl"
PAGE = ROOT / "docs" / "census.md"
SHOWN = 12
"""Heads that a cause's line names; the list below it has all."""
REMEDIES = {
    "× ranks × accumulation": (
        "the model takes a mean over its own pass, and the Trainer divides by neither accumulation nor ranks",
        "[transformers #47688](https://github.com/huggingface/transformers/issues/47688)",
    ),
    "mean of passes' means, × accumulation": (
        "the same, and the pass's mean is over its tokens: samples weigh as 1/tokens of their pass",
        "[transformers #47688](https://github.com/huggingface/transformers/issues/47688)",
    ),
    "mean of passes' means": ("a mean over each pass's tokens, averaged: [found](found.md)", "none found"),
    "a term of the loss, × ranks × accumulation": (
        "a term such as a balance loss is not divided as the rest: divide its coefficient",
        "transformers #48690 (ranks)",
    ),
    "coupled samples": (
        "samples of a pass act on one another: keep the micro-batch",
        "a property of the loss",
    ),
    "summed loss": ("the loss is a sum over the pass: use a mean", "a choice of the loss"),
}
"""By cause, what it is or what to do, and where it is discussed."""


def write() -> None:
    """Writes the page."""
    PAGE.write_text(text_of(read()), encoding="utf-8")


def read() -> list[dict[str, Any]]:
    """Reads the answers."""
    return [json.loads(line) for line in ANSWERS.read_text(encoding="utf-8").splitlines()]


def text_of(records: list[dict[str, Any]]) -> str:
    """Makes the page of answers."""
    counts = Counter(record["asked"] for record in records)
    releases = sorted({f"{record['package']} {record['release']}" for record in records})
    judged = [record for record in records if record["asked"] != "not built"]
    same = [record for record in judged if record["verdict"] == "the same"]
    lines = [
        "# The census",
        "",
        "Is the training the same at another split of the batch? Each head below was built tiny and asked by "
        "[`ib.same_model`](same-in-tests.md): eight rows in one pass, against four passes of two, two "
        "passes of four, and two ranks. Heads of transformers ran under its Trainer, other losses in a plain "
        "loop. Dropout is off and batch norm uses its running statistics.",
        "",
        f"`{_bar(len(same), len(judged) - len(same), counts['not built'])}`",
        "",
        "| | heads |",
        "|---|---|",
        f"| the same at every split | {len(same)} |",
        f"| not the same | {len(judged) - len(same)} |",
        f"| not built, so not judged | {counts['not built']} |",
        "",
        f"{counts['run']} heads were run. {counts['same code']} more have the loss code of heads that ran "
        'and agreed with each other ("same code"): they were not run.',
        f"Releases: {', '.join(releases)}.",
        "",
        "## Causes",
        "",
        "| cause by accumulation | heads run | same code | what it is, what to do | thread | such as |",
        "|---|---|---|---|---|---|",
        *_causes(judged),
        "",
        "By ranks alone, where accumulation is the same:",
        "",
        "| cause by ranks | heads run | same code | such as |",
        "|---|---|---|---|",
        *_causes_by_ranks(judged),
        "",
        "## By head",
        "",
        "Weights are those of the eight samples at 1 × 4 × 2 (ranks × accumulation × micro-batch); one "
        "number "
        "where they are alike, – where no weights explain the gradient.",
        "",
        "| head | package | asked | accumulation | ranks | weights |",
        "|---|---|---|---|---|---|",
        *(_line(record) for record in sorted(judged, key=lambda record: record["head"].lower())),
        "",
        "## Not built",
        "",
        "| head | package | why |",
        "|---|---|---|",
        *(
            f"| {record['head']} | {record['package']} | {_plain(record['why'])} |"
            for record in sorted(records, key=lambda record: record["head"].lower())
            if record["asked"] == "not built"
        ),
        "",
        "`python bench/census.py run` asks heads without an answer of this release; `page` writes this page.",
    ]
    return "\n".join(lines) + "\n"


def _bar(same: int, different: int, unknown: int) -> str:
    total = max(1, same + different + unknown)
    return (
        "█" * round(60 * same / total)
        + "▒" * round(60 * different / total)
        + "·" * round(60 * unknown / total)
    )


def _causes(judged: list[dict[str, Any]]) -> list[str]:
    groups = _groups([record for record in judged if record["cause"]], "cause")
    lines = []
    for cause, records in groups:
        remedy, thread = REMEDIES.get(cause, ("", ""))
        lines.append(f"| {cause} | {_counts(records)} | {remedy} | {thread} | {_few(records)} |")
    return lines


def _causes_by_ranks(judged: list[dict[str, Any]]) -> list[str]:
    alone = [record for record in judged if not record["cause"] and record["ranks"] not in ("", "not asked")]
    return [
        f"| {cause} | {_counts(records)} | {_few(records)} |" for cause, records in _groups(alone, "ranks")
    ]


def _groups(records: list[dict[str, Any]], field: str) -> list[tuple[str, list[dict[str, Any]]]]:
    groups = defaultdict(list)
    for record in records:
        groups[record[field]].append(record)
    return sorted(groups.items(), key=lambda group: -len(group[1]))


def _counts(records: list[dict[str, Any]]) -> str:
    run = sum(record["asked"] == "run" for record in records)
    return f"{run} | {len(records) - run}"


def _few(records: list[dict[str, Any]]) -> str:
    names = sorted((record["asked"] != "run", record["head"]) for record in records)
    rest = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(name for _, name in names[:SHOWN]) + rest


def _line(record: dict[str, Any]) -> str:
    weights = record["weights"].get(
        "1x4x2", [] if record["asked"] == "same code" and record["cause"] else 1.0
    )
    shown = " ".join(map(str, weights)) or "–" if isinstance(weights, list) else f"{weights:g}"
    causes = f"{record['cause'] or 'the same'} | {record['ranks'] or 'the same'}"
    return f"| {record['head']} | {record['package']} | {record['asked']} | {causes} | {shown} |"


def _plain(why: str) -> str:
    return why.replace("|", "/").replace("\n", " ").replace("<", "&lt;")[:110]
