"""Bash's arithmetic: signed 64-bit whole numbers, with the operators and precedence of C, and `**`."""

import operator
import re
from collections.abc import Callable
from functools import partial
from typing import NoReturn

Number = int | None
"""None: only the run knows it."""

_PLAIN = re.compile(r"[ \t\n]*(-?(?:0|[1-9]\d{0,17}))[ \t\n]*", re.ASCII)
_UNKNOWN = "\U000f0000-\U0010ffff"
_TOKEN = re.compile(
    rf"[ \t\n]*(\w*[{_UNKNOWN}][\w{_UNKNOWN}]*|\w+|(?:<<|>>|[-+*/%&|^])=|\*\*|<<|>>|&&|\|\||[<>=!]="
    r"|\+\+|--|[-+*/%<>=!~&|^?:,()\[\]])",
    re.ASCII,
)
_LITERAL = re.compile(r"0[0-7]*|0[xX][0-9a-fA-F]{1,15}|[1-9]\d{0,17}", re.ASCII)
_ASSIGNS = ("=", "+=", "-=", "*=", "/=", "%=", "<<=", ">>=", "&=", "|=", "^=")
_PRECEDENCE = {
    sign: level
    for level, signs in enumerate(("||", "&&", "|", "^", "&", "== !=", "< > <= >=", "<< >>", "+ -", "* / %"))
    for sign in signs.split()
}
_BINARY: dict[str, Callable[[int, int], int]] = {
    "|": operator.or_, "^": operator.xor, "&": operator.and_, "==": operator.eq, "!=": operator.ne,
    "<": operator.lt, ">": operator.gt,
    "<=": operator.le, ">=": operator.ge, "<<": operator.lshift, ">>": operator.rshift, "+": operator.add,
    "-": operator.sub,
    "*": operator.mul, "**": lambda base, exponent: pow(base, exponent, 1 << 64),
}  # fmt: skip
_UNARY: dict[str, Callable[[int], int]] = {
    "-": operator.neg, "+": operator.pos, "~": operator.invert, "!": operator.not_,
}  # fmt: skip
_MOST_TOKENS, _MOST_BRACKETS, _MOST_NAMES = 200, 20, 8


Get = Callable[[str, int | None], str | None]
"""The text of a variable, or of an array's value at a place; None where only the run knows it."""
Put = Callable[[str, Number], None]
"""Sets a variable."""


def compute(text: str, get: Get, put: Put, depth: int = 0, runs: bool | None = True) -> Number:
    """Returns the value of an expression; a mark (see Marks) is an unknown operand.

    Args:
        depth: of the names whose values are expressions too.
        runs: whether it counts, as for `_Expression`.

    Raises:
        ValueError: bash refuses it too, or it has a form that is not read.
    """
    if depth > _MOST_NAMES:
        raise ValueError(f"has names in names, more than {_MOST_NAMES} deep")
    tokens = _tokens(text)
    if len(tokens) > _MOST_TOKENS or tokens.count("(") + tokens.count("[") > _MOST_BRACKETS:
        raise ValueError(f"has more than {_MOST_TOKENS} parts or {_MOST_BRACKETS} brackets")
    if not tokens:
        return 0
    expression = _Expression(tokens, get, put, depth, runs)
    value = expression.comma()
    if expression.sign():
        expression.fail()
    return value


def plain(text: str) -> int | None:
    """Returns a whole number in its plain form; None for forms such as 010, read otherwise by bash."""
    match = _PLAIN.fullmatch(text)
    return int(match[1]) if match else None


def _tokens(text: str) -> list[str]:
    """The parts of an expression. `++` and `--` are one where a name or an index is before them, or a name
    behind, else two signs.
    """
    text, at, out = text.rstrip(" \t\n"), 0, list[str]()
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise ValueError(f"has {text[at:].strip()[:1]!r}, which is not read")
        token, at = match[1], match.end()
        if token == "[" and match.start(1) > match.start():
            raise ValueError("has a blank before [")
        beside = (out and (_is_name(out[-1]) or out[-1] == "]")) or re.match(r"[ \t\n]*[A-Za-z_]", text[at:])
        if token in ("++", "--") and not beside:
            token, at = token[0], at - 1
        out.append(token)
    return out


def _is_name(token: str) -> bool:
    return token.isidentifier() and token.isascii()


class _Expression:
    """A recursive descent through the tokens.

    Attributes:
        runs: whether this part counts: False behind `0 &&`, None where that depends on what is not known.
    """

    def __init__(self, tokens: list[str], get: Get, put: Put, depth: int, runs: bool | None) -> None:
        self.tokens, self.get, self.put, self.depth = tokens, get, put, depth
        self.at, self.runs = 0, runs

    def fail(self) -> NoReturn:
        """Refuses the expression."""
        raise ValueError(f"has {self.sign() or 'its end'!r} where it is not read")

    def sign(self, ahead: int = 0) -> str:
        """The token at the place; empty behind the last."""
        return self.tokens[self.at + ahead] if self.at + ahead < len(self.tokens) else ""

    def take(self, *signs: str) -> str:
        """Takes one of these, if it is here."""
        sign = self.sign()
        if sign not in signs:
            return ""
        self.at += 1
        return sign

    def comma(self) -> Number:
        """Reads assignments, and returns the value of the last."""
        value = self.assignment()
        while self.take(","):
            value = self.assignment()
        return value

    def assignment(self) -> Number:
        name, sign = self.sign(), self.sign(1)
        if not _is_name(name) or sign not in _ASSIGNS:
            return self.choice()
        self.at += 2
        before = self.value(name) if sign != "=" else None
        right = self.assignment()
        return self.set(name, right if sign == "=" else self.apply(sign[:-1], before, right))

    def choice(self) -> Number:
        test = self.binary(0)
        if not self.take("?"):
            return test
        first = self.under(None if test is None else bool(test), self.comma)
        if not self.take(":"):
            self.fail()
        second = self.under(None if test is None else not test, self.choice)
        return (first if first == second else None) if test is None else first if test else second

    def under(self, condition: bool | None, part: Callable[[], Number]) -> Number:
        """Reads a part of an expression under a condition."""
        before = self.runs
        self.runs = False if False in (before, condition) else None if None in (before, condition) else True
        value = part()
        self.runs = before
        return value

    def binary(self, level: int) -> Number:
        first = self.power()
        while (rank := _PRECEDENCE.get(self.sign(), -1)) >= level:
            sign = self.take(self.sign())
            if sign in ("&&", "||"):
                decides = None if first is None else bool(first) == (sign == "||")
                right = self.under(None if decides is None else not decides, partial(self.binary, rank + 1))
                first = int(sign == "||") if decides else None if None in (first, right) else int(bool(right))
            else:
                first = self.apply(sign, first, self.binary(rank + 1))
        return first

    def apply(self, sign: str, first: Number, right: Number) -> Number:
        """Applies a binary operator; 0 in a part not taken."""
        if first is None or right is None or not self.runs:
            return 0 if self.runs is False else None
        if sign in ("/", "%"):
            if right == 0:
                raise ValueError("divides by 0")
            quotient = abs(first) // abs(right) * (1 if (first < 0) == (right < 0) else -1)
            return _wrapped(quotient if sign == "/" else first - right * quotient)
        if (sign in ("<<", ">>") and right >= 64) or (sign in ("<<", ">>", "**") and right < 0):
            raise ValueError(f"has {right} behind {sign}")
        return _wrapped(int(_BINARY[sign](first, right)))

    def power(self) -> Number:
        base = self.unary()
        return self.apply("**", base, self.power()) if self.take("**") else base

    def unary(self) -> Number:
        if sign := self.take(*_UNARY):
            value = self.unary()
            return None if value is None else _wrapped(int(_UNARY[sign](value)))
        if sign := self.take("++", "--"):
            name = self.take(self.sign())
            return self.set(name, self.apply(sign[0], self.value(name), 1))
        return self.primary()

    def primary(self) -> Number:
        token = self.take(self.sign())
        if token == "(":
            value = self.comma()
            if not self.take(")"):
                self.fail()
            return value
        if any(char > "\U000effff" for char in token):
            return None
        if _is_name(token):
            return self.variable(token)
        if not _LITERAL.fullmatch(token):
            self.at -= token != ""
            self.fail()
        return _wrapped(int(token, 16 if token[:2] in ("0x", "0X") else 8 if token[0] == "0" else 10))

    def variable(self, name: str) -> Number:
        if self.take("["):
            place = self.comma()
            if not self.take("]"):
                self.fail()
            return None if place is None else self.value(name, place)
        value = self.value(name)
        if sign := self.take("++", "--"):
            self.set(name, self.apply(sign[0], value, 1))
        return value

    def value(self, name: str, place: int | None = None) -> Number:
        """Of a variable: its text is an expression too."""
        if self.runs is False:
            return 0
        text = self.get(name, place)
        return None if text is None else compute(text, self.get, self.put, self.depth + 1, self.runs)

    def set(self, name: str, value: Number) -> Number:
        """Sets a variable, where this part may count."""
        if self.runs is not False:
            self.put(name, value if self.runs else None)
        return value


def _wrapped(value: int) -> int:
    """As 64 bits with a sign hold it."""
    return (value + (1 << 63)) % (1 << 64) - (1 << 63)
