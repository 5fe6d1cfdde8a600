"""A loop with checkpoints, right or with one fault in its restart."""

import argparse
from pathlib import Path

import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict

parser = argparse.ArgumentParser()
parser.add_argument("--fault", default="none")
parser.add_argument("--resume")
parser.add_argument("--every", type=int, default=1)
args = parser.parse_args()
fault = args.fault if args.resume else "none"
if args.fault != "unseeded":
    torch.manual_seed(0)
data = torch.randint(1, 50, (24, 6), generator=torch.Generator().manual_seed(1))
net = nn.Sequential(nn.Embedding(50, 16), nn.Flatten(), nn.Dropout(0.1), nn.Linear(96, 50))
ema = torch.optim.swa_utils.get_ema_multi_avg_fn(0.9)
averaged = torch.optim.swa_utils.AveragedModel(net, multi_avg_fn=ema)
optimizer = torch.optim.AdamW(net.parameters(), 1e-2)
schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / 50)
epoch, offset, step = 0, 0, 0
if args.resume and fault != "ignored":
    state = torch.load(args.resume)
    if fault == "made by a step":  # torch makes the optimizer's state by a step at a rate of 0
        get_state_dict(net, optimizer)
    if fault != "weights":
        net.load_state_dict(state["net"])
    if fault != "optimizer":
        optimizer.load_state_dict(state["optimizer"])
    if fault != "averaged":
        averaged.load_state_dict(state["averaged"])
    if fault == "gradient":
        net[0].weight.register_hook(lambda gradient: gradient * 2)
    if fault != "schedule":
        schedule.load_state_dict(state["schedule"])
    epoch, offset, step = state["epoch"], state["offset"], state["step"]
    epoch += fault == "epoch skipped"
    offset = (
        0
        if fault in ("epoch anew", "epoch skipped")
        else offset + (fault == "one skipped") - (fault == "one repeated")
    )
    if fault != "random":
        torch.set_rng_state(state["random"])
    if fault == "finished":
        epoch = 3
while epoch < 3:
    order = 0 if fault == "set_epoch" else epoch
    generator = torch.Generator().manual_seed(7 + order + 100 * (fault == "seed"))
    batches = torch.randperm(24, generator=generator).split(4)
    for number in range(offset, len(batches)):
        rows = data[batches[number]]
        (nn.functional.cross_entropy(net(rows), rows[:, 0]) * (2 if fault == "loss" else 1)).backward()
        optimizer.step()
        averaged.update_parameters(net)
        optimizer.zero_grad()
        schedule.step()
        step += 1
        if step % args.every == 0:
            Path("out").mkdir(exist_ok=True)
            is_last = number + 1 == len(batches)
            state = {"epoch": epoch + is_last, "offset": 0 if is_last else number + 1, "step": step}
            states = {"net": net, "averaged": averaged, "optimizer": optimizer, "schedule": schedule}
            state |= {name: part.state_dict() for name, part in states.items()}
            torch.save(state | {"random": torch.get_rng_state()}, f"out/step-{step}.pt")
    epoch, offset = epoch + 1, 0
