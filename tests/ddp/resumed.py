"""A user's training script that goes on from a checkpoint, or on other hardware, with the mistakes that people make there."""

from __future__ import annotations

import contextlib

import torch
from torch import nn
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from isobatch import Plan
from isobatch.guard import GuardError, guard
from isobatch.integrations.torch import PlanLR, PlanSampler


def _training(plan, momentum=0.0):
    torch.manual_seed(0)
    n = plan.recipe.dataset_size
    data = TensorDataset(torch.randn(n, 6), torch.randn(n, 3))
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=plan.lr, momentum=momentum)
    watch = guard(plan, lambda m, batch: mse_loss(m(batch[0]), batch[1]))
    return data, DistributedDataParallel(model), optimizer, watch


def planned(plan_json, at, fault=None):
    """With PlanLR and PlanSampler, from step `at` to the end. Gives the guard's error or None, and what it left unchecked."""
    plan = Plan.from_json(plan_json)
    data, ddp, optimizer, watch = _training(plan, 0.9 if fault == "state anew" else 0.0)
    here = plan.position(at)
    sampler = PlanSampler(data, plan, epoch=here.epoch, offset=0 if fault == "data anew" else here.offset)
    loader = DataLoader(data, batch_sampler=sampler)
    scheduler = PlanLR(optimizer, plan)
    if fault != "schedule anew":
        scheduler.load_state_dict({"samples": here.samples, "step": at})
    if fault == "own schedule":  # at the right place, of the plan as it was
        before = plan.moves[-1].before
        del scheduler
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda k: before.lr_at(at + k) / plan.lr)
    step = at
    try:
        watch.attach(ddp, optimizer, loader)
        while step < plan.total_steps:
            for (x, y), (weight, last) in zip(loader, sampler.weights(), strict=True):
                with contextlib.nullcontext() if last else ddp.no_sync():
                    (mse_loss(ddp(x), y) * weight).backward()
                if last:
                    optimizer.step()
                    scheduler.step()
                    optimizer.zero_grad()
                    step += 1
                    if step == plan.total_steps:
                        break
        watch.finish()
    except GuardError as error:
        return error, watch.unchecked
    return None, watch.unchecked


def by_hand(plan_json, at, fault=None):
    """With torch's own sampler and scheduler: the loop takes the batches it has seen, and goes on behind them."""
    plan = Plan.from_json(plan_json)
    data, ddp, optimizer, watch = _training(plan)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda k: plan.lr_at(at + k) / plan.lr)
    sampler = DistributedSampler(data, shuffle=True)
    loader = DataLoader(data, plan.micro_batch, sampler=sampler)
    epoch, seen = divmod(at, plan.steps_per_epoch)
    step = at
    try:
        watch.attach(ddp, optimizer, loader, start_step=None if fault == "start not told" else at)
        while step < plan.total_steps:
            sampler.set_epoch(epoch)
            for index, (x, y) in enumerate(loader):
                if index < seen * plan.accumulation:
                    continue
                last = (index + 1) % plan.accumulation == 0 or index + 1 == len(loader)
                with contextlib.nullcontext() if last else ddp.no_sync():
                    (mse_loss(ddp(x), y) / plan.accumulation).backward()
                if last:
                    optimizer.step()
                    scheduler.step()
                    optimizer.zero_grad()
                    step += 1
            epoch, seen = epoch + 1, 0
        watch.finish()
    except GuardError as error:
        return error, watch.unchecked
    return None, watch.unchecked


def stateful(plan_json, at):
    """With torchdata's loader, whose state has the sampler's: first to step `at`, then all of it made anew, and to the end."""
    from torchdata.stateful_dataloader import StatefulDataLoader

    plan = Plan.from_json(plan_json)
    checkpoint, done = None, 0
    for until in at, plan.total_steps:
        data, ddp, optimizer, watch = _training(plan)
        scheduler = PlanLR(optimizer, plan)
        loader = StatefulDataLoader(data, batch_sampler=PlanSampler(data, plan))
        try:
            watch.attach(ddp, optimizer, loader)
            if checkpoint is not None:
                loader.load_state_dict(checkpoint[0])
                scheduler.load_state_dict(checkpoint[1])
            micro = 0
            while done < until:
                for x, y in loader:
                    (mse_loss(ddp(x), y) / plan.accumulation).backward()
                    micro += 1
                    if micro % plan.accumulation == 0:
                        optimizer.step()
                        scheduler.step()
                        optimizer.zero_grad()
                        done += 1
                        if done == until:
                            break
            checkpoint = loader.state_dict(), scheduler.state_dict()
            watch.finish()
        except GuardError as error:
            return error, watch.unchecked
    return None, watch.unchecked
