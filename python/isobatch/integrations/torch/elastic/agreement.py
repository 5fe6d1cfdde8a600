"""The ranks of a run: which one this process is, and what all agree on: at the start on the same plan, at
each step on stopping (signals included) and on counts.
"""

import math
import os
import signal
import threading
import warnings
from collections.abc import Mapping
from datetime import timedelta
from time import monotonic
from types import FrameType
from typing import Any, NamedTuple, Self

import msgspec
import torch
import torch.distributed as dist

from isobatch.errors import InputError
from isobatch.integrations.torch.exchange import gather_values
from isobatch.words import few

_LAUNCHERS = (
    ("torchrun", "RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"),
    # srun's own: an sbatch script has SLURM_NTASKS too, and is one process.
    ("Slurm", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_STEP_TASKS_PER_NODE"),
)


class World(NamedTuple):
    """The processes of a run: this one's `rank` of `size`, `per_node` of them on a node (None: not known, or
    not equal).
    """

    rank: int
    size: int
    per_node: int | None


def find_world() -> World:
    """Finds the world of the default process group, else of torchrun's variables, else of Slurm's, else this
    process alone.

    Raises:
        InputError: a launcher's variables are not numbers.
    """
    for launcher, *names in _LAUNCHERS:
        if all(name in os.environ for name in names[:2]):
            rank, size = (_number(launcher, name) for name in names[:2])
            local = os.environ.get(names[2], "")
            per_node = int(local) if local.isdigit() and int(local) and size % int(local) == 0 else None
            break
    else:
        rank, size, per_node = 0, 1, None
    if dist.is_available() and dist.is_initialized():
        rank, size_of_group = dist.get_rank(), dist.get_world_size()
        size, per_node = size_of_group, per_node if size_of_group == size else None
    return World(rank, size, per_node)


def replica_of(replica: Any, rank: int, replicas: int, size: int) -> int:
    """Returns this process's replica: its rank, or the user's, a number or a one-dimensional DeviceMesh.

    Raises:
        InputError: with model parallelism none was given, or there is no such replica.
    """
    if replica is None:
        if replicas != size:
            raise InputError(
                f"replica is missing: {size} processes hold {replicas} replicas; pass replica=, a number or "
                "the mesh's "
                'data-parallel dimension, such as mesh["dp"]',
                field="replica",
            )
        return rank
    index = replica.get_local_rank() if hasattr(replica, "get_local_rank") else replica
    if type(index) is not int or not 0 <= index < replicas:
        raise InputError(f"replica must be 0 to {replicas - 1}, got {index!r}", field="replica")
    return index


def check_rendezvous(rank: int) -> None:
    """Warns where torchrun's next restart would not get its processes together again."""
    restarts = os.environ.get("TORCHELASTIC_MAX_RESTARTS", "0")
    shares = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    if rank == 0 and shares and restarts.isdigit() and int(restarts):
        warnings.warn(
            f"torchrun may restart this run {restarts} times, and its processes may then fail to connect: "
            "it hands them a store that still has the addresses of the ones before; start it with "
            "TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1",
            stacklevel=3,
        )


def _number(launcher: str, name: str) -> int:
    text = os.environ[name]
    if not text.isdigit():
        raise InputError(f"{launcher}'s {name} must be a whole number, got {text!r}", field=name)
    return int(text)


# ---- agreements ----


class Agreement(NamedTuple):
    """A result of the ranks: whether some rank was asked to stop, the sums of their counts and of their
    steps' µs, and whether somebody waits to join them.
    """

    stopping: bool
    total: float
    micros: float
    joining: bool = False


class Vote:
    """An agreement under way. `result` waits for it, and is the same each time."""

    def __init__(self, stopping: bool, count: float, micros: int, joining: bool, group: Any) -> None:
        self._agreement = Agreement(stopping, count, micros, joining)
        self._work = None
        if group is not None:
            # In float64 sums of whole numbers are exact up to 2^53, so that they are the same on all ranks.
            self._values = torch.tensor([stopping, count, micros, joining], dtype=torch.float64)
            # The group's own method: dist.all_reduce takes half as long again to begin.
            self._work = group.allreduce([self._values])

    def result(self) -> Agreement:
        """Waits for the ranks, once."""
        if self._work is not None:
            self._work.wait()
            self._work = None
            stopping, count, micros, joining = self._values.tolist()
            self._agreement = Agreement(stopping > 0, count, micros, joining > 0)
        return self._agreement


class _Facts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A rank's facts for the comparison, or the reason why it cannot go on."""

    facts: dict[str, Any] = {}
    error: str | None = None


class RankGroup:
    """The run's own group of all its processes. It is gloo's, so that an NCCL job never waits for its device.

    Args:
        timeout: of its agreements; None: torch's.
        connecting: until the ranks have found each other; None: as `timeout`.
        backend: torch's name of its backend.
    """

    def __init__(
        self,
        rank: int,
        size: int,
        timeout: timedelta | None = None,
        connecting: timedelta | None = None,
        backend: str = "gloo",
    ) -> None:
        self.rank, self.size = rank, size
        self._group: Any = None
        self._backend = backend
        self._timeout, self._connecting = timeout, connecting

    @property
    def connected(self) -> bool:
        """Whether the processes can talk; one alone can."""
        return self.size == 1 or (dist.is_available() and dist.is_initialized())

    def group(self) -> Any:
        """Returns the group, formed where it is missing; None for one process alone."""
        if self.size > 1 and self._group is None:
            if not self.connected:
                raise InputError(
                    f"the run has {self.size} processes and no process group: call "
                    "torch.distributed.init_process_group first"
                )
            self._group = dist.new_group(backend=self._backend, timeout=self._connecting or self._timeout)
            if self._connecting is not None and self._timeout is not None:
                set_timeout(self._timeout, self._group)
        return self._group

    def agree(
        self,
        facts: Mapping[str, Any] | InputError,
        advice: str = "start all of them with the same recipe, settings and checkpoint",
    ) -> None:
        """Compares the facts of all ranks, or their errors; all of them leave, or all raise.

        Raises:
            InputError: a rank has an error, or two ranks differ; the message has the first difference, and
                the names of further ones.
        """
        group = self.group()
        own = _Facts(error=str(facts)) if isinstance(facts, InputError) else _Facts({**facts})
        every = [own] if group is None else gather_values(own, group, _Facts)
        if isinstance(facts, InputError):
            raise facts
        for rank, answer in enumerate(every):
            if answer.error is not None:
                raise InputError(f"rank {rank} stopped: {answer.error}")
            names = [name for name, value in every[0].facts.items() if answer.facts.get(name) != value]
            if names:
                name, further = names[0], f", and in {few(names[1:])}" if names[1:] else ""
                raise InputError(
                    f"the ranks differ in {name}: {every[0].facts[name]} on rank 0, "
                    f"{answer.facts.get(name)} on rank {rank}{further}; {advice}"
                )

    def begin(self, stopping: bool, count: float, micros: int, joining: bool = False) -> Vote:
        """Begins an agreement, on all ranks; NaN as the count of a rank without one."""
        return Vote(stopping, count, micros, joining, self.group())

    def free(self) -> None:
        """Lets the group go."""
        self._group = None


class Agreements:
    """The agreements of a run's steps: in each step where the ranks count tokens, else as often as stopping
    needs it.

    Beginning and waiting take 0.1 to 0.2 ms between two ranks, and wake a thread: of a step of 6 ms that is 3
    %. So quick steps agree only every `SECONDS`, by the mean of the ranks' own clocks, which they agree on
    too; at least every `MAX_STEPS` steps, since the next ones may be slow. From 50 ms on, and on one process,
    every step agrees.
    """

    SECONDS, MAX_STEPS = 0.05, 10

    def __init__(self, ranks: RankGroup) -> None:
        self._ranks = ranks
        self._pending: Vote | None = None
        self._begun, self._passed = 0.0, 0

    @property
    def stopping(self) -> bool:
        """The last agreement; the same on all ranks, and all through a step."""
        return self._pending is not None and self._pending.result().stopping

    @property
    def joining(self) -> bool:
        """Whether somebody waits to join, by the last agreement: the same on all ranks."""
        return self._pending is not None and self._pending.result().joining

    @property
    def total(self) -> float:
        """The sum of the counts in the last agreement."""
        return 0.0 if self._pending is None else self._pending.result().total

    def begin_step(self, is_asked: bool, count: float | None = None, *, joining: bool = False) -> None:
        """Begins a step, on all ranks: they agree on whether to stop after it, if it is time, and on counts
        where there are some.
        """
        self._passed += 1
        if count is None and self._passed < self._every:
            return
        stopping = is_asked or self.stopping
        now = monotonic()
        # How long steps take is not known yet at first: as if they were slow.
        seconds = (now - self._begun) / self._passed if self._pending is not None else 1.0
        self._begun, self._passed = now, 0
        self._pending = self._ranks.begin(stopping, count or 0.0, int(seconds * 1e6), joining)

    @property
    def _every(self) -> int:
        """The steps between agreements, by the clocks in the last one: the same on all ranks."""
        if self._pending is None or self._ranks.size == 1:
            return 1
        micros = self._pending.result().micros / self._ranks.size
        return max(1, min(self.MAX_STEPS, int(self.SECONDS * 1e6 / max(micros, 1.0))))

    def free(self) -> None:
        """Forgets the agreement under way and, with it, the ranks' group."""
        self._pending = None

    def end(self) -> None:
        """Waits for the agreement under way."""
        if self._pending is not None:
            self._pending.result()


def set_timeout(timeout: timedelta, group: Any = None) -> None:
    """Sets the time-out of a group's collectives; torch before 2.9 has another name for it."""
    public = getattr(dist, "set_timeout", None)
    (public or dist.distributed_c10d._set_pg_timeout)(timeout, group)


def is_count(value: float) -> bool:
    """Returns whether a count of tokens can be one."""
    return math.isfinite(value) and value >= 0


# ---- signals ----


SIGNALS = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGUSR1") if hasattr(signal, name))


class Signals:
    """Notes SIGTERM (torchrun, Slurm) and SIGUSR1 (Slurm's --signal) while it is entered, and then puts back
    the handlers before.

    A handler that was there is called too. Only the main thread can have handlers: in another nothing is
    noted.
    """

    def __init__(self) -> None:
        self.received = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._note) for number in SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            # None: it was not set by Python, and cannot be put back by it.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        self._before = {}

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.received = True
        before = self._before.get(number)
        if callable(before):
            before(number, frame)
