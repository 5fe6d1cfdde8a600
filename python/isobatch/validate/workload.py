"""The training step to validate: built in, or the user's own."""

import importlib
import inspect
import math
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from isobatch.errors import InputError, first_line, must_be
from isobatch.planning.plan import Plan

BUILT_IN = "mlp"
"""The name of the built-in workload."""


@dataclass(frozen=True)
class Workload:
    """A training step to validate a plan with.

    Args:
        model: on the CPU; the validator moves and wraps it.
        optimizer: makes the optimizer of parameters.
        batch: (n, generator, device) → n samples, the same for the same state of the generator (a CPU one); a
            tensor, a mapping or sequence of them, or anything else that can be sliced by sample.
        loss: (model, batch) → the loss, a scalar tensor.
        reduction: "mean" or "sum": what `loss` does over the batch. Declared, not guessed, and checked.
        weight: batch → the number of units that its loss is a mean or sum over, if these are not samples:
            tokens with a label, say.
        scheduler: optimizer → the scheduler that the training will use; None: the plan's own.
        hook: a DDP communication hook, (process group, bucket) → future; None: DDP's all-reduce.
        ddp: keywords of DistributedDataParallel that the training passes, such as find_unused_parameters or
            static_graph.
        stand_in: whether this is another model than the plan's forecasts are for, as the built-in one is.
    """

    model: nn.Module
    optimizer: Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]
    batch: Callable[[int, torch.Generator, torch.device], Any]
    loss: Callable[[nn.Module, Any], Tensor]
    reduction: Literal["mean", "sum"] = "mean"
    weight: Callable[[Any], float] | None = None
    scheduler: Callable[[torch.optim.Optimizer], torch.optim.lr_scheduler.LRScheduler] | None = None
    hook: Callable[[Any, Any], torch.futures.Future[Tensor]] | None = None
    ddp: Mapping[str, Any] | None = None
    stand_in: bool = False


def out_of_memory(error: BaseException) -> bool:
    """Tells whether an error means want of memory: CUDA has a type for it, its libraries a text."""
    signs = "DefaultCPUAllocator", "CUBLAS_STATUS_ALLOC_FAILED", "CUDNN_STATUS_ALLOC_FAILED", "out of memory"
    own_type = isinstance(error, MemoryError | torch.OutOfMemoryError)
    return own_type or any(sign in str(error) for sign in signs)


@contextmanager
def user_code(description: str) -> Iterator[None]:
    """Turns an exception of the user's function, but for want of memory, into an InputError."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:
        if out_of_memory(error):
            raise
        frame = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{Path(frame.filename).name}:{frame.lineno}"
        raise InputError(f"{description} raised {first_line(error)} ({where})", field="workload") from error


def fault_of_loss(loss: Any) -> str | None:
    """Describes a wrong loss, as the end of a sentence; None for a scalar with a gradient."""
    if not isinstance(loss, Tensor):
        hint = ", without .item()" if isinstance(loss, int | float) else ""
        return f"scalar tensor, got {type(loss).__name__}: return the loss{hint}"
    if loss.dim():
        return f"scalar tensor, got one of shape {tuple(loss.shape)}: return its mean over the samples"
    if torch.is_grad_enabled() and not loss.requires_grad:
        return "tensor with a gradient: compute it by calling the model, without no_grad or detach"
    return None


def load(name: str, plan: Plan, parameters: int) -> Workload:
    """Loads a workload: the built-in one of about this many parameters, or `package.module:factory`'s."""
    if name == BUILT_IN:
        return perceptron(plan, parameters)
    if ":" not in name:
        raise must_be(f"{BUILT_IN} or package.module:factory", name, field="workload")
    return call_factory(factory_of(name))


def factory_of(name: str) -> Callable[[], Any]:
    """Finds the function of `package.module:factory`, also in modules of the current folder."""
    module_name, colon, function = name.partition(":")
    if not colon:
        raise must_be("package.module:factory", name, field="workload")
    if module_name.endswith(".py") or "/" in module_name:
        plain = module_name.removesuffix(".py").strip("./").replace("/", ".")
        todo = f"name the module, not its file: {plain}:{function}"
        raise must_be("package.module:factory", name, field="workload", todo=todo)
    if "" not in sys.path:
        sys.path.insert(0, "")  # as `python -m` has it
    try:
        factory: Callable[[], Any] = getattr(importlib.import_module(module_name), function)
    except Exception as error:  # a module may raise anything
        raise InputError(f"{name!r} cannot be loaded: {first_line(error)}", field="workload") from error
    if not callable(factory):
        raise must_be("a function without arguments", name, field="workload")
    return factory


def _arguments(factory: Callable[..., Any]) -> list[str]:
    """Lists the arguments without a default."""
    try:
        parameters = inspect.signature(factory).parameters.values()
    except (TypeError, ValueError):  # a function in C, without a signature
        return []
    needed = [p for p in parameters if p.default is p.empty]
    return [p.name for p in needed if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]


def _place(factory: Callable[..., Any]) -> str:
    return f"{getattr(factory, '__module__', '?')}:{getattr(factory, '__qualname__', type(factory).__name__)}"


def call_factory(factory: Callable[[], Any]) -> Workload:
    """Calls a factory, and refuses one with arguments or another result than a Workload."""
    if wants := _arguments(factory):
        text = f"must be a function without arguments, got one that needs {', '.join(wants)}"
        raise InputError(f"{_place(factory)} {text}", field="workload")
    workload = factory()
    if not isinstance(workload, Workload):
        text = f"must return an isobatch.validate.Workload, got {type(workload).__name__}"
        raise InputError(f"{_place(factory)} {text}", field="workload")
    if workload.reduction not in ("mean", "sum"):
        raise must_be("mean or sum", workload.reduction, field="reduction")
    return workload


def _optimizer(plan: Plan) -> Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]:
    """Returns the plan's optimizer if torch has it; else AdamW, good enough for a stand-in model."""
    beta1, beta2 = (0.9 if plan.beta1 is None else plan.beta1, 0.999 if plan.beta2 is None else plan.beta2)
    eps = 1e-8 if plan.eps is None else plan.eps
    momentum, moments = {"momentum": plan.momentum or 0.0}, {"betas": (beta1, beta2), "eps": eps}
    kinds: dict[str, tuple[Any, dict[str, Any]]] = {
        "sgd": (torch.optim.SGD, momentum),
        "adam": (torch.optim.Adam, moments),
        "rmsprop": (torch.optim.RMSprop, {"alpha": beta2, "eps": eps, **momentum}),
    }
    kind, values = kinds.get(plan.recipe.optimizer, (torch.optim.AdamW, moments))
    return partial(kind, lr=plan.lr or 0.0, weight_decay=plan.weight_decay or 0.0, **values)


def perceptron(plan: Plan, parameters: int) -> Workload:
    """Makes a multilayer perceptron of about this many parameters: 64 inputs, 10 classes."""
    width = max(4, round((-77 + math.sqrt(77**2 + 8 * parameters)) / 4))
    sizes = (64, width, width, width)
    hidden = [part for pair in pairwise(sizes) for part in (nn.Linear(*pair), nn.ReLU())]

    def batch(n: int, generator: torch.Generator, device: torch.device) -> tuple[Tensor, Tensor]:
        x = torch.randn(n, 64, generator=generator)
        return x.to(device), torch.randint(10, (n,), generator=generator).to(device)

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        return nn.functional.cross_entropy(model(batch[0]), batch[1])

    model = nn.Sequential(*hidden, nn.Linear(width, 10))
    return Workload(model, _optimizer(plan), batch, loss, stand_in=True)
