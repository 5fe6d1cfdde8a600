"""Compares the gradient of the first steps with the mean loss's, and the ranks' gradients with each other."""

import contextlib
import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from isobatch.equivalence.laws import Cause, Diagnosis, either
from isobatch.equivalence.tensors import AUTOCAST, ELEMENTS, likeness
from isobatch.errors import first_line
from isobatch.guard.averaging import Averaging
from isobatch.guard.calls import MicroBatches
from isobatch.guard.clipping import (
    EXACT,
    TOLERANCE,
    Clipped,
    Clipping,
    beside_weights,
    clipped_early,
    compare,
)
from isobatch.guard.division import LossDivision
from isobatch.guard.loader import LoaderWatch, cut
from isobatch.guard.optimizer import Optimizers
from isobatch.guard.randomness import SAME_NOISE, CallRecording, RecordedCall, same_generators
from isobatch.guard.reference import GuardedStep, ModelInputs, Recomputation, ReferenceLoss
from isobatch.guard.run import Run, has_room, inner, local, sharded
from isobatch.guard.trainers import Owner
from isobatch.limits import within

GATES = {None: EXACT, torch.float16: 0.09, torch.bfloat16: 0.15}
PRECISION = (
    "the precision: the plan's is lower than float32, in which the model is called, without an autocast"
)
DRAWS = "the loss draws random numbers outside of the model"
ELSE = either(Cause.ANOTHER_LOSS.likely(), Cause.ANOTHER_SAMPLES.likely())


def _own_buffers(model: nn.Module) -> list[Tensor]:
    """Lists a model's buffers without the statistics of norms: these are in no gradient in training mode."""
    norms = nn.modules.batchnorm._NormBase
    modules = (module for module in model.modules() if not isinstance(module, norms))
    return [buffer for module in modules for buffer in module.buffers(recurse=False)]


class Gradient:
    """Compares the gradient of the first steps with the reference, and the ranks' with each other.

    `sized`: it is, or will be, compared with the reference; `inputs` are those of the model for that.
    """

    def __init__(
        self,
        run: Run,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        optimizers: Optimizers,
        watch: LoaderWatch | None,
        calls: MicroBatches,
        reference: ReferenceLoss,
        owner: Owner | None = None,
    ) -> None:
        self._run, self._optimizer, self._watch = run, optimizer, watch
        self._calls = calls
        self._optimizers, self.recording = optimizers, CallRecording(run)
        self._sharded, self._places = sharded(model), list[tuple[int, int]]()
        self.averaging = Averaging(run, optimizer)
        self._buffers = list[tuple[Tensor, Tensor]]()  # the model's, and as they were before its call
        # The guard averages by itself where it can, so that a fault of the wrapper's averaging shows.
        self._model = model if self._sharded else inner(model)
        self._params = [p for p in self._model.parameters() if p.requires_grad]
        self._precision = AUTOCAST[run.plan.recipe.precision]
        self._scaled = self._precision == torch.float16
        self.inputs = ModelInputs(run, self._model, self.recording)
        self._again = Recomputation(run, self._model, self._params, self.inputs, reference)
        self._division = LossDivision(run, self._again, owner)
        self.clipping = Clipping(run, model, self._params, optimizer, scaled=self._scaled)
        if watch is not None:
            watch.on_batch = self.recording.begin
        self.sized = True
        if reference.loss is None or watch is None:
            self._leave(f"no {'loss' if reference.loss is None else 'loader'} was given")
        elif run.plan.recipe.ramp is not None:
            self._leave("the batch ramps")
        elif self._scaled and run.plan.recipe.clip_norm is not None:
            run.leave("the gradient's size (its direction was checked): clipped behind a loss scaler")
        if self._sharded:
            run.leave(
                "equal weights and gradients on all ranks, and whether the wrapper averages: each rank holds "
                "its own part"
            )

    def forward(self) -> None:
        """Saves the random states of a micro-batch before it goes through the model."""
        run = self._run
        if run.since and not run.micro:
            self._leave_out_untrained()
        self.recording.forward()
        if self.sized:
            self._places, self._buffers = self._where(), [(b, b.clone()) for b in _own_buffers(self._model)]
            kind = self._params[0].device.type
            casts = torch.is_autocast_enabled(kind) or self._params[0].dtype != torch.float32
            if self._precision is not None and not casts:
                run.leave(PRECISION)
            if self._precision is None and torch.is_autocast_enabled(kind):  # the recipe does not say so
                self._precision = self._again.precision = torch.get_autocast_dtype(kind)

    def _leave_out_untrained(self) -> None:
        """Leaves out parameters without an optimizer: nobody clears their gradients."""
        owned = self._optimizers.owned()
        trained = [p for p in self._params if id(p) in owned]
        if 0 < len(trained) < len(self._params):  # if it owns none, the optimizer has copies of its own
            self._params[:] = trained
            self.clipping.partial = True

    def check(self) -> None:
        """Checks before an optimizer step. Only a whole step has a reference."""
        run, watch = self._run, self._watch
        grads = [torch.zeros_like(local(p)) if p.grad is None else local(p.grad) for p in self._params]
        if not any(run.exchange("any gradient", any(bool(g.any()) for g in grads))):
            if self._sharded and self.clipping.hidden:
                text = "no gradient has reached the sharded parameters before this step"
                run.stop(Cause.NEVER_AVERAGED, text)
            run.stop(Cause.NO_GRADIENT, "all gradients are zero or missing")
        if not self._sharded and not self.averaging.check(grads):
            return
        self.clipping.check(grads)
        planned = len(run.planned)  # the last ones: a loss scaler may have skipped steps before them
        calls = self.recording.take(planned)
        batches = [] if watch is None else watch.take(self._calls.epochs)[-planned:]
        if len(batches) == 1 < planned:
            batches = cut(batches[0], run.planned)
        if not run.since and watch is not None:
            self._same_noise(batches, calls)
        if not self.sized or not run.whole:
            return
        if not all(run.exchange("batches", len(batches) == len(calls) == planned)):
            self._leave(
                "the loop takes batches from elsewhere" if calls else "the attached model is not called"
            )
            return
        # Two more gradients: the sum so far, and one micro-batch's. All ranks have room, or none tries.
        if not all(run.exchange("room", self._room(grads, 2))):
            self._leave("no room for another gradient on the GPU")
            return
        self._size(grads, batches, calls)

    def _same_noise(self, batches: list[Any], calls: list[RecordedCall]) -> None:
        """Warns if all ranks draw the same noise, for the loss or inside the model."""
        run = self._run
        equal, drawn = same_generators(run, calls)
        if equal and not drawn and self.sized:
            inside = False
            if batches:
                with self._again.replay(), contextlib.suppress(Exception):  # the reference says what is wrong
                    inside = self._again.draws_noise(batches[0], calls[0].start)
            drawn = all(run.exchange("noise", inside))
        if drawn:
            run.note(SAME_NOISE)

    def _size(self, grads: list[Tensor], batches: list[Any], calls: list[RecordedCall]) -> None:
        """Compares the gradient with the reference.

        The reference first draws from the random state when the loader gave each batch, then from the state
        when the model was called: a script may draw other numbers beside its loss. Or its first call was for
        a measure, and the last one counts.
        """
        run = self._run
        self._division.settle(batches[0])
        shares = self._division.shares(batches)
        if isinstance(shares, str):
            self._leave(shares)
            return
        summed = None
        with self._again.replay(), contextlib.suppress(Exception):  # a batch may have no parts
            summed = self._again.is_summed(batches[0])
        drawn = [
            any(getattr(call, at).digests() != call.first.digests() for call in calls)
            for at in ("start", "last")
        ]
        before, after = map(any, zip(*run.exchange("drawn", drawn), strict=True))
        likes: list[tuple[Clipped, GuardedStep]] = []
        for number, at in enumerate(["start"] * before + ["first"] + ["last"] * after):
            step = GuardedStep(grads, batches, calls, [getattr(call, at) for call in calls], shares)
            own, error, same = self._recomputed(step)
            answers = run.exchange("reference", (error, same))
            if why := next((error for error, _ in answers if error), None):
                self._leave(f"the loss cannot be computed from the loader's batches ({why})")
                return
            if not number:
                self._check_reduction(summed)
            if all(same for _, same in answers):
                reference, like = self._compare(step, own)
                likes.append((like, step))
                if self._agrees(step, reference, like):
                    return
                del own, reference  # one at a time: each is as large as the gradient
        if not likes:
            self._leave(self.inputs.why_unlike or "the script changes the batches between loader and model")
            return
        _, best = min(likes, key=lambda pair: pair[0].residual)
        self._explain(best, *self._compare(best, self._recomputed(best)[0]))

    def _check_reduction(self, summed: bool | None) -> None:
        """Stops if the reference loss is a sum: the script's is then too, and no comparison shows it."""
        run, micro = self._run, self._run.plan.micro_batch
        if summed is None and not run.since:
            run.leave("whether the given loss is a sum: its batches cannot be divided")
        if summed:
            text = f"the loss is a sum over the {micro} samples of a micro-batch, not their mean"
            run.stop(Cause.SUMMED_LOSS, text)

    def _recomputed(self, step: GuardedStep) -> tuple[list[Tensor], str | None, bool]:
        """Returns the rank's reference, an error if any, and whether the model got the script's inputs."""
        try:
            with self._again.replay():
                own, same = self._again.of(step)
        except Exception as raised:  # the script's loss may do anything with batches that it does not know
            return [], first_line(raised), False
        return own, None, same and not (self._watch is not None and self._watch.changed)

    def _agrees(self, step: GuardedStep, reference: list[Tensor], like: Clipped) -> bool:
        """Tells whether a gradient agrees with the reference, clipped as planned."""
        gate, clipping = self._gate, self.clipping
        if self._sharded and not (within(like.residual, gate) and like.ratio > 0):
            clipping.check_shards(step.grads, reference, gate)
        if not within(like.residual, gate):
            return False
        known = self._division.explain(like.ratio, gate) is not None
        if like.close(gate) or clipping.allows(like, gate, explained=known):
            clipping.check_bound(step.grads, like)
            return True
        return self._division.excuses(like, gate, step.batches)

    def _explain(self, step: GuardedStep, reference: list[Tensor], like: Clipped) -> None:
        """Stops for a gradient unlike the reference, unless a healthy script may have one."""
        run, gate, bound = self._run, self._gate, self._run.plan.recipe.clip_norm
        short = bound is None or not within(max(1 - like.norm / bound, 0.0), TOLERANCE)
        rescaled = self.clipping.rescaled or (short and self._division.explain(like.ratio, gate))
        if rescaled and not math.isnan(like.ratio):  # else it is clipped by value: two writes as well
            like = like._replace(unclipped=like.ratio)  # its norm before is another gradient's
        size, share = f"{like.unclipped:.4g} ×", f"{like.residual:.1%}"
        text = f"the gradient is {size} that of the mean loss, {share} of it in another direction"
        weights = [local(p.detach()) for p in self._params]
        beside = beside_weights(step.grads, reference, weights, like, self.clipping.summed)
        why = self._why(step, like)
        if why is ELSE and within(beside.residual, gate):
            why = self._division.explain(beside.unclipped, gate) or ELSE
        if why is ELSE and within(beside.residual, gate) and beside.close(gate):
            run.note(
                "the gradient has a term along the weights beside the mean loss's, such as an L2 penalty's"
            )
            return
        if why is ELSE and (meant := self._meant(step)):
            run.note(f"{text}: {meant}")
            self._leave(meant)
            return
        if self._again.reference.assumed and Cause.ANOTHER_LOSS in why.causes:
            run.note(f"{text}: the trainer's loss is not the model's own; pass it as guard(plan, loss=...)")
            self._leave("the trainer's loss is not the model's own, and none was given")
            return
        run.stop(why, text)

    def _why(self, step: GuardedStep, like: Clipped) -> Diagnosis:
        """Diagnoses a gradient unlike the mean loss's."""
        gate, explain = self._gate, self._division.explain
        bound, passes = self._run.plan.recipe.clip_norm, len(step.shares)
        early = passes > 1 and bound is not None and within(like.norm * passes / bound - 1, gate)
        if early and within(like.residual, gate):
            return Cause.CLIPPED_OTHERWISE.likely("before the division by the passes")
        known = explain(like.unclipped, gate) or explain(like.unclipped, gate, step.batches)
        if within(like.residual, gate) and known:
            return known
        if detail := self._clipped_early(step):
            return Cause.CLIPPED_OTHERWISE.likely(detail)
        if within(like.residual, gate):
            factor = Cause.GRADIENT_FACTOR.likely(f"{like.unclipped:.4g}×")
            return either(factor, Cause.ANOTHER_LOSS.likely())
        for shares, cause in self._division.others(step.batches, step.shares):
            with self._again.replay():
                own, _ = self._again.of(step._replace(shares=shares))
            _, like = self._compare(step, own)
            if within(like.residual, gate):
                return explain(like.unclipped, gate) or cause.likely()
        return ELSE

    def _clipped_early(self, step: GuardedStep) -> str:
        """Says where the gradient was clipped too early; nothing where it was not, or cannot be told."""
        run, bound = self._run, self._run.plan.recipe.clip_norm
        if bound is None or self._sharded or not all(run.exchange("room", self._room(step.grads, 5))):
            return ""
        ways = clipped_early(self._by_pass(step), bound, self._again.averaged)
        return next((way for way, g in ways.items() if within(likeness(step.grads, g).error, self._gate)), "")

    def _by_pass(self, step: GuardedStep) -> Iterator[list[Tensor]]:
        """Yields this rank's reference of each pass."""
        for at, share in enumerate(step.shares):
            alone = [share if at == pass_ else 0.0 for pass_ in range(len(step.shares))]
            with self._again.replay():
                own, _ = self._again.of(step._replace(shares=alone))
            yield own

    def _compare(self, step: GuardedStep, own: list[Tensor]) -> tuple[list[Tensor], Clipped]:
        """Compares a gradient with the reference, made in place of `own`, this rank's part; returns both."""
        reference = self._again.averaged(own)
        if (scale := getattr(self._optimizer, "grad_scale", None)) is not None:
            for r in reference:
                r *= scale
        before = self.clipping.norms(step.grads)[0]
        return reference, compare(step.grads, reference, before, self._gate, self.clipping.summed)

    @property
    def _gate(self) -> float:
        return GATES[self._precision]

    def _meant(self, step: GuardedStep) -> str | None:
        """Returns a healthy script's reason for a gradient unlike the reference; None without one."""
        run, reasons = self._run, list[str]()
        if self.clipping.changed(step.grads):
            reasons.append("the script changes the gradients between the backward and the step")
        if self.clipping.hooked():
            reasons.append("a communication hook changes the gradients")
        if any(not torch.equal(buffer, before) for buffer, before in self._buffers):
            reasons.append("the model changes its buffers in its calls")
        if run.unrecorded:
            reasons.append("the model is called without gradients too, as for a loss over several passes")
        if self._again.beside:
            reasons.append("the script calls the model on other inputs beside the batch")
        if self._places and self._places != self._where():
            reasons.append("the script changes the weights between the model's call and the step")
        if common := next(filter(None, run.exchange("reasons", reasons)), None):
            return str(common[0])
        if not all(run.exchange("room", self._room(step.grads, 3))):
            return None
        with self._again.replay():
            draws = self._again.draws(step, self._gate)
        return DRAWS if any(run.exchange("draws", draws)) else None

    def _room(self, grads: list[Tensor], times: int) -> bool:
        """Tells whether this rank's GPU has room for `times` more gradients, and for comparing them."""
        pieces = 5 * 8 * min(ELEMENTS, max(g.numel() for g in grads))
        return has_room(self._params[0].device, times * sum(g.nbytes for g in grads) + pieces)

    def _where(self) -> list[tuple[int, int]]:
        """Returns where the weights are, and how often they were written."""
        return [] if self._sharded else [(p.data_ptr(), p._version) for p in self._params]

    def _leave(self, why: str) -> None:
        """Gives up the gradient's size."""
        self.sized = False
        self._run.leave(f"the gradient's size: {why}")
