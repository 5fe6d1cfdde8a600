"""Conditions: `[ … ]`, `test` and `[[ … ]]`. None where only the run knows the answer."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from isobatch.errors import InputError
from isobatch.tools.shells.expansion import Expansion
from isobatch.tools.shells.state import Shell, is_known
from isobatch.tools.shells.tree import Condition, Text, Word

_NUMBERS: dict[str, Callable[[int, int], bool]] = {
    "-eq": lambda a, b: a == b,
    "-ne": lambda a, b: a != b,
    "-lt": lambda a, b: a < b,
    "-le": lambda a, b: a <= b,
    "-gt": lambda a, b: a > b,
    "-ge": lambda a, b: a >= b,
}
_FILES = frozenset("-" + letter for letter in "abcdefghkprstuwxGLNOS")


def tested(words: Sequence[str]) -> bool | None:
    """The answer of `test`, by the number of its arguments, as POSIX says.

    >>> tested(["7B", "=", "7B"]), tested(["-n", ""]), tested(["!", "4", "-gt", "8"]), tested(["-f", "a"])
    (True, False, True, None)
    """
    if not all(map(is_known, words)):
        return None
    match list(words):
        case []:
            return False
        case [one]:
            return one != ""
        case ["!", one]:
            return one == ""
        case [sign, one]:
            return _of_one(sign, one)
        case [one, sign, two] if (found := _of_two(one, sign, two)) is not ...:
            return found  # type: ignore[return-value]
        case ["!", *rest] if len(rest) in (2, 3):
            answer = tested(rest)
            return None if answer is None else not answer
    return None


def _of_one(sign: str, text: str) -> bool | None:
    if sign in ("-z", "-n"):
        return (text == "") == (sign == "-z")
    return None


def _of_two(one: str, sign: str, two: str) -> bool | object | None:
    """`...` where the sign is no operator of two."""
    if sign in ("=", "==", "!="):
        return (one == two) == (sign != "!=")
    if sign in _NUMBERS:
        return _compared(one, sign, two)
    if sign in ("-a", "-o"):
        return (one != "" and two != "") if sign == "-a" else (one != "" or two != "")
    if sign in ("<", ">", "-nt", "-ot", "-ef"):
        return None
    return ...


def _compared(one: str, sign: str, two: str) -> bool | None:
    """Of numbers; bash refuses other texts, and its answer is then no."""
    try:
        if not (
            one.strip().lstrip("+-").isdecimal()
            and two.strip().lstrip("+-").isdecimal()
            and (one + two).isascii()
        ):
            return None
        return _NUMBERS[sign](int(one), int(two))
    except ValueError:
        return None


class Conditions:
    """Reads `[[ … ]]`."""

    def __init__(self, expansion: Expansion, shell: Shell, words: Sequence[Word]) -> None:
        self.expansion, self.shell, self.words, self.at = expansion, shell, words, 0

    def answer(self) -> bool | None:
        """Whether it is true."""
        found = self._either()
        if self.at != len(self.words):
            raise InputError("[[ … ]] has a condition that is not read")
        return found

    def _bare(self, ahead: int = 0) -> str:
        """An unquoted word at the place."""
        if self.at + ahead >= len(self.words):
            return ""
        word = self.words[self.at + ahead]
        return word[0].text if len(word) == 1 and isinstance(word[0], Text) and not word[0].quoted else ""

    def _either(self) -> bool | None:
        found = self._both()
        while self._bare() == "||":
            self.at += 1
            other = self._beside(self._both, skips=found is True)
            found = True if found or other else None if found is None or other is None else False
        return found

    def _both(self) -> bool | None:
        found = self._one()
        while self._bare() == "&&":
            self.at += 1
            other = self._beside(self._one, skips=found is False)
            found = (
                False
                if found is False or other is False
                else None
                if found is None or other is None
                else True
            )
        return found

    def _beside(self, read: Callable[[], bool | None], skips: bool) -> bool | None:
        """Reads the right side; what bash skips changes no variable."""
        held = self.shell
        self.shell = held.copy() if skips else held
        found = read()
        self.shell = held
        return found

    def _one(self) -> bool | None:
        if self._bare() == "!":
            self.at += 1
            inner = self._one()
            return None if inner is None else not inner
        if self._bare() == "(":
            self.at += 1
            inner = self._either()
            if self._bare() != ")":
                self.at = len(self.words) + 1
            self.at += 1
            return inner
        sign = self._bare(1)
        if sign in ("=", "==", "!=", "<", ">", "=~", "-nt", "-ot", "-ef", *_NUMBERS):
            self.at += 3
            return self._two(sign) if self.at <= len(self.words) else None
        if self._bare() in ("-z", "-n", "-v", "-o", "-R", *_FILES) and self.at + 1 < len(self.words):
            self.at += 2
            return self._of_sign(self.words[self.at - 2], self.words[self.at - 1])
        self.at += 1
        text = self._text(self.at - 1)
        return text != "" if is_known(text) else None

    def _text(self, at: int) -> str:
        return self.expansion.text(self.shell, self.words[at]) if at < len(self.words) else ""

    def _of_sign(self, sign: Word, word: Word) -> bool | None:
        text = self.expansion.text(self.shell, word)
        name = sign[0].text if isinstance(sign[0], Text) else ""
        if name in ("-z", "-n") and text and set(text) and any(is_known(char) for char in text):
            return name == "-n"  # a text with something in it is not empty, whatever else is in it
        return _of_one(name, text) if is_known(text) else None

    def _two(self, sign: str) -> bool | None:
        one = self._text(self.at - 3)
        if sign in ("=", "==", "!="):
            pattern = self.expansion.pattern(self.shell, self.words[self.at - 1])
            if pattern is None or not is_known(one):
                return None
            return bool(pattern.fullmatch(one)) == (sign != "!=")
        two = self._text(self.at - 1)
        if sign not in _NUMBERS or not is_known(one + two):
            return None
        return _compared(one or "0", sign, two or "0")


def of_condition(expansion: Expansion, shell: Shell, condition: Condition) -> bool | None:
    """The answer of `[[ … ]]`."""
    try:
        return Conditions(expansion, shell, condition.words).answer()
    except InputError as error:
        raise InputError(f"line {condition.line}: {error.message}") from None
