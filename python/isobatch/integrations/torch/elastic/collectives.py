"""A process group whose collectives end when it is cut, also where gloo would wait on."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future as Answer
from concurrent.futures import TimeoutError as Late
from contextlib import suppress
from datetime import timedelta
from functools import partial
from time import monotonic
from typing import Any

import torch
import torch.distributed as dist

_C10D: Any = dist.distributed_c10d
BACKEND, CPU_BACKEND = "isobatch", "isobatch_cpu"
"""torch's names of the crew's backend, so that groups that a training makes for itself are cut too, and of its part for the CPU."""

_PATIENCE = timedelta(seconds=0.1)
_CUT = "gloo: the group was cut, as a rank of the crew was lost"


class Cord:
    """What the collectives of a crew hang on. It is cut once, from another thread, and then nothing waits any more.

    gloo waits for a rank to connect in a condition that no socket ends, and forgets the sends that are under way when a connection ends
    (`Pair::signalException` in gloo/transport/tcp/pair.cc passes over the unbound buffers of `tx_`): who waits for one waits for the
    group's whole time-out, a rank that was paused while the others cut it off above all. So what gloo waits in is left to a thread.
    """

    def __init__(self) -> None:
        self.is_cut = False

    def check(self) -> None:
        """Raises a RuntimeError where it is cut."""
        if self.is_cut:
            raise RuntimeError(_CUT)

    def wait(self, work: Any, limit: float = 0.0) -> bool:
        """Waits until a collective is done, at most `limit` seconds; 0: as long as it takes.

        Raises:
            RuntimeError: it failed, was cut, or took longer.
        """
        until = monotonic() + limit if limit else float("inf")
        while not work.is_completed():
            self.check()
            if monotonic() > until:
                raise RuntimeError(f"gloo: a collective took longer than {limit:g} s")
            try:  # A reduce_scatter never says that it is complete.
                return bool(work.wait(_PATIENCE))
            except RuntimeError as error:
                if "Operation timed out" not in str(error):
                    raise
        return bool(work.wait())

    def apart(self, waiting: Callable[[], Any]) -> Any:
        """Calls what waits in gloo in a thread, which is left behind when the cord is cut."""
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


class CuttableWork(_C10D.Work):  # type: ignore[misc]
    """A collective of gloo that is under way."""

    def __init__(self, work: Any, cord: Cord, *, paired: bool) -> None:
        super().__init__()
        self._work, self._cord, self._paired = work, cord, paired

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Waits until it is done, or cut.

        Raises:
            RuntimeError: it failed, was cut, or took longer than `timeout`.
        """
        limit = timeout or timedelta()
        if self._paired:  # A send or a receive that runs out of time takes its connection with it.
            return bool(self._cord.apart(lambda: self._work.wait(limit)))
        return self._cord.wait(self._work, limit.total_seconds())

    def synchronize(self) -> None:
        """Waits, as `wait`."""
        self.wait()


class CuttableGroup(dist.ProcessGroup):
    """A process group whose collectives of CPU tensors, gloo's, end when its cord is cut; NCCL's are left as they are, as it can abort.

    Attributes:
        cord: of the crew that forms, and of each group then.
        devices: of the crew that forms.
        inner: the same group, whose collectives do not end.
    """

    cord = Cord()
    devices: tuple[str, ...] = ("cpu",)

    def __init__(
        self, store: Any, rank: int, size: int, timeout: timedelta, devices: tuple[str, ...] = ()
    ) -> None:
        super().__init__(store, rank, size)
        devices = devices or self.devices
        self.cord = cord = type(self).cord
        self.inner: Any = dist.ProcessGroup(store, rank, size)
        self._cpu_only = devices == ("cpu",)
        kinds: Any = dist.ProcessGroup.BackendType
        for device in devices:
            kind, make = (
                (kinds.GLOO, _C10D.ProcessGroupGloo)
                if device == "cpu"
                else (kinds.NCCL, _C10D.ProcessGroupNCCL)
            )
            arguments = (_C10D.PrefixStore(f"{device}/", store), rank, size, timeout)
            backend = cord.apart(partial(make, *arguments))
            for group in (self, self.inner):
                group._set_default_backend(kind)
                group._register_backend(torch.device(device), kind, backend)


def _cuttable(name: str) -> Callable[..., Any]:
    paired = name in ("send", "recv", "recv_anysource")

    def collective(self: CuttableGroup, *args: Any, **options: Any) -> Any:
        self.cord.check()
        work = getattr(self.inner, name)(*args, **options)
        tensor = _first(args)
        on_cpu = self._cpu_only if tensor is None else tensor.device.type == "cpu"
        return CuttableWork(work, self.cord, paired=paired) if work is not None and on_cpu else work

    collective.__name__ = name
    return collective


def _first(args: Any) -> torch.Tensor | None:
    """Returns the first tensor in nested lists of them; None where there is none."""
    for one in args:
        found = one if isinstance(one, torch.Tensor) else _first(one) if isinstance(one, list) else None
        if found is not None:
            return found
    return None


def _install() -> None:
    """Overrides the collectives that this torch has, and makes the backend known to it."""
    words = ("reduce", "gather", "scatter", "alltoall", "all_to_all", "broadcast", "barrier", "send", "recv")
    for name in dir(dist.ProcessGroup):
        if any(word in name for word in words) and name != "monitored_barrier":
            setattr(CuttableGroup, name, _cuttable(name))
    for name in ("is_completed", "is_success", "exception", "result", "get_future", "_source_rank"):
        setattr(CuttableWork, name, lambda self, *args, name=name: getattr(self._work, name)(*args))
    dist.Backend.register_backend(BACKEND, CuttableGroup, devices=["cpu", "cuda"])
    on_cpu = partial(CuttableGroup, devices=("cpu",))
    dist.Backend.register_backend(CPU_BACKEND, on_cpu, devices=["cpu"])


_install()
