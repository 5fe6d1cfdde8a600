"""A process group with collectives to be cut from another thread, even while gloo waits."""

import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future as Answer
from concurrent.futures import TimeoutError as Late
from contextlib import suppress
from datetime import timedelta
from functools import cache, partial
from time import monotonic
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from torch.futures import Future

from isobatch.elastic.parcels import TYPES
from isobatch.errors import InputError

_C10D: Any = dist.distributed_c10d

FREQUENT = "allreduce", "_allgather_base", "_reduce_scatter_base", "barrier"
"""The collectives of a step, DDP's and FSDP's, which go to gloo without torch's dispatcher."""

_DDP = "torch.nn.parallel.distributed"
"""DDP's broadcasts of buffers, in each forward, need no check."""
_BETWEEN = "torch._dynamo.eval_frame", "torch._dynamo.external_utils"

_PAIRED = "send", "recv", "recv_anysource"

_ALIKE = {
    "allreduce": 0,
    "broadcast": 0,
    "reduce": 0,
    "allgather": 1,
    "_allgather_base": 1,
    "reduce_scatter": 0,
    "_reduce_scatter_base": 0,
}
"""The index of the argument with the same size on all ranks, by collective."""
_TYPES = sorted(TYPES)

BACKEND, CPU_BACKEND = "isobatch", "isobatch_cpu"
"""torch's names of two backends: the crew's (so that groups which the script forms are cut too), and that of
the run's own group on CPUs.
"""

_PATIENCE = timedelta(seconds=0.1)
_SUM = dist.AllreduceOptions()
_DONE = SimpleNamespace(wait=lambda *_: True)
_HINT = (
    "a rank of the crew was lost, and the loop's body has a collective of its own: write `with crew:` around "
    "the body, and the others go on"
)
_CUT = "gloo: the group was cut, as a rank of the crew was lost"


class Cord:
    """The cord of a crew's collectives: cut once, from another thread, it ends all waiting.

    While gloo waits for a rank to connect, closing a socket does not wake it. When a connection ends, gloo
    also forgets the sends under way (`Pair::signalException` in gloo/transport/tcp/pair.cc skips the unbound
    buffers of `tx_`), so a wait for one lasts for the group's whole time-out, above all in a rank that was
    paused while the others cut it off. So such waits run in a thread, which can be left behind.

    Attributes:
        hint: the advice added to errors of the script's own collectives.
        trains: whether the crew trains: collectives are then the script's, unless the group is the run's own.
    """

    def __init__(self) -> None:
        self.is_cut = False
        self.hint = _HINT
        self.trains = False

    def check(self) -> None:
        """Raises a RuntimeError if the cord is cut."""
        if self.is_cut:
            raise RuntimeError(_CUT)

    def wait(self, work: Any, limit: float = 0.0) -> bool:
        """Waits until a collective is done, at most `limit` seconds; 0: as long as it takes."""
        until = monotonic() + limit if limit else float("inf")
        while True:
            # Wait before asking: most are done in the first wait, and a reduce_scatter never reports that it
            # is complete.
            try:
                return bool(work.wait(_PATIENCE))
            except RuntimeError as error:
                if work.is_completed():
                    return bool(work.wait())
                if "Operation timed out" not in str(error):
                    raise
            self.check()
            if monotonic() > until:
                raise RuntimeError(f"gloo: a collective took longer than {limit:g} s")

    def apart(self, waiting: Callable[[], Any]) -> Any:
        """Calls a function of gloo in a thread; the thread is left behind when the cord is cut."""
        answer: Answer[Any] = Answer()

        def call() -> None:
            try:
                answer.set_result(waiting())
            except BaseException as error:
                answer.set_exception(error)

        threading.Thread(target=call, name="isobatch gloo", daemon=True).start()
        while True:
            with suppress(Late):
                return answer.result(_PATIENCE.total_seconds())
            self.check()


class Mean:
    """The mean of a model's gradients over the ranks, as a communication hook of DDP, bucket by bucket.

    The last bucket waits for all reductions, as the backward has nothing else to do by then. (A Python
    callback on gloo's thread would take as long as the whole rest of a small reduction.) DDP reads the
    futures only after that, so they are completed from the start, and reused with their buckets.
    """

    def __init__(self, gloo: Any, cord: Cord, size: int) -> None:
        self._gloo, self._wait, self._share = gloo, cord.wait, 1 / size
        self._works: list[Any] = []
        self._buckets: list[tuple[torch.Tensor, Future[torch.Tensor]]] = []

    def of(self, bucket: dist.GradBucket) -> Future[torch.Tensor]:  # type: ignore[name-defined]
        """Begins the mean of a bucket."""
        at, buffer = bucket.index(), bucket.buffer().mul_(self._share)
        self._works.append(self._gloo.allreduce([buffer], _SUM))
        if at == len(self._buckets) or self._buckets[at][0] is not buffer:
            future = Future[torch.Tensor]()
            future.set_result(buffer)
            self._buckets[at : at + 1] = [(buffer, future)]
        if bucket.is_last():
            for work in self._works:
                self._wait(work)
            self._works.clear()
        return self._buckets[at][1]  # type: ignore[no-any-return]


class CuttableWork(_C10D.Work):  # type: ignore[misc]
    """A collective of gloo under way."""

    def __init__(self, work: Any, group: "CuttableGroup", name: str) -> None:
        super().__init__()
        self._work, self._group, self._name = work, group, name

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Waits until it is done, or cut."""
        limit, cord = timeout or timedelta(), self._group.cord
        try:
            # A send or a receive that runs out of time takes its connection with it.
            if self._name in _PAIRED:
                return bool(cord.apart(lambda: self._work.wait(limit)))
            return cord.wait(self._work, limit.total_seconds())
        except RuntimeError as error:
            raise self._group.explain(error) from None

    def synchronize(self) -> None:
        """Waits, as `wait`."""
        self.wait()


class CuttableGroup(dist.ProcessGroup):
    """A process group with a cord: cutting it ends collectives on CPU tensors; NCCL aborts by itself.

    Attributes:
        cord: of the class: the forming crew's; of an instance: that of the crew it was formed in.
        devices: of the class: the devices of the forming crew.
        inner: the same group with torch's own collectives, which cannot be cut.
        of_run: whether its collectives are isobatch's own.
        gloo: the group's backend for the CPU.
    """

    cord = Cord()
    devices: tuple[str, ...] = ("cpu",)
    # torch's C++ looks for an override in each step: without this one it would search in vain each time.
    getSize = dist.ProcessGroup.size

    def __init__(
        self,
        store: Any,
        rank: int,
        size: int,
        timeout: timedelta,
        devices: tuple[str, ...] = (),
        *,
        of_run: bool = False,
    ) -> None:
        super().__init__(rank, size)  # torch 2.11 makes no subclass with a store
        devices, self.of_run = devices or self.devices, of_run
        self.cord = cord = type(self).cord
        self.inner: Any = dist.ProcessGroup(store, rank, size)
        self._cpu_only = devices == ("cpu",)
        kinds: Any = dist.ProcessGroup.BackendType
        for device in devices:
            kind, make = kinds.GLOO, _C10D.ProcessGroupGloo
            if device != "cpu":
                kind, make = kinds.NCCL, _C10D.ProcessGroupNCCL
            arguments = (_C10D.PrefixStore(f"{device}/", store), rank, size, timeout)
            backend = cord.apart(partial(make, *arguments))
            for group in (self, self.inner):
                group._set_default_backend(kind)
                group._register_backend(torch.device(device), kind, backend)
        self.gloo: Any = self._get_backend(torch.device("cpu"))

    @property
    def is_script_s(self) -> bool:
        """Whether its collectives are the script's."""
        return self.cord.trains and not self.of_run

    def explain(self, error: RuntimeError) -> RuntimeError:
        """Returns an error of a collective, with a hint where the collective is the script's."""
        hint = self.cord.hint if self.is_script_s else ""
        return RuntimeError(f"{error}\n{hint}") if hint else error


def _cuttable(name: str) -> Callable[..., Any]:
    frequent = name in FREQUENT

    def collective(self: CuttableGroup, *args: Any, **options: Any) -> Any:
        on_cpu = self._cpu_only or ((first := _first(args)) is not None and first.device.type == "cpu")
        try:
            self.cord.check()
            if on_cpu and self.is_script_s and not _called_by_ddp():
                _check_sizes(self, name, args)
            work = getattr(self.gloo if frequent and on_cpu else self.inner, name)(*args, **options)
            if work is None or not on_cpu:
                return work
            if args and getattr(args[-1], "asyncOp", True) is False:  # The caller would wait for it next.
                self.cord.wait(work)
                return _DONE
        except RuntimeError as error:
            raise self.explain(error) from None
        return CuttableWork(work, self, name)

    collective.__name__ = name
    return collective


def _check_sizes(group: CuttableGroup, name: str, args: Sequence[Any]) -> None:
    """Compares a collective's name and its tensor's size and type among the ranks of a group, before it
    begins: gloo aborts a process that receives too much."""
    place = _ALIKE.get(name, len(args))
    if place >= len(args) or group.size() == 1:
        return
    tensor = _first(args[place : place + 1])
    if tensor is None:
        return
    row = torch.tensor([[*_ALIKE].index(name), tensor.numel(), _TYPES.index(str(tensor.dtype))])
    table = torch.empty(group.size() * len(row), dtype=row.dtype)
    group.cord.wait(group.gloo._allgather_base(table, row))
    rows = table.view(-1, len(row)).tolist()
    for rank, row_of_rank in enumerate(rows):
        if row_of_rank != rows[0]:
            raise InputError(
                f"the ranks' collectives do not match: {_shown(rows[0])} on rank 0, {_shown(row_of_rank)} on "
                f"rank {rank}; all ranks must call the same ones, in the same order, with tensors of the "
                "same shape"
            )


def _shown(row: list[int]) -> str:
    name, size, kind = row
    return f"{[*_ALIKE][name].strip('_')} of {size:,} {_TYPES[kind].removeprefix('torch.')}"


@cache
def leave_to_eager() -> None:
    """Keeps torch.compile out of the collectives: it cannot trace a process group of Python. Called late, as
    torch takes seconds to import the compiler; an optimizer has imported it by then."""
    for owner, names in (CuttableGroup, _collectives()), (CuttableWork, ["wait"]), (Mean, ["of"]):
        for name in names:
            disable: Any = torch.compiler.disable
            setattr(owner, name, disable(vars(owner)[name]))


def _called_by_ddp() -> bool:
    frame = sys._getframe(2)
    while frame.f_back is not None and frame.f_globals.get("__name__") in _BETWEEN:
        frame = frame.f_back
    return frame.f_globals.get("__name__") == _DDP


def _first(args: Any) -> torch.Tensor | None:
    """Returns the first tensor in nested lists; None if there is none."""
    for argument in args:
        if isinstance(argument, torch.Tensor):
            return argument
        if isinstance(argument, list) and (tensor := _first(argument)) is not None:
            return tensor
    return None


def _collectives() -> list[str]:
    words = ("reduce", "gather", "scatter", "alltoall", "all_to_all", "broadcast", "barrier", "send", "recv")
    names = [name for name in dir(dist.ProcessGroup) if any(word in name for word in words)]
    return [name for name in names if name[:2] != "__" and name != "monitored_barrier"]


def _install() -> None:
    """Overrides the collectives of the installed torch, and registers the backend."""
    for name in _collectives():
        setattr(CuttableGroup, name, _cuttable(name))
    for name in ("is_completed", "is_success", "exception", "result", "get_future", "_source_rank"):
        setattr(CuttableWork, name, lambda self, *args, name=name: getattr(self._work, name)(*args))
    dist.Backend.register_backend(BACKEND, CuttableGroup, devices=["cpu", "cuda"])
    of_run = partial(CuttableGroup, devices=("cpu",), of_run=True)
    dist.Backend.register_backend(CPU_BACKEND, of_run, devices=["cpu"])


_install()
