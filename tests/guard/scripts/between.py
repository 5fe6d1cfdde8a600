"""Healthy loops that look at the loader or measure on it between their steps, or step at other places."""

import itertools

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def loss_of(model, batch):
    """The mean loss of a batch."""
    return mse_loss(model(batch[0]), batch[1])


class Loop:
    """A loop of three epochs; `between` and `amid` are done after each epoch, and after each third step."""

    def __init__(self, plan, guard, folder):
        draw = torch.Generator().manual_seed(1)
        self.plan, self.folder, self.rank = plan, folder, dist.get_rank()
        self.data = TensorDataset(torch.randn(96, 6, generator=draw), torch.randn(96, 2, generator=draw))
        torch.manual_seed(0)
        self.model = nn.Sequential(
            nn.Linear(6, 8), nn.Identity(), nn.Tanh(), nn.Dropout(0.1), nn.Linear(8, 2)
        )
        self.wrapped = DistributedDataParallel(self.model)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=plan.lr)
        self.loader = self.new_loader()
        self.watch = guard(plan, loss=loss_of).attach(self.wrapped, self.optimizer, self.loader)
        torch.manual_seed(self.rank)

    def new_loader(self):
        """A loader of the samples."""
        return DataLoader(self.data, self.plan.micro_batch, sampler=DistributedSampler(self.data))

    def update(self, batch):
        """An optimizer step."""
        loss_of(self.wrapped, batch).backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def train(self, *, between=None, amid=None, update=None, batches=None):
        """All epochs."""
        for epoch in range(3):
            self.loader.sampler.set_epoch(epoch)
            for index, batch in enumerate((batches or (lambda: self.loader))()):
                (update or self.update)(batch)
                if amid is not None and index % 3 == 1:
                    amid(batch)
            if between is not None:
                between()
        self.watch.finish()


# The loader.


def looked_at(loop, when):
    """A batch is looked at."""

    def look(*_):
        next(iter(loop.loader))

    if when == "first":
        look()
    loop.train(**{when: look} if when != "first" else {})


def looked_at_by_rank_0(loop, when):
    """One rank alone looks at a batch, and measures on all."""

    def look(*_):
        if loop.rank == 0:
            next(iter(loop.loader))
            measured(loop.model, loop.loader)

    loop.train(**{when: look})


def measured(model, loader, *, grad=False, train=False):
    """The mean loss over a loader."""
    model.train(train)
    with torch.set_grad_enabled(grad):
        mean = sum(loss_of(model, batch).item() for batch in loader) / len(loader)
    model.train()
    return mean


def measured_on_training_data(loop, when, **how):
    """The loss is measured on the loader that trains."""
    loop.train(**{when: lambda *_: measured(loop.wrapped, loop.loader, **how)})


def measured_on_some(loop, **how):
    """The loss is measured on the first three batches, amid an epoch."""
    loop.train(amid=lambda _: measured(loop.wrapped, list(itertools.islice(loop.loader, 3)), **how))


def measured_on_other_data(loop, **how):
    """The loss is measured on a validation set."""
    validation = DataLoader(loop.data, 16)
    loop.train(between=lambda: measured(loop.wrapped, validation, **how))


def statistics_first(loop):
    """The mean of the inputs, before anything is trained."""
    torch.cat([x for x, _ in loop.loader]).mean(0)
    loop.train()


def listed(loop):
    """The batches of an epoch are made before it."""
    loop.train(batches=lambda: list(loop.loader))


def made_anew(loop):
    """Each epoch has a loader of its own."""

    def batches():
        epoch = loop.loader.sampler.epoch
        loop.loader = loop.new_loader()
        loop.loader.sampler.set_epoch(epoch)
        return loop.loader

    loop.train(batches=batches)


def iterated_by_hand(loop):
    """An iterator is kept, and made anew at its end."""
    iterator, epoch = iter(loop.loader), 0
    for _ in range(loop.plan.total_steps):
        try:
            batch = next(iterator)
        except StopIteration:
            epoch += 1
            loop.loader.sampler.set_epoch(epoch)
            iterator = iter(loop.loader)
            batch = next(iterator)
        loop.update(batch)
    loop.watch.finish()


def counted_iterator(loop):
    """The iterator's length is asked."""

    def batches():
        iterator = iter(loop.loader)
        assert len(iterator) == len(loop.loader)
        return iterator

    loop.train(batches=batches)


def fetched_ahead(loop):
    """The next batch is fetched before this one is trained on."""

    def batches():
        iterator = iter(loop.loader)
        following = next(iterator, None)
        while (batch := following) is not None:
            following = next(iterator, None)
            yield batch

    loop.train(batches=batches)


def short_ones_left_out(loop):
    """Batches of too few samples are skipped."""
    loop.train(update=lambda batch: loop.update(batch) if len(batch[0]) == loop.plan.micro_batch else None)


# The step.


def stepped_late(loop):
    """The step of a batch comes after the next batch is fetched, the last one after the epochs."""
    state = {"due": False}

    def step():
        if state["due"]:
            loop.optimizer.step()
            loop.optimizer.zero_grad()

    def update(batch):
        step()
        loss_of(loop.wrapped, batch).backward()
        state["due"] = True

    finish = loop.watch.finish
    loop.watch.finish = lambda: (step(), finish())
    loop.train(update=update)


def cleared_late(loop, to_none=True):
    """Gradients are cleared right before the backward."""

    def update(batch):
        loss = loss_of(loop.wrapped, batch)
        loop.optimizer.zero_grad(set_to_none=to_none)
        loss.backward()
        loop.optimizer.step()

    loop.train(update=update)


def summed_by_hand(loop):
    """Gradients are taken by torch.autograd.grad, and given to the optimizer."""

    def update(batch):
        loss_of(loop.wrapped, batch).backward()
        grads = [p.grad.clone() for p in loop.model.parameters()]
        loop.optimizer.zero_grad()
        for p, grad in zip(loop.model.parameters(), grads, strict=True):
            p.grad = grad
        loop.optimizer.step()
        loop.optimizer.zero_grad()

    loop.train(update=update)


def measured_before(loop, **how):
    """The loss is measured on the loader that trains, once the batch is there."""

    def update(batch):
        measured(loop.wrapped, loop.loader, **how)
        loop.update(batch)

    loop.train(update=update)


def cut(loop):
    """A batch of the loader is cut into several steps' micro-batches."""

    def update(batch):
        for part in zip(*(tensor.split(loop.plan.micro_batch) for tensor in batch), strict=True):
            loop.update(part)

    loop.loader = DataLoader(loop.data, 4 * loop.plan.micro_batch, sampler=DistributedSampler(loop.data))
    loop.watch.attach(loop.wrapped, loop.optimizer, loop.loader)
    loop.train(update=update)


def cleared_by_hand(loop, how):
    """Gradients are cleared as scripts did before zero_grad could."""

    def update(batch):
        loss_of(loop.wrapped, batch).backward()
        loop.optimizer.step()
        for p in loop.model.parameters():
            if how == "none":
                p.grad = None
            else:
                p.grad.data.zero_()

    loop.train(update=update)


def counted_batches(loop):
    """An iterator is made for each epoch, and never asked for more than it has."""

    def batches():
        iterator = iter(loop.loader)
        for _ in range(len(loop.loader)):
            yield next(iterator)

    loop.train(batches=batches)


def stepped_first(loop):
    """The iteration begins with the last one's step; the first has none."""

    def update(batch):
        loop.optimizer.step()
        loop.optimizer.zero_grad()
        loss_of(loop.wrapped, batch).backward()

    finish = loop.watch.finish
    loop.watch.finish = lambda: (loop.optimizer.step(), finish())
    loop.train(update=update)


def whole_steps_alone(loop, how):
    """An epoch's last passes make no whole step: the loop ends before them, or computes and clears them."""
    parts = loop.plan.accumulation
    whole = len(loop.loader) // parts * parts
    for epoch in range(3):
        loop.loader.sampler.set_epoch(epoch)
        loop.optimizer.zero_grad()
        for index, batch in enumerate(loop.loader, 1):
            if how == "ended" and index > whole:
                break
            (loss_of(loop.wrapped, batch) / parts).backward()
            if index % parts == 0:
                loop.optimizer.step()
                loop.optimizer.zero_grad()
    loop.watch.finish()


def main(plan, guard, folder, *, loop, **options):
    """Runs one of them."""
    globals()[loop](Loop(plan, guard, folder), **options)
