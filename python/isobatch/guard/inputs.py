"""Whether the script's batches go into the model as the loader gave them: mixup, noise and the like change them on the way, and
then no reference can be computed from the loader's."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from isobatch.diagnosis.tensors import checksum, mapped
from isobatch.guard.run import Run

Digest = tuple[int, int]


class Inputs:
    """The tensors that go into the model in each micro-batch of a step, by their checksums; and in the guard's own forwards."""

    def __init__(self, run: Run, model: nn.Module) -> None:
        self._run, self._model = run, model
        self._script: list[set[Digest]] = []
        self._own = set[Digest]()
        self._handle = model.register_forward_pre_hook(self._note, with_kwargs=True)

    def __deepcopy__(self, _: Any) -> Inputs:
        return self  # the hook of a model's copy: it asks for nothing of its own

    def remove(self) -> None:
        """Takes the hook out."""
        self._handle.remove()

    def forward(self) -> None:
        """A micro-batch begins."""
        self._script.append(set())

    def _note(self, _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if not torch.is_grad_enabled() or not (self._run.own or self._script):
            return
        seen = self._own if self._run.own else self._script[-1]

        def add(one: Any) -> Any:
            if isinstance(one, Tensor):
                seen.add(checksum([one]))
            return one

        mapped([*args, *kwargs.values()], add)

    def begin_own(self) -> None:
        """The guard's own forward of a micro-batch begins."""
        self._own.clear()

    def same(self, back: int) -> bool:
        """Whether the guard's own forward was given nothing that the script's was not, in the micro-batch so far back."""
        return self._own <= self._script[-back]

    def step(self) -> None:
        """The next step begins."""
        self._script.clear()
