"""The names of a Python file: their bindings, and the attributes that a statement may set."""

import ast
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

ANY = "*"
"""Any attribute, and any name of an `import *`."""
_SETTERS = re.compile(
    "(set|del)attr|__(set|del)(attr|item)__"
    "|set_(defaults|training|optimizer|lr_scheduler|dataloader|save|evaluate|logging)"
)
"""Functions that set the attribute named by an argument; without such an argument, any attribute."""
_METHODS = re.compile("update|pop|popitem|clear|setdefault|append|extend|insert|remove|reverse|sort")
"""Methods that change a table or a list."""


class AttributeChange(NamedTuple):
    """An attribute possibly set by a node, and the name of the object, if it has one."""

    attribute: str
    owner: str
    node: ast.AST


class Names:
    """The nodes of a file.

    Attributes:
        above: the node around each node.
        bindings, loads: by each name, the nodes that give it a value or take it away, and those that read it.
        is_open: whether code in texts may set any name.
        has_groups: whether the code looks at the parameter groups of an optimizer.
    """

    def __init__(self, tree: ast.Module) -> None:
        self.nodes = list(ast.walk(tree))
        self.calls = [node for node in self.nodes if isinstance(node, ast.Call)]
        self.above = {inner: node for node in self.nodes for inner in ast.iter_child_nodes(node)}
        self.bindings: dict[str, list[ast.AST]] = {}
        self.loads: dict[str, list[ast.Name]] = {}
        self._origins: dict[str, str] = {}
        for node in self.nodes:
            if name := bound_name(node):
                self.bindings.setdefault(name, []).append(node)
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
                self.loads.setdefault(node.id, []).append(node)
            for alias in node.names if isinstance(node, ast.Import | ast.ImportFrom) else ():
                module = f"{node.module or ''}." if isinstance(node, ast.ImportFrom) else ""
                whole = alias.name if module or alias.asname else alias.name.partition(".")[0]
                self._origins[alias.asname or whole] = f"{module}{whole}"
        self.is_open = any(last_part(call.func) in ("exec", "globals", "locals") for call in self.calls)
        self.last_star = max(map(line_of, self.bindings.get(ANY, ())), default=0)
        self.has_groups = any(last_part(node) == "param_groups" for node in self.nodes)
        self.changes = [change for node in self.nodes for change in self._changes(node)]

    def full_name(self, node: ast.expr) -> str:
        """Returns a dotted name with its module; empty for a name of the file's own."""
        text = ast.unparse(node) if isinstance(node, ast.Name | ast.Attribute) else ""
        head, dot, rest = text.partition(".")
        is_own = not dot and any(not isinstance(node, ast.alias) for node in self.bindings.get(head, ()))
        return "" if is_own else f"{self._origins.get(head, head)}{dot}{rest}"

    def _changes(self, node: ast.AST) -> Iterator[AttributeChange]:
        """Yields the attributes possibly set by a node, in any object but `self`."""
        last, attributes = last_part(getattr(node, "func", node)), list[str]()
        target: Any = None
        if isinstance(node, ast.Call) and _SETTERS.fullmatch(last):
            named = [] if last.startswith("set_") else [constant_of(item) for item in node.args]
            attributes += [name for name in named if isinstance(name, str)] or [ANY]
            target = node.args[0] if node.args else None
        elif isinstance(node, ast.Call) and last == "replace" and node.args and node.keywords:
            attributes += [word.arg or ANY for word in node.keywords]
            target = node.args[0]
        elif isinstance(node, ast.Call) and _METHODS.fullmatch(last):
            target = getattr(node.func, "value", None)
        elif not isinstance(getattr(node, "ctx", None), ast.Load):
            target = node
        if isinstance(target, ast.Subscript) and constant_of(target.slice) == "lr" and self.has_groups:
            attributes.append("lr")  # of an optimizer's group
        while isinstance(target, ast.Attribute | ast.Subscript):
            if isinstance(target, ast.Attribute) and last_part(target.value) != "self":
                attributes.append(target.attr)
            target = target.value
        # A table of attributes is set, changed or kept: `vars(args)["lr"] = 1`, `d = args.__dict__`.
        around = self.above.get(node)
        is_load = isinstance(around, ast.Subscript) and isinstance(around.ctx, ast.Load)
        is_table = last in ("vars", "__dict__") and not isinstance(node, ast.Name)
        if is_table and not (is_load or isinstance(around, ast.Call | ast.keyword)):
            attributes.append(ANY)
        return (AttributeChange(name, last_part(target), node) for name in attributes)


def bound_name(node: ast.AST) -> str:
    """Returns the name bound or deleted by a node, `*` for an `import *`; empty for none."""
    if isinstance(node, ast.Name):
        return "" if isinstance(node.ctx, ast.Load) else node.id
    if isinstance(node, ast.alias):
        return node.asname or node.name.partition(".")[0]
    keys = () if isinstance(node, ast.keyword) else ("name", "rest", "arg")
    return next((name for key in keys if isinstance(name := getattr(node, key, None), str)), "")


def line_of(node: ast.AST) -> int:
    """Returns the line of a node, 0 for a module."""
    return getattr(node, "lineno", 0)


def last_part(node: ast.AST) -> str:
    """Returns the last part of a dotted name."""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def constant_of(node: ast.expr | None) -> Any:
    """Returns the value of a constant, None for another node."""
    return node.value if isinstance(node, ast.Constant) else None
