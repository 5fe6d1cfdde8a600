"""What each call in a Python script gives that configures a training, and the defaults of argparse and dataclasses. Nothing is executed."""

import ast
from collections.abc import Iterator
from typing import Any

from isobatch.tools.names import (
    ANY,
    Defaults,
    Made,
    Names,
    bound_by,
    constant_of,
    is_plain,
    item_of,
    last_part,
    line_of,
    why_not,
)
from isobatch.tools.page import UNKNOWN, Unknown
from isobatch.tools.signatures import FIRST, MEMBERS, OPEN, TABLES, is_looked_for


class Script(Names):
    """A Python script.

    Attributes:
        made: calls of the classes that are looked for.
        defaults: the arguments whose default was taken, with their values.
        intervals: of the schedulers in a table of Lightning's, by the identities of their arguments.
    """

    def __init__(self, tree: ast.Module) -> None:
        super().__init__(tree)
        self.defaults: dict[str, Any] = {}
        self.intervals: dict[int, Any] = {}
        self.parsed = Defaults()
        for call in self.calls:
            self._add_argument(call)
        for call in sorted(self.calls, key=lambda call: (call.lineno, call.col_offset)):
            self.value(call)
        for node in self.nodes:
            self._note_scheduler(node)
        for made in self.made.values():
            self._lose_touched(made)

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
                why = f"may be set by {ast.unparse(node)[:60]} (line {line_of(node)})"
                names = {*made.settings, *own} if name == ANY else {name}
                made.settings.update(dict.fromkeys(names, Unknown(why=why)))

    # ---- calls ----

    def call(self, node: ast.Call) -> Any:
        """A table of what a call gives; of a function of the file what it returns."""
        full = self.full(node.func)
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
                why = (
                    f"may be in **{ast.unparse(word.value)[:60]} (line {node.lineno}), which {why_not(inner)}"
                )
                table = {**dict.fromkeys((*OPEN, *FIRST.get(name, ())), Unknown(why=why)), **table}
        return table

    def said(self, node: ast.expr) -> Any:
        """A value as a file would have it; where it is not known, why."""
        value = self.value(node)
        if isinstance(value, list | tuple):
            value = next((it for it in value if isinstance(it, Unknown)), list(value))
        if isinstance(value, Unknown | ast.AST | Defaults):
            return Unknown(why=f"is {ast.unparse(node)[:60]} (line {node.lineno}), which {why_not(value)}")
        return value

    def _returned(self, function: ast.FunctionDef) -> Any:
        """What the last statement of a function returns, where nothing else does."""
        inner = [*ast.walk(function)]
        returns = [it for it in inner if isinstance(it, ast.Return)]
        is_simple = not function.decorator_list and not any(
            isinstance(it, ast.Yield | ast.YieldFrom) for it in inner
        )
        if is_simple and len(returns) == 1 and returns[0] in function.body and returns[0].value is not None:
            return self.value(returns[0].value)
        return Unknown(why=f"is what {function.name} returns, and {why_not(None)}")

    # ---- parts: of tables, classes, parsers ----

    def part(self, node: ast.Attribute | ast.Subscript) -> Any:
        """Of a table or a list, a class of the file, the defaults of a parser or a dataclass, or a call that was met."""
        holder = self.value(node.value)
        if isinstance(node, ast.Subscript):
            return item_of(holder, self.value(node.slice))
        if last_part(node.value) in MEMBERS:
            return node.attr.lower()
        if node.attr == "__dict__":
            return self._fields(holder)
        if {node.attr, ANY} & self.lost:
            return Unknown(why=f"may be set elsewhere, as {node.attr}")
        value: Any = UNKNOWN
        if isinstance(holder, ast.ClassDef) and not (
            holder.bases or holder.keywords or holder.decorator_list
        ):
            bound = [it for it in ast.walk(holder) if node.attr in bound_by(it)]
            value = (
                self.bound_value(bound[0])
                if len(bound) == 1 and not isinstance(bound[0], ast.arg)
                else UNKNOWN
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
        if last_part(node.func) != "add_argument" or not names:
            return
        given = {word.arg: word.value for word in node.keywords}
        long = next((name for name in names if name.startswith("--")), names[0])
        key, action = (constant_of(given.get(it)) for it in ("dest", "action"))
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
        is_simple = len(node.decorator_list) == 1 and "dataclass" in ast.unparse(node.decorator_list[0])
        if not is_simple or node.bases or sets or dunder or not (call is None or is_plain(call)):
            return Unknown(why=f"may be set by {node.name}, which is more than its fields")
        fields = {
            it.target.id: it.value
            for it in node.body
            if isinstance(it, ast.AnnAssign) and isinstance(it.target, ast.Name)
        }
        table = Defaults()
        for name, value in fields.items():
            if isinstance(value, ast.Call) and last_part(value.func) == "field":
                value = next((word.value for word in value.keywords if word.arg == "default"), value)
            is_once = sum(name in bound_by(it) for it in own) == 1
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
                    constant_of(key): self.value(item)
                    for key, item in zip(node.keys, node.values, strict=True)
                }
                handed = [table.get("scheduler"), table.get("lr_scheduler")]
                self.intervals[id(handed[0])] = table.get("interval", "epoch")
            case ast.Return(value=ast.Tuple(elts=[ast.List(), ast.List() as schedulers])):
                handed = [self.value(item) for item in schedulers.elts]
        if any(isinstance(it, Unknown) for it in handed):
            self.made[id(node)] = Made(line_of(node), "lr_scheduler", {}, "")


_OF_LIGHTNING = ("accumulate_grad_batches", "max_steps", "max_epochs")
