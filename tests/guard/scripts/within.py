"""Loops, healthy and faulty, that make their gradients and steps otherwise: an averaging inside of the
optimizer, an optimizer in an optimizer, gradients rescaled or taken away, several losses, cut batches.
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, RandomSampler

from guard.scripts.between import Loop, loss_of


class Averaging(torch.optim.Optimizer):
    """SGD that averages the gradients itself."""

    def __init__(self, params, lr, averaging):
        super().__init__(params, {"lr": lr})
        self.averaging = averaging

    @torch.no_grad()
    def step(self):
        for p in self.param_groups[0]["params"]:
            grad = p.grad.clone()
            if self.averaging:
                dist.all_reduce(grad)
                grad /= dist.get_world_size()
            p.sub_(grad, alpha=self.param_groups[0]["lr"])


class Everything(RandomSampler):
    """All samples for each rank, in one order."""

    def __init__(self, data):
        super().__init__(data, generator=torch.Generator().manual_seed(3))

    def set_epoch(self, epoch):
        self.generator.manual_seed(epoch)


class Sharp(torch.optim.Optimizer):
    """Sharpness-aware minimization in two calls: the optimizer inside steps, this one never does."""

    def __init__(self, params, lr):
        super().__init__(params, {"lr": lr})
        self.inside = torch.optim.SGD(self.param_groups, lr)
        self.param_groups = self.inside.param_groups

    @torch.no_grad()
    def move(self, sign):
        for p in self.param_groups[0]["params"]:
            self.state[p].setdefault("grad", p.grad.clone())
            p.add_(self.state[p]["grad"], alpha=0.05 * sign)

    def step_back(self):
        self.move(-1)
        self.inside.step()
        self.state.clear()


def attach(loop, model, optimizer=None):
    """Trains another model."""
    loop.model, loop.wrapped = getattr(model, "module", model), model
    loop.optimizer = optimizer or torch.optim.SGD(model.parameters(), loop.plan.lr)
    loop.watch.attach(loop.wrapped, loop.optimizer, loop.loader)


def averages_itself(loop, averaging=True):
    """No wrapper: the optimizer averages over the ranks in its step."""
    attach(loop, loop.model, Averaging(loop.model.parameters(), loop.plan.lr, averaging))
    loop.train()


def sharp(loop):
    """The outer optimizer is attached."""
    optimizer = Sharp(loop.model.parameters(), loop.plan.lr)
    loop.watch.attach(loop.wrapped, optimizer, loop.loader)

    def update(batch):
        loss_of(loop.wrapped, batch).backward()
        optimizer.move(1)
        optimizer.zero_grad()
        loss_of(loop.wrapped, batch).backward()
        optimizer.step_back()
        optimizer.zero_grad()

    loop.train(update=update)


def last_layer_held(loop):
    """The last layer gets no gradient at first: the sums of its gradients are 0 as they are."""
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 2), nn.Softmax(dim=1))
    attach(loop, DistributedDataParallel(model))

    def update(batch):
        loss_of(loop.wrapped, batch).backward()
        for p in model[2].parameters():
            p.grad = None
        loop.optimizer.step()
        loop.optimizer.zero_grad()

    loop.train(update=update)


def tasks(loop):
    """A backward for each task, cleared between; the attached model is never called as a whole."""
    torch.manual_seed(0)
    parts = nn.ModuleDict({"body": nn.Linear(6, 4), "a": nn.Linear(4, 2), "b": nn.Linear(4, 2)})
    attach(loop, parts)

    def update(batch):
        body, totals = parts["body"](batch[0]), [torch.zeros_like(p) for p in parts.parameters()]
        for name in ("a", "b"):
            loop.optimizer.zero_grad()
            mse_loss(parts[name](body), batch[1]).backward(retain_graph=True)
            for total, p in zip(totals, parts.parameters(), strict=True):
                total += 0 if p.grad is None else p.grad
        for total, p in zip(totals, parts.parameters(), strict=True):
            dist.all_reduce(total)
            p.grad = total / loop.plan.data_parallel
        loop.optimizer.step()

    loop.train(update=update)


def rescaled(loop, times=1.0):
    """Sums, divided by their number between the backward and the clipping."""

    def update(batch):
        (loss_of(loop.wrapped, batch) * len(batch[0])).backward()
        for p in loop.model.parameters():
            p.grad *= times / len(batch[0])
        nn.utils.clip_grad_norm_(loop.model.parameters(), loop.plan.recipe.clip_norm)
        loop.optimizer.step()
        loop.optimizer.zero_grad()

    loop.train(update=update)


def weighted(loop):
    """Another weight of the loss, of one pass."""

    def update(batch):
        (loss_of(loop.wrapped, batch) * 1.7).backward()
        nn.utils.clip_grad_norm_(loop.model.parameters(), loop.plan.recipe.clip_norm)
        loop.optimizer.step()
        loop.optimizer.zero_grad()

    loop.train(update=update)


def cut_into_passes(loop, divided=True, clip=False):
    """The loader's batch is one of the whole step. `clip`: clipped, and divided only then."""
    size, passes = loop.plan.micro_batch, loop.plan.accumulation
    loop.loader = DataLoader(loop.data, passes * size, sampler=DistributedSampler(loop.data))
    loop.watch.attach(loop.wrapped, loop.optimizer, loop.loader)

    def update(batch):
        for x, y in zip(*(tensor.split(size) for tensor in batch), strict=True):
            (loss_of(loop.wrapped, (x, y)) / (passes if divided else 1)).backward()
        if clip:
            nn.utils.clip_grad_norm_(loop.model.parameters(), loop.plan.recipe.clip_norm)
            for p in loop.model.parameters():
                p.grad /= passes
        loop.optimizer.step()
        loop.optimizer.zero_grad()

    loop.train(update=update)


def features_kept(loop):
    """A loss over all passes: their outputs are made without gradients first, then one by one with."""
    batches = []

    def update(batch):
        batches.append(batch)
        if len(batches) < loop.plan.accumulation:
            return
        with torch.no_grad():
            features = [loop.wrapped(x) for x, _ in batches]
        for at, (x, _) in enumerate(batches):
            whole = torch.cat([*features[:at], loop.wrapped(x), *features[at + 1 :]])
            mse_loss(whole @ whole.T, torch.eye(len(whole))).backward()
        loop.optimizer.step()
        loop.optimizer.zero_grad()
        batches.clear()

    loop.train(update=update)


def iterator_first(loop):
    """The loop has begun its pass before the guard is attached."""
    passes = [iter(loop.loader)]
    loop.watch.attach(loop.wrapped, loop.optimizer, loop.loader)
    loop.train(batches=lambda: passes.pop() if passes else loop.loader)


def forward_by_name(loop, alike=False):
    """The wrapper's forward is called as a method: no hook sees it. `alike`: all ranks have the same data."""
    loop.loader = DataLoader(loop.data, 4, sampler=DistributedSampler(loop.data, rank=0 if alike else None))
    loop.watch.attach(loop.wrapped, loop.optimizer, loop.loader)

    def update(batch):
        mse_loss(loop.wrapped.forward(batch[0]), batch[1]).backward()
        loop.optimizer.step()
        loop.optimizer.zero_grad()

    loop.train(update=update)


def uneven(loop):
    """DDP's join(): a rank has more batches than the other."""
    loop.watch.attach(loop.wrapped, loop.optimizer)
    with loop.wrapped.join():
        for _ in range(15 + 4 * loop.rank):
            loop.update([torch.randn(4, 6), torch.randn(4, 2)])
    loop.watch.finish()


def differences(loop, cleared=True):
    """The gradient of the last bias is 0: the loss is of differences."""
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))
    attach(loop, DistributedDataParallel(model))

    def update(batch):
        out = loop.wrapped(batch[0])
        (out[0] - out[1]).sum().backward()
        loop.optimizer.step()
        if cleared:
            loop.optimizer.zero_grad()

    loop.watch.attach(loop.wrapped, loop.optimizer, None)
    loop.train(update=update)


def grows(loop):
    """The gradient is never clipped, and exceeds the bound only after the first steps."""
    steps = []

    def update(batch):
        steps.append(batch)
        (loss_of(loop.wrapped, batch) * (1 if len(steps) < 3 else 100)).backward()
        loop.optimizer.step()
        loop.optimizer.zero_grad()

    loop.train(update=update)


def small_rows(loop):
    """All ranks see all data, in samples of few values."""

    def collated(rows):
        return torch.stack([x for x, _ in rows]), torch.stack([y for _, y in rows]), [x[:2] for x, _ in rows]

    loop.loader = DataLoader(loop.data, 4, sampler=Everything(loop.data), collate_fn=collated)
    loop.watch.attach(loop.wrapped, loop.optimizer, loop.loader)
    loop.train()


def main(plan, guard, folder, *, loop, **options):
    """Runs one of them."""
    globals()[loop](Loop(plan, guard, folder), **options)
