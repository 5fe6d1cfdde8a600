"""Puts the guard into a training script, and makes its checks in turn."""

from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from isobatch.equivalence.laws import Cause
from isobatch.guard.calls import MicroBatches
from isobatch.guard.epochs import Epochs
from isobatch.guard.error import GuardError
from isobatch.guard.finite import MAX_OVERFLOWS, Finite
from isobatch.guard.gradient import Gradient
from isobatch.guard.loader import LoaderWatch
from isobatch.guard.model import ModelWatch, ZeroGradCheck
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
from isobatch.guard.run import CLOSE_STEPS, Run, outside_of_graphs
from isobatch.guard.samples import Samples
from isobatch.guard.trainers import Owner, check_convention, check_length
from isobatch.planning.plan import Plan

NO_LOADER = (
    "a loss was given and no loader: neither the samples nor the gradient's size is checked; docs/guard.md "
    "shows five lines that make a loader of any function that returns batches"
)


class Guard:
    """Watches a training script; see `isobatch.guard.guard`.

    `unchecked` says what could not be looked at, and why; `notes` what is not as expected and does no harm,
    which rank 0 also gives as a warning.
    """

    def __init__(self, plan: Plan, loss: Loss | None = None, weight: Weight | None = None) -> None:
        self.plan, self.unchecked, self.notes = plan, list[str](), list[str]()
        self._reference = ReferenceLoss(loss, weight)
        self._attached = self._in_step = self._judged = self._steps = False
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
            model: what the loop calls once for each micro-batch: the DDP wrapper, or a model under
                fully_shard.
            optimizer: the one that the loop steps, with or without a closure.
            loader: the training DataLoader; None: samples are unchecked.
            start_step: the optimizer steps done, where the run goes on from a checkpoint, counted as the plan
                counts. None: where the optimizer's PlanLR is at the first step, else the loader's
                PlanSampler, else the plan's last move, else 0.
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
        self.optimizer, self._start_step = optimizer, start_step
        self.run = run = Run(self.plan, self.unchecked, self.notes, process_group)
        self.watch = watch = None
        if loader is not None:
            self.watch = watch = LoaderWatch(loader, run.hooks, owner and owner.limit)
        if self._reference.loss is not None and loader is None:
            run.note(NO_LOADER)
        if owner is None and watch is not None and (watch.sharded or watch.dispatched):
            owner = Owner("transformers")
        self.owner = owner
        run.trainer = "" if owner is None else owner.name
        check_convention(run, owner)
        self.model = ModelWatch(run, model, self._forward, self._inputs)
        self.model.check_weights()
        self.calls = MicroBatches(run, watch)
        self.epochs = Epochs(run, watch, self.calls, owned=owner is not None)
        weighted = self._reference.weight is not None
        self.samples = Samples(run, watch, self.calls, self.epochs, weighted=weighted)
        self.optimizers = Optimizers(run, self.model.inner, optimizer, self._follow)
        self.rates = LearningRates(run, self.optimizers)
        self.zero_grad = ZeroGradCheck(run, self.model.inner, self.optimizers)
        self.gradient = Gradient(
            run, model, optimizer, self.optimizers, watch, self.calls, self._reference, owner
        )
        ids_seen = watch is not None and watch.sampled
        self.finite = Finite(run, model, optimizer, self.gradient.recording.begin, ids_seen=ids_seen)
        self._in_step = self._steps = False
        self._follow(optimizer)
        self._attached = True
        return self

    def _follow(self, optimizer: Any) -> None:
        """Checks at an optimizer's steps, if none has stepped before: else its steps are inside of one."""
        if not self._steps:
            self.run.hooks.callback(optimizer.register_step_pre_hook(self._stepping).remove)
            self.run.hooks.callback(optimizer.register_step_post_hook(self._stepped).remove)

    def __reduce__(self) -> tuple[Any, ...]:
        """Saves the plan: a copy, as with the trainer that has it, is attached to nothing."""
        return type(self), (self.plan,)

    def lightning(self) -> Any:
        """Returns the guard as a Lightning callback."""
        from isobatch.guard.trainers import lightning_callback

        return lightning_callback(self)

    def transformers(self) -> Any:
        """Returns the guard as a transformers.TrainerCallback.

        If no loss was given, the model's own loss is the reference.
        """
        from isobatch.guard.trainers import FIRST_LABELS, label_count, model_loss, transformers_callback

        if self._reference.loss is None:
            self._reference = ReferenceLoss(model_loss, label_count, FIRST_LABELS, assumed=True)
        return transformers_callback(self)

    def finish(self) -> None:
        """Checks the last epoch and takes the guard out of the script.

        Raises:
            GuardError: the last epoch did not serve what the plan says, or the optimizer never stepped.
        """
        if not self._attached:
            return
        self._remove()
        run, total = self.run, self.run.plan.total_steps
        if run.ranks > 1 and not dist.is_initialized():
            run.note("the last epoch is not checked: the process group ended before finish()")
            return
        if not run.since and run.micro:
            text = f"{run.micro} micro-batches without a step of the attached optimizer"
            run.stop(Cause.NO_STEP, text)
        self.epochs.finish()
        if run.since and total is not None and run.step < total:
            run.note(f"the run ends after {run.step:,} of {total:,} planned optimizer steps")

    def _remove(self) -> None:
        if self._attached:
            self._attached = False
            self._settle()
            self.run.hooks.close()

    def _settle(self) -> None:
        """Removes the checks of the first steps."""
        self.run.first_hooks.close()
        if self.watch is not None:
            self.watch.rest()

    def _forward(self) -> None:
        self._in_step = False
        run = self.run
        if run.near:
            self.gradient.forward()
            self.rates.begin()
        if run.backwards and run.micro >= len(run.planned):
            self.finite.look_for_zeros()
        self.calls.forward()
        if self.run.micro > self._patience and not self._judged:
            self._judged = self.finite.stuck(self._patience, elsewhere=self.optimizers.elsewhere)

    def _inputs(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self.run.near and self.gradient.sized:
            self.gradient.inputs.note(args, kwargs)

    @outside_of_graphs
    def _stepping(self, _: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Checks before optimizer.step(): the gradients are there, or a closure will make them."""
        self._steps = True
        if self._in_step:  # a subclass's step calls its base class's step
            return None
        self._in_step = True
        self.model.stepping()
        closure = kwargs.get("closure", args[1] if len(args) > 1 else None)
        if closure is None:
            self._check()
            return None
        run, first = self.run, True

        def watched() -> Any:
            nonlocal first
            if first:
                first = False
                loss = closure()
                self._check()
                return loss
            run.own = True  # some optimizers call the closure again, on the same micro-batch
            try:
                return closure()
            finally:
                run.own = False

        return args[:1], {**kwargs, "closure": watched}

    @outside_of_graphs
    def _stepped(self, *_: Any) -> None:
        self._in_step = False
        self.model.stepped()
        try:
            self.gradient.averaging.stepped()
        except GuardError:
            self._remove()
            raise

    def _check(self) -> None:
        """Makes the checks due before a step, and goes on to the next step."""
        run, self._judged = self.run, False
        if not run.micro and all(
            p.grad is None for group in self.optimizer.param_groups for p in group["params"]
        ):
            return  # a step without any gradient, such as before the first pass, changes nothing
        try:
            self._make_checks(run)
        except GuardError:
            self._remove()  # for a script that catches it
            raise
        run.advance()
        if run.since == CLOSE_STEPS:
            self._settle()

    def _make_checks(self, run: Run) -> None:
        """Makes the due checks, on all ranks; a check comes after those explaining its fault."""
        # Under DDP's join(), ranks may be done: nobody would answer.
        joins = getattr(getattr(self.model.model, "_join_config", None), "enable", False)
        first, rare = not run.since, run.near or (run.rare and not joins)
        calls = self.calls.fold()
        if calls is not None and run.near:
            self.gradient.recording.fold(calls)
        if first:
            epoch = None if self.watch is None else self.watch.now
            settle_start(run, self.optimizer, self._start_step, None if epoch is None else epoch.place)
            check_parameters(run, self.model.model, self.optimizer)
            check_state(run, self.optimizer)
            self.epochs.begin()
        if self.calls.check_length():
            return  # the plan has no such step
        self.model.check_calls(len(self.calls.epochs))
        if run.near:
            self.zero_grad.check()
        self.calls.check()
        if run.near:
            self.samples.check()
        self.rates.check()
        if first:
            check_settings(run, self.optimizer)
        self.finite.check()
        if run.near:
            self.gradient.check()
        elif rare:
            self.gradient.clipping.look()
        if rare:
            self.model.check_weights()
            self.optimizers.check_replaced()
        self.epochs.check()
        if run.since == CLOSE_STEPS - 1:
            self.optimizers.check()
            check_length(run, self.owner)
