"""Literals of a Python file: assigned ones, and those returned by a function as a configuration."""

import ast
import re
from typing import Any

from isobatch.errors import InputError, unknown
from isobatch.tools.calls import Script
from isobatch.tools.names import last_part
from isobatch.tools.page import UNKNOWN

_RETURNS = re.compile(r"^def \w+\([^)]*\)\s*->\s*[\w.]*Config\s*:", re.MULTILINE)


def has_functions(text: str) -> bool:
    """Tells whether functions of a file return a configuration: `def llama3_8b() -> Trainer.Config:`."""
    return bool(_RETURNS.search(text))


def configuration(text: str, file: str, name: str = "") -> dict[str, Any]:
    """Reads the literals returned by a function.

    `Trainer.Config(training=TrainingConfig(steps=10))` is a table of tables.

    Args:
        text: of the file.
        file: its name, for messages.
        name: of the function; may be left out where there is one.

    Raises:
        InputError: there are several functions, none of that name, or one that computes its result.

    >>> text = "def run() -> Trainer.Config:\\n    return Trainer.Config(training=Training(steps=10 * 2))"
    >>> configuration(text, "a.py")
    {'training': {'steps': 20}}
    """
    functions = {node.name: node for node in ast.parse(text, file).body if isinstance(node, ast.FunctionDef)}
    legal = [
        key
        for key, function in functions.items()
        if function.returns and ast.unparse(function.returns).endswith("Config")
    ]
    if name and name not in legal:
        raise unknown("configuration", name, legal, field="configuration").at(file=file)
    if not name and len(legal) > 1:
        listed = f"{', '.join(legal)}. Name one after a colon: {file}:{legal[0]}"
        raise InputError(f"has {len(legal)} configurations: {listed}", file=file)
    function = functions[name or legal[0]]
    table = _Function(ast.Module(function.body, [])).table()
    if not isinstance(table, dict):
        text = (
            f"{function.name} computes its configuration: give the run as a recipe, or the file that it is "
            "saved as"
        )
        raise InputError(text, file=file)
    return table


def python_literals(text: str, file: str) -> dict[str, Any]:
    """Reads the literals assigned in a file.

    >>> python_literals("base = 4\\ntrain = dict(batch=base, lr=0.1 * 2)\\nx = open('a')", "a.py")
    {'base': 4, 'train': {'batch': 4, 'lr': 0.2}, 'x': <is x (line 3), which cannot be read from the script>}
    """
    script = Script(ast.parse(text, file))
    names = {
        node.id: node.lineno
        for node in script.nodes
        if isinstance(node, ast.Name) and node.id in script.bindings
    }
    return {name: script.text_value(ast.Name(name, ast.Load(), lineno=line)) for name, line in names.items()}


class _Function(Script):
    """The body of a function: a call with named fields alone is a table of them."""

    def table(self) -> Any:
        """Returns the value of the function's only return."""
        returns = [node for node in self.nodes if isinstance(node, ast.Return)]
        return self.value(returns[0].value) if len(returns) == 1 and returns[0].value else UNKNOWN

    def call(self, node: ast.Call) -> Any:
        """Returns the named fields of a call as a table.

        torchtitan's default_adamw gives a table with its learning rate.
        """
        fields = self.keywords(node, "")
        if last_part(node.func) == "default_adamw" and len(node.args) == 1:
            return {"lr": self.text_value(node.args[0]), **fields}
        return UNKNOWN if node.args or not fields else fields
