"""Users' workloads for `--workload ddp.workloads:NAME`: a good one, and the mistakes that people make."""

import ctypes
import dataclasses
import gc
import itertools
import os
import resource
import time
import weakref
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import mse_loss

from isobatch.validate import Workload


def _batch(n, generator, device):
    x = torch.randn(n, 6, generator=generator)
    return {"x": x.to(device), "y": torch.randn(n, 3, generator=generator).to(device)}


def _loss(model, batch, _=0):
    return mse_loss(model(batch["x"]), batch["y"])


def _sgd(params):
    return torch.optim.SGD(params, lr=0.1)


def _model(dropout=0.5):
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Dropout(dropout), nn.Linear(8, 3))


def with_loss(loss, **parts):
    """A good workload but for its loss, a function of the number of its call too, and for the named parts."""

    def factory():
        calls, make = itertools.count(1), parts.get("model", _model)
        options = {"optimizer": _sgd, "batch": _batch, **parts, "model": make()}
        return Workload(loss=lambda model, batch: loss(model, batch, next(calls)), **options)

    return factory


def _sum(model, batch, _):
    """Over the samples, of the mean over each one's outputs."""
    return _loss(model, batch) * len(batch["y"])


good = with_loss(_loss)
summed = with_loss(_sum)
declared_sum = with_loss(_sum, reduction="sum")
another_lr = with_loss(_loss, optimizer=lambda params: torch.optim.SGD(params, lr=0.2))
tuple_loss = with_loss(lambda m, b, _: (_loss(m, b), 0))
vector_loss = with_loss(lambda m, b, _: (m(b["x"]) - b["y"]).square().mean(1))
float_loss = with_loss(lambda m, b, _: _loss(m, b).item())
loss_without_gradient = with_loss(lambda m, b, _: _loss(m, b).detach())
failing_loss = with_loss(lambda m, b, _: m(b["pixels"]))
nan_everywhere = with_loss(lambda m, b, _: _loss(m, b) * float("nan"))


def _one_row_short(n, generator, device):
    return {name: rows[1:] for name, rows in _batch(n, generator, device).items()}


def _halved():
    model = _model()
    for p in model.parameters():
        p.register_hook(lambda grad: grad * 0.5)
    return model


def _masked():
    model = _model()
    model[0].weight.register_hook(lambda grad: grad * (torch.arange(8) > 3)[:, None])
    return model


def _frozen():
    model = _model()
    model[0].requires_grad_(False)
    return model


def _compressed(dtype):
    """As torch's fp16_compress_hook and bf16_compress_hook, with annotations that DDP reads."""

    def hook(state, bucket):
        sent = bucket.buffer().to(dtype).div_(dist.get_world_size())
        done = dist.all_reduce(sent, async_op=True).get_future()
        return done.then(lambda future: bucket.buffer().copy_(future.value()[0]))

    return hook


short = with_loss(_loss, batch=_one_row_short)
halved, masked, frozen = (with_loss(_loss, model=make) for make in (_halved, _masked, _frozen))
fp16_hook, bf16_hook = (
    with_loss(_loss, hook=_compressed(dtype)) for dtype in (torch.float16, torch.bfloat16)
)


def images():
    """Convolutions and batch norm, which has buffers."""

    def batch(n, generator, device):
        x = torch.randn(n, 3, 32, 32, generator=generator)
        return {"x": x.to(device), "y": torch.randn(n, 3, generator=generator).to(device)}

    layers = [nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return Workload(nn.Sequential(*layers, nn.Linear(16, 3)), _sgd, batch, _loss)


def tokens():
    """A mean over the tokens that count, which are not equally many in each sample."""

    def batch(n, generator, device):
        data = _batch(n, generator, device)
        return {**data, "mask": (torch.rand(n, 3, generator=generator) < 0.5).float().to(device)}

    def loss(model, b):
        return ((model(b["x"]) - b["y"]).square() * b["mask"]).sum() / b["mask"].sum()

    return Workload(_model(), _sgd, batch, loss, weight=lambda b: float(b["mask"].sum()))


def sparse():
    """An embedding whose gradient has rows of those words only that are in the batch."""

    class Words(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.head = nn.Embedding(50, 4, sparse=True), nn.Linear(4, 1)

        def forward(self, words):
            return self.head(self.embed(words))

    def batch(n, generator, device):
        return torch.randint(50, (n,), generator=generator).to(device)

    return Workload(Words(), _sgd, batch, lambda model, words: model(words).square().mean())


def _summing(_, bucket):
    return dist.all_reduce(bucket.buffer(), async_op=True).get_future().then(lambda f: f.value()[0])


def _leaving(_, bucket):
    future = torch.futures.Future()
    future.set_result(bucket.buffer())
    return future


summed_over_ranks, never_averaged = with_loss(_loss, hook=_summing), with_loss(_loss, hook=_leaving)


@with_loss
def nan_on_rank_1(model, batch, _):
    return _loss(model, batch) * (float("nan") if dist.get_rank() == 1 else 1.0)


def scheduler_per_process():
    class PerProcess(torch.optim.lr_scheduler.LambdaLR):
        def step(self, epoch=None):
            for _ in range(dist.get_world_size() if self.last_epoch >= 0 else 1):
                super().step(epoch)

    schedule = lambda step: max(0.0, 1 - step / 40) if step else 1.0  # noqa: E731
    return Workload(_model(), _sgd, _batch, _loss, scheduler=lambda o: PerProcess(o, schedule))


def _doubled(optimizer):
    """Starts at the plan's learning rate, and doubles it from the second step on."""
    return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: (1 + (step > 0)) * (1 - step / 40))


another_lr_in_the_scheduler = with_loss(_loss, scheduler=_doubled)


@with_loss
def out_of_memory(model, batch, _):
    """A micro-batch that needs 1 GiB a sample beyond the first two, where the process may have 4 GiB more."""
    n = batch["x"].shape[0]
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (used + (4 << 30), hard))
    try:
        space = torch.empty(max(0, n - 2), 1 << 30, dtype=torch.uint8)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
    return _loss(model, batch) + 0 * space.numel()


@with_loss
def fits_37(model, batch, _):
    """Memory runs out above 37 samples, on rank 1 only."""
    if batch["x"].shape[0] > 37 and dist.get_rank() == 1:
        raise MemoryError
    return _loss(model, batch)


def fits_6_with_batch_norm():
    """Memory runs out above 6 samples, on rank 1 only, of a model whose buffers DDP shares."""

    class Tight(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))

        def forward(self, x):
            if len(x) > 6 and dist.get_rank() == 1:
                raise MemoryError
            return self.layers(x)

    return Workload(Tight(), _sgd, _batch, _loss)


def _slow(model, batch, _):
    """5 ms a micro-batch."""
    time.sleep(0.005)
    return _loss(model, batch)


slow_to_repeat = with_loss(_slow, model=lambda: _model(0.0))


@with_loss
def slow_in_float32(model, batch, _):
    """As on a GPU, whose units are of the narrow formats."""
    time.sleep(0.001 if torch.is_autocast_enabled("cpu") else 0.2)
    return _loss(model, batch)


@with_loss
def eight_mib_a_sample(model, batch, _):
    space = torch.ones(batch["x"].shape[0], 8 << 20, dtype=torch.uint8)
    return _loss(model, batch) + 0 * space[0, 0]


@with_loss
def dies_on_rank_1(model, batch, call):
    """Rank 1 is killed in its tenth forward, as by the system when memory runs out."""
    if call == 10 and dist.is_initialized() and dist.get_rank() == 1:
        os.kill(os.getpid(), 9)
    return _loss(model, batch)


def on_rank_1(happen):
    """A workload whose loss does `happen(device)` on rank 1 of two, from its tenth forward on."""

    def loss(model, batch, call):
        if call >= 10 and dist.is_initialized() and dist.get_rank() == 1:
            happen(batch["x"].device)
        return _loss(model, batch)

    return with_loss(loss)


def _hang_in_a_kernel(device):
    """Launches kernels that take minutes."""
    for _ in range(200):
        torch.cuda._sleep(2_000_000_000)
    torch.cuda.synchronize(device)


def _index_out_of_range(device):
    """Triggers a device-side assertion, which spoils the whole process on CUDA."""
    print(torch.zeros(4, device=device)[torch.tensor([9], device=device)])


no_gpu_has_the_memory = on_rank_1(lambda device: torch.empty(1 << 46, dtype=torch.uint8, device=device))
hangs_in_a_kernel = on_rank_1(_hang_in_a_kernel)
asserts_on_the_gpu = on_rank_1(_index_out_of_range)


def dies_at_once():
    """Is killed before there is a model."""
    os.kill(os.getpid(), 9)


def _hang(call, at):
    """Hangs on the rank of $HANGS, in that call; with $HANGS_LOCKED in C, and keeps Python's lock."""
    if call == at and dist.get_rank() == int(os.environ.get("HANGS", "1")):
        ctypes.PyDLL(None).sleep(1000) if "HANGS_LOCKED" in os.environ else time.sleep(1000)


@with_loss
def hangs_in_the_loss(model, batch, call):
    _hang(call, 10)
    return _loss(model, batch)


def hangs_in_the_loader():
    calls = itertools.count(1)

    def batch(n, generator, device):
        _hang(next(calls), 10)
        return _batch(n, generator, device)

    return Workload(_model(), _sgd, batch, _loss)


def hangs_in_the_optimizer():
    calls = itertools.count(1)

    class Hangs(torch.optim.SGD):
        def step(self, closure=None):
            _hang(next(calls), 3)
            return super().step(closure)

    return Workload(_model(), lambda params: Hangs(params, lr=0.1), _batch, _loss)


def hangs_together():
    """In the backward of each rank, so that none is behind the others."""

    class Together(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, grad):
            time.sleep(1000)
            return grad

    return Workload(_model(), _sgd, _batch, lambda model, b: Together.apply(_loss(model, b)))


def known_noise():
    """A loss whose gradient is each sample: |G|² = 256, tr Σ = 256·9, a noise scale of 9 samples."""

    class Dot(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(256))

        def forward(self, x):
            return x @ self.weight

    def batch(n, generator, device):
        return (1 + 3 * torch.randn(n, 256, generator=generator)).to(device)

    return Workload(Dot(), _sgd, batch, lambda model, x: model(x).mean())


@with_loss
def quarter_of_the_gpu_a_sample(model, batch, _):
    """Each sample takes a quarter of the device's memory for a while, so that three fit."""
    device = batch["x"].device
    quarter = torch.cuda.get_device_properties(device).total_memory // 4
    space = torch.empty(batch["x"].shape[0], quarter, dtype=torch.uint8, device=device)
    return _loss(model, batch) + 0 * space[0, 0].float()


def raises():
    raise ValueError("no data at /data")


def unused_parameters():
    model = _model()
    model.register_parameter("spare", nn.Parameter(torch.zeros(3)))
    return Workload(model, _sgd, _batch, _loss)


def unused_as_told():
    """A parameter that is not used, which DDP knows of."""
    return dataclasses.replace(unused_parameters(), ddp={"find_unused_parameters": True})


@with_loss
def many_small(model, batch, _):
    """1 MiB a sample, in pieces so small that the C library keeps them when they are freed."""
    pieces = [torch.ones(1024) for _ in range(256 * batch["x"].shape[0])]
    return _loss(model, batch) + 0 * pieces[-1][0]


@with_loss
def refuses_float32(model, batch, _):
    if not torch.is_autocast_enabled("cpu"):
        raise RuntimeError("this kernel takes half precision only")
    return _loss(model, batch)


@with_loss
def fills_the_device(model, batch, _):
    """In full precision, or in eval mode, only half the samples fit that do in training."""
    spacious = torch.is_grad_enabled() and (not model.training or not torch.is_autocast_enabled("cpu"))
    if spacious and batch["x"].shape[0] > 4:
        raise MemoryError
    return _loss(model, batch)


def as_much_as_the_job():
    """The device's memory during a training: an optimizer, the micro-batch under way and the next, a
    wrapper, and no float32 gradient of a plan in another format. Above 64 samples memory runs out.
    """
    optimizers, batches = weakref.WeakSet(), weakref.WeakSet()

    def wrappers():
        return sum(isinstance(thing, nn.parallel.DistributedDataParallel) for thing in gc.get_objects())

    before = wrappers()  # torch keeps those of validations before this one in the same process

    class Samples:
        def __init__(self, x, y):
            self.x, self.y = x, y

        def __getitem__(self, part):
            return Samples(self.x[part], self.y[part])

    def batch(n, generator, device):
        data = _batch(n, generator, device)
        samples = Samples(data["x"], data["y"])
        batches.add(samples)
        assert len(batches) <= 2, f"{len(batches)} micro-batches at once"
        return samples

    def optimizer(params):
        gc.collect()
        assert not len(optimizers), "another optimizer"
        count = wrappers() - before
        assert count <= 1, f"{count} wrappers"
        optimizers.add(sgd := _sgd(params))
        return sgd

    def loss(model, samples):
        if not torch.is_autocast_enabled("cpu"):
            raise RuntimeError("this kernel takes half precision only")
        if len(samples.x) > 64:
            raise MemoryError
        return mse_loss(model(samples.x), samples.y)

    return Workload(_model(), optimizer, batch, loss)


def no_room_beside_the_validation():
    """The largest size of the search does not fit once more."""
    tried = []

    def loss(model, batch):
        n = batch["x"].shape[0]
        tried.append(n)
        if n > 20 or (n > 8 and tried.count(n) > 1):
            raise MemoryError
        return _loss(model, batch)

    return Workload(_model(), _sgd, _batch, loss)


class _Experts(nn.Module):
    """Two experts and a router, with a balance loss over the samples of a pass."""

    def __init__(self):
        super().__init__()
        self.router = nn.Linear(6, 2)
        self.experts = nn.ModuleList(nn.Linear(6, 3) for _ in range(2))

    def forward(self, x):
        shares = self.router(x).softmax(-1)
        outputs = torch.stack([expert(x) for expert in self.experts], -1)
        return (outputs * shares[:, None]).sum(-1), shares.mean(0).square().sum()


def _balanced(model, batch, _):
    outputs, balance = model(batch["x"])
    return mse_loss(outputs, batch["y"]) + 0.1 * balance


experts = with_loss(_balanced, model=_Experts)


def _same_for_all(n, generator, device):
    return _batch(n, torch.Generator().manual_seed(0), device)


same_samples = with_loss(_loss, batch=_same_for_all)
adam_for_sgd = with_loss(_loss, optimizer=lambda params: torch.optim.Adam(params, lr=0.1))
another_momentum = with_loss(_loss, optimizer=lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.5))


def _slow_on_rank_1(model, batch, _):
    if dist.get_rank() == 1:
        time.sleep(0.1)
    return _loss(model, batch)


slow_on_rank_1 = with_loss(_slow_on_rank_1)


def ranks_start_apart():
    """A layer that DDP leaves alone, with other weights on rank 1."""
    model = _model()
    with torch.no_grad():
        model[3].weight.add_(0.1 * dist.get_rank())
    model._ddp_params_and_buffers_to_ignore = ["3.weight", "3.bias"]
    return Workload(model, _sgd, _batch, _loss)
