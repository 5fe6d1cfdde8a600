"""The terminal: messages on stderr, data on stdout, colours, progress, and the end of the process."""

import argparse
import codecs
import contextlib
import os
import re
import shutil
import signal
import sys
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, NoReturn

from isobatch.errors import InputError, unwritable
from isobatch.words import readable

_COPIES: list[str] = []
"""Files with a copy of stdin, which messages name in their place."""


def say(*texts: str, error: bool = False) -> None:
    """Writes messages to stderr, without control characters; the beginning of an error is red."""
    if sys.stderr is None:
        return
    if sys.stdout is not None:
        with contextlib.suppress(OSError, ValueError):  # a closed pipe is for the end of the command to say
            sys.stdout.flush()  # so that `2>&1` has the lines in their order
    for text in texts:
        for path in _COPIES:
            text = text.replace(path, "stdin")
        plain = _wrapped(readable(text), sys.stderr)
        if error and has_colours(sys.stderr):
            head, colon, rest = plain.partition(":")
            plain = paint(head + colon, "error") + rest
        print(plain, file=sys.stderr)


def stdin() -> IO[bytes]:
    """Returns the bytes of stdin."""
    if sys.stdin is None:
        raise InputError("stdin is closed: name a file in the place of -")
    return sys.stdin.buffer


_MAX_SNIFFED_BYTES = 1 << 16
"""Bytes by which the format is told."""


@contextmanager
def stdin_as_file(args: argparse.Namespace, *names: str) -> Iterator[None]:
    """Copies stdin into a file for the argument typed as `-`; the argument is its path in the context."""
    dashes = [name for name in names if getattr(args, name) == "-"]
    if len(dashes) > 1:
        raise InputError(f"- stands for stdin, and cannot be both {' and '.join(dashes)}")
    if not dashes:
        yield
        return
    import tempfile

    with tempfile.TemporaryDirectory(prefix="isobatch-") as folder:
        raw = Path(folder, "raw")
        try:
            with raw.open("wb") as file:
                shutil.copyfileobj(stdin(), file)
        except OSError as error:
            raise unwritable(error, folder) from None
        path = str(raw.rename(raw.with_name(f"stdin{_suffix(raw)}")))
        setattr(args, dashes[0], path)
        _COPIES.append(path)
        try:
            yield
        except InputError as error:
            if error.file != path:
                raise
            raise error.at(file="stdin") from None
        finally:
            _COPIES.remove(path)


def _suffix(path: Path) -> str:
    """Recognizes a file's format by its first bytes: Parquet, JSON, JSON lines, else CSV."""
    with path.open("rb") as file:
        head = file.read(_MAX_SNIFFED_BYTES)
    if head.startswith(b"PAR1"):
        return ".parquet"
    if head.lstrip().startswith(b"["):
        return ".json"
    if not head.lstrip().startswith(b"{"):
        return ".csv"
    import json

    first = head.lstrip().split(b"\n", 1)[0]
    try:
        document = json.loads(first)
    except (ValueError, RecursionError):
        return ".json"  # its first line is not whole: it is laid out over many
    return ".json" if "schema" in document else ".jsonl"


def write_json(value: Any) -> None:
    """Writes a value, or JSON text, to stdout as a line of JSON, in UTF-8 on any terminal."""
    import msgspec

    text = value.encode() if isinstance(value, str) else msgspec.json.encode(value)
    sys.stdout.flush()
    sys.stdout.buffer.write(text + b"\n")


_PLAINER = {
    "×": "x", "→": "->", "−": "-", "–": "-", "—": "-", "…": "...", "·": "*", "√": "sqrt ", "≤": "<=",
    "≥": ">=", "¾": "3/4", "½": "1/2", "η": "eta", "λ": "lambda", "σ": "sigma", "μ": "mu", "µ": "u",
    "ρ": "rho", "φ": "phi", "β": "beta", "Σ": "Sum", "│": "|", "─": "-", "└": "+", "┴": "+", "┃": "|",
    "━": "-", "█": "#", "▇": "#", "▆": "#", "▅": "=", "▄": "=", "▃": "-", "▂": "_", "▁": "_", "✓": "ok",
    "’": "'", "²": "^2",
}  # fmt: skip
"""Replacements of our own signs where an encoding lacks them."""


def _plainer(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeEncodeError)  # only writing is asked for
    lost = error.object[error.start : error.end]
    return "".join(_PLAINER.get(character, "?") for character in lost), error.end


def prepare() -> None:
    """Replaces signs by plainer ones where an encoding such as cp1252 lacks them."""
    codecs.register_error("isobatch", _plainer)
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="isobatch")


# ---- colours ----

_STYLES = {
    **dict.fromkeys(("ok", "pass", "met"), "32"),
    **dict.fromkeys(("caution", "likely"), "33"),
    **dict.fromkeys(("infeasible", "fail", "missed", "error"), "1;31"),
    **dict.fromkeys(("heading", "figure"), "1"),
    **dict.fromkeys(("source", "unchecked"), "2"),
    **{"inconclusive": "35", "typed": "36", "title": "1;32"},
}


def has_colours(stream: IO[str] | None) -> bool:
    """Decides whether to write colours to a stream."""
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
    """Breaks a line between words to fit a terminal.

    In a line of columns the options at its end get a line, or the last column takes the room that is left.

    >>> fitted("  - one two three", 12), fitted("  one   two   three", 12)
    (['  - one two', '    three'], ['  one   two   three'])
    >>> fitted("  480 GPUs   68 × 1 × 15     --gpus 480", 30)
    ['  480 GPUs   68 × 1 × 15', '      --gpus 480']
    """
    if len(line) <= room:
        return [line]
    if "   " in line.strip():
        columns, gap, options = line.partition("   --")
        if gap:
            return [columns.rstrip(), f"      --{options}"]
        head = re.match(r".*\S\s\s+", line)
        if head is None or room - head.end() < 20:
            return [line]
        last = textwrap.wrap(
            line[head.end() :], room - head.end(), break_long_words=False, break_on_hyphens=False
        )
        return [head[0] + last[0], *(" " * head.end() + more for more in last[1:])]
    after = " " * (len(line) - len(line.lstrip(" -")))
    return textwrap.wrap(line, room, subsequent_indent=after, break_long_words=False, break_on_hyphens=False)


_PARTS = {
    "source": re.compile(r"\s\[[^\[\]]*\d{4}[^\[\]]*\]$"),
    "typed": re.compile(r"(?<=   )--\S.*$", re.MULTILINE),
    "figure": re.compile(r"(?<=→ )[\d.,e-]*\d"),
}
"""Parts of a line to emphasize or to dim: a citation at its end, options to copy, a new value."""
_SPLIT = re.compile(r"\d[\d,]*(?= ×| replicas| samples)")


def emphasized(line: str, first: str = "") -> str:
    """Paints the parts of a plan's line; `first` is the status of a first line, and makes its split bold.

    >>> emphasized("Learning rate 0.1 → 0.2: linear [Goyal et al. 2017]")
    'Learning rate 0.1 → \\x1b[1m0.2\\x1b[0m: linear\\x1b[2m [Goyal et al. 2017]\\x1b[0m'
    """
    if first:
        head, colon, rest = line.partition(":")
        return paint(head + colon, first) + _SPLIT.sub(lambda match: paint(match[0], "figure"), rest)
    if re.match(r"\d+\. ", line):
        return paint(line, "heading")
    if line.endswith(":") and not line.startswith(" "):
        return paint(line, "caution" if line == "Warnings:" else "heading")
    for style, pattern in _PARTS.items():
        line = pattern.sub(lambda match, style=style: paint(match[0], style), line)  # type: ignore[misc]
    return line


def _wrapped(text: str, stream: IO[str]) -> str:
    """Breaks a text between words for a terminal; lines with a command to copy stay whole."""
    if not stream.isatty():
        return text
    room = shutil.get_terminal_size().columns
    return "\n".join(
        part
        for line in text.split("\n")
        for part in ([line] if re.search(r"isobatch \w+ .*--", line) else fitted(line, room))
    )


def show_lines(text: str, status: str = "") -> None:
    """Prints an answer, on a terminal broken between words, its first line in the colour of a status."""
    colours = has_colours(sys.stdout)
    for number, line in enumerate(readable(text).split("\n")):
        shown = _wrapped(line, sys.stdout)
        print(emphasized(shown, "" if number else status) if colours else shown)


@contextmanager
def progress(label: str) -> Iterator[Callable[[int, int | None], None]]:
    """Shows a bar on a terminal; yields a function of the count done and the total, if known."""
    if not (sys.stderr and sys.stderr.isatty()):
        yield lambda _done, _total: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(label, total=None)
        yield lambda count, total: bar.update(task, completed=count, total=total)


@contextmanager
def heard_sigterm(end: Callable[[int, Any], Any] | None = None) -> Iterator[None]:
    """Lets SIGTERM, as of Slurm and `timeout`, end a command in order: by `end`, or with 143."""

    def stop(number: int, _frame: Any) -> NoReturn:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, end or stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def leave(code: int) -> NoReturn:
    """Ends the process with this exit code, after output is flushed and exit functions have run.

    Python does not take torch apart object by object: that takes half as long as importing it. Where torch is
    not loaded, a thread still works or a stream takes nothing any more, Python's own end waits or complains.
    """
    if "torch" not in sys.modules:
        raise SystemExit(code)
    import atexit
    import threading

    if any(not thread.daemon and thread is not threading.main_thread() for thread in threading.enumerate()):
        raise SystemExit(code)
    atexit._run_exitfuncs()
    try:
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()
    except OSError:
        raise SystemExit(code) from None
    os._exit(code)
