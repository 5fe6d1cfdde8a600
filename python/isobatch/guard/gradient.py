"""The gradient of the first steps, against that of the mean loss: computed once more on the script's own batches, with the
script's own random numbers, so that dropout is no disturbance."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn

from isobatch.diagnosis import faults
from isobatch.diagnosis.batches import mapped, part, reduction
from isobatch.diagnosis.causes import Cause, Diagnosis, either
from isobatch.diagnosis.checksum import checksum, differing
from isobatch.diagnosis.precision import AUTOCAST
from isobatch.guard.inputs import Inputs
from isobatch.guard.run import Run
from isobatch.guard.watch import Watch
from isobatch.guard.wrapping import flat, inner, local, sharded

GATES = {None: 3e-3, torch.float16: 0.09, torch.bfloat16: 0.15}

Loss = Callable[[nn.Module, Any], Tensor]
Weight = Callable[[Any], float]


class OtherUnits(NamedTuple):
    """What a healthy script may divide by instead of the weight; and what is noted then, with the `ratio` that this gives."""

    units: Weight
    note: str


class Reference(NamedTuple):
    """What a script's gradient is compared with."""

    loss: Loss | None
    weight: Weight | None
    other: OtherUnits | None = None


class _Likeness(NamedTuple):
    """How many times as large a gradient is as the reference, along it, and was before it was clipped; and how much of it
    points elsewhere."""

    ratio: float
    unclipped: float
    residual: float


class Gradient:
    """Holds the first steps' averaged gradient to that of `loss`, and the ranks' gradients to each other."""

    def __init__(
        self,
        run: Run,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        watch: Watch | None,
        reference: Reference,
    ) -> None:
        self._run, self._optimizer, self._watch = run, optimizer, watch
        self._sharded = sharded(model)
        # Averaging is for the guard to do, where it can be done: so the reference shows what the wrapper does.
        self._model = model if self._sharded else inner(model)
        self._params = [p for p in self._model.parameters() if p.requires_grad]
        self._loss, self._weight, self._other = reference
        self._precision = AUTOCAST[run.plan.recipe.precision]
        self._scaled = (
            self._precision == torch.float16
        )  # a norm before clipping would be in the loss scaler's units
        self._random: list[tuple[Tensor, Tensor | None]] = []
        self._inputs = Inputs(run, self._model)
        self._unclipped: float | None = None
        self._queued = False
        self._units = 0.0  # of a step: samples, or what the loss is a mean over
        self._handles = [
            p.register_post_accumulate_grad_hook(self._accumulated)  # type: ignore[no-untyped-call]
            for p in ([] if flat(model) or self._scaled else self._params)
        ]
        why = None
        if self._loss is None:
            why = "no loss was given"
        elif watch is None:
            why = "no loader was given"
        elif flat(model):
            why = "FullyShardedDataParallel (fully_shard's is looked at)"
        elif run.plan.recipe.ramp is not None:
            why = "the batch ramps"
        self._sized = why is None
        if why is not None:
            run.unchecked.append(f"the gradient's size: {why}")
        elif self._scaled and run.plan.recipe.clip_norm is not None:
            run.unchecked.append(
                "the gradient's size, though not its direction: clipped behind a loss scaler"
            )
        if self._sharded:
            run.unchecked.append(
                "equal weights and gradients on all ranks, and whether the wrapper averages: each rank holds its own part"
            )

    def remove(self) -> None:
        """Takes the hooks out."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._inputs.remove()
        self._random.clear()

    def forward(self) -> None:
        """Before a micro-batch goes through the model: the random numbers are those that it will have."""
        if self._sized:
            self._inputs.forward()
            cuda = torch.cuda.get_rng_state() if torch.cuda.is_initialized() else None  # type: ignore[no-untyped-call]
            self._random.append((torch.get_rng_state(), cuda))

    def _accumulated(self, _: Tensor) -> None:
        if not self._queued and not self._run.own:
            self._queued = True
            engine = torch.autograd.Variable._execution_engine
            # DDP ends in a callback of its own, queued later than this one: go to the end of the queue once more.
            engine.queue_callback(lambda: engine.queue_callback(self._backward_done))

    def _backward_done(self) -> None:
        """Gradients are averaged, and nobody has clipped them yet."""
        self._queued = False
        self._unclipped = math.sqrt(
            sum(float(local(p.grad).double().square().sum()) for p in self._params if p.grad is not None)
        )

    def check(self, *, whole: bool) -> None:
        """Before an optimizer step. Only a whole step has a reference."""
        run, watch = self._run, self._watch
        grads = [torch.zeros_like(local(p)) if p.grad is None else local(p.grad) for p in self._params]
        if self._sharded and all(p.grad is None for p in self._params):
            run.stop(Cause.NEVER_AVERAGED, "no gradient has reached the sharded parameters before this step")
        if not self._sharded:
            off = differing(run.exchange("gradients", checksum(grads)))
            if off:
                run.stop(Cause.NEVER_AVERAGED, "gradients differ between ranks", off if run.ranks > 2 else ())
        if not self._sized or watch is None:
            return
        planned = len(run.planned)  # the last ones: a loss scaler may have skipped steps before them
        batches, random = watch.take(run.micro)[-planned:], self._random[-planned:]
        self._random.clear()
        if not whole:
            return
        if not all(run.exchange("batches", len(batches) == len(random) == planned)):
            self._sized = False
            run.unchecked.append("the gradient's size: the loop takes batches from elsewhere")
            return
        # Double the gradients: their sum so far, and those of a micro-batch. All ranks must have that room, or none tries.
        needed = 2 * sum(g.numel() * g.element_size() for g in grads)
        if not all(run.exchange("room", _has_room(self._params[0].device, needed))):
            self._sized = False
            run.unchecked.append("the gradient's size: no room for another gradient on the GPU")
            return
        self._size(grads, batches, random)
        self._inputs.step()

    def _size(self, grads: list[Tensor], batches: list[Any], random: list[Any]) -> None:
        run, plan = self._run, self._run.plan
        shares = self._shares(batches)
        with self._replay():
            if self._is_summed(self._moved(batches[0])):
                text = (
                    f"the loss is a sum over the {plan.micro_batch} samples of a micro-batch, not their mean"
                )
                run.stop(Cause.SUMMED_LOSS, text)
            reference, same = self._reference(batches, random, shares)
        if not all(run.exchange("inputs", same)):
            self._sized = False
            run.unchecked.append(
                "the gradient's size: the script changes the batches between loader and model"
            )
            return
        scale = getattr(self._optimizer, "grad_scale", None)
        found = grads if scale is None else [g / scale for g in grads]
        like, gate = self._compare(found, reference), GATES[self._precision]
        unknown = self._scaled and run.plan.recipe.clip_norm is not None
        if like.residual <= gate and (unknown or any(abs(ratio - 1) <= gate for ratio in like[:2])):
            return
        if like.residual <= gate and self._excused(like, gate, batches):
            return
        text = f"the gradient is {like.unclipped:.4g} × that of the mean loss, {like.residual:.1%} of it in another direction"
        run.stop(self._why(found, like, gate, batches, random), text)

    def _excused(self, like: _Likeness, gate: float, batches: list[Any]) -> bool:
        """Whether the script divides by other units than the reference, as a healthy one may."""
        if self._other is None or self._weight is None:
            return False
        run, weight, other = self._run, self._weight, self._other
        counted = run.exchange("other units", [sum(map(weight, batches)), sum(map(other.units, batches))])
        ratio = sum(ours for ours, _ in counted) / sum(theirs for _, theirs in counted)
        if not any(abs(found / ratio - 1) <= gate for found in like[:2]):
            return False
        run.note(other.note.format(ratio=ratio))
        return True

    def _why(
        self, found: list[Tensor], like: _Likeness, gate: float, batches: list[Any], random: list[Any]
    ) -> Cause | Diagnosis:
        """Why a gradient is not that of the mean loss."""
        if like.residual <= gate:
            return self._factor(like.unclipped, gate) or Cause.ANOTHER_LOSS
        for shares, cause in self._other_shares(batches):
            with self._replay():
                like = self._compare(found, self._reference(batches, random, shares)[0])
            if like.residual <= gate:
                return self._factor(like.unclipped, gate) or cause
        return either(Cause.ANOTHER_LOSS.likely(), Cause.ANOTHER_SAMPLES.likely())

    def _other_shares(self, batches: list[Any]) -> Iterator[tuple[list[float], Cause]]:
        """Other factors of the micro-batches' mean losses, and what makes a script have them."""
        equal = [1 / len(batches)] * len(batches)
        yield equal, Cause.UNEVEN_MEAN if self._weight is None else Cause.OWN_UNITS
        if self._weight is not None:
            units = [float(self._weight(batch)) for batch in batches]
            totals = (
                [sum(units)] if self._other is None else [sum(map(self._other.units, batches)), sum(units)]
            )
            for total in totals:
                yield [unit / total for unit in units], Cause.RANKS_OWN_UNITS

    def _factor(self, ratio: float, gate: float) -> Diagnosis | None:
        """What makes a gradient `ratio` times too large."""
        plan = self._run.plan
        return faults.gradient(
            ratio,
            micro_batch=self._units / len(self._run.planned) / self._run.ranks,
            accumulation=plan.accumulation or 1,
            ranks=self._run.ranks,
            tolerance=max(0.02, gate / 3),
        )

    def _compare(self, found: list[Tensor], reference: list[Tensor]) -> _Likeness:
        sums = torch.zeros(3, dtype=torch.float64)
        for f, r in zip(found, reference, strict=True):
            f, r = f.detach().double().flatten(), r.double().flatten()
            sums += torch.stack([f @ f, f @ r, r @ r]).cpu()
        ff, fr, rr = (
            (sum(told) for told in zip(*self._run.exchange("sums", sums.tolist()), strict=True))
            if self._sharded
            else sums.tolist()
        )
        residual = math.sqrt(max(0.0, 1 - fr * fr / (ff * rr))) if ff and rr else math.nan
        ratio = fr / rr if rr else math.nan
        like = _Likeness(ratio, ratio * self._clipped(ff), residual)
        if self._sharded or not residual > GATES[self._precision] or self._unclipped is None:
            return like
        # Clipped by value, element by element? Then the norm from before says how large it was.
        ratio = self._unclipped / math.sqrt(rr)
        bound = max(float(f.abs().max()) for f in found if f.numel())
        off = sum(
            float((f.detach().double() - (ratio * r.double()).clamp(-bound, bound)).square().sum())
            for f, r in zip(found, reference, strict=True)
        )
        clamped = _Likeness(math.nan, ratio, math.sqrt(off / ff))
        return clamped if clamped.residual <= GATES[self._precision] else like

    def _clipped(self, square: float) -> float:
        """How many times as large the gradient was before it was clipped."""
        if self._unclipped is None or not square:
            return 1.0
        told = self._run.exchange("norm", self._unclipped) if self._sharded else [self._unclipped]
        return math.hypot(*told) / math.sqrt(square)

    def _shares(self, batches: list[Any]) -> list[float]:
        """The factor of each micro-batch's mean loss."""
        run = self._run
        self._units = float(run.plan.effective_batch or 0)
        if self._weight is None:
            return [float(share) for share in run.plan.loss_weights(run.rank)]
        units = [float(self._weight(batch)) for batch in batches]
        self._units = sum(run.exchange("units", sum(units)))
        return [unit * run.ranks / self._units for unit in units]

    def _is_summed(self, batch: Any) -> bool:
        """Whether the reference itself is a sum: then the script's is one too, and nothing would be noticed."""
        plan, loss = self._run.plan, self._loss
        n = int(plan.micro_batches(self._run.rank)[0])
        if loss is None or min(int(plan.micro_batches(rank)[0]) for rank in range(self._run.ranks)) < 2:
            return False
        modes = {module: module.training for module in self._model.modules()}
        self._model.eval()
        with torch.no_grad():
            parts = [part(batch, 0, 1), part(batch, 1, n)]
            units = [1.0, n - 1.0] if self._weight is None else [float(self._weight(p)) for p in parts]
            whole, first, rest = (float(loss(self._model, b)) for b in (batch, *parts))
        for module, mode in modes.items():
            module.training = mode
        return reduction(whole, (first, rest), (units[0], units[1])) == "sum"

    def _reference(
        self, batches: list[Any], random: list[Any], shares: list[float]
    ) -> tuple[list[Tensor], bool]:
        """The averaged gradient of the mean loss; and whether the model was given what the script has given it."""
        total, same = [torch.zeros_like(local(p)) for p in self._params], True
        for index, (batch, (cpu, cuda), share) in enumerate(zip(batches, random, shares, strict=True)):
            self._inputs.begin_own()
            torch.set_rng_state(cpu)
            if cuda is not None:
                torch.cuda.set_rng_state(cuda)
            kind, precision = total[0].device.type, self._precision
            with torch.enable_grad(), torch.autocast(kind, precision, enabled=precision is not None):
                loss = self._loss(self._model, self._moved(batch)) * share  # type: ignore[misc]
            same = same and self._inputs.same(len(batches) - index)
            for t, g in zip(total, self._gradients(loss), strict=True):
                if g is not None:
                    t += g
        if self._run.ranks > 1 and not self._sharded:
            for t in total:
                dist.all_reduce(t, group=self._run.group)
                t /= self._run.ranks
        return total, same

    def _moved(self, batch: Any) -> Any:
        """A micro-batch on the model's device, where no other one is at the same time."""
        device = self._params[0].device
        return mapped(batch, lambda one: one.to(device) if isinstance(one, Tensor) else one)

    def _gradients(self, loss: Tensor) -> tuple[Tensor | None, ...]:
        if not self._sharded:
            return torch.autograd.grad(loss, self._params, allow_unused=True)
        # Only a real backward gathers and scatters, and averages: the script's own gradients step aside.
        kept = [p.grad for p in self._params]
        for p in self._params:
            p.grad = None
        loss.backward()  # type: ignore[no-untyped-call]
        found = tuple(None if p.grad is None else local(p.grad) for p in self._params)
        for p, grad in zip(self._params, kept, strict=True):
            p.grad = grad
        return found

    @contextlib.contextmanager
    def _replay(self) -> Iterator[None]:
        """The model's buffers and the random state are afterwards what they were."""
        buffers = [(b, b.clone()) for b in self._model.buffers()]
        self._run.own = True
        devices = list(range(torch.cuda.device_count())) if torch.cuda.is_initialized() else []  # type: ignore[no-untyped-call]
        try:
            with torch.random.fork_rng(devices):
                yield
        finally:
            self._run.own = False
            for buffer, value in buffers:
                buffer.copy_(value)


def _has_room(device: torch.device, needed: int) -> bool:
    """Whether a GPU has so many bytes beyond what the training holds: free, or the allocator's own and not given out."""
    if device.type != "cuda":
        return True
    idle = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return int(torch.cuda.mem_get_info(device)[0]) + idle >= needed
