"""`python -m isobatch`, and `isobatch`."""

from __future__ import annotations

from typing import NoReturn

from isobatch.cli import main
from isobatch.cli.terminal import leave


def command() -> NoReturn:
    """Runs one command, and ends the process with its exit code."""
    leave(main())


if __name__ == "__main__":
    command()
