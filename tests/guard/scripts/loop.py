"""A loop in many healthy forms: sampling, wrappers, changes to losses, gradients and steps, resumed runs.

`mistake` is a fault of such a form alone; the others are injected."""

import contextlib
import copy
import random
from typing import NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel
from torch.optim.lr_scheduler import LambdaLR
from torch.optim.swa_utils import SWALR, AveragedModel, update_bn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset, WeightedRandomSampler

from guard.scripts.parts import (
    SAM,
    ByTokens,
    Labeled,
    Lookahead,
    Own,
    Pair,
    Sized,
    Stream,
    WarmsUp,
    changed,
    clip_by_shard,
    mean,
    per_sample,
    quantized,
)
from isobatch.integrations.torch import PlanLR, PlanSampler


class How(NamedTuple):
    """The form of a loop.

    `layers` are factors of the learning rate of the first and the last layer. Where it is `evaluated`, it
    is so now and then, as Lightning does it; `validated`: on all ranks behind each epoch, with a checkpoint.
    It is `resumed` at a step by a "plan" sampler, "by hand", or by the state of a "stateful" loader.
    `overflows` are steps at the start that a loss scaler skips (None: no scaler); `every`: the scheduler
    steps in those, too.
    """

    kind: str = ""
    wrapper: str = "ddp"
    wrapping: dict = {}
    workers: int = 0
    dropout: float = 0.0
    norm: bool = False
    compiled: bool = False
    layers: tuple | None = None
    loss: bool = True
    clip: str = "norm"
    clip_value: float | None = None
    evaluated: bool = False
    validated: bool = False
    averaged: bool = False
    resumed: str = ""
    at: int = 0
    steps: int | None = None
    overflows: int | None = None
    every: bool = True
    fused: bool = False
    mistake: str = ""


def augmented(rows, draw):
    """A batch of views of some samples."""
    x, y = (torch.stack(column) for column in zip(*rows, strict=True))
    return x + 0.01 * torch.randn(x.shape, generator=draw), y


class Loop:
    """A training by a plan, under guard."""

    def __init__(self, plan, guard, how, folder):
        self.plan, self.how, self.kind, self.done = plan, how, how.kind, how.at
        self.rank, self.folder, self.average = dist.get_rank(), folder, None
        torch.manual_seed(0)
        size = plan.recipe.dataset_size or 96
        self.data = TensorDataset(torch.randn(size, 6), torch.randn(size, 2))
        self.sampler, self.loader = self._samples()
        middle = nn.BatchNorm1d(8) if how.norm else nn.Tanh()
        dropout = nn.Dropout(how.dropout) if how.dropout else nn.Identity()
        self.model = nn.Sequential(nn.Linear(6, 8), middle, dropout, nn.Linear(8, 2))
        if self.kind == "labels":
            self.model = Labeled(self.model)
        self.teacher = nn.Sequential(nn.Dropout(0.5), copy.deepcopy(self.model))
        self.wrapped = self._wrapped()
        self.called = torch.compile(self.wrapped, backend="eager") if how.compiled else self.wrapped
        seed = 0 if how.mistake == "one seed" else self.rank
        torch.manual_seed(seed)
        np.random.seed(seed)
        self.draw = torch.Generator().manual_seed(seed)
        self.optimizer, self.scheduler = self._optimizer()
        self.averaged = (
            SWALR(self.optimizer, plan.lr / 3, anneal_epochs=2) if self.kind == "swa" else self.scheduler
        )
        self.scaler = torch.amp.GradScaler("cpu", init_scale=64.0, enabled=how.overflows is not None)
        self.watch = guard(plan, loss=self.loss_of if how.loss else None)
        own_start = how.resumed == "by hand" and how.mistake != "no start"
        self.watch.attach(self.wrapped, self.optimizer, self.loader, start_step=how.at if own_start else None)

    def _samples(self):
        plan, kind, how = self.plan, self.kind, self.how
        drop = bool(plan.recipe.drop_last)
        sampler, form = DistributedSampler(self.data, drop_last=drop), {"num_workers": how.workers}
        if kind == "drawn":
            return None, None
        if kind == "stream":
            return None, DataLoader(Stream(), plan.micro_batch, **form)
        if how.resumed in ("plan", "stateful"):
            position = plan.position(how.at if how.resumed == "plan" else 0)
            offset = 0 if how.mistake == "data anew" else position.offset
            sampler = PlanSampler(self.data, plan, epoch=position.epoch, offset=offset)
        elif kind in ("weighted", "curriculum", "repeated", "augmented"):
            sampler = Own(kind, self.data)
            if kind == "augmented":
                draw = torch.Generator().manual_seed(self.rank)
                form["collate_fn"] = lambda rows: augmented(rows, draw)
        elif kind == "by weights":
            seed = 0 if how.mistake == "one seed" else self.rank
            draw, size = torch.Generator().manual_seed(seed), len(self.data) // dist.get_world_size()
            sampler = WeightedRandomSampler(torch.ones(len(self.data)), size, generator=draw)
        elif kind == "tokens":
            sampler = ByTokens(self.data, plan.micro_batch)
        elif kind == "unequal":
            sampler = Sized(plan, len(self.data))
        if isinstance(sampler, PlanSampler | ByTokens | Sized):
            form["batch_sampler"] = sampler
        else:
            form |= {"batch_size": plan.micro_batch, "sampler": sampler, "drop_last": drop}
        loader = DataLoader
        if how.resumed == "stateful":
            from torchdata.stateful_dataloader import StatefulDataLoader as loader
        if kind == "objects":
            form["collate_fn"] = Pair
        return sampler, loader(self.data, **form)

    def _wrapped(self):
        model, wrapper = self.model, self.how.wrapper
        if self.kind == "all_reduce":
            return model
        if wrapper == "fsdp2":
            mesh = init_device_mesh("cpu", (dist.get_world_size(),))
            fully_shard(model[0], mesh=mesh)
            return fully_shard(model, mesh=mesh)
        if wrapper != "ddp":
            by_parameter = wrapper == "fsdp of parameters"
            cpu = torch.device("cpu")
            return FullyShardedDataParallel(model, device_id=cpu, use_orig_params=by_parameter)
        wrapped = DistributedDataParallel(model, **self.how.wrapping)
        if self.kind == "quantized":
            wrapped.register_comm_hook(None, quantized)
        return wrapped

    def _optimizer(self):
        plan, how, params = self.plan, self.how, self.wrapped.parameters()
        if how.layers:
            params = [
                {"params": self.model[layer].parameters(), "lr": plan.lr * factor}
                for layer, factor in zip((0, 3), how.layers, strict=True)
            ]
        if self.kind == "untrained":  # its last bias is in no optimizer
            params = [p for p in params if p is not self.model[-1].bias]
        if self.kind == "warms up":
            optimizer = WarmsUp(params, plan.lr, plan.warmup_steps if how.mistake != "another warmup" else 9)
            return optimizer, LambdaLR(optimizer, lambda _: 1.0)
        if self.kind in ("sam", "lookahead"):
            optimizer = {"sam": SAM, "lookahead": Lookahead}[self.kind](params, lr=plan.lr)
        else:
            momentum = 0.9 if how.mistake == "state anew" else plan.momentum or 0.0
            form = {"momentum": momentum, "weight_decay": plan.weight_decay, "fused": how.fused}
            optimizer = torch.optim.SGD(params, lr=plan.lr, **form)
        if how.resumed in ("plan", "stateful") and how.mistake != "own schedule":
            scheduler = PlanLR(optimizer, plan)
            if how.at and how.mistake != "schedule anew" and how.resumed == "plan":
                scheduler.load_state_dict({"samples": plan.position(how.at).samples, "step": how.at})
            return optimizer, scheduler
        before = plan.moves[-1].before if how.mistake == "own schedule" else plan  # the plan as it was
        return optimizer, LambdaLR(optimizer, lambda step: before.lr_at(how.at + step) / plan.lr)

    def loss_of(self, model, batch):
        """The mean loss of a micro-batch."""
        if self.kind == "labels":
            return model(*batch)
        if self.kind == "generator":
            return mse_loss(model(batch[0]), batch[1] + torch.randn(batch[1].shape, generator=self.draw))
        if self.kind == "flow":
            x, y = batch
            noise, times = torch.randn_like(x), torch.from_numpy(np.random.rand(len(x), 1)).float()
            return random.uniform(0.5, 1.5) * mse_loss(model((1 - times) * x + times * noise), y)
        if self.kind == "teacher":
            with torch.no_grad():
                target = self.teacher(batch[0])
            return mse_loss(model(batch[0]), target)
        calls = 2 if self.kind == "views" else 1
        return sum(mse_loss(model(batch[0]), batch[1]) for _ in range(calls)) / calls

    def batches(self):
        """Micro-batches with the factors of their losses, and whether each is the last of a step."""
        plan, how, parts, epoch, skipped = self.plan, self.how, self.plan.accumulation, 0, 0
        if self.kind == "drawn":
            draw = torch.Generator().manual_seed(5 + self.rank)
            for index in range(self.left * parts):
                batch = [torch.randn(plan.micro_batch, n, generator=draw) for n in (6, 2)]
                yield batch, 1 / parts, (index + 1) % parts == 0
            return
        while self.left and how.resumed == "plan":
            for batch, row in zip(self.loader, self.sampler.weights(), strict=True):
                yield batch, *row
        weights = [1 / parts] * parts
        if self.kind == "unequal":
            even = how.mistake == "uneven mean"
            parts = len(plan.micro_batches(self.rank))
            weights = [1 / plan.accumulation] * parts if even else plan.loss_weights(self.rank)
        if how.resumed == "by hand":
            epoch, skipped = divmod(how.at, plan.steps_per_epoch)
        while self.left:
            if how.resumed != "stateful" and hasattr(self.sampler, "set_epoch"):
                self.sampler.set_epoch(0 if how.mistake == "first order" else epoch)
            for index, batch in enumerate(self.loader):
                if index >= skipped * parts:
                    last = (index + 1) % parts == 0 or (self.sampler and index + 1 == len(self.loader))
                    yield batch, weights[index % parts], last
            if how.validated:
                self.validate(epoch)
            epoch, skipped = epoch + 1, 0
            assert epoch <= 20

    def train(self, until=None):
        """Trains to the plan's end, or until a step."""
        how, held_parts = self.how, []
        self.left = (until or how.steps or self.plan.total_steps) - self.done
        if self.kind == "warmed_up":
            self.wrapped(torch.randn(1, 6))
        if self.kind == "evaluated_first":
            with torch.no_grad():
                [self.wrapped(x) for x, _ in self.loader]
        for part in self.batches():
            held_parts.append(part)
            if self.kind != "closure":
                self.backward(*part)
            if part[2]:
                self.left -= self.step(held_parts)
                held_parts, self.done = [], self.done + 1
            endless = how.steps or how.resumed in ("plan", "stateful") or self.kind == "stream"
            if not self.left and endless:
                break
        if self.kind == "update_bn":
            update_bn([x for x, _ in self.loader], self.model)
            update_bn(self.loader, self.model)

    def validate(self, epoch):
        """The mean loss over some samples, on all ranks; and a checkpoint."""
        model, some = self.average or self.wrapped, TensorDataset(*self.data[:50])
        model.eval()
        total = torch.zeros(2)
        with torch.no_grad():
            for batch in DataLoader(some, 16, sampler=DistributedSampler(some, shuffle=False), num_workers=1):
                total += torch.tensor([self.loss_of(model, batch), 1]) * len(batch[1])
        dist.all_reduce(total)
        model.train()
        if self.rank == 0:
            state = {
                "model": self.model.state_dict(),
                "optimizer": self.optimizer.state_dict(),
                "epoch": epoch,
            }
            torch.save(state, self.folder / "last.pt")
        dist.barrier()

    def _synced(self, last):
        if self.kind == "all_reduce":
            return contextlib.nullcontext()
        if self.how.wrapper == "fsdp2":
            self.wrapped.set_requires_gradient_sync(last and self.how.mistake != "never synchronized")
            return contextlib.nullcontext()
        return contextlib.nullcontext() if last else self.wrapped.no_sync()

    def backward(self, batch, weight, last):
        """Forward and backward of a micro-batch."""
        how, halves = self.how, torch.float16 if self.scaler.is_enabled() else torch.bfloat16
        if self.kind == "mixed":
            x, y = batch
            batch = x.mul_(0.7).add_(0.3 * x.flip(0)), 0.7 * y + 0.3 * y.flip(0)
        elif self.kind == "noisy":
            batch = batch[0] + torch.randn_like(batch[0]), batch[1]
        cast = torch.autocast("cpu", halves, enabled=self.scaler.is_enabled() or self.kind == "autocast")
        with self._synced(last), cast:
            if self.kind == "labels":
                loss = mse_loss(self.called(batch[0]), batch[1])
            else:
                loss = self.loss_of(self.called, batch)
            if self.kind == "l2":
                loss = loss + 0.01 * sum(p.square().sum() for p in self.model.parameters())
            if self.done < (how.overflows or 0) or (how.mistake == "nan" and self.done > 3 and self.rank):
                loss = loss * torch.inf
        self.scaler.scale(loss * weight).backward()
        if self.kind == "dp_sgd":
            per_sample(self.model, batch)

    def step(self, held_parts):
        """An optimizer step; returns whether it was taken."""
        how, scale = self.how, self.scaler.get_scale()

        def closure():
            self.optimizer.zero_grad()
            for part in held_parts:
                self.backward(*part)

        self.change(closure)
        self.clip()
        if self.kind in ("sam", "closure"):
            self.optimizer.step(closure)
        elif self.kind == "compiled step":
            torch.compile(self.optimizer.step, backend="eager")()
        else:
            self.scaler.step(self.optimizer)
            self.scaler.update()
        stepped = self.scaler.get_scale() >= scale
        if how.every or stepped:
            (self.averaged if self.done >= (self.plan.steps_per_epoch or 0) else self.scheduler).step()
        self.optimizer.zero_grad()
        if how.averaged:
            self.average = self.average or AveragedModel(self.wrapped.module)
            self.average.update_parameters(self.wrapped.module)
        if how.evaluated:
            self.wrapped.eval()
            with torch.no_grad():
                self.wrapped(held_parts[-1][0][0])
            self.wrapped.module.train()
        return stepped

    def change(self, closure):
        """Changes gradients and weights between backward and step, as some scripts do."""
        if self.kind == "all_reduce":
            for p in self.model.parameters():
                p.grad = mean(p.grad)
        if self.kind == "sam_by_hand":
            own = [(p, 0.05 * p.grad.sign()) for p in self.model.parameters()]
            with torch.no_grad():
                [p.add_(by) for p, by in own]
            closure()
            with torch.no_grad():
                [p.sub_(by) for p, by in own]
        changed(self.kind, self.model)

    def clip(self):
        """By the norm as planned, or by value."""
        bound, wrapped = self.plan.recipe.clip_norm, self.wrapped
        if self.how.clip_value is not None:
            nn.utils.clip_grad_value_(wrapped.parameters(), self.how.clip_value)
        if self.how.clip == "value":
            nn.utils.clip_grad_value_(wrapped.parameters(), 0.01)
            return
        if not bound:
            return
        if self.scaler.is_enabled() and self.how.mistake != "no unscale":
            self.scaler.unscale_(self.optimizer)
        if self.how.mistake == "clipped by shard":
            clip_by_shard(wrapped, bound)
        elif hasattr(wrapped, "clip_grad_norm_"):
            wrapped.clip_grad_norm_(bound)
        else:
            nn.utils.clip_grad_norm_(wrapped.parameters(), bound)


def main(plan, guard, folder, **how):
    """Trains; with a "stateful" loader to the step `at`, then all anew from there."""
    how = How(**how)
    if how.resumed != "stateful":
        loop = Loop(plan, guard, how, folder)
        loop.train()
        loop.watch.finish()
        return
    first = Loop(plan, guard, how._replace(at=0), folder)
    first.train(how.at)
    loader, scheduler = first.loader.state_dict(), first.scheduler.state_dict()
    first.watch.finish()
    second = Loop(plan, guard, how, folder)
    second.loader.load_state_dict(loader)
    second.scheduler.load_state_dict(scheduler)
    second.train()
    second.watch.finish()
