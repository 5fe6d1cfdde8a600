"""A stream, samplers, batches, optimizers and changes to gradients, as healthy loops have them."""

import random

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import mse_loss
from torch.utils.data import IterableDataset, Sampler, get_worker_info

SHARDS, RECORDS = 16, 60


class Stream(IterableDataset):
    """Records of this rank's and this worker's shards, without an end, by way of a shuffle buffer."""

    def __iter__(self):
        info = get_worker_info()
        workers, worker = (info.num_workers, info.id) if info else (1, 0)
        shards = range(SHARDS)[dist.get_rank() * workers + worker :: dist.get_world_size() * workers]
        chance, buffer = random.Random(shards[0]), []
        while True:
            for shard in shards:
                draw = torch.Generator().manual_seed(shard)
                for _ in range(RECORDS):
                    record = torch.randn(6, generator=draw), torch.randn(2, generator=draw)
                    if len(buffer) < 20:
                        buffer.append(record)
                        continue
                    at = chance.randrange(20)
                    yield buffer[at]
                    buffer[at] = record


class Sized:
    """A batch sampler with sizes for each rank, as for unequal devices."""

    def __init__(self, plan, samples):
        self.sizes = [[int(n) for n in plan.micro_batches(rank)] for rank in range(plan.data_parallel)]
        self.step, self.rounds = sum(map(sum, self.sizes)), samples // sum(map(sum, self.sizes))

    def __iter__(self):
        rank = dist.get_rank()
        for turn in range(self.rounds):
            at = turn * self.step + sum(map(sum, self.sizes[:rank]))
            for n in self.sizes[rank]:
                yield list(range(at, at + n))
                at += n

    def __len__(self):
        return self.rounds * len(self.sizes[dist.get_rank()])


class Own(Sampler):
    """A sampler of the script's own.

    `weighted` draws by weights, with replacement; `curriculum` goes from easy to hard samples in every epoch;
    `repeated` and `augmented` give augmentations of a sample to several ranks, the latter to all at the same
    time.
    """

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
        if self.kind == "augmented":  # each rank has another view of the same samples
            order = torch.randperm(self.samples, generator=generator.manual_seed(self.epoch))
            return iter(order[: len(self)].tolist())
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


class WarmsUp(torch.optim.SGD):
    """Warms up inside its step, as schedule-free optimizers do; `lr` stays constant."""

    def __init__(self, params, lr, warmup_steps):
        super().__init__(params, lr)
        self.steps = 0
        for group in self.param_groups:
            group["warmup_steps"] = warmup_steps

    def step(self, closure=None):
        self.steps += 1
        rates = [group["lr"] for group in self.param_groups]
        for group, rate in zip(self.param_groups, rates, strict=True):
            group["lr"] = rate * min(1, self.steps / (group["warmup_steps"] or 1))
        super().step()
        for group, rate in zip(self.param_groups, rates, strict=True):
            group["lr"] = rate


class Labeled(nn.Module):
    """Returns its mean loss where it is given labels, else its output."""

    def __init__(self, layers):
        super().__init__()
        self.layers = layers

    def forward(self, x, labels=None):
        output = self.layers(x)
        return output if labels is None else mse_loss(output, labels)


class Rollouts(Sampler):
    """Gives each prompt for all of its completions, and each batch once for every micro-batch cut out of it,
    as TRL's GRPO.
    """

    def __init__(self, prompts, completions, size, repeats):
        self.prompts, self.completions, self.size, self.repeats = prompts, completions, size, repeats

    def __len__(self):
        return self.prompts * self.completions * self.repeats

    def __iter__(self):
        order = torch.randperm(self.prompts).repeat_interleave(self.completions).tolist()
        rank, world = dist.get_rank(), dist.get_world_size()
        for start in range(rank * self.size, len(order), world * self.size):
            for _ in range(self.repeats):
                yield order[start : start + self.size]


class Pair:
    """A batch of a class of one's own."""

    def __init__(self, rows):
        self.both = [torch.stack(column) for column in zip(*rows, strict=True)]

    def __getitem__(self, at):
        return self.both[at] if at in (0, 1) else NotImplemented


def changed(kind, model):
    """Changes gradients between backward and step, as some scripts do."""
    for p in model.parameters():
        if kind == "noise":
            p.grad += 0.1 * torch.ones_like(p.grad)
        elif kind == "centralized" and p.grad.dim() > 1:
            p.grad -= p.grad.mean(1, keepdim=True)
        elif kind == "dp_sgd":
            p.grad = mean(p.per_sample.sum(0) / len(p.per_sample)) + 0.01 * torch.ones_like(p)


def mean(grad):
    dist.all_reduce(grad)
    return grad / dist.get_world_size()


def quantized(state, bucket):
    """A communication hook with 8 bits of each element."""
    scale = bucket.buffer().abs().max() / 127
    sent = (bucket.buffer() / scale).round() * scale / dist.get_world_size()
    return dist.all_reduce(sent, async_op=True).get_future().then(lambda future: future.value()[0])


def per_sample(model, batch):
    """DP-SGD: the gradient of each sample, clipped."""
    names, params = zip(*model.named_parameters(), strict=True)

    def one(params, x, y):
        return mse_loss(torch.func.functional_call(model, dict(zip(names, params, strict=True)), (x,)), y)

    sample_grads = torch.func.vmap(torch.func.grad(one), (None, 0, 0))(
        tuple(p.detach() for p in params), *batch
    )
    norms = sum(g.flatten(1).square().sum(1) for g in sample_grads).sqrt()
    for p, g in zip(params, sample_grads, strict=True):
        p.per_sample = g * (1 / norms).clamp(max=1).view(-1, *[1] * (g.dim() - 1))


def clip_by_shard(model, bound):
    """Clips by the norm of each rank's part."""
    grads = [getattr(p.grad, "_local_tensor", p.grad) for p in model.parameters() if p.grad is not None]
    norm = nn.utils.get_total_norm(grads)
    [g.mul_((bound / norm).clamp(max=1)) for g in grads]
