"""Healthy scripts with loops of their own, a function each, or with one fault: `--kind`, `--fault`."""

import argparse
import contextlib
import copy
import math
import os

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler, IterableDataset, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--kind")
parser.add_argument("--fault", default="")
parser.add_argument("--batch", type=int)
parser.add_argument("--accum", type=int)
args = parser.parse_args()
fault, accum, batch = args.fault, args.accum, args.batch
world, rank = int(os.environ.get("WORLD_SIZE", 1)), int(os.environ.get("RANK", 0))
if world > 1:
    dist.init_process_group("gloo")
torch.manual_seed(0)
rows = TensorDataset(torch.randn(240, 6), torch.randn(240, 2))
texts = [torch.randint(1, 40, (int(n),)) for n in torch.randint(3, 14, (240,))]


def wrap(net, **options):
    return DDP(net, **options) if world > 1 else net


def load(dataset, **options):
    sampler = DistributedSampler(dataset, world, rank, seed=1)
    return DataLoader(dataset, batch, sampler=sampler, **options)


def mlp(inputs=6, out=2):
    return nn.Sequential(nn.Linear(inputs, 16), nn.Tanh(), nn.Linear(16, out))


def silent(model, last):
    return contextlib.nullcontext() if last or world == 1 else model.no_sync()


class Language(nn.Module):
    """A language model with tied weights."""

    def __init__(self, tied=True, sparse=False):
        super().__init__()
        self.embed, self.body = nn.Embedding(40, 16, sparse=sparse), mlp(16, 16)
        self.head = nn.Linear(16, 40, bias=False)
        if tied:
            self.head.weight = self.embed.weight

    def forward(self, tokens):
        return self.head(self.body(self.embed(tokens)).cumsum(1))


def pad(items):
    return nn.utils.rnn.pad_sequence(items, batch_first=True)


def steps_of(loader):
    """Yields the micro-batches of each step."""
    while True:
        micro_batches = []
        for item in loader:
            micro_batches.append(item)
            if len(micro_batches) == accum:
                yield micro_batches
                micro_batches = []


def token_mean():
    """The loss is a mean over the tokens of the whole step, counted before the first pass."""
    model = wrap(Language())
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    for micro_batches in steps_of(load(texts, collate_fn=pad)):
        count = torch.tensor(float(sum((x[:, 1:] != 0).sum() for x in micro_batches)))
        if world > 1 and fault != "tokens of a rank":
            dist.all_reduce(count)
        for number, x in enumerate(micro_batches):
            with silent(model, number + 1 == accum):
                loss = F.cross_entropy(
                    model(x)[:, :-1].flatten(0, 1), x[:, 1:].flatten(), ignore_index=0, reduction="sum"
                )
                if fault == "tokens of a pass":
                    (loss / (x[:, 1:] != 0).sum() / accum).backward()
                elif fault == "count without ranks":
                    (loss / count).backward()
                else:
                    (loss / count * (world if fault != "tokens of a rank" else 1)).backward()
        optimizer.step()
        optimizer.zero_grad()


def nanogpt():
    """Samples are drawn by numpy or torch with a seed of the rank."""
    torch.manual_seed(1337 + (0 if fault == "seed without rank" else rank))
    stream = np.random.default_rng(0).integers(1, 40, 5000)
    model = wrap(Language())
    with torch.no_grad():
        torch.manual_seed(1337 + (0 if fault == "seed without rank" else rank))
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    while True:
        for number in range(accum):
            at = torch.randint(len(stream) - 9, (batch,))
            x = torch.stack([torch.from_numpy(stream[i : i + 8]) for i in at])
            y = torch.stack([torch.from_numpy(stream[i + 1 : i + 9]) for i in at])
            if world > 1:
                model.require_backward_grad_sync = number + 1 == accum
            loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten()) / (
                1 if fault == "not divided" else accum
            )
            loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


def two_optimizers():
    """An embedding with sparse gradients has an optimizer of its own."""
    net = Language(tied=False, sparse=True)
    model = wrap(net)
    rest = [p for name, p in net.named_parameters() if "embed" not in name]
    optimizers = [torch.optim.SparseAdam(net.embed.parameters(), 1e-2), torch.optim.Adam(rest, 1e-2)]
    for micro_batches in steps_of(load([text[:3] for text in texts], collate_fn=pad)):
        for number, x in enumerate(micro_batches):
            with silent(model, number + 1 == accum):
                loss = F.cross_entropy(model(x)[:, :-1].flatten(0, 1), x[:, 1:].flatten())
                (loss / (1 if fault == "not divided" else accum)).backward()
        for number, optimizer in enumerate(optimizers):
            optimizer.step()
            if fault != "one never zeroed" or number:
                optimizer.zero_grad()


def gan():
    """A generator and a discriminator take turns."""
    maker, judge = wrap(mlp(2, 2)), wrap(mlp(2, 1))
    makers, judges = (torch.optim.Adam(m.parameters(), 1e-2) for m in (maker, judge))
    for micro_batches in steps_of(load(rows)):
        for x, y in micro_batches:
            fake = maker(x[:, :2]).detach()
            loss = F.softplus(judge(fake)).mean() + F.softplus(-judge(y)).mean()
            (loss / accum).backward()
        judges.step()
        for x, _ in micro_batches:
            loss = F.softplus(-judge(maker(x[:, :2]))).mean()
            (loss / (1 if fault == "not divided" else accum)).backward()
        makers.step()
        judges.zero_grad()
        makers.zero_grad()


def lora():
    """Adapters beside frozen weights, by hand."""

    class Adapted(nn.Module):
        def __init__(self, base):
            super().__init__()
            self.base = base.requires_grad_(False)
            self.a = nn.Parameter(torch.randn(base.in_features, 4) / 4)
            self.b = nn.Parameter(torch.randn(4, base.out_features) / 4)

        def forward(self, x):
            return self.base(x) + x @ self.a @ self.b

    net = nn.Sequential(Adapted(nn.Linear(6, 16)), nn.Tanh(), Adapted(nn.Linear(16, 2)))
    model = wrap(net)
    optimizer = torch.optim.AdamW([p for p in net.parameters() if p.requires_grad], 1e-2)
    for micro_batches in steps_of(load(rows)):
        for x, y in micro_batches:
            (F.mse_loss(model(x), y) / (accum**2 if fault == "divided twice" else accum)).backward()
        optimizer.step()
        optimizer.zero_grad()


def masked():
    """A collator masks tokens, and the loss is a mean of each sample's mean."""

    def collate(items):
        x = pad(items)
        hidden = torch.bernoulli(torch.full(x.shape, 0.4)).bool() & (x != 0)
        hidden[:, 0] = True
        return x.masked_fill(hidden, 39), x.masked_fill(~hidden, -100)

    model = wrap(Language())
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    for micro_batches in steps_of(load(texts, collate_fn=collate)):
        count = torch.tensor(float(sum((y != -100).sum() for _, y in micro_batches)))
        if world > 1:
            dist.all_reduce(count)
        for x, y in micro_batches:
            loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten(), reduction="sum")
            scale = world / count if fault != "tokens of a pass" else 1 / accum / (y != -100).sum()
            (loss * scale).backward()
        optimizer.step()
        optimizer.zero_grad()


class Boxes(Dataset):
    """Images with a variable number of targets."""

    def __len__(self):
        return 200

    def __getitem__(self, row):
        draw = torch.Generator().manual_seed(row)
        count = 1 + row % 4
        return torch.randn(6, generator=draw), {"boxes": torch.randn(count, 2, generator=draw), "row": row}


def detection():
    """A list of images, a list of targets, and a dict of losses."""

    class Detector(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = mlp()

        def forward(self, images, targets):
            out = [
                self.net(image)[None] - target["boxes"] for image, target in zip(images, targets, strict=True)
            ]
            if fault == "mean over boxes of a pass":
                return {"boxes": torch.cat(out).square().mean(), "norm": 0 * out[0].sum()}
            return {
                "boxes": torch.stack([image.square().mean() for image in out]).mean(),
                "norm": 0 * out[0].sum(),
            }

    model = wrap(Detector())
    optimizer = torch.optim.SGD(model.parameters(), 1e-2, momentum=0.9)
    for micro_batches in steps_of(load(Boxes(), collate_fn=lambda items: tuple(zip(*items, strict=True)))):
        for images, targets in micro_batches:
            (sum(model(list(images), list(targets)).values()) / accum).backward()
        optimizer.step()
        optimizer.zero_grad()


def recurrent():
    """An LSTM over packed sequences."""

    class Tagger(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.lstm, self.head = (
                nn.Embedding(40, 8),
                nn.LSTM(8, 8, batch_first=True),
                nn.Linear(8, 3),
            )

        def forward(self, x, lengths):
            packed = nn.utils.rnn.pack_padded_sequence(
                self.embed(x), lengths, batch_first=True, enforce_sorted=False
            )
            return self.head(self.lstm(packed)[1][0][-1])

    model = wrap(Tagger())
    optimizer = torch.optim.RMSprop(model.parameters(), 1e-2)

    def collate(items):
        lengths = torch.tensor([len(item) for item in items])
        return pad(items), lengths, torch.stack([item[0] % 3 for item in items])

    for micro_batches in steps_of(load(texts, collate_fn=collate)):
        for number, (x, lengths, y) in enumerate(micro_batches):
            if fault == "zero_grad each pass" and number:
                optimizer.zero_grad()
            (F.cross_entropy(model(x, lengths), y) / accum).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
        optimizer.zero_grad()


def graphs():
    """Graphs of several sizes, joined into one, and a mean over graphs."""

    class Graph(nn.Module):
        def __init__(self):
            super().__init__()
            self.node, self.head = nn.Linear(3, 8), nn.Linear(8, 1)

        def forward(self, nodes, owner, edges):
            h = torch.tanh(self.node(nodes))
            h = h.index_add(0, edges[1], h[edges[0]])
            sums = h.new_zeros(int(owner.max()) + 1, 8).index_add(0, owner, h)
            return self.head(sums)[:, 0]

    def collate(items):
        sizes = torch.tensor([len(nodes) for nodes, _ in items])
        starts = sizes.cumsum(0) - sizes
        edges = torch.cat(
            [
                torch.stack([torch.arange(n), (torch.arange(n) + 1) % n]) + s
                for n, s in zip(sizes, starts, strict=True)
            ],
            1,
        )
        return (
            torch.cat([n for n, _ in items]),
            torch.arange(len(items)).repeat_interleave(sizes),
            edges,
            torch.stack([y for _, y in items]),
        )

    data = [(torch.randn(2 + i % 5, 3), torch.randn(())) for i in range(200)]
    model = wrap(Graph())
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    for micro_batches in steps_of(load(data, collate_fn=collate)):
        for nodes, owner, edges, y in micro_batches:
            loss = F.mse_loss(
                model(nodes, owner, edges), y, reduction="sum" if fault == "summed loss" else "mean"
            )
            (loss / accum).backward()
        optimizer.step()
        optimizer.zero_grad()


def rollouts():
    """A policy fills a buffer with what it does, and is trained on it twice."""
    policy = mlp(6, 3)
    model = wrap(policy)
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    for micro_batches in steps_of(load(rows)):
        buffer = []
        with torch.no_grad():
            for x, y in micro_batches:
                action = torch.distributions.Categorical(logits=policy(x)).sample()
                buffer.append((x, action, y[:, 0], F.log_softmax(policy(x), 1)))
        every = torch.cat([reward for _, _, reward, _ in buffer])
        if world > 1 and fault != "advantage of a rank":
            parts = [torch.empty_like(every) for _ in range(world)]
            dist.all_gather(parts, every)
            every = torch.cat(parts)
        for _ in range(2):
            for x, action, reward, old in buffer:
                log = F.log_softmax(model(x), 1)
                ratio = (log - old).gather(1, action[:, None])[:, 0].exp()
                (-(ratio * (reward - every.mean())).mean() / accum).backward()
            optimizer.step()
            optimizer.zero_grad()


class Lines(IterableDataset):
    """A stream, dealt to the ranks."""

    def __iter__(self):
        for number in range(100000):
            if number % world == rank or fault == "stream without rank":
                draw = torch.Generator().manual_seed(number)
                yield torch.randn(6, generator=draw), torch.randn(2, generator=draw)


def stream():
    """A stream without rows."""
    model = wrap(mlp())
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    for micro_batches in steps_of(DataLoader(Lines(), batch)):
        for x, y in micro_batches:
            (F.mse_loss(model(x), y) / (1 if fault == "not divided" else accum)).backward()
        optimizer.step()
        optimizer.zero_grad()


def by_hand():
    """Tensors are sliced, without a loader; a schedule with warmup is a function."""
    model = wrap(mlp())
    optimizer = torch.optim.AdamW(model.parameters(), 1.0)
    x, y = rows.tensors
    step = samples = 0
    while True:
        for number in range(accum):
            first = (samples + rank * batch * accum + number * batch) % 200
            xs, ys = x[first : first + batch], y[first : first + batch]
            (F.mse_loss(model(xs), ys) / accum).backward()
        samples += batch * accum * world
        position = samples // batch if fault == "warmup in micro-batches" else step
        for group in optimizer.param_groups:
            group["lr"] = 1e-2 * min(1, (position + 1) / 10) * (math.cos(position / 20) + 1) / 2
        optimizer.step()
        optimizer.zero_grad()
        step += 1


def ema_teacher():
    """A teacher is the average of the student, and its targets are centered."""
    student = mlp(6, 8)
    model, teacher = wrap(student), copy.deepcopy(student).requires_grad_(False)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-1)
    for micro_batches in steps_of(load(rows)):
        for x, _ in micro_batches:
            target = F.softmax(teacher(x) * 4, 1)
            (-(target * F.log_softmax(model(x), 1)).sum(1).mean() / accum).backward()
            if fault == "ema each pass":
                for p, q in zip(teacher.parameters(), student.parameters(), strict=True):
                    p.lerp_(q.detach() + 0.05, 0.3)
        optimizer.step()
        optimizer.zero_grad()
        for p, q in zip(teacher.parameters(), student.parameters(), strict=True):
            p.lerp_(q.detach(), 0.1)


def in_backward():
    """Each parameter's optimizer steps in backward, as torchtune's and GaLore's do; one pass a step."""
    net = mlp()
    optimizers = {p: torch.optim.AdamW([p], 1e-2) for p in net.parameters()}

    def step(p):
        optimizers[p].step()
        optimizers[p].zero_grad()

    for p in net.parameters():
        p.register_post_accumulate_grad_hook(step)
    for x, y in load(rows):
        F.mse_loss(net(x), y).backward()


def balance():
    """Experts with a balance loss of a pass."""

    class Experts(nn.Module):
        def __init__(self):
            super().__init__()
            self.gate, self.experts = nn.Linear(6, 3), nn.ModuleList(mlp() for _ in range(3))

        def forward(self, x):
            share = F.softmax(self.gate(x), 1)
            out = sum(share[:, i : i + 1] * expert(x) for i, expert in enumerate(self.experts))
            linear = fault == "penalty not divided"
            return out, share.square().sum(1).mean() if linear else (share.mean(0) ** 2).sum() * 3

    model = wrap(Experts())
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    for micro_batches in steps_of(load(rows)):
        for x, y in micro_batches:
            out, penalty = model(x)
            (
                F.mse_loss(out, y) / accum + penalty / (1 if fault == "penalty not divided" else accum)
            ).backward()
        optimizer.step()
        optimizer.zero_grad()


def fsdp2():
    """FSDP2, which has no no_sync but a switch."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    if world == 1:
        os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    net, mesh = mlp(), init_device_mesh("cpu", (world,))
    fully_shard(net[0], mesh=mesh)
    fully_shard(net, mesh=mesh)
    optimizer = torch.optim.AdamW(net.parameters(), 1e-2)
    for micro_batches in steps_of(load(rows)):
        for number, (x, y) in enumerate(micro_batches):
            net.set_requires_gradient_sync(number + 1 == accum)
            loss = F.mse_loss(net(x), y, reduction="sum" if fault == "summed loss" else "mean")
            (loss / accum).backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()


def fsdp1():
    """FSDP1, with its own parameters or flat ones."""
    from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

    if world == 1:
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    model = FSDP(mlp(), device_id=torch.device("cpu"), use_orig_params=True)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    for micro_batches in steps_of(load(rows)):
        for number, (x, y) in enumerate(micro_batches):
            with silent(model, number + 1 == accum):
                (F.mse_loss(model(x), y) / (1 if fault == "not divided" else accum)).backward()
        model.clip_grad_norm_(1.0)
        optimizer.step()
        optimizer.zero_grad()


def samples_lost():
    """A loader with an own batch sampler that ranks share."""

    class Own(torch.utils.data.Sampler):
        def __iter__(self):
            order = torch.randperm(240, generator=torch.Generator().manual_seed(1)).tolist()
            size = batch * world
            for first in range(0, 240 - size + 1, size):
                indices = order[first : first + size][rank * batch : (rank + 1) * batch]
                yield (
                    indices[:-1] + indices[:1]
                    if fault == "a row twice"
                    else indices[:-1]
                    if fault == "a row lost"
                    else indices
                )

    model = wrap(mlp())
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    for micro_batches in steps_of(DataLoader(rows, batch_sampler=Own())):
        for x, y in micro_batches:
            (F.mse_loss(model(x), y) / accum).backward()
        optimizer.step()
        optimizer.zero_grad()


globals()[args.kind]()
