"""Healthy loops of plain PyTorch, a kind each, and the same with one fault: `--kind`, `--fault`."""

import argparse
import contextlib
import copy
import os

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, DistributedSampler, Sampler, TensorDataset, WeightedRandomSampler

parser = argparse.ArgumentParser()
parser.add_argument("--kind", default="ddp")
parser.add_argument("--fault", default="")
parser.add_argument("--batch", type=int)
parser.add_argument("--accum", type=int)
args = parser.parse_args()
kind, fault, accum = args.kind, args.fault, args.accum
world, rank = int(os.environ.get("WORLD_SIZE", 1)), int(os.environ.get("RANK", 0))
if world > 1:
    dist.init_process_group("gloo")
torch.manual_seed(rank if fault == "seed by rank, no broadcast" else 0)
data = TensorDataset(torch.randn(240, 6), torch.randn(240, 2), torch.randint(0, 4, (240,)))
if fault == "seed by rank, no broadcast":
    data = TensorDataset(*(tensor.roll(0) for tensor in data.tensors))


class Net(nn.Module):
    def __init__(self, out=2):
        super().__init__()
        self.a, self.b, self.drop = nn.Linear(6, 16), nn.Linear(16, out), nn.Dropout(0.1)
        self.norm = {"batch norm": nn.BatchNorm1d(16), "group norm": nn.GroupNorm(4, 16)}.get(
            kind, nn.Identity()
        )
        if kind == "batch norm, frozen":
            self.norm = nn.BatchNorm1d(16).eval()
            self.norm.train = lambda mode=True: self.norm

    def forward(self, x):
        if kind == "checkpoint":
            return self.b(checkpoint(lambda h: self.drop(torch.tanh(self.a(h))), x, use_reentrant=False))
        if kind == "reentrant checkpoint":
            return self.b(
                checkpoint(
                    nn.Sequential(self.a, nn.Tanh(), self.drop), x.requires_grad_(), use_reentrant=True
                )
            )
        h = self.a(x)
        if kind == "drop path":
            h = h * x.new_empty(len(x), 1).bernoulli_(0.8).div_(0.8)
        if kind == "drop path by rand":
            h = h * (torch.rand(len(x), 1) + 0.8).floor() / 0.8
        if kind == "drop path by rand" and fault == "noise":
            h = h + 0
        return self.b(self.drop(torch.tanh(self.norm(h))))


class Curriculum(Sampler):
    """Easy rows first, dealt to the ranks in turn."""

    def __iter__(self):
        order = torch.argsort(data.tensors[0].norm(dim=1)).tolist()
        return iter(order[rank::world] if fault != "sampler without rank" else order)

    def __len__(self):
        return len(data) // world


def make_loader():
    """The loader, by the kind of sampling."""
    if kind == "curriculum":
        sampler = Curriculum()
    elif kind == "weighted sampler":
        sampler = WeightedRandomSampler(torch.rand(240), 240, generator=torch.Generator().manual_seed(rank))
    elif fault == "sampler without rank" or (fault == "sampler of one rank"):
        sampler = DistributedSampler(data, 1, 0, seed=3)
    elif world > 1 or kind == "distributed sampler always":
        sampler = DistributedSampler(data, world, rank, seed=3)
    else:
        return DataLoader(data, args.batch, shuffle=True, drop_last=kind == "drop last")
    return DataLoader(data, args.batch, sampler=sampler, num_workers=1 if kind == "workers" else 0)


def make_optimizer(parameters):
    """The optimizer, by kind."""
    if kind == "fused":
        return torch.optim.AdamW(parameters, 1e-2, fused=True)
    if kind == "foreach":
        return torch.optim.Adam(parameters, 1e-2, foreach=True)
    if kind == "several groups":
        named = list(net.named_parameters())
        groups = [{"params": [p for n, p in named if "bias" in n], "weight_decay": 0.0, "lr": 1e-3}]
        return torch.optim.AdamW([*groups, {"params": [p for n, p in named if "bias" not in n]}], 1e-2)
    if kind == "lbfgs":
        return torch.optim.LBFGS(parameters, 0.1, max_iter=1 if fault != "iterations" else 4)
    if kind == "tensor lr":
        return torch.optim.Adam(parameters, torch.tensor(1e-2))
    return torch.optim.SGD(parameters, 1e-1 * (world if fault == "lr × world" else 1), momentum=0.9)


net = Net(4 if kind in ("classes", "focal", "class weights", "mixup", "label smoothing") else 2)
if kind == "frozen":
    net.a.requires_grad_(False)
if kind == "compile":
    net = torch.compile(net)
teacher = copy.deepcopy(net).eval().requires_grad_(False)
average = copy.deepcopy(net)
early = make_optimizer(net.parameters()) if kind == "optimizer before ddp" else None
wrap = world > 1 and fault not in ("no ddp", "seed by rank, no broadcast") and kind != "all_reduce by hand"
model = DDP(net, find_unused_parameters=kind == "frozen later") if wrap else net
optimizer = early or make_optimizer(net.parameters())
scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: max(0.1, 1 - step / 20))
scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, enabled=kind == "scaler")
class_weights = torch.tensor([1.0, 2.0, 0.5, 4.0])


def loss_of(called, x, y, c):
    """The mean loss of a micro-batch, by kind."""
    reduction = "sum" if fault == "summed loss" else "mean"
    if kind == "diffusion":
        noise, time = torch.randn_like(x), torch.rand(len(x), 1)
        return F.mse_loss(called(x * (1 - time) + noise * time), noise[:, :2])
    if kind == "distillation":
        with torch.no_grad():
            target = teacher(x)
        return F.kl_div(
            F.log_softmax(called(x), 1), F.log_softmax(target * 3, 1), reduction="batchmean", log_target=True
        )
    if kind == "focal":
        loss = F.cross_entropy(called(x), c, reduction="none")
        return ((1 - torch.exp(-loss)) ** 2 * loss).mean()
    if kind == "class weights":
        if fault == "weights of a pass":
            return F.cross_entropy(called(x), c, class_weights)
        return (F.cross_entropy(called(x), c, class_weights, reduction="none")).mean()
    if kind in ("classes", "label smoothing"):
        return F.cross_entropy(
            called(x), c, label_smoothing=0.1 * (kind == "label smoothing"), reduction=reduction
        )
    if kind == "mixup":
        share, order = np.random.beta(0.4, 0.4), torch.randperm(len(x))
        logits = called(share * x + (1 - share) * x[order])
        return share * F.cross_entropy(logits, c) + (1 - share) * F.cross_entropy(logits, c[order])
    if kind == "contrastive":
        return F.cross_entropy(called(x) @ y.T, torch.arange(len(x)))
    if kind == "autocast":
        with torch.autocast("cpu", torch.bfloat16):
            return F.mse_loss(called(x).float(), y)
    if kind == "two views":
        return (F.mse_loss(called(x), y) + F.mse_loss(called(-x), y)) / 2
    if kind == "l2 in the loss":
        decay = 1e-2 * sum((p**2).sum() for p in net.parameters())
        return F.mse_loss(called(x), y) + decay * (accum if fault == "penalty × accumulation" else 1)
    if kind == "huber":
        return F.huber_loss(called(x), y, reduction=reduction)
    if kind == "autograd function":
        return Squared.apply(called(x), y)
    if kind == "l1 of the batch":
        return (called(x) - y).norm()
    return F.mse_loss(called(x), y, reduction=reduction)


class Squared(torch.autograd.Function):
    """A mean squared error with its own backward."""

    @staticmethod
    def forward(ctx, out, y):
        ctx.save_for_backward(out, y)
        return (out - y).square().mean()

    @staticmethod
    def backward(ctx, gradient):
        out, y = ctx.saved_tensors
        return gradient * 2 * (out - y) / (1 if fault == "backward without mean" else out.numel()), None


def clip():
    """The gradient is clipped, by kind."""
    if kind == "clip by value":
        nn.utils.clip_grad_value_(net.parameters(), 0.5)
    elif kind == "clip by hand":
        norm = torch.stack([p.grad.norm() for p in net.parameters()]).norm()
        for p in net.parameters():
            p.grad.mul_(min(1.0, 0.1 / float(norm)))
    else:
        nn.utils.clip_grad_norm_(net.parameters(), 1e-2 if kind == "clip" else 1.0)


if kind in ("hooks", "scaling hook"):
    for p in net.parameters():
        p.register_hook(lambda g: g * 2 if kind == "scaling hook" else g.clone())
passes = 0


def closure():
    """The closure of LBFGS."""
    optimizer.zero_grad()
    total = 0.0
    for number, (x, y, c) in enumerate(micro_batches):
        with model.no_sync() if wrap and number + 1 < len(micro_batches) else contextlib.nullcontext():
            loss = loss_of(model, x, y, c) / accum
            loss.backward()
            total += float(loss)
    return total


micro_batches = []
optimizer.zero_grad()
for _epoch in range(9):
    loader = make_loader()
    for x, y, c in loader:
        passes += 1
        last = passes % accum == 0
        if kind == "lbfgs":
            micro_batches.append((x, y, c))
            if last:
                optimizer.step(closure)
                micro_batches.clear()
            continue
        if (kind == "evaluation first" and passes == 1) or (kind == "evaluation" and last):
            net.eval()
            with torch.no_grad():
                sum(float(F.mse_loss(net(vx), vy)) for vx, vy, _ in DataLoader(data, 32))
            net.train()
        if kind == "frozen later" and passes == accum + 1:
            net.a.requires_grad_(False)
        called = net if fault == "inner module" else model
        silent = kind == "no_sync" and (not last or fault == "never synchronized")
        with model.no_sync() if wrap and silent else contextlib.nullcontext():
            loss = loss_of(called, x, y, c)
            if fault == "rank 0 alone" and rank:
                loss = loss * 0
            if fault == "loss × world":
                loss = loss * world
            if fault != "not divided":
                loss = loss / accum
            if fault == "divided twice":
                loss = loss / accum
            scaler.scale(loss).backward(retain_graph=fault == "backward twice")
            if fault == "backward twice" and last:
                loss.backward()
        if fault == "clipping each pass":
            clip()
        if fault == "zero_grad each pass" and not last:
            optimizer.zero_grad()
        if fault == "step each pass":
            last = True
        if fault == "decay each pass":
            for p in net.parameters():
                p.grad.add_(p.data, alpha=0.1)
        if fault == "scheduler each pass":
            scheduler.step()
        if not last:
            continue
        if kind == "all_reduce by hand" and world > 1:
            for p in net.parameters():
                dist.all_reduce(p.grad)
                if fault != "sum of ranks":
                    p.grad /= world
        if kind == "unscale and clip" or kind == "scaler":
            scaler.unscale_(optimizer)
        clip()
        scaler.step(optimizer)
        scaler.update()
        for _ in range(world if fault == "scheduler × ranks" else fault != "scheduler each pass"):
            scheduler.step()
        if kind == "zero by hand":
            for p in net.parameters():
                p.grad = None
        elif kind == "zeros kept":
            model.zero_grad(set_to_none=False)
        elif fault != "never zeroed":
            optimizer.zero_grad()
        if kind == "ema":
            for p, q in zip(average.parameters(), net.parameters(), strict=True):
                p.data.lerp_(q.data, 0.1)
        if kind == "saves" and rank == 0:
            torch.save({"net": net.state_dict(), "optimizer": optimizer.state_dict()}, os.devnull)
        if kind == "own schedule":
            optimizer.param_groups[0]["lr"] = 0.1 / (1 + passes / accum)
