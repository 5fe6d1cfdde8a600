"""Comparisons with a tolerance go through `isobatch.limits.within`: written with `>`, they would pass NaN."""

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "python" / "isobatch"
BOUNDS = ("tolerance", "gate")
"""How names of tolerances end."""
FILES = sorted(path for path in PACKAGE.rglob("*.py") if path.name != "limits.py")


def comparisons(source):
    """Yields the ordered comparisons of a source with a tolerance, or of a ratio's distance from 1."""
    for node in ast.walk(ast.parse(source)):
        ordered = isinstance(node, ast.Compare) and any(
            isinstance(operator, ast.Lt | ast.LtE | ast.Gt | ast.GtE) for operator in node.ops
        )
        if ordered and any(is_bound(part) or is_distance(part) for part in ast.walk(node)):
            yield f"{node.lineno}: {ast.unparse(node)}"


def is_bound(node):
    name = node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""
    return name.lower().endswith(BOUNDS)


def is_distance(node):
    """abs(a / b - 1)"""
    called = isinstance(node, ast.Call) and getattr(node.func, "id", getattr(node.func, "attr", "")) == "abs"
    inner = node.args[0] if called and node.args else None
    return (
        isinstance(inner, ast.BinOp)
        and isinstance(inner.op, ast.Sub)
        and isinstance(inner.right, ast.Constant)
        and inner.right.value == 1
    )


@pytest.mark.parametrize("path", FILES, ids=[str(path.relative_to(PACKAGE)) for path in FILES])
def test_a_tolerance_is_compared_by_the_one_function(path):
    assert not list(comparisons(path.read_text(encoding="utf-8")))


@pytest.mark.parametrize(
    "planted",
    [
        "error > tolerance",
        "x.error <= 2 * self.gate",
        "abs(a / b - 1) < 0.1",
        "0 < abs(ratio - 1) < TOLERANCE",
    ],
)
def test_the_rule_finds_a_planted_comparison(planted):
    assert list(comparisons(planted))
    assert not list(comparisons("within(a / b - 1, tolerance) and abs(a - b) < c"))
