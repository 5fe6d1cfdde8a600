"""What a writer needs of a plan, and what it gives."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from isobatch.errors import InputError


class Hardware(Protocol):
    """Where a plan runs."""

    @property
    def nodes(self) -> int: ...
    @property
    def gpus_per_node(self) -> int: ...
    @property
    def gpu(self) -> str | None: ...


class Tuned(Protocol):
    """The recipe of a plan."""

    @property
    def effective_batch(self) -> int: ...
    @property
    def optimizer(self) -> str: ...
    @property
    def decay(self) -> str | None: ...
    @property
    def schedule(self) -> Any: ...
    @property
    def seq_len(self) -> int | None: ...
    @property
    def clip_norm(self) -> float | None: ...
    @property
    def precision(self) -> str | None: ...
    @property
    def drop_last(self) -> bool | str: ...
    @property
    def even_batches(self) -> bool: ...
    @property
    def dataset_size(self) -> int | None: ...
    @property
    def eval_every(self) -> str | None: ...
    @property
    def save_every(self) -> str | None: ...
    @property
    def ramp(self) -> str | None: ...
    @property
    def convention(self) -> str: ...


class Planned(Protocol):
    """A plan."""

    @property
    def world_size(self) -> int: ...
    @property
    def data_parallel(self) -> int | None: ...
    @property
    def micro_batch(self) -> int | None: ...
    @property
    def accumulation(self) -> int | None: ...
    @property
    def effective_batch(self) -> int | None: ...
    @property
    def lr(self) -> float | None: ...
    @property
    def lr_scale(self) -> float | None: ...
    @property
    def min_lr(self) -> float | None: ...
    @property
    def warmup_lr(self) -> float | None: ...
    @property
    def beta1(self) -> float | None: ...
    @property
    def beta2(self) -> float | None: ...
    @property
    def eps(self) -> float | None: ...
    @property
    def momentum(self) -> float | None: ...
    @property
    def weight_decay(self) -> float | None: ...
    def position(self, step: int) -> Any: ...
    @property
    def ema_decay(self) -> float | None: ...
    @property
    def warmup_steps(self) -> int | None: ...
    @property
    def total_steps(self) -> int | None: ...
    @property
    def eval_steps(self) -> int | None: ...
    @property
    def save_steps(self) -> int | None: ...
    @property
    def log_steps(self) -> int | None: ...
    @property
    def steps_per_epoch(self) -> int | None: ...
    @property
    def hours(self) -> float | None: ...
    @property
    def lr_at(self) -> Callable[[float], float]: ...
    @property
    def recipe(self) -> Tuned: ...
    @property
    def cluster(self) -> Hardware: ...


@dataclass(frozen=True)
class Job:
    """What a launcher needs beside the plan.

    Attributes:
        name: of the job.
        command: the training script and its own arguments, word by word.
        image: of a container, where the target runs one.
        resume: a checkpoint to go on from.
    """

    name: str = "isobatch"
    command: tuple[str, ...] = ("train.py",)
    image: str | None = None
    resume: str | None = None

    def __post_init__(self) -> None:
        for text in (self.name, *self.command, self.image or "", self.resume or ""):
            if "\0" in text:
                raise InputError(f"{text!r} has a zero byte, which no command line can carry", field="name")
        if not self.name.strip():
            raise InputError("name must be a text that is not empty", field="name")
        if not self.command:
            raise InputError("command must name a script, such as train.py", field="command")


@dataclass
class Sheet:
    """What a tool is given.

    Attributes:
        settings: by their names there, in the order in which they are written; tables hold tables.
        comments: what the tool cannot say, or does differently.
    """

    settings: dict[str, Any] = field(default_factory=dict)
    comments: list[str] = field(default_factory=list)


def intervals(plan: Planned, evaluate: str, save: str, log: str) -> dict[str, int]:
    """How often a tool evaluates, saves and logs, by its names for that; without those that the recipe leaves open.

    >>> import isobatch as ib
    >>> plan = ib.plan(ib.Recipe(effective_batch=256, lr=0.1, eval_every="500st"), 8, policy=512)
    >>> intervals(plan, "eval_steps", "save_steps", "logging_steps")
    {'eval_steps': 250}
    """
    named = {evaluate: plan.eval_steps, save: plan.save_steps, log: plan.log_steps}
    return {name: steps for name, steps in named.items() if steps is not None}


def leaves(settings: Mapping[str, Any], path: str = "") -> dict[str, Any]:
    """Every value by its path.

    >>> leaves({"optimizer": {"lr": 0.1}, "steps": 3})
    {'optimizer.lr': 0.1, 'steps': 3}
    """
    found: dict[str, Any] = {}
    for name, value in settings.items():
        at = f"{path}.{name}" if path else str(name)
        found.update(leaves(value, at) if isinstance(value, Mapping) and value else {at: value})
    return found
