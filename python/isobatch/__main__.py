"""`python -m isobatch`, and `isobatch`."""

from __future__ import annotations

from isobatch.cli import command

if __name__ == "__main__":
    command()
