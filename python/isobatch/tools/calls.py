"""What each call in a Python script gives that configures a training, and the defaults of argparse and dataclasses."""

import ast
import copy
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from isobatch.tools.literals import Scope, put
from isobatch.tools.page import Unknown
from isobatch.tools.signatures import FIRST, OPEN, SETTERS, TABLES, TRAINER, TRL, is_looked_for, setter


class Made(NamedTuple):
    """A call in the script.

    Attributes:
        name: of the class.
        settings: its arguments; what the script changes in them later is in here too.
        when: the condition under which it is made; empty for none.
    """

    line: int
    name: str
    settings: dict[str, Any]
    when: str


class Attributes(dict[str, Any]):
    """Of a class; one that is not there is not known."""

    def get(self, key: str, default: Any = None) -> Any:  # noqa: ARG002 - as a dict's
        """Of a name."""
        return self[key] if key in self else Unknown()


class Defaults(Attributes):
    """Arguments that a parser or a dataclass gives defaults. One without is asked for."""


class CallScope(Scope, ABC):
    """Names with their values, and the calls that were met.

    Attributes:
        made: calls of the classes that are looked for, in their order.
        defaults: the arguments whose default was taken, with their values.
        intervals: of the schedulers that are in a table of Lightning's, by the identities of their arguments.
        functions: those at the top, by their names: without a decorator, and with nothing else of that name.
        every: what a call of a name may run: functions, methods, and what makes an object of a class.
        classes, decorators: of the script, by the classes' names.
        shared: names that a function sets outside of itself; they are not known.
        values: of the calls in the statement that is followed: each is evaluated once.
        origin: the module, or the name in it, that an imported name has.
        when: the conditions that hold where the script is followed.
        depth: functions that were entered.
    """

    def __init__(self, tree: ast.Module) -> None:
        super().__init__({})
        self.made: dict[int, Made] = {}
        self.defaults: dict[str, Any] = {}
        self.intervals: dict[int, Any] = {}
        nodes = list(ast.walk(tree))
        self.classes = {node.name: node for node in nodes if isinstance(node, ast.ClassDef)}
        self.decorators = {
            name: " ".join(map(ast.unparse, it.decorator_list)) for name, it in self.classes.items()
        }
        bound = Counter(name for node in tree.body for name in names_bound(node))
        self.functions = {
            node.name: node
            for node in tree.body
            if isinstance(node, ast.FunctionDef)
            and not node.decorator_list
            and bound[node.name] == 1
            and not any(isinstance(it, ast.Yield | ast.YieldFrom) for it in ast.walk(node))
        }
        self.every: dict[str, list[ast.FunctionDef]] = {}
        for node in nodes:
            if isinstance(node, ast.FunctionDef):
                self.every.setdefault(node.name, []).append(node)
        for node in self.classes.values():
            own = [it for it in node.body if isinstance(it, ast.FunctionDef) and it.name.startswith("__")]
            above = [it for base in node.bases for it in self.every.get(ast.unparse(base), [])]
            self.every[node.name] = [*own, *above]
        self.shared = {
            it for node in nodes if isinstance(node, ast.Global | ast.Nonlocal) for it in node.names
        }
        self.values: dict[int, Any] = {}
        self.origin: dict[str, str] = {}
        self.when: list[str] = []
        self.depth = 0

    @abstractmethod
    def enter(self, function: ast.FunctionDef, given: dict[str, Any]) -> Any:
        """Follows a function to its return."""

    def _call_value(self, node: ast.Call) -> Any:
        if id(node) not in self.values:
            self.values[id(node)] = self._called(node)
        return self.values[id(node)]

    def _called(self, node: ast.Call) -> Any:
        name = ast.unparse(node.func) if isinstance(node.func, ast.Name | ast.Attribute) else ""
        head, dot, rest = name.partition(".")
        full = f"{self.origin.get(head, head)}{dot}{rest}"
        last = full.rpartition(".")[2]
        if setter(node) and isinstance(of := self._holder(node), dict):
            return self._set(node, of)
        if name == "setattr" and len(node.args) == 3:
            return self._set_attribute(node)
        if is_looked_for(full):
            if id(node) not in self.made or self.depth:
                self._make(node, last)
            return self.made[id(node)].settings
        if name == "vars" and len(node.args) == 1:
            return self.value(node.args[0])
        for word in node.keywords:
            if word.arg == "optimizers":
                given = self.value(word.value)
                self.ask_schedule(
                    node, given[1] if isinstance(given, list) and len(given) == 2 else Unknown()
                )
        if last == "add_argument":
            self._add_argument(node)
            return Unknown()
        if last in ("parse_args", "parse_known_args") and isinstance(node.func, ast.Attribute):
            holder = self.known.get(f"{ast.unparse(node.func.value)}.")
            return copy.deepcopy(holder) if isinstance(holder, Defaults) else Unknown()
        if "dataclass" in self.decorators.get(last, ""):
            return self._dataclass(last, node)
        if last in ("HfArgumentParser", "TrlParser") and node.args:
            first = node.args[0]
            names = first.elts if isinstance(first, ast.Tuple | ast.List) else [first]
            known = [ast.unparse(it) for it in names]
            return {
                "_classes": [self._dataclass(it, None) if it in self.classes else Unknown() for it in known]
            }
        if last.startswith("parse_") and isinstance(node.func, ast.Attribute):
            holder = self.value(node.func.value)
            return holder["_classes"] if isinstance(holder, dict) and "_classes" in holder else Unknown()
        if name in self.functions:
            return self.enter(self.functions[name], self._bound(self.functions[name], node))
        if name in ("int", "float") and len(node.args) == 1 and not node.keywords:
            given = self.value(node.args[0])
            return (int if name == "int" else float)(given) if type(given) in (int, float) else given
        if (name == "dict" or last in TABLES) and not node.args:
            return self._keywords(node)
        return Unknown()

    def ask_schedule(self, node: ast.expr | ast.stmt, scheduler: Any) -> None:
        """A scheduler that is not known counts as one without arguments."""
        if isinstance(scheduler, Unknown):
            self.made[id(node)] = Made(node.lineno, "lr_scheduler", {}, "; ".join(self.when))

    def _set_attribute(self, node: ast.Call) -> None:
        """`setattr(args, "max_steps", 100)`; a name that is not known may be any."""
        settings, name, value = self.value(node.args[0]), self.value(node.args[1]), self._said(node.args[2])
        why = f"may be set by setattr (line {node.lineno}), of a name that is not known"
        if not isinstance(settings, dict):
            self._may_be_set([name] if isinstance(name, str) else OPEN, why)
        else:
            lost = Unknown(why=why)
            put(settings, {name: value} if isinstance(name, str) else dict.fromkeys({*OPEN, *settings}, lost))

    def _holder(self, node: ast.Call) -> Any:
        return self.value(node.func.value) if isinstance(node.func, ast.Attribute) else None

    def _set(self, node: ast.Call, of: dict[str, Any]) -> dict[str, Any]:
        """`args.set_training(learning_rate=2e-5)`: what it does not name falls back to the method's own default."""
        table = SETTERS[setter(node)]
        given = {name: self._said(item) for (name, _, _), item in zip(table, node.args, strict=False)}
        given |= self._keywords(node)
        tables = [self.value(word.value) for word in node.keywords if word.arg is None]
        lost = Unknown(why=f"may be in ** (line {node.lineno}), which has no literal value")
        is_open = not all(isinstance(it, dict) for it in tables)
        put(of, {key: given.get(name, lost if is_open else default) for name, key, default in table})
        return of

    def _may_be_set(self, names: Iterable[str], why: str) -> None:
        """Of each configuration before it."""
        for made in self.made.values():
            if made.name in (*TRAINER, *TRL):
                made.settings.update({name: Unknown(why=why) for name in names if name in OPEN})

    def assign(self, target: ast.expr, value: Any) -> None:
        """Also `a, b = parser.parse_args_into_dataclasses()`; what is set in an object that is not known may be a setting of each."""
        if isinstance(target, ast.Name) and target.id in self.shared:
            value = Unknown(why="is set by a function, outside of itself")
        table = self.value(target.value) if isinstance(target, ast.Attribute | ast.Subscript) else None
        why = f"may be set by {ast.unparse(target)[:60]} (line {target.lineno})"
        several = target.elts if isinstance(target, ast.Tuple | ast.List) else []
        if isinstance(target, ast.Attribute) and target.attr in OPEN and not isinstance(table, dict):
            self._may_be_set([target.attr], why)
        if (
            isinstance(target, ast.Subscript)
            and isinstance(self.key(target), Unknown)
            and isinstance(table, dict)
        ):
            lose(table, why)
        elif several and isinstance(value, list) and len(value) >= len(several):
            for item, each in zip(several, value, strict=False):
                self.assign(item, each)
        else:
            super().assign(target, value)

    def _make(self, node: ast.Call, name: str) -> None:
        names = FIRST.get(name, [])
        settings = {key: self._said(item) for key, item in zip(names, node.args, strict=False)}
        if len(node.args) > len(names) or any(isinstance(it, ast.Starred) for it in node.args):
            why = f"may be an argument without a name (line {node.lineno}), which is not read"
            settings = dict.fromkeys((*OPEN, *names), Unknown(why=why))
        settings |= self._keywords(node)
        self.made[id(node)] = Made(node.lineno, name, settings, "; ".join(self.when))

    def _keywords(self, node: ast.Call) -> dict[str, Any]:
        out: dict[str, Any] = {}
        for word in node.keywords:
            if word.arg is not None:
                out[word.arg] = self._said(word.value)
                continue
            found = self.value(word.value)
            if type(found) is dict:
                out.update(found)
            else:
                why = f"may be in **{ast.unparse(word.value)[:60]} (line {node.lineno}), which has no literal value"
                out = {**{key: Unknown(why=why) for key in OPEN}, **out}
        return out

    def _said(self, node: ast.expr) -> Any:
        """A value; where it is not known, why."""
        found = self.value(node)
        if isinstance(found, list):
            found = next((it for it in found if isinstance(it, Unknown)), found)
        if isinstance(found, Unknown) and not found.name:
            inside = found.why or "has no literal value"
            return Unknown(why=f"is {ast.unparse(node)[:60]} (line {node.lineno}), which {inside}")
        return found

    def _add_argument(self, node: ast.Call) -> None:
        """`parser.add_argument("--lr", default=2e-5)`."""
        holder = self.known.setdefault(f"{ast.unparse(node.func).rpartition('.')[0]}.", Defaults())
        given = {word.arg: word.value for word in node.keywords if word.arg}
        names = [
            item.value for item in node.args if isinstance(item, ast.Constant) and isinstance(item.value, str)
        ]
        if not names or not isinstance(holder, Defaults):
            return
        long = next((name for name in names if name.startswith("--")), names[0])
        key = _constant(given.get("dest")) or long.lstrip("-").replace("-", "_")
        action = _constant(given.get("action"))
        if "default" in given:
            holder[key] = self.value(given["default"])
        elif action in ("store_true", "store_false"):
            holder[key] = action == "store_false"
        else:
            holder[key] = Unknown(why=f"has no default: --{key} is given on the command line")

    def _dataclass(self, name: str, call: ast.Call | None) -> Defaults:
        """The defaults of a dataclass, with what a call of it gives."""
        out, names = Defaults(), list[str]()
        for item in self.classes[name].body:
            if not (isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name)):
                continue
            names.append(item.target.id)
            if (value := item.value) is not None:
                if isinstance(value, ast.Call) and ast.unparse(value.func).rpartition(".")[2] == "field":
                    value = next((word.value for word in value.keywords if word.arg == "default"), value)
                out[item.target.id] = self.value(value)
        if call is not None:
            out.update({key: self.value(item) for key, item in zip(names, call.args, strict=False)})
            out.update(self._keywords(call))
        if self.every[name] or any(isinstance(it, ast.Starred) for it in (call.args if call else ())):
            why = f"may be set by {name}, which is more than its fields"
            out.update(dict.fromkeys(out, Unknown(why=why)))
        return out

    def _bound(self, function: ast.FunctionDef, node: ast.Call) -> dict[str, Any]:
        own = function.args
        names = [it.arg for it in (*own.posonlyargs, *own.args)]
        given = {it.arg: it.value for it in node.keywords}
        if None in given or any(isinstance(it, ast.Starred) for it in node.args):
            why = f"may be behind a * of line {node.lineno}"
            return dict.fromkeys((*names, *(it.arg for it in own.kwonlyargs)), Unknown(why=why))
        given |= dict(zip(names, node.args, strict=False))
        return {str(name): self.value(item) for name, item in given.items()}


def names_bound(node: ast.AST) -> Iterator[str]:
    """Names that a statement may give something to, in it or in its functions; not those of methods."""
    for it in ast.walk(node):
        if isinstance(it, ast.Name) and not isinstance(it.ctx, ast.Load):
            yield it.id
        elif isinstance(it, ast.arg):
            yield it.arg
        elif isinstance(it, ast.alias):
            yield it.asname or it.name
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        yield node.name
    else:
        yield from (it.name for it in ast.walk(node) if isinstance(it, ast.FunctionDef | ast.ClassDef))


def lose(table: Any, why: str) -> None:
    """Makes all in a table or a list not known."""
    lost = Unknown(why=why)
    if isinstance(table, dict):
        table.update(dict.fromkeys({*OPEN, *table}, lost))
    elif isinstance(table, list):
        table[:] = [lost] * max(1, len(table))


def _constant(node: ast.expr | None) -> Any:
    return node.value if isinstance(node, ast.Constant) else None
