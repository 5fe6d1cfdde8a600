"""Names of a Python file and the values that they can only have. Nothing is executed.

A name has a value where all that binds it in the file gives it the same one; what anything else may change is Unknown.
"""

import ast
import builtins
import operator
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from isobatch.tools.page import UNKNOWN, Unknown
from isobatch.tools.signatures import CHANGES, NAMED, SETTERS, is_looked_for

ANY = "*"
"""Every attribute."""
_NEEDS_ITSELF = Unknown()
_COMPUTED: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Mult: operator.mul, ast.Div: operator.truediv, ast.FloorDiv: operator.floordiv, ast.Add: operator.add, ast.Sub: operator.sub,
}  # fmt: skip


class Made(NamedTuple):
    """A call of a class that is looked for, its arguments, and the condition under which it is made; empty for none."""

    line: int
    name: str
    settings: dict[str, Any]
    when: str


class Defaults(dict[str, Any]):
    """Arguments that a parser or a dataclass gives defaults."""


class Names(ABC):
    """The nodes of a file, by what binds, reads and may set them.

    Attributes:
        made: calls of the classes that are looked for, by the identity of the call.
        above: by the identity of a node, the node around it.
        bound, loads: by each name, the nodes that give it a value or take it away, and those that read it.
        touched: names of attributes that a node may set, in whatever object, with the node.
    """

    def __init__(self, tree: ast.Module) -> None:
        self.nodes = list(ast.walk(tree))
        self.above = {id(inner): node for node in self.nodes for inner in ast.iter_child_nodes(node)}
        self.made: dict[int, Made] = {}
        # With the node, which so outlives its identity: another one could get it.
        self.values: dict[int, tuple[ast.expr, Any]] = {}
        self.origin: dict[str, str] = {}
        self.bound: dict[str, list[ast.AST]] = {}
        self.loads: dict[str, list[ast.Name]] = {}
        for node in self.nodes:
            for name in bound_by(node):
                self.bound.setdefault(name, []).append(node)
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
                self.loads.setdefault(node.id, []).append(node)
            for alias in node.names if isinstance(node, ast.Import | ast.ImportFrom) else ():
                module = f"{node.module or ''}." if isinstance(node, ast.ImportFrom) else ""
                whole = alias.name if module or alias.asname else alias.name.partition(".")[0]
                self.origin[alias.asname or whole] = f"{module}{whole}"
        self.calls = [node for node in self.nodes if isinstance(node, ast.Call)]
        self.is_open = any(last_part(call.func) in ("exec", "globals", "locals") for call in self.calls)
        self.last_star = max((line_of(node) for node in self.bound.get("*", ())), default=0)
        self.touched = [(name, node) for node in self.nodes for name in self._set_by(node)]
        self.lost = {name for name, _ in self.touched}

    @abstractmethod
    def call(self, node: ast.Call) -> Any:
        """Of a call."""

    @abstractmethod
    def part(self, node: ast.Attribute | ast.Subscript) -> Any:
        """Of `table.part` and `table["part"]`."""

    def value(self, node: ast.expr) -> Any:
        """Of an expression; each is evaluated once."""
        if id(node) not in self.values:
            self.values[id(node)] = node, _NEEDS_ITSELF
            value = self._evaluated(node)
            if value is _NEEDS_ITSELF:
                return self.values.pop(id(node))[1]
            self.values[id(node)] = node, value
        return self.values[id(node)][1]

    def _evaluated(self, node: ast.expr) -> Any:
        match node:
            case ast.Constant():
                return node.value
            case ast.Name():
                return self._name(node)
            case ast.List():
                return [self.value(item) for item in node.elts]
            case ast.Tuple():
                return tuple(self.value(item) for item in node.elts)
            case ast.Dict():
                return self._table(node)
            case ast.Attribute() | ast.Subscript():
                return self.part(node)
            case ast.Call():
                return self.call(node)
            case ast.UnaryOp(op=ast.USub()) | ast.BinOp():
                return self._number(node)
        return UNKNOWN

    def _number(self, node: ast.UnaryOp | ast.BinOp) -> Any:
        """Computes -1, 8 * 2 and 1 / 3; no powers, as their size is unbounded."""
        parts = [node.operand] if isinstance(node, ast.UnaryOp) else [node.left, node.right]
        values = [self.value(part) for part in parts]
        compute = operator.neg if isinstance(node, ast.UnaryOp) else _COMPUTED.get(type(node.op))
        divides = not isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Div | ast.FloorDiv)
        if compute is None or not all(type(value) in (int, float) and abs(value) < 2**53 for value in values):
            return UNKNOWN
        return UNKNOWN if divides and not values[1] else compute(*values)

    def _table(self, node: ast.Dict) -> Any:
        """A table whose names are texts; not known where one of them, or what is behind `**`, is not."""
        table: dict[str, Any] = {}
        for key, item in zip(node.keys, node.values, strict=True):
            name, value = None if key is None else self.value(key), self.value(item)
            if key is None and type(value) is dict:
                table.update(value)
            elif isinstance(name, str):
                table[name] = value
            else:
                return UNKNOWN
        return table

    def _name(self, node: ast.Name) -> Any:
        """Of a name that all its bindings give the same value; of a table or a list only where nothing may change it."""
        bound = self.bound.get(node.id, [])
        if (
            not bound
            or hasattr(builtins, node.id)
            or self.is_open
            or min(map(line_of, bound)) <= self.last_star
        ):
            return UNKNOWN
        values = [value for it in bound if (value := self.bound_value(it)) is not _NEEDS_ITSELF]
        if not values:
            return _NEEDS_ITSELF
        first = values[0]
        if any(
            not (
                it is first
                or (type(it) is type(first) and type(it) in (int, float, str, bool) and it == first)
            )
            for it in values
        ):
            lines = ", ".join(str(line) for line in sorted({line_of(it) for it in bound}))
            return Unknown(why=f"is set in lines {lines}" if "," in lines else "")
        if type(first) is tuple and any(type(it) in (tuple, list, dict) for it in first):
            return UNKNOWN  # names in names in names: a text of a few lines would fill the memory
        if type(first) in (dict, list) and all(first is not made.settings for made in self.made.values()):
            changed = next(
                (it for it in self.loads.get(node.id, ()) if not self._only_reads(it, first)), None
            )
            return first if changed is None else Unknown(why=f"may be changed in line {changed.lineno}")
        return first

    def bound_value(self, node: ast.AST) -> Any:
        """What a binding gives its name."""
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            return node
        if isinstance(node, ast.arg):
            return self._argument(node)
        around, place = self.above[id(node)], None
        if isinstance(around, ast.Tuple | ast.List) and isinstance(node, ast.Name):
            place, node, around = around.elts.index(node), around, self.above[id(around)]
        targets = around.targets if isinstance(around, ast.Assign) else [getattr(around, "target", None)]
        if not isinstance(around, ast.Assign | ast.AnnAssign) or around.value is None or node not in targets:
            return UNKNOWN
        value = self.value(around.value)
        if place is None or not isinstance(node, ast.Tuple | ast.List):
            return value
        return value[place] if isinstance(value, list | tuple) and len(value) == len(node.elts) else UNKNOWN

    def _argument(self, node: ast.arg) -> Any:
        """Of a function that the file calls once; its default is not taken for what another file gives it."""
        function = self.above[id(self.above[id(node)])]
        name = getattr(function, "name", "")
        lost = Unknown(why=f"is an argument of {name or 'a function'}")
        reads = self.loads.get(name, [])
        call = self.above[id(reads[0])] if len(reads) == 1 else None
        if not isinstance(function, ast.FunctionDef) or function.decorator_list or len(self.bound[name]) > 1:
            return lost
        if not isinstance(call, ast.Call) or call.func is not reads[0] or not is_plain(call):
            return lost
        own = function.args
        first, last = [*own.posonlyargs, *own.args], own.kwonlyargs
        given = dict(zip(reversed(first), reversed(own.defaults), strict=False))
        given |= {
            it: default for it, default in zip(last, own.kw_defaults, strict=True) if default is not None
        }
        given |= dict(zip(first, call.args, strict=False))
        given |= {it: word.value for word in call.keywords for it in (*own.args, *last) if it.arg == word.arg}
        return self.value(given[node]) if node in given else lost

    def _only_reads(self, node: ast.expr, value: Any) -> bool:
        """Whether a table or a list stays as it is where its name is read: behind `**`, by its parts, as an argument of what is
        looked for."""
        around = self.above[id(node)]
        while isinstance(around, ast.Subscript) and around.value is node and isinstance(around.ctx, ast.Load):
            key = self.value(around.slice)
            value = item_of(value, key) if isinstance(key, int | str) else value
            node, around = around, self.above[id(around)]
        if not isinstance(value, dict | list):
            return not isinstance(around, ast.Subscript) or around.slice is node
        is_flat = not any(
            isinstance(it, dict | list) for it in (value.values() if isinstance(value, dict) else value)
        )
        if isinstance(around, ast.Dict):
            return is_flat and any(
                key is None and it is node for key, it in zip(around.keys, around.values, strict=True)
            )
        call = self.above[id(around)] if isinstance(around, ast.keyword) else around
        if not isinstance(call, ast.Call) or call.func is node:
            return False
        is_copied = is_flat and isinstance(around, ast.keyword) and around.arg is None
        return is_copied or last_part(call.func) in ("print", "len") or is_looked_for(self.full(call.func))

    def _set_by(self, node: ast.AST) -> Iterator[str]:
        """Names of attributes that a node may set, in whatever object."""
        if isinstance(node, ast.Attribute | ast.Subscript) and not isinstance(node.ctx, ast.Load):
            yield from attributes_of(node)
        elif isinstance(node, ast.Call):
            last, keys = last_part(node.func), [word.arg or ANY for word in node.keywords]
            if last in NAMED:
                name = constant_of(node.args[NAMED[last]]) if len(node.args) >= -NAMED[last] else None
                yield name if isinstance(name, str) else ANY
            elif last in SETTERS:
                yield ANY
            elif last == "set_defaults":
                yield from keys
            elif last in CHANGES and isinstance(node.func, ast.Attribute):
                yield from attributes_of(node.func.value)
                if any(map(is_inside, (node.func.value, *node.args))):
                    yield from keys if keys and not node.args else (ANY,)
        plain = (ast.Subscript, ast.Attribute, ast.Call, ast.keyword, ast.Dict)
        if is_inside(node) and not isinstance(self.above.get(id(node)), plain):
            yield ANY

    def full(self, node: ast.expr) -> str:
        """The name of a function with the module that it is imported from; empty where the file has its own."""
        text = ast.unparse(node) if isinstance(node, ast.Name | ast.Attribute) else ""
        head, dot, rest = text.partition(".")
        is_own = not dot and any(not isinstance(it, ast.alias) for it in self.bound.get(head, ()))
        return "" if is_own else f"{self.origin.get(head, head)}{dot}{rest}"


def why_not(value: Any) -> str:
    return getattr(value, "why", "") or "cannot be read from the script"


def line_of(node: ast.AST) -> int:
    return getattr(node, "lineno", 0)


def last_part(node: ast.expr) -> str:
    """The last part of a dotted name."""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def attributes_of(node: ast.expr) -> Iterator[str]:
    """Attributes on the way to a target; those of `self` are no one else's."""
    while isinstance(node, ast.Attribute | ast.Subscript):
        if isinstance(node, ast.Attribute) and not (
            isinstance(node.value, ast.Name) and node.value.id == "self"
        ):
            yield node.attr
        elif isinstance(node, ast.Subscript) and is_inside(node.value):
            yield constant_of(node.slice) or ANY
        node = node.value


def is_inside(node: ast.AST) -> bool:
    """Whether this is the table of an object's attributes: `vars(args)`, `args.__dict__`."""
    is_vars = isinstance(node, ast.Call) and last_part(node.func) == "vars"
    return is_vars or (isinstance(node, ast.Attribute) and node.attr == "__dict__")


def is_plain(call: ast.Call) -> bool:
    """Whether no argument of a call is behind a `*`."""
    return not any(isinstance(it, ast.Starred) for it in call.args) and all(
        word.arg for word in call.keywords
    )


def item_of(holder: Any, key: Any) -> Any:
    if isinstance(holder, dict) and not isinstance(holder, Defaults) and isinstance(key, str):
        return holder.get(key, UNKNOWN)
    inside = isinstance(holder, list | tuple) and type(key) is int and -len(holder) <= key < len(holder)
    return holder[key] if inside else UNKNOWN


def constant_of(node: ast.expr | None) -> Any:
    return node.value if isinstance(node, ast.Constant) else None


def bound_by(node: ast.AST) -> list[str]:
    """Names that a node binds or takes away, `*` for an import of all."""
    match node:
        case ast.Name() if not isinstance(node.ctx, ast.Load):
            return [node.id]
        case ast.arg():
            return [node.arg]
        case ast.alias():
            return [node.asname or node.name.partition(".")[0]]
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
            return [node.name]
        case ast.ExceptHandler() | ast.MatchAs() | ast.MatchStar():
            return [node.name] if node.name else []
        case ast.MatchMapping():
            return [node.rest] if node.rest else []
    return []
