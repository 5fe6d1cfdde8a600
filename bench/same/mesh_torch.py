"""A small model under torch's own tensor, data and pipeline parallelism.

torchrun --nproc-per-node 4 mesh_torch.py --tp 2 --kind fsdp2
"""

import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)

VOCABULARY, WIDTH = 32, 16


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        return x + self.down(self.up(self.norm(x)).relu())


def tensor_parallel(model, mesh, kind):
    plan = {}
    for name, module in model.named_modules():
        if isinstance(module, Layer):
            plan |= {f"{name}.up": ColwiseParallel(), f"{name}.down": RowwiseParallel()}
            if kind == "sequence":
                plan |= {
                    f"{name}.norm": SequenceParallel(),
                    f"{name}.up": ColwiseParallel(input_layouts=Shard(1)),
                    f"{name}.down": RowwiseParallel(output_layouts=Shard(1)),
                }
    if kind == "sequence":
        plan["0"] = RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1))
        plan["3"] = ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate())
    if kind == "loss":
        plan["3"] = ColwiseParallel(output_layouts=Shard(-1), use_local_output=False)
    return parallelize_module(model, mesh["tp"], plan)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--tp", type=int, default=1)
    parser.add_argument("--pp", type=int, default=1)
    parser.add_argument("--kind")
    options = parser.parse_args()
    dist.init_process_group("gloo")
    data = dist.get_world_size() // (options.tp * options.pp)
    mesh = init_device_mesh("cpu", (options.pp, data, options.tp), mesh_dim_names=("pp", "dp", "tp"))
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(VOCABULARY, WIDTH), Layer(), Layer(), nn.Linear(WIDTH, VOCABULARY))
    if options.pp > 1:
        stage = mesh["pp"].get_local_rank()
        model = nn.Sequential(*[module for n, module in enumerate(model) if (n > 1) == (stage == 1)])
    if options.tp > 1:
        model = tensor_parallel(model, mesh, options.kind)
    if options.kind in ("fsdp2", "sequence"):
        fully_shard(model, mesh=mesh["dp"])
    if options.kind == "hsdp":
        shape = (1, data, 1, options.tp) if data == 1 else (1, 1, data, options.tp)
        whole = init_device_mesh("cpu", shape, mesh_dim_names=("pp", "replicate", "shard", "tp"))
        fully_shard(model, mesh=whole["replicate", "shard"])

    def loss_of(out, targets):
        return nn.functional.cross_entropy(out.flatten(0, 1), targets.flatten())

    schedule = None
    if options.pp > 1:
        stage = PipelineStage(model, stage, options.pp, torch.device("cpu"), group=mesh["pp"].get_group())
        schedules = {"gpipe": ScheduleGPipe, "1f1b": Schedule1F1B}
        schedule = schedules[options.kind](stage, 2, loss_fn=loss_of)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    generator = torch.Generator().manual_seed(1)
    for _ in range(3):
        tokens = torch.randint(0, VOCABULARY, (4, 9), generator=generator)
        tokens = tokens.chunk(data)[mesh["dp"].get_local_rank()]
        inputs, targets = tokens[:, :-1], tokens[:, 1:]
        if schedule is not None:
            is_first = mesh["pp"].get_local_rank() == 0
            schedule.step(inputs) if is_first else schedule.step(target=targets)
        elif options.kind == "loss" and options.tp > 1:
            with loss_parallel():
                loss_of(model(inputs), targets).backward()
        else:
            loss_of(model(inputs), targets).backward()
        if data > 1 and options.kind not in ("fsdp2", "hsdp", "sequence"):
            for parameter in model.parameters():
                gradient = parameter.grad
                local = gradient.to_local() if hasattr(gradient, "to_local") else gradient
                dist.all_reduce(local, group=mesh["dp"].get_group())
                local /= data
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    main()
