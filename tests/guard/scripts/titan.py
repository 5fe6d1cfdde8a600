"""torchtitan's form: FSDP2 for each block and the root, activation checkpoints, a model made on the meta
device, an iterable stream with its place in it, containers for optimizers and schedulers, the loss over the
step's tokens, clipping of sharded gradients.
"""

import functools

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.checkpoint.state_dict import get_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn import functional
from torch.utils.data import IterableDataset

VOCABULARY, WIDTH, LENGTH = 32, 16, 8


class Block(nn.Module):
    """A residual perceptron."""

    def __init__(self):
        super().__init__()
        self.norm = nn.RMSNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 32, bias=False), nn.Linear(32, WIDTH, bias=False)

    def forward(self, x):
        return x + self.down(functional.silu(self.up(self.norm(x))))


class Transformer(nn.Module):
    """Embedding, blocks and an output layer."""

    def __init__(self):
        super().__init__()
        self.tok_embeddings = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleDict({str(i): Block() for i in range(2)})
        self.norm, self.output = nn.RMSNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY, bias=False)

    def init_weights(self):
        """After to_empty."""
        for p in self.parameters():
            nn.init.ones_(p) if p.dim() == 1 else nn.init.normal_(p, std=0.2)

    def forward(self, tokens):
        h = self.tok_embeddings(tokens)
        for layer in self.layers.values():
            h = layer(h)
        return self.output(self.norm(h))


class Text(IterableDataset):
    """A stream of blocks of tokens, each rank its own."""

    def __init__(self, rank):
        self.rank, self.sample_idx = rank, 0

    def __iter__(self):
        worker = torch.utils.data.get_worker_info()
        seed = 1000 * self.rank + (worker.id if worker else 0)
        draw = torch.Generator().manual_seed(seed)
        while True:
            self.sample_idx += 1
            x = torch.randint(VOCABULARY, (LENGTH + 1,), generator=draw)
            yield {"input": x[:-1]}, x[1:]


class OptimizersContainer(torch.optim.Optimizer):
    """Steps one optimizer for each part of the model."""

    def __init__(self, model_parts, **settings):
        self.optimizers = [torch.optim.AdamW(part.parameters(), **settings) for part in model_parts]
        every = [p for part in model_parts for p in part.parameters()]
        torch.optim.Optimizer.__init__(self, every, settings)

    def step(self, *args, **kwargs):
        for optimizer in self.optimizers:
            optimizer.step(*args, **kwargs)

    def zero_grad(self, *args, **kwargs):
        super().zero_grad(*args, **kwargs)
        for optimizer in self.optimizers:
            optimizer.zero_grad(*args, **kwargs)


def cross_entropy_loss(pred, labels, reduction="mean"):
    """Over all tokens."""
    return functional.cross_entropy(pred.flatten(0, 1).float(), labels.flatten(0, 1), reduction=reduction)


def main(plan, guard, folder, *, clip="norm", by_tokens=False, contained=True, ac=True):
    """Trains for the plan's steps.

    Args:
        by_tokens: divides by the step's tokens over all ranks, with a wrapper that sums, as torchtitan does
            it now; else the mean of micro-batches, with one that averages, as it did.
        contained: the guard is given the container; else the optimizer in it.
    """
    torch.manual_seed(0)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("fsdp",))
    with torch.device("meta"):
        model = Transformer()
    for name, layer in model.layers.items():
        model.layers[name] = checkpoint_wrapper(layer) if ac else layer
        fully_shard(model.layers[name], mesh=mesh)
    fully_shard(model, mesh=mesh)
    model.to_empty(device="cpu")
    with torch.no_grad():
        model.init_weights()
    model.train()
    if by_tokens:
        for module in model.modules():
            if hasattr(module, "set_gradient_divide_factor"):
                module.set_gradient_divide_factor(1.0)
                module.set_force_sum_reduction_for_comms(True)  # gloo has no premultiplied sum
    optimizers = OptimizersContainer([model], lr=plan.lr, betas=(0.9, 0.95), weight_decay=0.1)
    shape = functools.partial(lambda plan, step: plan.lr_at(step) / plan.lr, plan)
    schedulers = [torch.optim.lr_scheduler.LambdaLR(optimizer, shape) for optimizer in optimizers.optimizers]

    text = Text(dist.get_rank())
    loader = torch.utils.data.DataLoader(text, batch_size=plan.micro_batch, num_workers=1)

    def reference(model, batch):
        return cross_entropy_loss(model(batch[0]["input"]), batch[1])

    watch = guard(plan, loss=reference)
    watch.attach(model, optimizers if contained else optimizers.optimizers[0], loader)
    stream = iter(loader)
    for step in range(1, plan.total_steps + 1):
        optimizers.zero_grad()
        micro_batches = [next(stream) for _ in range(plan.accumulation)]
        tokens = torch.tensor(sum(labels.numel() for _, labels in micro_batches))
        dist.all_reduce(tokens)
        for input_dict, labels in micro_batches:
            pred = model(input_dict["input"])
            if by_tokens:
                loss = cross_entropy_loss(pred, labels, "sum") / tokens
            else:
                loss = cross_entropy_loss(pred, labels) / plan.accumulation
            del pred
            loss.backward()
        if clip == "norm":
            nn.utils.clip_grad_norm_(model.parameters(), plan.recipe.clip_norm or 1.0, foreach=True)
        else:
            nn.utils.clip_grad_value_(model.parameters(), 0.01)
        optimizers.step()
        for scheduler in schedulers:
            scheduler.step()
        if step % 3 == 0:
            model.eval()
            with torch.no_grad():
                cross_entropy_loss(model(micro_batches[0][0]["input"]), micro_batches[0][1])
            model.train()
            torch.save(get_model_state_dict(model), folder / f"step-{step}-{dist.get_rank()}.pt")
    watch.finish()
