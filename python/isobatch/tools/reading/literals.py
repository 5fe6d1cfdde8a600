"""The literals that a Python file assigns, read from its syntax tree. Nothing in it is executed."""

from __future__ import annotations

import ast
from typing import Any


class Unknown:
    """A value that is no literal: a call, a name, a sum. It has no value here, and nothing takes it for one."""

    def __repr__(self) -> str:
        return "<not a literal>"


UNKNOWN = Unknown()


def python_literals(text: str, file: str) -> dict[str, Any]:
    """What a file assigns to names, as far as it is written down: `dict(...)`, numbers, texts, lists and names that were
    assigned before.

    >>> python_literals("base = 4\\ntrain = dict(batch_size=base, lr=0.1 * 2)\\nx = open('a')", "a.py")
    {'base': 4, 'train': {'batch_size': 4, 'lr': 0.2}, 'x': <not a literal>}
    """
    known: dict[str, Any] = {}
    for node in ast.parse(text, file).body:
        target = node.targets[0] if isinstance(node, ast.Assign) and len(node.targets) == 1 else None
        if isinstance(node, ast.AnnAssign) and node.value is not None:
            target = node.target
        if isinstance(target, ast.Name):
            known[target.id] = _value(node.value, known)  # type: ignore[attr-defined]
    return known


def _value(node: ast.expr, known: dict[str, Any]) -> Any:
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.Name):
        return known.get(node.id, UNKNOWN)
    if isinstance(node, ast.List | ast.Tuple):
        return [_value(item, known) for item in node.elts]
    if isinstance(node, ast.Dict):
        pairs = zip(node.keys, node.values, strict=True)
        return {
            str(_value(key, known)): _value(value, known)
            for key, value in pairs
            if isinstance(key, ast.Constant)
        }
    if (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "dict"
        and not node.args
    ):
        return {word.arg: _value(word.value, known) for word in node.keywords if word.arg}
    if isinstance(node, ast.UnaryOp | ast.BinOp):
        return _number(node, known)
    return UNKNOWN


def _number(node: ast.UnaryOp | ast.BinOp, known: dict[str, Any]) -> Any:
    """-1, 8 * 2 and 1 / 3, as configurations write them; of powers nothing, which could be as large as they like."""
    parts = [node.operand] if isinstance(node, ast.UnaryOp) else [node.left, node.right]
    values = [_value(part, known) for part in parts]
    if not all(type(value) in (int, float) and abs(value) < 2**53 for value in values):
        return UNKNOWN
    if isinstance(node, ast.UnaryOp):
        return -values[0] if isinstance(node.op, ast.USub) else UNKNOWN
    left, right = values
    if isinstance(node.op, ast.Mult):
        return left * right
    if isinstance(node.op, ast.Div) and right:
        return left / right
    if isinstance(node.op, ast.Add):
        return left + right
    if isinstance(node.op, ast.Sub):
        return left - right
    return UNKNOWN
