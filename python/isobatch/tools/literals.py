"""Configurations that functions of a Python file return, as torchtitan's; nothing is executed."""

import ast
import re
from typing import Any

from isobatch.errors import InputError, unknown
from isobatch.tools.calls import Script
from isobatch.tools.page import UNKNOWN

_RETURNS = re.compile(r"^def \w+\([^)]*\)\s*->\s*[\w.]*Config\s*:", re.MULTILINE)


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
    outer = [node for node in tree if not isinstance(node, ast.FunctionDef)]
    table = _Function(outer, functions, name or legal[0], ()).table()
    if not isinstance(table, dict):
        raise InputError(f"{name or legal[0]} returns nothing that is written down in it", file=file)
    return table


def python_literals(text: str, file: str) -> dict[str, Any]:
    """Reads the literals assigned in a file.

    >>> python_literals("base = 4\\ntrain = dict(batch_size=base, lr=0.1 * 2)\\nx = open('a')", "a.py")
    {'base': 4, 'train': {'batch_size': 4, 'lr': 0.2}, 'x': <is x (line 3), which cannot be read from the script>}
    """
    script = Script(ast.parse(text, file))
    names = {
        name: node for name, nodes in script.bound.items() for node in nodes if isinstance(node, ast.Name)
    }
    return {name: script.said(ast.Name(name, ast.Load(), lineno=node.lineno)) for name, node in names.items()}


class _Function(Script):
    """A function with the names of its file: a call with named fields alone is a table of them."""

    def __init__(
        self, outer: list[ast.stmt], functions: dict[str, ast.FunctionDef], own: str, callers: tuple[str, ...]
    ) -> None:
        if own in callers:
            raise InputError(f"{own} calls itself")
        self.outer, self.functions, self.callers = outer, functions, (*callers, own)
        self.body = functions[own].body
        super().__init__(ast.Module([*outer, *self.body], []))

    def table(self) -> Any:
        """What the function returns, with what its statements change in it."""
        returns = [node for node in self.nodes if isinstance(node, ast.Return)]
        if len(returns) != 1 or returns[0] is not self.body[-1] or returns[0].value is None:
            return UNKNOWN
        value = returns[0].value
        if not isinstance(value, ast.Name):
            return self.value(value)
        bound = self.bound.get(value.id, [])
        table = self.bound_value(bound[0]) if len(bound) == 1 else UNKNOWN
        if not isinstance(table, dict):
            return UNKNOWN
        for read in self.loads[value.id]:
            target: ast.AST = read
            while isinstance(self.above[id(target)], ast.Attribute):
                target = self.above[id(target)]
            statement = self.above[id(target)]
            if isinstance(statement, ast.Assign) and [target] == statement.targets and target is not read:
                new = self.said(statement.value) if statement in self.body else UNKNOWN
                _put(table, ast.unparse(target).split(".")[1:], new)
            elif statement is not returns[0]:
                return UNKNOWN
        return table

    def call(self, node: ast.Call) -> Any:
        """A function of the file is followed; one of another file, which takes nothing, is a table that says whose it is."""
        full = ast.unparse(node.func)
        last = full.rpartition(".")[2]
        if full in self.functions and not (node.args or node.keywords or self.functions[full].args.args):
            return _Function(self.outer, self.functions, full, self.callers).table()
        fields = self.keywords(node, "")
        if last == "default_adamw" and len(node.args) == 1:
            return {"lr": self.said(node.args[0]), **fields}
        if node.args:
            return UNKNOWN
        return {"_from_": [f"{last}()"]} if not fields and last.islower() else fields


def _put(table: dict[str, Any], path: list[str], value: Any) -> None:
    """Sets a part of a table; one that is not known stays so."""
    for name in path[:-1]:
        inner = table.setdefault(name, {})
        if not isinstance(inner, dict):
            return
        table = inner
    table[path[-1]] = value
