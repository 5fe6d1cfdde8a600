"""`isobatch schedule`: what a schedule does, step by step."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from isobatch.cli.options import count
from isobatch.cli.parser import Parser
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


def add(command: Parser) -> None:
    """Adds the options."""
    command.add_argument(
        "spec",
        metavar="SPEC",
        help='cosine, "wsd(decay=20%%)", "multistep(30ep, 60ep)", or a JSON file of a schedule or a plan',
    )
    command.add_argument("--lr", type=float, default=1.0, help="the peak (default: %(default)s)")
    command.add_argument(
        "--min-lr", type=float, default=0.0, help="the learning rate at the end (default: 0)"
    )
    command.add_argument("--steps", type=count, metavar="N", help="length of the run, in optimizer steps")
    command.add_argument("--warmup", type=int, default=0, help="optimizer steps of warmup (default: 0)")
    command.add_argument(
        "--warmup-start", type=float, default=0.0, help="the learning rate at step 0 (default: 0)"
    )
    command.add_argument(
        "--batch", type=count, default=1, metavar="N", help="samples a step, for lengths in sp and tok"
    )
    command.add_argument("--steps-per-epoch", type=float, help="for lengths in ep")
    command.add_argument("--seq-len", type=count, metavar="N", help="tokens a sample, for lengths in tok")
    command.add_argument(
        "--plot",
        nargs="?",
        const="-",
        metavar="FILE",
        help="draw it: on the terminal, or into an .svg or .png file",
    )
    command.add_argument("--json", action="store_true", help="print the schedule as JSON")


# A field → what the person typed for it.
_TYPED = {
    "dataset_size": "--steps-per-epoch",
    "min_lr": "--min-lr",
    "peak": "--lr",
    "seq_len": "--seq-len",
    "total_steps": "--steps",
    "warmup_start": "--warmup-start",
    "warmup_steps": "--warmup",
}


def run(args: argparse.Namespace) -> int:
    """Prints, draws or writes the schedule."""
    schedule = _schedule(args)
    if args.json:
        write_json(schedule.to_json())
    elif args.plot is None:
        _table(schedule, args.steps)
    if args.plot is not None:
        _plot(schedule, args)
    total = args.steps or (None if schedule.end is None else round(schedule.end))
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
    if args.steps is None:
        raise missing("--steps", "pass the length of the run in optimizer steps")
    units = Units(
        tuned_batch=args.batch, batch=args.batch, steps_per_epoch=args.steps_per_epoch, seq_len=args.seq_len
    )
    try:
        return resolve(
            args.spec,
            peak=args.lr,
            min_lr=args.min_lr,
            warmup_start=args.warmup_start,
            warmup_steps=args.warmup,
            total_steps=args.steps,
            units=units,
        )
    except InputError as error:
        raise error.at(field=_TYPED.get(error.field or "", error.field)) from None


def _table(schedule: Schedule, steps: int | None) -> None:
    from isobatch.schedules.draw import span

    stop = steps or round(span(schedule.form))
    print("step\tlr")
    for step in sorted({round(stop * i / 20) for i in range(21)}):
        print(f"{step}\t{schedule.at(step):.9g}")


def _plot(schedule: Schedule, args: argparse.Namespace) -> None:
    from isobatch.charts.theme import needs_drawing, picture
    from isobatch.files.whole import write_whole
    from isobatch.schedules import draw

    if args.plot == "-":
        print(
            draw.terminal(schedule.form, schedule, args.steps), file=sys.stderr if args.json else sys.stdout
        )
        return
    drawn = draw.svg(schedule.form, schedule, args.steps)
    if args.plot.lower().endswith(".png"):
        needs_drawing("PNG pictures")
        # A picture has no page behind it.
        head, end, rest = drawn.partition(">")
        drawn = f'{head}{end}<rect width="100%" height="100%" fill="#fff"/>{rest}'
    write_whole(args.plot, picture(args.plot, drawn))
