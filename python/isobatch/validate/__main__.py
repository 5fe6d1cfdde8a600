"""Runs one rank of torchrun or srun (`-m isobatch.validate`) by the arguments of `isobatch validate`."""

import sys


def run_rank() -> int:
    """Runs `isobatch validate`: it sees by its environment when a launcher started this rank."""
    from isobatch.cli import main

    return main(["validate", *sys.argv[1:]])


if __name__ == "__main__":
    sys.exit(run_rank())
