"""Documented changes between releases, and pairs of releases without one: which does `same --against` name?

python bench/against.py PYTHON RESULTS.md [GROUP...]

PYTHON is an interpreter with torch, transformers, accelerate, TRL, PEFT and Lightning. The scripts of a group
share one process for each of their two environments, which imports the libraries once.
"""

import json
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from isobatch.equivalence.commands.environments import Release, make_environment
from isobatch.equivalence.commands.runs import Recorded, Starter
from isobatch.equivalence.commands.starts import OrderedRuns, TypedCommand, read_typed_command
from isobatch.equivalence.order.comparison import compare_in_order
from isobatch.equivalence.split import Split
from isobatch.errors import InputError

SCRIPTS = Path(__file__).with_name("against_scripts.py").resolve()
BATCH = ("--per_device_train_batch_size", "{micro_batch}", "--gradient_accumulation_steps", "{accumulation}")


class Group(NamedTuple):
    """Two releases, with scripts by the row that should differ: empty for none."""

    package: str
    before: str
    after: str
    scripts: dict[str, str]
    source: str = ""


GROUPS = (
    Group(
        "transformers", "4.45.2", "4.46.3",
        {
            "llama accumulated": "loss", "gpt2 accumulated": "loss", "llama": "loss", "gpt2": "",
            "2x1x4 trainer.py llama --average-tokens": "loss",
        },
        "4.46 divides by the step's tokens, counted before the shift (transformers #34191)",
    ),
    Group(
        "transformers", "4.46.3", "4.57.6",
        {"gpt2 accumulated": "loss", "llama": "", "llama cosine": "", "t5": "", "bert": ""},
        "4.48: models without num_items_in_batch are divided by the accumulation again (transformers #35207)",
    ),
    Group(
        "transformers", "4.57.6", "5.0.0",
        {
            "half checkpoint": "dtype", "bert accumulated": "loss", "bart accumulated": "loss",
            "t5 accumulated": "loss", "llama": "", "bert": "", "qwen2 accumulated": "",
        },
        "5.0's migration guide: dtype='auto' by default; encoders' losses are divided by the Trainer no more",
    ),
    Group(
        "transformers", "5.23.0", "5.24.0",
        {"llama accumulated": "", "gpt2": "", "t5": "", "llama cosine": ""},
    ),
    Group("transformers", "5.16.0", "5.22.0", {"llama accumulated": "", "bert": "", "qwen2": ""}),
    Group(
        "trl", "1.4.0", "1.8.0", {"sft": "", "sft completion": ""},
        "1.7: chunked_nll (trl #5846), the same loss in parts",
    ),
    Group("trl", "1.14.2", "1.16.0", {"sft": ""}, "1.16: pad_to_multiple_of 'auto'"),
    Group("peft", "0.21.1", "0.21.2", {"lora": "", "ia3": "", "oft": ""}),
    Group(
        "accelerate", "1.12.0", "1.15.0",
        {"accelerate": "", "accelerate accumulated": "", "llama accumulated": ""},
    ),
    # Published bugs, with the scripts of `isobatch same`'s own bench.
    Group(
        "transformers", "4.53.3", "4.55.4",
        {
            "2x1x4 trainer.py llama": "inputs", "1x4x2 trainer.py bert-classes --rows 12": "loss",
            "1x4x2 trainer.py llama": "",
        },
        "transformers #39392, #38837",
    ),
    Group("transformers", "4.46.1", "4.48.2", {"1x4x2 trainer.py bert-classes": "loss"}, "#35438"),
    Group("transformers", "4.46.3", "4.48.3", {"1x4x2 trainer.py bert-classes": "loss"}, "#35207"),
    Group("transformers", "4.47.1", "4.51.3", {"1x4x2 trainer.py gpt2": "loss"}, "transformers #37766"),
    Group("transformers", "4.51.3", "4.52.4", {"1x4x2 trainer.py llama --rows 14": "rows"}, "#37777"),
    Group(
        "transformers", "4.57.6", "5.24.0",
        {"1x4x2 trainer.py llama --label-smoothing 0.1": "loss", "1x4x2 trainer.py llama": ""},
        "transformers #46731",
    ),
    Group("accelerate", "0.29.3", "0.30.1", {"2x2x2 accelerate_loop.py --shuffle": "rows"}, "#2694"),
    Group("lightning", "2.5.6", "2.6.6", {"lightning": "", "lightning accumulated": ""}),
)  # fmt: skip


def read(name: str, python: str) -> TypedCommand:
    """Reads a script's name: one of `against_scripts.py`, or `SPLIT FILE ARGUMENTS` of bench/same/."""
    if ".py" not in name:
        return read_typed_command([python, str(SCRIPTS), name], None, None)
    split, script, *arguments = name.split()
    words = [python, str(SCRIPTS.parent / "same" / script), *arguments, *BATCH]
    return read_typed_command(words, Split.parse(split), None)


def ask(group: Group, python: str, folder: Path) -> list[dict[str, object]]:
    """Compares each script of a group in both environments."""
    environments = [
        make_environment(python, [Release(group.package, version)]) for version in (group.before, group.after)
    ]
    starters, results = [Starter(900.0, "cpu") for _ in environments], []
    try:
        for name, expected in group.scripts.items():
            began = time.monotonic()
            command = read(name, python)
            place = folder / name.replace(" ", "-")
            place.mkdir()
            settings = Recorded(str(place), 3, each_pass=True, details=True)
            runs = OrderedRuns(command, settings, 900.0, "cpu")
            recordings = []
            for at, start, shake in ((0, "before", False), (0, "again", True), (1, "after", False)):
                recordings.append(runs.start(environments[at], start, starters[at], shake=shake))
            failed = next((run for run in recordings if run.recording is None), None)
            if failed is not None:
                outcome, text = "not started", failed.output.strip().splitlines()[-1:] or [""]
                text = text[0][:200]
            else:
                before, again, after = (run.recording for run in recordings)
                comparison = compare_in_order(before, after, again)
                row = comparison.first
                outcome = "" if comparison.same else "not measured" if row is None else row.id
                text = "" if row is None else f"{' → '.join(row.values)}: {row.text}"
                if row is None and not comparison.same:
                    text = "; ".join(f"{r.measures}: {r.text}" for r in comparison.rows if r.holds is None)
                settings_text = [f"{k} {a} → {b}" for k, (a, b) in comparison.settings.items()]
                text += (" | " + "; ".join(settings_text[:4])) if settings_text and row is not None else ""
            result = {
                "package": group.package, "before": group.before, "after": group.after, "script": name,
                "expected": expected, "outcome": outcome, "text": text,
                "seconds": round(time.monotonic() - began),
            }  # fmt: skip
            print(json.dumps(result, ensure_ascii=False), flush=True)
            results.append(result)
    finally:
        for starter in starters:
            starter.close()
    return results


def main(python: str, output: str, *chosen: str) -> int:
    """Asks all groups, or those of some packages, and writes the results."""
    with Path(output).open("a", encoding="utf-8") as file:
        for group in GROUPS:
            if chosen and group.package not in chosen and f"{group.package}=={group.after}" not in chosen:
                continue
            with tempfile.TemporaryDirectory(prefix="isobatch-bench-") as folder:
                try:
                    for result in ask(group, python, Path(folder)):
                        file.write(json.dumps(result, ensure_ascii=False) + "\n")
                        file.flush()
                except InputError as error:
                    print(f"{group.package} {group.before} → {group.after}: {error}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
