"""Colours by status, where the terminal has some: NO_COLOR and FORCE_COLOR decide (no-color.org, force-color.org)."""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
from typing import IO

_STYLES = {
    "ok": "32",
    "pass": "32",
    "met": "32",
    "caution": "33",
    "inconclusive": "35",
    "infeasible": "1;31",
    "fail": "1;31",
    "late": "1;31",
    "unchecked": "2",
    "heading": "1",
}


def has_colours(stream: IO[str] | None) -> bool:
    """Whether to write colours to a stream."""
    if os.environ.get("NO_COLOR"):
        return False
    forced = os.environ.get("FORCE_COLOR")
    if forced:
        return forced != "0"
    return stream is not None and stream.isatty() and os.environ.get("TERM") != "dumb"


def paint(text: str, style: str) -> str:
    """A text in the colour of a status; as it is where the style is none.

    >>> paint("caution", "caution"), paint("x", "nothing")
    ('\\x1b[33mcaution\\x1b[0m', 'x')
    """
    return f"\x1b[{_STYLES[style]}m{text}\x1b[0m" if style in _STYLES and text else text


def fitted(line: str, room: int) -> list[str]:
    """A line over as many as it needs to fit a terminal, cut between words; a line of columns stays.

    >>> fitted("  - one two three", 12), fitted("  one   two   three", 12)
    (['  - one two', '    three'], ['  one   two   three'])
    """
    if len(line) <= room or "   " in line.strip():
        return [line]
    after = " " * (len(line) - len(line.lstrip(" -")))
    return textwrap.wrap(line, room, subsequent_indent=after, break_long_words=False, break_on_hyphens=False)


def show_plan(explanation: str, status: str) -> None:
    """Prints a plan in words to stdout: its first sentence in the colour of its status, its headings in bold, and on a terminal
    without a word that is cut at the edge."""
    colours = has_colours(sys.stdout)
    room = shutil.get_terminal_size().columns if sys.stdout.isatty() else 0
    for number, line in enumerate(explanation.split("\n")):
        is_heading = line.endswith(":") and not line.startswith(" ")
        style = (
            status if not number else "caution" if line == "Warnings:" else "heading" if is_heading else ""
        )
        for part in fitted(line, room) if room else [line]:
            print(paint(part, style) if colours else part)
