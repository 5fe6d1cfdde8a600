"""A loop over any ranks with checkpoints; `per rank` is a fault: each rank takes a whole batch."""

import argparse
import os
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--batch_size", type=int, default=4)
parser.add_argument("--accum_steps", type=int, default=1)
parser.add_argument("--fault", default="none")
parser.add_argument("--resume")
args = parser.parse_args()
rank, ranks = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
if ranks > 1:
    torch.distributed.init_process_group("gloo")
torch.manual_seed(0)
data = TensorDataset(torch.randn(48, 6), torch.arange(48) % 3)
net = nn.Linear(6, 3)
optimizer = torch.optim.AdamW(net.parameters(), 1e-2)
step = 0
if args.resume:
    state = torch.load(args.resume)
    net.load_state_dict(state["net"])
    optimizer.load_state_dict(state["optimizer"])
    step = state["step"]
sampler = DistributedSampler(data, ranks, rank, shuffle=True)
loader = DataLoader(data, args.batch_size // (1 if args.fault == "per rank" else ranks), sampler=sampler)
steps = len(loader) // args.accum_steps
for epoch in range(step // steps, 3):
    sampler.set_epoch(epoch)
    for number, (x, y) in enumerate(loader):
        if epoch * steps + number // args.accum_steps < step:
            continue
        (nn.functional.cross_entropy(net(x), y) / args.accum_steps).backward()
        if (number + 1) % args.accum_steps:
            continue
        for tensor in net.parameters():
            if ranks > 1:
                torch.distributed.all_reduce(tensor.grad)
                tensor.grad /= ranks
        optimizer.step()
        optimizer.zero_grad()
        step += 1
        if rank == 0:
            Path("out").mkdir(exist_ok=True)
            states = {"net": net.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
            torch.save(states, f"out/step-{step}.pt")
