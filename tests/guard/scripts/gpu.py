"""Loops on GPUs, by NCCL: `gpu.py '[[KIND, {FIELD: VALUE}], …]'` prints of each the guard's error, or what it
left unchecked and how often the last steps waited for the GPU, if that is imitated.
"""

import contextlib
import json
import os
import sys
import types
import warnings

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import isobatch as ib
from isobatch.guard import GuardError, guard
from isobatch.training.lr import PlanLR


def main(plan, kind):
    """Trains for the plan's epochs."""
    try:
        from cuda_on_cpu import GPU
    except ImportError:  # a real one
        GPU = types.SimpleNamespace(syncs=0)
    torch.manual_seed(0)
    width = 1200 if kind == "large" else 8  # 5.8 MB a gradient, more than is left of the GPU
    data = TensorDataset(
        torch.randn(plan.recipe.dataset_size, width), torch.randn(plan.recipe.dataset_size, 3)
    )
    loader = DataLoader(data, plan.micro_batch, sampler=DistributedSampler(data))
    model = nn.Sequential(nn.Linear(width, width), nn.Dropout(0.1), nn.Tanh(), nn.Linear(width, 3)).to("cuda")
    ddp = DistributedDataParallel(model, device_ids=[torch.cuda.current_device()])
    if kind in ("fused", "capturable"):
        optimizer = torch.optim.AdamW(model.parameters(), lr=plan.lr, **{kind: True})
    else:
        optimizer = torch.optim.SGD(model.parameters(), lr=torch.tensor(plan.lr, device="cuda"))
    scheduler = PlanLR(optimizer, plan)
    halves = {"fp16": torch.float16, "bf16": torch.bfloat16}.get(plan.recipe.precision)
    scaler = torch.amp.GradScaler("cuda", enabled=plan.recipe.precision == "fp16", init_scale=64.0)
    blocks = []
    if kind == "large":  # what is left is asked for when the first gradient is there
        room = torch.cuda.mem_get_info()[0] - (12 << 20)
        blocks.append(torch.empty(room, dtype=torch.uint8, device="cuda"))
    watch = guard(plan, loss=lambda model, batch: mse_loss(model(batch[0]), batch[1]))
    if kind != "unwatched":
        watch.attach(ddp, optimizer, loader)
    called = torch.compile(ddp) if kind == "compiled" else ddp
    if kind == "compiled step":
        optimizer.step = torch.compile(optimizer.step)
    factor = plan.micro_batch if kind == "sum" else 1
    waits = []
    for epoch in range(2):
        loader.sampler.set_epoch(epoch)
        for index, (x, y) in enumerate(loader):
            before, last = GPU.syncs, (index + 1) % plan.accumulation == 0
            with contextlib.nullcontext() if last else ddp.no_sync():
                with torch.autocast("cuda", halves, enabled=halves is not None):
                    loss = mse_loss(called(x.to("cuda")), y.to("cuda")) * factor
                scaler.scale(loss if kind == "no division" else loss / plan.accumulation).backward()
            if last:
                if plan.recipe.clip_norm:
                    if kind != "no unscale":
                        scaler.unscale_(optimizer)
                    nn.utils.clip_grad_norm_(model.parameters(), plan.recipe.clip_norm)
                scaler.step(optimizer)
                scaler.update()
                scheduler.step()
                optimizer.zero_grad()
            waits.append(GPU.syncs - before)
    if kind != "unwatched":
        watch.finish()
    return watch.unchecked, sum(waits[27:45])  # of steps between those at which weights are compared


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    dist.init_process_group("nccl")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    for kind, fields in json.loads(sys.argv[1]):
        known = {"effective_batch": 48, "lr": 0.1, "optimizer": "sgd", "micro_batch": 8, "dataset_size": 384}
        plan = ib.plan(
            ib.Recipe(**{**known, "duration": "2ep", "warmup": "3st", **fields}), dist.get_world_size()
        )
        try:
            printed = main(plan, kind)
        except GuardError as error:
            printed = error.diagnosis
        if dist.get_rank() == 0:
            print(json.dumps(printed))
    dist.destroy_process_group()
