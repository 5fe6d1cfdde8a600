"""One optimizer step of a model in this process, at a split of its batch, with the recorder of `same`."""

import gc
import inspect
import multiprocessing
import os
import random
import tempfile
import time
import traceback
import typing
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, redirect_stdout, suppress
from copy import deepcopy
from functools import partial
from io import StringIO
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import torch
from torch.optim import optimizer as optimizers
from torch.utils.data._utils import fetch

from isobatch.equivalence.commands.runs import Recorded
from isobatch.equivalence.recorder.isobatch_recorder import alike, backward, randomness, samples
from isobatch.equivalence.recorder.isobatch_recorder.record import Recorder
from isobatch.equivalence.records import Recording, read_recording
from isobatch.equivalence.split import Split
from isobatch.errors import InputError

LIMIT = 300.0
"""Seconds for all steps of the ranks."""
DERIVED = ("generation_batch_size", "steps_per_generation")
"""Arguments of TRL's trainers that follow from the split."""


class ModelTraining(NamedTuple):
    """A model and its trainer, or its own forward; `trainer` makes a trainer from keywords."""

    model: torch.nn.Module
    trainer: Callable[..., Any] | None
    arguments: Mapping[str, Any]

    def take_step(self, rows: Any, split: Split, folder: Path) -> None:
        """Takes a step of the rows at a split; of several ranks, this process is one."""
        model = deepcopy(self.model).train()
        if self.trainer is None:
            _step_bare(model, rows, split)
            return
        kind = _arguments_class(self.trainer)
        arguments = kind(**{**self.arguments, **_settings(kind, split, folder)})
        self.trainer(model=model, args=arguments, train_dataset=_dataset(self.trainer, rows)).train()


class StepOrder(NamedTuple):
    """A step to take: its name, rows, split and the switches of its recorder."""

    name: str
    rows: Any
    split: Split
    switches: Mapping[str, bool] = {}


def read_training(model: torch.nn.Module, trainer: Any, arguments: Any) -> ModelTraining:
    """Reads a trainer: its class, one with keywords bound by `partial`, or an instance."""
    if trainer is not None and not callable(trainer):
        keywords = {
            name: getattr(trainer, name, None)
            for name in ("data_collator", "processing_class")
            if name in inspect.signature(type(trainer)).parameters
        }
        arguments = trainer.args if arguments is None else arguments
        own_class: Callable[..., Any] = type(trainer)
        trainer = partial(own_class, **keywords)
    if arguments is not None and not isinstance(arguments, Mapping):
        arguments = _changed_fields(arguments)
    return ModelTraining(model, trainer, arguments or {})


def record_step(training: ModelTraining, order: StepOrder, folder: Path) -> Recording:
    """Takes a step in this process and reads its record."""
    began = time.monotonic()
    _record(training, order, folder)
    recording = read_recording(folder / order.name, order.split, time.monotonic() - began)
    if recording is None:
        raise InputError(
            f"at {order.split} no optimizer of torch took a step: the model needs a parameter that is "
            "trained, and a trainer makes its optimizer itself"
        )
    return recording


def record_ranks(training: ModelTraining, orders: Sequence[StepOrder], folder: Path) -> dict[str, Recording]:
    """Takes steps by the ranks of a gloo group, and reads their records by name.

    The ranks are forks of this process: they have each class, patch and setting that it has. They stay for
    all steps.

    Raises:
        InputError: a rank fails, or is not done in time; the message has its last lines.
    """
    began, ranks = time.monotonic(), orders[0].split.ranks
    if "fork" not in multiprocessing.get_all_start_methods():
        raise InputError("this system cannot fork a process: ask with ranks=1")
    context = multiprocessing.get_context("fork")
    processes = [
        context.Process(target=_be_rank, args=(rank, ranks, training, orders, folder), daemon=True)
        for rank in range(ranks)
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forks beside threads: a rank starts its own
        for process in processes:
            process.start()
    for process in processes:
        process.join(max(0.0, began + LIMIT - time.monotonic()))
        if process.exitcode != 0:
            break
    for process in processes:
        if process.exitcode is None:
            process.kill()
            process.join()
    recordings = {}
    for order in orders:
        recording = read_recording(folder / order.name, order.split, time.monotonic() - began)
        if recording is None:
            failed = sorted(path.read_text().strip() for path in folder.glob("rank-*.txt"))
            reason = failed[0] if failed else f"took no optimizer step within {LIMIT:.0f} s"
            raise InputError(f"{order.split} could not be asked: {reason}. ranks=1 asks without ranks")
        recordings[order.name] = recording
    return recordings


def collate(rows: Sequence[Any]) -> Any:
    """Stacks the tensors of rows; values of other kinds, or of several shapes, become a list."""
    if isinstance(rows[0], Mapping):
        return {name: _stack([row[name] for row in rows]) for name in rows[0]}
    return tuple(_stack(list(column)) for column in zip(*rows, strict=True))


def loss_of(output: Any) -> torch.Tensor:
    """Returns the loss of a model's output; a mapping of losses alone, as torchvision has it, is summed."""
    if isinstance(output, torch.Tensor):
        loss: Any = output
    elif isinstance(output, Mapping) and "loss" not in output:
        loss = sum(output.values())
    else:
        loss = output["loss"] if isinstance(output, Mapping) else getattr(output, "loss", output[0])
    if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
        raise InputError("the model's output has no loss: give the rows their labels")
    return loss.reshape(())


class _StepRecorder(Recorder):
    """A recorder without an end: its process goes on after the step."""

    def end(self, name: str, *, killed: bool = False) -> None:
        """Leaves the process as it is."""


def _record(training: ModelTraining, order: StepOrder, folder: Path) -> None:
    """Takes a step of a copy of the model with torch watched."""
    place = folder / order.name
    place.mkdir(exist_ok=True)
    recorder = _StepRecorder({**msgspec.to_builtins(Recorded(str(place), 1)), **order.switches})
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # a tiny model's threads wait for one another
    gc.freeze()  # trainers collect garbage in each train(), which looks at every object in use
    try:
        with _kept_generators(), _watched(recorder), redirect_stdout(StringIO()):
            training.take_step(order.rows, order.split, place)
    finally:
        gc.unfreeze()
        torch.set_num_threads(threads)


@contextmanager
def _kept_generators() -> Iterator[None]:
    """Gives the caller's generators their states back: the recorder and trainers seed them."""
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()
    try:
        yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])
        torch.set_rng_state(states[2])


@contextmanager
def _watched(recorder: Recorder) -> Iterator[None]:
    """Installs the recorder's patches of torch, and takes them back."""
    functional: Any = torch.nn.functional
    places: list[Any] = [
        *(torch, functional, torch.Tensor, torch.nn.Module, torch.autograd, torch.nn.utils),
        *(torch.nn.utils.clip_grad, optimizers.Optimizer, fetch._MapDatasetFetcher),
    ]
    before = [dict(vars(place)) for place in places]
    hooks: list[Any] = [optimizers._global_optimizer_pre_hooks, optimizers._global_optimizer_post_hooks]
    known = [{*by_key} for by_key in hooks]
    for part in (randomness, alike, samples, backward):
        part.install(recorder)
    patches = [
        (place, name, names.get(name))
        for place, names in zip(places, before, strict=True)
        for name, value in vars(place).items()
        if names.get(name) is not value
    ]
    try:
        yield
    finally:
        for place, name, value in patches:
            if value is None:
                delattr(place, name)
            else:
                setattr(place, name, value)
        for by_key, old in zip(hooks, known, strict=True):
            for key in {*by_key} - old:
                del by_key[key]


def _step_bare(model: torch.nn.Module, rows: Any, split: Split) -> None:
    """Trains as a plain loop does: the mean of the passes' losses, the ranks averaged by DDP."""
    rank = torch.distributed.get_rank() if split.ranks > 1 else 0
    own = range(rank * split.rank_batch, (rank + 1) * split.rank_batch)
    called: Any = model
    if split.ranks > 1:
        called = torch.nn.parallel.DistributedDataParallel(model, find_unused_parameters=True)
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=1e-3)
    for number in range(split.accumulation):
        places = own[number * split.micro_batch : (number + 1) * split.micro_batch]
        batch = collate([rows[place] for place in places])
        is_last = number + 1 == split.accumulation
        with nullcontext() if is_last or split.ranks == 1 else called.no_sync():
            output = called(**batch) if isinstance(batch, Mapping) else called(*batch)
            torch.autograd.backward(loss_of(output) / split.accumulation)
    optimizer.step()


def _stack(values: list[Any]) -> Any:
    if isinstance(values[0], torch.Tensor):
        return torch.stack(values) if len({value.shape for value in values}) == 1 else values
    if isinstance(values[0], bool):
        return values[0]
    return torch.tensor(values) if isinstance(values[0], int | float) else values


def _arguments_class(trainer: Callable[..., Any]) -> Any:
    """Finds the class of a trainer's arguments by the annotation of `args`."""
    kind: Any = trainer.func if isinstance(trainer, partial) else trainer
    with suppress(Exception):  # an annotation may name what is not installed
        hint = typing.get_type_hints(kind.__init__)["args"]
        classes = [part for part in (*typing.get_args(hint), hint) if hasattr(part, "__dataclass_fields__")]
        return classes[0]
    from transformers import TrainingArguments

    return TrainingArguments


def _settings(kind: Any, split: Split, folder: Path) -> dict[str, Any]:
    """Sets the split and one step on the CPU in float32, without logs or checkpoints."""
    settings = {
        "output_dir": str(folder / "trainer"),
        "per_device_train_batch_size": split.micro_batch,
        "gradient_accumulation_steps": split.accumulation,
        "max_steps": 1,
        "use_cpu": True,
        "bf16": False,
        "fp16": False,
        "report_to": "none",
        "disable_tqdm": True,
        "dataloader_pin_memory": False,
        **dict.fromkeys(("save_strategy", "logging_strategy", "eval_strategy"), "no"),
    }
    return {name: value for name, value in settings.items() if name in kind.__dataclass_fields__}


def _changed_fields(arguments: Any) -> dict[str, Any]:
    """Lists the fields of a trainer's arguments unlike the default, to make them anew."""
    with tempfile.TemporaryDirectory() as folder:
        plain = type(arguments)(output_dir=folder, use_cpu=True)
    return {
        name: getattr(arguments, name)
        for name, field in type(arguments).__dataclass_fields__.items()
        if field.init and name not in DERIVED and getattr(arguments, name) != getattr(plain, name)
    }


def _dataset(trainer: Callable[..., Any], rows: Any) -> Any:
    """Makes rows of plain values a Dataset: every trainer but transformers' own asks for one."""
    kind: Any = trainer.func if isinstance(trainer, partial) else trainer
    plain = not any(isinstance(value, torch.Tensor) for value in rows[0].values())
    if isinstance(rows, list) and plain and not kind.__module__.startswith("transformers."):
        from datasets import Dataset  # type: ignore[import-not-found]

        return Dataset.from_list(rows)
    return rows


def _be_rank(
    rank: int, ranks: int, training: ModelTraining, orders: Sequence[StepOrder], folder: Path
) -> None:
    """Takes each step as one rank of several; a failure is written for the caller."""
    with (folder / f"output-{rank}.txt").open("wb") as output:
        for stream in (1, 2):
            os.dup2(output.fileno(), stream)
    try:
        _join_group(rank, ranks, folder)
        for order in orders:
            _record(training, order, folder)
        torch.distributed.barrier()
    except BaseException as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        text = f"rank {rank} stopped: {type(error).__name__}: {str(error)[:300]} ({last.name})"
        (folder / f"rank-{rank}.txt").write_text(text)
        os._exit(1)
    os._exit(0)


def _join_group(rank: int, ranks: int, folder: Path) -> None:
    names = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks}
    os.environ.update({name: str(value) for name, value in names.items()})
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="0")  # Accelerate asks for them, unused here
    os.environ.update(OMP_NUM_THREADS="1", MKL_NUM_THREADS="1")
    warnings.simplefilter("ignore")
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{folder / 'ranks'}", rank=rank, world_size=ranks
    )
    with suppress(ImportError):
        from accelerate.state import AcceleratorState, GradientState

        AcceleratorState._reset_state(reset_partial_state=True)
        GradientState._reset_state()
