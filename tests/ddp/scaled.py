"""A user's training script with a loss scaler, which skips the steps that overflow."""

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


def train(plan_json, fault=None, *, overflows=0, every=True, fused=False, loss_given=False):
    """Gives the guard's error, or None; and the optimizer steps that were taken.

    Args:
        overflows: steps that overflow at the start.
        every: steps the scheduler also where the scaler skipped.
        loss_given: to the guard; the plan may say clip_norm.
    """
    plan = Plan.from_json(plan_json)
    torch.manual_seed(0)
    n = plan.recipe.dataset_size
    data = TensorDataset(torch.randn(n, 6), torch.randn(n, 3))
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
    ddp = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=plan.lr, fused=fused)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: plan.lr_at(step) / plan.lr)
    sampler = DistributedSampler(data)
    loader = DataLoader(data, plan.micro_batch, sampler=sampler)
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
    watch = guard(plan, (lambda m, batch: mse_loss(m(batch[0]), batch[1])) if loss_given else None)
    done = taken = 0
    try:
        watch.attach(ddp, optimizer, loader)
        for epoch in range(20):
            sampler.set_epoch(epoch)
            for index, (x, y) in enumerate(loader):
                last = (index + 1) % plan.accumulation == 0 or index + 1 == len(loader)
                with contextlib.nullcontext() if last else ddp.no_sync():
                    with torch.autocast("cpu", torch.float16):
                        loss = mse_loss(ddp(x), y) / plan.accumulation
                    if fault == "summed loss":
                        loss = loss * len(x)
                    if done < overflows or (fault == "nan" and done > 3 and dist.get_rank() == 1):
                        loss = loss * torch.inf
                    scaler.scale(loss).backward()
                if last:
                    before = scaler.get_scale()
                    if plan.recipe.clip_norm is not None:
                        if fault != "no unscale":
                            scaler.unscale_(optimizer)
                        nn.utils.clip_grad_norm_(model.parameters(), plan.recipe.clip_norm)
                    scaler.step(optimizer)
                    scaler.update()
                    optimizer.zero_grad()
                    stepped = scaler.get_scale() >= before
                    if every or stepped:
                        scheduler.step()
                    done, taken = done + 1, taken + stepped
                    if taken == 9:
                        return None, taken
    except GuardError as error:
        return error, taken
    return None, taken
