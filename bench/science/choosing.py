"""Two questions to the cells of bench/science: does a rule that was chosen on the other tasks do well on the one left out, and how often did
a rule's learning rate lie in the measured interval?"""

from __future__ import annotations

import math

from scales import RULES, scales  # isort: skip

MOST = 1.0
"""A gap counts for this much at most, and so does a divergence: one cell that is lost altogether must not decide alone."""
WAYS = (("k < 1", lambda row: row.k < 1), ("k > 1", lambda row: row.k > 1))
PLAIN = ("none", "sqrt", "linear")
"""The rules that need no noise scale."""
OPTIMIZERS = ("sgd", "adamw", "lion", "muon")


def cost(rows, rule: str) -> float:
    """The mean gap of a rule over rows, each counted up to MOST."""
    return sum(min(row.gaps[rule], MOST) for row in rows) / len(rows)


def choose(rows, rules) -> str:
    """The rule with the least cost, the mean of its tasks' costs; of equal ones the simpler, which is the first."""
    tasks = {row.task for row in rows}
    return min(rules, key=lambda rule: sum(cost([r for r in rows if r.task == t], rule) for t in tasks))


def left_out(rows) -> list[str]:
    """For each optimizer and way: the rule chosen on two tasks, judged on the third, beside `auto` and the best in hindsight."""
    lines = [
        "## A rule chosen on the other tasks",
        "",
        f"Leave one task out: the rule with the least mean gap on the other tasks (a gap and a divergence count for {MOST:g} nat at most, each task alike), and "
        "its mean gap on the task left out; then what `auto` takes, and its mean gap there. `all`: the choice of all tasks, which is the one to start with. "
        "Noise scale known: cells that have one, and all six rules; unknown: all cells, and none, √ and linear.",
        "",
        "| noise scale | optimizer | k | all | left out: chosen, its gap; `auto`, its gap |",
        "|---|---|---|---|---|",
    ]
    for known, rules in ((True, RULES), (False, PLAIN)):
        for optimizer in OPTIMIZERS:
            for way, holds in WAYS:
                mine = [
                    row
                    for row in rows
                    if row.optimizer == optimizer and holds(row) and (row.noise is not None or not known)
                ]
                if mine:
                    name = "known" if known else "unknown"
                    everywhere = choose(mine, rules)
                    lines.append(
                        f"| {name} | {optimizer} | {way} | {everywhere} {cost(mine, everywhere):.3f} | {_judged(mine, rules, known)} |"
                    )
    return [*lines, "", *costs(rows)]


def costs(rows) -> list[str]:
    """The mean gap of each rule on each task."""
    tasks = list(dict.fromkeys(row.task for row in rows))
    lines = [
        f"The mean gap of each rule, on {' / '.join(tasks)} (counted likewise; –: not trained):",
        "",
        "| optimizer | k | " + " | ".join(f"`{rule}`" for rule in RULES) + " |",
        "|---|---|" + "---|" * len(RULES),
    ]
    for optimizer in OPTIMIZERS:
        for way, holds in WAYS:
            mine = [row for row in rows if row.optimizer == optimizer and holds(row)]
            if mine:
                cells = [" / ".join(_of_task(mine, task, rule) for task in tasks) for rule in RULES]
                lines.append(f"| {optimizer} | {way} | {' | '.join(cells)} |")
    return lines


def _of_task(rows, task: str, rule: str) -> str:
    own = [row for row in rows if row.task == task and rule in row.gaps]
    return f"{cost(own, rule):.3f}" if own else "–"


def _judged(rows, rules, known: bool) -> str:
    tasks, cells = list(dict.fromkeys(row.task for row in rows)), []
    for task in tasks:
        own = [row for row in rows if row.task == task]
        others = [row for row in rows if row.task != task]
        auto = own[0].auto_with(known)
        took = f"`auto`: {auto} {cost(own, auto):.3f}"
        if others:
            chosen = choose(others, rules)
            took = (
                f"= `auto` {cost(own, auto):.3f}"
                if chosen == auto
                else f"{chosen} {cost(own, chosen):.3f}; {took}"
            )
        else:
            took = f"no other task; {took}"
        cells.append(f"{task}: {took}")
    return " · ".join(cells)


def inside(rows) -> list[str]:
    """How often what a rule multiplies the learning rate by lay in the interval of what the best was multiplied by."""
    lines = [
        "## How often a rule's learning rate lay in the measured interval",
        "",
        "Cells in which what the rule multiplies the tuned learning rate by lies in the 95 % interval of what the best one is multiplied by (bootstrap over "
        "evaluation samples, seeds by Student's distribution, the learning rate at k = 1 drawn with it; such intervals held the truth in 85 to 95 % of "
        "simulated cases, bench/results/probe.md). A wide interval holds more than one rule.",
        "",
        "| rule | k | " + " | ".join(OPTIMIZERS) + " | all |",
        "|---|---|" + "---|" * (len(OPTIMIZERS) + 1),
    ]
    for rule in (*RULES, "auto"):
        for way, holds in WAYS:
            cells = []
            for optimizer in (*OPTIMIZERS, None):
                mine = [row for row in rows if holds(row) and optimizer in (row.optimizer, None)]
                found = [lies for row in mine if (lies := lies_inside(row, rule)) is not None]
                cells.append(f"{sum(found)} of {len(found)}" if found else "–")
            lines.append(f"| `{rule}` | {way} | {' | '.join(cells)} |")
    return lines


def lies_inside(row, rule: str) -> bool | None:
    """Whether the rule's factor lies in the row's interval; None where it needs a noise scale that is not known."""
    factor = scales(row.k, row.noise).get(row.auto if rule == "auto" else rule)
    if factor is None:
        return None
    low, high = (math.log(end) for end in row.ends)
    return low - 1e-9 <= math.log(factor) <= high + 1e-9
