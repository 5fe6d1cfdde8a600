"""How the texts of options are read, and what is said of those that cannot be."""

from __future__ import annotations

import argparse
import re
from decimal import Decimal

from isobatch.words import shown

_GROUPED = re.compile(r"\s*\+?\d{1,3}(,\d{3})+(?![\d,])")
"""Commas between thousands; anywhere else they stand between the items of a list."""


def count(text: str) -> int:
    """A whole number from 1, with separators of thousands or without.

    >>> count("1,024")
    1024
    """
    try:
        number = int(_ungrouped(text))
    except ValueError:
        raise _must_be("a whole number, at least 1", text) from None
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {number}")
    return number


def gpu_count(text: str) -> int:
    """One number of GPUs; of a list or a range it is said which command takes them.

    >>> gpu_count("1,024"), gpu_count("8")
    (1024, 8)
    """
    if not _GROUPED.match(text) and re.fullmatch(r"\s*\d+\s*(,|\.\.)[\d\s,]+", text):
        raise argparse.ArgumentTypeError(
            f"must be one whole number, got {shown(text)}: isobatch sweep --gpus {text.strip()} plans several"
        )
    return count(text)


def _ungrouped(text: str) -> str:
    """A number without its separators of thousands."""
    return (text.replace(",", "") if _GROUPED.match(text) else text).replace("_", "")


def size(text: str) -> int:
    """A large whole number, such as of parameters or tokens.

    >>> size("7e9") == size("7,000,000,000") == 7_000_000_000
    True
    """
    try:
        number = float(_ungrouped(text))
        whole = int(number)
    except (ValueError, OverflowError):
        whole = 0
    if whole < 1 or whole != number or whole > 2**53:
        raise _must_be("a whole number from 1, such as 7e9", text)
    return whole


_NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_MOST_DIGITS = 400


def number(text: str) -> int | float | None:
    """A number as a table's cell may have it, which JSON does not: `.1`, `1.`, `+64`, `0064`, and whole ones such as `64.0` or `1e3`;
    None where the text is no number.

    >>> number(".1"), number("64.0"), number("1e3"), number("0064"), number("64.5"), number("90ep")
    (0.1, 64, 1000, 64, 64.5, None)

    A whole number that no real holds exactly stays one:

    >>> number("9007199254740993.0")
    9007199254740993
    """
    stripped = text.strip()
    if not _NUMBER.fullmatch(stripped) or len(stripped) > _MOST_DIGITS:
        return None
    if stripped.lstrip("+-").isdecimal():
        return int(stripped)
    value = float(stripped)
    if abs(value) >= 2**63:
        return value
    exact = Decimal(stripped)
    return int(exact) if exact == exact.to_integral_value() else value


def path(text: str) -> str:
    """A path: the empty text is none."""
    if not text:
        raise _must_be("a path", text)
    return text


def names(text: str) -> list[str]:
    """Names between commas."""
    found = [name.strip() for name in text.split(",")]
    if not all(found):
        raise _must_be("names between commas", text)
    return found


_MOST_GPUS = 2**31
_MOST_COUNTS = 2**20
"""Each is a cluster of its own to plan on."""


def gpu_counts(text: str) -> range | list[int]:
    """`1..64` as a range (both ends are in it), `8,16,24` as a list.

    >>> gpu_counts("1..3"), gpu_counts("8,16")
    (range(1, 4), [8, 16])
    """
    first, dots, last = text.partition("..")
    ends: range | list[int]
    try:
        ends = range(int(first), int(last) + 1) if dots else [int(part) for part in text.split(",")]
    except ValueError:
        raise _must_be("a range such as 1..64, or a list such as 2,4,6", text) from None
    if not dots and re.search(r"(^|,)\s*0\d", text):  # 1,024 with a comma of thousands
        raise _must_be("a list such as 2,4,6, without separators of thousands", text)
    if not ends:
        raise argparse.ArgumentTypeError(f"must be a range that rises, got {text}")
    # The ends of a range, which may be too long to walk.
    least, most = (ends[0], ends[-1]) if dots else (min(ends), max(ends))
    if least < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {shown(least)}")
    if most > _MOST_GPUS:
        raise argparse.ArgumentTypeError(f"must be at most {_MOST_GPUS:,}, got {shown(most)}")
    if len(ends) > _MOST_COUNTS:
        raise argparse.ArgumentTypeError(f"must be at most {_MOST_COUNTS:,} counts, got {len(ends):,}")
    return ends


def numbers(text: str) -> list[float]:
    """Numbers between commas; whole ones are whole."""
    try:
        return [int(part) if re.fullmatch(r"\s*\d+\s*", part) else float(part) for part in text.split(",")]
    except ValueError:
        raise _must_be("a list such as 2,4,6", text) from None


def _must_be(expected: str, text: str) -> argparse.ArgumentTypeError:
    return argparse.ArgumentTypeError(f"must be {expected}, got {shown(text)}")
