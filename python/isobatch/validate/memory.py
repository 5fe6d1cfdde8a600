"""Does it fit? The peak memory of a training step, worked out with fake tensors before a GPU is rented.

Fake tensors have a shape, a type and no memory: the real model, loss and optimizer run on them, and a ledger counts the
storages that live at once. A model of any size is worked out on a laptop.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Sequence
from typing import Any, Literal

import msgspec
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from isobatch.checked import real, wholes
from isobatch.diagnosis.precision import AUTOCAST
from isobatch.errors import InputError, missing, must_be
from isobatch.validate.measure.memory import RESERVE, RESERVE_BYTES
from isobatch.validate.step.workload import Workload, factory_of, made

GIB = 2**30
BLOCK = 512
"""CUDA's allocator gives out memory in multiples of so many bytes."""
MOST = 2**20
"""No larger micro-batch is looked for."""


class Memory(msgspec.Struct, frozen=True, kw_only=True):
    """The peak memory of one GPU in a training step under DDP, worked out, not measured.

    ``peak_bytes`` has it by micro-batch. Of each, ``weights_bytes`` are the model's parameters and buffers,
    ``gradient_bytes`` the gradients with DDP's buckets, ``optimizer_bytes`` the optimizer's state; the rest are activations and
    temporaries. Where ``memory_gib`` was given, ``micro_batch`` is the largest that fits it with ``reserve_gib`` to spare; 0 where
    not even one sample does.
    """

    precision: str
    weights_bytes: int
    gradient_bytes: int
    optimizer_bytes: int
    peak_bytes: dict[int, int]
    memory_gib: float | None = None
    reserve_gib: float | None = None
    micro_batch: int | None = None

    def explain(self) -> str:
        """The figures as a text."""

        def gib(count: int) -> str:
            return f"{count / GIB:,.2f} GiB"

        lines = [
            f"Peak memory of a step in {self.precision}, worked out with fake tensors, not measured:",
            f"  weights {gib(self.weights_bytes)}, gradients with DDP's buckets {gib(self.gradient_bytes)}, "
            f"optimizer {gib(self.optimizer_bytes)}",
            *(f"  micro-batch {n:>7,}  {gib(peak):>12}" for n, peak in sorted(self.peak_bytes.items())),
        ]
        if self.memory_gib is not None:
            found = f"micro-batch {self.micro_batch:,}" if self.micro_batch else "not even one sample"
            lines.append(
                f"What fits {self.memory_gib:g} GiB, with {self.reserve_gib:.3g} GiB left for CUDA, NCCL and fragmentation: {found}"
            )
        return "\n".join(lines)


def memory_of(
    workload: str | Callable[[], Workload],
    *,
    micro_batches: Sequence[int] | None = None,
    memory_gib: float | None = None,
    reserve_gib: float | None = None,
    precision: Literal["fp32", "tf32", "bf16", "fp16"] = "fp32",
    clip_norm: float | None = None,
    device: Literal["cuda", "cpu"] = "cuda",
) -> Memory:
    """Works out the peak memory of a training step, without a GPU and without the memory.

    The step is that of DDP with accumulation: the gradients of the micro-batches before and DDP's buckets are there. It is
    the second step, when the optimizer has its state. Not counted are what CUDA's context, NCCL and cuBLAS take, fragmentation, and the workspace of kernels: hence the reserve. Autocast
    is the CPU's, whose lists of operations differ a little from CUDA's.

    Args:
        workload: ``"package.module:factory"`` or a function without arguments, which returns an `isobatch.validate.Workload`. It
            is called under fake tensors, and must make the model in there.
        micro_batches: samples at which to work it out; None: those that the search for the largest needs, or 1, 2, 4 and 8.
        memory_gib: a GPU's memory, GiB: then the largest micro-batch that fits is looked for.
        reserve_gib: what stays free of it, GiB; None: 4 % of it, 2 GiB at least.
        precision: a recipe's; bf16 and fp16 are autocast's, with weights as the model has them.
        clip_norm: as in the recipe.
        device: "cuda" takes the optimizer in the form that torch takes on a GPU, a tensor list at once, which needs more
            memory; "cpu" takes it one tensor after another.

    Raises:
        InputError: there is no such factory, what it makes is no workload, a size or an amount is illegal, or the step
            cannot be worked out, as where the model looks at its own values.

    Source: `PyTorch's fake tensors <https://docs.pytorch.org/docs/stable/torch.compiler_fake_tensor.html>`_; against measured CPU
    peaks it is 1 % too low to 16 % too high for transformers, and 30 % too low for convolutions (bench/results/memory.md).

    >>> import torch, isobatch as ib
    >>> from isobatch.validate import Workload
    >>> def train():
    ...     return Workload(
    ...         model=torch.nn.Linear(1024, 1024),
    ...         optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    ...         batch=lambda n, generator, device: torch.randn(n, 1024, generator=generator).to(device),
    ...         loss=lambda model, batch: model(batch).square().mean(),
    ...     )
    >>> memory = ib.memory_of(train, memory_gib=24)
    >>> memory.weights_bytes == (1024 * 1024 + 1024) * 4, memory.reserve_gib
    (True, 2.0)
    """
    if precision not in AUTOCAST or precision is None:
        raise must_be("fp32, tf32, bf16 or fp16", precision, field="precision")
    if device not in ("cuda", "cpu"):
        raise must_be("cuda or cpu", device, field="device")
    sizes = [] if micro_batches is None else [int(n) for n in wholes(micro_batches, "micro_batches", 1, MOST)]
    room = _room(memory_gib, reserve_gib)
    with _Step(workload, AUTOCAST[precision], clip_norm, device) as step:
        peaks = {n: step.peak(n) for n in sizes or ([] if room else [1, 2, 4, 8])}
        best = None if room is None else largest(step.peak, int((room[0] - room[1]) * GIB), peaks)
        return Memory(
            precision=precision,
            weights_bytes=step.weights,
            gradient_bytes=step.gradients,
            optimizer_bytes=step.states,
            peak_bytes=dict(sorted(peaks.items())),
            memory_gib=room and room[0],
            reserve_gib=room and room[1],
            micro_batch=best,
        )


def _room(memory_gib: float | None, reserve_gib: float | None) -> tuple[float, float] | None:
    """The memory and what of it stays free, GiB."""
    if memory_gib is None:
        if reserve_gib is not None:
            raise missing("memory_gib", "a reserve is a part of it")
        return None
    memory = real(memory_gib, "memory_gib", "a finite number above 0", lambda x: x > 0)
    if reserve_gib is None:
        return memory, max(RESERVE_BYTES / GIB, RESERVE * memory)
    return memory, real(reserve_gib, "reserve_gib", "a finite number from 0", lambda x: x >= 0)


def largest(peak: Callable[[int], int], room: int, known: dict[int, int]) -> int:
    """The largest micro-batch whose peak is within the room, 0 where none is; `known` gets what was worked out on the way.

    Peaks are nearly a line: the next size is where the line through two known ones meets the room.

    >>> known = {}
    >>> largest(lambda n: 100 + 7 * n, 1000, known), sorted(known)
    (128, [1, 2, 128, 129])
    """

    def fits(n: int) -> bool:
        if n not in known:
            known[n] = peak(n)
        return known[n] <= room

    if not fits(1):
        return 0
    low, high, guess, halve = 1, MOST + 1, 2, False
    while high - low > 1:
        low, high = (guess, high) if fits(guess) else (low, guess)
        other = high if high in known else max((n for n in known if n < low), default=1)
        slope = (known[other] - known[low]) / (other - low) if other != low else 0.0
        guess = low + int((room - known[low]) / slope) if slope > 0 else high
        # Where the peaks are no line, every other size halves what is left.
        guess = (low + high) // 2 if halve else min(max(guess, low + 1), high - 1)
        halve = high in known and not halve
    return low


class _Step:
    """A training step on fake tensors, whose peak is looked up by micro-batch."""

    def __init__(
        self,
        workload: str | Callable[[], Workload],
        dtype: torch.dtype | None,
        clip_norm: float | None,
        device: str,
    ) -> None:
        self._factory = factory_of(workload) if isinstance(workload, str) else workload
        self._dtype, self._clip_norm, self._device = dtype, clip_norm, device
        self._ledger = _Ledger()

    def __enter__(self) -> _Step:
        with contextlib.ExitStack() as stack:
            stack.enter_context(FakeTensorMode(allow_non_fake_inputs=True))
            work = made(self._factory)
            stack.enter_context(self._ledger)
            self._make(work)
            self._modes = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._modes.close()

    def _make(self, work: Workload) -> None:
        ledger, self._work = self._ledger, work
        model = work.model.train()
        tensors = [*model.parameters(), *model.buffers()]
        if not all(isinstance(tensor, FakeTensor) for tensor in tensors):
            raise InputError(
                "the factory must make the model each time it is called: this one existed before",
                field="workload",
            )
        for tensor in tensors:
            ledger.note(tensor)
        self.weights = ledger.now
        self._trained = [p for p in model.parameters() if p.requires_grad]
        self._optimizer = work.optimizer(self._trained)
        for group in self._optimizer.param_groups if self._device == "cuda" else ():
            if "foreach" in group and group["foreach"] is None and not group.get("fused"):
                group["foreach"] = True
        self._buckets = [torch.empty_like(p) for p in self._trained]
        before = ledger.now
        self._step(1)
        self.states = ledger.now - before
        self.gradients = 2 * (before - self.weights)

    def peak(self, n: int) -> int:
        """The most bytes that live at once in a step with micro-batches of `n` samples."""
        self._ledger.peak = self._ledger.now
        self._step(n)
        return self._ledger.peak

    def _step(self, n: int) -> None:
        try:
            for _ in range(2):  # the second micro-batch finds the gradients of the first
                self._backward(n)
            if self._clip_norm is not None:
                nn.utils.clip_grad_norm_(self._trained, self._clip_norm)
            self._optimizer.step()
            self._optimizer.zero_grad()
        except Exception as error:  # the user's own code, on tensors without values
            said = f"{type(error).__name__}: {error}".splitlines()[0]
            raise InputError(
                f"the step cannot be worked out without values ({said}); measure it: isobatch validate --find-micro-batch",
                field="workload",
            ) from error

    def _backward(self, n: int) -> None:
        work = self._work
        batch = work.batch(n, torch.Generator().manual_seed(0), torch.device("cpu"))
        with torch.autocast("cpu", self._dtype, enabled=self._dtype is not None):
            loss = work.loss(work.model, batch)
        loss.backward()  # type: ignore[no-untyped-call]


class _Ledger(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the bytes of the storages that live at once: `now`, and the most so far (`peak`)."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.now = self.peak = 0
        self._sizes: dict[int, int] = {}

    def note(self, tensor: Tensor) -> None:
        """Counts a tensor's storage, once, for as long as it lives."""
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key not in self._sizes:
            size = -(-storage.nbytes() // BLOCK) * BLOCK
            self._sizes[key] = size
            self.now += size
            self.peak = max(self.peak, self.now)
            weakref.finalize(storage, self._forget, key)

    def _forget(self, key: int) -> None:
        self.now -= self._sizes.pop(key)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        made = func(*args, **kwargs)
        given = {t.untyped_storage()._cdata for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)}
        for tensor in tree_leaves(made):
            # A view of what a factory keeps elsewhere, such as a dataset, is no memory of the step's.
            if isinstance(tensor, Tensor) and tensor.untyped_storage()._cdata not in given:
                self.note(tensor)
        return made
