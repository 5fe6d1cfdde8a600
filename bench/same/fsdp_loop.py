"""A loop by hand around FSDP or DDP, right or with the fault of one published thread.

python fsdp_loop.py fsdp2 --fault FAULT --per_device_train_batch_size 2 --gradient_accumulation_steps 4
"""

import argparse
import contextlib
import os

import torch
from net import Layers
from torch import distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, ShardingStrategy, fully_shard
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

FAULTS = {
    "global-tokens": "divides by all ranks' tokens, though the ranks are averaged",
    "token-sums": "leaves the division by the step's tokens out",
    "shard-of-one": "shards over groups of one rank, whose gradients nothing averages",
    "late-flag": "asks for synchronization behind the last pass's forward",
    "unowned-shard": "divides the optimizer over more ranks than there are",
}


class Net(Layers):
    """Sums the loss of the labels, -100 for none."""

    def forward(self, tokens, labels):
        return nn.functional.cross_entropy(self.logits(tokens), labels.flatten(), reduction="sum")


def wrap_model(net: nn.Module, kind: str, fault: str | None) -> nn.Module:
    """Shards or copies the model over the ranks."""
    ranks = distributed.get_world_size()
    if kind in ("ddp", "zero1"):
        return DDP(net)
    if kind == "fsdp2":
        for layer in net.layers:
            fully_shard(layer)
        return fully_shard(net)
    settings = {"device_id": torch.device("cpu"), "use_orig_params": True}
    if fault == "shard-of-one":
        mesh = init_device_mesh("cpu", (ranks, 1), mesh_dim_names=("ddp", "fsdp"))
        return FSDP(net, device_mesh=mesh, sharding_strategy=ShardingStrategy.HYBRID_SHARD, **settings)
    return FSDP(net, **settings)


@contextlib.contextmanager
def synchronized(model: nn.Module, is_last: bool):
    """Reduces the gradients of a step's last pass alone."""
    if isinstance(model, FSDPModule):
        model.set_requires_gradient_sync(is_last)
        yield
    else:
        with contextlib.nullcontext() if is_last else model.no_sync():
            yield


class ShardedAdamW(torch.optim.AdamW):
    """AdamW of which each rank owns some parameters, and hands their weights to the others."""

    def __init__(self, parameters, shards: int):
        super().__init__(parameters, 1e-3)
        self.shards = shards

    def step(self, closure=None):
        parameters = self.param_groups[0]["params"]
        before = [parameter.detach().clone() for parameter in parameters]
        super().step(closure)
        for number, (parameter, weights) in enumerate(zip(parameters, before, strict=True)):
            if number % self.shards < distributed.get_world_size():
                distributed.broadcast(parameter.data, number % self.shards)
            else:  # owned by a rank that is not there
                parameter.data.copy_(weights)


def make_optimizer(model: nn.Module, kind: str, fault: str | None) -> torch.optim.Optimizer:
    """Makes AdamW, divided over the ranks under `zero1`."""
    if kind != "zero1":
        return torch.optim.AdamW(model.parameters(), 1e-3)
    ranks = distributed.get_world_size()
    is_larger = fault == "unowned-shard" and ranks > 1
    return ShardedAdamW(model.parameters(), 2 * ranks if is_larger else ranks)


def count_tokens(passes: list[list[torch.Tensor]]) -> int:
    """Counts the labels of a step on all ranks."""
    count = torch.tensor(sum(int((labels >= 0).sum()) for _, labels in passes))
    distributed.all_reduce(count)
    return int(count)


def take_step(model: nn.Module, passes: list[list[torch.Tensor]], fault: str | None) -> None:
    """Takes a step's passes."""
    tokens, ranks = count_tokens(passes), distributed.get_world_size()
    scale = {"global-tokens": 1 / tokens, "token-sums": 1.0}.get(fault, ranks / tokens)
    for number, batch in enumerate(passes, 1):
        is_last = number == len(passes)
        if fault == "late-flag":
            loss = model(*batch)
            model.require_backward_grad_sync = is_last
            (loss * scale).backward()
            continue
        with synchronized(model, is_last):
            (model(*batch) * scale).backward()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("kind", choices=("ddp", "zero1", "fsdp1", "fsdp2"))
    parser.add_argument("--per_device_train_batch_size", dest="micro_batch", type=int, default=2)
    parser.add_argument("--gradient_accumulation_steps", dest="accumulation", type=int, default=4)
    parser.add_argument("--fault", choices=FAULTS)
    options = parser.parse_args()
    alone = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    for name, value in alone.items():
        os.environ.setdefault(name, value)  # without a launcher
    distributed.init_process_group("gloo")
    torch.manual_seed(0)
    model = wrap_model(Net(), options.kind, options.fault)
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(64, (256, 12), generator=generator)
    prompts = torch.randint(1, 8, (256, 1), generator=generator)
    data = TensorDataset(tokens, tokens.roll(-1, 1).masked_fill(torch.arange(12) < prompts, -100))
    optimizer = make_optimizer(model, options.kind, options.fault)
    passes = []
    for batch in DataLoader(data, options.micro_batch, sampler=DistributedSampler(data, shuffle=False)):
        passes.append(batch)
        if len(passes) == options.accumulation:
            take_step(model, passes, options.fault)
            optimizer.step()
            optimizer.zero_grad()
            passes = []


main()
