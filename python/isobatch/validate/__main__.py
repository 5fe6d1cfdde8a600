"""`torchrun … -m isobatch.validate plan.json`, and the same under srun: one rank of a validation."""

from __future__ import annotations

import argparse
import os
import sys

from isobatch.errors import InputError
from isobatch.validate import arguments
from isobatch.validate.ranks import network


def rank(args: argparse.Namespace) -> int:
    """Runs this process's part; rank 0 writes and prints the report. Gives the exit code."""
    from isobatch.planning.plan import Plan
    from isobatch.validate.ranks import garbage
    from isobatch.validate.worker import run

    with garbage.kept():
        report = run(
            Plan.load(args.plan),
            arguments.options(args),
            publish=lambda report: arguments.publish(report, args),
        )
    return report.exit_code


def main() -> int:
    """The command line of one rank."""
    parser = argparse.ArgumentParser(prog="python -m isobatch.validate", description=__doc__)
    arguments.add(parser)
    args = parser.parse_args()
    if args.plan is None:
        parser.error("the following arguments are required: PLAN")
    try:
        if network.environment(os.environ) is None:
            raise InputError(
                "started neither by torchrun nor by srun: `isobatch validate` starts the ranks itself"
            )
        return rank(args)
    except InputError as error:
        print(f"isobatch validate: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
