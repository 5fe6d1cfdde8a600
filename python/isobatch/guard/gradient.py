"""Compares the gradient of the first steps with that of the mean loss, and the ranks' gradients with each other."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from isobatch.diagnosis import faults
from isobatch.diagnosis.causes import Cause, Diagnosis, either
from isobatch.diagnosis.tensors import AUTOCAST, checksum, chunks, differing, products, square
from isobatch.guard.loader import LoaderWatch
from isobatch.guard.optimizer import clips_itself
from isobatch.guard.reference import ModelInputs, Recomputation, ReferenceLoss, has_room
from isobatch.guard.run import Run, flat, inner, local, sharded
from isobatch.guard.trainers import Owner, counted_labels, every_label, takes_labels

GATES = {None: 3e-3, torch.float16: 0.09, torch.bfloat16: 0.15}
CLIP_TOLERANCE = 0.02  # how far a norm may be from the one that it is clipped to
ELSE = either(Cause.ANOTHER_LOSS.likely(), Cause.ANOTHER_SAMPLES.likely())


class _Likeness(NamedTuple):
    """Compares a gradient with the reference: how many times as large it is along it, and was before it was clipped; and how much of it
    points elsewhere."""

    ratio: float
    unclipped: float
    residual: float


class Gradient:
    """Compares the first steps' averaged gradient with the reference's, and the ranks' gradients with each other."""

    def __init__(
        self,
        run: Run,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        watch: LoaderWatch | None,
        reference: ReferenceLoss,
        owner: Owner | None = None,
    ) -> None:
        self._run, self._optimizer, self._watch, self._owner = run, optimizer, watch, owner
        self._sharded = sharded(model)
        # Averaging is for the guard to do, where it can be done: so the reference shows what the wrapper does.
        self._model = model if self._sharded else inner(model)
        self._params = [p for p in self._model.parameters() if p.requires_grad]
        self._precision = AUTOCAST[run.plan.recipe.precision]
        # A norm before clipping would be in the loss scaler's units.
        self._scaled = self._precision == torch.float16
        self._random: list[tuple[Tensor, Tensor | None]] = []
        self._inputs = ModelInputs(run, self._model)
        self._again = Recomputation(run, self._model, self._params, self._inputs, reference)
        self._multiplied = (
            1.0  # by transformers' Trainer, where the model's loss ignores the labels of a step
        )
        self._unclipped: float | None = None
        self._sums: list[float] | None = None
        self._queued = False
        self._units = 0.0  # of a step: samples, or what the loss is a mean over
        self._handles = [
            p.register_post_accumulate_grad_hook(self._accumulated)  # type: ignore[no-untyped-call]
            for p in ([] if flat(model) or self._scaled else self._params)
        ]
        why = None
        if reference.loss is None:
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
        """Removes the hooks."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._inputs.remove()
        self._random.clear()

    def forward(self) -> None:
        """Saves the random numbers of a micro-batch before it goes through the model."""
        if self._sized:
            self._inputs.forward()
            cuda = torch.cuda.get_rng_state() if torch.cuda.is_initialized() else None  # type: ignore[no-untyped-call]
            self._random.append((torch.get_rng_state(), cuda))
            kind = self._params[0].device.type
            if self._precision is None and torch.is_autocast_enabled(kind):  # the recipe does not say so
                self._precision = self._again.precision = torch.get_autocast_dtype(kind)

    def fold(self, fresh: list[bool]) -> None:
        """Leaves of several calls for a batch the first one: `fresh`."""
        if self._sized:
            calls = self._random[-len(fresh) :]
            self._random = [random for first, random in zip(fresh, calls, strict=True) if first]
            self._inputs.fold(fresh)

    def _accumulated(self, _: Tensor) -> None:
        if not self._queued and not self._run.own:
            self._queued = True
            engine = torch.autograd.Variable._execution_engine
            # DDP ends in a callback of its own, queued later than this one: go to the end of the queue once more.
            engine.queue_callback(lambda: engine.queue_callback(self._backward_done))

    def _backward_done(self) -> None:
        """Measures the norm of gradients that are averaged and not clipped yet."""
        self._queued = False
        self._unclipped = math.sqrt(
            sum(float(square(local(p.grad))) for p in self._params if p.grad is not None)
        )
        self._sums = self._sums_of(p.grad for p in self._params)

    def _sums_of(self, grads: Iterable[Tensor | None]) -> list[float]:
        """Sums each gradient: clipping by the norm multiplies all of these alike, what changes a gradient's direction does not."""
        return [0.0 if g is None else float(local(g).sum(dtype=torch.float32)) for g in grads]

    def _changed(self, grads: list[Tensor]) -> bool:
        """Tells whether the script changed the gradients' direction between the backward and this step."""
        pairs = [] if self._sums is None else list(zip(self._sums_of(grads), self._sums, strict=True))
        before, both = sum(b * b for _, b in pairs), sum(a * b for a, b in pairs)
        off = sum((a * before - both * b) ** 2 for a, b in pairs)
        return off > (GATES[None] * both) ** 2 * before

    def check(self, *, whole: bool) -> None:
        """Checks before an optimizer step. Only a whole step has a reference."""
        run, watch = self._run, self._watch
        grads = [torch.zeros_like(local(p)) if p.grad is None else local(p.grad) for p in self._params]
        if not any(run.exchange("any gradient", any(bool(g.any()) for g in grads))):
            self._stop_empty()
        if not self._sharded:
            off = differing(run.exchange("gradients", checksum(grads)))
            if off:
                run.stop(Cause.NEVER_AVERAGED, "gradients differ between ranks", off if run.ranks > 2 else ())
            norms = run.exchange("norms before", self._unclipped)
            if self._unclipped is not None and max(norms) - min(norms) > GATES[None] * max(norms):
                self._unclipped = self._sums = None  # the script averages after the backward
        before, after = self._norms(grads)
        bound = None if clips_itself(self._optimizer) else run.plan.recipe.clip_norm
        if (
            bound is not None
            and before > bound * (1 + CLIP_TOLERANCE)
            and abs(after / before - 1) < CLIP_TOLERANCE / 100
        ):
            text = f"the gradient's norm is {after:.4g} when the optimizer steps, {bound:.4g} planned at most"
            run.stop(Cause.CLIPPED_OTHERWISE, text)
        if not self._sized or watch is None:
            return
        planned = len(run.planned)  # the last ones: a loss scaler may have skipped steps before them
        batches, random = watch.take(run.micro)[-planned:], self._random[-planned:]
        self._random.clear()
        if not whole:
            return
        if not all(run.exchange("batches", len(batches) == len(random) == planned)):
            self._leave("the loop takes batches from elsewhere")
            return
        # Double the gradients: their sum so far, and those of a micro-batch. All ranks must have that room, or none tries.
        needed = 2 * sum(g.numel() * g.element_size() for g in grads)
        if not all(run.exchange("room", has_room(self._params[0].device, needed))):
            self._leave("no room for another gradient on the GPU")
            return
        self._size(watch, grads, batches, random)
        self._inputs.step()

    def _size(self, watch: LoaderWatch, grads: list[Tensor], batches: list[Any], random: list[Any]) -> None:
        run, plan = self._run, self._run.plan
        error, summed, local, same = None, False, list[Tensor](), False
        self._settle(batches[0])
        shares = self._shares(batches)
        with self._again.replay():
            try:
                summed = self._again.is_summed(batches[0])
                local, same = self._again.of(batches, random, shares)
            except Exception as raised:  # whatever the script's loss does with batches that it does not know
                error = f"{type(raised).__name__}: {str(raised)[:200]}"
        known = run.exchange("reference", (error, same and not watch.changed))
        if any(error for error, _ in known):
            why = next(error for error, _ in known if error)
            self._leave(f"the loss cannot be computed of the loader's batches ({why})")
            return
        if summed:
            text = f"the loss is a sum over the {plan.micro_batch} samples of a micro-batch, not their mean"
            run.stop(Cause.SUMMED_LOSS, text)
        if not all(same for _, same in known):
            self._leave("the script changes the batches between loader and model")
            return
        like, gate = self._compare(grads, local), GATES[self._precision]
        unknown = (self._scaled or self._unclipped is None) and run.plan.recipe.clip_norm is not None
        if like.residual <= gate and (unknown or any(abs(ratio - 1) <= gate for ratio in like[:2])):
            self._clipping(grads, like)
            return
        if like.residual <= gate and self._excused(like, gate, batches):
            return
        text = f"the gradient is {like.unclipped:.4g} × that of the mean loss, {like.residual:.1%} of it in another direction"
        why = self._why(grads, like, gate, batches, random)
        if why is ELSE and self._changed(grads):
            run.note(f"{text}: the script changes it between the backward and the step")
            self._leave("the script changes the gradients between the backward and the step")
            return
        if self._again.reference.assumed and Cause.ANOTHER_LOSS in why.causes:
            run.note(f"{text}: the trainer's loss is not the model's own; pass it as guard(plan, loss=...)")
            self._leave("the trainer's loss is not the model's own, and none was given")
            return
        run.stop(why, text)

    def _settle(self, batch: Any) -> None:
        """Finds out, once, what a Trainer's loss is a mean over, and whether the Trainer multiplies it."""
        run, owner, reference = self._run, self._owner, self._again.reference
        self._owner = None
        if owner is None or not owner.counts_labels:
            return
        takes = isinstance(batch, Mapping) and "labels" in batch and takes_labels(self._model)
        own: tuple[float | None, bool] = None, False
        if takes:
            with self._again.replay(), contextlib.suppress(Exception):  # the reference says what is wrong
                counted = self._again.evaluated(counted_labels, batch)
                own = counted, counted == every_label(batch)
        counted, every = run.exchange("labels", own)[0]
        if takes and counted is None:
            self._multiplied = float(run.plan.accumulation or 1) * (run.ranks if owner.over_ranks else 1)
        if reference.assumed and (counted is None or every):
            weight = every_label if every else None
            self._again.reference = reference._replace(weight=weight, other=None)

    def _leave(self, why: str) -> None:
        """Gives up the gradient's size."""
        self._sized = False
        self._run.unchecked.append(f"the gradient's size: {why}")

    def _stop_empty(self) -> None:
        if self._sharded and self._unclipped is None:
            text = "no gradient has reached the sharded parameters before this step"
            self._run.stop(Cause.NEVER_AVERAGED, text)
        self._run.stop(Cause.NO_GRADIENT, "all gradients are zero, or none is there")

    def _norms(self, grads: list[Tensor]) -> tuple[float, float]:
        """Returns the gradient's norm before anybody clipped it, and now; NaN where the first is not known."""
        if self._unclipped is None:
            return math.nan, math.nan
        after = sum(float(square(g)) for g in grads)
        squares = self._summed("norms", [self._unclipped**2, after])
        return math.sqrt(squares[0]), math.sqrt(squares[1])

    def _clipping(self, found: list[Tensor], like: _Likeness) -> None:
        """Checks the norm of a gradient shortened in its own direction."""
        bound = self._run.plan.recipe.clip_norm
        before, after = self._norms(found)
        shorter = not math.isnan(like.ratio) and after < before * (1 - CLIP_TOLERANCE)
        if bound is not None and shorter and abs(after / min(bound, before) - 1) > CLIP_TOLERANCE:
            text = f"the gradient is clipped to a norm of {after:.4g}, {bound:.4g} planned"
            self._run.stop(Cause.CLIPPED_OTHERWISE, text)

    def _excused(self, like: _Likeness, gate: float, batches: list[Any]) -> bool:
        """Tells whether the script divides by other units than the reference, as a healthy one may."""
        _, weight, other, _ = self._again.reference
        if other is None or weight is None:
            return False
        run = self._run
        counted = run.exchange("other units", [sum(map(weight, batches)), sum(map(other.units, batches))])
        ratio = sum(ours for ours, _ in counted) / sum(theirs for _, theirs in counted)
        if not any(abs(found / ratio - 1) <= gate for found in like[:2]):
            return False
        run.note(other.note.format(ratio=ratio))
        return True

    def _why(
        self, found: list[Tensor], like: _Likeness, gate: float, batches: list[Any], random: list[Any]
    ) -> Diagnosis:
        """Diagnoses a gradient unlike the mean loss's."""
        if like.residual <= gate:
            factor = either(
                Cause.GRADIENT_FACTOR.likely(f"{like.unclipped:.4g}×"), Cause.ANOTHER_LOSS.likely()
            )
            return self._factor(like.unclipped, gate) or factor
        for shares, cause in self._other_shares(batches):
            with self._again.replay():
                local, _ = self._again.of(batches, random, shares)
            like = self._compare(found, local)
            if like.residual <= gate:
                return self._factor(like.unclipped, gate) or cause.likely()
        return ELSE

    def _other_shares(self, batches: list[Any]) -> Iterator[tuple[list[float], Cause]]:
        """Lists other factors of the micro-batches' mean losses, and their causes."""
        _, weight, other, _ = self._again.reference
        equal = [1 / len(batches)] * len(batches)
        if len(batches) > 1:
            yield [0.0] * (len(batches) - 1) + self._shares(batches)[-1:], Cause.GRADIENTS_CLEARED
        yield equal, Cause.UNEVEN_MEAN if weight is None else Cause.OWN_UNITS
        if weight is not None:
            units = [float(weight(batch)) for batch in batches]
            totals = [sum(units)] if other is None else [sum(map(other.units, batches)), sum(units)]
            for total in totals:
                yield [unit / total for unit in units], Cause.RANKS_OWN_UNITS

    def _factor(self, ratio: float, gate: float) -> Diagnosis | None:
        """Diagnoses a gradient `ratio` times too large."""
        known: dict[str, Any] = {
            "micro_batch": self._units / len(self._run.planned) / self._run.ranks,
            "accumulation": self._run.plan.accumulation or 1,
            "ranks": self._run.ranks,
            "tolerance": max(0.02, gate / 3),
        }
        if self._multiplied == 1:
            return faults.gradient(ratio, **known)
        return faults.trainer_gradient(ratio, multiplied=self._multiplied, **known)

    def _compare(self, found: list[Tensor], own: list[Tensor]) -> _Likeness:
        """Compares a gradient with the reference, of which `own` is this rank's part. Nothing here is as large as a parameter."""
        reference = self._again.averaged(own)
        if (scale := getattr(self._optimizer, "grad_scale", None)) is not None:
            for r in reference:
                r *= scale
        _, ff, fr, rr = self._summed("sums", products(found, reference))
        residual = math.sqrt(max(0.0, 1 - fr * fr / (ff * rr))) if ff and rr else math.nan
        ratio = fr / rr if rr else math.nan
        before = self._norms(found)[0]
        unclipped = 1.0 if math.isnan(before) or not ff else before / math.sqrt(ff)
        like = _Likeness(ratio, ratio * unclipped, residual)
        if not residual > GATES[self._precision] or math.isnan(before):
            return like
        # Clipped element by element, or row by row? Then none is longer than it was, and the norm from before says how large.
        ratio = before / math.sqrt(rr)
        off = 0.0
        for pair in zip(found, reference, strict=True):
            for f, r in zip(*map(chunks, pair), strict=True):
                f, whole = f.double(), ratio * r.double()
                off += float((f - f.clamp(whole.clamp(max=0), whole.clamp(min=0))).square().sum())
        shortened = _Likeness(math.nan, ratio, math.sqrt(self._summed("beyond", [off])[0] / ff))
        return shortened if shortened.residual <= GATES[self._precision] else like

    def _summed(self, tag: str, own: list[float]) -> list[float]:
        """Sums over a gradient: where it is sharded, over those of all ranks."""
        return (
            [sum(parts) for parts in zip(*self._run.exchange(tag, own), strict=True)]
            if self._sharded
            else own
        )

    def _shares(self, batches: list[Any]) -> list[float]:
        """Returns the factor of each micro-batch's mean loss."""
        run = self._run
        self._units = float(run.plan.effective_batch or 0)
        weight = self._again.reference.weight
        if weight is None:
            return [float(share) for share in run.plan.loss_weights(run.rank)]
        units = [float(weight(batch)) for batch in batches]
        self._units = sum(run.exchange("units", sum(units)))
        return [unit * run.ranks / self._units for unit in units]


class ZeroGradCheck:
    """Looks at the smallest parameter's gradient when the first one of a step arrives: it is still the last step's."""

    def __init__(self, run: Run, model: nn.Module) -> None:
        self._run, self._kept = run, False
        self._param = min((p for p in model.parameters() if p.requires_grad), key=Tensor.numel)
        # A sharded parameter's own hook is never called: then nothing is seen.
        self._handle = self._param.register_hook(self._arriving)  # type: ignore[no-untyped-call]

    def remove(self) -> None:
        """Removes the hook."""
        self._handle.remove()

    def _arriving(self, _: Tensor) -> None:
        run, before = self._run, self._param.grad
        if run.since and run.micro == 1 and not run.own and before is not None and bool((before != 0).any()):
            self._kept = True

    def check(self) -> None:
        """Checks before an optimizer step."""
        if self._kept:
            text = "the first gradient of this step was added to the last step's, which zero_grad had not cleared"
            self._run.stop(Cause.GRADIENTS_KEPT, text)
