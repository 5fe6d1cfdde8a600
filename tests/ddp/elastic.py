"""Elastic runs on ranks that stay: a small float64 training, stopped and gone on."""

import io
import itertools
import os
import signal
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint import state_dict as whole
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.nn.functional import all_reduce
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel

import isobatch as ib
from isobatch.elastic import agreement
from isobatch.integrations.torch import ElasticRun, GlobalLoader

RECIPE = {"effective_batch": 12, "lr": 0.05, "optimizer": "sgd", "momentum": 0.9, "dataset_size": 70}
RECIPE |= {"duration": "3ep", "warmup": "1ep"}
WHOLE = whole.StateDictOptions(full_state_dict=True)


class Rows(torch.utils.data.Dataset):
    """Rows whose targets count 0 to 4 times: tokens of sequences of unequal length."""

    def __init__(self, size):
        generator = torch.Generator().manual_seed(7)
        self.x = torch.randn(size, 5, generator=generator, dtype=torch.float64)
        self.y = torch.randn(size, 2, generator=generator, dtype=torch.float64)
        self.tokens = torch.randint(0, 5, (size,), generator=generator)

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        return index, self.x[index], self.y[index], self.tokens[index]


class Numbers(torch.utils.data.IterableDataset):
    """A stream of numbers; those of epoch n begin at 1000 n."""

    def __init__(self, size):
        self.size, self.epoch = size, 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        return (1000 * self.epoch + number for number in range(self.size))


class Flowing(torch.utils.data.IterableDataset):
    """Rows that can only be read one after another."""

    def __init__(self, size):
        self.rows = Rows(size)

    def __iter__(self):
        return (self.rows[index] for index in range(len(self.rows)))


def noise(seed):
    return torch.randn(5, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def loss_of(model, batch, by_tokens):
    _, x, y, tokens = batch
    losses = mse_loss(model(x), y, reduction="none").mean(1)
    if by_tokens:
        return (losses * tokens).sum() / tokens.sum().clamp(min=1)
    return losses.mean()


def train(
    checkpoint=None,
    *,
    stop=None,
    by_tokens=False,
    recipe=None,
    loader=None,
    signal_at=None,
    layers=(),
    sharded=False,
    stream=None,
    slow=False,
    augmented=False,
    **settings,
):
    """Trains from a checkpoint to step `stop` or the end; returns the checkpoint, and each step's samples,
    rate and stand-ins. Where they are augmented, the samples are (index, input of the model).
    """
    torch.manual_seed(0)
    # A clock of which each step takes a second.
    agreement.monotonic = itertools.count().__next__ if slow else time.monotonic
    recipe = ib.Recipe(**{**RECIPE, **(recipe or {})})
    net = nn.Sequential(nn.Linear(5, 8), *(layer(8) for layer in layers), nn.Tanh(), nn.Linear(8, 2)).double()
    model = wrapped(net, sharded=sharded)
    optimizer = torch.optim.SGD(model.parameters(), lr=recipe.lr, momentum=0.9)
    run = ElasticRun(recipe, state=None if checkpoint is None else checkpoint["run"], **settings)
    if checkpoint is not None:
        # Pipes share memory, and an optimizer goes on in the very tensors that it loads.
        checkpoint = copied(checkpoint)
        if sharded:
            # Its loader knows only what the optimizer's groups have already: a scheduler gives them more.
            scheduler = run.scheduler(optimizer)
            both = {"model_state_dict": checkpoint["model"], "optim_state_dict": checkpoint["optimizer"]}
            whole.set_state_dict(net, optimizer, **both, options=WHOLE)
        else:
            net.load_state_dict(checkpoint["model"])
            optimizer.load_state_dict(checkpoint["optimizer"])
    if checkpoint is None or not sharded:
        scheduler = run.scheduler(optimizer)
    rows_of_steps = []
    tokens = (lambda batch: batch[3].sum()) if by_tokens else None
    rows = Rows(recipe.dataset_size) if stream is None else Flowing(stream)
    data = run.loader(rows, **(loader or {}))
    for step in run.steps(data, tokens):
        ids, stand_ins = [], 0
        for micro in step:
            index, x, *targets = micro.batch
            if augmented:
                x = x + torch.stack([noise(run.seed_of(sample)) for sample in index.tolist()])
            with micro.sync(model):
                (loss_of(model, (index, x, *targets), by_tokens) * micro.weight).backward()
            stand_ins += micro.stand_in
            own = zip(index.tolist(), map(tuple, x.tolist()), strict=True) if augmented else index.tolist()
            ids += [] if micro.stand_in else own
        rows_of_steps.append((step.number, step.epoch, ids, optimizer.param_groups[0]["lr"], stand_ins))
        if signal_at == (step.number, run.world.rank):
            os.kill(os.getpid(), signal.SIGTERM)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        if run.stopping or step.number + 1 == stop:
            break
    own = net.state_dict(), optimizer.state_dict()
    parts = whole.get_state_dict(net, optimizer, options=WHOLE) if sharded else own
    run._loop.free()  # Else the garbage collector waits for a loader's workers in some later test.
    return {"model": parts[0], "optimizer": parts[1], "run": run.state_dict()}, rows_of_steps


def wrapped(net, *, sharded):
    """The network as its ranks train it: alone, by DDP, or by FSDP2, each layer for itself."""
    if not dist.is_initialized():
        return net
    if not sharded:
        return DistributedDataParallel(net)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for layer in net:
        if next(layer.parameters(), None) is not None:
            fully_shard(layer, mesh=mesh)
    return fully_shard(net, mesh=mesh)


def copied(checkpoint):
    """The checkpoint through a file, as in life."""
    file = io.BytesIO()
    torch.save(checkpoint, file)
    file.seek(0)
    return torch.load(file)


def differing(rank_settings, state=None):
    """Each rank's error where their settings differ."""
    try:
        run = ElasticRun(ib.Recipe(**RECIPE), state=state, **rank_settings[dist.get_rank()])
        return next(run.steps(run.loader(range(RECIPE["dataset_size"])))).number
    except ib.InputError as error:
        return str(error)


def counting(counts, **settings):
    """Each rank's weights and error, given the tokens of its micro-batches by step."""
    run = ElasticRun(ib.Recipe(**{**RECIPE, "duration": "4st"}), **settings)
    loader = run.loader(range(RECIPE["dataset_size"]))
    own_counts, weights = iter(counts[dist.get_rank()]), []
    try:
        for step in run.steps(loader, lambda batch: next(own_counts)):
            factors = [micro.weight for micro in step]
            weights.append(factors)
    except ib.InputError as error:
        return weights, str(error)
    return weights, None


def taken(become, size, recipe, data=None, **settings):
    """The samples of pretended ranks: for each, by step, span, samples and passes; and the run."""
    rows = []
    for rank in range(size):
        become(rank, size)
        run = ElasticRun(recipe, **settings)
        batches = iter(run.loader(range(recipe.dataset_size) if data is None else data()))
        rows.append([])
        for span in run._progress.spans():
            own = run._progress.passes(span, equal=False)
            ids = [(next(batches).tolist(), portion) for portion in own]
            rows[-1].append((span, [i for batch, portion in ids if not portion.stand_in for i in batch], own))
        assert next(batches, None) is None
    return rows, run


def go_on(run, until=None, data=None):
    """Steps without a model; gives each step's learning rate."""
    return [rate for rate, _ in steps_of(run, until, data)]


def steps_of(run, until=None, data=None):
    """Steps without a model; gives each step's learning rate and samples."""
    optimizer = torch.optim.SGD(torch.nn.Linear(1, 1).parameters(), lr=run.recipe.lr)
    scheduler = run.scheduler(optimizer)
    rows_of_steps = []
    for step in run.steps(run.loader(range(run.recipe.dataset_size) if data is None else data)):
        ids = [index for micro in step for index in micro.batch.tolist()]
        rows_of_steps.append((optimizer.param_groups[0]["lr"], ids))
        assert rows_of_steps[-1][0] == run.plan.lr_at(step.number)
        optimizer.step()
        scheduler.step()
        if step.number + 1 == until:
            break
    return rows_of_steps


class Gathered(nn.SyncBatchNorm):
    """Gathers the statistics of all ranks' samples, as torch's SyncBatchNorm does on GPUs only."""

    def forward(self, x):
        count = torch.tensor([float(len(x))], dtype=x.dtype)
        sums = all_reduce(torch.cat([count, x.sum(0), (x * x).sum(0)]))
        width = x.shape[1]
        self.counted = int(sums[0])
        mean, square = sums[1 : 1 + width] / sums[0], sums[1 + width :] / sums[0]
        with torch.no_grad():
            self.running_mean += self.momentum * (mean - self.running_mean)
        return (x - mean) / (square - mean * mean + self.eps).sqrt() * self.weight + self.bias


def normed():
    """Trains four steps with statistics of all ranks; returns the running mean, the samples that counted, the
    expected mean, and whether each step had gradients.
    """
    torch.manual_seed(0)
    net = nn.Sequential(nn.BatchNorm1d(5), nn.Linear(5, 2)).double()
    model = DistributedDataParallel(net)
    net[0].__class__ = Gathered  # DDP takes SyncBatchNorm on GPUs only.
    run = ElasticRun(ib.Recipe(**{**RECIPE, "effective_batch": 9}), split="uneven", max_micro_batch=3)
    rows, counts, gradients = Rows(70), [], []
    for step in run.steps(run.loader(rows, equal_passes=True)):
        for micro in step:
            with micro.sync(model):
                _, x, y, _ = micro.batch
                (mse_loss(model(x), y) * micro.weight).backward()
            counts.append(net[0].counted)
        gradients.append(all(bool(parameter.grad.any()) for parameter in net.parameters()))
        if step.number == 3:
            break
    order = torch.randperm(70, generator=torch.Generator().manual_seed(0))
    expected, at = torch.zeros(5, dtype=torch.float64), 0
    for count in counts:
        expected += 0.1 * (rows.x[order[at : at + count]].mean(0) - expected)
        at += count
    return net[0].running_mean, counts, expected, gradients


def loaded(state=None, stop=None):
    """The rows that this rank loads, by step, and the loader's state."""
    loader, rows_of_steps, ids = GlobalLoader(range(50), 12, max_micro_batch=2, split="uneven"), [], []
    if state is not None:
        loader.load_state_dict(state)
    for batch in loader:
        ids += batch.tolist()
        if loader.last:
            rows_of_steps.append(ids)
            ids = []
            if len(rows_of_steps) == stop:
                break
    return rows_of_steps, loader.state_dict()
