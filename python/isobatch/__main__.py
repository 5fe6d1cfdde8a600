"""`python -m isobatch`, and `isobatch`."""

from isobatch.cli import command

if __name__ == "__main__":
    command()
