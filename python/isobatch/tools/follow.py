"""Follows a Python script without executing it, statement by statement: functions where they are called, and what a condition leaves open."""

import ast
import copy
import operator
from collections.abc import Callable, Iterable
from typing import Any

from isobatch.errors import InputError
from isobatch.tools.calls import Attributes, CallScope, Defaults, lose, names_bound
from isobatch.tools.page import Unknown
from isobatch.tools.signatures import OF_TORCH, OPEN, SETTERS, setter

_MEMBERS = ("SchedulerType", "OptimizerNames", "IntervalStrategy")
_COMPARED: dict[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Gt: operator.gt, ast.GtE: operator.ge, ast.Lt: operator.lt, ast.LtE: operator.le, ast.Eq: operator.eq, ast.NotEq: operator.ne,
}  # fmt: skip
_CHANGES = (
    "update", "pop", "popitem", "clear", "setdefault", "append", "extend", "insert", "remove", "reverse", "sort",
    "__setitem__", "__delitem__", "__ior__", "__iadd__", "__setattr__", "__delattr__", "delattr", "setitem", "delitem",
)  # fmt: skip
"""Methods of a table, a list or an object, and functions that do the same."""
_SOMETIMES = (ast.IfExp, ast.BoolOp, ast.Lambda, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
"""Expressions with parts that may not run, or run often."""
_PLAIN = (bool, int, float, str, type(None))
"""Kinds of values that are true or false as Python has it."""
_MOST_STATEMENTS, _DEEPEST = 2_000, 20


class _Returned(Exception):
    def __init__(self, value: Any) -> None:
        self.value = value


class Script(CallScope):
    """Follows a script, and its functions where they are called."""

    def __init__(self, tree: ast.Module) -> None:
        super().__init__(tree)
        self.called: set[int] = set()
        self.statements = 0
        self.may_return = False
        self.top = {id(node) for node in tree.body}
        self.known["__name__"] = "__main__"
        self.outer = self.known
        self._follow(tree.body)
        functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
        for node in functions:
            if id(node) not in self.called:
                around = [it for it in functions if it is not node and node in ast.walk(it)]
                self._enter_uncalled(node, {name for it in around for name in names_bound(it)})

    def statement(self, node: ast.stmt) -> None:
        """Follows a statement."""
        self.statements += 1
        if self.statements > _MOST_STATEMENTS:
            raise InputError(f"line {node.lineno}: more than {_MOST_STATEMENTS:,} statements to follow")
        if not isinstance(node, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef):
            named = (inner for inner in ast.walk(node) if isinstance(inner, ast.NamedExpr))
            self._lose((inner.target for inner in named), f"a := (line {node.lineno})")
        outside, self.values = self.values, {}
        try:
            self._statement(node)
        finally:
            self.values = outside

    def _statement(self, node: ast.stmt) -> None:
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                self.known[node.name] = Unknown()
            case ast.ClassDef():
                self._class(node)
            case ast.If():
                self._choose(node)
            case ast.With() | ast.AsyncWith():
                self._look(node.items)
                held = ", ".join(map(ast.unparse, node.items))
                names = [it.optional_vars for it in node.items if it.optional_vars is not None]
                self._lose(names, f"{held} (line {node.lineno})")
                if "suppress" in held:
                    self._maybe(node, node.body, "no error is suppressed")
                else:
                    self._follow(node.body)
            case ast.Try() | ast.TryStar():
                if node.handlers:
                    self._maybe(node, [*node.body, *node.orelse], "no error in try")
                else:
                    self._follow(node.body)
                for handler in node.handlers:
                    self._maybe(node, handler.body, "an error in try")
                self._follow(node.finalbody)
            case ast.For() | ast.While():
                head = node.iter if isinstance(node, ast.For) else node.test
                self._look([head])
                test = ast.unparse(head)
                targets = [node.target] if isinstance(node, ast.For) else []
                self._lose([*targets, *node.body], f"{test} (line {node.lineno})")
                self._maybe(node, node.body, test)
                self._maybe(node, node.orelse, test)
            case ast.Return():
                self._look([node])
                found = None if node.value is None else self.value(node.value)
                if isinstance(found, list) and [isinstance(it, list) for it in found] == [True, True]:
                    self.ask_schedule(node, next((it for it in found[1] if isinstance(it, Unknown)), None))
                raise _Returned(found)
            case ast.Import() | ast.ImportFrom():
                self._import(node)
            case _:
                self._look([node])
                if isinstance(node, ast.AugAssign):
                    lose(self.value(node.target), f"may be changed in line {node.lineno}")
                super().statement(node)

    def _follow(self, body: Iterable[ast.stmt]) -> None:
        rest = list(body)
        while rest and not self.may_return:
            self.statement(rest.pop(0))
        if rest:
            self._maybe(rest[0], rest, "nothing returned before")

    def _class(self, node: ast.ClassDef) -> None:
        """The body of a class is run where it is defined: its calls are met, and its names are those of the class."""
        outside, self.known = self.known, dict(self.known)
        self._follow(node.body)
        body, self.known = self.known, outside
        inner = [it for it in node.body if isinstance(it, ast.ClassDef | ast.FunctionDef)]
        names = {it.name for it in inner}
        for it in (it for statement in node.body if statement not in inner for it in ast.walk(statement)):
            if isinstance(it, ast.Name) and isinstance(it.ctx, ast.Store):
                names.add(it.id)
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
            sometimes = [inner for inner in ast.walk(node) if isinstance(inner, _SOMETIMES)]
            bound = {name for inner in sometimes for name in names_bound(inner)}
            held = self.known
            if bound:
                self.known = {**held, **dict.fromkeys(bound, Unknown())}
            inside = {id(it) for inner in sometimes for it in ast.walk(inner)}
            for call in calls:
                last = ast.unparse(call.func).rpartition(".")[2]
                if ast.unparse(call.func) not in self.functions or id(call) in inside:
                    self._lose(self._reached(call.func), f"{last}() (line {call.lineno})", names=False)
                    if last in self.functions:
                        self.values[id(call)] = Unknown()
                self._lose_in_table(call, alone=isinstance(node, ast.Expr) and node.value is call)
            for call in calls:
                self.value(call)
            self.known = held

    def _reached(self, call: ast.expr) -> list[ast.FunctionDef]:
        """Functions that a call may run, and those that these call; a function at the top is no method."""
        found, called = dict[int, ast.FunctionDef](), [call]
        while called:
            one = called.pop()
            for function in self.every.get(ast.unparse(one).rpartition(".")[2], ()):
                is_method = isinstance(one, ast.Attribute)
                if id(function) not in found and not (is_method and id(function) in self.top):
                    found[id(function)] = function
                    called += [it.func for it in ast.walk(function) if isinstance(it, ast.Call)]
        return list(found.values())

    def _lose_in_table(self, call: ast.Call, *, alone: bool) -> None:
        """What a method may change in a table is not known; `table.update(...)` of literals, as a statement, is followed."""
        last = ast.unparse(call.func).rpartition(".")[2]
        why = f"may be changed by {ast.unparse(call)[:60]} (line {call.lineno})"
        table = self.value(call.func.value) if isinstance(call.func, ast.Attribute) else None
        made = self.value(call.func) if self.every.get(last) else None
        if isinstance(made, Attributes):
            lose(made, why)
        if isinstance(table, Attributes) and (last in _CHANGES or last in self.every):
            lose(table, why)
        if last not in _CHANGES:
            return
        if not isinstance(table, dict | list):  # dict.update(table, …)
            lose(self.value(call.args[0]) if call.args else None, why)
        if isinstance(table, list):
            lose(table, why)
        if not isinstance(call.func, ast.Attribute):
            return
        named = {word.arg for word in call.keywords}
        is_update, is_named = call.func.attr == "update", None not in named
        known = is_named and all(type(self.value(it)) is dict for it in call.args)
        if not isinstance(table, dict) or (is_update and alone and known):
            return
        key = self.value(call.args[0]) if call.args else None
        may_add = OPEN if call.func.attr in ("update", "setdefault") else ()
        names = {key} if isinstance(key, str) else {*table, *may_add}
        if is_update and not call.args and is_named:
            names = named
        table.update(dict.fromkeys(names, Unknown(why=why)))

    def value(self, node: ast.expr) -> Any:
        """Of an expression."""
        if isinstance(node, ast.IfExp) and isinstance(test := self.value(node.test), _PLAIN):
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
            if node.attr == "__dict__":
                return holder
            if isinstance(holder, Defaults) and node.attr in holder:
                self.defaults[node.attr] = holder[node.attr]
        found = super().value(node)
        if found is None and isinstance(node, ast.Attribute | ast.Subscript):
            holder, key = self.value(node.value), self.key(node)
            return None if isinstance(holder, list) or key in holder else Unknown()  # left at its default
        if isinstance(node, ast.Dict) and isinstance(found, dict):
            if isinstance(it := found.get("scheduler"), dict):
                self.intervals[id(it)] = found.get("interval", "epoch")
            for key in ("scheduler", "lr_scheduler"):
                self.ask_schedule(node, found.get(key))
        return found

    def _truth(self, node: ast.Compare | ast.BoolOp) -> Any:
        """Of a comparison of two numbers or texts, and of `and` and `or`, which one known side may decide."""
        if isinstance(node, ast.BoolOp):
            for side in map(self.value, node.values):
                if not isinstance(side, _PLAIN):
                    return Unknown()
                if bool(side) is isinstance(node.op, ast.Or):
                    break
            return side
        left, right = self.value(node.left), self.value(node.comparators[0])
        compare = _COMPARED.get(type(node.ops[0]))
        alike = isinstance(left, int | float) and isinstance(right, int | float)
        alike |= isinstance(left, str) and isinstance(right, str)
        return compare(left, right) if compare and alike and len(node.ops) == 1 else Unknown()

    def _choose(self, node: ast.If) -> None:
        test = ast.unparse(node.test)
        self._look([node.test])
        answer = self.value(node.test)
        if isinstance(answer, _PLAIN):
            self._follow(node.body if answer else node.orelse)
            return
        self._maybe(node, node.body, test)
        self._maybe(node, node.orelse, f"not {test}")

    def _maybe(self, node: ast.stmt, body: list[ast.stmt], test: str) -> None:
        """Statements that run under a condition: what they set is not known behind them."""
        why = f"{test} (line {node.lineno})"
        held, returns = (self.known, self.outer), self.may_return
        (self.known, self.outer), self.may_return = copy.deepcopy(held), False
        self.when.append(why)
        try:
            self._follow(body)
        except _Returned:
            self.may_return = True
        self.when.pop()
        after = self.known, self.outer
        (self.known, self.outer), self.may_return = held, self.may_return or returns
        for before, behind in zip(held, after, strict=True):
            _lose_changes(before, behind, f"depends on {why}")
        self._lose(body, why)

    def _lose(self, nodes: Iterable[ast.AST], why: str, *, names: bool = True) -> None:
        """What statements set that may run, or not, or often, is not known."""
        for inner in (it for node in nodes for it in ast.walk(node)):
            kinds = (ast.Name, ast.Attribute, ast.Subscript) if names else (ast.Attribute, ast.Subscript)
            if isinstance(inner, kinds) and not isinstance(inner.ctx, ast.Load):
                self.assign(inner, Unknown(why=f"depends on {why}"))
            if not isinstance(inner, ast.Call):
                continue
            last = ast.unparse(inner.func).rpartition(".")[2]
            if names:
                self._lose(self._reached(inner.func), why, names=False)
            if setter(inner) and isinstance(of := self._holder(inner), dict):
                of |= {key: Unknown(why=f"depends on {why}") for _, key, _ in SETTERS[setter(inner)]}
            elif last in _CHANGES:
                of = [inner.func.value] if isinstance(inner.func, ast.Attribute) else []
                for it in (*of, *inner.args[:1]):
                    lose(self.value(it), f"depends on {why}")

    def _enter_uncalled(self, function: ast.FunctionDef, around: set[str]) -> None:
        """Follows a function that somebody else may call: what it changes in settings made outside of it is not known."""
        outside = [(made.settings, copy.deepcopy(made.settings)) for made in self.made.values()]
        held, self.outer = self.outer, {**self.outer, **dict.fromkeys(around, Unknown())}
        self.enter(function, {})
        self.outer = held
        why = f"is set in {function.name} (line {function.lineno}), which this file does not call"
        for settings, before in outside:
            _lose_changes(settings, before, why)

    def enter(self, function: ast.FunctionDef, given: dict[str, Any]) -> Any:
        """Follows a function to its return."""
        if self.depth >= _DEEPEST:
            return Unknown()
        self.called.add(id(function))
        self.depth += 1
        held, returns, arguments = self.known, self.may_return, function.args
        self.known, self.may_return = dict(self.outer), False
        self.known.update({it.arg: Unknown() for it in (arguments.vararg, arguments.kwarg) if it is not None})
        names = [*arguments.posonlyargs, *arguments.args]
        required: list[None] = [None] * (len(names) - len(arguments.defaults))
        defaults = [*required, *arguments.defaults, *arguments.kw_defaults]
        for name, default in zip([*names, *arguments.kwonlyargs], defaults, strict=True):
            unknown = Unknown(why=f"is an argument of {function.name}")
            fallback = unknown if default is None else self.value(default)
            self.known[name.arg] = given.get(name.arg, fallback)
        found: Any = None
        try:
            self._follow(function.body)
        except _Returned as returned:
            found = returned.value
        if self.may_return:
            found = Unknown(why=f"is what {function.name} returns under a condition")
        self.known, self.may_return = held, returns
        self.depth -= 1
        return found


def _lose_changes(table: dict[str, Any], other: dict[str, Any], why: str) -> None:
    """Makes what differs in another table not known, also where another name has it."""
    for key in {*table, *other}:
        one, two = table.get(key), other.get(key)
        if repr(one) == repr(two):
            continue
        if isinstance(one, dict) and isinstance(two, dict):
            _lose_changes(one, two, why)
        else:
            lose(one, why)
            table[key] = Unknown(why=why)
