"""Schedulers made for the whole run, by transformers' and torch's functions, in a script of your own."""

import math
from fractions import Fraction
from typing import Any, NamedTuple

from isobatch.tools.page import SettingsPage, Unknown
from isobatch.words import share


class Multiple(Unknown):
    """A number times a count known only in the run: `num_processes` or `estimated_stepping_batches`."""

    def __init__(self, number: float, of: str, why: str = "") -> None:
        super().__init__(why=why or f"is {number} × {of}")
        self.number, self.of = number, of


class RunLength(NamedTuple):
    """The steps of a scheduler as the script has them: numbers, Multiples, or None; `key` has the total."""

    total: Any
    warmup: Any
    key: str


def read_run_schedule(page: SettingsPage, call: SettingsPage, kind: str) -> RunLength | None:
    """Reads the shape of `kind` over the whole run, and returns its steps; None if it cannot be planned."""
    key = call.inside.rstrip(".")
    if kind == "OneCycleLR":
        return _read_one_cycle(page, call)
    if kind == "CosineAnnealingLR":
        page.give("schedule", "cosine", key)
        call.number("eta_min", "min_lr")
        return RunLength(_steps(call, "T_max"), None, "T_max")
    start = call.number("start_factor", default=1 / 3)
    if kind == "PolynomialLR":
        page.give("schedule", f"polynomial(power={call.number('power', default=1.0)!r})", key)
        return RunLength(_steps(call, "total_iters"), None, "total_iters")
    if kind == "LinearLR" and start == 1 / 3:
        page.unsupported(key, "the scheduler LinearLR with a rising learning rate")
        return None
    if kind == "LinearLR" and start == 1:
        page.give("schedule", "linear", key)
        page.times_lr("min_lr", call.number("end_factor", default=1.0), f"{key}.end_factor")
        return RunLength(_steps(call, "total_iters"), None, "total_iters")
    name = call.word("name") or "" if kind == "get_scheduler" else kind.removeprefix("get_")
    shape = name.lower().replace("_schedule", "").removesuffix("_with_warmup")
    if shape not in ("linear", "cosine", "constant") or call.number("num_cycles", default=0.5) != 0.5:
        page.unsupported(key, f"the scheduler {name or kind}")
        return None
    page.give("schedule", shape, key)
    call.raw("num_training_steps")
    total = None if shape == "constant" else _steps(call, "num_training_steps")
    warms_up = shape != "constant" or name.endswith("_with_warmup")
    return RunLength(total, _steps(call, "num_warmup_steps") if warms_up else None, "num_training_steps")


def _read_one_cycle(page: SettingsPage, call: SettingsPage) -> RunLength | None:
    """Reads OneCycleLR over the whole run; its peak replaces the optimizer's learning rate."""
    call.number("max_lr", "lr")
    rise = call.number("pct_start", default=0.3)
    is_plain = call.number("div_factor", default=25.0) == 25 and call.word("anneal_strategy", "cos") == "cos"
    if not is_plain or call.flag("three_phase") or not rise or rise >= 1:
        page.unsupported("OneCycleLR", "the scheduler OneCycleLR with these arguments")
        return None
    page.give("schedule", f"one_cycle(rise={share(rise)})", "OneCycleLR.pct_start")
    page.times_lr("min_lr", 1 / 25 / (call.number("final_div_factor", default=1e4) or 1e4), "OneCycleLR")
    page.note(
        "OneCycleLR is planned over the whole run, its bounds on whole steps; it also moves the momentum"
    )
    return RunLength(_steps(call, "total_steps"), None, "total_steps")


def _steps(call: SettingsPage, key: str) -> Any:
    """Returns the steps of an argument: a number, a Multiple, or None; anything else is asked for."""
    value = call.raw(key)
    return value if isinstance(value, Multiple) else call.number(key)


def exact_share(steps: float, total: float) -> str:
    """Returns steps as a share of the run, rounded up so far as a floor gives the same steps again.

    >>> exact_share(100, 3000), exact_share(100, 1000)
    ('3.333333333334%', '10%')
    """
    digits = 10**12
    percent = math.ceil(Fraction(steps) * 100 * digits / Fraction(total))
    return f"{percent // digits}.{percent % digits:012d}".rstrip("0").rstrip(".") + "%"
