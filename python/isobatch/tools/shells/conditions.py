"""Conditions: `[ … ]`, `test` and `[[ … ]]`. None where only the run knows the answer."""

import operator
from collections.abc import Callable, Sequence

from isobatch.tools.shells.arithmetic import plain
from isobatch.tools.shells.expansion import Expansion
from isobatch.tools.shells.state import Shell, is_known
from isobatch.tools.shells.tree import Condition

_NUMBERS: dict[str, Callable[[int, int], bool]] = {
    "-eq": operator.eq, "-ne": operator.ne, "-lt": operator.lt, "-le": operator.le, "-gt": operator.gt,
    "-ge": operator.ge,
}  # fmt: skip
_TEXTS = ("=", "==", "!=")


def evaluate_test(words: Sequence[str]) -> bool | None:
    """The answer of `test`, by the number of its arguments, as POSIX says.

    >>> [evaluate_test(it.split()) for it in ("7B = 7B", "! 4 -gt 8", "-f a")]
    [True, True, None]
    """
    if not all(map(is_known, words)):
        return None
    match list(words):
        case []:
            return False
        case [one]:
            return one != ""
        case ["-z" | "-n" as sign, one]:
            return (one == "") == (sign == "-z")
        case [one, "=" | "==" | "!=" as sign, two]:
            return (one == two) == (sign != "!=")
        case [one, sign, two] if sign in _NUMBERS:
            return _compared(one, sign, two)
        case ["!", *others] if len(others) < 4:
            return negated(evaluate_test(others))
    return None


def negated(answer: bool | None) -> bool | None:
    """The opposite."""
    return None if answer is None else not answer


def evaluate(expansion: Expansion, shell: Shell, term: Condition) -> bool | None:
    """The answer of a part of `[[ … ]]`."""
    answer = _answer(expansion, shell, term)
    return negated(answer) if term.negated else answer


def _answer(expansion: Expansion, shell: Shell, term: Condition) -> bool | None:
    text = expansion.text(shell, term.words[0])
    if term.sign in ("", "-z", "-n"):
        # A text with something in it is not empty, whatever else is in it.
        return None if text and not any(map(is_known, text)) else (text == "") == (term.sign == "-z")
    if term.sign in _TEXTS:
        pattern = expansion.pattern(shell, term.words[1])
        if pattern is None or not (is_known(text) or pattern.pattern == ".*"):
            return None
        return bool(pattern.fullmatch(text)) == (term.sign != "!=")
    if term.sign in _NUMBERS:
        second = expansion.text(shell, term.words[1])
        return _compared(text or "0", term.sign, second or "0") if is_known(text + second) else None
    return None


def _compared(left_text: str, sign: str, right_text: str) -> bool | None:
    """Of numbers; of other texts None, as bash refuses some and computes others."""
    first, second = plain(left_text), plain(right_text)
    return None if first is None or second is None else _NUMBERS[sign](first, second)
