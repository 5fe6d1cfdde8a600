"""The ranks of a run: this process's rank, and the agreements of all ranks, on the same plan at the start, on
stopping (signals included) and on token counts at the steps.
"""

import os
import signal
import threading
import warnings
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from time import monotonic
from types import FrameType
from typing import Any, NamedTuple, Self

import msgspec
import torch
import torch.distributed as dist
from torch.utils.data._utils import signal_handling

from isobatch.errors import InputError
from isobatch.launch.environments import World
from isobatch.training.exchange import gather_values
from isobatch.training.reading import READING
from isobatch.training.world import set_timeout
from isobatch.words import few


def check_rendezvous(rank: int) -> None:
    """Warns if torchrun's processes could not connect again after a restart."""
    restarts = os.environ.get("TORCHELASTIC_MAX_RESTARTS", "0")
    shares = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    if rank == 0 and shares and restarts.isdigit() and int(restarts):
        warnings.warn(
            f"torchrun may restart this run {restarts} times, and its processes may then fail to connect: "
            "the store still has the addresses of the old ones; start it with "
            "TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1",
            stacklevel=3,
        )


# ---- agreements ----


class Watch:
    """Tells a loop about lost and joining ranks; this base class is for runs with neither.

    Attributes:
        lost: whether a rank was lost: no further step can begin.
        void: whether it was lost before the current step could be applied: the rest of it changes nothing.
        is_awaited: whether ranks wait to join.
        backend, timeout, connecting: for the run's own group: torch's name of its backend, the time-out of
            agreements, and the time-out for ranks to find each other; None: torch's defaults.
    """

    lost = void = is_awaited = False
    backend = "gloo"
    timeout: timedelta | None = None
    connecting: timedelta | None = None

    def begin_step(self, step: int) -> None:
        """Notes the beginning of a step, before its first micro-batch."""

    def finish(self, step: int) -> None:
        """Notes the end of the loop, after `step` steps of the run."""

    def guard(self) -> AbstractContextManager[Any]:
        """Catches a lost rank's errors and ends the loop."""
        return nullcontext()

    def pass_guard(self) -> AbstractContextManager[Any]:
        """Catches a lost rank's errors in a forward or backward, and makes the rest of the step void."""
        return nullcontext()


ALL_THERE = Watch()


class _Facts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A rank's facts for the comparison, or the reason why it cannot go on."""

    facts: dict[str, Any] = {}
    error: str | None = None


class RankGroup:
    """The run's own group of all its processes, on gloo, as NCCL would wait for the device."""

    def __init__(self, world: World, watch: Watch) -> None:
        self.rank, self.size, _ = world
        self._watch = watch
        self._group: Any = None

    @property
    def connected(self) -> bool:
        """Whether the processes can communicate; always True for a single one."""
        return self.size == 1 or (dist.is_available() and dist.is_initialized())

    def group(self) -> Any:
        """Returns the group, and forms it at the first call; None for a single process."""
        if self.size > 1 and self._group is None:
            if not self.connected:
                raise InputError(
                    f"the run has {self.size} processes and no process group: call "
                    "torch.distributed.init_process_group first"
                )
            timeout, connecting = self._watch.timeout, self._watch.connecting
            self._group = dist.new_group(backend=self._watch.backend, timeout=connecting or timeout)
            if connecting is not None and timeout is not None:
                set_timeout(timeout, self._group)
        return self._group

    def agree(
        self,
        facts: Mapping[str, Any] | InputError,
        advice: str = "start all of them with the same recipe, settings and checkpoint",
    ) -> None:
        """Compares the facts of all ranks, or their errors; either all ranks return, or all raise."""
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
                    f"the ranks differ in {name}: {every[0].facts[name]} on rank 0, {answer.facts.get(name)} "
                    f"on rank {rank}{further}; {advice}"
                )

    def free(self) -> None:
        """Frees the group."""
        self._group = None


class Agreement(NamedTuple):
    """A result agreed on by all ranks: whether some rank was asked to stop, the sums of their token counts
    and of their times for a step (µs), and whether ranks wait to join."""

    stopping: bool
    total: float
    micros: float
    joining: bool = False


class Agreements:
    """The agreements of a run's steps: in all if the ranks count tokens, else as often as stopping needs.

    An agreement takes 0.1 to 0.2 ms between two ranks and wakes a thread: 3 % of a step of 6 ms. So ranks
    with quick steps agree only every `SECONDS`, measured by the mean of their clocks, which is part of the
    agreement. They agree at least every `MAX_STEPS` steps, since the next steps may be slow. If steps take
    50 ms or more, and in a single process, every step has an agreement.
    """

    SECONDS, MAX_STEPS = 0.05, 10

    def __init__(self, ranks: RankGroup) -> None:
        self._ranks = ranks
        self._agreement: Agreement | None = None
        self._work: Any = None
        self._begun, self._passed = 0.0, 0

    @property
    def last(self) -> Agreement:
        """The last agreement: the same on all ranks, all through a step."""
        if self._work is not None:
            self._work.wait()
            self._work = None
            stopping, count, micros, joining = self._values.tolist()
            self._agreement = Agreement(stopping > 0, count, micros, joining > 0)
        return self._agreement or Agreement(False, 0.0, 0)

    def begin_step(self, is_asked: bool, count: float | None = None, *, joining: bool = False) -> None:
        """Begins a step, on all ranks, and an agreement if one is due; an invalid count is NaN."""
        self._passed += 1
        if count is None and self._passed < self._every:
            return
        stopping = is_asked or self.last.stopping
        now = monotonic()
        # The first time no step has been measured: assume slow steps, so that the next one agrees too.
        seconds = (now - self._begun) / self._passed if self._agreement is not None else 1.0
        self._begun, self._passed = now, 0
        self._agreement = Agreement(stopping, count or 0.0, int(seconds * 1e6), joining)
        if (group := self._ranks.group()) is not None:
            # Sums of whole numbers in float64 are exact up to 2^53, so they are the same on all ranks.
            self._values = torch.tensor(self._agreement, dtype=torch.float64)
            # The group's own method starts faster: dist.all_reduce takes half as long again.
            self._work = group.allreduce([self._values])

    @property
    def _every(self) -> int:
        """The steps between agreements, by the clocks of the last agreement: the same on all ranks."""
        if self._agreement is None or self._ranks.size == 1:
            return 1
        micros = self.last.micros / self._ranks.size
        return max(1, min(self.MAX_STEPS, int(self.SECONDS * 1e6 / max(micros, 1.0))))

    def free(self) -> None:
        """Forgets the agreement under way and, with it, the ranks' group."""
        self._agreement = self._work = None


# ---- signals ----


SIGNALS = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGUSR1") if hasattr(signal, name))


class Signals:
    """Notes SIGTERM (torchrun, Slurm) and SIGUSR1 (Slurm's --signal) inside its `with` block, and still calls
    the previous handlers. A loader's dead worker is noticed where a batch is read. Python allows handlers in
    the main thread only: elsewhere no signal is noted."""

    def __init__(self) -> None:
        self.received = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._note) for number in SIGNALS}
            if hasattr(signal, "SIGCHLD"):
                signal_handling._set_SIGCHLD_handler()  # torch sets it once.
                torch_handler = signal.getsignal(signal.SIGCHLD)
                self._before[signal.SIGCHLD] = signal.signal(signal.SIGCHLD, READING.calm(torch_handler))
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            # None: a handler not set by Python, which Python cannot restore.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        self._before = {}

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.received = True
        before = self._before.get(number)
        if callable(before):
            before(number, frame)
