"""What each call in a Python script gives that configures a training, and the defaults of argparse and dataclasses. Nothing is executed.

A name has a value where all that binds it in the file gives it the same one; what anything else may change is Unknown.
"""

import ast
import builtins
import operator
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from isobatch.tools.page import UNKNOWN, Unknown
from isobatch.tools.signatures import CHANGES, FIRST, MEMBERS, NAMED, OPEN, SETTERS, TABLES, is_looked_for

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


class Script:
    """A Python script.

    Attributes:
        made: calls of the classes that are looked for.
        defaults: the arguments whose default was taken, with their values.
        intervals: of the schedulers in a table of Lightning's, by the identities of their arguments.
    """

    def __init__(self, tree: ast.Module) -> None:
        self.nodes = list(ast.walk(tree))
        self.above = {id(inner): node for node in self.nodes for inner in ast.iter_child_nodes(node)}
        self.made: dict[int, Made] = {}
        self.defaults: dict[str, Any] = {}
        self.intervals: dict[int, Any] = {}
        self.values: dict[int, Any] = {}
        self.origin: dict[str, str] = {}
        self.bound: dict[str, list[ast.AST]] = {}
        self.loads: dict[str, list[ast.Name]] = {}
        for node in self.nodes:
            for name in _bound_by(node):
                self.bound.setdefault(name, []).append(node)
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
                self.loads.setdefault(node.id, []).append(node)
            for alias in node.names if isinstance(node, ast.Import | ast.ImportFrom) else ():
                module = f"{node.module or ''}." if isinstance(node, ast.ImportFrom) else ""
                whole = alias.name if module or alias.asname else alias.name.partition(".")[0]
                self.origin[alias.asname or whole] = f"{module}{whole}"
        self.calls = [node for node in self.nodes if isinstance(node, ast.Call)]
        self.is_open = any(_last(call.func) in ("exec", "globals", "locals") for call in self.calls)
        self.last_star = max((_line(node) for node in self.bound.get("*", ())), default=0)
        self.touched = [(name, node) for node in self.nodes for name in self._set_by(node)]
        self.lost = {name for name, _ in self.touched}
        self.parsed = Defaults()
        for call in self.calls:
            self._add_argument(call)
        for call in sorted(self.calls, key=lambda call: (call.lineno, call.col_offset)):
            self.value(call)
        for node in self.nodes:
            self._note_scheduler(node)
        for made in self.made.values():
            self._lose_touched(made)

    # ---- expressions and names ----

    def value(self, node: ast.expr) -> Any:
        """Of an expression; each is evaluated once."""
        if id(node) not in self.values:
            self.values[id(node)] = _NEEDS_ITSELF
            value = self._evaluated(node)
            if value is _NEEDS_ITSELF:
                return self.values.pop(id(node))
            self.values[id(node)] = value
        return self.values[id(node)]

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
                return self._part(node)
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
            or min(map(_line, bound)) <= self.last_star
        ):
            return UNKNOWN
        values = [value for it in bound if (value := self._bound(it)) is not _NEEDS_ITSELF]
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
            lines = ", ".join(str(line) for line in sorted({_line(it) for it in bound}))
            return Unknown(why=f"is set in lines {lines}" if "," in lines else "")
        if type(first) is tuple and any(isinstance(it, tuple | list | dict) for it in first):
            return UNKNOWN  # names in names in names: a text of a few lines would fill the memory
        if type(first) in (dict, list) and all(first is not made.settings for made in self.made.values()):
            changed = next(
                (it for it in self.loads.get(node.id, ()) if not self._only_reads(it, first)), None
            )
            return first if changed is None else Unknown(why=f"may be changed in line {changed.lineno}")
        return first

    def _bound(self, node: ast.AST) -> Any:
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
        if not isinstance(call, ast.Call) or call.func is not reads[0] or not _is_plain(call):
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
            value = _item(value, key) if isinstance(key, int | str) else value
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
        return is_copied or _last(call.func) in ("print", "len") or is_looked_for(self._full(call.func))

    # ---- what else a statement may set ----

    def _set_by(self, node: ast.AST) -> Iterator[str]:
        """Names of attributes that a node may set, in whatever object."""
        if isinstance(node, ast.Attribute | ast.Subscript) and not isinstance(node.ctx, ast.Load):
            yield from _parts(node)
        elif isinstance(node, ast.Call):
            last, keys = _last(node.func), [word.arg or ANY for word in node.keywords]
            if last in NAMED:
                name = _constant(node.args[NAMED[last]]) if len(node.args) >= -NAMED[last] else None
                yield name if isinstance(name, str) else ANY
            elif last in SETTERS:
                yield ANY
            elif last == "set_defaults":
                yield from keys
            elif last in CHANGES and isinstance(node.func, ast.Attribute):
                yield from _parts(node.func.value)
                if any(map(_is_inside, (node.func.value, *node.args))):
                    yield from keys if keys and not node.args else (ANY,)
        plain = (ast.Subscript, ast.Attribute, ast.Call, ast.keyword, ast.Dict)
        if _is_inside(node) and not isinstance(self.above.get(id(node)), plain):
            yield ANY

    def _lose_touched(self, made: Made) -> None:
        """What the script may set in a configuration behind its call is not known."""
        own = (
            OPEN
            if FIRST.get(made.name) == ["output_dir"]
            else _OF_LIGHTNING
            if made.name == "Trainer"
            else ()
        )
        for name, node in self.touched:
            target = node.args[0] if isinstance(node, ast.Call) and node.args else node
            while isinstance(target, ast.Attribute | ast.Subscript):
                target = target.value
            is_of_it = isinstance(target, ast.Name) and self.value(target) is made.settings
            if is_of_it or (own and name in (ANY, *made.settings, *own)):
                why = f"may be set by {ast.unparse(node)[:60]} (line {_line(node)})"
                names = {*made.settings, *own} if name == ANY else {name}
                made.settings.update(dict.fromkeys(names, Unknown(why=why)))

    # ---- calls ----

    def call(self, node: ast.Call) -> Any:
        """A table of what a call gives; of a function of the file what it returns."""
        full = self._full(node.func)
        last = full.rpartition(".")[2]
        target = self.value(node.func) if isinstance(node.func, ast.Name) else None
        only = node.args[0] if len(node.args) == 1 else None
        if is_looked_for(full):
            return self._make(node, last).settings
        if isinstance(target, ast.FunctionDef):
            return self._returned(target)
        if isinstance(target, ast.ClassDef):
            return self._dataclass(target, node)
        if last in ("parse_args", "parse_known_args") and not (node.args or node.keywords):
            return self.parsed if last == "parse_args" else (self.parsed, UNKNOWN)
        if last in ("HfArgumentParser", "TrlParser") and only is not None:
            classes = map(self.value, only.elts if isinstance(only, ast.Tuple | ast.List) else [only])
            return tuple(self._dataclass(it, None) for it in classes)
        if last in ("parse_args_into_dataclasses", "parse_args_and_config") and isinstance(
            node.func, ast.Attribute
        ):
            parser = self.value(node.func.value)
            return parser if isinstance(parser, tuple) else UNKNOWN
        if full == "vars" and only is not None:
            return self._fields(self.value(only))
        if full in ("int", "float") and only is not None and type(number := self.value(only)) in (int, float):
            return (int if full == "int" else float)(number)
        return self.keywords(node, "") if (full == "dict" or last in TABLES) and not node.args else UNKNOWN

    def _full(self, node: ast.expr) -> str:
        """The name of a function with the module that it is imported from; empty where the file has its own."""
        text = ast.unparse(node) if isinstance(node, ast.Name | ast.Attribute) else ""
        head, dot, rest = text.partition(".")
        is_own = not dot and any(not isinstance(it, ast.alias) for it in self.bound.get(head, ()))
        return "" if is_own else f"{self.origin.get(head, head)}{dot}{rest}"

    def _make(self, node: ast.Call, name: str) -> Made:
        if id(node) not in self.made:
            names = FIRST.get(name, [])
            settings = {key: self.said(item) for key, item in zip(names, node.args, strict=False)}
            if len(node.args) > len(names) or any(isinstance(it, ast.Starred) for it in node.args):
                why = f"may be an argument without a name (line {node.lineno}), which is not read"
                settings = dict.fromkeys((*OPEN, *names), Unknown(why=why))
            settings |= self.keywords(node, name)
            self.made[id(node)] = Made(node.lineno, name, settings, "; ".join(self._conditions(node)))
        return self.made[id(node)]

    def _conditions(self, node: ast.AST) -> Iterator[str]:
        """The conditions and loops around a node, within its function."""
        while (outer := self.above.get(id(node))) is not None and not isinstance(
            outer, ast.FunctionDef | ast.Lambda
        ):
            if isinstance(outer, ast.If | ast.While) and "__name__" not in (test := ast.unparse(outer.test)):
                yield f"{'not ' if node in outer.orelse else ''}{test} (line {outer.lineno})"
            elif isinstance(outer, ast.For | ast.Try | ast.ExceptHandler):
                yield f"{ast.unparse(outer).splitlines()[0]} (line {outer.lineno})"
            node = outer

    def keywords(self, node: ast.Call, name: str) -> dict[str, Any]:
        """The arguments of a call that have names."""
        table: dict[str, Any] = {}
        for word in node.keywords:
            if word.arg is not None:
                table[word.arg] = self.said(word.value)
            elif type(inner := self.value(word.value)) is dict:
                table.update(inner)
            else:
                why = f"may be in **{ast.unparse(word.value)[:60]} (line {node.lineno}), which {_why(inner)}"
                table = {**dict.fromkeys((*OPEN, *FIRST.get(name, ())), Unknown(why=why)), **table}
        return table

    def said(self, node: ast.expr) -> Any:
        """A value as a file would have it; where it is not known, why."""
        value = self.value(node)
        if isinstance(value, list | tuple):
            value = next((it for it in value if isinstance(it, Unknown)), list(value))
        if isinstance(value, Unknown | ast.AST | Defaults):
            return Unknown(why=f"is {ast.unparse(node)[:60]} (line {node.lineno}), which {_why(value)}")
        return value

    def _returned(self, function: ast.FunctionDef) -> Any:
        """What the last statement of a function returns, where nothing else does."""
        inner = [*ast.walk(function)]
        returns = [it for it in inner if isinstance(it, ast.Return)]
        is_plain = not function.decorator_list and not any(
            isinstance(it, ast.Yield | ast.YieldFrom) for it in inner
        )
        if is_plain and len(returns) == 1 and returns[0] in function.body and returns[0].value is not None:
            return self.value(returns[0].value)
        return Unknown(why=f"is what {function.name} returns, and {_why(None)}")

    # ---- parts: of tables, classes, parsers ----

    def _part(self, node: ast.Attribute | ast.Subscript) -> Any:
        """Of a table or a list, a class of the file, the defaults of a parser or a dataclass, or a call that was met."""
        holder = self.value(node.value)
        if isinstance(node, ast.Subscript):
            return _item(holder, self.value(node.slice))
        if _last(node.value) in MEMBERS:
            return node.attr.lower()
        if node.attr == "__dict__":
            return self._fields(holder)
        if {node.attr, ANY} & self.lost:
            return Unknown(why=f"may be set elsewhere, as {node.attr}")
        value: Any = UNKNOWN
        if isinstance(holder, ast.ClassDef) and not (
            holder.bases or holder.keywords or holder.decorator_list
        ):
            bound = [it for it in ast.walk(holder) if node.attr in _bound_by(it)]
            value = (
                self._bound(bound[0]) if len(bound) == 1 and not isinstance(bound[0], ast.arg) else UNKNOWN
            )
        elif isinstance(holder, dict):
            value = holder.get(node.attr, UNKNOWN)
            if isinstance(holder, Defaults):
                self.defaults[node.attr] = value
        return UNKNOWN if isinstance(value, dict | list) else value

    def _fields(self, holder: Any) -> Any:
        """All defaults of a parser or a dataclass as a table."""
        if not isinstance(holder, Defaults):
            return UNKNOWN
        self.defaults.update(holder)
        lost = Unknown(why="may be set elsewhere")
        return {key: lost if {key, ANY} & self.lost else value for key, value in holder.items()}

    def _add_argument(self, node: ast.Call) -> None:
        """`parser.add_argument("--lr", type=float, default=2e-5)`, of whatever parser of the file."""
        names = [it.value for it in node.args if isinstance(it, ast.Constant) and isinstance(it.value, str)]
        if _last(node.func) != "add_argument" or not names:
            return
        given = {word.arg: word.value for word in node.keywords}
        long = next((name for name in names if name.startswith("--")), names[0])
        key, action = (_constant(given.get(it)) for it in ("dest", "action"))
        key = key or long.lstrip("-").replace("-", "_")
        value: Any = Unknown(why=f"has no default: --{key} is given on the command line")
        if "default" in given:
            value = self.value(given["default"])
            if isinstance(value, str) and "type" in given and ast.unparse(given["type"]) != "str":
                value = Unknown(why=f"is the text {value!r} as --{key} takes it")
        elif action in ("store_true", "store_false"):
            value = action == "store_false"
        if None in given or repr(self.parsed.get(key, value)) != repr(value):
            value = Unknown(why=f"has several defaults: --{key}")
        self.parsed[key] = value

    def _dataclass(self, node: Any, call: ast.Call | None) -> Any:
        """The defaults of a dataclass of the file, with what a call of it gives."""
        if not isinstance(node, ast.ClassDef):
            return UNKNOWN
        own = [it for item in node.body for it in ast.walk(item)]
        sets = any(isinstance(it, ast.Attribute) and not isinstance(it.ctx, ast.Load) for it in own)
        dunder = any(isinstance(it, ast.FunctionDef) and it.name.startswith("__") for it in own)
        is_plain = len(node.decorator_list) == 1 and "dataclass" in ast.unparse(node.decorator_list[0])
        if not is_plain or node.bases or sets or dunder or not (call is None or _is_plain(call)):
            return Unknown(why=f"may be set by {node.name}, which is more than its fields")
        fields = {
            it.target.id: it.value
            for it in node.body
            if isinstance(it, ast.AnnAssign) and isinstance(it.target, ast.Name)
        }
        table = Defaults()
        for name, value in fields.items():
            if isinstance(value, ast.Call) and _last(value.func) == "field":
                value = next((word.value for word in value.keywords if word.arg == "default"), value)
            is_once = sum(name in _bound_by(it) for it in own) == 1
            table[name] = self.value(value) if value is not None and is_once else UNKNOWN
        if call is not None:
            table.update({key: self.value(item) for key, item in zip(fields, call.args, strict=False)})
            table.update(self.keywords(call, ""))
        return table

    # ---- schedulers ----

    def _note_scheduler(self, node: ast.AST) -> None:
        """A scheduler that is not known, where one is handed over, counts as one without arguments."""
        handed: list[Any] = []
        match node:
            case ast.Dict():
                table = {
                    _constant(key): self.value(item) for key, item in zip(node.keys, node.values, strict=True)
                }
                handed = [table.get("scheduler"), table.get("lr_scheduler")]
                self.intervals[id(handed[0])] = table.get("interval", "epoch")
            case ast.Return(value=ast.Tuple(elts=[ast.List(), ast.List() as schedulers])):
                handed = [self.value(item) for item in schedulers.elts]
        if any(isinstance(it, Unknown) for it in handed):
            self.made[id(node)] = Made(_line(node), "lr_scheduler", {}, "")


_OF_LIGHTNING = ("accumulate_grad_batches", "max_steps", "max_epochs")


def _bound_by(node: ast.AST) -> list[str]:
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


def _why(value: Any) -> str:
    return getattr(value, "why", "") or "cannot be read from the script"


def _line(node: ast.AST) -> int:
    return getattr(node, "lineno", 0)


def _last(node: ast.expr) -> str:
    """The last part of a dotted name."""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _parts(node: ast.expr) -> Iterator[str]:
    """Attributes on the way to a target; those of `self` are no one else's."""
    while isinstance(node, ast.Attribute | ast.Subscript):
        if isinstance(node, ast.Attribute) and not (
            isinstance(node.value, ast.Name) and node.value.id == "self"
        ):
            yield node.attr
        elif isinstance(node, ast.Subscript) and _is_inside(node.value):
            yield _constant(node.slice) or ANY
        node = node.value


def _is_inside(node: ast.AST) -> bool:
    """Whether this is the table of an object's attributes: `vars(args)`, `args.__dict__`."""
    is_vars = isinstance(node, ast.Call) and _last(node.func) == "vars"
    return is_vars or (isinstance(node, ast.Attribute) and node.attr == "__dict__")


def _is_plain(call: ast.Call) -> bool:
    """Whether no argument of a call is behind a `*`."""
    return not any(isinstance(it, ast.Starred) for it in call.args) and all(
        word.arg for word in call.keywords
    )


def _item(holder: Any, key: Any) -> Any:
    if isinstance(holder, dict) and not isinstance(holder, Defaults) and isinstance(key, str):
        return holder.get(key, UNKNOWN)
    inside = isinstance(holder, list | tuple) and type(key) is int and -len(holder) <= key < len(holder)
    return holder[key] if inside else UNKNOWN


def _constant(node: ast.expr | None) -> Any:
    return node.value if isinstance(node, ast.Constant) else None
