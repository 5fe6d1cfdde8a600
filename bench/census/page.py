"""Writes docs/census.md from the answers alone, and each head's row in bench/results/census_heads.csv."""

import csv
import io
import json
import re
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
ANSWERS = ROOT / "bench" / "results" / "census.jsonl"
PAGE = ROOT / "docs" / "census.md"
HEADS = ANSWERS.with_name("census_heads.csv")
UNKNOWN = "; weights not known"
"""End of a cause that equal rows name alone: the gradients of unequal rows are too alike to be told apart."""
SAME = "the same"
ISSUE = "[transformers #47688](https://github.com/huggingface/transformers/issues/47688)"
REMEDIES = {
    "× ranks × accumulation": (
        "a mean over the model's own pass, which the Trainer divides by neither accumulation nor ranks. "
        f"`type(model).accepts_loss_kwargs = False` before the Trainer is made (tried). {ISSUE}"
    ),
    "mean of passes' means, × accumulation": (
        f"the same, of a mean over tokens: after that remedy a mean of passes' means is left (tried). {ISSUE}"
    ),
    "mean of passes' means": "a mean over each pass's tokens, averaged: [found](found.md)",
    "a term of the loss, × ranks × accumulation": (
        "a balance or penalty term is added in each pass: divide its coefficient by accumulation × ranks. "
        "transformers #48690 (ranks)"
    ),
    "coupled samples": "samples of a pass act on one another, by the loss's definition: keep the micro-batch",
}
"""By cause, what it is with the remedy, and where it is discussed."""
OTHERS = "others, and two causes at once"
KIND = re.compile(r"(For[A-Z]\w*?|LMHeadModel|Model|\w+Trainer)(\+router)?(,.*)?$")
"""The name of a head of transformers ends in its kind; a trainer's loss follows it."""
LARGE = 10
"""Heads of a kind that has a row of its own."""

REFUSES = re.compile(r"Training (of \w+ )?is not|is not trainable|does not support training")
"""Words of a model that cannot be trained."""


def write() -> None:
    """Writes the page, and the heads."""
    PAGE.write_text(text_of(read()), encoding="utf-8")
    HEADS.write_text(heads_of(read()), encoding="utf-8")


def read() -> list[dict[str, Any]]:
    """Reads the answers."""
    return [json.loads(line) for line in ANSWERS.read_text(encoding="utf-8").splitlines()]


def text_of(records: list[dict[str, Any]]) -> str:
    """Makes the page of answers."""
    records = sorted(records, key=lambda record: record["head"].lower())
    counts = Counter(record["asked"] for record in records)
    judged = [record for record in records if record["asked"] != "not built"]
    same = sum(record["verdict"] == SAME for record in judged)
    lines = [
        "# The census",
        "",
        f"`{_bar(same, len(judged) - same, counts['not built'])}`",
        "",
        "| is the training the same at another split of the batch? | run | same code |",
        "|---|---|---|",
        *(
            f"| {verdict} | {_count(judged, verdict, 'run')} | {_count(judged, verdict, 'same code')} |"
            for verdict in (SAME, "not the same")
        ),
        f"| not built or not asked, so not judged: {counts['not built']} | | |",
        "",
        "[Look up a head](../bench/results/census_heads.csv). Each was built tiny and asked by "
        "[`ib.same_model`](same-in-tests.md): eight rows in one pass, against four passes of two, two passes "
        "of four, and two ranks. Heads of transformers ran under its Trainer, losses of other packages in a "
        "plain loop. Dropout is off, batch norm uses its running statistics. Heads of all causes were asked "
        "by `isobatch same` on a plain script, too: [a table](../bench/results/census_long.md).",
        "",
        _worth_of_codes(records),
        "",
        f"Releases: {', '.join(_releases(records))}.",
        "",
        "## Kinds of heads",
        "",
        f"Those of at least {LARGE} heads. `+router`: with the experts' balance loss.",
        "",
        "| kind | the same | not the same | cause of most |",
        "|---|---|---|---|",
        *_kind_lines(judged),
        "",
        "## Causes",
        "",
        "| cause | run | same code | what it is, what to do |",
        "|---|---|---|---|",
        *_cause_lines(judged),
        "",
        "`python bench/census.py run` asks heads without an answer of this release; `page` writes this page.",
    ]
    return "\n".join(lines) + "\n"


def heads_of(records: list[dict[str, Any]]) -> str:
    """Makes the table of all heads, by their names; two causes are of passes and of ranks."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(("head", "asked", "at another split: passes / ranks"))
    for record in sorted(records, key=lambda record: record["head"].lower()):
        if record["asked"] == "not built":
            answer = "the model refuses labels" if REFUSES.search(record["why"]) else _plain(record["why"])
        else:
            answer = cell([record["cause"], record["ranks"]])
        writer.writerow((record["head"], record["asked"], answer))
    return text.getvalue()


def cell(causes: list[str]) -> str:
    """Joins the causes of passes and of ranks for a table; a term's without its scale."""
    named = (re.sub(r"(a term of the loss), [^;]*", r"\1", cause.removesuffix(UNKNOWN)) for cause in causes)
    return " / ".join(dict.fromkeys(cause or SAME for cause in named))


def group_by_cause(judged: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """Groups heads by the cause under accumulation, or by that of ranks alone; the largest group first."""
    groups = defaultdict(list)
    for record in judged:
        is_by_ranks = record["ranks"] not in ("", "not asked")
        by_ranks = f"ranks: {record['ranks']}" if is_by_ranks else SAME
        groups[record["cause"].removesuffix(UNKNOWN) or by_ranks].append(record)
    return dict(sorted(groups.items(), key=lambda group: -len(group[1])))


def compare_codes(records: list[dict[str, Any]]) -> tuple[int, list[tuple[str, str]]]:
    """Holds "same code" against runs: each head that ran, with the first that ran of its code.

    Returns:
        The number of pairs, and those with different answers.
    """
    first: dict[str, dict[str, Any]] = {}
    count, differing = 0, []
    for record in records:
        if record["asked"] == "run" and (code := record.get("code")):
            if code in first:
                count += 1
                earlier = first[code]
                if any(record[name] != earlier[name] for name in ("verdict", "cause", "ranks")):
                    differing.append((earlier["head"], record["head"]))
            first.setdefault(code, record)
    return count, differing


def _worth_of_codes(records: list[dict[str, Any]]) -> str:
    count, differing = compare_codes(records)
    with_first = "; ".join(
        f"{number} with {head}" for head, number in Counter(a for a, _ in differing).items()
    )
    return (
        '"Same code": the head has the loss code of heads that ran and agreed with each other; it was not '
        f"run. Of {count} pairs of heads with one code that both ran, "
        f"{count - len(differing)} have one answer{f' (not: {with_first})' if differing else ''}."
    )


def _bar(same: int, different: int, unknown: int) -> str:
    total = max(1, same + different + unknown)
    sizes = (round(60 * count / total) for count in (same, different, unknown))
    return "".join(mark * size for mark, size in zip("█▒·", sizes, strict=True))


def _count(records: list[dict[str, Any]], verdict: str, way: str) -> int:
    return sum(record["verdict"] == verdict and record["asked"] == way for record in records)


def _releases(records: list[dict[str, Any]]) -> list[str]:
    return sorted({f"{record['package']} {record['release']}" for record in records})


def _cause_lines(judged: list[dict[str, Any]]) -> list[str]:
    rows: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for cause, group in group_by_cause(judged).items():
        rows[cause if cause in REMEDIES else OTHERS] += group if cause != SAME else []
    return [
        f"| {cause} | {_count(rows[cause], 'not the same', 'run')} | "
        f"{_count(rows[cause], 'not the same', 'same code')} | {text} |"
        for cause, text in (
            REMEDIES | {OTHERS: "[laws](laws.md); trainers of TRL: [found](found.md)"}
        ).items()
        if rows[cause]
    ]


def _kind_lines(judged: list[dict[str, Any]]) -> list[str]:
    groups = defaultdict(list)
    for record in judged:
        match = KIND.search(record["head"])
        groups[match[1] + (match[2] or "") if match else record["package"]].append(record)
    lines = []
    for kind, group in sorted(groups.items(), key=lambda entry: -len(entry[1])):
        if len(group) >= LARGE:
            same = sum(record["verdict"] == SAME for record in group)
            causes = Counter(cell([record["cause"]]) for record in group if record["cause"])
            most = causes.most_common(1)[0][0] if causes else ""
            lines.append(f"| {kind} | {same} | {len(group) - same} | {most} |")
    return lines


def _plain(why: str) -> str:
    return " ".join(why.split()).split(": ", 1)[-1][:90]
