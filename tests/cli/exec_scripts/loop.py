"""Trains by a loop of its own without isobatch: DDP, a DistributedSampler, a checkpoint."""

import argparse
import json
import os
import time
from contextlib import nullcontext
from pathlib import Path

import torch
import torch.distributed as dist

parser = argparse.ArgumentParser()
parser.add_argument("--bs", type=int)
parser.add_argument("--accum", type=int)
parser.add_argument("--lr", type=float)
parser.add_argument("--steps", type=int)
parser.add_argument("--warmup", type=int)
parser.add_argument("--folder", type=Path)
parser.add_argument("--pause", type=float, default=0.0)
args = parser.parse_args()

torch.set_default_dtype(torch.float64)
torch.manual_seed(0)
if "RANK" in os.environ:
    dist.init_process_group("gloo")
rank, world = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)

rows = torch.randn(96, 4)
data = torch.utils.data.TensorDataset(torch.arange(96), rows, rows.sum(1, keepdim=True).sin())
net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
model = torch.nn.parallel.DistributedDataParallel(net) if world > 1 else net
optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
scheduler = torch.optim.lr_scheduler.LambdaLR(
    optimizer, lambda at: min(1.0, (at + 1) / args.warmup) * (1 - at / args.steps)
)
file, step = args.folder / "checkpoint.pt", 0
if file.exists():
    saved = torch.load(file)
    net.load_state_dict(saved["net"])
    optimizer.load_state_dict(saved["optimizer"])
    scheduler.load_state_dict(saved["scheduler"])
    step = saved["step"]

log = (args.folder / f"log-{time.time_ns()}-{rank}.jsonl").open("w", buffering=1)
sampler = torch.utils.data.DistributedSampler(data, world, rank, seed=1)
each_epoch = len(data) // (args.bs * args.accum * world)
while step < args.steps:
    sampler.set_epoch(step // each_epoch)
    loader = iter(torch.utils.data.DataLoader(data, args.bs, sampler=sampler, drop_last=True))
    for _ in range(step % each_epoch * args.accum):
        next(loader)
    while step < args.steps:
        samples = []
        for micro in range(args.accum):
            ids, x, y = next(loader)
            samples += ids.tolist()
            with nullcontext() if world == 1 or micro == args.accum - 1 else model.no_sync():
                (torch.nn.functional.mse_loss(model(x), y) / args.accum).backward()
        log.write(json.dumps([step, samples, scheduler.get_last_lr()[0], world]) + "\n")
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        step += 1
        if rank == 0:
            states = {"net": net, "optimizer": optimizer, "scheduler": scheduler}
            torch.save(
                {**{name: of.state_dict() for name, of in states.items()}, "step": step}, f"{file}.new"
            )
            Path(f"{file}.new").replace(file)
        time.sleep(args.pause)
        if step % each_epoch == 0:
            break
