"""Compares the gradient of the first steps with that of the mean loss, and the ranks' gradients with each other."""

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from isobatch.diagnosis import faults
from isobatch.diagnosis.causes import Cause, Diagnosis, either
from isobatch.diagnosis.tensors import AUTOCAST, ELEMENTS
from isobatch.guard.clipping import EXACT, Clipping, Likeness, beside_weights, compare
from isobatch.guard.loader import LoaderWatch
from isobatch.guard.reference import ModelInputs, Recomputation, ReferenceLoss
from isobatch.guard.run import Run, has_room, inner, local, sharded
from isobatch.guard.trainers import Owner, counted_labels, every_label, takes_labels

GATES = {None: EXACT, torch.float16: 0.09, torch.bfloat16: 0.15}
DRAWS = "the loss draws random numbers outside of the model"
ELSE = either(Cause.ANOTHER_LOSS.likely(), Cause.ANOTHER_SAMPLES.likely())


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
        self._sharded, self._places = sharded(model), list[tuple[int, int]]()
        self._reference: list[Tensor] = []
        # Averaging is for the guard to do, where it can be done: so the reference shows what the wrapper does.
        self._model = model if self._sharded else inner(model)
        self._params = [p for p in self._model.parameters() if p.requires_grad]
        self._precision = AUTOCAST[run.plan.recipe.precision]
        self._scaled = self._precision == torch.float16
        self._random: list[tuple[Tensor, Tensor | None]] = []
        self._inputs = ModelInputs(run, self._model)
        self._again = Recomputation(run, self._model, self._params, self._inputs, reference)
        # By transformers' Trainer, where the model's loss ignores the labels of a step.
        self._multiplied = 1.0
        self._units = 0.0  # of a step: samples, or what the loss is a mean over
        self._clipping = Clipping(run, model, list(self._params), optimizer, scaled=self._scaled)
        why = None
        if reference.loss is None:
            why = "no loss was given"
        elif watch is None:
            why = "no loader was given"
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
        self._clipping.remove()
        self._inputs.remove()
        self._random.clear()

    def forward(self) -> None:
        """Saves the random numbers of a micro-batch before it goes through the model."""
        if self._sized:
            self._inputs.forward()
            self._places = self._where()
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

    def check(self, *, whole: bool) -> None:
        """Checks before an optimizer step. Only a whole step has a reference."""
        run, watch = self._run, self._watch
        grads = [torch.zeros_like(local(p)) if p.grad is None else local(p.grad) for p in self._params]
        if not any(run.exchange("any gradient", any(bool(g.any()) for g in grads))):
            if self._sharded and self._clipping.hidden:
                run.stop(
                    Cause.NEVER_AVERAGED, "no gradient has reached the sharded parameters before this step"
                )
            run.stop(Cause.NO_GRADIENT, "all gradients are zero, or none is there")
        if not self._sharded:
            off = run.unlike("gradients", grads)
            if off:
                run.stop(Cause.NEVER_AVERAGED, "gradients differ between ranks", off if run.ranks > 2 else ())
        self._clipping.check(grads)
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
        if not all(run.exchange("room", self._room(grads, 2))):
            self._leave("no room for another gradient on the GPU")
            return
        self._size(watch, grads, batches, random)
        self._reference.clear()
        self._inputs.step()

    def _size(self, watch: LoaderWatch, grads: list[Tensor], batches: list[Any], random: list[Any]) -> None:
        run, plan = self._run, self._run.plan
        error, summed, own, same = None, None, list[Tensor](), False
        self._settle(batches[0])
        shares = self._shares(batches)
        with self._again.replay():
            with contextlib.suppress(Exception):  # a batch may be an object that cannot be divided
                summed = self._again.is_summed(batches[0])
            try:
                own, same = self._again.of(batches, random, shares)
            except Exception as raised:  # whatever the script's loss does with batches that it does not know
                error = f"{type(raised).__name__}: {str(raised)[:200]}"
        errors, unchanged = zip(*run.exchange("reference", (error, same and not watch.changed)), strict=True)
        if why := next(filter(None, errors), None):
            self._leave(f"the loss cannot be computed of the loader's batches ({why})")
            return
        if summed is None and not self._run.since:
            run.unchecked.append("whether the given loss is a sum: its batches cannot be divided")
        if summed:
            text = f"the loss is a sum over the {plan.micro_batch} samples of a micro-batch, not their mean"
            run.stop(Cause.SUMMED_LOSS, text)
        if not all(unchanged):
            self._leave("the script changes the batches between loader and model")
            return
        like, gate = self._compare(grads, own), GATES[self._precision]
        clipping = self._clipping
        if self._sharded and not (like.residual <= gate and like.ratio > 0):
            clipping.check_shards(grads, self._reference, gate)
        if like.residual <= gate:
            known = self._factor(like.ratio, gate) is not None
            if like.close(gate) or clipping.allows(like, gate, explained=known):
                clipping.check_bound(grads, like)
                return
        if like.residual <= gate and self._excused(like, gate, batches):
            return
        text = f"the gradient is {like.unclipped:.4g} × that of the mean loss, {like.residual:.1%} of it in another direction"
        weights = [local(p.detach()) for p in self._params]
        beside = beside_weights(grads, self._reference, weights, like, self._clipping.summed)
        why = self._why(grads, like, gate, batches, random)
        if why is ELSE and beside.residual <= gate:
            why = self._factor(beside.unclipped, gate) or ELSE
        if why is ELSE and beside.residual <= gate and beside.close(gate):
            run.note(
                "the gradient has a term along the weights beside the mean loss's, such as an L2 penalty's"
            )
            return
        if why is ELSE and (meant := self._meant(grads, batches, random)):
            run.note(f"{text}: {meant}")
            self._leave(meant)
            return
        if self._again.reference.assumed and Cause.ANOTHER_LOSS in why.causes:
            run.note(f"{text}: the trainer's loss is not the model's own; pass it as guard(plan, loss=...)")
            self._leave("the trainer's loss is not the model's own, and none was given")
            return
        run.stop(why, text)

    def _meant(self, grads: list[Tensor], batches: list[Any], random: list[Any]) -> str | None:
        """Finds what a healthy script does that makes its gradient another than the reference; None where nothing is seen."""
        run, reasons = self._run, list[str]()
        if self._clipping.changed(grads):
            reasons.append("the script changes the gradients between the backward and the step")
        if self._clipping.hooked():
            reasons.append("a communication hook changes the gradients")
        if self._places and self._places != self._where():
            reasons.append("the script changes the weights between the model's call and the step")
        if found := [one for own in run.exchange("reasons", reasons) for one in own]:
            return str(found[0])
        if not all(run.exchange("room", self._room(grads, 3))):
            return None
        with self._again.replay():
            draws = self._again.draws(batches, random, self._shares(batches), GATES[self._precision])
        return DRAWS if any(run.exchange("draws", draws)) else None

    def _room(self, grads: list[Tensor], times: int) -> bool:
        """Tells whether this rank's GPU has room for the gradient so many times more, and to compare it piece by piece."""
        pieces = 5 * 8 * min(ELEMENTS, max(g.numel() for g in grads))
        return has_room(self._params[0].device, times * sum(g.nbytes for g in grads) + pieces)

    def _where(self) -> list[tuple[int, int]]:
        """Returns where the weights are, and how often they were written."""
        return [] if self._sharded else [(p.data_ptr(), p._version) for p in self._params]

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

    def _excused(self, like: Likeness, gate: float, batches: list[Any]) -> bool:
        """Tells whether the script divides by other units than the reference, as a healthy one may."""
        other, ratio = self._again.reference.other, self._other_ratio(batches)
        if other is None or not any(abs(found / ratio - 1) <= gate for found in like[:2]):
            return False
        self._run.note(other.note.format(ratio=ratio))
        return True

    def _other_ratio(self, batches: list[Any]) -> float:
        """Computes the gradient's size where the script divides by the other units; 1 where there are none."""
        _, weight, other, _ = self._again.reference
        if other is None or weight is None:
            return 1.0
        units = [sum(map(weight, batches)), sum(map(other.units, batches))]
        counted = self._run.exchange("other units", units)
        return float(sum(ours for ours, _ in counted) / sum(theirs for _, theirs in counted))

    def _why(
        self, found: list[Tensor], like: Likeness, gate: float, batches: list[Any], random: list[Any]
    ) -> Diagnosis:
        """Diagnoses a gradient unlike the mean loss's."""
        if like.residual <= gate:
            factor = either(
                Cause.GRADIENT_FACTOR.likely(f"{like.unclipped:.4g}×"), Cause.ANOTHER_LOSS.likely()
            )
            ratios = like.unclipped, like.unclipped / self._other_ratio(batches)
            return next(filter(None, (self._factor(ratio, gate) for ratio in ratios)), factor)
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

    def _compare(self, found: list[Tensor], own: list[Tensor]) -> Likeness:
        """Compares a gradient with the reference, of which `own` is this rank's part."""
        self._reference = self._again.averaged(own)
        if (scale := getattr(self._optimizer, "grad_scale", None)) is not None:
            for r in self._reference:
                r *= scale
        before, gate = self._clipping.norms(found)[0], GATES[self._precision]
        return compare(found, self._reference, before, gate, self._clipping.summed)

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
