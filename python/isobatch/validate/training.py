"""The plan's training step on this rank: the real DDP wrapper, accumulation, mixed precision, clipping."""

import contextlib
import copy
import gc
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel

from isobatch.equivalence.tensors import AUTOCAST, checksum, differing, mapped
from isobatch.planning.plan import Plan
from isobatch.validate.options import Options
from isobatch.validate.ranks.group import Group, copy_from_first
from isobatch.validate.workload import Workload

LOSS_SCALE = 65536.0  # torch's own
HOOKS = {"fp16": default_hooks.fp16_compress_hook, "bf16": default_hooks.bf16_compress_hook}


def copy_to_host(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Copies tensors into the host's memory, where a device may have no room for them."""
    return [tensor.detach().to("cpu", copy=True) for tensor in tensors]


def trained(model: nn.Module) -> list[nn.Parameter]:
    """Returns the trained weights."""
    return [p for p in model.parameters() if p.requires_grad]


def parameter_bytes(model: nn.Module) -> int:
    """Counts the bytes of a model's weights."""
    return sum(p.nbytes for p in model.parameters())


def grads(model: nn.Module) -> list[Tensor | None]:
    """Returns the gradients of the trained weights, each None if there is none."""
    return [p.grad for p in trained(model)]


def put(model: nn.Module, weights: Sequence[Tensor]) -> None:
    """Sets the trained weights to these values."""
    for p, value in zip(trained(model), weights, strict=True):
        p.data.copy_(value)


class _Wrapper:
    """The DDP wrapper, shared by all shortened copies: its buckets are as large as the gradients."""

    ddp: DistributedDataParallel
    forward: nn.Module

    def clear(self) -> None:
        """Frees the wrapper, before another is made."""
        vars(self).clear()
        gc.collect()  # DDP and what is compiled refer to themselves


class Training:
    """The plan's step on this rank, for real.

    `ddp` is the wrapper, `model` the wrapped model, `apart` the ranks that start with other weights or
    buffers. With fewer ranks than planned, the step is a rehearsal: the ranks run the first replicas'
    micro-batches, weighted so that DDP's mean is the mean over these samples.
    """

    def __init__(self, plan: Plan, options: Options, workload: Workload, group: Group) -> None:
        self.plan, self.options, self.workload, self.group = plan, options, workload, group
        self.dtype = AUTOCAST[plan.recipe.precision]
        self.sizes = [[int(n) for n in plan.micro_batches(rank)] for rank in range(group.world_size)]
        self.batch = sum(map(sum, self.sizes))
        self.model = workload.model.to(group.device)
        if options.channels_last:
            self.model = self.model.to(memory_format=torch.channels_last)
        self._wrapper = _Wrapper()
        self.rewrap(self.hook)
        # DDP has shared rank 0's weights, but for those in its list of ignored ones.
        weights = [*self.model.parameters(), *self.model.buffers()]
        self.apart = differing(group.gather(checksum(weights), tuple[int, int]))

    @property
    def hook(self) -> Any:
        """The training's own communication hook; None for DDP's all-reduce."""
        return self.workload.hook or HOOKS.get(self.options.hook)

    @property
    def ddp(self) -> DistributedDataParallel:
        """The wrapper."""
        return self._wrapper.ddp

    def rewrap(self, hook: Any) -> None:
        """Wraps the model with this communication hook, and rank 0's weights; frees the wrapper before it."""
        self._wrapper.clear()
        arguments: dict[str, Any] = {}
        if self.group.device.type == "cuda":
            arguments["device_ids"] = [self.group.device]
        # An explicit 25 MiB is not the default: it loses the small first bucket.
        if self.plan.recipe.bucket_cap_mb is not None:
            arguments["bucket_cap_mb"] = self.plan.recipe.bucket_cap_mb
        ddp = DistributedDataParallel(self.model, **{**arguments, **(self.workload.ddp or {})})
        if hook is not None:
            # DDP reads the annotations of what it is given, and takes no strings: a lambda has none.
            ddp.register_comm_hook(None, lambda state, bucket: hook(state, bucket))
        self._wrapper.ddp = ddp
        self._wrapper.forward = cast(nn.Module, torch.compile(ddp)) if self.options.compile else ddp

    def optimizer(self) -> torch.optim.Optimizer:
        """Makes the workload's optimizer."""
        return self.workload.optimizer(trained(self.model))

    def still_optimizer(self) -> torch.optim.Optimizer:
        """Makes the optimizer with a learning rate of 0: it does its work, and the weights stay."""
        # Trained again and again on one batch, the weights would fit it, and their gradients become denormal
        # numbers: a CPU is many times slower with those.
        optimizer = self.optimizer()
        for group in optimizer.param_groups:
            group["lr"] = 0.0
        return optimizer

    def scaler(self, scale: float = LOSS_SCALE) -> torch.amp.GradScaler | None:
        """Makes the loss scaler for float16, where small gradients would vanish; None for other formats."""
        if self.dtype != torch.float16:
            return None
        return torch.amp.GradScaler(self.group.device.type, init_scale=scale)

    def samples(self, n: int, seed: int, rank: int, index: int) -> Any:
        """Makes a micro-batch: the same for the same seed, rank and index, on whatever rank it is made."""
        generator = torch.Generator().manual_seed(seed * 1_000_003 + rank * 4099 + index)
        batch = self.workload.batch(n, generator, self.group.device)

        def formatted(tensor: Any) -> Any:
            images = isinstance(tensor, Tensor) and tensor.dim() == 4
            return tensor.contiguous(memory_format=torch.channels_last) if images else tensor

        return mapped(batch, formatted) if self.options.channels_last else batch

    def micro_batches(self, seed: int) -> Iterator[Any]:
        """Yields this rank's micro-batches of one step, each made on demand."""
        rank = self.group.rank
        return (self.samples(n, seed, rank, index) for index, n in enumerate(self.sizes[rank]))

    def few_in_turn(self, seed: int) -> list[Any]:
        """Makes micro-batches in advance, for a timed step: two in turn, or one of each ragged size."""
        sizes = self.sizes[self.group.rank]
        turns = 2 if len(set(sizes)) == 1 else 1
        first = {(n, index % turns): index for index, n in reversed([*enumerate(sizes)])}
        batches = {key: self.samples(key[0], seed, self.group.rank, index) for key, index in first.items()}
        return [batches[n, index % turns] for index, n in enumerate(sizes)]

    def weights(self, batches: Iterable[Any]) -> list[float]:
        """Returns the factor of each micro-batch's loss: DDP's mean over ranks is then the mean over all."""
        ranks, units = self.group.world_size, self.units(batches)
        total = float(self.batch) if self.workload.weight is None else self.group.sum(sum(units))
        return [ranks / total if self.workload.reduction == "sum" else n * ranks / total for n in units]

    def units(self, batches: Iterable[Any]) -> list[float]:
        """Counts the units in each of this rank's micro-batches."""
        if self.workload.weight is None:
            return list(map(float, self.sizes[self.group.rank]))
        return [float(self.workload.weight(batch)) for batch in batches]

    def loss(self, model: nn.Module, batch: Any, dtype: torch.dtype | None) -> Tensor:
        """Computes the workload's loss, under autocast where a format is given."""
        with torch.autocast(self.group.device.type, dtype, enabled=dtype is not None):
            return self.workload.loss(model, batch)

    def backward(
        self,
        batches: Iterable[Any],
        weights: Sequence[float],
        *,
        sync: bool = True,
        scaler: torch.amp.GradScaler | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        """Runs forward and backward of each micro-batch, all but the last under no_sync."""
        coming = iter(batches)
        for index, weight in enumerate(weights):
            batch = next(coming)  # zip would keep the first one to the end
            quiet = not sync or index < len(weights) - 1
            alone = contextlib.nullcontext if sync else self._unsynced
            with self.ddp.no_sync() if quiet else contextlib.nullcontext(), alone():
                loss = self.loss(self._wrapper.forward, batch, dtype) * weight
                (loss if scaler is None else scaler.scale(loss)).backward()  # type: ignore[no-untyped-call]

    @contextlib.contextmanager
    def _unsynced(self) -> Iterator[None]:
        """Keeps DDP's forward from sharing buffers: others would wait in it for a rank out of memory."""
        before = self.ddp.require_forward_param_sync
        self.ddp.require_forward_param_sync = False
        try:
            yield
        finally:
            self.ddp.require_forward_param_sync = before

    def step(self, optimizer: torch.optim.Optimizer, scaler: torch.amp.GradScaler | None) -> None:
        """Clips as planned, then steps the optimizer."""
        if self.plan.recipe.clip_norm is not None:
            if scaler is not None:
                scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(self.model.parameters(), self.plan.recipe.clip_norm)
        if scaler is None:
            optimizer.step()
        else:
            scaler.step(optimizer)
            scaler.update()

    def lone_backward(self, batch: Any, weight: float, dtype: torch.dtype | None) -> None:
        """Runs forward and backward by this rank alone, past DDP."""
        (self.loss(self.model, batch, dtype) * weight).backward()  # type: ignore[no-untyped-call]

    def lone_seconds(self, n: int, seed: int, dtype: torch.dtype | None) -> float:
        """Times forward and backward of `n` samples by this rank alone: the second run's."""
        for _ in range(2):
            self.group.sync()
            begun = time.perf_counter()
            self.lone_backward(self.samples(n, seed, self.group.rank, 0), 1.0, dtype)
            self.group.sync()
            took = time.perf_counter() - begun
        return took

    def lone_step(self, n: int) -> None:
        """Takes a step of one micro-batch by this rank alone; the weights may move (see `weights_kept`)."""
        optimizer, scaler = self.still_optimizer(), self.scaler()
        batch = self.samples(n, 1, self.group.rank, 0)
        self.model.train()
        self.backward([batch], [1.0], sync=False, scaler=scaler, dtype=self.dtype)
        self.step(optimizer, scaler)

    @contextlib.contextmanager
    def weights_kept(self) -> Iterator[None]:
        """Puts the weights and buffers back in the end, on all ranks: rank 0's."""
        tensors = [*self.model.parameters(), *self.model.buffers()]
        before = [t.detach().to("cpu", copy=True) for t in tensors] if self.group.rank == 0 else []
        try:
            yield
        finally:
            for tensor, value in zip(tensors, before, strict=False):
                tensor.data.copy_(value)
        copy_from_first(self.group, tensors)

    def micro_batch_seconds(self) -> float:
        """Times forward and backward of one micro-batch by rank 0 alone; the same seconds on all ranks."""
        self.model.train()  # as the training does it, which was seen to fit
        with self.weights_kept():
            took = self.lone_seconds(self.micro_batch, 0, self.dtype) if self.group.rank == 0 else 0.0
            self.model.zero_grad(set_to_none=True)
        return cast(float, self.group.from_first(took))

    def bucket_bytes(self) -> list[int]:
        """Returns the sizes of DDP's buckets, settled after the first step."""
        self.model.train()
        batches = self.few_in_turn(1)
        weights = self.weights(batches)
        for _ in range(2):
            self.backward(batches, weights, dtype=self.dtype)
            self.model.zero_grad(set_to_none=True)
        data = self.ddp._get_ddp_logging_data()  # type: ignore[no-untyped-call]
        text = str(data.get("rebuilt_bucket_sizes") or data.get("bucket_sizes") or "")
        return [int(size) for size in text.replace(",", " ").split()]

    @property
    def micro_batch(self) -> int:
        """Samples in the largest micro-batch."""
        return max(map(max, self.sizes))

    def shortened(self, count: int) -> "Training":
        """Returns the training with a step's first micro-batches and its last, `count` or two in all."""
        count = max(2, count)
        return self.of_sizes(
            [row if len(row) <= count else [*row[: count - 1], row[-1]] for row in self.sizes]
        )

    def of_sizes(self, sizes: list[list[int]]) -> "Training":
        """Returns the same training with other micro-batches, by rank."""
        training = copy.copy(self)
        training.sizes, training.batch = sizes, sum(map(sum, sizes))
        return training
