"""Puts the checks into a training script, and runs them in turn."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from isobatch.diagnosis.causes import Cause
from isobatch.diagnosis.checksum import checksum, differing
from isobatch.errors import InputError
from isobatch.guard import start
from isobatch.guard.finite import OVERFLOWS, Finite
from isobatch.guard.gradient import Gradient, Loss, Weight
from isobatch.guard.rates import Rates
from isobatch.guard.run import Run, named
from isobatch.guard.samples import Samples
from isobatch.guard.watch import Watch
from isobatch.guard.wrapping import inner, local, sharded
from isobatch.planning.plan import Plan


class Guard:
    """Holds a training script to its plan; see `isobatch.guard.guard`.

    `unchecked` says what could not be looked at, and why.
    """

    def __init__(self, plan: Plan, loss: Loss | None = None, weight: Weight | None = None) -> None:
        plan.layout  # noqa: B018 - refuses an infeasible one
        self.plan, self.unchecked = plan, list[str]()
        self._loss, self._weight = loss, weight
        self._handles: list[Any] = []
        self._patience = OVERFLOWS * (plan.accumulation or 1)  # micro-batches without a step

    def attach(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        loader: Any = None,
        *,
        start_step: int | None = None,
        process_group: dist.ProcessGroup | None = None,
    ) -> Guard:
        """Checks what is there before the first step, and takes its place in the loop.

        Args:
            model: what the loop calls once for each micro-batch: the DDP wrapper, or a model under fully_shard.
            optimizer: the one that the loop steps, with or without a closure.
            loader: the training DataLoader; None: samples are unchecked.
            start_step: the optimizer steps done, where the run goes on from a checkpoint, counted as the plan counts. None:
                where the optimizer's PlanLR is at the first step, else the loader's PlanSampler, else the plan's last
                move, else 0.
            process_group: the data-parallel ranks, where they are not all.

        Raises:
            GuardError: the world size, the ranks' weights or the loader are not as planned.
            InputError: the optimizer cannot be watched.
        """
        if type(optimizer).__name__ == "AcceleratedOptimizer":
            optimizer = optimizer.optimizer  # type: ignore[attr-defined]
        if not hasattr(optimizer, "_optimizer_step_pre_hooks"):
            kind = type(optimizer).__name__
            raise InputError(
                f"{kind} cannot be watched: give the torch optimizer inside it", field="optimizer"
            )
        self._remove()
        self.unchecked.clear()
        self._model, self._optimizer, self._start_step = model, optimizer, start_step
        self._run = run = Run(self.plan, self.unchecked, process_group)
        self._replicated, self._inner = not sharded(model), inner(model)
        self._equal_weights()
        self._watch = Watch(loader) if loader is not None else None
        self._samples = Samples(run, self._watch)
        self._rates = Rates(run, optimizer)
        self._finite = Finite(run, model, optimizer)
        self._gradient: Gradient | None = Gradient(
            run, model, optimizer, self._watch, self._loss, self._weight
        )
        self._handles = [
            model.register_forward_pre_hook(self._forward),
            optimizer.register_step_pre_hook(self._stepping),
        ]
        return self

    def lightning(self) -> Any:
        """The guard as a Lightning callback."""
        from isobatch.guard.trainers import lightning_callback

        return lightning_callback(self)

    def transformers(self) -> Any:
        """The guard as a transformers.TrainerCallback. Without a loss of its own, the model's is the reference."""
        from isobatch.guard.trainers import label_count, model_loss, transformers_callback

        if self._loss is None:
            self._loss, self._weight = model_loss, label_count
        return transformers_callback(self)

    def finish(self) -> None:
        """Checks the last epoch and takes the guard out of the script.

        Raises:
            GuardError: the last epoch did not serve what the plan says.
        """
        if self._handles:
            self._remove()
            self._samples.finish()

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
        if run.own or not self._inner.training or not torch.is_grad_enabled():
            return
        if self._gradient is not None:
            self._gradient.forward()
        self._samples.forward()
        if run.micro > self._patience:
            self._finite.stuck()

    def _stepping(self, _: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Before optimizer.step(): the gradients are there, or a closure will make them."""
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
            start.settle(run, self._optimizer, self._start_step, place)
            self._samples.begin()
        whole = self._samples.check()
        self._rates.check()
        whole = self._finite.check() and whole
        if gradient is not None:
            gradient.check(whole=whole)
        if run.rare:
            self._equal_weights()
        self._samples.epochs()
        run.advance()
        if gradient is not None and not run.near:
            self._settle()

    def _settle(self) -> None:
        """After the first steps."""
        if self._gradient is not None:
            self._gradient.remove()
            self._gradient = None
        if self._watch is not None:
            self._watch.rest()

    def _equal_weights(self) -> None:
        if not self._replicated:
            return
        run = self._run
        off = differing(run.exchange("weights", checksum([local(p) for p in self._model.parameters()])))
        if off:
            run.stop(
                Cause.OTHER_WEIGHTS.likely(named(off)),
                f"the weights of {named(off)} are not those of the others",
                off,
            )
