"""Bash's arithmetic, as far as it is Python's too: whole numbers, `+ - * / %` and a comparison."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable

_READ = re.compile(r"[\w \t\n+\-*/%<>=!()]*", re.ASCII)
_OTHERWISE = re.compile(r"//|\*\*|\+\+|--|\b\d\w*[A-Za-z_]", re.ASCII)
"""What bash and Python read otherwise."""
_PLAIN = re.compile(r"[ \t\n]*(-?(?:0|[1-9]\d{0,18}))[ \t\n]*", re.ASCII)
_MOST_CHARACTERS = 500


def _divided(left: int, right: int) -> int:
    """Towards 0, as in C."""
    return abs(left) // abs(right) * (1 if (left < 0) == (right < 0) else -1)


_SIGNS: dict[type[ast.AST], Callable[[int, int], int]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: _divided,
    ast.Mod: lambda a, b: a - b * _divided(a, b), ast.Lt: operator.lt, ast.Gt: operator.gt, ast.LtE: operator.le,
    ast.GtE: operator.ge, ast.Eq: operator.eq, ast.NotEq: operator.ne,
}  # fmt: skip


class NotComputed(Exception):
    """The value is not known, or the expression has more than is read."""


def compute(text: str, get: Callable[[str], str]) -> int:
    """The number of an expression.

    Args:
        get: returns the text of a variable; raises NotComputed where that is not known.

    Raises:
        NotComputed: it is not known.
        ZeroDivisionError: bash refuses it too.

    >>> compute("-7 / (N + 1)", lambda name: "1")
    -3
    """
    if not _READ.fullmatch(text) or _OTHERWISE.search(text) or len(text) > _MOST_CHARACTERS:
        raise NotComputed
    if not text.strip():
        return 0
    try:
        return _of(ast.parse(" ".join(text.split()), mode="eval").body, get)
    except SyntaxError:
        raise NotComputed from None


def plain(text: str) -> int | None:
    """A text that is a whole number, and none that bash would read otherwise, such as 010."""
    found = _PLAIN.fullmatch(text)
    return int(found[1]) if found else None


def _of(node: ast.AST, get: Callable[[str], str]) -> int:
    value: int | None = None
    match node:
        case ast.Constant(value=int() as number) if type(number) is int:
            value = number
        case ast.Name(id=name):
            text = get(name)
            value = plain(text) if text else 0
        case ast.UnaryOp(op=ast.USub(), operand=inner):
            value = -_of(inner, get)
        case (
            ast.BinOp(left=left, op=sign, right=right)
            | ast.Compare(left=left, ops=[sign], comparators=[right])
        ) if type(sign) in _SIGNS:
            value = int(_SIGNS[type(sign)](_of(left, get), _of(right, get)))
    if value is None or not -(2**63) < value < 2**63:
        raise NotComputed
    return value
