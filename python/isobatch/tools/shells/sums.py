"""Bash's arithmetic: `$(( NODES * 8 ))`, `(( i++ ))`. Whole numbers of 64 bits, with the operators of C."""

from __future__ import annotations

import re
from collections.abc import Callable

_TOKEN = re.compile(
    r"\s*(?:(\d\w*(?:#\w+)?)|([A-Za-z_]\w*)|(\*\*|<<=|>>=|[+\-*/%&|^]=|<<|>>|<=|>=|==|!=|&&|\|\||\+\+|--|[-+*/%<>!~&|^?:=(),]))"
)
_BINDS = {
    "||": 4, "&&": 5, "|": 6, "^": 7, "&": 8, "==": 9, "!=": 9, "<": 10, ">": 10, "<=": 10, ">=": 10, "<<": 11, ">>": 11,
    "+": 12, "-": 12, "*": 13, "/": 13, "%": 13, "**": 14,
}  # fmt: skip
_ASSIGNS = ("=", "+=", "-=", "*=", "/=", "%=", "<<=", ">>=", "&=", "|=", "^=")
_KINDS = ("", "number", "name", "sign")
_DEEPEST = 50


class NotComputed(Exception):
    """The value is not known, or bash refuses the expression."""


class Computation:
    """Computes one expression.

    Args:
        get: returns the text of a variable; raises NotComputed where that is not known.
        put: sets a variable.
    """

    def __init__(
        self, text: str, get: Callable[[str], str], put: Callable[[str, str], None], depth: int = 0
    ) -> None:
        if depth > _DEEPEST:
            raise NotComputed
        self.get, self.put, self.depth = get, put, depth
        self.tokens, at = list[tuple[str, str]](), 0
        while at < len(text.rstrip()):
            found = _TOKEN.match(text, at)
            if found is None:
                raise NotComputed
            kind = found.lastindex or 1
            self.tokens.append((_KINDS[kind], found[kind]))
            at = found.end()
        self.at = 0

    def value(self) -> int:
        """The number.

        >>> Computation("8 * (2 + 1) / 5", str, print).value()
        4
        """
        if not self.tokens:
            return 0
        found = self._comma()
        if self.at < len(self.tokens):
            raise NotComputed
        return found

    def _sign(self) -> str:
        kind, text = self.tokens[self.at] if self.at < len(self.tokens) else ("", "")
        return text if kind == "sign" else ""

    def _take(self, sign: str) -> None:
        if self._sign() != sign:
            raise NotComputed
        self.at += 1

    def _comma(self) -> int:
        found = self._assignment()
        while self._sign() == ",":
            self.at += 1
            found = self._assignment()
        return found

    def _assignment(self) -> int:
        kind, name = self.tokens[self.at] if self.at < len(self.tokens) else ("", "")
        sign = self.tokens[self.at + 1][1] if self.at + 1 < len(self.tokens) else ""
        if kind == "name" and sign in _ASSIGNS:
            self.at += 2
            value = self._assignment()
            if sign != "=":
                value = _apply(sign[:-1], self._variable(name), value)
            self.put(name, str(value))
            return value
        return self._ternary()

    def _ternary(self) -> int:
        condition = self._binary(4)
        if self._sign() != "?":
            return condition
        if any(text in _ASSIGNS or text in ("++", "--") for _, text in self.tokens):
            raise NotComputed  # only one branch would assign
        self.at += 1
        first = self._comma()
        self._take(":")
        second = self._ternary()
        return first if condition else second

    def _binary(self, least: int) -> int:
        left = self._unary()
        while (sign := self._sign()) and _BINDS.get(sign, 0) >= least:
            self.at += 1
            if sign in ("&&", "||") and any(
                text in _ASSIGNS or text in ("++", "--") for _, text in self.tokens
            ):
                raise NotComputed  # the right side may not be computed
            right = self._binary(_BINDS[sign] + (sign != "**"))
            left = _apply(sign, left, right)
        return left

    def _unary(self) -> int:
        sign = self._sign()
        if sign in ("++", "--"):
            self.at += 1
            kind, name = self.tokens[self.at] if self.at < len(self.tokens) else ("", "")
            if kind != "name":
                raise NotComputed
            self.at += 1
            return self._stepped(name, 1 if sign == "++" else -1)
        if sign in ("-", "+", "!", "~"):
            self.at += 1
            value = self._unary()
            return _wrapped({"-": -value, "+": value, "!": int(not value), "~": ~value}[sign])
        return self._atom()

    def _atom(self) -> int:
        if self.at >= len(self.tokens):
            raise NotComputed
        kind, text = self.tokens[self.at]
        self.at += 1
        if kind == "number":
            return _number(text)
        if kind == "name":
            if self._sign() in ("++", "--"):
                by = 1 if self._sign() == "++" else -1
                self.at += 1
                return _wrapped(self._stepped(text, by) - by)
            return self._variable(text)
        if text != "(":
            raise NotComputed
        found = self._comma()
        self._take(")")
        return found

    def _stepped(self, name: str, by: int) -> int:
        value = _wrapped(self._variable(name) + by)
        self.put(name, str(value))
        return value

    def _variable(self, name: str) -> int:
        """A variable's text is an expression itself."""
        return Computation(self.get(name), self.get, self.put, self.depth + 1).value()


def _number(text: str) -> int:
    base, sign, digits = text.partition("#")
    try:
        if sign:
            if not base.isdecimal() or not 2 <= int(base) <= 36:
                raise NotComputed
            return _wrapped(int(digits, int(base)))
        if text[:2] in ("0x", "0X"):
            return _wrapped(int(text, 16))
        return _wrapped(int(text, 8 if text[0] == "0" and len(text) > 1 else 10))
    except ValueError:
        raise NotComputed from None


def _apply(sign: str, left: int, right: int) -> int:
    if sign in ("/", "%"):
        if right == 0:
            raise NotComputed
        quotient = abs(left) // abs(right) * (1 if (left < 0) == (right < 0) else -1)
        return _wrapped(quotient if sign == "/" else left - quotient * right)
    if sign in ("**", "<<", ">>") and not 0 <= right < 64:
        raise NotComputed
    computed: dict[str, Callable[[], int]] = {
        "+": lambda: left + right,
        "-": lambda: left - right,
        "*": lambda: left * right,
        "**": lambda: left**right,
        "<<": lambda: left << right,
        ">>": lambda: left >> right,
        "<": lambda: left < right,
        ">": lambda: left > right,
        "<=": lambda: left <= right,
        ">=": lambda: left >= right,
        "==": lambda: left == right,
        "!=": lambda: left != right,
        "&": lambda: left & right,
        "|": lambda: left | right,
        "^": lambda: left ^ right,
        "&&": lambda: bool(left and right),
        "||": lambda: bool(left or right),
    }
    return _wrapped(int(computed[sign]()))


def _wrapped(value: int) -> int:
    return (value + 2**63) % 2**64 - 2**63
