"""Settings for a tool and notes on them, from a plan, a job, and the plan's curve beside the tool's."""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from isobatch.errors import InputError, missing
from isobatch.files.texts import commented, scalar_text, shell_words
from isobatch.planning.export import Job as Job
from isobatch.schedules import Units, check_spec
from isobatch.schedules.text import Length
from isobatch.tools.page import leaves
from isobatch.words import percent

if TYPE_CHECKING:
    from isobatch.planning.plan import FeasiblePlan

    Planned: TypeAlias = FeasiblePlan
else:
    Planned = Any  # a file is read without planning
"""A feasible plan, or the row of a table with its columns as fields (folder.py)."""


@dataclass
class SettingsSheet:
    """Settings for a tool, and notes on them.

    Attributes:
        settings: by their names there, in the order in which they are written; tables hold tables.
        comments: what the tool cannot say, or does differently.
        of_file: those for somebody who fills in or copies the file.
    """

    settings: dict[str, Any] = field(default_factory=dict)
    comments: list[str] = field(default_factory=list)
    of_file: list[str] = field(default_factory=list)

    def note(self, text: str, *, of_file: bool = False) -> None:
        """Adds a comment."""
        self.comments.append(text)
        self.of_file += [text] * of_file


class Curve(NamedTuple):
    """A schedule's kind (None for a `Schedule` without a text), and its lengths in the plan's steps."""

    plan: Planned
    kind: str | None
    peak: float
    bottom: float
    first: float
    warmup: int
    total: int
    arguments: Mapping[str, Any]

    @property
    def is_stable(self) -> bool:
        """Whether the rate stays at its peak until a decay at the end."""
        return self.kind in ("wsd", "trapezoid")

    @property
    def shape(self) -> str:
        """The kind of the decay; empty for a `Schedule` without a text."""
        return str(self.arguments.get("shape", "linear")) if self.is_stable else self.kind or ""

    @property
    def decay(self) -> int:
        """Steps of the decay."""
        return self.last_steps() if self.is_stable else max(0, self.total - self.warmup)

    def part(self, rate: float) -> float:
        """Returns a rate as a part of the peak, rounded: 0.1, not 0.09999999999999999."""
        return float(f"{rate / self.peak:.12g}")

    def last_steps(self, of: int | None = None) -> int:
        """Returns the steps of the decay at the end of a `wsd`: a fifth of the run unless the recipe says."""
        return int(self.arguments.get("decay", max(1, (self.total if of is None else of) // 5)))

    def misses(self, tool_rate: Callable[[int], float]) -> str | None:
        """Says how far a tool's rate is from the plan's at a few hundred steps; None if it is the same."""
        plan, total = self.plan, self.total
        first = plan.moves[-1].step if plan.moves else 0  # of a run that moved, only the steps left
        spread = {total * part // 257 for part in range(257)}
        spread |= {at + by for at in (first, self.warmup, total - 1) for by in (-1, 0, 1)}
        steps = sorted(step for step in spread if first <= step < total)
        rates = [plan.lr_at(step) for step in steps]
        worst, step = max(
            (abs(rate - tool_rate(step)), step) for rate, step in zip(rates, steps, strict=True)
        )
        if worst <= 1e-9 * max(rates):
            return None
        return f"differs from the plan by up to {percent(worst / max(rates))} of the peak (at step {step:,})"


def units_of(plan: Planned) -> Units:
    """Returns the worth of the units in the plan's schedule."""
    tuned = plan.recipe.effective_batch
    batch, epoch = plan.effective_batch or tuned, plan.steps_per_epoch
    return Units(tuned_batch=tuned, batch=batch, steps_per_epoch=epoch, seq_len=plan.recipe.seq_len)


def curve(plan: Planned) -> Curve:
    """Returns the plan's curve; a plan without an end, or a table's row without a schedule, has none."""
    if plan.total_steps is None or plan.lr is None:
        raise InputError(
            "the recipe has no duration, so the number of steps is unknown: give one", field="duration"
        )
    text = plan.recipe.schedule
    if text is None:
        raise missing("schedule", "the plans' table does not have it; name the jobs' with --jobs")
    base = (plan.lr, plan.min_lr or 0.0, plan.warmup_lr or 0.0, plan.warmup_steps or 0, plan.total_steps)
    if not isinstance(text, str):
        return Curve(plan, None, *base, {})
    spec, units = check_spec(text), units_of(plan)
    arguments = {
        name: max(1, value.steps(units, plan.total_steps)) if isinstance(value, Length) else value
        for name, value in spec.arguments.items()
    }
    return Curve(plan, spec.kind, *base, arguments)


def flags(settings: Mapping[str, Any], *, dashes: bool = False) -> Iterator[list[str]]:
    """Yields each setting as the words of a command line: True is a flag alone, False none at all.

    >>> list(flags({"lr": 2e-05, "bf16": True, "kwargs": {"power": 2.0}, "betas": [0.9, 0.95]}))
    [['--lr', '2.0e-05'], ['--bf16'], ['--kwargs', '{"power": 2.0}'], ['--betas', '0.9', '0.95']]
    """
    for name, value in settings.items():
        flag = f"--{name.replace('_', '-') if dashes else name}"
        if value is True:
            yield [flag]
        elif isinstance(value, Mapping):
            yield [flag, json.dumps(value)]
        elif isinstance(value, list | tuple):
            yield [flag, *(item if isinstance(item, str) else scalar_text(item) for item in value)]
        elif value is not False and value is not None:
            yield [flag, value if isinstance(value, str) else scalar_text(value)]


def overrides(settings: Mapping[str, Any]) -> list[list[str]]:
    """Lists each setting as an override of Hydra's and OmegaConf's.

    >>> overrides({"optimizer": {"lr": 2e-05, "betas": [0.9, 0.95]}, "clip": None})
    [['optimizer.lr=2.0e-05'], ['optimizer.betas=[0.9,0.95]'], ['clip=null']]
    """

    def text(value: object) -> str:
        return f"[{','.join(map(scalar_text, value))}]" if isinstance(value, list) else scalar_text(value)

    return [[f"{at}={text(value)}"] for at, value in leaves(settings).items()]


def shell(words: list[list[str]]) -> str:
    """Writes a command over several lines, every word quoted where it needs to be.

    >>> print(shell([["torchrun", "my script.py"], ["--name", "$(rm -rf x)"]]))
    torchrun 'my script.py' \\
      --name '$(rm -rf x)'
    """
    return " \\\n  ".join(shell_words(part) for part in words)


def command_file(top: str, remarks: Mapping[str, str], words: list[list[str]]) -> str:
    """Writes a file of one command, under its comments and remarks."""
    return f"{top}{remark_lines(remarks)}{shell(words)}\n"


def remark_lines(remarks: Mapping[str, str]) -> str:
    """Writes the remarks as comments of their own, for files without a place beside the values."""
    return "".join(commented(f"{at}: {text}") + "\n" for at, text in remarks.items())
