"""The literals of a Python file, read from its syntax tree: what it assigns, and what its functions return. Nothing is executed."""

import ast
import copy
import operator
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from isobatch.errors import InputError, unknown
from isobatch.files.limits import refuse_large
from isobatch.tools.page import UNKNOWN, Unknown

_RETURNS = re.compile(r"^def \w+\([^)]*\)\s*->\s*[\w.]*Config\s*:", re.MULTILINE)


_COMPUTED: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Mult: operator.mul, ast.Div: operator.truediv, ast.FloorDiv: operator.floordiv, ast.Add: operator.add, ast.Sub: operator.sub,
}  # fmt: skip


class Scope:
    """Names of a file or a function, with their literal values: `dict(...)`, numbers, texts, lists, and
    names that were assigned before.

    Args:
        known: names from outside.
        call: what a call other than `dict(...)` is, from its name and its arguments; None: unknown.
    """

    def __init__(
        self, known: Mapping[str, Any], call: Callable[[str, list[Any], dict[str, Any]], Any] | None = None
    ) -> None:
        self.known, self.call = dict(known), call

    def statement(self, node: ast.stmt) -> None:
        """Follows an assignment or an import; any other statement makes its targets unknown."""
        if isinstance(node, ast.Assign):
            value = self.value(node.value)
            for target in node.targets:
                self.assign(target, value)
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            self.assign(node.target, self.value(node.value))
        elif isinstance(node, ast.Import | ast.ImportFrom):
            for alias in node.names:
                self.known[alias.asname or alias.name.partition(".")[0]] = Unknown(alias.name)
        elif isinstance(node, ast.Expr):
            self._update(node.value)
        elif not isinstance(node, ast.FunctionDef | ast.ClassDef):
            for inner in ast.walk(node):
                if isinstance(inner, ast.Name | ast.Attribute | ast.Subscript) and not isinstance(
                    inner.ctx, ast.Load
                ):
                    self.assign(inner, UNKNOWN)

    def assign(self, target: ast.expr, value: Any) -> None:
        """`name = value`, `name.part = value` and `name["part"] = value`."""
        if isinstance(target, ast.Name):
            self.known[target.id] = value
        elif isinstance(target, ast.Attribute | ast.Subscript):
            holder, key = self.value(target.value), self.key(target)
            if isinstance(holder, dict) and isinstance(key, str):
                put(holder, {key: value})
            elif isinstance(holder, list):
                if _is_index(key, holder) and isinstance(target.ctx, ast.Store):
                    holder[key] = UNKNOWN if _has(value, holder) else value
                else:
                    holder[:] = [UNKNOWN] * max(1, len(holder))
            elif isinstance(holder, dict) and isinstance(key, Unknown):
                holder.update(dict.fromkeys(holder, UNKNOWN))
            elif holder is None and isinstance(target.value, ast.Attribute):
                self.assign(target.value, {key: value})  # a part that nothing was assigned to before
        elif isinstance(target, ast.Tuple | ast.List):
            for item in target.elts:
                self.assign(item, UNKNOWN)

    def key(self, node: ast.Attribute | ast.Subscript) -> Any:
        """The name or the index of a part."""
        return node.attr if isinstance(node, ast.Attribute) else self.value(node.slice)

    def value(self, node: ast.expr) -> Any:
        """Of an expression."""
        if isinstance(node, ast.Constant):
            return node.value
        if isinstance(node, ast.Name):
            return self.known.get(node.id, UNKNOWN)
        if isinstance(node, ast.List | ast.Tuple):
            return [self.value(item) for item in node.elts]
        if isinstance(node, ast.Dict):
            return self._table(node)
        if isinstance(node, ast.Attribute | ast.Subscript):
            holder, key = self.value(node.value), self.key(node)
            if isinstance(holder, dict) and isinstance(key, str):
                return holder.get(key)
            return holder[key] if isinstance(holder, list) and _is_index(key, holder) else UNKNOWN
        if isinstance(node, ast.Set) and len(node.elts) == 1:
            # mmengine's {{_base_.name}}, to Python a set in a set.
            inner = node.elts[0]
            return (
                self.value(inner.elts[0]) if isinstance(inner, ast.Set) and len(inner.elts) == 1 else UNKNOWN
            )
        if isinstance(node, ast.Call):
            return self._call_value(node)
        if isinstance(node, ast.UnaryOp | ast.BinOp):
            return self._number(node)
        return UNKNOWN

    def _table(self, node: ast.Dict) -> Any:
        """A table with names; not known where one of them, or what is behind `**`, is not."""
        out: dict[str, Any] = {}
        for key, value in zip(node.keys, node.values, strict=True):
            name, found = None if key is None else self.value(key), self.value(value)
            if key is None and type(found) is dict:
                out.update(found)
            elif isinstance(name, str | int):
                out[str(name)] = found
            else:
                return UNKNOWN
        return out

    def _call_value(self, node: ast.Call) -> Any:
        named = {word.arg: self.value(word.value) for word in node.keywords if word.arg}
        name = ast.unparse(node.func) if isinstance(node.func, ast.Name | ast.Attribute) else ""
        if name == "dict" and not node.args:
            return named
        if self.call is None or not name:
            return UNKNOWN
        return self.call(name, [self.value(item) for item in node.args], named)

    def _update(self, node: ast.expr) -> None:
        """Follows `name.update(dict(...))`, mmengine's way to change an import."""
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            return
        holder, how = self.value(node.func.value), node.func.attr
        if type(holder) is not dict or how not in ("update", "merge"):
            return
        changes = dict[str, Any]()
        for item in map(self.value, node.args):
            changes.update(item if isinstance(item, dict) else {})
        changes |= {word.arg: self.value(word.value) for word in node.keywords if word.arg}
        if how == "merge":
            refuse_large([changes, holder], "")
            changes = merge(changes, holder)
        put(holder, changes)

    def _number(self, node: ast.UnaryOp | ast.BinOp) -> Any:
        """Computes -1, 8 * 2 and 1 / 3; no powers, as their size is unbounded."""
        parts = [node.operand] if isinstance(node, ast.UnaryOp) else [node.left, node.right]
        values = [self.value(part) for part in parts]
        if not all(type(value) in (int, float) and abs(value) < 2**53 for value in values):
            return UNKNOWN
        if isinstance(node, ast.UnaryOp):
            return -values[0] if isinstance(node.op, ast.USub) else UNKNOWN
        compute = _COMPUTED.get(type(node.op))
        divides = isinstance(node.op, ast.Div | ast.FloorDiv)
        return UNKNOWN if compute is None or (divides and not values[1]) else compute(*values)


def python_literals(
    text: str, file: str, base: Callable[[Any], dict[str, Any]] | None = None
) -> dict[str, Any]:
    """Reads the literals assigned in a file.

    Args:
        base: gives the settings of the files that `_base_` names, or of the modules that `with read_base():` imports from,
            each as a path.

    >>> python_literals("base = 4\\ntrain = dict(batch_size=base, lr=0.1 * 2)\\nx = open('a')", "a.py")
    {'base': 4, 'train': {'batch_size': 4, 'lr': 0.2}, 'x': <not a literal>}
    """
    scope, inherited = Scope({}), dict[str, Any]()
    for node in ast.parse(text, file).body:
        if base is not None and isinstance(node, ast.With) and _reads_base(node):
            scope.known.update(base(list(_modules(node.body))))
            continue
        scope.statement(node)
        if base is not None and isinstance(node, ast.Assign) and "_base_" in map(_name, node.targets):
            inherited = base(scope.known.pop("_base_"))
            scope.known["_base_"] = inherited
    own = {name: value for name, value in scope.known.items() if not getattr(value, "name", "")}
    if own.get("_base_") is inherited:
        del own["_base_"]
    refuse_large([own, inherited], file)
    return merge(own, inherited)


def merge(over: Mapping[str, Any], under: Mapping[str, Any]) -> dict[str, Any]:
    """Merges settings over their base: tables are merged, unless one says `_delete_`; anything else is replaced.

    >>> merge({"a": {"x": 1}, "b": {"_delete_": True, "y": 2}}, {"a": {"z": 0}, "b": {"w": 0}})
    {'a': {'z': 0, 'x': 1}, 'b': {'y': 2}}
    """
    out = dict(under)
    for name, value in over.items():
        below = out.get(name)
        if isinstance(value, Mapping):
            alone = value.get("_delete_") is True or not isinstance(below, Mapping)
            value = merge(
                {key: item for key, item in value.items() if key != "_delete_"}, {} if alone else below or {}
            )
        out[name] = value
    return out


def put(table: dict[str, Any], changes: Mapping[str, Any]) -> None:
    """Sets values in a table; one that has the table in it is not known."""
    lost = Unknown(why="has itself in it")
    table.update({key: lost if _has(value, table) else value for key, value in changes.items()})


def _has(value: Any, table: Any) -> bool:
    """Whether a table is the value, or a part of it."""
    inside, seen = [value], dict[int, Any]()
    while inside:
        one = inside.pop()
        if isinstance(one, dict | list) and id(one) not in seen:
            seen[id(one)] = one
            inside += one.values() if isinstance(one, dict) else one
    return id(table) in seen


def _is_index(key: Any, held: list[Any]) -> bool:
    return type(key) is int and -len(held) <= key < len(held)


def _name(node: ast.expr) -> str:
    return node.id if isinstance(node, ast.Name) else ""


def _reads_base(node: ast.With) -> bool:
    called = node.items[0].context_expr
    return isinstance(called, ast.Call) and _name(called.func) == "read_base"


def _modules(body: Iterable[ast.stmt]) -> Iterable[str]:
    """`from .._base_.schedules.x import *` as a path beside the file."""
    for node in body:
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            up = "../" * (node.level - 1) if node.level else "::"
            yield f"{up}{node.module.replace('.', '/')}.py"


def has_functions(text: str) -> bool:
    """Tells whether functions of a file return a configuration: `def llama3_8b() -> Trainer.Config:`."""
    return bool(_RETURNS.search(text))


def configuration(text: str, file: str, name: str = "") -> dict[str, Any]:
    """Reads the literals returned by a function: `Trainer.Config(training=TrainingConfig(steps=10))` is a table of
    tables, and so is what `config.training.steps = 10` changes in it afterwards.

    Args:
        name: of the function; may be left out where there is one.

    Raises:
        InputError: there are several, or none of that name, or one that calls itself.

    >>> configuration("def run() -> Trainer.Config:\\n    return Trainer.Config(training=TrainingConfig(steps=10 * 2))", "a.py")
    {'training': {'steps': 20}}
    """
    tree = ast.parse(text, file).body
    functions = {node.name: node for node in tree if isinstance(node, ast.FunctionDef)}
    returns = {key: ast.unparse(node.returns) for key, node in functions.items() if node.returns}
    legal = [key for key, kind in returns.items() if kind.endswith("Config")]
    if name and name not in legal:
        raise unknown("configuration", name, legal, field="configuration").at(file=file)
    if not name and len(legal) > 1:
        raise InputError(
            f"has {len(legal)} configurations: {', '.join(legal)}. Name one after a colon: {file}:{legal[0]}",
            file=file,
        )
    outer = Scope({}, _table)
    for node in tree:
        outer.statement(node)
    found = _return_value(functions, name or legal[0], outer.known, ())
    if not isinstance(found, dict):
        raise InputError(f"{name or legal[0]} returns nothing that is written down in it", file=file)
    return found


def _return_value(
    functions: dict[str, ast.FunctionDef], name: str, known: dict[str, Any], callers: tuple[str, ...]
) -> Any:
    """Follows a function to its return; a call of another function in the file is followed in turn."""

    def call(called: str, given: list[Any], named: dict[str, Any]) -> Any:
        if called in functions and not given and not named and not functions[called].args.args:
            if called in (*callers, name):
                raise InputError(f"{called} calls itself")
            return _return_value(functions, called, known, (*callers, name))
        return _table(called, given, named)

    scope = Scope(copy.deepcopy(known), call)
    for node in functions[name].body:
        if isinstance(node, ast.Return):
            return UNKNOWN if node.value is None else scope.value(node.value)
        scope.statement(node)
    return UNKNOWN


def _table(called: str, given: list[Any], named: dict[str, Any]) -> Any:
    """Takes a call with named fields alone as a table of them. A function of another file, which takes none, is a table that says
    whose it is: what follows may still change it.
    """
    last = called.rpartition(".")[2]
    if last == "default_adamw" and len(given) == 1:
        return {"lr": given[0], **named}
    if given:
        return UNKNOWN
    if not named and last.islower():
        return {"_from_": [f"{last}()"]}
    return named
