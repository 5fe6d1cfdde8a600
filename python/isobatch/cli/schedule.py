"""`isobatch schedule`: what a schedule does, step by step."""

from __future__ import annotations

import argparse
import math
import shutil
import sys
from typing import TYPE_CHECKING

from isobatch.cli.source import refuse_recipe
from isobatch.cli.terminal import say, write_json
from isobatch.errors import InputError, missing

if TYPE_CHECKING:
    from isobatch.schedules import Schedule


DESCRIPTION = "Print a schedule's learning rates, draw it, or write it as JSON."
EXAMPLES = (
    "isobatch schedule cosine --lr 3e-4 --steps 10000 --warmup 500 --plot",
    'isobatch schedule "wsd(decay=20%)" --steps 10000 --plot wsd.png',
)


OPTIONS = {
    "spec": (
        'cosine, "wsd(decay=20%%)", "multistep(30ep, 60ep)", or a JSON file of a schedule or a plan',
        {"metavar": "SPEC"},
    ),
    "--lr LR": ("the peak (default: %(default)s)", {"default": 1.0, "dest": "peak"}),
    "--min-lr LR": ("the learning rate at the end (default: 0)", 0.0),
    "--steps N": ("length of the run, in optimizer steps", {"dest": "total_steps"}),
    "--warmup STEPS": (
        "optimizer steps of warmup (default: 0)",
        {"type": int, "default": 0, "dest": "warmup_steps"},
    ),
    "--warmup-start LR": ("the learning rate at step 0 (default: 0)", 0.0),
    "--batch N": ("samples a step, for lengths in sp and tok", 1),
    "--steps-per-epoch N": ("for lengths in ep", {"type": float}),
    "--seq-len N": "tokens a sample, for lengths in tok",
    "--plot FILE": ("draw it: on the terminal, or into an .svg or .png file", {"nargs": "?", "const": "-"}),
    "--json": "print the schedule as JSON",
}


def run(args: argparse.Namespace) -> int:
    """Prints, draws or writes the schedule."""
    from isobatch.schedules.extent import span

    schedule = _schedule(args)
    if args.total_steps is None and not args.json and not math.isfinite(span(schedule.form)):
        raise missing("--steps", "the schedule has no end: pass the length of the run in optimizer steps")
    if args.json:
        write_json(schedule.to_json())
    elif args.plot is None:
        _table(schedule, args.total_steps)
    if args.plot is not None:
        _plot(schedule, args)
    total = args.total_steps or (None if schedule.end is None else round(schedule.end))
    for reason in schedule.check(total) if total else ():
        say(f"note: {reason}: {reason.text}")
    return 0


def _schedule(args: argparse.Namespace) -> Schedule:
    from isobatch.files.whole import read_whole
    from isobatch.schedules import Schedule, Units, resolve

    refuse_recipe(args.spec)
    if args.spec.endswith(".json"):
        text = read_whole(args.spec)
        if "isobatch.plan/" in text[:200]:
            from isobatch.planning.plan import Plan

            return Plan.load(args.spec).require().schedule
        try:
            return Schedule.from_json(text)
        except InputError as error:
            raise error.at(file=args.spec) from None
    if args.total_steps is None:
        raise missing("--steps", "pass the length of the run in optimizer steps")
    units = Units(
        tuned_batch=args.batch, batch=args.batch, steps_per_epoch=args.steps_per_epoch, seq_len=args.seq_len
    )
    names = ("peak", "min_lr", "warmup_start", "warmup_steps", "total_steps")
    try:
        return resolve(args.spec, units=units, **{name: getattr(args, name) for name in names})
    except InputError as error:
        raise error.at(field="--steps-per-epoch") if error.field == "dataset_size" else error from None


def _table(schedule: Schedule, steps: int | None) -> None:
    from isobatch.schedules.extent import span

    stop = steps or round(span(schedule.form))
    print("step\tlr")
    for step in sorted({round(stop * i / 20) for i in range(21)}):
        print(f"{step}\t{schedule.at(step):.9g}")


def _plot(schedule: Schedule, args: argparse.Namespace) -> None:
    if args.plot == "-":
        width = min(72, shutil.get_terminal_size().columns - 14)
        drawn = characters(schedule, args.total_steps, width=max(width, 24))
        print(drawn, file=sys.stderr if args.json else sys.stdout)
        return
    from isobatch.report.pages import plot

    plot(schedule, steps=args.total_steps).save(args.plot)


def characters(schedule: Schedule, steps: float | None = None, *, width: int = 72, rows: int = 8) -> str:
    """Draws a schedule in block characters, `rows` lines high; a column shows its highest value."""
    from isobatch.schedules.extent import knots, span

    stop = span(schedule.form) if steps is None else steps
    even = [stop * n / (4 * width) for n in range(4 * width + 1)]
    heights = [0.0] * width
    for step in (*even, *(step for step in knots(schedule.form) if step <= stop)):
        column = min(int(step / (stop or 1) * width), width - 1)
        heights[column] = max(heights[column], schedule.at(step))
    top = max(heights) or 1.0
    # Small is not nothing.
    eighths = [max(round(height / top * rows * 8), height > 0) for height in heights]
    lines = []
    for row in reversed(range(rows)):
        label = f"{top:.6g} " if row == rows - 1 else f"{top / 2:.6g} " if 2 * row + 2 == rows else ""
        cells = "".join(" ▁▂▃▄▅▆▇█"[min(max(each - row * 8, 0), 8)] for each in eighths)
        lines.append(f"{label:>11}│{cells}".rstrip())
    end = f"{stop if stop < 100 else round(stop):,.12g} steps"
    below = f"{stop / 2:,.12g}".rjust(width // 2).ljust(width)[: width - len(end)] + end
    return "\n".join([*lines, f"{'└':>12}{'─' * width}", f"{'0':>12}{below}"])
