"""A training script of a user's own with settings from ISOBATCH_*: what a launcher's file starts. Prints what
it saw as JSON, on rank 0."""

import json
import os
import sys

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

SETTINGS = {name: value for name, value in os.environ.items() if name.startswith("ISOBATCH_")}
MICRO, ACCUMULATION, STEPS, WARMUP = (
    int(SETTINGS.get(f"ISOBATCH_{name}", 0))
    for name in ("MICRO_BATCH", "ACCUMULATION", "TOTAL_STEPS", "WARMUP_STEPS")
)
PEAK = float(SETTINGS.get("ISOBATCH_LR", 0))


def factor(step):
    """Linear, as ISOBATCH_SCHEDULE says."""
    assert SETTINGS["ISOBATCH_SCHEDULE"] == "linear"
    return step / WARMUP if step < WARMUP else (STEPS - step) / (STEPS - WARMUP)


def plain(data):
    """DDP by torch alone."""
    dist.init_process_group("gloo")
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=PEAK)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
    sampler = DistributedSampler(data)
    loader = DataLoader(data, MICRO, sampler=sampler)
    rates, samples, step_samples = [], [], 0
    while len(rates) < STEPS:
        for index, (x,) in enumerate(loader, start=1):
            (model(x).mean() / ACCUMULATION).backward()
            step_samples += len(x)
            if index % ACCUMULATION == 0 or index == len(loader):
                rates.append(optimizer.param_groups[0]["lr"])
                samples.append(step_samples)
                step_samples = 0
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
    return rates, samples, MICRO * ACCUMULATION * dist.get_world_size()


def accelerated(data):
    """Accelerate; the accumulation comes from its own variable, the precision and the processes from its
    file."""
    sys.modules.setdefault("deepspeed", None)
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True, step_scheduler_with_optimizer=False)
    optimizer = torch.optim.AdamW((model := torch.nn.Linear(3, 1)).parameters(), lr=PEAK)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
    model, wrapped, loader = accelerator.prepare(model, optimizer, DataLoader(data, MICRO, shuffle=True))
    rates, samples, step_samples = [], [], 0
    while len(rates) < STEPS:
        for (x,) in loader:
            with accelerator.accumulate(model):
                accelerator.backward(model(x).mean())
                step_samples += len(x)
                if accelerator.sync_gradients:
                    rates.append(optimizer.param_groups[0]["lr"])
                    samples.append(step_samples)
                    step_samples = 0
                wrapped.step()
                if accelerator.sync_gradients:
                    scheduler.step()
                wrapped.zero_grad()
    batch = MICRO * accelerator.gradient_accumulation_steps * accelerator.num_processes
    return rates, samples, batch


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.manual_seed(0)
    rows = TensorDataset(torch.randn(int(sys.argv[1]), 3))
    lr, own, batch = {"plain": plain, "accelerated": accelerated}[sys.argv[2]](rows)
    total = torch.tensor(own)
    dist.all_reduce(total)
    if dist.get_rank() == 0:
        print(json.dumps({"batch": batch, "lr": lr, "samples": total.tolist(), "arguments": sys.argv[3:]}))
    dist.destroy_process_group()
