"""Braces of a command, such as `--lr {lr}`, filled with the columns of a plan."""

import re
from collections.abc import Iterator, Sequence
from typing import Any

from isobatch import _core
from isobatch.errors import InputError
from isobatch.planning.handed import DECISIONS, parts, value_text
from isobatch.planning.plan import Plan
from isobatch.words import nearest

_BRACES = re.compile(r"(?<![${])(\{+)([A-Za-z_]\w*)(\}+)")
"""A name in braces; the shell's `${NAME}` is none of ours."""
_NUMBERED = re.compile(r"(?:batch|bsz?\b|accum)[\w.-]*[ =]\d", re.IGNORECASE)
"""A possible flag of a batch or an accumulation, with a number: only then its reader is imported."""
_OF_A_SPLIT = ("micro_batch", "accumulation", "rank_batch", "passes")
"""Names of braces whose numbers are the same on every rank only where the split is even."""
_OF_A_STEP = (
    *("lr", "warmup_steps", "warmup_lr", "min_lr", "weight_decay", "momentum", "beta1", "beta2", "eps"),
    "ema_decay",
)
"""Names of braces that have another value where the batch is another."""
_ACCUMULATED = ("accumulation", "passes", "rank_batch", "effective_batch")
"""Names of braces that say or imply the accumulation."""


def names_in(words: Sequence[str]) -> set[str]:
    """Lists the names in braces, but for doubled ones."""
    braces = (brace for word in words for brace in _BRACES.finditer(word))
    return {brace[2] for brace in braces if len(brace[1]) % 2 == 1 and len(brace[3]) >= len(brace[1])}


def says_split(words: Sequence[str]) -> bool:
    """Tells whether a brace has a part of the split or another decision, and so all of them."""
    return not names_in(words).isdisjoint((*DECISIONS, *_OF_A_SPLIT))


def refuse_other_split(words: Sequence[str], plan: Plan) -> None:
    """Refuses typed numbers of another batch or accumulation than the plan's: the command would train it."""
    if not _NUMBERED.search(" ".join(words)) or plan.micro_batch is None or plan.accumulation is None:
        return
    from isobatch.launch.words import given_settings
    from isobatch.tools.unread import guess_field

    batches = (plan.micro_batch, plan.micro_batch * plan.accumulation, plan.effective_batch)
    planned = {
        "accumulation": ("{accumulation}", (plan.accumulation,)),
        "batch_per_gpu": ("{micro_batch}", batches),
        "batch": ("{micro_batch}", batches),
        "effective_batch": ("{effective_batch}", (plan.effective_batch,)),
    }
    for setting in given_settings(words):
        brace, values = planned.get(guess_field(setting.name) or "", ("", ()))
        if brace and str(setting.value).isdigit() and int(setting.value) not in values:
            flag = words[setting.at].partition("=")[0]
            raise InputError(
                f"{flag} {setting.value} is not this plan's (micro-batch {plan.micro_batch} × accumulation "
                f"{plan.accumulation} × {plan.data_parallel} replicas): write {flag} {brace}, or leave it "
                "out if the script reads ISOBATCH_PLAN",
                field=flag,
            )


def brace_notes(words: Sequence[str], plan: Plan) -> Iterator[str]:
    """Yields notes on numbers left to the script."""
    names = names_in(words)
    if not says_split(words) or any("ISOBATCH_" in word for word in words):
        return
    if names.isdisjoint(("micro_batch", "rank_batch", "effective_batch")):
        yield "no {micro_batch} is in the command: it must read its batch from ISOBATCH_PLAN itself"
    elif plan.accumulation != 1 and names.isdisjoint(_ACCUMULATED):
        yield f"no {{accumulation}} is in the command, and the plan accumulates {plan.accumulation} times"
    tuned = plan.tuned() or plan.recipe
    changed = [
        f"{{{name}}} {value_text(getattr(plan, name))} (was {value_text(getattr(tuned, name))})"
        for name in _OF_A_STEP
        if name not in names
        and getattr(tuned, name, None) is not None
        and getattr(plan, name) not in (None, getattr(tuned, name))
    ]
    if changed:
        yield f"not in the command, and other than in the tuned run: {', '.join(changed)}"


def fill_braces(words: Sequence[str], plan: Plan) -> list[str]:
    """Fills the braces of words; doubled ones stay, as single ones.

    >>> import isobatch as ib
    >>> plan = ib.plan(ib.Recipe(effective_batch=256, lr=0.1), 8)
    >>> fill_braces(["--lr={lr}", '{"batch":{micro_batch}}', "{{print}}", "${HOME}"], plan)
    ['--lr=0.1', '{"batch":32}', '{print}', '${HOME}']
    """
    columns = {name: getattr(plan, name) for name, *_ in _core.results()}
    micro_batch, accumulation, replicas, *_ = plan.layout
    further = {"rule": plan.rule, "gpus": plan.world_size, "replicas": replicas}
    further |= {"rank_batch": micro_batch * accumulation, "passes": replicas * accumulation}
    values = {**columns, **parts(plan), **further}

    def filled(brace: re.Match[str]) -> str:
        opened, name, closed = len(brace[1]), brace[2], len(brace[3])
        if closed < opened:
            return brace[0]
        text = _text(name, values, plan) if opened % 2 else name
        return "{" * (opened // 2) + text + "}" * (closed - (opened + 1) // 2)

    return [_BRACES.sub(filled, word) for word in words]


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
    return value_text(value)
