"""Follows a Python script without executing it, statement by statement: functions where they are called, and what a condition leaves open."""

from __future__ import annotations

import ast
import copy
import operator
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

from isobatch.errors import InputError
from isobatch.tools.calls import OF_TORCH, OPEN, SETTERS, Attributes, CallScope, Defaults, setter
from isobatch.tools.page import Unknown

_MEMBERS = ("SchedulerType", "OptimizerNames", "IntervalStrategy")
_COMPARED: dict[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}
_CHANGES = ("update", "pop", "popitem", "clear", "setdefault")
"""Methods of a table."""
_MOST_STATEMENTS = 2_000
_DEEPEST = 20


class _Returned(Exception):
    def __init__(self, value: Any) -> None:
        self.value = value


class Script(CallScope):
    """Follows a script, and its functions where they are called."""

    def __init__(self, tree: ast.Module) -> None:
        super().__init__(tree)
        self.called: set[str] = set()
        self.statements = 0
        self._follow(tree.body)
        for name, node in self.functions.items():
            if name not in self.called:
                self._enter_uncalled(node)

    def statement(self, node: ast.stmt) -> None:
        """Follows a statement."""
        self.statements += 1
        if self.statements > _MOST_STATEMENTS:
            raise InputError(f"line {node.lineno}: more than {_MOST_STATEMENTS:,} statements to follow")
        if not isinstance(node, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef):
            named = (inner for inner in ast.walk(node) if isinstance(inner, ast.NamedExpr))
            self._lose((inner.target for inner in named), f"a := (line {node.lineno})")
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                self.known[node.name] = Unknown()
            case ast.ClassDef():
                self._class(node)
            case ast.If():
                self._choose(node)
            case ast.With():
                self._look(node.items)
                self._follow(node.body)
            case ast.Try():
                self._follow([*node.body, *node.orelse])
                for handler in node.handlers:
                    self._maybe(node, handler.body, "an error in try")
                self._follow(node.finalbody)
            case ast.For() | ast.While():
                test = ast.unparse(node.iter if isinstance(node, ast.For) else node.test)
                targets = [node.target] if isinstance(node, ast.For) else []
                self._lose([*targets, *node.body], f"{test} (line {node.lineno})")
                self._maybe(node, node.body, test)
                self._maybe(node, node.orelse, test)
            case ast.Return():
                raise _Returned(None if node.value is None else self.value(node.value))
            case ast.Import() | ast.ImportFrom():
                self._import(node)
            case _:
                self._look([node])
                super().statement(node)

    def _follow(self, body: Iterable[ast.stmt]) -> None:
        for node in body:
            self.statement(node)

    def _class(self, node: ast.ClassDef) -> None:
        """The body of a class is run where it is defined: its calls are met, and its names are those of the class."""
        outside, self.known = self.known, dict(self.known)
        self._follow(node.body)
        body, self.known = self.known, outside
        inner = [
            it
            for statement in node.body
            if not isinstance(statement, ast.ClassDef | ast.FunctionDef)
            for it in ast.walk(statement)
        ]
        names = {it.id for it in inner if isinstance(it, ast.Name) and isinstance(it.ctx, ast.Store)}
        names |= {it.name for it in node.body if isinstance(it, ast.ClassDef | ast.FunctionDef)}
        is_plain = not (node.bases or node.keywords or node.decorator_list)
        attributes = Attributes((name, body.get(name, Unknown())) for name in names)
        self.known[node.name] = attributes if is_plain else Unknown()

    def _import(self, node: ast.Import | ast.ImportFrom) -> None:
        for alias in node.names:
            name, module = alias.asname or alias.name, ""
            if isinstance(node, ast.ImportFrom):
                module = f"{node.module or ''}."
            elif not alias.asname:
                name = alias.name.partition(".")[0]
                self.origin[name] = name
                continue
            self.origin[name] = f"{module}{alias.name}"
            if name == "*" and module.endswith("lr_scheduler."):
                self.origin.update({it: f"{module}{it}" for it in OF_TORCH})
        super().statement(node)

    def _look(self, nodes: Iterable[ast.AST]) -> None:
        """Finds the calls in expressions that nothing else evaluates: arguments of another call."""
        for node in nodes:
            calls = [inner for inner in ast.walk(node) if isinstance(inner, ast.Call)]
            for call in calls:
                self._lose_in_table(call, alone=isinstance(node, ast.Expr) and node.value is call)
            for call in calls:
                self.value(call)

    def _lose_in_table(self, call: ast.Call, *, alone: bool) -> None:
        """What a method may change in a table is not known; `table.update(...)` of literals, as a statement, is followed."""
        if not isinstance(call.func, ast.Attribute) or call.func.attr not in _CHANGES:
            return
        table, named = self.value(call.func.value), {word.arg for word in call.keywords}
        is_update = call.func.attr == "update"
        known = None not in named and all(isinstance(self.value(it), dict) for it in call.args)
        if not isinstance(table, dict) or (is_update and alone and known):
            return
        key = self.value(call.args[0]) if call.args else None
        if is_update and not call.args and None not in named:
            names = named
        elif isinstance(key, str):
            names = {key}
        else:
            names = {*table, *(OPEN if call.func.attr in ("update", "setdefault") else ())}
        why = f"may be changed by {ast.unparse(call)[:60]} (line {call.lineno})"
        table.update(dict.fromkeys(names, Unknown(why=why)))

    def value(self, node: ast.expr) -> Any:
        """Of an expression."""
        if isinstance(node, ast.IfExp) and isinstance(
            test := self.value(node.test), bool | int | float | str | None
        ):
            return self.value(node.body if test else node.orelse)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            inside = self.value(node.operand)
            return not inside if isinstance(inside, bool | int) else Unknown()
        if isinstance(node, ast.Compare | ast.BoolOp):
            return self._truth(node)
        if isinstance(node, ast.Attribute):
            if ast.unparse(node.value).rpartition(".")[2] in _MEMBERS:
                return node.attr.lower()
            holder = self.value(node.value)
            if isinstance(holder, Defaults) and node.attr in holder:
                self.defaults[node.attr] = holder[node.attr]
        found = super().value(node)
        if isinstance(node, ast.Dict) and isinstance(found, dict):
            if isinstance(it := found.get("scheduler"), dict):
                self.intervals[id(it)] = found.get("interval", "epoch")
            for key in ("scheduler", "lr_scheduler"):
                self.ask_schedule(node, found.get(key))
        return found

    def _truth(self, node: ast.Compare | ast.BoolOp) -> Any:
        """Of a comparison of two numbers or texts, and of `and` and `or`, which one known side may decide."""
        if isinstance(node, ast.BoolOp):
            sides = [self.value(item) for item in node.values]
            decides = isinstance(node.op, ast.Or)
            if any(it is decides for it in sides):
                return decides
            return (
                not decides if all(it is not decides and isinstance(it, bool) for it in sides) else Unknown()
            )
        left, right = self.value(node.left), self.value(node.comparators[0])
        compare = _COMPARED.get(type(node.ops[0]))
        alike = isinstance(left, int | float) and isinstance(right, int | float)
        if (
            len(node.ops) > 1
            or compare is None
            or not (alike or (isinstance(left, str) and isinstance(right, str)))
        ):
            return Unknown()
        return compare(left, right)

    def _choose(self, node: ast.If) -> None:
        test = ast.unparse(node.test)
        answer = True if "__name__" in test else self.value(node.test)
        if isinstance(answer, bool | int | float | str | None):
            self._follow(node.body if answer else node.orelse)
            return
        self._maybe(node, node.body, test)
        self._maybe(node, node.orelse, f"not {test}")

    def _maybe(self, node: ast.stmt, body: list[ast.stmt], test: str) -> None:
        """Statements that run under a condition: what they set is not known behind them."""
        why = f"{test} (line {node.lineno})"
        held = self.known
        self.known = copy.deepcopy(held)
        self.when.append(why)
        with suppress(_Returned):
            self._follow(body)
        self.when.pop()
        after, self.known = self.known, held
        for name, table in held.items():
            _lose_changes(table, after.get(name), f"depends on {why}")
        self._lose(body, why)

    def _lose(self, nodes: Iterable[ast.AST], why: str) -> None:
        """What statements set that may run, or not, or often, is not known."""
        for inner in (it for node in nodes for it in ast.walk(node)):
            if isinstance(inner, ast.Name | ast.Attribute | ast.Subscript) and isinstance(
                inner.ctx, ast.Store
            ):
                self.assign(inner, Unknown(why=f"depends on {why}"))
            elif (
                isinstance(inner, ast.Call) and setter(inner) and isinstance(of := self._holder(inner), dict)
            ):
                of |= {key: Unknown(why=f"depends on {why}") for _, key, _ in SETTERS[setter(inner)]}

    def _enter_uncalled(self, function: ast.FunctionDef) -> None:
        """Follows a function that somebody else may call: what it changes in settings made outside of it is not known."""
        outside = [(made.settings, copy.deepcopy(made.settings)) for made in self.made.values()]
        self.enter(function, {})
        why = f"is set in {function.name} (line {function.lineno}), which this file does not call"
        for settings, before in outside:
            _lose_changes(settings, before, why)

    def enter(self, function: ast.FunctionDef, given: dict[str, Any]) -> Any:
        """Follows a function to its return."""
        if self.depth >= _DEEPEST:
            return Unknown()
        self.called.add(function.name)
        self.depth += 1
        held, arguments = self.known, function.args
        self.known = dict(held)
        names = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
        defaults = [
            *[None] * (len(arguments.posonlyargs) + len(arguments.args) - len(arguments.defaults)),
            *arguments.defaults,
        ]
        for name, default in zip(names, [*defaults, *arguments.kw_defaults], strict=True):
            fallback = (
                Unknown(why=f"is an argument of {function.name}") if default is None else self.value(default)
            )
            self.known[name.arg] = given.get(name.arg, fallback)
        found: Any = None
        try:
            self._follow(function.body)
        except _Returned as returned:
            found = returned.value
        self.known = held
        self.depth -= 1
        return found


def _lose_changes(table: Any, other: Any, why: str) -> None:
    """Makes what differs in another table not known."""
    if isinstance(table, dict) and isinstance(other, dict):
        for key in {*table, *other}:
            if repr(table.get(key)) != repr(other.get(key)):
                table[key] = Unknown(why=why)
