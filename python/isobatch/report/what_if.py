"""The page that answers "what if": each GPU count under each policy is planned beforehand, and a slider shows one of them."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from isobatch import _core
from isobatch.errors import InputError, must_be
from isobatch.planning.plan import Plan, plan
from isobatch.recipes.recipe import Recipe
from isobatch.report.page import SIGNS, environment, template
from isobatch.report.plan_page import ROWS, explained

POLICIES = {"keep": "batch and learning rate stay", "grow": "the batch grows with the GPUs"}
"""What the page lets one choose between, and what that means."""
MAX_COUNTS = 4_096
_DEFAULT = 8
"""GPUs that the page begins with where the tuned run's are not known, as on one node."""


class Texts:
    """A table of different texts: what many plans say alike is in the page once."""

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}

    def __call__(self, text: str) -> int:
        """Returns the number of a text."""
        return self.numbers.setdefault(text, len(self.numbers))


def what_if(
    recipe: Recipe,
    gpus: Iterable[int],
    *,
    policies: Sequence[str] = tuple(POLICIES),
    tool: str | None = None,
    title: str = "",
    **settings: Any,
) -> str:
    """Writes one HTML page with a plan for every GPU count, of which a slider shows one; it needs no network.

    Args:
        recipe: the tuned recipe.
        gpus: the counts, in any order; at most 4,096.
        policies: "keep", "grow" or both; the page lets one choose.
        tool: whose lines are shown to copy, as for `Plan.to`; None: none are.
        title: the page's heading (default: what changes with the GPUs).
        settings: of `plan`, for every count.

    Returns:
        The page; the choice is in its URL's fragment, as `#gpus=32&policy=keep`.

    Raises:
        InputError: there is no count, or there are too many; a policy or a tool is unknown; what `plan` raises.
    """
    counts = sorted(set(gpus))
    if not 1 <= len(counts) <= MAX_COUNTS:
        raise must_be(f"1 to {MAX_COUNTS:,} counts", len(counts), field="gpus")
    for policy in policies:
        if policy not in POLICIES:
            raise must_be(" or ".join(POLICIES), policy, field="policies")
    texts = Texts()
    plans = {(count, policy): plan(recipe, count, policy=policy, **settings) for count in counts for policy in policies}
    first = recipe.gpus if recipe.gpus in counts else min(counts, key=lambda count: abs(count - _DEFAULT))
    data = {
        "counts": counts,
        "first": counts.index(first),
        "policies": list(policies),
        "plans": [[_choice(plans[count, policy], tool, texts) for policy in policies] for count in counts],
        "texts": list(texts.numbers),
    }
    return _page(title or "What changes with the number of GPUs?", data, [plans[count, policies[0]] for count in counts], tool)


def _choice(one: Plan, tool: str | None, texts: Texts) -> list[Any]:
    """Packs what the page shows of a plan: status, headline, figures as label, was and now, sentences, points, menu, and the tool's lines."""
    headline, sentences, points = explained(one)
    figures = [] if one.status == "infeasible" else _figures(one)
    return [
        one.status,
        texts(headline),
        [[texts(part) for part in row] for row in figures],
        [texts(line) for line in sentences[1:]],
        [texts(point) for point in points],
        [[texts(part) for part in re.split(r" {3,}", way)] for way in _menu(one)],
        [] if tool is None or one.status == "infeasible" else [texts(line) for line in _lines(one, tool)],
    ]


def _figures(one: Plan) -> list[tuple[str, str, str]]:
    tuned = one.tuned()
    rows = []
    for label, name, write in ROWS:
        now, was = getattr(one, name), getattr(tuned, name, None)
        if now is not None:
            rows.append((label, "" if was is None else write(was), write(now)))
    return rows


def _menu(one: Plan) -> list[str]:
    """Takes the ways out from an infeasible plan's explanation."""
    if one.status != "infeasible":
        return []
    return [line.strip() for line in one.explain().splitlines() if line.startswith("  ") and not line.startswith("  -")]


def _lines(one: Plan, tool: str) -> list[str]:
    try:
        return str(one.to(tool)).rstrip("\n").split("\n")
    except InputError as error:
        return [f"# {tool} cannot run this plan: {error}"]


def _page(title: str, data: Any, listed: Sequence[Plan], tool: str | None) -> str:
    from markupsafe import Markup

    script = template("what_if.js")
    # In a script element only "<" could end it.
    packed = msgspec.json.encode(data).decode().replace("<", "\\u003c")
    rendered: str = (
        environment()
        .get_template("what_if.html")
        .render(
            title=title,
            data=Markup(packed),
            policies=[(name, POLICIES[name]) for name in data["policies"]],
            counts=data["counts"],
            listed=[(one.world_size, SIGNS[one.status], one.status, one.explain().split("\n")[0]) for one in listed],
            tool=tool,
            style=Markup(template("style.css") + template("what_if.css")),
            script=Markup(script),
            digest=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
            version=_core.__version__,
        )
    )
    return rendered
