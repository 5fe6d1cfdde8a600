"""Messages to stderr, and data to stdout, whatever the terminal can write."""

from __future__ import annotations

import codecs
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from isobatch.errors import InputError
from isobatch.words import redacted

_CALLED: dict[str, str] = {}
"""What messages call a file that nobody named."""


@contextmanager
def called(path: str, name: str) -> Iterator[None]:
    """While it lasts messages call the file so; an InputError that leaves it does, too."""
    _CALLED[path] = name
    try:
        yield
    except InputError as error:
        if error.file != path:
            raise
        raise error.at(file=name) from None
    finally:
        del _CALLED[path]


def say(text: str) -> None:
    """Writes a message to stderr; control characters of names that others chose do not reach the terminal."""
    if sys.stderr is None:
        return
    for path, name in _CALLED.items():
        text = text.replace(path, name)
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


_PLAINER = {
    "×": "x", "→": "->", "−": "-", "–": "-", "—": "-", "…": "...", "·": "*", "√": "sqrt ", "≤": "<=", "≥": ">=", "¾": "3/4",
    "½": "1/2", "η": "eta", "λ": "lambda", "σ": "sigma", "μ": "mu", "µ": "u", "ρ": "rho", "φ": "phi", "β": "beta", "Σ": "Sum",
    "│": "|", "─": "-", "└": "+", "┴": "+", "┃": "|", "━": "-", "█": "#", "▇": "#", "▆": "#", "▅": "=", "▄": "=", "▃": "-",
    "▂": "_", "▁": "_", "✓": "ok", "’": "'", "²": "^2",
}  # fmt: skip
"""What stands for our own signs where an encoding lacks them."""


def _plainer(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeEncodeError)  # only writing is asked for
    lost = error.object[error.start : error.end]
    return "".join(_PLAINER.get(character, "?") for character in lost), error.end


def prepare() -> None:
    """A terminal that lacks a character (cp1252 has no arrow) gets one that says the same, not a traceback."""
    codecs.register_error("isobatch", _plainer)
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="isobatch")
