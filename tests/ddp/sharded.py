"""A user's training script under fully_shard, and one whose optimizer takes a closure."""

from __future__ import annotations

import contextlib

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from isobatch import Plan
from isobatch.guard import GuardError, guard


def clip(model, bound, *, local):
    """Clips by the norm over all ranks; `local`: by that of each rank's part, the mistake."""
    if hasattr(model, "clip_grad_norm_") and not local:
        model.clip_grad_norm_(bound)
    elif not local:
        nn.utils.clip_grad_norm_(model.parameters(), bound)
    else:
        found = [p.grad for p in model.parameters() if p.grad is not None]
        grads = [getattr(grad, "_local_tensor", grad) for grad in found]
        norm = torch.nn.utils.get_total_norm(grads)
        [g.mul_((bound / norm).clamp(max=1)) for g in grads]


def _train(plan_json, fault, wrap, *, closure=False):
    plan = Plan.from_json(plan_json)
    rank = dist.get_rank()
    torch.manual_seed(0)
    n = plan.recipe.dataset_size
    data = TensorDataset(torch.randn(n, 6), torch.randn(n, 3))
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Dropout(0.3), nn.Linear(8, 3))
    wrapped = wrap(model)
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=plan.lr * (2 if fault == "another lr" else 1))
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: plan.lr_at(step) / plan.lr)
    sampler = DistributedSampler(data, shuffle=True)
    loader = DataLoader(data, plan.micro_batch, sampler=sampler)
    watch = guard(plan, lambda m, batch: mse_loss(m(batch[0]), batch[1]))
    done = 0

    def one(x, y, last):
        if hasattr(wrapped, "no_sync"):
            quiet = contextlib.nullcontext() if last else wrapped.no_sync()
        else:
            wrapped.set_requires_gradient_sync(last and fault != "never synchronized")
            quiet = contextlib.nullcontext()
        if fault == "nan later" and done == 3 and rank == 1:
            x = x * torch.nan
        with quiet:
            loss = mse_loss(wrapped(x), y, reduction="sum" if fault == "summed loss" else "mean")
            loss = loss / (y.shape[1] if fault == "summed loss" else 1)
            (loss if fault == "no division" else loss / plan.accumulation).backward()

    try:
        watch.attach(wrapped, optimizer, loader)
        for epoch in range(2):
            sampler.set_epoch(epoch)
            batches = list(loader) if closure else loader
            for index, batch in enumerate(batches):
                last = (index + 1) % plan.accumulation == 0 or index + 1 == len(loader)
                if not closure:
                    one(*batch, last)
                elif last:
                    begin = index - index % plan.accumulation

                    def evaluate(begin=begin, index=index, batches=batches):
                        optimizer.zero_grad()
                        for at in range(begin, index + 1):
                            one(*batches[at], at == index)

                if last:
                    if plan.recipe.clip_norm:
                        clip(wrapped, plan.recipe.clip_norm, local=fault == "clipped by shard")
                    if closure:
                        optimizer.step(evaluate)
                    else:
                        optimizer.step()
                        optimizer.zero_grad()
                    scheduler.step()
                    done += 1
        watch.finish()
    except GuardError as error:
        return error, watch.unchecked
    return None, watch.unchecked


def fully_sharded(plan_json, fault=None):
    """Gives the guard's error, or None; and what it left unchecked."""

    def wrap(model):
        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        fully_shard(model[0], mesh=mesh)
        return fully_shard(model, mesh=mesh)

    return _train(plan_json, fault, wrap)


def flat_sharded(plan_json, fault=None, **how):
    """Likewise, under the older FullyShardedDataParallel."""
    return _train(
        plan_json, fault, lambda model: FullyShardedDataParallel(model, device_id=torch.device("cpu"), **how)
    )


def with_closure(plan_json, fault=None):
    """Likewise, under DDP, with all micro-batches of a step inside of a closure."""
    return _train(plan_json, fault, DistributedDataParallel, closure=True)
