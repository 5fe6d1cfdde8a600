"""A small transformer with tensor, context, expert and pipeline parallelism by hand, right or with one fault.

torchrun --nproc-per-node 2 mesh_by_hand.py --tp 2 --fault head-norm
"""

import argparse
import math

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

WIDTH, HEADS, VOCABULARY, BATCH, LENGTH = 16, 4, 32, 4, 8


class Copy(torch.autograd.Function):
    """The same on all ranks; their gradients add up."""

    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        return x

    @staticmethod
    def backward(ctx, gradient):
        gradient = gradient.clone()
        dist.all_reduce(gradient, group=ctx.group)
        return gradient, None


class Sum(torch.autograd.Function):
    """The sum over ranks; each has its whole gradient."""

    @staticmethod
    def forward(ctx, x, group):
        x = x.clone()
        dist.all_reduce(x, group=group)
        return x

    @staticmethod
    def backward(ctx, gradient):
        return gradient, None


class Gather(torch.autograd.Function):
    """All ranks' parts along a dimension; back comes the own part of the gradient, or of the ranks' sum."""

    @staticmethod
    def forward(ctx, x, group, dim, sums=True):
        ctx.group, ctx.dim, ctx.sums = group, dim, sums
        parts = [torch.empty_like(x) for _ in range(group.size())]
        dist.all_gather(parts, x.contiguous(), group=group)
        return torch.cat(parts, dim)

    @staticmethod
    def backward(ctx, gradient):
        gradient = gradient.clone()
        if ctx.sums:
            dist.all_reduce(gradient, group=ctx.group)
        return gradient.chunk(ctx.group.size(), ctx.dim)[ctx.group.rank()], None, None, None


class Slice(torch.autograd.Function):
    """The own part of a tensor that all ranks have; back come the gradients of all parts."""

    @staticmethod
    def forward(ctx, x, group, dim):
        ctx.group, ctx.dim = group, dim
        return x.chunk(group.size(), dim)[group.rank()].clone()

    @staticmethod
    def backward(ctx, gradient):
        return Gather.apply(gradient, ctx.group, ctx.dim), None, None


class Scatter(torch.autograd.Function):
    """The own part of the sum over ranks; back come the gradients of all parts."""

    @staticmethod
    def forward(ctx, x, group, dim):
        ctx.group, ctx.dim = group, dim
        x = x.clone()
        dist.all_reduce(x, group=group)
        return x.chunk(group.size(), dim)[group.rank()].clone()

    @staticmethod
    def backward(ctx, gradient):
        return Gather.apply(gradient, ctx.group, ctx.dim), None, None


class Attention(nn.Module):
    def __init__(self, options, groups):
        super().__init__()
        self.options, self.groups = options, groups
        self.q, self.k, self.v = (nn.Linear(WIDTH, WIDTH) for _ in "qkv")
        self.head_norm = nn.LayerNorm(WIDTH // HEADS)
        self.out = nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, x):
        tp, cp = self.groups["tp"], self.groups["cp"]
        x = x if self.options.fault == "no-copy" else Copy.apply(x, tp)
        q, k, v = (f(x).unflatten(2, (-1, WIDTH // HEADS)) for f in (self.q, self.k, self.v))
        q = self.head_norm(q)
        first = cp.rank() * x.shape[1]
        k, v = Gather.apply(k, cp, 1), Gather.apply(v, cp, 1)
        rows = torch.arange(x.shape[1]) + (0 if self.options.fault == "mask" else first)
        mask = rows[:, None] >= torch.arange(k.shape[1])
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
        heads = nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return Sum.apply(self.out(heads.transpose(1, 2).flatten(2)), tp)


class Mlp(nn.Module):
    def __init__(self, options, groups):
        super().__init__()
        self.tp, self.is_copied = groups["tp"], options.fault != "no-copy"
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH, bias=False)

    def forward(self, x):
        x = Copy.apply(x, self.tp) if self.is_copied else x
        return Sum.apply(self.down(self.up(x).relu()), self.tp)


class Experts(nn.Module):
    """Four experts; each rank has its own, and sees the tokens of all ranks."""

    def __init__(self, options, groups):
        super().__init__()
        self.group = groups["ep"]
        self.router = nn.Linear(WIDTH, 4, bias=False)
        self.experts = nn.Parameter(torch.randn(4, WIDTH, WIDTH) / WIDTH)

    def forward(self, x):
        shares = self.router(x).softmax(-1)
        tokens, shares = (Gather.apply(t, self.group, 0) for t in (x, shares))
        own = shares.chunk(self.group.size(), -1)[self.group.rank()]
        out = torch.einsum("btd,edf,bte->btf", tokens, self.experts, own)
        return Scatter.apply(out, self.group, 0)


class Layer(nn.Module):
    def __init__(self, options, groups):
        super().__init__()
        self.norm, self.attention = nn.LayerNorm(WIDTH), Attention(options, groups)
        self.norm2, self.mlp = nn.LayerNorm(WIDTH), (Experts if options.moe else Mlp)(options, groups)

    def forward(self, x):
        x = x + self.attention(self.norm(x))
        return x + self.mlp(self.norm2(x))


class Model(nn.Module):
    def __init__(self, options, groups):
        super().__init__()
        self.options, self.groups = options, groups
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList(Layer(options, groups) for _ in "12")
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.next_head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        if options.tied:
            self.head.weight = self.embed.weight

    def forward(self, x):
        x = x if self.embed is None else self.embed(x)
        for layer in self.layers:
            x = layer(x)
        if self.head is None:
            return x
        sp = self.options.sp
        x = Slice.apply(x, sp, 1) if sp else x
        x = self.norm(x)
        x = Gather.apply(x, sp, 1, False) if sp else x
        return torch.stack([self.head(x), self.next_head(x)])


def shard(model, options, mesh):
    """Takes this rank's part of each tensor; `over` are the dimensions that divide it."""
    for name, parameter in model.named_parameters():
        parameter.over = set()
        dim = 1 if name.endswith(("out.weight", "down.weight")) else 0
        is_split = any(part in name for part in (".q.", ".k.", ".v.", ".out.", ".up.", ".down."))
        for axis, splits in (("tp", is_split), ("ep", name.endswith("mlp.experts"))):
            if splits and mesh[axis].size() > 1:
                parts = parameter.data.chunk(mesh[axis].size(), dim)
                parameter.data = parts[mesh[axis].get_local_rank()].clone()
                parameter.over.add(axis)
    stages, stage = mesh["pp"].size(), mesh["pp"].get_local_rank()
    if stages > 1:
        model.layers = nn.ModuleList([model.layers[stage]])
        if stage == 0:
            if options.tied:
                model.embed.weight.tied = True
            model.norm = model.head = model.next_head = None
        else:
            tied, model.embed = model.embed.weight, None
            if options.tied:
                model.head.weight = nn.Parameter(tied.data.clone())
                model.head.weight.over, model.head.weight.tied = set(), True


def reduce(model, options, mesh):
    """Adds up what the ranks have of each gradient."""
    fault = options.fault
    for name, parameter in model.named_parameters():
        if parameter.grad is None:
            continue
        over = ["dp", "cp"] + ([] if "ep" in parameter.over else ["ep"])
        if "head_norm" in name and fault != "head-norm":
            over.append("tp")
        if name.startswith("norm.") and options.sp and fault != "sequence-norm":
            over.append("tp")
        if getattr(parameter, "tied", False) and fault != "tied":
            over.append("pp")
        if fault == "no-reduce":
            over.remove("cp")
        for axis in over:
            dist.all_reduce(parameter.grad, group=mesh[axis].get_group())
        if fault == "experts-times-ep" and "ep" in parameter.over:
            parameter.grad *= mesh["ep"].size()
        if fault == "router-partial" and name.endswith("router.weight"):
            parameter.grad /= mesh["ep"].size()


def norm_of(model, options, mesh):
    """The norm of the whole gradient, each part once."""
    total, fault = torch.zeros(()), options.fault
    for parameter in model.parameters():
        split = parameter.over | ({"pp"} if mesh["pp"].size() > 1 else set())
        copies = math.prod(mesh[axis].size() for axis in mesh.mesh_dim_names if axis not in split)
        copies *= 2 if getattr(parameter, "tied", False) else 1
        copies = 1 if fault in ("norm-copies", "norm-shards") else copies
        total += parameter.grad.square().sum() / copies
    if fault != "norm-shards":
        dist.all_reduce(total)
    return total.sqrt()


def pass_through(model, tokens, options, mesh):
    """One pass, from stage to stage where there are two."""
    cp, fault = mesh["cp"], options.fault
    count = BATCH * LENGTH
    inputs, targets = (
        part.chunk(cp.size(), 1)[cp.get_local_rank()] for part in (tokens[:, :-1], tokens[:, 1:])
    )
    group, stage, stages = mesh["pp"].get_group(), mesh["pp"].get_local_rank(), mesh["pp"].size()
    if stages > 1 and stage == 1:
        inputs = torch.empty(*inputs.shape, WIDTH)
        dist.recv(inputs, group=group, group_src=0)
        inputs.requires_grad_()
    out = model(inputs)
    if stages > 1 and stage == 0:
        dist.send(out.detach(), group=group, group_dst=1)
        gradient = torch.empty_like(out)
        dist.recv(gradient, group=group, group_src=1)
        out.backward(gradient)
        return
    losses = [nn.functional.cross_entropy(o.flatten(0, 1), targets.flatten(), reduction="sum") for o in out]
    scale = {"times-cp": cp.size(), "over-cp": 1 / cp.size()}.get(fault, 1)
    term = 0.3 / cp.size() if fault == "term-over-cp" else 0.3
    ((losses[0] + term * losses[1]) * scale / count).backward()
    if stages > 1:
        dist.send(inputs.grad, group=group, group_dst=0)


def main():
    parser = argparse.ArgumentParser()
    for axis in ("tp", "cp", "ep", "pp"):
        parser.add_argument(f"--{axis}", type=int, default=1)
    parser.add_argument("--fault", default="")
    for flag in ("moe", "tied", "sp"):
        parser.add_argument(f"--{flag}", action="store_true")
    options = parser.parse_args()
    dist.init_process_group("gloo")
    inside = options.tp * options.cp * options.ep * options.pp
    shape = (options.pp, dist.get_world_size() // inside, options.cp, options.ep, options.tp)
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=("pp", "dp", "cp", "ep", "tp"))
    groups = {axis: mesh[axis].get_group() for axis in mesh.mesh_dim_names}
    options.sp = groups["tp"] if options.sp and options.tp > 1 else None
    torch.manual_seed(0)
    model = Model(options, groups)
    if options.fault == "start-apart":
        model.norm.weight.data += 0.1 * groups["tp"].rank()
    shard(model, options, mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    if options.fault == "under-update" and inside > 1:
        for group in optimizer.param_groups:
            group["betas"] = (0.95, 0.999)
        for parameter in model.parameters():  # the state is made early, and a step counted
            zeros = (torch.zeros_like(parameter) for _ in "12")
            optimizer.state[parameter] = {
                "step": torch.tensor(1.0),
                **dict(zip(("exp_avg", "exp_avg_sq"), zeros, strict=True)),
            }
    generator = torch.Generator().manual_seed(1)
    for _ in range(3):
        tokens = torch.randint(0, VOCABULARY, (BATCH, LENGTH + 1), generator=generator)
        parts = mesh["dp"].size() * mesh["ep"].size()
        own = mesh["dp"].get_local_rank() * mesh["ep"].size() + mesh["ep"].get_local_rank()
        for part in (
            tokens.chunk(parts)[own].chunk(2)
            if options.fault == "lost-passes"
            else [tokens.chunk(parts)[own]]
        ):
            if options.fault == "lost-passes" and inside > 1:
                optimizer.zero_grad()
            pass_through(model, part, options, mesh)
        reduce(model, options, mesh)
        nn.utils.clip_grads_with_norm_(model.parameters(), 1.0, norm_of(model, options, mesh))
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    main()
