"""Healthy loops that use the model or its gradients beside the step: measures, adversaries, copies, files."""

import copy
import itertools
import pickle

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import mse_loss, softplus
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from guard.scripts.between import Loop, loss_of, measured


def backward_to_inputs(loop, when):
    """The gradient of an input, such as a saliency map; the weights' gradients are cleared."""

    def look(*_):
        x = loop.data[:8][0].requires_grad_()
        loop.model(x).sum().backward()
        assert x.grad is not None
        loop.optimizer.zero_grad()

    loop.train(**{when: look})


def fisher(loop):
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
        twin = copy.deepcopy(loop.model)
        optimizer = torch.optim.SGD(twin.parameters(), lr=0.1)
        for batch in itertools.islice(loop.loader, 2):
            loss_of(twin, batch).backward()
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


def scaled_by_hand(loop):
    """The loss is multiplied, and the gradients are divided."""

    def update(batch):
        (1024 * loss_of(loop.wrapped, batch)).backward()
        for p in loop.model.parameters():
            p.grad /= 1024
        loop.optimizer.step()
        loop.optimizer.zero_grad()

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
    """The critic's step, then the generator's; its gradients in the critic are cleared a step later."""
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


def main(plan, guard, folder, *, loop, **options):
    """Runs one of them."""
    globals()[loop](Loop(plan, guard, folder), **options)
