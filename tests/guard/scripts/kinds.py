"""Healthy loops of other kinds, in one file: several calls of the model for a batch, passes without training, gradients that are changed
on purpose, samplers that draw."""

import contextlib

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel
from torch.optim.swa_utils import update_bn
from torch.utils.data import DataLoader, DistributedSampler, Sampler, TensorDataset


class Weighted(Sampler):
    """Each rank draws by weights, with replacement."""

    def __init__(self, data):
        self.samples, self.epoch = len(data), 0

    def __len__(self):
        return self.samples // dist.get_world_size()

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        generator = torch.Generator().manual_seed(100 * self.epoch + dist.get_rank())
        weights = torch.arange(self.samples) % 3 + 1.0
        return iter(torch.multinomial(weights, len(self), replacement=True, generator=generator).tolist())


class SAM(torch.optim.Optimizer):
    """Sharpness-aware, around SGD: the closure computes the gradient again at the worst neighbour."""

    def __init__(self, params, lr):
        super().__init__(params, {"lr": lr})
        self.base = torch.optim.SGD(self.param_groups, lr=lr)
        self.param_groups = self.base.param_groups

    @torch.no_grad()
    def step(self, closure=None):
        own = [(p, 0.05 * p.grad.sign()) for group in self.param_groups for p in group["params"]]
        for p, by in own:
            p += by
        with torch.enable_grad():
            closure()
        for p, by in own:
            p -= by
        self.base.step()


def changed(kind, model):
    """What some scripts do to gradients between backward and step."""
    for p in model.parameters():
        if kind == "noise":
            p.grad += 0.1 * torch.ones_like(p.grad)
        elif kind == "centralized" and p.grad.dim() > 1:
            p.grad -= p.grad.mean(1, keepdim=True)


def main(plan, guard, folder, *, kind):
    """Trains for the plan's epochs."""
    rank = dist.get_rank()
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(plan.recipe.dataset_size, 6), torch.randn(plan.recipe.dataset_size, 2))
    sampler = Weighted(data) if kind == "weighted" else DistributedSampler(data)
    loader = DataLoader(data, plan.micro_batch, sampler=sampler)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 2))
    wrapped = model if kind == "all_reduce" else DistributedDataParallel(model)
    torch.manual_seed(rank)
    optimizer = (SAM if kind == "sam" else torch.optim.SGD)(wrapped.parameters(), lr=plan.lr)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: plan.lr_at(step) / plan.lr)

    def loss_of(model, batch):
        calls = 2 if kind == "views" else 1
        return sum(mse_loss(model(batch[0]), batch[1]) for _ in range(calls)) / calls

    watch = guard(plan, loss=loss_of).attach(wrapped, optimizer, loader)
    if kind == "warmed_up":
        wrapped(torch.randn(1, 6))
    if kind == "evaluated_first":
        with torch.no_grad():
            [wrapped(x) for x, _ in loader]
    autocast = torch.autocast("cpu", torch.bfloat16, enabled=kind == "autocast")
    for epoch in range(plan.total_steps // plan.steps_per_epoch):
        sampler.set_epoch(epoch)
        for index, batch in enumerate(loader):

            def closure(batch=batch):
                optimizer.zero_grad()
                loss = loss_of(wrapped, batch)
                loss.backward()
                return loss

            last = (index + 1) % plan.accumulation == 0 or index + 1 == len(loader)
            with contextlib.nullcontext() if last or kind == "all_reduce" else wrapped.no_sync(), autocast:
                loss = loss_of(wrapped, batch) / plan.accumulation
            loss.backward()
            if not last:
                continue
            if kind == "all_reduce":
                for p in model.parameters():
                    dist.all_reduce(p.grad)
                    p.grad /= dist.get_world_size()
            changed(kind, model)
            if plan.recipe.clip_norm:
                nn.utils.clip_grad_norm_(model.parameters(), plan.recipe.clip_norm)
            optimizer.step(*([closure] if kind == "sam" else []))
            scheduler.step()
            optimizer.zero_grad()
    if kind == "update_bn":
        update_bn([x for x, _ in loader], model)
        update_bn(loader, model)
    watch.finish()
