"""Finds a script's training in code, beside its arguments, for its reader to ask for.

Each construct gives the field of a recipe to ask for, and the end of a sentence on that field's setting.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from isobatch.tools.names import constant_of, last_part, line_of

if TYPE_CHECKING:
    from isobatch.tools.names import Names

CALLBACKS = {
    "GradientAccumulationScheduler": ("accumulation", "changes the accumulation by epoch"),
    "BatchSizeFinder": ("batch_per_gpu", "chooses the batch in the run"),
    "LearningRateFinder": ("lr", "chooses the learning rate in the run"),
    "BackboneFinetuning": ("lr", "gives layers a learning rate of their own"),
    "StochasticWeightAveraging": ("schedule", "ends the run at a learning rate of its own"),
    "scale_batch_size": ("batch_per_gpu", "chooses the batch in the run"),
    "lr_find": ("lr", "chooses the learning rate in the run"),
}
"""Lightning's callbacks, and methods of its Tuner, by the field that each moves."""
_OVERRIDES = {
    "get_train_dataloader": "batch_per_gpu",
    "training_step": "accumulation",
    "create_optimizer": "lr",
    "create_optimizer_and_scheduler": "lr",
    "create_scheduler": "schedule",
}
"""Methods of transformers' Trainer that a subclass may write anew."""
_OPTIMIZER = re.compile(r"opt|scaler|engine|^o$", re.IGNORECASE)
_SCHEDULER = re.compile(r"sched|lr_", re.IGNORECASE)
_MAKES_SCHEDULER = re.compile(
    r"LR$|Scheduler$|Lambda|scheduler|schedule_with|lr_sched|Annealing|Cycl|Plateau"
)
_HARMLESS_IF = re.compile(r"scaler|amp|fp16|half|mixed|finite|isnan|isinf|None|training|sync_gradients")
"""Conditions of a step on the precision or on a gradient that is no number, not on the micro-batch."""


class Construct(NamedTuple):
    """A construct: the field of a recipe that it may move, and what the script does."""

    field: str
    why: str


def constructs(names: Names) -> Iterator[Construct]:
    """Yields the places where code moves the batch, the accumulation, the learning rate or the schedule."""
    yield from _passes(names)
    for call in names.calls:
        last = last_part(call.func)
        if last == "step" and isinstance(call.func, ast.Attribute) and _is_elsewheres(names, call.func.value):
            name = ast.unparse(call.func)
            why = f"is not read: {name} (line {call.lineno}) is of a scheduler from elsewhere"
            yield Construct("schedule", why)
        if last in CALLBACKS:
            field, does = CALLBACKS[last]
            yield Construct(field, f"is not all: {last} (line {call.lineno}) {does}")
        elif last == "add_param_group":
            why = (
                f"is not all: add_param_group (line {call.lineno}) adds parameters with settings of their own"
            )
            yield Construct("lr", why)
    for node in names.nodes:
        name, owner = _written_anew(node)
        if name in _OVERRIDES:
            yield Construct(
                _OVERRIDES[name], f"may be another: {owner} has its own {name} (line {line_of(node)})"
            )
        elif isinstance(node, ast.ClassDef) and any(
            last_part(base).endswith("Trainer") for base in node.bases
        ):
            for method in node.body:
                name = getattr(method, "name", "")
                if name in _OVERRIDES:
                    why = f"may be another: {node.name} has its own {name} (line {line_of(method)})"
                    yield Construct(_OVERRIDES[name], why)
        elif _sets_rate(node) and names.has_groups:
            yield Construct("lr", f"is not all: {ast.unparse(node)} is set in line {line_of(node)}")


def _written_anew(node: ast.AST) -> tuple[str, str]:
    """Returns a node's new method of a class or an object, and the owner; else two empty texts."""
    if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
        return node.attr, ast.unparse(node.value)
    if isinstance(node, ast.keyword) and isinstance(node.value, ast.Lambda | ast.Name):
        return node.arg or "", "a class"
    return "", ""


def _sets_rate(node: ast.AST) -> bool:
    """Tells whether a node sets `group["lr"]`."""
    is_set = isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store)
    return is_set and constant_of(getattr(node, "slice", None)) == "lr"


def _is_elsewheres(names: Names, holder: ast.expr) -> bool:
    """Tells whether a scheduler comes from elsewhere: an import, an argument, or prepared."""
    if not isinstance(holder, ast.Name) or not _SCHEDULER.search(holder.id):
        return False
    if any(_MAKES_SCHEDULER.search(last_part(call.func)) for call in names.calls):
        return False
    return not any(
        isinstance(around := names.above.get(binding), ast.Assign) and around.targets == [binding]
        for binding in names.bindings.get(holder.id, ())
    )


def _passes(names: Names) -> Iterator[Construct]:
    """Yields signs of other passes in a step than by the arguments."""
    for node in names.nodes:
        targets = map(last_part, node.targets) if isinstance(node, ast.Assign) else ()
        if "automatic_optimization" in targets and constant_of(getattr(node, "value", None)) is False:
            why = f"is not used: the optimization is manual (line {line_of(node)})"
            yield Construct("accumulation", why)
            return
    places = {kind: [_Place(names, call) for call in calls] for kind, calls in _calls(names).items()}
    steps, passes = places["step"], places["backward"]
    if not steps or not passes:
        return
    if any(place.accumulates for place in (*steps, *passes)):
        return
    for step in steps:
        beside = [each for each in passes if each.function is step.function]
        reasons = [_apart(step, each) for each in beside] or ["is in another function than backward()"]
        if all(reasons):
            name, line = ast.unparse(step.call.func), step.call.lineno
            yield Construct("accumulation", f"is not all: {name} (line {line}) {reasons[0]}")
            return
    if any(last_part(call.func) == "no_sync" for call in names.calls):
        yield Construct("accumulation", "is not all: no_sync() accumulates by hand")
    elif (declared := _declared(names)) is not None:
        yield Construct("accumulation", f"(line {declared.lineno}) has no accumulate() around a pass")


def _declared(names: Names) -> ast.Call | None:
    """Finds an Accelerator with an accumulation, in effect by `accumulate()` alone."""
    for call in names.calls:
        for word in call.keywords if last_part(call.func) == "Accelerator" else ():
            if (word.arg or "").startswith("gradient_accumulation") and constant_of(word.value) != 1:
                return call
    return None


def _calls(names: Names) -> dict[str, list[ast.Call]]:
    """Lists the optimizers' steps and the backward passes."""
    calls: dict[str, list[ast.Call]] = {"step": [], "backward": []}
    for call in names.calls:
        last = last_part(call.func)
        holder = last_part(call.func.value) if isinstance(call.func, ast.Attribute) else ""
        if last in ("backward", "manual_backward"):
            calls["backward"].append(call)
        elif last == "step" and _OPTIMIZER.search(holder) and not _SCHEDULER.search(holder):
            calls["step"].append(call)
    return calls


class _Place:
    """Where a call stands: its function, its innermost loop, and the conditions inside that loop."""

    def __init__(self, names: Names, call: ast.Call) -> None:
        self.call, self.loop, self.function = call, None, None
        self.conditions: list[ast.If] = []
        self.accumulates = False
        loop: ast.For | ast.While | None = None
        node: ast.AST | None = call
        while node is not None:
            if isinstance(node, ast.If) and loop is None:
                self.conditions.append(node)
            elif isinstance(node, ast.For | ast.While):
                loop = loop or node
            elif isinstance(node, ast.With):
                items = [item.context_expr for item in node.items]
                self.accumulates |= any(
                    isinstance(item, ast.Call) and last_part(item.func) == "accumulate" for item in items
                )
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
                self.function = node
                break
            node = names.above.get(node)
        self.loop = loop


def _apart(step: _Place, each: _Place) -> str:
    """Says why a step is not taken once for each backward pass; empty where it is."""
    if step.loop is not each.loop:
        return "is in another loop than backward()"
    for condition in step.conditions:
        text = ast.unparse(condition.test)
        if condition not in each.conditions and not _HARMLESS_IF.search(text):
            return f"depends on {text[:60]}"
    if step.loop is not None:
        skips = [node for node in ast.walk(step.loop) if isinstance(node, ast.Continue)]
        lines = range(each.call.lineno, step.call.lineno + 1)
        if any(node.lineno in lines for node in skips):
            return "is left out by a continue behind backward()"
    return ""
