"""Checks a user's own training script against its plan while it runs."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any, cast

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.data import DistributedSampler

from isobatch._plan import Plan
from isobatch.errors import InputError
from isobatch.integrations._watch import Watch
from isobatch.validate import causes
from isobatch.validate.proofs import Difference
from isobatch.validate.training import PRECISIONS, checksum, differing, state
from isobatch.validate.workload import part

CLOSE_STEPS = 2  # at these first steps everything is checked
OBSERVED = 64  # learning rates kept for the diagnosis
GATES = {None: 1e-3, torch.float16: 3e-2, torch.bfloat16: 5e-2}
COUNTED_DATASET = 50_000_000  # above it an epoch's samples are counted, not told apart

Loss = Callable[[nn.Module, Any], Tensor]


class GuardError(RuntimeError):
    """The training is not what the plan says.

    Attributes: `step`, the optimizer step before which it was noticed; `cause`, what most likely went wrong.
    """

    def __init__(self, step: int, cause: str, text: str) -> None:
        self.step, self.cause, self.text = step, cause, text
        super().__init__(f"isobatch guard, before step {step}: {text} → {cause}")

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.step, self.cause, self.text)


class Guard:
    """Holds a training script to its plan; see `isobatch.integrations.guard`.

    `unchecked` says what could not be looked at, and why.
    """

    def __init__(
        self, plan: Plan, loss: Loss | None = None, weight: Callable[[Any], float] | None = None
    ) -> None:
        if plan.status == "infeasible":
            raise InputError(f"the plan is infeasible: {'; '.join(reason.text for reason in plan.reasons)}")
        self.plan, self.unchecked = plan, list[str]()
        self._loss, self._weight = loss, weight
        self._step = 0
        self._micro = 0  # micro-batches since the last optimizer step
        self._own = False  # whether a forward is the guard's
        self._depth = 0  # Lightning's module calls itself
        self._handles: list[Any] = []
        self._observed: list[float] = []
        self._states: list[Any] = []
        self._epochs_checked = 0
        self._orders_checked = 0
        self._epoch_batches = 0
        self._nonfinite: Tensor | None = None
        self._unclipped: float | None = None  # the gradient's norm before clipping
        self._queued = False

    # How it is put into a script.

    def attach(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        loader: Any = None,
        *,
        start_step: int = 0,
        process_group: dist.ProcessGroup | None = None,
    ) -> Guard:
        """Checks what stands before the first step, and takes its place at each.

        Args:
            model: the DDP wrapper.
            optimizer: the one that the loop steps.
            loader: the training DataLoader; None: samples are unchecked.
            start_step: the plan's step at which a resumed run goes on.
            process_group: the data-parallel ranks, where they are not all.

        Raises:
            GuardError: the world size, the ranks' weights or the loader are not as planned.
        """
        self._begin(model, optimizer, loader, start_step, process_group)
        self._handles.append(optimizer.register_step_pre_hook(lambda *_: self.before_step()))
        return self

    def lightning(self) -> Any:
        """The guard as a Lightning callback."""
        from isobatch.integrations._guard_trainers import lightning_callback

        return lightning_callback(self)

    def transformers(self) -> Any:
        """The guard as a transformers.TrainerCallback. Without a loss of its own, the model's is the reference."""
        from isobatch.integrations._guard_trainers import transformers_callback

        if self._loss is None:
            self._loss, self._weight = _model_loss, _label_count
        return transformers_callback(self)

    def finish(self) -> None:
        """Checks the last epoch and takes the guard out of the script.

        Raises:
            GuardError: the last epoch did not serve what the plan says.
        """
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._epochs()

    # At the start.

    def _begin(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        loader: Any,
        start_step: int,
        process_group: dist.ProcessGroup | None,
    ) -> None:
        self._model = cast(nn.Module, getattr(model, "module", model))
        self._optimizer, self._step, self._first_step = optimizer, start_step, start_step
        self._group = process_group
        self._ranks = dist.get_world_size(process_group) if dist.is_initialized() else 1
        self._rank = dist.get_rank(process_group) if dist.is_initialized() else 0
        self._control: Any = None
        if self._ranks > 1:
            ranks = dist.get_process_group_ranks(process_group) if process_group is not None else None
            self._control = dist.new_group(
                ranks,
                timeout=timedelta(seconds=60),
                backend="gloo",
                use_local_synchronization=ranks is not None,
            )
        planned = self.plan.data_parallel or 1
        if self._ranks != planned:
            self._stop("another world size", f"{self._ranks} data-parallel ranks, {planned} planned")
        self._planned_micro = len(self.plan.micro_batches(self._rank))
        self._weights()
        self._watch = Watch(loader) if loader is not None else None
        self._lengths()
        if self._loss is None:
            self.unchecked.append("the gradient's size: no loss was given")
        if self.plan.total_steps is None:
            self.unchecked.append("the learning rate: the recipe has no duration")
        self._precision = PRECISIONS.get(self.plan.recipe.precision)
        self._handles.append(self._model.register_forward_pre_hook(self._forward))
        self._handles.append(self._model.register_forward_hook(self._forward_done, always_call=True))
        self._close_hooks = [
            p.register_post_accumulate_grad_hook(self._accumulated)  # type: ignore[no-untyped-call]
            for p in self._model.parameters()
            if p.requires_grad
        ]

    def _lengths(self) -> None:
        watch, plan = self._watch, self.plan
        if watch is None or not watch.sampled:
            self.unchecked.append("the samples: no loader over a dataset with ids was given")
            return
        sampler = watch.sampler
        if isinstance(sampler, DistributedSampler):
            if sampler.num_replicas != self._ranks:
                text = f"the sampler divides by {sampler.num_replicas}, there are {self._ranks} ranks"
                self._stop("another world size", text)
            if plan.samples_per_epoch is not None and plan.recipe.convention != "transformers":
                drop = bool(getattr(watch.batch_sampler, "drop_last", False))
                size = int(getattr(watch.batch_sampler, "batch_size", 0) or plan.micro_batch or 1)
                mine = len(sampler) // size * size if drop else len(sampler)
                served = sum(self._exchange("lengths", mine))
                if served != plan.samples_per_epoch and size == plan.micro_batch:
                    self._stop_epoch(served, min(served, self._dataset()), drop or sampler.drop_last)

    def _dataset(self) -> int:
        return self.plan.recipe.dataset_size or len(self._watch.loader.dataset)  # type: ignore[union-attr]

    # At each micro-batch and step.

    def _forward(self, *_: Any) -> None:
        self._depth += 1
        if self._depth > 1 or self._own or not self._model.training or not torch.is_grad_enabled():
            return
        self._micro += 1
        if self._near() and self._watch is not None and self._watch.keep:
            cuda = torch.cuda.get_rng_state() if torch.cuda.is_initialized() else None  # type: ignore[no-untyped-call]
            self._states.append((torch.get_rng_state(), cuda))

    def _forward_done(self, *_: Any) -> None:
        self._depth -= 1

    def _near(self) -> bool:
        return self._step < self._first_step + CLOSE_STEPS

    def _accumulated(self, p: Tensor) -> None:
        """After a parameter's local gradient, before DDP averages it."""
        if p.grad is None or self._own:
            return
        bad = (~torch.isfinite(p.grad)).any()
        self._nonfinite = bad if self._nonfinite is None else self._nonfinite | bad
        if self.plan.recipe.clip_norm is not None and not self._queued:
            self._queued = True
            engine = torch.autograd.Variable._execution_engine
            # DDP ends in a callback of its own, queued later than this one: go to the end of the queue once more.
            engine.queue_callback(lambda: engine.queue_callback(self._backward_done))

    def _backward_done(self) -> None:
        self._queued = False
        grads = [p.grad for p in self._model.parameters() if p.grad is not None]
        self._unclipped = float(torch.stack([g.double().square().sum() for g in grads]).sum().sqrt())

    def before_step(self) -> None:
        """What `attach` does at each optimizer step, gradients being ready: trainers that step inside a closure call it.

        Raises:
            GuardError: something is not as planned.
        """
        self._accumulation()
        self._learning_rate()
        close = self._near()
        since = self._step - self._first_step
        if close:
            self._close()
        if close or not since & (since - 1):  # and at powers of two, whose cost vanishes in a long run
            self._weights()
        self._epochs()
        self._step += 1
        self._micro = 0
        self._unclipped = None
        if not self._near() and self._close_hooks:
            for hook in self._close_hooks:
                hook.remove()
            self._close_hooks.clear()
            self._states.clear()
            if self._watch is not None:
                self._watch.keep = False
                self._watch.batches.clear()

    def _accumulation(self) -> None:
        planned = self._planned_micro
        counted, self._epoch_batches = self._micro, self._epoch_batches + self._micro
        if counted == planned:
            return
        # A loss scaler skips the steps that overflow.
        skipped = self._precision == torch.float16 and counted % planned == 0
        if not skipped and not (counted < planned and self._at_epoch_end()):
            text = f"{counted} micro-batches before this step, {planned} planned"
            self._stop("another accumulation", text)

    def _at_epoch_end(self) -> bool:
        """Whether the last micro-batch was the last of its epoch: the step may then be a partial one."""
        if self._watch is None or not self._watch.sampled:
            return True  # cannot be told
        before = 0
        for epoch, sizes in enumerate(self._watch.sizes):
            before += len(sizes) if epoch < self._watch.ended else len(self._watch.batch_sampler)  # type: ignore[arg-type]
            if self._epoch_batches <= before:
                return self._epoch_batches == before
        return True

    def _learning_rate(self) -> None:
        if self.plan.total_steps is None or self.plan.lr is None:
            return
        group = self._optimizer.param_groups[0]
        lr = float(group["lr"])
        if len(self._observed) < OBSERVED:
            self._observed.append(lr)
        if causes.close(lr, self.plan.lr_at(self._step), self.plan.lr):
            return
        since = self._step - self._first_step
        observed = self._observed if since < OBSERVED else [*self._observed[:-1], lr]
        fault = causes.learning_rate(
            observed,
            lambda step: self.plan.lr_at(self._first_step + step),
            peak=self.plan.lr,
            accumulation=self.plan.accumulation or 1,
            ranks=self._ranks,
            initial=group.get("initial_lr"),
        )
        cause = fault[1] if fault is not None and since < OBSERVED else "another learning rate"
        self._stop(cause, f"learning rate {lr:.6g}, {self.plan.lr_at(self._step):.6g} planned")

    # Together with the other ranks.

    def _exchange(self, tag: str, value: Any) -> list[Any]:
        """Everybody's value. That all ranks are at the same check is checked by the way."""
        if self._ranks == 1:
            return [value]
        mine = (self._step, tag)
        told: list[Any] = [None] * self._ranks
        try:
            dist.all_gather_object(told, (mine, value), group=self._control)
        except RuntimeError as error:
            raise GuardError(
                self._step, "dead rank, or one that takes fewer steps", f"no answer at {tag}: {error}"
            ) from error
        off = [rank for rank, (where, _) in enumerate(told) if where != told[0][0]]
        if off:
            self._stop(
                "ranks take different numbers of steps", f"ranks {off} are at another step than rank 0"
            )
        return [value for _, value in told]

    def _weights(self) -> None:
        off = differing(self._exchange("weights", checksum(state(self._model))))
        if off:
            cause = "other weights on one rank" if len(off) == 1 else "other weights on some ranks"
            self._stop(cause, f"the weights of rank {', '.join(map(str, off))} are not those of the others")

    def _close(self) -> None:
        """Samples, micro-batches and gradient of one of the first steps."""
        watch, plan = self._watch, self.plan
        if watch is not None and watch.sampled:
            done = self._epoch_batches
            sizes = [n for epoch in watch.sizes for n in epoch][done - self._micro : done]
            begin = sum([n for epoch in watch.sizes for n in epoch][: done - self._micro])
            ids = [int(i) for epoch in watch.epochs for i in epoch][begin : begin + sum(sizes)]
            self._samples(self._exchange("samples", (sizes, ids)))
            multiple = plan.total_steps is None or (plan.steps_per_epoch or 0) < plan.total_steps
            sampler = watch.sampler
            if (
                isinstance(sampler, DistributedSampler)
                and sampler.shuffle
                and multiple
                and not watch.epoch_set
            ):
                text = (
                    "set_epoch was not called before the first epoch: each would repeat the first one's order"
                )
                self._stop("missing set_epoch", text)
        bad = [
            rank
            for rank, b in enumerate(
                self._exchange("finite", bool(self._nonfinite is not None and self._nonfinite))
            )
            if b
        ]
        self._nonfinite = None
        if bad:
            named = ", ".join(map(str, bad))
            self._stop(
                f"NaN or infinite gradient on rank {named}",
                f"the local gradient of rank {named} is not finite",
            )
        grads = [
            torch.zeros_like(p) if p.grad is None else p.grad
            for p in self._model.parameters()
            if p.requires_grad
        ]
        sums = self._exchange("gradients", checksum(grads))
        if differing(sums):
            cause = (
                "gradients never averaged: forward inside no_sync and backward outside, or a model that is not "
                "wrapped in DDP"
            )
            self._stop(cause, "gradients differ between ranks")
        if self._loss is not None and watch is not None:
            self._size(grads)

    def _samples(self, told: list[tuple[list[int], list[int]]]) -> None:
        tail = self._at_epoch_end()
        flat = [index for _, ids in told for index in ids]
        if len(told) > 1 and len(set(flat)) < len(flat):
            same = all(sorted(ids) == sorted(told[0][1]) for _, ids in told)
            common = len(set(flat)) <= len(flat) - min(len(ids) for _, ids in told) // 2 or same
            self._stop(
                "the sampler is not distributed: all ranks see the same data"
                if common or self._undistributed()
                else "ranks share samples: the sampler is not distributed",
                f"{len(flat) - len(set(flat))} of {len(flat)} samples of this step are served twice",
            )
        if tail:
            return
        for rank, (sizes, _) in enumerate(told):
            planned = [int(n) for n in self.plan.micro_batches(rank)]
            if sizes != planned:
                text = f"micro-batches of {sizes} samples on rank {rank}, {planned} planned"
                self._stop("another micro-batch", text)

    def _undistributed(self) -> bool:
        return not isinstance(cast(Watch, self._watch).sampler, DistributedSampler)

    def _epochs(self) -> None:
        """Each epoch that has been trained on, once: that it served the plan's samples, in another order than the last."""
        watch, plan = self._watch, self.plan
        if watch is None or not watch.sampled:
            return
        while self._epochs_checked < watch.ended:
            ends = sum(len(sizes) for sizes in watch.sizes[: self._epochs_checked + 1])
            if self._epoch_batches < ends:
                return
            ids = np.asarray(watch.epochs[self._epochs_checked], dtype=np.int64)
            self._epochs_checked += 1
            dataset = self._dataset()
            told = self._exchange("epoch", (len(ids), len(ids) == dataset))
            served = sum(count for count, _ in told)
            unique = self._unique(ids, dataset)
            whole = all(every for _, every in told)
            if plan.samples_per_epoch is not None and (
                served != plan.samples_per_epoch or unique < min(served, dataset) - (plan.padded_samples or 0)
            ):
                drop = bool(getattr(watch.batch_sampler, "drop_last", False))
                self._stop_epoch(served, unique, drop, whole)
            if not self._near():
                watch.epochs[self._epochs_checked - 1] = watch.epochs[self._epochs_checked - 1][:64]
        if len(watch.epochs) > self._orders_checked + 1:
            first, second = list(watch.epochs[-2][:64]), list(watch.epochs[-1][:64])
            n = min(len(first), len(second))
            if n == len(first):
                self._orders_checked = len(watch.epochs) - 1
            shuffled = any(b < a for a, b in itertools.pairwise(first))
            if n > 8 and shuffled and first[:n] == second[:n]:
                self._stop("missing set_epoch", "this epoch begins with the same samples as the last")

    def _unique(self, ids: np.ndarray[Any, np.dtype[np.int64]], dataset: int) -> int:
        if dataset > COUNTED_DATASET or (len(ids) and int(ids.max()) >= dataset):
            return dataset
        seen = torch.zeros(dataset, dtype=torch.uint8)
        seen[torch.from_numpy(ids)] = 1
        if self._ranks > 1:
            dist.all_reduce(seen, dist.ReduceOp.MAX, group=self._control)
        return int(seen.sum())

    # The gradient.

    def _size(self, grads: list[Tensor]) -> None:
        watch = cast(Watch, self._watch)
        batches = [watch.batches.popleft() for _ in range(min(self._micro, len(watch.batches)))]
        states = [self._states.pop(0) for _ in range(min(self._micro, len(self._states)))]
        if len(batches) != self._micro or len(states) != self._micro:
            self.unchecked.append("the gradient's size: the loop takes batches from elsewhere")
            return
        batches = [_moved(batch, next(self._model.parameters()).device) for batch in batches]
        with self._replay():
            summed = self._is_summed(batches[0])
            if len(batches) < self._planned_micro:
                return  # an epoch's smaller last step
            reference = self._gradient(batches, states, self._weights_of(batches))
        scale = getattr(self._optimizer, "grad_scale", None)
        found = grads if scale is None else [g / scale for g in grads]
        gate = GATES[self._precision]
        difference = Difference(found, reference)
        size = difference.ratio
        if self._unclipped is not None:
            size *= self._unclipped / difference.norm if difference.norm else 1.0
        if summed:
            n = self.plan.micro_batch or 1
            self._stop(
                "summed loss", f"the loss is a sum over the {n} samples of a micro-batch, not their mean"
            )
        straight = difference.residual <= 3 * gate
        if straight and abs(size - 1) <= 3 * gate:
            return
        cause = None
        if straight:
            cause = causes.gradient(
                size,
                micro_batch=self.plan.micro_batch or 1,
                accumulation=self.plan.accumulation or 1,
                ranks=self._ranks,
                tolerance=max(0.02, gate),
            )
        elif len({sum(map(int, self.plan.micro_batches(rank))) for rank in range(self._ranks)}) > 1:
            with self._replay():
                equal = [1 / len(batches)] * len(batches)
                unweighted = Difference(found, self._gradient(batches, states, equal))
            if unweighted.residual <= 3 * gate:
                cause = (
                    "uneven ranks with a mean loss: weigh each micro-batch's loss by plan.loss_weights(rank)"
                )
        text = f"the gradient is {size:.4g} × that of the mean loss, {difference.residual:.1%} in another direction"
        self._stop(cause or "another loss than the reference, or other samples", text)

    def _weights_of(self, batches: list[Any]) -> list[float]:
        """The factor of each micro-batch's mean loss."""
        if self._weight is None:
            return [float(w) for w in self.plan.loss_weights(self._rank)]
        units = [float(self._weight(batch)) for batch in batches]
        total = sum(self._exchange("units", sum(units)))
        return [unit * self._ranks / total for unit in units]

    def _is_summed(self, batch: Any) -> bool:
        """Whether the reference itself is a sum: then the script's is one too, and nothing would be noticed."""
        loss, n = cast(Loss, self._loss), int(self.plan.micro_batches(self._rank)[0])
        if n < 2:
            return False
        modes = {module: module.training for module in self._model.modules()}
        self._model.eval()
        with torch.no_grad():
            parts = [part(batch, 0, 1), part(batch, 1, n)]
            units = [1.0, n - 1.0] if self._weight is None else [float(self._weight(p)) for p in parts]
            whole, first, rest = (float(loss(self._model, b)) for b in (batch, *parts))
        for module, mode in modes.items():
            module.training = mode
        mean = (first * units[0] + rest * units[1]) / sum(units)
        return abs(whole - first - rest) <= 1e-3 * abs(whole) < abs(whole - mean)

    def _gradient(self, batches: list[Any], states: list[Any], weights: list[float]) -> list[Tensor]:
        """The averaged gradient of the reference, with the random numbers that the script's own forward had."""
        params = [p for p in self._model.parameters() if p.requires_grad]
        total = [torch.zeros_like(p) for p in params]
        for batch, (cpu, cuda), weight in zip(batches, states, weights, strict=True):
            torch.set_rng_state(cpu)
            if cuda is not None:
                torch.cuda.set_rng_state(cuda)
            kind = params[0].device.type
            with (
                torch.enable_grad(),
                torch.autocast(kind, self._precision, enabled=self._precision is not None),
            ):
                loss = cast(Loss, self._loss)(self._model, batch) * weight
            for t, g in zip(total, torch.autograd.grad(loss, params, allow_unused=True), strict=True):
                if g is not None:
                    t += g
        if self._ranks > 1:
            for t in total:
                dist.all_reduce(t, group=self._group)
                t /= self._ranks
        return total

    @contextlib.contextmanager
    def _replay(self) -> Iterator[None]:
        """The model's buffers and the random state are afterwards what they were."""
        buffers = [(b, b.clone()) for b in self._model.buffers()]
        self._own = True
        devices = list(range(torch.cuda.device_count())) if torch.cuda.is_initialized() else []  # type: ignore[no-untyped-call]
        try:
            with torch.random.fork_rng(devices):
                yield
        finally:
            self._own = False
            for buffer, value in buffers:
                buffer.copy_(value)

    # The end of a script that is not as planned.

    def _stop_epoch(self, served: int, unique: int, drop: bool, whole: bool = False) -> None:
        planned = self.plan.samples_per_epoch or 0
        cause = causes.epoch(
            served=served,
            planned=planned,
            unique=unique,
            dataset=self._dataset(),
            per_rank_all=whole,
            drop_last=drop,
            ranks=self._ranks,
        )
        self._stop(cause, f"an epoch of {served} samples, {planned} planned")

    def _stop(self, cause: str, text: str) -> None:
        raise GuardError(self._step, cause, text)


def _model_loss(model: nn.Module, batch: Any) -> Tensor:
    loss: Tensor = model(**batch).loss
    return loss


def _label_count(batch: Any) -> float:
    """What a causal language model's loss is a mean over: the labels that count, but for each row's first."""
    return float((batch["labels"][..., 1:] != -100).sum())


def _moved(batch: Any, device: torch.device) -> Any:
    if isinstance(batch, Tensor):
        return batch.to(device)
    if hasattr(batch, "items"):
        return {key: _moved(value, device) for key, value in batch.items()}
    if isinstance(batch, tuple | list):
        return type(batch)(_moved(value, device) for value in batch)
    return batch
