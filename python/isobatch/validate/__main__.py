"""One rank of `torchrun … -m isobatch.validate`, or of srun: it takes the arguments of `isobatch validate`."""

import sys


def run_rank() -> int:
    """Runs `isobatch validate`, which sees by its environment that a launcher started this rank."""
    from isobatch.cli import main

    return main(["validate", *sys.argv[1:]])


if __name__ == "__main__":
    sys.exit(run_rank())
