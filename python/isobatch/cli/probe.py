"""`isobatch probe`: short trainings that measure the learning rate at another batch."""

import argparse
import signal
import sys
from contextlib import redirect_stdout
from typing import Any

from isobatch.cli import options
from isobatch.cli.terminal import heard_sigterm, say, write_json

DESCRIPTION = (
    "Trains briefly at the tuned and the planned batch, at learning rates around the rule's, and recommends "
    "one, with an interval. If the budget, Ctrl-C or SIGTERM ends it early, it reports what it knows. Exit "
    "codes: 0 the plan's learning rate is in the interval, 1 it is not, 2 no answer, 130 interrupted."
)
EXAMPLES = ("isobatch probe plan.json --workload my_training:factory --budget 10m",)


OPTIONS = {
    "plan": ("a plan's JSON file (`isobatch plan -o`)", {"metavar": "PLAN", "type": options.path}),
    "--workload NAME": "package.module:factory of your training",
    "--budget TIME": ("from the command to the answer, such as 90s, 10m or 2h (default 10m)", "10m"),
    "--seeds N": ("seeds for the last learning rates (default 3)", 3),
    "--batches B,…": ("further effective batches to measure", {"type": options.numbers, "default": []}),
    "--samples N": "samples of a whole trial (default: what the budget allows)",
    "--device": ("where the trials run", {"choices": ("auto", "cpu", "cuda"), "default": "auto"}),
    "--recipe FILE": "write the recipe with the measured exponent as its power, and with the best "
    "learning rate of trials as long as the run",
    "-o/--output FILE": "write the finding as JSON",
    "--json": "print the finding as JSON",
}


def run(args: argparse.Namespace) -> int:
    """Probes."""
    from isobatch.files.whole import check_json, check_place, save_json
    from isobatch.probing.probe import probe

    for path in (args.output, args.recipe):
        if path is not None:
            check_place(path)
    check_json(args.output or "")
    # A workload's own output is no part of the finding.
    with heard_sigterm(signal.default_int_handler), redirect_stdout(sys.stderr):
        names = ("budget", "seeds", "batches", "samples", "device")
        values: dict[str, Any] = {name: getattr(args, name) for name in names}
        finding = probe(args.plan, args.workload, say=say, **values)
    if args.output is not None:
        save_json(args.output, finding.to_json())
    if args.json:
        write_json(finding.to_json())
    else:
        print(finding.show(), flush=True)
    if args.recipe is not None:  # last: where there is none to write, what was found is said all the same
        finding.save_recipe(args.recipe)
    return 130 if finding.stopped == "interrupted" else finding.exit_code
