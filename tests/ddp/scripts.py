"""A user's training script in many forms, with the mistakes that such a form might hide. One rank runs it."""

from __future__ import annotations

import contextlib

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from isobatch import Plan
from isobatch.guard import GuardError, guard


class Sized:
    """A batch sampler that gives each rank its own sizes, as a script for unequal devices does."""

    def __init__(self, size, sizes, rank):
        self.size, self.sizes, self.rank = size, sizes, rank

    def __iter__(self):
        at = 0
        while at + sum(map(sum, self.sizes)) <= self.size:
            for rank, sizes in enumerate(self.sizes):
                for n in sizes:
                    if rank == self.rank:
                        yield list(range(at, at + n))
                    at += n

    def __len__(self):
        return self.size // sum(map(sum, self.sizes)) * len(self.sizes[self.rank])


def train(
    plan_json,
    fault=None,
    *,
    epochs=2,
    loss_given=True,
    dropout=0.0,
    norm=False,
    compiled=False,
    clip=None,
    layers=None,
    evaluated=False,
    changed=False,
    clip_value=None,
):
    """Gives the guard's error, or None where the training went through; and what it left unchecked.

    `layers` are the factors of the learning rate of the first layer and the last; `evaluated` is whether the loop evaluates now and
    then, as Lightning does it; `changed` whether it adds noise to the batches, or "mixed": mixes their inputs in place, as mixup does; `clip_value` clips each element.
    """
    plan = Plan.from_json(plan_json)
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    n = plan.recipe.dataset_size
    data = TensorDataset(torch.randn(n, 6), torch.randn(n, 3))
    middle = nn.BatchNorm1d(8) if norm else nn.Tanh()
    model = nn.Sequential(nn.Linear(6, 8), middle, nn.Dropout(dropout), nn.Linear(8, 3))
    ddp = DistributedDataParallel(model)
    called = torch.compile(ddp, backend="eager") if compiled else ddp
    lr = plan.lr * (2 if fault == "another lr" else 1)
    groups = [
        {"params": model[i].parameters(), "lr": lr * f} for i, f in zip((0, 3), layers or (1, 1), strict=True)
    ]
    optimizer = torch.optim.SGD(groups if layers else model.parameters(), lr=lr)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: plan.lr_at(step) / plan.lr)

    irregular = len({tuple(plan.micro_batches(r)) for r in range(plan.data_parallel)}) > 1
    if irregular:
        sizes = [[int(m) for m in plan.micro_batches(r)] for r in range(world)]
        sampler, loader = None, DataLoader(data, batch_sampler=Sized(n, sizes, rank))
    else:
        sampler = DistributedSampler(data)
        loader = DataLoader(data, plan.micro_batch, sampler=sampler)

    watch = guard(plan, (lambda m, batch: mse_loss(m(batch[0]), batch[1])) if loss_given else None)
    try:
        watch.attach(ddp, optimizer, loader)
        for epoch in range(epochs):
            if sampler is not None:
                sampler.set_epoch(epoch)
            weights = plan.loss_weights(rank) if plan.data_parallel == world else None
            for index, (x, y) in enumerate(loader):
                if changed == "mixed":
                    x.mul_(0.7).add_(0.3 * x.flip(0))
                    y = 0.7 * y + 0.3 * y.flip(0)
                elif changed:
                    x = x + torch.randn_like(x)
                last = (index + 1) % plan.accumulation == 0 or index + 1 == len(loader)
                if irregular:
                    last = (index + 1) % len(plan.micro_batches(rank)) == 0
                with contextlib.nullcontext() if last else ddp.no_sync():
                    loss = mse_loss(called(x), y, reduction="sum" if fault == "summed loss" else "mean")
                    if fault == "summed loss":
                        loss = loss / y.shape[1]
                    if irregular and fault != "uneven mean":
                        loss = loss * weights[index % len(weights)]
                    elif fault != "no division":
                        loss = loss / plan.accumulation
                    loss.backward()
                if last:
                    if clip is not None:
                        nn.utils.clip_grad_norm_(model.parameters(), clip)
                    if clip_value is not None:
                        nn.utils.clip_grad_value_(model.parameters(), clip_value)
                    optimizer.step()
                    optimizer.zero_grad()
                    for _ in range(world if fault == "scheduler per process" else 1):
                        if fault != "scheduler per micro-batch":
                            scheduler.step()
                    if evaluated:
                        ddp.eval()
                        with torch.no_grad():
                            ddp(x)
                        ddp.module.train()
                if fault == "scheduler per micro-batch":
                    scheduler.step()
        watch.finish()
    except GuardError as error:
        return error, watch.unchecked
    return None, watch.unchecked


def unequal_steps(plan_json):
    """Rank 1 is a step ahead at a check where all ranks meet."""
    from isobatch.guard.run import Run

    run = Run(Plan.from_json(plan_json), [], [], None)
    run.since += dist.get_rank()
    try:
        run.exchange("weights", 0)
    except GuardError as error:
        return error
    return None


def witnesses(plan_json, seeing):
    """The ranks that see a fault, on those that do."""
    from isobatch.guard.run import Run

    run = Run(Plan.from_json(plan_json), [], [], None)
    return run.witnesses("learning rate") if dist.get_rank() in seeing else None


def without_a_loader(plan_json, *, short=False, loss_given=False):
    """A loop that draws its own batches, from a generator whose seed should depend on the rank."""
    plan = Plan.from_json(plan_json)
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
    ddp = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=plan.lr)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: plan.lr_at(step) / plan.lr)
    draws = torch.Generator().manual_seed(5 + rank)
    watch = guard(plan, (lambda m, batch: mse_loss(m(batch[0]), batch[1])) if loss_given else None)
    steps = plan.total_steps - (2 if short else 0)
    try:
        watch.attach(ddp, optimizer)
        for _ in range(steps):
            for index in range(plan.accumulation):
                x, y = (torch.randn(plan.micro_batch, k, generator=draws) for k in (6, 3))
                with contextlib.nullcontext() if index + 1 == plan.accumulation else ddp.no_sync():
                    (mse_loss(ddp(x), y) / plan.accumulation).backward()
            optimizer.step()
            optimizer.zero_grad()
            scheduler.step()
        watch.finish()
    except GuardError as error:
        return error, watch.notes
    return None, watch.notes
