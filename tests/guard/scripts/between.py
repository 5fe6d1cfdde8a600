"""Healthy loops that touch the loader, the model or the gradients between their steps: none of it is training."""

import copy
import itertools
import pickle

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import mse_loss, softplus
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def loss_of(model, batch):
    """The mean loss of a batch."""
    return mse_loss(model(batch[0]), batch[1])


class Loop:
    """A loop of three epochs; `between` and `amid` are done after each epoch, and after each third step."""

    def __init__(self, plan, guard, folder, *, normed=False, attached=True):
        draw = torch.Generator().manual_seed(1)
        self.plan, self.folder, self.rank = plan, folder, dist.get_rank()
        self.data = TensorDataset(torch.randn(96, 6, generator=draw), torch.randn(96, 2, generator=draw))
        torch.manual_seed(0)
        norm = nn.BatchNorm1d(8) if normed else nn.Identity()
        self.model = nn.Sequential(nn.Linear(6, 8), norm, nn.Tanh(), nn.Dropout(0.1), nn.Linear(8, 2))
        self.wrapped = DistributedDataParallel(self.model)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=plan.lr)
        self.loader = self.new_loader()
        self.watch = guard(plan, loss=loss_of)
        if attached:
            self.watch.attach(self.wrapped, self.optimizer, self.loader)
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
    other = DataLoader(loop.data, 16)
    loop.train(between=lambda: measured(loop.wrapped, other, **how))


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


# Gradients and calls beside the step.


def backward_to_inputs(loop, when):
    """The gradient of an input, such as a saliency map; the weights' gradients are cleared."""

    def look(*_):
        x = loop.data[:8][0].requires_grad_()
        loop.model(x).sum().backward()
        assert x.grad is not None
        loop.optimizer.zero_grad()

    loop.train(**{when: look})


def fisher(loop, *, cleared=True):
    """The squares of gradients over many batches, as for elastic weight consolidation."""

    def squares():
        for _ in range(8):
            for batch in loop.loader:
                loop.model.zero_grad()
                loss_of(loop.model, batch).backward()
        loop.model.zero_grad()

    loop.train(between=squares)


def fisher_first(loop):
    """The same through the wrapper before the first step."""
    for _ in range(8):
        for batch in loop.loader:
            loop.model.zero_grad()
            loss_of(loop.wrapped, batch).backward()
    loop.model.zero_grad()
    loop.train()


def adversarial(loop):
    """Trains on inputs moved along their gradient (FGSM)."""

    def update(batch):
        x, y = batch[0].clone().requires_grad_(), batch[1]
        loss_of(loop.wrapped, (x, y)).backward()
        loop.optimizer.zero_grad()
        loop.update((x.detach() + 0.5 * x.grad.sign(), y))

    loop.train(update=update)


def accuracy_in_train_mode(loop):
    """A measure after each step, with gradients on and in training mode."""

    def update(batch):
        loop.update(batch)
        loss_of(loop.wrapped, batch).item()

    loop.train(update=update)


def accuracy_before(loop):
    """The same before it."""

    def update(batch):
        loss_of(loop.wrapped, batch).item()
        loop.update(batch)

    loop.train(update=update)


def penalized(loop):
    """A penalty of the input's gradient, by torch.autograd.grad, beside another call."""

    def update(batch):
        x = batch[0].clone().requires_grad_()
        grad = torch.autograd.grad(loop.model(x).sum(), x, create_graph=True)[0]
        (0.0 * grad.square().sum()).backward()
        loop.update(batch)

    loop.train(update=update)


# The model.


def saved(loop, how):
    """The model is saved, copied or exported, whole."""
    x = loop.data[:4][0]

    def keep(*_):
        match how:
            case "save":
                torch.save(loop.wrapped, loop.folder / f"{loop.rank}.pt")
                torch.save(loop.model, loop.folder / f"{loop.rank}.pt")
            case "script":
                torch.jit.script(loop.model)(x)
            case "trace":
                torch.jit.trace(loop.model, x, check_trace=False)
            case "export":
                torch.export.export(loop.model, (x,))
            case "copy":
                copy.deepcopy(loop.model)(x).sum().backward()
                copy.copy(loop.model)(x)
            case "pickle":
                pickle.loads(pickle.dumps((loop.model, loop.optimizer, loop.loader)))
            case "trainer":
                pickle.loads(pickle.dumps(Trainer(loop)))

    loop.train(between=keep, amid=keep)


class Trainer:
    """An object that has everything."""

    def __init__(self, loop):
        self.model, self.optimizer, self.loader = loop.model, loop.optimizer, loop.loader
        self.watch = loop.watch


def restored(loop):
    """The averaged weights are measured, and the trained ones put back."""
    average = copy.deepcopy(loop.model.state_dict())

    def swap():
        own = copy.deepcopy(loop.model.state_dict())
        loop.model.load_state_dict(average)
        measured(loop.wrapped, loop.loader)
        loop.model.load_state_dict(own)

    loop.train(between=swap)


def copy_trained(loop):
    """A copy is trained for some steps, with an optimizer of its own."""

    def inner(*_):
        other = copy.deepcopy(loop.model)
        optimizer = torch.optim.SGD(other.parameters(), lr=0.1)
        for batch in itertools.islice(loop.loader, 2):
            loss_of(other, batch).backward()
            optimizer.step()

    loop.train(between=inner, amid=inner)


def compiled_later(loop, how):
    """The model is compiled once the guard is attached."""
    if how == "in place":
        loop.wrapped.compile(backend="eager")
    else:
        loop.wrapped = torch.compile(loop.wrapped, backend="eager")
    loop.train()


def linear_probe(loop):
    """Only the last layer trains, and the model remains in eval mode."""
    loop.watch._remove()
    loop.model[:-1].requires_grad_(False)
    loop.wrapped = DistributedDataParallel(loop.model)
    loop.optimizer = torch.optim.SGD(loop.model[-1].parameters(), lr=loop.plan.lr)
    loop.watch.attach(loop.wrapped, loop.optimizer, loop.loader)
    loop.wrapped.eval()
    loop.train()


def undistinguished(loop):
    """Nothing in the model depends on its mode, which is eval."""
    loop.model[3] = nn.Identity()
    loop.wrapped.eval()
    loop.train()


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


def two_passes(loop):
    """Two backward passes for a call of the model."""

    def update(batch):
        loss = loss_of(loop.model, batch)
        (loss / 2).backward(retain_graph=True)
        (loss / 2).backward()
        for p in loop.model.parameters():
            dist.all_reduce(p.grad)
            p.grad /= 2
        loop.optimizer.step()
        loop.optimizer.zero_grad()

    loop.watch.attach(loop.model, loop.optimizer, loop.loader)
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


def fisher_zeroed(loop):
    """As `fisher`, through the wrapper, with gradients of zeros."""

    def squares():
        for batch in loop.loader:
            loop.optimizer.zero_grad(set_to_none=False)
            loss_of(loop.wrapped, batch).backward()
        loop.optimizer.zero_grad(set_to_none=False)

    loop.train(between=squares)


def fisher_here(loop):
    """The same of the batch under way, before its step."""

    def update(batch):
        loss_of(loop.wrapped, batch).backward()
        loop.optimizer.zero_grad()
        loop.update(batch)

    loop.train(update=update)


def last_layer_frozen(loop):
    """The last layer's gradients are taken away during the first epoch."""

    def update(batch):
        loss_of(loop.wrapped, batch).backward()
        if loop.loader.sampler.epoch == 0:
            for p in loop.model[-1].parameters():
                p.grad = None
        loop.optimizer.step()
        loop.optimizer.zero_grad()

    loop.train(update=update)


def scaled_by_hand(loop):
    """The loss is multiplied, and the gradients are divided."""

    def update(batch):
        (1024 * loss_of(loop.wrapped, batch)).backward()
        for p in loop.model.parameters():
            p.grad /= 1024
        loop.optimizer.step()
        loop.optimizer.zero_grad()

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


def checkpointed(loop):
    """The whole model is recomputed in the backward."""

    def update(batch):
        mse_loss(checkpoint(loop.model, batch[0], use_reentrant=False), batch[1]).backward()
        for p in loop.model.parameters():
            dist.all_reduce(p.grad)
            p.grad /= 2
        loop.optimizer.step()
        loop.optimizer.zero_grad()

    loop.watch.attach(loop.model, loop.optimizer, loop.loader)
    loop.train(update=update)


class Queue(nn.Module):
    """Keeps what it was given, and subtracts its mean: its buffer changes in each call."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(8))

    def forward(self, x):
        out = x - self.mean
        if self.training:
            self.mean.copy_(0.5 * self.mean + 0.5 * x.detach().mean(0))
        return out


def own_buffers(loop, how):
    """The model writes its buffers in each call, and they are in its loss."""
    if how == "spectral":
        torch.nn.utils.parametrizations.spectral_norm(loop.model[0])
    else:
        loop.model[1] = Queue()
    loop.wrapped = DistributedDataParallel(loop.model, broadcast_buffers=False)
    loop.optimizer = torch.optim.SGD(loop.model.parameters(), lr=loop.plan.lr)
    loop.watch.attach(loop.wrapped, loop.optimizer, loop.loader)
    loop.train()


def dcgan(loop, attached="critic"):
    """The critic's step, then the generator's, whose gradients in the critic are cleared with its next own."""
    torch.manual_seed(0)
    generator, critic = (DistributedDataParallel(nn.Linear(*size)) for size in ((2, 6), (6, 1)))
    generates, criticizes = (torch.optim.SGD(m.parameters(), loop.plan.lr) for m in (generator, critic))
    torch.manual_seed(loop.rank)
    if attached != "generator":
        loop.watch.attach(critic, criticizes, loop.loader)
    else:
        loop.watch.attach(generator, generates, loop.loader)

    def update(batch):
        criticizes.zero_grad()
        softplus(-critic(batch[0])).mean().backward()
        fake = generator(torch.randn(len(batch[0]), 2))
        softplus(critic(fake.detach())).mean().backward()
        criticizes.step()
        generates.zero_grad()
        softplus(-critic(fake)).mean().backward()
        generates.step()

    loop.train(update=update)


def main(plan, guard, folder, *, loop, normed=False, **options):
    """Runs one of them."""
    globals()[loop](Loop(plan, guard, folder, normed=normed), **options)
