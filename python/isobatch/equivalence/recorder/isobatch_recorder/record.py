"""The record of one rank: a JSON file and a file of float64 for each step of an optimizer."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch

from .running import describe
from .sketch import size_of, sketch, whole


class Pass:
    """The samples of one backward pass: their hashes, and the tokens that a loss may count."""

    def __init__(self, hashes: list[str], tokens: list[int]) -> None:
        self.hashes, self.tokens = hashes, tokens


class Recorder:
    """The state of the recording of one process.

    Args:
        settings: `folder` to write into; `steps` after which the script ends; `buckets` of a tensor's sketch;
            `each_pass`, whether the gradient of each pass is kept; `alike`, whether random draws are alike
            for all rows; `freeze`, whether batch norm uses its running statistics; `as_is`, whether autocast
            stays; `describe`, whether the trainer and its scheduler are described; `rows` to draw, or null.
    """

    def __init__(self, settings: dict[str, Any]) -> None:
        self.settings = settings
        self.folder = Path(settings["folder"])
        self.busy = False
        self.notes: dict[str, int] = {}
        self.optimizers: list[torch.optim.Optimizer] = []
        self.names: dict[int, str] = {}
        self.drawn: list[dict[str, Any]] = []
        self.drawn_from: dict[str, Any] | None = None
        self.datasets: list[Any] = []
        self.in_backward = False
        self.began = time.monotonic()
        self.steps: dict[int, int] = {}
        self.passes: dict[int, list[Pass]] = {}
        self.gradients: dict[int, list[torch.Tensor]] = {}
        self.norms: list[tuple[float, float]] = []
        self.forwards: list[Pass] = []

    def note(self, text: str) -> None:
        """Counts a note for the report."""
        self.notes[text] = self.notes.get(text, 0) + 1

    @property
    def rank(self) -> int:
        """The rank of this process: a script that spawns its ranks gives it to the process group alone."""
        distributed = torch.distributed
        if distributed.is_available() and distributed.is_initialized():
            return distributed.get_rank()
        # Lightning starts its ranks with LOCAL_RANK alone.
        return int(os.environ.get("RANK") or os.environ.get("LOCAL_RANK") or "0")

    @property
    def parameters(self) -> list[torch.Tensor]:
        """The parameters of all optimizers, each once, in the optimizers' order."""
        every = (
            p for optimizer in self.optimizers for group in optimizer.param_groups for p in group["params"]
        )
        return list({id(p): p for p in every}.values())

    def gradient(self) -> torch.Tensor:
        """Sketches the gradient of all parameters as it is now."""
        parts = [
            torch.zeros(self._size(p), dtype=torch.float64)
            if grad is None
            else sketch(i, grad, self.settings["buckets"])
            for i, p in enumerate(self.parameters)
            for grad in (p.grad if p.grad is not None else getattr(p, "main_grad", None),)
        ]
        return torch.cat(parts) if parts else torch.zeros(0, dtype=torch.float64)

    def end_pass(self, change: torch.Tensor | None) -> None:
        """Keeps the samples of a backward pass; another loss of the same samples belongs to the pass before."""
        forwards, self.forwards = self.forwards, []
        if self.drawn_from is not None:
            self.drawn_from["passes"] += 1
            self.drawn_from = None
        hashes = [row for forward in forwards for row in forward.hashes]
        tokens = [sum(counts) for counts in zip(*(f.tokens for f in forwards if f.tokens))]
        for number in range(len(self.optimizers)):
            passes, gradients = self.passes.setdefault(number, []), self.gradients.setdefault(number, [])
            if forwards or not passes:
                passes.append(Pass(hashes, tokens))
                if change is not None:
                    gradients.append(change)
            elif change is not None:
                gradients[-1] = gradients[-1] + change

    def write_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Writes the record of an optimizer step, and ends the script after the last requested step."""
        if self.busy or optimizer not in self.optimizers:
            return
        self.busy = True
        try:
            number = self.optimizers.index(optimizer)
            step = self.steps.get(number, 0)
            self._write(number, step, optimizer)
            self.steps[number] = step + 1
            self.passes[number], self.gradients[number], self.norms = [], [], []
            if max(self.steps.values()) >= self.settings["steps"] and number == max(self.steps):
                self._end(number, step)
        finally:
            self.busy = False

    def _size(self, parameter: torch.Tensor) -> int:
        return size_of(parameter, self.settings["buckets"])

    def _write(self, number: int, step: int, optimizer: torch.optim.Optimizer) -> None:
        parameters = self.parameters
        own = {id(p) for group in optimizer.param_groups for p in group["params"]}
        weights = torch.cat([sketch(i, p, self.settings["buckets"]) for i, p in enumerate(parameters)])
        rows = [self.gradient(), weights, *self.gradients.get(number, [])]
        passes = self.passes.get(number, [])
        record = {
            "optimizer": number,
            "step": step,
            "rank": self.rank,
            "kind": type(optimizer).__name__,
            "world": _world(),
            "groups": [
                {"tensors": len(group["params"]), **_plain(group)} for group in optimizer.param_groups
            ],
            "names": [self.names.get(id(p), f"parameter {i}") for i, p in enumerate(parameters)],
            "sizes": [self._size(p) for p in parameters],
            "entries": [whole(p).numel() for p in parameters],
            "own": [id(p) in own for p in parameters],
            "half": any(p.dtype in (torch.float16, torch.bfloat16) for p in parameters),
            "passes": [{"hashes": samples.hashes, "tokens": samples.tokens} for samples in passes],
            "norms": self.norms,
            "drawn": self.drawn,
            "notes": self.notes,
            "seconds": round(time.monotonic() - self.began, 3),
            "versions": _versions(),
        }
        if self.settings["describe"] and self.rank == 0:
            record["running"] = describe(optimizer, step, is_last=step + 1 >= self.settings["steps"])
        name = f"step-{number}-{step}-{self.rank}"
        with (self.folder / f"{name}.f64").open("wb") as file:
            file.write(torch.stack(rows).contiguous().numpy().tobytes())
        part = self.folder / f"{name}.part"
        part.write_text(json.dumps(record))
        part.rename(self.folder / f"{name}.json")  # what is there is whole

    def _end(self, number: int, step: int) -> None:
        """Ends this process after every rank has written its step.

        A rank that ends early looks like a failure to the rest.
        """
        sys.stdout.flush()
        sys.stderr.flush()
        deadline = time.monotonic() + 60
        names = [self.folder / f"step-{number}-{step}-{rank}.json" for rank in range(_world())]
        while not all(name.exists() for name in names) and time.monotonic() < deadline:
            time.sleep(0.01)
        os._exit(0)


def _world() -> int:
    distributed = torch.distributed
    return distributed.get_world_size() if distributed.is_available() and distributed.is_initialized() else 1


def _plain(group: dict[str, Any]) -> dict[str, Any]:
    """Returns the JSON values of a parameter group: the learning rate, betas, weight decay and so on."""
    plain: dict[str, Any] = {}
    for name, value in group.items():
        if name == "params":
            continue
        if isinstance(value, torch.Tensor) and value.numel() == 1:
            value = value.item()
        if isinstance(value, (bool, int, float, str)) or value is None:
            plain[name] = value
        elif isinstance(value, (tuple, list)) and all(isinstance(item, (int, float)) for item in value):
            plain[name] = list(value)
    return plain


def _versions() -> dict[str, str]:
    """Returns the versions of the training libraries imported by the script."""
    names = (
        "torch",
        "transformers",
        "accelerate",
        "trl",
        "lightning",
        "peft",
        "sentence_transformers",
        "deepspeed",
        "torchtune",
    )
    return {
        name: str(getattr(sys.modules[name], "__version__", "?")) for name in names if name in sys.modules
    }
