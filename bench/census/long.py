"""Heads asked the long way: `isobatch same` on a plain script, against the census' answer under accumulation.

Each answer is written at once to bench/results/census_long.md: heads with a row there are not asked again.
"""

import json
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from census import page
from census.ask import cause_text

TABLE = page.ANSWERS.with_name("census_long.md")
SCRIPT = Path(__file__).with_name("plain.py")
HEAD = """# Held against the long way

Heads of the census asked by `isobatch same --steps 1 --split 1x1x8 --split 1x4x2` on a plain script
(`bench/census/plain.py`), by `python bench/census.py long`.

| head | census | isobatch same | alike | seconds |
|---|---|---|---|---|
"""
SETTINGS = (
    "--use_cpu --max_steps 3 --per_device_train_batch_size 8 --gradient_accumulation_steps 1 "
    "--learning_rate 1e-3 --report_to none --save_strategy no --disable_tqdm 1"
)


def run(limit: float, count: int) -> None:
    """Asks heads in turn over all causes, until so many have a row or the minutes are over."""
    began = time.monotonic()
    text = TABLE.read_text(encoding="utf-8") if TABLE.exists() else HEAD
    for record in _by_cause()[:count]:
        if time.monotonic() - began > 60 * limit:
            return
        if f"| {record['head']} |" not in text:
            text += _row(record)
            TABLE.write_text(text, encoding="utf-8")


def _by_cause() -> list[dict[str, Any]]:
    """Orders the heads of transformers that ran: one of each cause, then a second one of each."""
    turns: dict[str, int] = defaultdict(int)
    ordered = []
    for record in page.read():
        if record["asked"] == "run" and record["package"] == "transformers":
            turns[record["cause"]] += 1
            ordered.append((turns[record["cause"]], record["head"], record))
    return [record for *_, record in sorted(ordered, key=lambda entry: entry[:2])]


def _row(record: dict[str, Any]) -> str:
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="census-") as folder:
        options = ["--steps", "1", "--split", "1x1x8", "--split", "1x4x2", "-o", f"{folder}/answer.json"]
        command = [sys.executable, str(SCRIPT), record["head"], "--output_dir", folder, *SETTINGS.split()]
        same = [sys.executable, "-m", "isobatch", "same", *options, "--", *command]
        ran = subprocess.run(same, capture_output=True, text=True, check=False)
        answer = Path(folder, "answer.json")
        if answer.exists():
            splits = json.loads(answer.read_bytes(), object_hook=lambda part: SimpleNamespace(**part)).splits
            cause = cause_text([split for split in splits if split.split == "1x4x2"])
        else:
            cause = f"not asked: {(ran.stderr.strip().splitlines() or [''])[-1][:100]}"
    seconds = round(time.monotonic() - began)
    alike = "yes" if cause == record["cause"] else "no"
    causes = " | ".join(text or page.SAME for text in (record["cause"], cause))
    return f"| {record['head']} | {causes} | {alike} | {seconds} |\n"
