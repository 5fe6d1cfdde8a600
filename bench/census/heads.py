"""Lists the classes of transformers with a loss, and groups those with the same loss code."""

import ast
import hashlib
import importlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import transformers

MODELS = Path(transformers.__file__).parent / "models"
ORDER = (
    "ForCausalLM",
    "ForConditionalGeneration",
    "ForMaskedLM",
    "ForTokenClassification",
    "ForQuestionAnswering",
    "ForSequenceClassification",
    "ForMultipleChoice",
    "ForImageClassification",
)
"""Kinds of heads by their class names, which share generic losses; others come first."""
TARGETS = {"start_positions", "return_loss", "future_values", "target_values", "bool_masked_pos", "targets"}
"""Arguments of a forward that a loss is made of, beside those with `label` in their names."""
GENERIC = ("GenericForSequenceClassification", "GenericForQuestionAnswering", "GenericForTokenClassification")
"""Bases of transformers that have the forward of many heads."""
PARTS = ("Loss", "PreTrainedModel", "Matcher", "SQuADHead")
"""Ends of the names of classes that are parts of a head, or bases."""
ROUTED = "+router"
"""A head's name with its balance loss of experts on."""


class Head(NamedTuple):
    """A class with a loss: its module, the key of its loss code, and whether it opts out of token counts."""

    name: str
    module: str
    code: str

    def load(self) -> Any:
        """Imports the class."""
        return getattr(importlib.import_module(self.module), self.name)

    @property
    def kind(self) -> str:
        """The kind of head by its class name."""
        return next((kind for kind in ORDER if kind in self.name), self.name)


def list_heads() -> list[Head]:
    """Lists every class whose forward computes or returns a loss, from the source."""
    paths = (path for path in sorted(MODELS.glob("*/modeling_*.py")) if "_tf_" not in path.name)
    return [*{head.name: head for path in paths for head in _heads_of(path)}.values()]


def _heads_of(path: Path) -> Iterator[Head]:
    """Yields the heads of a file; one without a forward of its own has that of its base."""
    source = path.read_text(encoding="utf-8")
    lines, codes = source.splitlines(), dict.fromkeys(GENERIC, "")
    refusing: set[str] = set()
    for node in ast.parse(source).body:
        if not isinstance(node, ast.ClassDef):
            continue
        if _refuses(node) or refusing & {ast.unparse(part) for part in node.bases}:
            refusing.add(node.name)
        if node.name.endswith(PARTS):
            continue
        forward = _forward(node)
        base = next((name for part in node.bases if (name := ast.unparse(part)) in codes), None)
        if forward is not None and _has_loss(forward, lines):
            codes[node.name] = _loss_code(node, forward, path.parent.name, refuses=node.name in refusing)
        elif forward is None and base is not None:
            codes[node.name] = codes[base] or base
        else:
            continue
        yield Head(node.name, f"transformers.models.{path.parent.name}.{path.stem}", codes[node.name])


def _has_loss(forward: ast.FunctionDef, lines: list[str]) -> bool:
    names = {argument.arg for argument in [*forward.args.args, *forward.args.kwonlyargs]}
    is_target = bool(names & TARGETS) or any("label" in name for name in names)
    return is_target and "loss" in "\n".join(lines[forward.lineno - 1 : forward.end_lineno])


def _forward(node: ast.stmt) -> ast.FunctionDef | None:
    body = node.body if isinstance(node, ast.ClassDef) else []
    return next((part for part in body if isinstance(part, ast.FunctionDef) and part.name == "forward"), None)


def _refuses(node: ast.ClassDef) -> bool:
    """Tells whether a class says itself that it refuses the Trainer's count of tokens."""
    return any(
        isinstance(part, ast.Assign) and ast.unparse(part) == "accepts_loss_kwargs = False"
        for part in node.body
    )


def _loss_code(node: ast.ClassDef, forward: ast.FunctionDef, folder: str, *, refuses: bool) -> str:
    """Hashes the lines that touch the loss or the labels, without the model's own names.

    A class that refuses the Trainer's count of tokens, or inherits that, has another key.
    """
    forward.returns, forward.decorator_list = None, []
    for argument in [*forward.args.args, *forward.args.kwonlyargs]:
        argument.annotation = None
    statements = [part for part in forward.body if not _is_text(part)]
    lines = [line.strip() for part in statements for line in ast.unparse(part).splitlines()]
    text = "\n".join(line for line in lines if re.search(r"loss|label", line))
    text = text.replace(node.name.split("For")[0], "X").replace(folder, "x")
    text = re.sub(r"self\.(\w+)\(", "self.m(", text)
    text = re.sub(r"\b[A-Z]\w+(?:Output|OutputWith\w+|With\w+)\b", "O", text)
    takes = "kwargs" if forward.args.kwarg is not None and not refuses else "none"
    kind = next((kind for kind in ORDER if kind in node.name), node.name)
    return f"{kind}:{hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()[:10]}:{takes}"


def _is_text(part: ast.stmt) -> bool:
    return isinstance(part, ast.Expr) and isinstance(part.value, ast.Constant)
