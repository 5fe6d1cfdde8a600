"""The first micro-batches' random states, to repeat a script's noise and compare generators, and inputs."""

import hashlib
import random
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from isobatch.guard.run import MAX_CALLS, Run

SAME_NOISE = (
    "all ranks draw the same random numbers for noise, timesteps or masks: their generators are equal at the "
    "first step; seed each rank differently once the model is made, torch.manual_seed(seed + rank)"
)
NORMAL = {"randn", "randn_like", "normal", "normal_"}
MAX_COMPARED_DRAWS = 64


def cuda_in_use() -> bool:
    """Tells whether the training has used CUDA."""
    return bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]


class RandomState(NamedTuple):
    """States of the default generators: torch's on the CPU and on CUDA, Python's, NumPy's."""

    cpu: Tensor
    cuda: Tensor | None
    python: Any
    numpy: Any

    @classmethod
    def now(cls) -> "RandomState":
        """Reads the states."""
        cuda = torch.cuda.get_rng_state() if cuda_in_use() else None
        return cls(torch.get_rng_state(), cuda, random.getstate(), np.random.get_state())

    def restore(self) -> None:
        """Sets the generators back to these states."""
        torch.set_rng_state(self.cpu)
        if self.cuda is not None:
            torch.cuda.set_rng_state(self.cuda)
        random.setstate(self.python)
        np.random.set_state(self.numpy)

    def digests(self) -> list[str]:
        """Returns a short text for each generator, equal where the states are."""
        name, key, *rest = self.numpy
        cuda = b"" if self.cuda is None else self.cuda.numpy().tobytes()
        python, numpy = repr(self.python).encode(), key.tobytes() + repr((name, rest)).encode()
        states = (self.cpu.numpy().tobytes(), cuda, python, numpy)
        return [hashlib.blake2b(state, digest_size=8).hexdigest() for state in states]


def drawn_between(before: RandomState, after: RandomState, least: int) -> list[bool]:
    """Tells for each generator whether at least `least` numbers were drawn.

    Ranks may draw a few equal numbers on purpose.

    >>> before = RandomState.now()
    >>> _ = torch.randn(8), random.random()
    >>> drawn_between(before, RandomState.now(), least=4)
    [True, False, False, False]
    """
    now, target = RandomState.now(), after.digests()
    drawn = [True] * len(target)
    before.restore()
    for _ in range(least):
        states = RandomState.now().digests()
        drawn = [many and a != b for many, a, b in zip(drawn, states, target, strict=True)]
        if not any(drawn):
            break
        torch.empty((), dtype=torch.int32).random_()
        random.getrandbits(32)
        np.random.bytes(4)
    now.restore()
    return drawn


@dataclass
class RecordedCall:
    """A micro-batch in the first steps.

    Its random states are those as it starts, at the model's first call and its last. `inputs` has checksums
    of the model's, by argument.
    """

    start: RandomState
    first: RandomState
    last: RandomState
    inputs: dict[str, set[tuple[int, int]]] = field(default_factory=dict)


class CallRecording:
    """Records the calls of the model in the first steps.

    A micro-batch starts when the loader gives it or, if the loop fetches ahead, after the last backward pass.
    """

    def __init__(self, run: Run) -> None:
        self._run, self._start = run, RandomState.now()
        self.calls: list[RecordedCall] = []

    def begin(self) -> None:
        """Starts a micro-batch."""
        if self._run.near and not self._run.own:
            self._start = RandomState.now()

    def forward(self) -> None:
        """Records a call of the model."""
        now = RandomState.now()
        self.calls.append(RecordedCall(self._start, now, now))
        if len(self.calls) > MAX_CALLS:
            del self.calls[: -MAX_CALLS // 2]

    def fold(self, first: list[bool]) -> None:
        """Merges the calls of each micro-batch. `first`: whether each call begins one."""
        calls, self.calls = self.calls[-len(first) :], []
        for call, is_first in zip(calls, first, strict=True):
            if is_first:
                self.calls.append(call)
            elif self.calls:  # else a call before the first micro-batch, such as a warm-up
                whole = self.calls[-1]
                whole.last = call.first
                for name, digests in call.inputs.items():
                    whole.inputs.setdefault(name, set()).update(digests)

    def take(self, micro_batches: int) -> list[RecordedCall]:
        """Returns a step's last micro-batches, and forgets all."""
        calls, self.calls = self.calls[-micro_batches:], []
        return calls


def same_generators(run: Run, calls: list[RecordedCall]) -> tuple[bool, bool]:
    """Compares the ranks' random generators at the first micro-batch.

    Returns whether all torch generators are equal when it starts, and whether the script draws the same
    numbers on all ranks between loader and model.
    """
    if run.ranks == 1 or not all(run.exchange("calls", bool(calls))):
        return False, False
    drawn = drawn_between(calls[0].start, calls[0].first, min(run.plan.micro_batch or 1, MAX_COMPARED_DRAWS))
    answers = run.exchange("generators", (calls[0].start.digests(), drawn))
    states, draws = (list(zip(*column, strict=True)) for column in zip(*answers, strict=True))
    equal = [len(set(digests)) == 1 for digests in states]
    return equal[0] and equal[1], any(map(all, zip(equal, *zip(*draws, strict=True), strict=True)))


class NormalDraws(TorchFunctionMode):
    """Measures the largest draw of normal random numbers from torch's own generators, as `most`."""

    most: int = 0

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = function(*args, **kwargs)
        if getattr(function, "__name__", "") in NORMAL and kwargs.get("generator") is None:
            self.most = max(self.most, result.numel() if isinstance(result, Tensor) else 0)
        return result
