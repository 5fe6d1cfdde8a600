"""Bash's arithmetic: signed 64-bit whole numbers, with the operators and precedence of C, and `**`.

`?:` and an expression that sets a variable are refused; `((X += 2))` is read by `Expansion`.
"""

import operator
import re
from collections.abc import Callable
from functools import partial
from typing import NoReturn

Number = int | None
"""None: only the run knows it."""
Lazy = Callable[[], Number]
"""A part of an expression: bash computes no branch that it does not take."""
Get = Callable[[str, int | None], str | None]
"""The text of a variable, or of an array's value at a place; None where only the run knows it."""

_PLAIN = re.compile(r"[ \t\n]*(-?(?:0|[1-9]\d{0,17}))[ \t\n]*", re.ASCII)
_UNKNOWN = "\U000f0000-\U0010ffff"
_TOKEN = re.compile(
    rf"[ \t\n]*(\w*[{_UNKNOWN}][\w{_UNKNOWN}]*|\w+|\*\*|<<|>>|&&|\|\||[<>=!]=|[-+*/%<>!~&|^()\[\]])",
    re.ASCII,
)
_TWICE = re.compile(r"\+\+|--|\w[ \t\n]+\[")
"""Signs that change a variable, and a blank before an index."""
_LITERAL = re.compile(r"0[0-7]*|0[xX][0-9a-fA-F]{1,15}|[1-9]\d{0,17}", re.ASCII)
_PRECEDENCE = {
    sign: level
    for level, signs in enumerate(("||", "&&", "|", "^", "&", "== !=", "< > <= >=", "<< >>", "+ -", "* / %"))
    for sign in signs.split()
}
_BINARY: dict[str, Callable[[int, int], int]] = {
    "|": operator.or_, "^": operator.xor, "&": operator.and_, "==": operator.eq, "!=": operator.ne,
    "<": operator.lt, ">": operator.gt, "<=": operator.le, ">=": operator.ge, "<<": operator.lshift,
    ">>": operator.rshift, "+": operator.add, "-": operator.sub, "*": operator.mul,
    "**": lambda base, exponent: pow(base, exponent, 1 << 64),
}  # fmt: skip
_UNARY: dict[str, Callable[[int], int]] = {
    "-": operator.neg, "+": operator.pos, "~": operator.invert, "!": operator.not_,
}  # fmt: skip
_MOST_TOKENS, _MOST_BRACKETS, _MOST_NAMES = 200, 20, 8


def compute(text: str, get: Get, depth: int = 0) -> Number:
    """Returns the value of an expression, `depth` names deep; raises ValueError for an unread form."""
    if depth > _MOST_NAMES:
        raise ValueError(f"has names in names, more than {_MOST_NAMES} deep")
    if twice := _TWICE.search(text):
        raise ValueError(f"has {twice[0]!r}, which is not read")
    tokens, at = list[str](), 0
    while text[at:].strip(" \t\n"):
        match = _TOKEN.match(text, at)
        if match is None:
            raise ValueError(f"has {text[at:].strip()[:1]!r}, which is not read")
        tokens.append(match[1])
        at = match.end()
    if len(tokens) > _MOST_TOKENS or tokens.count("(") + tokens.count("[") > _MOST_BRACKETS:
        raise ValueError(f"has more than {_MOST_TOKENS} parts or {_MOST_BRACKETS} brackets")
    expression = _Expression(tokens, get, depth)
    value = expression.binary(0) if tokens else lambda: 0
    if expression.sign():
        expression.fail()
    return value()


def plain(text: str) -> int | None:
    """Returns a whole number in its plain form; None for forms such as 010, read otherwise by bash."""
    match = _PLAIN.fullmatch(text)
    return int(match[1]) if match else None


class _Expression:
    """A recursive descent through the tokens."""

    def __init__(self, tokens: list[str], get: Get, depth: int) -> None:
        self.tokens, self.get, self.depth, self.at = tokens, get, depth, 0

    def fail(self) -> NoReturn:
        """Refuses the expression."""
        raise ValueError(f"has {self.sign() or 'its end'!r} where it is not read")

    def sign(self) -> str:
        """The token at the place; empty behind the last."""
        return self.tokens[self.at] if self.at < len(self.tokens) else ""

    def take(self, *signs: str) -> str:
        """Takes one of these, if it is here."""
        sign = self.sign()
        if sign not in signs:
            return ""
        self.at += 1
        return sign

    def close(self, bracket: str) -> None:
        """Takes a bracket, or fails."""
        if not self.take(bracket):
            self.fail()

    def binary(self, level: int) -> Lazy:
        first = self.power()
        while (rank := _PRECEDENCE.get(self.sign(), -1)) >= level:
            sign = self.take(self.sign())
            combine = _combine if sign in ("&&", "||") else _apply
            first = partial(combine, sign, first, self.binary(rank + 1))
        return first

    def power(self) -> Lazy:
        base = self.unary()
        return partial(_apply, "**", base, self.power()) if self.take("**") else base

    def unary(self) -> Lazy:
        if not (sign := self.take(*_UNARY)):
            return self.primary()
        inner = self.unary()

        def turned() -> Number:
            value = inner()
            return None if value is None else _wrapped(int(_UNARY[sign](value)))

        return turned

    def primary(self) -> Lazy:
        token = self.take(self.sign())
        if token == "(":
            value = self.binary(0)
            self.close(")")
            return value
        if any(char > "\U000effff" for char in token):
            return lambda: None
        if token.isidentifier():
            return self.variable(token)
        if not _LITERAL.fullmatch(token):
            self.at -= token != ""
            self.fail()
        number = int(token, 16 if token[:2] in ("0x", "0X") else 8 if token[0] == "0" else 10)
        return lambda: _wrapped(number)

    def variable(self, name: str) -> Lazy:
        """Reads a name with its index: the variable's text is an expression too."""
        index = None
        if self.take("["):
            index = self.binary(0)
            self.close("]")

        def value() -> Number:
            place = index() if index else None
            text = None if index and place is None else self.get(name, place)
            return None if text is None else compute(text, self.get, self.depth + 1)

        return value


def _combine(sign: str, first: Lazy, right: Lazy) -> Number:
    """Returns the value of `&&` or `||`; the right side counts only where the left one does not decide."""
    start = first()
    if start is not None and bool(start) == (sign == "||"):
        return int(sign == "||")
    value = right()
    return None if start is None or value is None else int(bool(value))


def _apply(sign: str, before: Lazy, behind: Lazy) -> Number:
    """Returns the value of a binary operator."""
    first, second = before(), behind()
    if first is None or second is None:
        return None
    if sign in ("/", "%"):
        if second == 0:
            raise ValueError("divides by 0")
        quotient = abs(first) // abs(second) * (1 if (first < 0) == (second < 0) else -1)
        return _wrapped(quotient if sign == "/" else first - second * quotient)
    if (sign in ("<<", ">>") and second >= 64) or (sign in ("<<", ">>", "**") and second < 0):
        raise ValueError(f"has {second} behind {sign}")
    return _wrapped(int(_BINARY[sign](first, second)))


def _wrapped(value: int) -> int:
    """As 64 bits with a sign hold it."""
    return (value + (1 << 63)) % (1 << 64) - (1 << 63)
