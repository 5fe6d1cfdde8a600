"""Puts the checks into a training script, and runs them in turn."""

from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from isobatch.diagnosis.causes import Cause
from isobatch.guard.finite import MAX_OVERFLOWS, Finite
from isobatch.guard.gradient import Gradient, ZeroGradCheck
from isobatch.guard.loader import LoaderWatch
from isobatch.guard.optimizer import (
    LearningRates,
    Optimizers,
    check_parameters,
    check_settings,
    check_state,
    settle_start,
    torch_optimizer,
)
from isobatch.guard.reference import Loss, ReferenceLoss, Weight
from isobatch.guard.run import Run, inner, local, sharded
from isobatch.guard.samples import Samples
from isobatch.guard.trainers import Owner, check_convention, check_length
from isobatch.planning.plan import Plan
from isobatch.words import few_ranks

NO_LOADER = (
    "a loss was given and no loader: neither the samples nor the gradient's size is checked; docs/guard.md shows five lines "
    "that make a loader of any function that returns batches"
)


class Guard:
    """Watches a training script; see `isobatch.guard.guard`.

    `unchecked` says what could not be looked at, and why; `notes` what is not as expected and does no harm, which rank 0 also
    gives as a warning.
    """

    def __init__(self, plan: Plan, loss: Loss | None = None, weight: Weight | None = None) -> None:
        self.plan, self.unchecked, self.notes = plan, list[str](), list[str]()
        self._reference = ReferenceLoss(loss, weight)
        self._handles: list[Any] = []
        # Micro-batches without a step; an infeasible plan has no layout, and is refused here.
        self._patience = MAX_OVERFLOWS * plan.layout.accumulation

    def attach(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        loader: Any = None,
        *,
        start_step: int | None = None,
        process_group: dist.ProcessGroup | None = None,
        owner: Owner | None = None,
    ) -> "Guard":
        """Checks model, optimizer and loader before the first step, and takes its place in the loop.

        Args:
            model: what the loop calls once for each micro-batch: the DDP wrapper, or a model under fully_shard.
            optimizer: the one that the loop steps, with or without a closure.
            loader: the training DataLoader; None: samples are unchecked.
            start_step: the optimizer steps done, where the run goes on from a checkpoint, counted as the plan counts. None:
                where the optimizer's PlanLR is at the first step, else the loader's PlanSampler, else the plan's last
                move, else 0.
            process_group: the data-parallel ranks, where they are not all.
            owner: the trainer that owns the loop; its callback passes it.

        Raises:
            GuardError: the world size, the ranks' weights or the loader are not as planned.
            InputError: the optimizer cannot be watched.
        """
        self._remove()
        self.unchecked.clear()
        optimizer = torch_optimizer(optimizer, self.unchecked)
        self.notes.clear()
        self._model, self._optimizer, self._start_step = model, optimizer, start_step
        self._run = run = Run(self.plan, self.unchecked, self.notes, process_group)
        self._watch = LoaderWatch(loader, owner and owner.limit) if loader is not None else None
        if self._reference.loss is not None and loader is None:
            run.note(NO_LOADER)
        watch = self._watch
        if owner is None and watch is not None and (watch.sharded or watch.dispatched):
            owner = Owner("transformers")
        if owner is not None:
            check_convention(run, owner)
        self._owner = owner
        self._replicated, self._inner = not sharded(model), inner(model)
        self._equal_weights()
        self._samples = Samples(run, watch, weighted=self._reference.weight is not None)
        self._optimizers = Optimizers(run, self._inner, optimizer)
        self._rates = LearningRates(run, self._optimizers)
        self._finite = Finite(run, model, optimizer, ids_seen=watch is not None and watch.sampled)
        self._zero_grad: ZeroGradCheck | None = ZeroGradCheck(run, self._inner)
        self._gradient: Gradient | None = Gradient(run, model, optimizer, watch, self._reference, owner)
        self._in_eval_mode = False
        self._handles = [
            model.register_forward_pre_hook(self._forward, prepend=True),
            optimizer.register_step_pre_hook(self._stepping),
        ]
        return self

    def __deepcopy__(self, _: Any) -> "Guard":
        """Returns itself: a copy of a model under guard, such as an average of its weights, is not guarded."""
        return self

    def lightning(self) -> Any:
        """Returns the guard as a Lightning callback."""
        from isobatch.guard.trainers import lightning_callback

        return lightning_callback(self)

    def transformers(self) -> Any:
        """Returns the guard as a transformers.TrainerCallback. Without a loss of its own, the model's is the reference."""
        from isobatch.guard.trainers import FIRST_LABELS, label_count, model_loss, transformers_callback

        if self._reference.loss is None:
            self._reference = ReferenceLoss(model_loss, label_count, FIRST_LABELS, assumed=True)
        return transformers_callback(self)

    def finish(self) -> None:
        """Checks the last epoch and takes the guard out of the script.

        Raises:
            GuardError: the last epoch did not serve what the plan says, or the optimizer never stepped.
        """
        if self._handles:
            self._remove()
            if not self._run.since and self._run.micro:
                text = f"{self._run.micro} micro-batches, and no step of the optimizer that is attached"
                self._run.stop(Cause.NO_STEP, text)
            self._samples.finish()
            total = self._run.plan.total_steps
            if self._run.since and total is not None and self._run.step < total:
                self._run.note(f"the run ends after {self._run.step:,} of {total:,} planned optimizer steps")

    def _remove(self) -> None:
        if not self._handles:
            return
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._finite.remove()
        self._settle()
        if self._watch is not None:
            self._watch.remove()

    def _forward(self, *_: Any) -> None:
        run = self._run
        # The wrapper's own mode says nothing: Lightning sets it to eval for a validation, and restores the inner model's only.
        if run.own or not torch.is_grad_enabled():
            return
        if not self._inner.training:
            self._in_eval_mode = True
            return
        if self._gradient is not None:
            self._gradient.forward()
        self._samples.forward()
        if run.micro > self._patience:
            self._finite.stuck(self._patience)

    def _stepping(self, _: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Checks before optimizer.step(): the gradients are there, or a closure will make them."""
        closure = kwargs.get("closure", args[1] if len(args) > 1 else None)
        if closure is None:
            self._before_update()
            return None
        run, first = self._run, True

        def watched() -> Any:
            nonlocal first
            if first:
                first = False
                loss = closure()
                self._before_update()
                return loss
            run.own = True  # some optimizers evaluate again and again: that is no other micro-batch
            try:
                return closure()
            finally:
                run.own = False

        return args[:1], {**kwargs, "closure": watched}

    def _before_update(self) -> None:
        run, gradient = self._run, self._gradient
        if not run.since:
            place = self._watch.now.place if self._watch is not None and self._watch.now is not None else None
            settle_start(run, self._optimizer, self._start_step, place)
            check_parameters(run, self._model, self._optimizer)
            check_state(run, self._optimizer)
            self._samples.begin()
        if self._ended():
            return
        fresh = self._samples.fold()
        if fresh is not None and gradient is not None:
            gradient.fold(fresh)
        if not run.micro:
            self._no_forward()
        if self._zero_grad is not None:
            self._zero_grad.check()
        whole = self._samples.check()
        self._rates.check()
        if not run.since:
            check_settings(run, self._optimizer)
        whole = self._finite.check() and whole
        if gradient is not None:
            gradient.check(whole=whole)
        if run.rare:
            self._equal_weights()
        self._samples.epochs()
        self._in_eval_mode = False
        run.advance()
        if gradient is not None and not run.near:
            self._optimizers.check()
            self._settle()
            if self._owner is not None:
                check_length(run, self._owner)

    def _ended(self) -> bool:
        """Tells whether the plan has no more steps. Many loops count to their last iteration, and take it, too: one more is a note."""
        run, total = self._run, self.plan.total_steps
        if total is None or run.step < total:
            return False
        if run.step > total and not self._samples.vary:
            run.stop(Cause.ANOTHER_LENGTH, f"two more optimizer steps, {total:,} planned")
        run.note(f"the loop takes one optimizer step more than the {total:,} planned")
        run.advance()
        return True

    def _no_forward(self) -> None:
        """Diagnoses a step without a micro-batch through the wrapper."""
        run = self._run
        if self._in_eval_mode:
            run.stop(Cause.EVAL_MODE, "the forwards before this step were in eval mode")
        if not any(p.grad is not None for p in self._inner.parameters()):
            return
        if run.since:
            run.stop(Cause.STEPPED_TWICE, "no forward since the last optimizer step")
        if self._inner is not self._model:
            run.stop(Cause.WRAPPER_BYPASSED, "the wrapper's forward was not called before this step")

    def _settle(self) -> None:
        """Removes the checks of the first steps."""
        if self._gradient is not None:
            self._gradient.remove()
            self._gradient = None
        self._optimizers.remove()
        if self._zero_grad is not None:
            self._zero_grad.remove()
            self._zero_grad = None
        if self._watch is not None:
            self._watch.rest()

    def _equal_weights(self) -> None:
        if not self._replicated:
            return
        run = self._run
        off = run.unlike("weights", [local(p) for p in self._model.parameters()])
        if off:
            run.stop(
                Cause.OTHER_WEIGHTS.likely(few_ranks(off)),
                f"the weights of {few_ranks(off)} are not those of the others",
                off,
            )
