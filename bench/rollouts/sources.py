"""Functions of a repository at a commit, compiled alone: their modules import CUDA kernels and engines."""

import __future__

import ast
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any


class Source:
    """A repository at a commit: a git directory, which may have no files checked out."""

    def __init__(self, repository: Path, commit: str) -> None:
        self.repository, self.commit = repository, commit

    def load(self, path: str, *names: str, **stubs: Any) -> SimpleNamespace:
        """Compiles the named functions and classes of a file; `stubs` are what they need of its imports.

        A method is named with its class, and becomes a function. Decorators are left out: they register.
        """
        space: dict[str, Any] = dict(stubs)
        tree = ast.parse(_show(self.repository, f"{self.commit}:{path}"))
        chosen = [node for name in names for node in [_definition(tree, name, path)]]
        module = ast.Module([_plain(node) for node in chosen], [])
        flags = __future__.annotations.compiler_flag  # annotations name what is not imported
        exec(compile(module, path, "exec", flags), space)
        return SimpleNamespace(**{name.rpartition(".")[2]: space[name.rpartition(".")[2]] for name in names})


@cache
def _show(repository: Path, place: str) -> str:
    command = ["git", "-C", str(repository), "show", place]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def _definition(tree: ast.Module, name: str, path: str) -> ast.stmt:
    body: list[ast.stmt] = tree.body
    for part in name.split("."):
        node = next(
            (node for node in body if part in _names(node)),
            None,
        )
        if node is None:
            raise SystemExit(f"{path} has no {name}")
        body = getattr(node, "body", [])
    return node


def _names(node: ast.stmt) -> Iterator[str]:
    """Yields the names that a statement defines."""
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        yield node.name
    elif isinstance(node, ast.Assign):
        yield from (target.id for target in node.targets if isinstance(target, ast.Name))


def _plain(node: ast.stmt) -> ast.stmt:
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        node.decorator_list = []
    return node
