"""Configurations that are functions of a Python file, as torchtitan's since 0.3: read from the syntax tree, never called."""

from __future__ import annotations

import ast
import copy
import re
from typing import Any

from isobatch.errors import InputError, unknown
from isobatch.tools.reading.literals import UNKNOWN, Scope

_RETURNS = re.compile(r"^def \w+\([^)]*\)\s*->\s*[\w.]*Config\s*:", re.MULTILINE)


def has_functions(text: str) -> bool:
    """Whether a file has functions that return a configuration: `def llama3_8b() -> Trainer.Config:`."""
    return bool(_RETURNS.search(text))


def configuration(text: str, file: str, name: str = "") -> dict[str, Any]:
    """What one function returns, as far as it is written down: `Trainer.Config(training=TrainingConfig(steps=10))` is a table of
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
    legal = [
        key
        for key, node in functions.items()
        if node.returns and ast.unparse(node.returns).endswith("Config")
    ]
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
    found = _returned(functions, name or legal[0], outer.known, ())
    if not isinstance(found, dict):
        raise InputError(f"{name or legal[0]} returns nothing that is written down in it", file=file)
    return found


def _returned(
    functions: dict[str, ast.FunctionDef], name: str, known: dict[str, Any], callers: tuple[str, ...]
) -> Any:
    """What a function returns; one that starts from another's configuration starts from what that returns."""

    def call(called: str, given: list[Any], named: dict[str, Any]) -> Any:
        if called in functions and not given and not named and not functions[called].args.args:
            if called in (*callers, name):
                raise InputError(f"{called} calls itself")
            return _returned(functions, called, known, (*callers, name))
        return _table(called, given, named)

    scope = Scope(copy.deepcopy(known), call)
    for node in functions[name].body:
        if isinstance(node, ast.Return):
            return UNKNOWN if node.value is None else scope.value(node.value)
        scope.statement(node)
    return UNKNOWN


def _table(called: str, given: list[Any], named: dict[str, Any]) -> Any:
    """A call that only sets fields by name is a table of them. A function of another file, which takes none, is a table that says
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
