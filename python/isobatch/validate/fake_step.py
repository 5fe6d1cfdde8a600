"""A training step on fake tensors, and a ledger of its living storages."""

import contextlib
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from isobatch.equivalence.tensors import AUTOCAST
from isobatch.errors import InputError, first_line
from isobatch.validate.workload import Workload, call_factory, factory_of

BLOCK = 512
"""CUDA's allocator hands out memory in multiples of this many bytes."""


class FakeStep:
    """A training step on fake tensors: `weights`, `gradients`, `states` in bytes, `peak` by micro-batch."""

    def __init__(
        self, workload: str | Callable[[], Workload], precision: str, clip_norm: float | None, device: str
    ) -> None:
        self._factory = factory_of(workload) if isinstance(workload, str) else workload
        self._dtype, self._clip_norm, self._device = AUTOCAST[precision], clip_norm, device
        self._ledger = _Ledger()

    def __enter__(self) -> "FakeStep":
        with contextlib.ExitStack() as stack:
            stack.enter_context(FakeTensorMode(allow_non_fake_inputs=True))
            self._work = call_factory(self._factory)
            stack.enter_context(self._ledger)
            self._make()
            self._modes = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._modes.close()

    def _make(self) -> None:
        ledger, model = self._ledger, self._work.model.train()
        tensors = [*model.parameters(), *model.buffers()]
        if not all(isinstance(tensor, FakeTensor) for tensor in tensors):
            text = "the factory must make the model each time it is called: this one existed before"
            raise InputError(text, field="workload")
        for tensor in tensors:
            ledger.note(tensor)
        self.weights = ledger.now
        self._trained = [p for p in model.parameters() if p.requires_grad]
        self._optimizer = self._work.optimizer(self._trained)
        for group in self._optimizer.param_groups if self._device == "cuda" else ():
            if group.get("foreach", False) is None and not group.get("fused"):
                group["foreach"] = True
        self._buckets = [torch.empty_like(p) for p in self._trained]
        before = ledger.now
        self._step(1)
        self.states = ledger.now - before
        self.gradients = 2 * (before - self.weights)

    def peak(self, n: int) -> int:
        """Computes the peak bytes of a step with micro-batches of `n` samples."""
        self._ledger.peak = self._ledger.now
        self._step(n)
        return self._ledger.peak

    def _step(self, n: int) -> None:
        try:
            for _ in range(2):  # the second micro-batch finds the gradients of the first
                batch = self._work.batch(n, torch.Generator().manual_seed(0), torch.device("cpu"))
                with torch.autocast("cpu", self._dtype, enabled=self._dtype is not None):
                    loss = self._work.loss(self._work.model, batch)
                loss.backward()  # type: ignore[no-untyped-call]
                del loss, batch
            if self._clip_norm is not None:
                nn.utils.clip_grad_norm_(self._trained, self._clip_norm)
            self._optimizer.step()
            self._optimizer.zero_grad()
        except Exception as error:  # the user's own code, on tensors without values
            text = f"the step cannot be worked out without values ({first_line(error)})"
            todo = "measure it: isobatch validate --find-micro-batch"
            raise InputError(f"{text}; {todo}", field="workload") from error


class _Ledger(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the bytes of all living storages: `now`, and the most so far (`peak`)."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.now = self.peak = 0
        self._sizes: dict[int, int] = {}

    def note(self, tensor: Tensor) -> None:
        """Counts a tensor's storage, once, for as long as it lives."""
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key not in self._sizes:
            self._sizes[key] = size = -(-storage.nbytes() // BLOCK) * BLOCK
            self.now += size
            self.peak = max(self.peak, self.now)
            weakref.finalize(storage, self._forget, key)

    def _forget(self, key: int) -> None:
        self.now -= self._sizes.pop(key)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        results = func(*args, **kwargs)
        storages = {t.untyped_storage()._cdata for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)}
        for tensor in tree_leaves(results):
            # A view of what a factory keeps elsewhere, such as a dataset, is no memory of the step's.
            if isinstance(tensor, Tensor) and tensor.untyped_storage()._cdata not in storages:
                self.note(tensor)
        return results
