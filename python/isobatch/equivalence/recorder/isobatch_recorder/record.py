"""The record of one rank: a JSON file and a file of float64 for each step of an optimizer."""

from __future__ import annotations

import contextlib
import json
import math
import os
import signal
import sys
import sysconfig
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from . import details, entries
from .checkpoints import WrittenFiles
from .gradients import gradient_of, gradients_as_weights
from .rounding import shake
from .running import describe, name_trainer
from .sketch import size_of, sketch
from .typed import TypedNumbers

LIBRARIES = (
    *("torch", "transformers", "accelerate", "trl", "lightning", "peft"),
    *("sentence_transformers", "deepspeed", "torchtune"),
)
"""Their versions are in the record, if the script imports them."""


class Recorder:
    """The state of the recording of one process.

    Args:
        settings: `folder` to write into; `steps` after which the script ends; `buckets` of a tensor's sketch;
            `each_pass`, whether the gradient of each pass is kept; `alike`, whether random draws are alike
            for all rows; `freeze`, whether batch norm uses its running statistics; `as_is`, whether autocast
            stays; `describe`, whether the trainer and its scheduler are described; `shake`, whether recorded
            gradients get noise of the size of rounding; `singles`, whether each step is one of the samples
            that are asked for, and changes no weight; `still`, the steps after which the
            script ends before it writes a file, all at a learning rate of 0, or 0;
            `entries`, whether whole tensors are kept beside their
            sketches; `details`, whether inputs, losses and states are kept;
            `untouched`, whether the training is only watched, and `dropout`, whether it is on then; `seed` of
            the generators; `watched`, a folder for checkpoints; `stop`, the steps after which the script is
            killed, or 0; `weights`, a file of first weights, or ""; `rows` to draw, or null;
            `rollouts`, a file of completions to play, or "";
            `split`, set in the code's objects of the kinds in `sets`, in the `loader` of the training and in
            `flags`;
            `look`, the most samples of a step when a run only looks at the code, else 0.
    """

    def __init__(self, settings: dict[str, Any]) -> None:
        self.begin(settings)

    def begin(self, settings: dict[str, Any]) -> None:
        """Starts with nothing recorded."""
        self.settings = settings
        self.folder = Path(settings["folder"])
        self.busy = False
        self.notes: dict[str, dict[str, int]] = {}
        self.optimizers: list[torch.optim.Optimizer] = []
        self.names: dict[int, str] = {}
        self.models: list[torch.nn.Module] = []
        self.beside: list[Any] = []
        self.drawn: list[dict[str, Any]] = []
        self.drawn_from: dict[str, Any] | None = None
        self.datasets: list[Any] = []
        self.indices: dict[str, list[list[int]]] = {}
        self.meshes: list[Any] = []
        self.group_sizes: list[int] = []
        self.has_weights = False
        self.in_backward = False
        self.batches_given = 0
        self.batches_used: dict[int, int] = {}  # by an optimizer's last pass
        self.typed = TypedNumbers(self)
        self.on_cpu = not torch.cuda.is_available()
        self.whole_tensors: Callable[[], Iterator[tuple[str, torch.Tensor]]] | None = None
        self.began = time.monotonic()
        # By the number of an optimizer: its steps, and the passes and their gradients since the last one.
        self.steps: dict[int, int] = {}
        self.passes: dict[int, list[dict[str, Any]]] = {}
        self.gradients: dict[int, list[torch.Tensor]] = {}
        self.norms: list[tuple[float, float]] = []
        self.forwards: list[dict[str, Any]] = []
        self.goes_ahead = False  # forward passes come before the backward pass of the first
        self.makes_state = False
        self.dropouts: dict[str, int] = {}
        self.arguments: list[Any] = []
        self.written = WrittenFiles(settings["watched"])
        self.rollouts: Any = None

    def note(self, text: str, kind: str = "change") -> None:
        """Counts a note for the report: "off", another "change" of the run, "draws" or "batch norm"."""
        texts = self.notes.setdefault(kind, {})
        texts[text] = texts.get(text, 0) + 1

    @property
    def in_float32(self) -> bool:
        """Whether reduced precision is switched off."""
        return not self.settings["bits"] and (self.on_cpu or not self.settings["as_is"])

    @property
    def rank(self) -> int:
        """The rank of this process: a script that spawns its ranks gives it to the process group alone."""
        distributed = torch.distributed
        if distributed.is_available() and distributed.is_initialized():
            return distributed.get_rank()
        # Lightning starts its ranks with LOCAL_RANK alone.
        return int(os.environ.get("RANK") or os.environ.get("LOCAL_RANK") or "0")

    @property
    def world(self) -> int:
        """The number of ranks."""
        distributed = torch.distributed
        if distributed.is_available() and distributed.is_initialized():
            return distributed.get_world_size()
        return 1

    @property
    def mesh(self) -> dict[str, tuple[int, int]]:
        """This rank's coordinate and the size of each named dimension of the script's widest DeviceMesh."""
        whole = [mesh for mesh in self.meshes if mesh.mesh_dim_names and mesh.size() == self.world]
        mesh = max(whole, key=lambda mesh: mesh.ndim, default=None)
        coordinate = None if mesh is None else mesh.get_coordinate()
        if mesh is None or coordinate is None:
            return {}
        return dict(zip(mesh.mesh_dim_names, zip(coordinate, mesh.shape)))

    @property
    def parameters(self) -> list[torch.Tensor]:
        """The parameters of all optimizers, each once, in the optimizers' order."""
        groups = (group for optimizer in self.optimizers for group in optimizer.param_groups)
        return list({id(p): p for group in groups for p in group["params"]}.values())

    def gradient(self) -> torch.Tensor:
        """Sketches the gradient of all parameters as it is now."""
        if self.whole_tensors is not None:
            with gradients_as_weights(self.parameters):
                return self.weights()
        buckets, parts = self.settings["buckets"], [torch.zeros(0, dtype=torch.float64)]
        for number, parameter in enumerate(self.parameters):
            gradient = gradient_of(parameter)
            if gradient is None:
                parts.append(torch.zeros(size_of(parameter, buckets), dtype=torch.float64))
            else:
                parts.append(sketch(self._sign_of(number), gradient, buckets))
        return torch.cat(parts)

    def gradient_marks(self) -> list[list[tuple[int, int] | None]]:
        """Marks the gradients of each optimizer as they are now: a pass that adds to one moves its mark."""
        return [
            [
                None if p.grad is None else (id(p.grad), p.grad._version)
                for group in optimizer.param_groups
                for p in group["params"]
            ]
            for optimizer in self.optimizers
        ]

    def end_pass(
        self,
        change: torch.Tensor | None,
        *,
        finite: bool,
        loss: float | None = None,
        before: Sequence[list[tuple[int, int] | None]] = (),
    ) -> None:
        """Keeps a pass's samples; another loss of the same samples belongs to the pass before.

        `before`: the gradients' marks before the pass. A pass that reaches another optimizer alone is not of
        this one, and those before `zero_grad` are not of its step.
        """
        after = self.gradient_marks() if before else []
        reached = [old != new for old, new in zip(before, after)]
        count = 1 if self.goes_ahead else len(self.forwards)
        forwards, self.forwards = self.forwards[:count], self.forwards[count:]
        self.typed.end_pass()
        if self.drawn_from is not None:
            self.drawn_from["passes"] += 1
            self.drawn_from = None
        hashes = [row for forward in forwards for row in forward["hashes"]]
        tokens = [sum(counts) for counts in zip(*(f["tokens"] for f in forwards if f["tokens"]))]
        for number in range(len(self.optimizers)):
            passes, gradients = self.passes.setdefault(number, []), self.gradients.setdefault(number, [])
            if reached and any(reached):
                if not reached[number]:
                    continue
                if not any(before[number]):
                    passes[:] = [earlier for earlier in passes if not earlier["reached"]]
            if forwards or not passes:
                passes.append({"hashes": hashes, "tokens": tokens, "finite": finite, "loss": loss})
                given = self.batches_given - self.batches_used.get(number, 0)
                passes[-1] |= {"batches": given, "reached": bool(reached) and reached[number]}
                self.batches_used[number] = self.batches_given
                if self.settings["details"]:
                    passes[-1]["inputs"] = [tensor for forward in forwards for tensor in forward["inputs"]]
                if change is not None:
                    gradients.append(change)
                continue
            passes[-1]["finite"] &= finite
            if loss is not None and passes[-1]["loss"] is not None:
                passes[-1]["loss"] += loss
            if change is not None:
                gradients[-1] = gradients[-1] + change
        self.typed.look_long(max(map(len, self.passes.values()), default=0))

    def number_of(self, optimizer: Any) -> int | None:
        """Returns the place of an optimizer among those of the script; None if it is none of them."""
        return next((number for number, known in enumerate(self.optimizers) if known is optimizer), None)

    @contextlib.contextmanager
    def unseen(self) -> Iterator[None]:
        """Records nothing for a while."""
        before, self.busy = self.busy, True
        try:
            yield
        finally:
            self.busy = before

    def write_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Writes the record of an optimizer step, before the optimizer changes a weight."""
        number = self.number_of(optimizer)
        if self.busy or number is None:
            return
        rates = [float(group.get("lr", 1.0)) for group in optimizer.param_groups]
        # torch.distributed.checkpoint makes an optimizer's state by a step of its own, at a rate of 0.
        self.makes_state = not any(rates) and not self.passes.get(number)
        if self.makes_state:
            return
        with self.unseen():
            if self.settings["watched"] and self.rank == 0:
                self.written.look(max(self.steps.values(), default=0))
            rows = [self.gradient(), self.weights(), *self.gradients.get(number, [])]
            record = self.describe(number, optimizer)
            if self.settings["entries"]:
                record |= entries.describe_entries(self)
                entries.write_entries(self, f"entries-{number}-{self.rank}.f32", with_gradient=True)
            self.save(record, rows)
            if self.settings["shake"]:
                gradients = [p.grad for p in self.parameters if p.grad is not None]
                shake(gradients, self.steps[number] - 1)
            if 0 < self.settings["stop"] < self.steps[number]:
                self.end(f"step-{number}-{self.steps[number] - 1}-{{rank}}.json", killed=True)

    def leave_out(self, optimizer: torch.optim.Optimizer) -> None:
        """Forgets the passes of an optimizer with a step inside of another's."""
        if (number := self.number_of(optimizer)) is not None:
            self.passes[number], self.gradients[number] = [], []

    def end_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Writes the weights after an optimizer step, and ends the script after the last requested step."""
        number = self.number_of(optimizer)
        if self.busy or number is None or not self.steps.get(number) or self.makes_state:
            return
        with self.unseen():
            if self.settings["entries"]:
                entries.write_entries(self, f"ended-{number}-{self.rank}.f32", with_gradient=False)
            self.save_weights(number, self.weights())

    def weights(self) -> torch.Tensor:
        """Sketches all parameters as they are now."""
        buckets = self.settings["buckets"]
        tensors = enumerate(self.tensors())
        return torch.cat([sketch(self._sign_of(number), p, buckets) for number, (_, p) in tensors])

    def _sign_of(self, number: int) -> int:
        """Chooses the signs of a tensor's sketch: one for all where another run may order tensors anew."""
        return 0 if self.settings["details"] else number

    def tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yields the parameters with their names, an engine's whole."""
        if self.whole_tensors is not None:
            return self.whole_tensors()
        parameters = enumerate(self.parameters)
        return ((self.names.get(id(p), f"parameter {number}"), p) for number, p in parameters)

    def describe(self, number: int, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        """Describes an optimizer's next step."""
        own = {id(p) for group in optimizer.param_groups for p in group["params"]}
        tensors = [
            (name, id(p), p.numel(), p.dtype in (torch.float16, torch.bfloat16)) for name, p in self.tensors()
        ]
        are_own = [key in own for _, key, _, _ in tensors]
        step = self.steps.get(number, 0)
        record = {
            "optimizer": number,
            "step": step,
            "rank": self.rank,
            "kind": type(optimizer).__name__,
            "world": self.world,
            "mesh": self.mesh,
            "groups": [
                {"tensors": len(group["params"]), **_plain(group)} for group in optimizer.param_groups
            ],
            "names": [name for name, *_ in tensors],
            "sizes": [min(self.settings["buckets"], max(entries, 1)) for _, _, entries, _ in tensors],
            "entries": [entries for _, _, entries, _ in tensors],
            # An engine's optimizer has flat parts of the parameters.
            "own": are_own if any(are_own) or self.whole_tensors is None else [True] * len(tensors),
            "half": any(is_half for *_, is_half in tensors),
            "passes": self.passes.get(number, []),
            "trainer": name_trainer(),
            "norms": [[json_number(norm), json_number(limit)] for norm, limit in self.norms],
            "drawn": self.drawn,
            "indices": self.indices,
            "completions": 0 if self.rollouts is None else self.rollouts.calls,
            "notes": self.notes,
            "seconds": round(time.monotonic() - self.began, 3),
            "versions": {
                name: str(getattr(sys.modules[name], "__version__", "?"))
                for name in LIBRARIES
                if name in sys.modules
            },
        }
        if self.settings["details"]:
            record["details"] = details.describe_step(self, number, optimizer, [p for _, p in self.tensors()])
            record["checkpoints"] = self.written.by_step
        if self.settings["describe"] and self.rank == 0:
            record["running"] = describe(optimizer, step, is_last=step + 1 >= self.settings["steps"])
        return record

    def save(self, record: dict[str, Any], rows: list[torch.Tensor]) -> None:
        """Writes a step's record with its sketches; the next step begins."""
        number, step = record["optimizer"], record["step"]
        name = f"step-{number}-{step}-{self.rank}"
        with (self.folder / f"{name}.f64").open("wb") as file:
            file.write(torch.stack(rows).contiguous().numpy().tobytes())
        self.write(f"{name}.json", json.dumps(record))
        self.typed.look(len(self.passes.get(number, [])))
        self.steps[number] = step + 1
        self.passes[number], self.gradients[number], self.norms = [], [], []

    def save_weights(self, number: int, weights: torch.Tensor) -> None:
        """Writes the weights after a step; the script ends after the last requested one."""
        name = f"after-{number}-{self.steps[number] - 1}"
        self.write(f"{name}-{self.rank}.f64", weights.contiguous().numpy().tobytes())
        if max(self.steps.values()) >= self.settings["steps"] and number == max(self.steps):
            self.end(f"{name}-{{rank}}.f64")

    def write(self, name: str, content: str | bytes) -> None:
        """Writes a file of this rank, whole or not at all."""
        part = self.folder / f"{name}.part"
        part.write_bytes(content.encode() if isinstance(content, str) else content)
        part.rename(self.folder / name)

    def end(self, name: str, *, killed: bool = False) -> None:
        """Ends this process after every rank has its file: one that ends early looks like a failure."""
        if self.rank == 0:
            self.write("modules.json", json.dumps(_libraries()))
        sys.stdout.flush()
        sys.stderr.flush()
        deadline = time.monotonic() + 60
        files = [self.folder / name.format(rank=rank) for rank in range(self.world)]
        while not all(file.exists() for file in files) and time.monotonic() < deadline:
            time.sleep(0.01)
        if killed:
            os.kill(os.getpid(), signal.SIGKILL)
        os._exit(0)


def library_folders() -> tuple[str, ...]:
    """Returns Python's own folders, each with a separator at its end."""
    return tuple(os.path.join(sysconfig.get_path(name), "") for name in ("stdlib", "purelib", "platlib"))


def _libraries() -> list[str]:
    """Lists the imported modules of libraries, in the order of their imports, for a forked start."""
    folders = library_folders()
    modules = [(name, getattr(module, "__file__", None)) for name, module in sys.modules.items()]
    return [name for name, file in modules if isinstance(file, str) and file.startswith(folders)]


def json_number(number: float) -> float | None:
    """Returns a number for JSON: None in the place of NaN and infinity."""
    return number if math.isfinite(number) else None


def _plain(group: dict[str, Any]) -> dict[str, Any]:
    """Returns the JSON values of a parameter group: the learning rate, betas, weight decay and so on."""
    plain: dict[str, Any] = {}
    for name, value in group.items():
        if name == "params":
            continue
        if isinstance(value, torch.Tensor) and value.numel() == 1:
            value = value.item()
        if isinstance(value, float):
            plain[name] = json_number(value)
        elif isinstance(value, (bool, int, str)) or value is None:
            plain[name] = value
        elif isinstance(value, (tuple, list)) and all(isinstance(item, (int, float)) for item in value):
            plain[name] = list(value)
    return plain
