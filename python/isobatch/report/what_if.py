"""The plans of one job over GPU counts as JSON, for the slider of their page."""

from collections.abc import Sequence
from operator import attrgetter
from typing import Any, NamedTuple

import msgspec
import numpy as np

from isobatch.errors import InputError, must_be
from isobatch.fleet.counts import Counts
from isobatch.planning.explain import Explanation, Sentence, Topic
from isobatch.planning.plan import Plan
from isobatch.planning.refusal import ways
from isobatch.report.plan_page import ANSWERS, by_level, figures, refused, sentences
from isobatch.report.within import Limits
from isobatch.words import counted

MAX_CHOICES = 4_096
"""Counts that a page has plans for, all policies together twice as many."""
LIMITS = ("deadline_hours", "budget")
"""Settings that a page takes for limits, in the order of `Limits`."""
_MEANINGS = {"keep": "batch and learning rate stay", "grow": "the batch grows with the GPUs"}
_START = 8
"""GPUs that the page begins with where the tuned run's are not known: a node's."""


class WhatIf(NamedTuple):
    """All plans of a page as JSON for its script, and the choices between them, `start` GPUs first."""

    counts: Sequence[int]
    start: int
    policies: Sequence[tuple[str, str]]
    tool: str | None
    data: str


def tuned_run(counts: Counts) -> Plan | None:
    """Plans the tuned run, with its time on as many of these GPUs; None if it is not known."""
    tuned = counts.plan_at(int(counts.columns["gpus"][0])).tuned()
    if tuned is None:
        return None
    try:
        timed = counts.plan_at(tuned.world_size)
    except InputError:  # no whole nodes
        return tuned
    if timed.status == "infeasible" or timed.layout != tuned.layout or timed.hours is None:
        return tuned
    spent = {name: getattr(timed, name) for name in ("hours", "hours_error", "gpu_hours", "cost")}
    return msgspec.structs.replace(tuned, **spent)


def choices_of(policies: Sequence[Counts], limits: Limits, tool: str | None, currency: str) -> WhatIf:
    first_policy = policies[0]
    gpus = first_policy.columns["gpus"].tolist()
    if len(gpus) > MAX_CHOICES:
        raise must_be(f"at most {MAX_CHOICES:,} counts", len(gpus), field="gpus")
    if any(each.columns["gpus"].tolist() != gpus for each in policies):
        raise InputError("beside must have the same counts", field="beside")
    names = [str(each.settings.get("policy", "keep")) for each in policies]
    start = first_policy.recipe.gpus or _START
    first = int(np.argmin(np.abs(first_policy.columns["gpus"] - start)))
    node = first_policy.cluster.gpus_per_node
    by_nodes = 1 < node < gpus[-1] and all(count % node == 0 for count in gpus if count > node)
    pack = _Packer({}, limits, tool, currency)
    data = {
        "counts": gpus,
        "note": f" Above {node} GPUs: whole nodes of {node}." if by_nodes else "",
        "meet": f"meet {limits.text(currency)}" if limits.names() else "work as asked",
        "first": first,
        "policies": names,
        "plans": [list(row) for row in zip(*map(pack.choices, policies), strict=True)],
        "answers": ANSWERS,
        "texts": list(pack.numbers),
    }
    meanings = [(name, _MEANINGS.get(name, "policy")) for name in names]
    return WhatIf(gpus, gpus[first], meanings, tool, msgspec.json.encode(data).decode())


class _Packer(NamedTuple):
    """Packs plans for the page's script: level, headline, figures (label, was, now), points, ways out, lines
    to copy, and what is folded."""

    numbers: dict[str, int]
    limits: Limits
    tool: str | None
    currency: str

    def texts(self, *texts: str) -> list[int]:
        """Returns the numbers of texts: what many plans say alike is in the page once."""
        return [self.numbers.setdefault(text, len(self.numbers)) for text in texts]

    def choices(self, free: Counts) -> list[list[Any]]:
        """Packs the plan of each count under one policy, given without limits."""
        limits = {name: limit for name, limit in zip(LIMITS, self.limits, strict=True) if limit is not None}
        limited = msgspec.structs.replace(free, settings=free.settings | limits)
        gpus, tuned = free.columns["gpus"].tolist(), tuned_run(free)
        plans = [limited.plan_at(many) for many in gpus]
        works = [plan for plan in plans if plan.status != "infeasible"]
        choices = []
        for many, plan in zip(gpus, plans, strict=True):
            if plan.status != "infeasible":
                choices.append(self._feasible(plan, tuned))
            elif limits and (unlimited := free.plan_at(many)).status != "infeasible":
                over = msgspec.structs.replace(unlimited, settings=plan.settings)
                choices.append(self._over(over, tuned, works))
            else:
                choices.append(self._refused(plan))
        return choices

    def _feasible(self, plan: Plan, tuned: Plan | None) -> list[Any]:
        texts, explanation = self.texts, plan.explanation(self.currency)
        lines = [] if self.tool is None else texts(*_lines(plan, self.tool))
        level, warnings, notes = by_level(plan, tuned, [text for _, text in explanation.cautions])
        headline, others = _headline(plan, explanation, _limits(explanation))
        folded = texts(*others, *notes)
        return [level, *texts(headline), self._figures(plan, tuned), texts(*warnings), [], lines, folded]

    def _over(self, plan: Plan, tuned: Plan | None, works: Sequence[Plan]) -> list[Any]:
        """Packs a plan over a limit, with the nearest ones within all."""
        explanation = plan.explanation(self.currency)
        missed_first = sorted(_limits(explanation), key=lambda limit: limit.verdict != "missed")
        headline, folded = _headline(plan, explanation, missed_first)
        fewer = [each for each in works if each.world_size < plan.world_size][-1:]
        nearest = [*fewer, *(each for each in works if each.world_size > plan.world_size)][:2]
        out = self._menu(plan, nearest)
        known = self._figures(plan, tuned)
        return ["infeasible", *self.texts(headline), known, [], out, [], self.texts(*folded)]

    def _refused(self, plan: Plan) -> list[Any]:
        explanation = plan.explanation(self.currency)
        why, cautions = refused(explanation), [text for _, text in explanation.cautions]
        # A plan without the limits that were given is no option.
        limits = attrgetter(*LIMITS)
        options = [each for each in plan.options if limits(each.settings) == limits(plan.settings)]
        out = self._menu(plan, options)
        return ["infeasible", *self.texts(why), [], self.texts(*cautions), out, [], []]

    def _figures(self, plan: Plan, tuned: Plan | None) -> list[list[int]]:
        """Packs the known figures beside the tuned run's."""
        return [self.texts(label, was, now) for label, now, was in figures(plan, tuned, self.currency) if now]

    def _menu(self, plan: Plan, options: Sequence[Plan]) -> list[Any]:
        menu = zip(ways(plan, options, self.currency), options, strict=True)
        return [[*self.texts(*row), option.world_size] for row, option in menu]


def _limits(explanation: Explanation) -> list[Sentence]:
    """Lists the sentences about the deadline and the budget."""
    return [sentence for sentence in explanation.sentences if sentence.topic is Topic.LIMIT]


def _headline(plan: Plan, explanation: Explanation, limits: Sequence[Sentence]) -> tuple[str, list[str]]:
    """Writes the first line, of the GPUs and the limits if there are any; and lists the other sentences."""
    others = sentences(explanation, Topic.LIMIT)
    if not limits:
        return others[0], others[1:]
    return f"{counted(plan.world_size, 'GPU')}. {' '.join(limit.text for limit in limits)}", others


def _lines(plan: Plan, tool: str) -> list[str]:
    try:
        return str(plan.to(tool)).rstrip("\n").split("\n")
    except InputError as error:
        return [f"# not for {tool}: {error}"]
