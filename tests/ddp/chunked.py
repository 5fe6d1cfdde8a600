"""Small trainings in chunks, in torch's plain float32, to be compared by SHA at any number of ranks."""

import copy
import io
import os
import random
from contextlib import nullcontext

import numpy as np
import torch
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.functional import cross_entropy

import isobatch as ib
from isobatch.integrations.torch import ElasticRun

SAMPLES, VOCABULARY, LENGTH, CHUNKS, SIZE = 120, 32, 9, 8, 2


class Gpt(nn.Module):
    """A causal transformer with dropout and tied weights."""

    def __init__(self, width=16, layers=1):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, width)
        layer = nn.TransformerEncoderLayer(width, 2, 2 * width, dropout=0.1, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.output = nn.Linear(width, VOCABULARY, bias=False)
        self.output.weight = self.embedding.weight
        self.register_buffer(
            "mask", nn.Transformer.generate_square_subsequent_mask(LENGTH - 1), persistent=False
        )

    def forward(self, tokens):
        return self.output(self.layers(self.embedding(tokens), mask=self.mask, is_causal=True))


class Vit(nn.Module):
    """A vision transformer over 4 × 4 patches."""

    def __init__(self, width=16):
        super().__init__()
        self.patches = nn.Conv2d(3, width, 4, 4)
        self.places = nn.Parameter(torch.randn(1, 4, width) * 0.02)
        self.layer = nn.TransformerEncoderLayer(width, 2, 2 * width, dropout=0.1, batch_first=True)
        self.output = nn.Linear(width, 10)

    def forward(self, images):
        patches = self.patches(images).flatten(2).transpose(1, 2)
        return self.output(self.layer(patches + self.places).mean(1))


class Images(torch.utils.data.Dataset):
    """Images that the dataset itself distorts at random."""

    def __init__(self):
        generator = torch.Generator().manual_seed(1)
        self.images = torch.randn(SAMPLES, 3, 8, 8, generator=generator)
        self.labels = torch.randint(0, 10, (SAMPLES,), generator=generator)

    def __len__(self):
        return SAMPLES

    def __getitem__(self, index):
        distorted = self.images[index] + 0.1 * torch.randn(3, 8, 8)
        return distorted.roll(random.randint(-1, 1), 2), self.labels[index]


class Sentences(torch.utils.data.Dataset):
    """Sentences of unequal lengths: labels of -100 are padding."""

    def __init__(self, *, unequal):
        generator = torch.Generator().manual_seed(1)
        self.tokens = torch.randint(0, VOCABULARY, (SAMPLES, LENGTH), generator=generator)
        self.labels = self.tokens.clone()
        if unequal:
            lengths = torch.randint(2, LENGTH + 1, (SAMPLES, 1), generator=generator)
            self.labels[torch.arange(LENGTH) >= lengths] = -100

    def __len__(self):
        return SAMPLES

    def __getitem__(self, index):
        return self.tokens[index], self.labels[index]


def augment(images):
    """Flips, shifts and dims images, by the generators of torch, NumPy and Python."""
    if random.random() < 0.5:
        images = images.flip(3)
    images = images.roll(int(np.random.randint(-2, 3)), 2)
    return images * images.new_empty(len(images), 1, 1, 1).uniform_(0.8, 1.2)


def _optimizers(workload, net):
    if workload == "vit":
        return [torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)]
    if workload == "muon":
        matrices = [
            parameter
            for name, parameter in net.named_parameters()
            if parameter.ndim == 2 and "embedding" not in name
        ]
        vectors = [
            parameter for parameter in net.parameters() if all(parameter is not matrix for matrix in matrices)
        ]
        return [torch.optim.Muon(matrices, lr=0.01), torch.optim.AdamW(vectors, lr=0.003)]
    return [torch.optim.AdamW(net.parameters(), lr=0.003)]


WORKLOADS = {
    "gpt": "GPT, dropout, tied weights, clipping; AdamW",
    "bf16": "the GPT in bf16 autocast; AdamW, EMA",
    "vit": "ViT, augmentation in dataset and loop; SGD with momentum",
    "muon": "the GPT, unequal tokens; Muon and AdamW",
}


def loss_of(workload, model, batch):
    """The mean loss of a chunk."""
    if workload == "vit":
        return cross_entropy(model(augment(batch[0])), batch[1])
    tokens, labels = batch
    with torch.autocast(batch[0].device.type, torch.bfloat16) if workload == "bf16" else nullcontext():
        scores = model(tokens[:, :-1])
    return cross_entropy(scores.flatten(0, 1).float(), labels[:, 1:].flatten())


def recipe_of(steps):
    fields = {"effective_batch": CHUNKS * SIZE, "dataset_size": SAMPLES, "duration": f"{steps}st"}
    return ib.Recipe(lr=0.003, optimizer="adamw", **fields)


def train(
    workload="gpt",
    checkpoint=None,
    *,
    steps=8,
    stop=None,
    planted=None,
    threads=1,
    every=0,
    device="cpu",
    **settings,
):
    """Trains from a checkpoint to step `stop` or the end, with an ulp planted in the gradient of a (step,
    chunk); returns the checkpoint, and a digest after each `every` steps and the last.
    """
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    net = (Vit() if workload == "vit" else Gpt()).to(device)
    torch.manual_seed(1000 + int(os.environ.get("RANK", 0)))  # The user's draws are no part of it.
    data = Images() if workload == "vit" else Sentences(unequal=workload == "muon")
    optimizers = _optimizers(workload, net)
    recipe = recipe_of(steps)
    workers = settings.pop("workers", 0)
    options = {"chunk": SIZE, "seed": 5, **settings}
    run = ElasticRun(recipe, state=None if checkpoint is None else checkpoint["run"], **options)
    average = copy.deepcopy(net)
    if checkpoint is not None:
        states = torch.load(io.BytesIO(checkpoint["states"]))
        for part, state in zip((net, average, *optimizers), states, strict=True):
            part.load_state_dict(state)
    schedulers = [run.scheduler(optimizer) for optimizer in optimizers]
    model, digests = run.wrap(net), {}
    counted = (lambda batch: (batch[1][:, 1:] != -100).sum()) if workload == "muon" else None
    for step in run.steps(run.loader(data, num_workers=workers), counted):
        for micro in step:
            with micro.sync(model):
                batch = [tensor.to(device) for tensor in micro.batch]
                (loss_of(workload, model, batch) * micro.weight).backward()
                chunk = micro.chunk
                if chunk is not None and planted == (step.number, chunk.number):
                    gradient = next(net.parameters()).grad.view(-1)
                    largest = gradient.abs().argmax()
                    gradient[largest] = gradient[largest].nextafter(torch.tensor(9.0))
        if workload == "gpt":
            nn.utils.clip_grad_norm_(net.parameters(), 0.5)
        for optimizer, scheduler in zip(optimizers, schedulers, strict=True):
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
        for mean, weight in zip(average.parameters(), net.parameters(), strict=True):
            mean.detach().lerp_(weight.detach(), 0.1)
        if every and step.number % every == 0:
            digests[step.number] = run.digest(net, *optimizers)
        if stop is not None and step.number + 1 == stop:
            break
    states = io.BytesIO()
    torch.save([part.state_dict() for part in (net, average, *optimizers)], states)
    digests["end"] = run.digest(net, average, *optimizers)
    return {"run": run.state_dict(), "states": states.getvalue()}, digests


def with_digests(folder, **options):
    """Trains, and writes the digests of chunks."""
    os.environ["ISOBATCH_CHUNK_DIGESTS"] = str(folder)  # The pool restores it.
    return train(**options)


def normed():
    return nn.Sequential(nn.Linear(1, 2), nn.BatchNorm1d(2))


class Counting(nn.Module):
    """Counts its forwards in a buffer."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(1, 1)
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, x):
        self.calls += 1
        return self.layer(x.float()[:, None])


class Nondeterministic(nn.Module):
    """Has a kernel that torch calls nondeterministic on a GPU."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(1, 1)

    def forward(self, x):
        if torch.are_deterministic_algorithms_enabled():
            raise RuntimeError("scatter_cuda does not have a deterministic implementation, but you set …")
        return self.layer(x.float()[:, None])


class Sparse(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Embedding(16, 2, sparse=True)

    def forward(self, x):
        return self.layer(x)


def sharded():
    net = nn.Sequential(nn.Linear(1, 2))
    fully_shard(net)
    return net


def linear():
    return nn.Linear(1, 1)


def gradients_of_a_net_with_branches():
    """Whether each of three parameters has a gradient: all chunks use one, some the next, none the last."""
    recipe = ib.Recipe(effective_batch=8, lr=0.1, optimizer="sgd", dataset_size=8, duration="1ep")
    run = ElasticRun(recipe, chunk=2, shuffle=False)
    net = run.wrap(nn.ParameterList([nn.Parameter(torch.ones(1)) for _ in range(3)]))
    for step in run.steps(run.loader(range(8))):
        for micro in step:
            with micro.sync(net):
                used = net[0] if micro.batch[0] else net[0] + net[1]
                (used * micro.batch.sum()).sum().backward()
        return [parameter.grad is not None for parameter in net]


def two_networks():
    """Trains two networks in one loop, in steps of 5 chunks: three ranks cannot share them evenly."""
    torch.manual_seed(0)
    nets = [nn.Sequential(nn.Linear(1, 8), nn.Dropout(0.2), nn.Linear(8, 1)) for _ in range(2)]
    recipe = ib.Recipe(effective_batch=10, lr=0.1, optimizer="sgd", dataset_size=50, duration="1ep")
    run = ElasticRun(recipe, chunk=2)
    models = [run.wrap(net) for net in nets]
    optimizer = torch.optim.SGD([*nets[0].parameters(), *nets[1].parameters()], lr=0.1)
    scheduler = run.scheduler(optimizer)
    for step in run.steps(run.loader(torch.randn(50, 1, generator=torch.Generator().manual_seed(1)))):
        for micro in step:
            with micro.sync(*models):
                (models[1](models[0](micro.batch)).square().mean() * micro.weight).backward()
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
    return run.digest(*nets)


def refused(net, **settings):
    """The error of a run in chunks of a network, or of its first step; None where there is none."""
    torch.set_num_threads(settings.pop("threads", 1))
    recipe = ib.Recipe(effective_batch=8, lr=0.1, optimizer="sgd", dataset_size=16, duration="1ep")
    options = {"chunk": 2, **settings}
    net = net()
    applied = False
    try:
        run = ElasticRun(recipe, **options)
        model = run.wrap(net)
        for step in run.steps(run.loader(range(16))):
            for micro in step:
                with micro.sync(model):
                    (model(micro.batch).sum() * micro.weight).backward()
            applied = True
            break
    except ib.InputError as error:
        assert not applied
        return str(error)
    return None


def with_threads_of_the_rank():
    """The error where each rank has its own number of threads and its own dtype."""
    rank = torch.distributed.get_rank()
    torch.set_default_dtype((torch.float32, torch.float64)[rank])
    try:
        return refused(lambda: nn.Linear(1, 1).float(), threads=1 + rank)
    finally:
        torch.set_default_dtype(torch.float32)
        torch.set_num_threads(1)
