"""Healthy loops of other kinds, in one file: several calls of the model for a batch, passes without training, gradients and losses that are
changed on purpose, samplers of one's own."""

import contextlib
import copy

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel
from torch.optim.swa_utils import SWALR, update_bn
from torch.utils.data import DataLoader, DistributedSampler, Sampler, TensorDataset


class Own(Sampler):
    """A sampler of one's own: `weighted` draws by weights, with replacement; `curriculum` goes from easy to hard samples in every epoch;
    `repeated` gives augmentations of a sample to several ranks."""

    def __init__(self, kind, data):
        self.kind, self.samples, self.epoch = kind, len(data), 0

    def __len__(self):
        return self.samples // dist.get_world_size()

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        rank, world, generator = dist.get_rank(), dist.get_world_size(), torch.Generator()
        if self.kind == "weighted":
            weights = torch.arange(self.samples) % 3 + 1.0
            generator.manual_seed(100 * self.epoch + rank)
            return iter(torch.multinomial(weights, len(self), replacement=True, generator=generator).tolist())
        if self.kind == "curriculum":
            return iter([(7 * at) % self.samples for at in range(rank, self.samples, world)])
        order = torch.randperm(self.samples, generator=generator.manual_seed(self.epoch))
        return iter(order.repeat_interleave(3)[rank : self.samples : world].tolist())


class ByTokens:
    """Batches of about as many tokens: of different numbers of samples."""

    def __init__(self, data, size):
        self.samples, self.size, self.epoch = len(data), size, 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __len__(self):
        return self.samples // self.size // dist.get_world_size()

    def __iter__(self):
        generator = torch.Generator().manual_seed(self.epoch)
        order = torch.randperm(self.samples, generator=generator).tolist()[
            dist.get_rank() :: dist.get_world_size()
        ]
        sizes = [self.size - 1, self.size + 1] * (len(self) // 2)
        for size in sizes:
            yield order[:size]
            del order[:size]


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


class Lookahead(torch.optim.Optimizer):
    """Every second step goes half of the way back to where the last such step ended."""

    def __init__(self, params, lr):
        super().__init__(params, {"lr": lr})
        self.base, self.steps = torch.optim.SGD(self.param_groups, lr=lr), 0
        self.param_groups = self.base.param_groups
        self.slow = [p.detach().clone() for p in self.param_groups[0]["params"]]

    @torch.no_grad()
    def step(self, closure=None):
        self.base.step()
        self.steps += 1
        for p, slow in zip(self.param_groups[0]["params"], self.slow, strict=True):
            if self.steps % 2 == 0:
                p.copy_(slow.lerp_(p, 0.5))


class Pair:
    """A batch of a class of one's own."""

    def __init__(self, rows):
        self.both = [torch.stack(column) for column in zip(*rows, strict=True)]

    def __getitem__(self, at):
        return self.both[at] if at in (0, 1) else NotImplemented


def changed(kind, model):
    """What some scripts do to gradients between backward and step."""
    for p in model.parameters():
        if kind == "noise":
            p.grad += 0.1 * torch.ones_like(p.grad)
        elif kind == "centralized" and p.grad.dim() > 1:
            p.grad -= p.grad.mean(1, keepdim=True)
        elif kind == "dp_sgd":
            p.grad = dist_mean(p.per_sample.sum(0) / len(p.per_sample)) + 0.01 * torch.ones_like(p)


def dist_mean(grad):
    dist.all_reduce(grad)
    return grad / dist.get_world_size()


def quantized(state, bucket):
    """A communication hook that sends 8 bits of each element."""
    scale = bucket.buffer().abs().max() / 127
    sent = (bucket.buffer() / scale).round() * scale / dist.get_world_size()
    return dist.all_reduce(sent, async_op=True).get_future().then(lambda future: future.value()[0])


def per_sample(model, batch):
    """DP-SGD: the gradient of each sample, clipped."""
    names, params = zip(*model.named_parameters(), strict=True)

    def one(params, x, y):
        return mse_loss(torch.func.functional_call(model, dict(zip(names, params, strict=True)), (x,)), y)

    found = torch.func.vmap(torch.func.grad(one), (None, 0, 0))(tuple(p.detach() for p in params), *batch)
    norms = sum(g.flatten(1).square().sum(1) for g in found).sqrt()
    for p, g in zip(params, found, strict=True):
        p.per_sample = g * (1 / norms).clamp(max=1).view(-1, *[1] * (g.dim() - 1))


def main(plan, guard, folder, *, kind):
    """Trains for the plan's epochs."""
    rank = dist.get_rank()
    torch.manual_seed(0)
    size = plan.recipe.dataset_size or 96
    data = TensorDataset(torch.randn(size, 6), torch.randn(size, 2))
    own = kind in ("weighted", "curriculum", "repeated")
    sampler = Own(kind, data) if own else DistributedSampler(data)
    loader = DataLoader(data, plan.micro_batch, sampler=sampler)
    if kind == "tokens":
        sampler = ByTokens(data, plan.micro_batch)
        loader = DataLoader(data, batch_sampler=sampler)
    if kind == "objects":
        loader = DataLoader(data, plan.micro_batch, sampler=sampler, collate_fn=Pair)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 2))
    teacher = nn.Sequential(nn.Dropout(0.5), copy.deepcopy(model))
    wrapped = model if kind == "all_reduce" else DistributedDataParallel(model)
    if kind == "quantized":
        wrapped.register_comm_hook(None, quantized)
    torch.manual_seed(rank)
    optimizers = {"sam": SAM, "lookahead": Lookahead}
    optimizer = optimizers.get(kind, torch.optim.SGD)(wrapped.parameters(), lr=plan.lr)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: plan.lr_at(step) / plan.lr)
    if kind == "swa":
        averaged = SWALR(optimizer, plan.lr / 3, anneal_epochs=2)

    def loss_of(model, batch):
        if kind == "teacher":
            with torch.no_grad():
                wanted = teacher(batch[0])
            return mse_loss(model(batch[0]), wanted)
        calls = 2 if kind == "views" else 1
        return sum(mse_loss(model(batch[0]), batch[1]) for _ in range(calls)) / calls

    def trained(batch):
        loss = loss_of(wrapped, batch)
        if kind == "l2":
            loss = loss + 0.01 * sum(p.square().sum() for p in model.parameters())
        return loss

    watch = guard(plan, loss=loss_of).attach(wrapped, optimizer, loader)
    if kind == "warmed_up":
        wrapped(torch.randn(1, 6))
    if kind == "evaluated_first":
        with torch.no_grad():
            [wrapped(x) for x, _ in loader]
    autocast = torch.autocast("cpu", torch.bfloat16, enabled=kind == "autocast")
    for epoch in range(3):
        sampler.set_epoch(epoch)
        for index, batch in enumerate(loader):

            def closure(batch=batch):
                optimizer.zero_grad()
                loss = loss_of(wrapped, batch)
                loss.backward()
                return loss

            last = (index + 1) % plan.accumulation == 0 or index + 1 == len(loader)
            with contextlib.nullcontext() if last or kind == "all_reduce" else wrapped.no_sync(), autocast:
                loss = trained(batch) / plan.accumulation
            loss.backward()
            if kind == "dp_sgd":
                per_sample(model, batch)
            if not last:
                continue
            if kind == "all_reduce":
                for p in model.parameters():
                    p.grad = dist_mean(p.grad)
            if kind == "sam_by_hand":
                own = [(p, 0.05 * p.grad.sign()) for p in model.parameters()]
                with torch.no_grad():
                    [p.add_(by) for p, by in own]
                closure()
                with torch.no_grad():
                    [p.sub_(by) for p, by in own]
            changed(kind, model)
            if plan.recipe.clip_norm:
                nn.utils.clip_grad_norm_(model.parameters(), plan.recipe.clip_norm)
            optimizer.step(*([closure] if kind == "sam" else []))
            (averaged if kind == "swa" and epoch else scheduler).step()
            optimizer.zero_grad()
    if kind == "update_bn":
        update_bn([x for x, _ in loader], model)
        update_bn(loader, model)
    watch.finish()
