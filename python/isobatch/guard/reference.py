"""Computes a step's gradient once more: by the intended loss, with the script's batches and random numbers.

With the script's random numbers, dropout and noise do not disturb the comparison: any difference is the
script's own doing. Mixup changes batches between loader and model, so that the loader's give no reference.
"""

import contextlib
import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._C._functorch import is_functorch_wrapped_tensor
from torch.distributed.fsdp import FSDPModule

from isobatch.equivalence.tensors import (
    AUTOCAST,
    checksum,
    likeness,
    mapped,
    part,
    reduction_of,
    tensors_in,
)
from isobatch.guard.randomness import CallRecording, NormalDraws, RandomState, RecordedCall, cuda_in_use
from isobatch.guard.run import Run, divisor, local, reentrant, sharded
from isobatch.limits import within

Loss = Callable[[nn.Module, Any], Tensor]
Weight = Callable[[Any], float]


class OtherUnits(NamedTuple):
    """Other units for a healthy script to divide by, and the note with the `ratio` to the reference's."""

    units: Weight
    note: str


class ReferenceLoss(NamedTuple):
    """The loss to compare a gradient with; `assumed`: the user gave none, so the script's may be another."""

    loss: Loss | None
    weight: Weight | None
    other_units: OtherUnits | None = None
    assumed: bool = False


class GuardedStep(NamedTuple):
    """A step of the script: its gradient, and what the reference computes it from again.

    `states` and `shares` are the random state and the factor of the loss of each of the `batches`, whose
    `calls` were recorded.
    """

    grads: list[Tensor]
    batches: list[Any]
    calls: list[RecordedCall]
    states: list[RandomState]
    shares: list[float]


class ModelInputs:
    """Collects checksums of the model's inputs, by argument, in the script's calls and the guard's own."""

    def __init__(self, run: Run, model: nn.Module, recording: CallRecording) -> None:
        self._run, self._recording = run, recording
        self._own: dict[str, set[tuple[int, int]]] = {}
        self._dtypes = {
            True: set[torch.dtype](),
            False: set[torch.dtype](),
        }  # of the guard's calls, the script's
        self.before: RandomState | None = None  # to restore before the guard's next call of the model
        parameters = inspect.signature(getattr(model, "module", model).forward).parameters
        variable = inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD
        self._names = [name for name, parameter in parameters.items() if parameter.kind not in variable]

    def note(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Notes the arguments of a call."""
        if not torch.is_grad_enabled() or not (self._run.own or self._recording.calls):
            return
        if self.before is not None:
            self.before.restore()
            self.before = None
        inputs = self._own if self._run.own else self._recording.calls[-1].inputs
        for name, value in self._named(args, kwargs):
            tensors = tensors_in(value)
            # Tensors inside of per-sample gradients have no bits to read.
            self._dtypes[self._run.own].update(t.dtype for t in tensors if t.is_floating_point())
            if tensors and not any(map(is_functorch_wrapped_tensor, tensors)):
                inputs.setdefault(name, set()).update(checksum([tensor]) for tensor in tensors)

    def _named(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[tuple[str, Any]]:
        """Lists arguments by name, in the order of the signature; a mapping's entries by their keys."""
        named = {
            self._names[at] if at < len(self._names) else str(at): value for at, value in enumerate(args)
        }
        named |= {name: kwargs[name] for name in self._names if name in kwargs}
        return [
            part
            for name, value in (named | kwargs).items()
            for part in (
                [(f"{name}.{key}", entry) for key, entry in value.items()]
                if isinstance(value, Mapping)
                else [(name, value)]
            )
        ]

    @property
    def why_unlike(self) -> str | None:
        """A reason for other inputs than the script's."""
        own, script = (
            ", ".join(sorted(str(d)[6:] for d in self._dtypes[of_guard])) for of_guard in (True, False)
        )
        if own == script or not own:
            return None
        return f"the script calls the model with {script}, the given loss with {own}: cast there too"

    def begin_own(self) -> None:
        """Begins the guard's own forward of a micro-batch."""
        self._own.clear()

    def same(self, call: RecordedCall) -> bool:
        """Tells whether the guard's forward had the script's inputs of a micro-batch.

        The reference may pass labels where the script computes its loss from logits, and the script may pass
        masks where the reference has none. The first argument, and all that both pass, must be equal.
        """
        script, own = call.inputs, self._own
        if not own:
            return True
        both = [name for name in own if name in script]
        if both and (both[0] == next(iter(own)) or "." in both[0]):
            return all(own[name] <= script[name] for name in both)
        return set().union(*own.values()) <= set().union(*script.values())

    def beside(self, call: RecordedCall) -> bool:
        """Tells whether the script's call had more inputs than the guard's, of the same arguments."""
        script, own = call.inputs, self._own
        return any(not script[name] <= own[name] for name in own if name in script)


class Recomputation:
    """Computes the gradients of a reference on a model with the trained parameters `params`."""

    def __init__(
        self,
        run: Run,
        model: nn.Module,
        params: list[nn.Parameter],
        inputs: ModelInputs,
        reference: ReferenceLoss,
    ) -> None:
        self._run, self.model, self._params, self._inputs = run, model, params, inputs
        self.reference = reference
        self.beside = False  # the script's calls had inputs that the reference's did not
        self.precision = AUTOCAST[run.plan.recipe.precision]
        self._sharded = sharded(model)
        self._divisor = divisor(model, run.ranks) / run.ranks if self._sharded else 1.0

    def is_summed(self, batch: Any) -> bool:
        """Tells whether the reference loss is a sum over a batch: the losses of its parts add up."""
        plan, (loss, weight, *_) = self._run.plan, self.reference
        n = int(plan.micro_batches(self._run.rank)[0])
        if loss is None or min(int(plan.micro_batches(rank)[0]) for rank in range(self._run.ranks)) < 2:
            return False
        parts = [part(batch, 0, 1), part(batch, 1, n)]
        units = [1.0, n - 1.0] if weight is None else [float(weight(p)) for p in parts]
        whole, first, rest = (self.evaluated(lambda m, b: float(loss(m, b)), b) for b in (batch, *parts))
        return reduction_of(whole, (first, rest), (units[0], units[1])) == "sum"

    def evaluated(self, function: Callable[[nn.Module, Any], Any], batch: Any) -> Any:
        """Returns function(model, batch) in eval mode, without gradients."""
        modes = {module: module.training for module in self.model.modules()}
        self.model.eval()
        try:
            with torch.no_grad():
                return function(self.model, self._moved(batch))
        finally:
            for module, mode in modes.items():
                module.training = mode

    def draws(self, step: GuardedStep, gate: float) -> bool:
        """Tells whether the loss draws random numbers outside of the model: its gradient has a seed."""
        step = step._replace(shares=[1 / len(step.batches)] * len(step.batches))
        first, second = (self.of(step, seed)[0] for seed in (1, 2))
        return not within(likeness(first, second).error, gate)

    def draws_noise(self, batch: Any, state: RandomState) -> bool:
        """Tells whether the loss draws normal random numbers, a noise, for each sample."""
        loss = self.reference.loss
        if loss is None:
            return False
        state.restore()
        draws = NormalDraws()
        with draws, torch.no_grad():
            loss(self.model, self._moved(batch))
        return draws.most >= self._run.planned[0]

    def of(self, step: GuardedStep, seed: int | None = None) -> tuple[list[Tensor], bool]:
        """Computes the gradient of this rank's mean losses, or of all ranks' where it is sharded.

        Each micro-batch begins with its random state and has its share; with a seed, the draws before the
        model's call differ. Returns the gradient, and whether the model had the script's inputs.
        """
        total, same = [torch.zeros_like(local(p)) for p in self._params], True
        for batch, call, state, share in zip(*step[1:], strict=True):
            self._inputs.begin_own()
            if seed is None:
                state.restore()
            else:
                torch.manual_seed(seed)
                self._inputs.before = state
            kind, precision = total[0].device.type, self.precision
            with torch.enable_grad(), torch.autocast(kind, precision, enabled=precision is not None):
                assert self.reference.loss is not None
                loss = self.reference.loss(self.model, self._moved(batch)) * (share * self._divisor)
            same = same and self._inputs.same(call)
            self.beside = self.beside or self._inputs.beside(call)
            for t, g in zip(total, self._gradients(loss), strict=True):
                if g is not None:
                    t += g
        return total, same

    def averaged(self, total: list[Tensor]) -> list[Tensor]:
        """Averages over ranks, in place."""
        if self._run.ranks > 1 and not self._sharded:
            for t in total:
                dist.all_reduce(t, group=self._run.group)
                t /= self._run.ranks
        return total

    def _moved(self, batch: Any) -> Any:
        """Moves one micro-batch to the model's device, where no other is at the same time."""
        device = self._params[0].device
        return mapped(batch, lambda value: value.to(device) if hasattr(value, "to") else value)

    def _gradients(self, loss: Tensor) -> tuple[Tensor | None, ...]:
        if not (self._sharded or reentrant(loss)):
            return torch.autograd.grad(loss, self._params, allow_unused=True)
        # Only a real backward gathers, scatters and averages shards, or recomputes what a checkpoint dropped:
        # the script's own gradients step aside.
        script_grads = [p.grad for p in self._params]
        for p in self._params:
            p.grad = None
        loss.backward()  # type: ignore[no-untyped-call]
        grads = tuple(None if p.grad is None else local(p.grad) for p in self._params)
        for p, grad in zip(self._params, script_grads, strict=True):
            p.grad = grad
        return grads

    @contextlib.contextmanager
    def replay(self) -> Iterator[None]:
        """Restores the model's buffers and the random states afterwards."""
        buffers = [(b, b.clone()) for b in self.model.buffers()]
        devices = list(range(torch.cuda.device_count())) if cuda_in_use() else []
        state, self._run.own = RandomState.now(), True
        try:
            with torch.random.fork_rng(devices):
                yield
        finally:
            state.restore()
            self._run.own = False
            for module in self.model.modules():
                if isinstance(module, FSDPModule):
                    module.reshard()  # else the whole weights of a forward alone outlive the next step
            for buffer, value in buffers:
                buffer.copy_(value)
