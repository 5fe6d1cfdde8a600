"""Healthy loops of other forms than "for batch in loader": adversaries, episodes, several loaders."""

import itertools

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import logsigmoid, mse_loss
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from guard.scripts.parts import Rollouts


def net(inputs, outputs):
    """A small model, wrapped."""
    return DistributedDataParallel(nn.Sequential(nn.Linear(inputs, 8), nn.Tanh(), nn.Linear(8, outputs)))


def loader_of(size, micro_batch, seed=0):
    """A loader over samples of this size, each rank's its own."""
    draw = torch.Generator().manual_seed(seed)
    data = TensorDataset(torch.randn(size, 6, generator=draw), torch.randn(size, 2, generator=draw))
    return DataLoader(data, micro_batch, sampler=DistributedSampler(data))


def epochs(loader):
    """Batches without an end."""
    for epoch in itertools.count():
        loader.sampler.set_epoch(epoch)
        yield from loader


class Steps:
    """An optimizer by the plan."""

    def __init__(self, plan, model):
        self.optimizer = torch.optim.SGD(model.parameters(), lr=plan.lr)
        self.scheduler = torch.optim.lr_scheduler.LambdaLR(
            self.optimizer, lambda step: plan.lr_at(step) / plan.lr
        )

    def __call__(self, loss):
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.scheduler.step()


def wgan(plan, guard, attached):
    """Five steps of the critic, on detached samples, for one of the generator."""
    generator, critic, loader = net(3, 6), net(6, 1), loader_of(96, plan.micro_batch)
    generates, criticizes = Steps(plan, generator), Steps(plan, critic)
    if attached == "generator":
        watch = guard(plan).attach(generator, generates.optimizer)
    else:
        watch = guard(plan).attach(critic, criticizes.optimizer, loader)
    batches = epochs(loader)
    for step in range(plan.total_steps):
        for _ in range(5 if attached == "generator" else 1):
            real, _ = next(batches)
            fake = generator(torch.randn(len(real), 3)).detach()
            criticizes(critic(fake).mean() - critic(real).mean())
        if attached == "generator" or step % 5 == 4:
            generates(-critic(generator(torch.randn(plan.micro_batch, 3))).mean())
    watch.finish()


def gan(plan, guard):
    """The discriminator steps on real samples, then on others."""
    generator, critic, loader = net(3, 6), net(6, 1), loader_of(96, plan.micro_batch)
    generates, criticizes = Steps(plan, generator), Steps(plan, critic)
    watch = guard(plan).attach(critic, criticizes.optimizer, loader)
    for real, _ in itertools.islice(epochs(loader), plan.total_steps // 2):
        criticizes(-logsigmoid(critic(real)).mean())
        fake = generator(torch.randn(len(real), 3))
        criticizes(-logsigmoid(-critic(fake.detach())).mean())
        generates(-logsigmoid(critic(fake)).mean())
    watch.finish()


def reinforce(plan, guard):
    """An episode calls the policy for each of its actions; one without a reward makes no step."""
    policy = net(6, 2)
    steps = Steps(plan, policy)
    watch = guard(plan).attach(policy, steps.optimizer)
    for episode in range(plan.total_steps):
        if episode % 4 == 3:
            [policy(torch.randn(1, 6)) for _ in range(60)]
            continue
        chosen = [policy(torch.randn(1, 6)).log_softmax(1)[0, action % 2] for action in range(5 + episode)]
        steps(-torch.stack(chosen).mean())
    watch.finish()


def in_turn(plan, guard, attached=False):
    """Batches of two data sets in turn: none is attached, or the first, by whose size the run is planned."""
    model, first = net(6, 2), loader_of(48, plan.micro_batch)
    second, steps = loader_of(48, plan.micro_batch, seed=1), Steps(plan, model)
    watch = guard(plan, loss=lambda model, batch: mse_loss(model(batch[0]), batch[1]))
    watch.attach(model, steps.optimizer, first if attached else None)
    batches = itertools.chain.from_iterable(zip(epochs(first), epochs(second), strict=False))
    for x, y in itertools.islice(batches, plan.total_steps):
        steps(mse_loss(model(x), y))
    watch.finish()


def zipped(plan, guard):
    """Labeled and unlabeled samples together."""
    model, labeled = net(6, 2), loader_of(96, plan.micro_batch)
    unlabeled, steps = loader_of(300, 2 * plan.micro_batch, seed=1), Steps(plan, model)
    watch = guard(plan).attach(model, steps.optimizer, labeled)
    for (x, y), (u, _) in itertools.islice(
        zip(epochs(labeled), epochs(unlabeled), strict=False), plan.total_steps
    ):
        steps(mse_loss(model(x), y) + 0.1 * model(u).square().mean())
    watch.finish()


def unfrozen(plan, guard):
    """The first layer is unfrozen after an epoch, and the model wrapped anew."""
    model, loader = (
        nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 2)),
        loader_of(96, plan.micro_batch),
    )
    model[0].requires_grad_(False)
    wrapped, steps = DistributedDataParallel(model), Steps(plan, model)
    watch = guard(plan, loss=lambda model, batch: mse_loss(model(batch[0]), batch[1]))
    watch.attach(wrapped, steps.optimizer, loader)
    for step, (x, y) in enumerate(itertools.islice(epochs(loader), plan.total_steps)):
        if step == plan.steps_per_epoch:
            model[0].requires_grad_(True)
            wrapped = DistributedDataParallel(model)
        steps(mse_loss(wrapped(x), y))
    watch.finish()


def fetched_ahead(plan, guard, passes):
    """A step's micro-batches are fetched ahead, and the model is called twice for each, with a backward pass
    or two.
    """
    model, loader = net(6, 2), loader_of(96, plan.micro_batch)
    optimizer = Steps(plan, model).optimizer
    watch = guard(plan, loss=lambda model, batch: mse_loss(model(batch[0]), batch[1]))
    watch.attach(model, optimizer, loader)
    batches = epochs(loader)
    for _ in range(plan.total_steps):
        for x, y in list(itertools.islice(batches, plan.accumulation)):
            losses = [mse_loss(model(x), y) / plan.accumulation / 2]
            if passes == 2:
                losses.pop().backward()
            losses.append(mse_loss(model(x), y) / plan.accumulation / 2)
            sum(losses).backward()
        optimizer.step()
        optimizer.zero_grad()
    watch.finish()


def rollouts(plan, guard):
    """Completions of repeated prompts: a batch of the loader is made once, and then cut into the step's
    micro-batches.
    """
    model, size = net(6, 2), plan.micro_batch * plan.accumulation
    data = TensorDataset(torch.randn(plan.recipe.dataset_size // 4, 6))
    sampler = Rollouts(len(data), 4, size, plan.accumulation)
    loader, optimizer = DataLoader(data, batch_sampler=sampler), Steps(plan, model).optimizer
    watch = guard(plan).attach(model, optimizer, loader)
    for _ in range(plan.total_steps // plan.steps_per_epoch):
        for index, (prompts,) in enumerate(loader):
            part = index % plan.accumulation
            if part == 0:
                completions = prompts + torch.randn_like(prompts)
            x = completions[part * plan.micro_batch :][: plan.micro_batch]
            (model(x).square().mean() / plan.accumulation).backward()
            if part == plan.accumulation - 1:
                optimizer.step()
                optimizer.zero_grad()
    watch.finish()


def main(plan, guard, folder, *, loop, **options):
    """Runs one of them."""
    torch.manual_seed(dist.get_rank())
    globals()[loop](plan, guard, **options)
