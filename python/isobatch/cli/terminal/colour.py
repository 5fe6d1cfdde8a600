"""Colours by status, where the terminal has some: NO_COLOR and FORCE_COLOR decide (no-color.org, force-color.org)."""

from __future__ import annotations

import os
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


def said(explanation: str, status: str) -> str:
    """A plan in words with its first line in the colour of its status, and its headings in bold."""
    first, *others = explanation.split("\n")
    lines = [paint(first, status)]
    for line in others:
        style = "caution" if line == "Warnings:" else "heading" if line.endswith(":") and line[0] != " " else ""
        lines.append(paint(line, style))
    return "\n".join(lines)
