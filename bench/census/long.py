"""Heads asked the long way, by `isobatch same` on a plain script, against the census' answers.

The census asks unequal and equal rows at once. The long way asks unequal rows; where no law of
samples' weights explains the difference, equal rows too, and its cause follows from the two answers.
Each row is written at once to bench/results/census_long.md: heads with a row there are not asked again.
"""

import sys
import tempfile
import time
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

import isobatch as ib
from census import page
from census.ask import cause_text
from census.heads import ROUTED, list_heads
from isobatch.equivalence.models import COUPLED, PROPORTIONAL

TABLE = page.ANSWERS.with_name("census_long.md")
SCRIPT = Path(__file__).with_name("plain.py")
PASSES, RANKS = "1x4x2", "2x1x4"
HEAD = f"""# Held against the long way

> Verdict and cause are those of the census; where they are not, the row says why.

`python bench/census.py long`: `isobatch same --steps 1 --split 1x1x8 --split {PASSES} --split {RANKS}` on
`bench/census/plain.py`. Causes of passes / ranks; =: as the census. "Equal rows": eight copies of a row,
where no law of weights explains unequal ones. Alike: one verdict, cause and, where known, weight of each
sample; not the scale of a term.

| head | census | isobatch same | equal rows | alike | seconds |
|---|---|---|---|---|---|
"""
ROUNDING = "equal rows have no gradient but rounding, which the census leaves out"
REASONS = {
    **dict.fromkeys(("MetaClip2Model", "Owlv2Model"), ROUNDING),
    "SplinterForPreTraining": "rows 0 and 4 start at position 0, which its loss ignores: eight copies of row "
    "4 have a loss of 0/0, which `same` refuses; the census reads the gradient alone",
}
"""Of differences from the census, by head."""
SETTINGS = (
    "--use_cpu --max_steps 1 --per_device_train_batch_size 8 --gradient_accumulation_steps 1 "
    "--learning_rate 1e-3 --report_to none --save_strategy no --disable_tqdm 1"
)


def run(limit: float, count: int) -> None:
    """Asks heads in turn over all causes, until so many have a row or the minutes are over."""
    began = time.monotonic()
    modules = {head.name: head.module for head in list_heads()}
    if not TABLE.exists():
        TABLE.write_text(HEAD, encoding="utf-8")

    def ask(record: dict[str, Any]) -> None:
        is_asked = f"| {record['head']} |" in TABLE.read_text(encoding="utf-8")
        if not is_asked and time.monotonic() - began < 60 * limit:
            row = _row(record, modules[record["head"].removesuffix(ROUTED)])
            with TABLE.open("a", encoding="utf-8") as table:
                table.write(row)

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(ask, _by_cause()[:count]))


def _by_cause() -> list[dict[str, Any]]:
    """Orders the heads of transformers that ran: the quickest of each cause, then the next of each."""
    turns: dict[str, int] = defaultdict(int)
    ordered = []
    run = [record for record in page.read() if record["asked"] == "run"]
    for record in sorted(run, key=lambda record: (record["seconds"], record["head"])):
        if record["package"] == "transformers":
            turns[record["cause"]] += 1
            ordered.append((turns[record["cause"]], record["head"], record))
    return [record for *_, record in sorted(ordered, key=lambda entry: entry[:2])]


def _row(record: dict[str, Any], module: str) -> str:
    began = time.monotonic()
    census = page.cell([record["cause"], record["ranks"]])
    equal, alike = "", f"no: {REASONS.get(record['head'], 'not known')}"
    try:
        unequal = _ask(module, record["head"])
        causes = [cause_text([split]) for split in unequal]
        same = page.cell(causes)
        if any(_is_unexplained(split) for split in unequal):
            copies = _ask(module, record["head"], "--equal")
            equal = page.cell([cause_text([split]) for split in copies])
            causes = [_join(*pair) for pair in zip(unequal, copies, strict=True)]
        if page.cell(causes) == census:
            alike = "yes" if all(_has_weights(record, split) for split in unequal) else "other weights"
    except ib.InputError as error:
        same = f"not asked: {str(error).splitlines()[-1][:100]}"
    seconds = round(time.monotonic() - began)
    same = "=" if same == census else same
    return f"| {record['head']} | {census} | {same} | {equal} | {alike} | {seconds} |\n"


def _has_weights(record: dict[str, Any], split: Any) -> bool:
    """Tells whether each sample weighs as in the census, where both know the weights."""
    known = record["weights"].get(split.split, [])
    return not (split.causes and split.weights and known) or np.allclose(split.weights, known, rtol=5e-3)


def _ask(module: str, head: str, *options: str) -> list[Any]:
    """Asks a script, and returns the answers of passes and of ranks."""
    with tempfile.TemporaryDirectory(prefix="census-") as folder:
        script = [sys.executable, str(SCRIPT), module, head, *options, "--output_dir", folder]
        answer = ib.same([*script, *SETTINGS.split()], split=["1x1x8", PASSES, RANKS], steps=1)
    splits = {split.split: split for split in answer.splits}
    if missing := {PASSES, RANKS} - {*splits}:
        raise ib.InputError(f"no answer at {missing}: {answer.unasked}")
    return [splits[PASSES], splits[RANKS]]


def _is_unexplained(split: Any) -> bool:
    """Tells whether no law of samples' weights explains a difference."""
    return bool(split.causes) and (not split.weights or split.causes[0].id == "unequal_weights")


def _join(unequal: Any, equal: Any) -> str:
    """Joins the answers to unequal and equal rows.

    Without a residual the rows' own gradients are too alike to tell their weights, or coupled samples.
    """
    if not _is_unexplained(unequal):
        return cause_text([unequal])
    if unequal.weights and equal.weights and np.allclose(unequal.weights, equal.weights, rtol=PROPORTIONAL):
        return cause_text([equal])
    cause = unequal.causes[0].id
    coupled = "coupled samples" if unequal.residual is not None else ""
    text = coupled if cause in COUPLED else cause_text([unequal])
    if equal.same:
        return text
    text = "" if cause == "balance_loss" else text
    scale = cause_text([equal]) if equal.weights else "a term of the loss"
    return f"{scale}; {text}" if text else scale
