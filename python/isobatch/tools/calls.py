"""Calls in a Python script, as far as they configure a training. Nothing is executed.

A name has a value where one statement in the file binds it; a value that anything else may change is Unknown.
"""

import ast
import builtins
import operator
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from isobatch.tools.names import ANY, Names, constant_of, last_part, line_of
from isobatch.tools.page import UNKNOWN, Unknown
from isobatch.tools.run_schedules import Multiple
from isobatch.tools.signatures import OPEN, OPTIMIZERS, TABLES, configures, first_arguments, is_trainers
from isobatch.words import number_of

_PENDING = Unknown()
_COMPUTED: dict[type[ast.AST], Callable[[Any, Any], Any]] = {
    ast.Mult: operator.mul, ast.Div: operator.truediv, ast.FloorDiv: operator.floordiv,
    ast.Add: operator.add, ast.Sub: operator.sub,
}  # fmt: skip
_COUNTS = {"num_processes": ("accelerator", "state"), "estimated_stepping_batches": ("trainer",)}
"""Attributes with a count of processes or steps of the run, and the objects that have them."""
_PARSED = ("args", "opt", "opts")
"""Usual names of a function's argument for the command line."""


class Configuring(NamedTuple):
    """A call to configure a training."""

    line: int
    name: str
    settings: dict[str, Any]


class Defaults(dict[str, Any]):
    """Arguments with the defaults of a parser or a dataclass."""


class Script(Names):
    """A Python script.

    Attributes:
        configuring: the calls that configure a training, by their nodes.
        defaults: the arguments whose default was taken, with their values.
        flags: the settings of the command line that starts the script.
        declared: the flags that its parsers declare.
    """

    def __init__(self, tree: ast.Module, flags: Mapping[str, Any] | None = None) -> None:
        super().__init__(tree)
        self.configuring: dict[ast.AST, Configuring] = {}
        self.defaults: dict[str, Any] = {}
        self.flags = flags or {}
        self.declared: set[str] = set()
        self._parsed = Defaults()
        self._values: dict[ast.expr, Any] = {}
        for call in self.calls:
            self._add_argument(call)
        for call in sorted(self.calls, key=lambda call: (call.lineno, call.col_offset)):
            self.value(call)
        for configuring in self.configuring.values():
            self._forget_changed(configuring.name, configuring.settings)

    def _forget_changed(self, name: str, settings: dict[str, Any]) -> None:
        """Forgets settings open to a change after the call."""
        is_open = is_trainers(name)
        names = {*settings, *OPEN} if is_open else {*settings}
        for changed, owner, node in self.changes:
            is_own = any(self._bound_value(binding) is settings for binding in self.bindings.get(owner, ()))
            lost = names if changed == ANY and is_open else {changed} if is_own else names & {changed}
            why = f"may be set by {ast.unparse(node)[:60]} (line {line_of(node)})" if lost else ""
            settings.update(dict.fromkeys(lost, Unknown(why=why)))

    def value(self, node: ast.expr) -> Any:
        """Returns the value of an expression, evaluated once; inside of itself it is pending."""
        if node in self._values:
            return self._values[node]
        self._values[node] = _PENDING
        value = self._values[node] = self._evaluate(node)
        if value is _PENDING:
            del self._values[node]
        return value

    def _evaluate(self, node: ast.expr) -> Any:
        match node:
            case ast.Constant():
                return node.value
            case ast.Name():
                return self._name(node)
            case ast.List() | ast.Tuple():
                kind = list if isinstance(node, ast.List) else tuple
                return kind(map(self.value, node.elts))
            case ast.Dict():
                return self._table(node)
            case ast.Attribute():
                return self._attribute(node)
            case ast.Subscript():
                return _item(self.value(node.value), self.value(node.slice))
            case ast.Call():
                return self.call(node)
            case ast.UnaryOp(op=ast.USub()):
                return _computed(operator.sub, 0, self.value(node.operand))
            case ast.BinOp():
                return _computed(_COMPUTED.get(type(node.op)), self.value(node.left), self.value(node.right))
        return UNKNOWN

    def _table(self, node: ast.Dict) -> Any:
        """Returns a table with known names; Unknown for a table with any other key."""
        table: dict[str, Any] = {}
        for key, item in zip(node.keys, node.values, strict=True):
            name, value = constant_of(key), self.value(item)
            if key is None and type(value) is dict:
                table.update(value)
            elif not isinstance(name, str):
                return UNKNOWN
            else:
                table[name] = value
        return table

    def _name(self, node: ast.Name) -> Any:
        """Returns the value of a name; of a table or a list only if nothing may change it."""
        bindings = self.bindings.get(node.id, [])
        if not bindings or hasattr(builtins, node.id) or self.is_open:
            return UNKNOWN
        values = [value for binding in bindings if (value := self._bound_value(binding)) is not _PENDING]
        if not values:
            return _PENDING
        if len(bindings) > 1 and any(value is not self._parsed for value in values):
            return Unknown(why=f"is set in lines {', '.join(map(str, sorted(set(map(line_of, bindings)))))}")
        if line_of(bindings[0]) <= self.last_star:
            return UNKNOWN
        value = values[0]
        if type(value) is tuple and any(type(item) in (tuple, list, dict) for item in value):
            return UNKNOWN  # nested names: a text of a few lines could fill the memory
        if type(value) in (dict, list) and all(
            value is not call.settings for call in self.configuring.values()
        ):
            for load in self.loads.get(node.id, ()):
                if not self._only_reads(load, value):
                    return Unknown(why=f"may be changed in line {load.lineno}")
        return value

    def _bound_value(self, node: ast.AST) -> Any:
        """Returns the value given to a name by a binding."""
        around, place = self.above[node], None
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            return node
        if isinstance(node, ast.arg):
            function = getattr(self.above[around], "name", "a function")
            is_parsed = node.arg in _PARSED and self._parsed
            return self._parsed if is_parsed else Unknown(why=f"is an argument of {function}")
        if isinstance(around, ast.Tuple | ast.List) and isinstance(node, ast.Name):
            place, node, around = around.elts.index(node), around, self.above[around]
        targets = around.targets if isinstance(around, ast.Assign) else [getattr(around, "target", None)]
        if not isinstance(around, ast.Assign | ast.AnnAssign) or around.value is None or node not in targets:
            return UNKNOWN
        value = self.value(around.value)
        if place is None or not isinstance(node, ast.Tuple | ast.List):
            return value
        return value[place] if isinstance(value, list | tuple) and len(value) == len(node.elts) else UNKNOWN

    def _only_reads(self, node: ast.Name, value: Any) -> bool:
        """Tells whether a table or list stays unchanged where it is read: by part, `**`, or as a setting."""
        around = self.above[node]
        if isinstance(around, ast.Subscript) and around.value is node:
            item = _item(value, self.value(around.slice))
            return isinstance(around.ctx, ast.Load) and not isinstance(item, dict | list)
        call = self.above[around] if isinstance(around, ast.keyword) else around
        is_used = (
            isinstance(call, ast.Call) and call.func is not node and configures(self.full_name(call.func))
        )
        is_copied = (isinstance(around, ast.keyword) and around.arg is None) or (
            isinstance(around, ast.Dict) and (None, node) in zip(around.keys, around.values, strict=True)
        )
        items = value.values() if isinstance(value, dict) else value
        return (is_copied or is_used) and not any(isinstance(item, dict | list) for item in items)

    def text_value(self, node: ast.expr) -> Any:
        """Returns a value as a file would have it; an unknown one with the reason why."""
        value = self.value(node)
        if isinstance(value, list | tuple):
            value = next((item for item in value if isinstance(item, Unknown)), list(value))
        if isinstance(value, Unknown | ast.AST | Defaults):
            why = f"is {ast.unparse(node)[:60]} (line {node.lineno}), which {_why(value)}"
            return Multiple(value.number, value.of, why) if isinstance(value, Multiple) else Unknown(why=why)
        return value

    def _attribute(self, node: ast.Attribute) -> Any:
        """Returns a field of a class of the file or of the defaults of a parser, or a count of the run."""
        holder = self.value(node.value)
        holder = self._fields(holder) if isinstance(holder, ast.ClassDef) else holder
        is_count = last_part(node.value).lower().endswith(_COUNTS.get(node.attr, ())) or (
            node.attr in _COUNTS and any(holder is call.settings for call in self.configuring.values())
        )
        if is_count and not isinstance(holder, Defaults):
            return Multiple(1, node.attr)
        if not isinstance(holder, dict):
            return UNKNOWN
        if any(change.attribute in (node.attr, ANY) for change in self.changes):
            return Unknown(why=f"may be set elsewhere, as {node.attr}")
        value = holder.get(node.attr, UNKNOWN)
        if isinstance(holder, Defaults) and node.attr not in self.flags:
            self.defaults[node.attr] = value
        return UNKNOWN if isinstance(value, dict | list) else value

    def call(self, node: ast.Call) -> Any:
        """Returns the arguments of a call as a table, and for a function of the file its result."""
        full, last = self.full_name(node.func), last_part(node.func)
        target = self.value(node.func) if isinstance(node.func, ast.Name) else None
        only = node.args[0] if len(node.args) == 1 else None
        if configures(full):
            return self._configure(node, last, {})
        if isinstance(target, ast.FunctionDef):
            return self._result(target)
        if isinstance(target, ast.ClassDef):
            return self._instance(target, node)
        if last in ("parse_args", "parse_known_args") and self._is_command_line(node):
            return self._parsed if last == "parse_args" else (self._parsed, UNKNOWN)
        if last in ("HfArgumentParser", "TrlParser") and only is not None:
            classes = map(self.value, only.elts if isinstance(only, ast.Tuple | ast.List) else [only])
            return tuple(self._fields(cls) if isinstance(cls, ast.ClassDef) else UNKNOWN for cls in classes)
        if last == "parse_args_into_dataclasses" and isinstance(node.func, ast.Attribute):
            return self.value(node.func.value)
        if full in ("int", "float") and only is not None:
            number = self.value(only)
            return getattr(builtins, full)(number) if type(number) in (int, float) else number
        return self.keywords(node, "") if (full == "dict" or last in TABLES) and not node.args else UNKNOWN

    def _configure(self, node: ast.Call, name: str, fields: dict[str, Any]) -> dict[str, Any]:
        """Notes the settings of a configuring call, over the `fields` of a subclass."""
        names = first_arguments(name)
        settings = {key: self.text_value(item) for key, item in zip(names, node.args, strict=False)}
        if len(node.args) > len(names) or any(isinstance(item, ast.Starred) for item in node.args):
            why = f"may be an argument without a name (line {node.lineno}), which is not read"
            settings = dict.fromkeys((*OPEN, *names), Unknown(why=why))
        settings = fields | settings | self.keywords(node, name)
        if name == "DataLoader":
            settings |= self._sampled(node)
        elif name in OPTIMIZERS:
            settings |= self._grouped(node, settings)
        for trained in ("params", "parameters", "optimizer"):
            settings.pop(trained, None)
        self.configuring[node] = Configuring(node.lineno, name, settings)
        return settings

    def _sampled(self, node: ast.Call) -> dict[str, Any]:
        """Returns the batch of a batch sampler; nothing where the loader has a batch itself."""
        words = {word.arg: word.value for word in node.keywords}
        sampler = self._origin(words.get("batch_sampler"))
        size = words.get("batch_size")
        if sampler is None and size is not None and isinstance(size, ast.Constant) and size.value is None:
            return {"batch_size": Unknown(why=f"is None (line {node.lineno}): the dataset makes the batches")}
        if sampler is None or (constant_of(sampler) is None and isinstance(sampler, ast.Constant)):
            return {}
        if isinstance(sampler, ast.Call) and last_part(sampler.func) == "BatchSampler":
            own = {word.arg: word.value for word in sampler.keywords}
            size = sampler.args[1] if len(sampler.args) > 1 else own.get("batch_size")
            if size is not None:
                return {"batch_size": self.text_value(size)}
        why = f"is that of {ast.unparse(sampler)[:60]} (line {node.lineno}), a batch sampler that is not read"
        return {"batch_size": Unknown(why=why)}

    def _origin(self, node: ast.expr | None) -> ast.expr | None:
        """Returns the expression behind a name, if one statement binds it; else the node itself."""
        bindings = self.bindings.get(node.id, []) if isinstance(node, ast.Name) else []
        around = self.above.get(bindings[0]) if len(bindings) == 1 else None
        return around.value if isinstance(around, ast.Assign) and bindings[0] in around.targets else node

    def _grouped(self, node: ast.Call, settings: dict[str, Any]) -> dict[str, Any]:
        """Returns rate and decay of an optimizer's groups; Unknown where they differ."""
        words = {word.arg: word.value for word in node.keywords}
        first = node.args[0] if node.args else words.get("params")
        groups = self._origin(first)
        tables = [self.value(item) for item in groups.elts] if isinstance(groups, ast.List) else []
        if isinstance(groups, ast.List) and not any(map(_is_group, groups.elts)):
            return {}
        why = f"may differ between the parameter groups (line {node.lineno})"
        unknown: dict[str, Any] = {"lr": Unknown(why=why), "weight_decay": Unknown(why=why)}
        if first is not None and not tables:
            return unknown if self._makes_groups(first) else {}
        if not all(isinstance(table, dict) for table in tables):
            return unknown
        if isinstance(first, ast.Name) and len(self.loads.get(first.id, ())) > 1:
            return unknown  # groups may be added, or changed
        for name in [*unknown]:
            values = [table.get(name, settings.get(name, _PENDING)) for table in tables]
            # A group without decay, of norms and biases, stays without any.
            own = {repr(value): value for value in values if not (name == "weight_decay" and value == 0)}
            if _PENDING in values and name == "lr":
                continue
            unknown[name] = next(iter(own.values()), 0.0) if len(own) < 2 else unknown[name]
            if unknown[name] is _PENDING:
                del unknown[name]
        return unknown

    def _makes_groups(self, node: ast.expr) -> bool:
        """Tells whether an expression, or a name's value, may be groups rather than parameters."""
        bindings = self.bindings.get(node.id, []) if isinstance(node, ast.Name) else []
        around = [self.above.get(binding) for binding in bindings]
        values = [each.value for each in around if isinstance(each, ast.Assign)] or [node]
        inner = [each for value in values for each in ast.walk(value)]
        functions = [self.value(each.func) for each in inner if isinstance(each, ast.Call)
                     and isinstance(each.func, ast.Name)]  # fmt: skip
        inner += [
            each for maker in functions if isinstance(maker, ast.FunctionDef) for each in ast.walk(maker)
        ]
        return "group" in ast.unparse(node).lower() or any(map(_is_group, inner))

    def keywords(self, node: ast.Call, name: str) -> dict[str, Any]:
        """Returns the named arguments of a call."""
        table: dict[str, Any] = {}
        for word in node.keywords:
            if word.arg is not None:
                table[word.arg] = self.text_value(word.value)
            elif type(inner := self.value(word.value)) is dict:
                table.update(inner)
            else:
                source = f"**{ast.unparse(word.value)[:60]} (line {node.lineno})"
                unknown = Unknown(why=f"may be in {source}, which {_why(inner)}")
                table = {**dict.fromkeys((*OPEN, *first_arguments(name)), unknown), **table}
        return table

    def _result(self, function: ast.FunctionDef) -> Any:
        """Returns the result of a function with a single return, its last statement."""
        last, exits = function.body[-1], ast.Return | ast.Yield | ast.YieldFrom
        is_only = [inner for inner in ast.walk(function) if isinstance(inner, exits)] == [last]
        if isinstance(last, ast.Return) and last.value and is_only and not function.decorator_list:
            return self.value(last.value)
        return Unknown(why=f"is the result of {function.name}, and {_why(None)}")

    def _is_command_line(self, node: ast.Call) -> bool:
        """Tells whether a parser gets the command line: nothing, `sys.argv[1:]`, or a function's argument."""
        words = [*node.args, *(word.value for word in node.keywords)]
        return isinstance(node.func, ast.Attribute) and all(
            isinstance(self.bindings.get(last_part(word), [None])[0], ast.arg)
            or ast.unparse(word) in ("None", "sys.argv[1:]")
            for word in words
        )

    def _add_argument(self, node: ast.Call) -> None:
        """Notes the default of `parser.add_argument("--lr", type=float, default=2e-5)`."""
        names = [name for item in node.args if isinstance(name := constant_of(item), str)]
        if last_part(node.func) != "add_argument" or not names:
            return
        words = {word.arg: word.value for word in node.keywords}
        long = next((name for name in names if name.startswith("--")), names[0]).lstrip("-").replace("-", "_")
        key, action = constant_of(words.get("dest")) or long, constant_of(words.get("action"))
        value: Any = Unknown(why=f"has no default: --{key} is given on the command line")
        self.declared.add(long)
        if long in self.flags:
            value = self.flags[long]
        elif "default" in words:
            value = self.value(words["default"])
        elif action in ("store_true", "store_false"):
            value = action == "store_false"
        if isinstance(value, str) and "type" in words and ast.unparse(words["type"]) != "str":
            number = number_of(value) if long in self.flags else None
            value = Unknown(why=f"is the text {value!r} as --{key} takes it") if number is None else number
        if None in words or repr(self._parsed.get(key, value)) != repr(value):
            value = Unknown(why=f"has several defaults: --{key}")
        self._parsed[key] = value

    def _fields(self, node: ast.ClassDef) -> Any:
        """Returns the fields of a dataclass, or of a class used as a table; Unknown for one with methods."""
        plain = ast.AnnAssign | ast.Assign | ast.Expr | ast.Pass
        is_dataclass = "dataclass" in "".join(map(ast.unparse, node.decorator_list))
        is_more = node.keywords or len(node.decorator_list) > is_dataclass
        bases = all(is_trainers(last_part(base)) for base in node.bases)
        if is_more or not bases or not all(isinstance(item, plain) for item in node.body):
            return UNKNOWN
        table = Defaults() if is_dataclass else {}
        for item in node.body:
            name = last_part(
                item.targets[0] if isinstance(item, ast.Assign) else getattr(item, "target", item)
            )
            value = getattr(item, "value", None)
            if isinstance(value, ast.Call) and last_part(value.func) == "field":
                value = next((word.value for word in value.keywords if word.arg == "default"), value)
            if name:
                table[name] = self.value(value) if value is not None and name not in table else UNKNOWN
        return table

    def _instance(self, node: ast.ClassDef, call: ast.Call) -> Any:
        """Returns the fields of an object of the file's own class; the settings of a Trainer's subclass."""
        fields = self._fields(node)
        if any(is_trainers(last_part(base)) for base in node.bases):
            why = f"may be set by {node.name}, which is more than its fields"
            defaults = fields if isinstance(fields, dict) else dict.fromkeys(OPEN, Unknown(why=why))
            return self._configure(call, last_part(node.bases[0]), {**defaults})
        if not isinstance(fields, Defaults) or call.args or not all(word.arg for word in call.keywords):
            return UNKNOWN
        return Defaults(fields | self.keywords(call, ""))


def _computed(compute: Callable[[Any, Any], Any] | None, first: Any, second: Any) -> Any:
    """Computes a sum, difference, product or quotient; no powers, as their size is unbounded."""
    if isinstance(second, Multiple) and compute is operator.mul:
        first, second = second, first
    of = first.of if isinstance(first, Multiple) and compute in (operator.mul, operator.truediv) else ""
    numbers = (first.number if of else first, second)
    if compute is None or not all(type(number) in (int, float) and abs(number) < 2**53 for number in numbers):
        return UNKNOWN
    if compute in (operator.truediv, operator.floordiv) and not second:
        return UNKNOWN
    return Multiple(compute(*numbers), of) if of else compute(*numbers)


def _item(holder: Any, key: Any) -> Any:
    """Returns an item of a table or a list, Unknown if there is none."""
    if isinstance(holder, dict) and not isinstance(holder, Defaults) and isinstance(key, str):
        return holder.get(key, UNKNOWN)
    inside = isinstance(holder, list | tuple) and type(key) is int and -len(holder) <= key < len(holder)
    return holder[key] if inside else UNKNOWN


def _why(value: Any) -> str:
    return getattr(value, "why", "") or "cannot be read from the script"


def _is_group(node: ast.AST) -> bool:
    """Tells whether an expression is a parameter group: `{"params": ...}` or `dict(params=...)`."""
    if isinstance(node, ast.Dict):
        return any(key is not None and constant_of(key) == "params" for key in node.keys)
    if isinstance(node, ast.Call) and last_part(node.func) == "dict":
        return any(word.arg == "params" for word in node.keywords)
    return False
