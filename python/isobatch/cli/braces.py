"""Braces of a command, such as `--lr {lr}`, filled with the columns of a plan."""

import re
from collections.abc import Sequence
from typing import Any

from isobatch import _core
from isobatch.errors import InputError
from isobatch.planning.handed import parts
from isobatch.planning.plan import Plan
from isobatch.words import nearest

_BRACES = re.compile(r"(?<![${])(\{+)([A-Za-z_]\w*)(\}+)")
"""A name in braces; the shell's `${NAME}` is none of ours."""
_OF_A_SPLIT = ("micro_batch", "accumulation", "rank_batch", "passes")
"""Names of braces whose numbers are the same on every rank only where the split is even."""


def has_braces(words: Sequence[str]) -> bool:
    """Tells whether a name in braces is in the words."""
    return any(map(_BRACES.search, words))


def fill_braces(words: Sequence[str], plan: Plan) -> list[str]:
    """Fills the braces of words; doubled ones stay, as single ones.

    Raises:
        InputError: no column has such a name, or the plan has no value there.

    >>> import isobatch as ib
    >>> plan = ib.plan(ib.Recipe(effective_batch=256, lr=0.1), 8)
    >>> fill_braces(["--lr={lr}", '{"batch":{micro_batch}}', "{{print}}", "${HOME}"], plan)
    ['--lr=0.1', '{"batch":32}', '{print}', '${HOME}']
    """
    values = _values(plan)

    def filled(brace: re.Match[str]) -> str:
        opened, name, closed = len(brace[1]), brace[2], len(brace[3])
        if closed < opened:
            return brace[0]
        text = _text(name, values, plan) if opened % 2 else name
        return "{" * (opened // 2) + text + "}" * (closed - (opened + 1) // 2)

    return [_BRACES.sub(filled, word) for word in words]


def _values(plan: Plan) -> dict[str, Any]:
    """Returns the columns of a plan, and the further braces of `isobatch same`."""
    micro, accumulation, replicas, *_ = plan.layout
    columns = {name: getattr(plan, name) for name, *_ in _core.results()}
    also = {"gpus": plan.world_size, "rank_batch": micro * accumulation, "passes": replicas * accumulation}
    return {**columns, **parts(plan), "rule": plan.rule, **also}


def _text(name: str, values: dict[str, Any], plan: Plan) -> str:
    brace = f"{{{name}}}"
    if name not in values:
        close = nearest(name, values)
        hint = f"did you mean {{{close}}}?" if close else "a plan has no such column."
        raise InputError(f"unknown brace {brace}: {hint} To hand on {brace} itself, write {{{brace}}}")
    value = values[name]
    if value is None:
        raise InputError(f"{brace} has no value: this plan does not know {name} (isobatch plan says why)")
    if name in _OF_A_SPLIT and plan.layout.irregular:
        raise InputError(
            f"{brace} is not the same on all ranks under split {plan.settings.split!r}, and each loss needs "
            "its weight: train with ElasticRun.from_env(), or plan with --batch-tolerance"
        )
    return ";".join(map(str, value)) if isinstance(value, tuple) else str(value)
