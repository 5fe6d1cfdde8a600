"""Messages to stderr, and data to stdout, whatever the terminal can write."""

from __future__ import annotations

import sys

from isobatch.words import redacted


def say(text: str) -> None:
    """Writes a message to stderr; control characters of names that others chose do not reach the terminal."""
    if sys.stderr is None:
        return
    lines = redacted(text).split("\n")
    print(
        "\n".join("".join(c if c.isprintable() else _escaped(c) for c in line) for line in lines),
        file=sys.stderr,
    )


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode()


def write_json(text: str) -> None:
    """Writes JSON to stdout. It is UTF-8 whatever the terminal is."""
    sys.stdout.flush()
    sys.stdout.buffer.write(text.encode() + b"\n")


def prepare() -> None:
    """A terminal that lacks a character (cp1252 has no arrow) gets a question mark, not a traceback."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")
