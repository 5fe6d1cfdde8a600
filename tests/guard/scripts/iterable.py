"""A stream: an IterableDataset that deals its shards out to ranks and workers, buffered shuffling, a run of so many steps."""

import contextlib
import random

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

SHARDS, RECORDS = 16, 60


class Stream(IterableDataset):
    """Records of this rank's and this worker's shards, without an end, by way of a shuffle buffer."""

    def __iter__(self):
        info = get_worker_info()
        workers, worker = (info.num_workers, info.id) if info else (1, 0)
        mine = range(SHARDS)[dist.get_rank() * workers + worker :: dist.get_world_size() * workers]
        chance, buffer = random.Random(mine[0]), []
        while True:
            for shard in mine:
                draw = torch.Generator().manual_seed(shard)
                for _ in range(RECORDS):
                    record = torch.randn(6, generator=draw), torch.randint(4, (), generator=draw)
                    if len(buffer) < 20:
                        buffer.append(record)
                        continue
                    at = chance.randrange(20)
                    yield buffer[at]
                    buffer[at] = record


def main(plan, guard, folder, *, clip="norm"):
    """Trains for the plan's steps."""
    torch.manual_seed(0)
    loader = DataLoader(Stream(), batch_size=plan.micro_batch, num_workers=2)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 4)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=plan.lr)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: plan.lr_at(step) / plan.lr)
    watch = guard(plan, loss=lambda model, batch: functional.cross_entropy(model(batch[0]), batch[1]))
    watch.attach(model, optimizer, loader)
    stream = iter(loader)
    for step in range(plan.total_steps):
        for micro in range(plan.accumulation):
            x, y = next(stream)
            with contextlib.nullcontext() if micro + 1 == plan.accumulation else model.no_sync():
                (functional.cross_entropy(model(x), y) / plan.accumulation).backward()
        if clip == "norm":
            nn.utils.clip_grad_norm_(model.parameters(), plan.recipe.clip_norm or 1.0)
        else:
            nn.utils.clip_grad_value_(model.parameters(), 0.01)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        if step % 3 == 2:
            model.eval()
            with torch.no_grad():
                functional.cross_entropy(model(x), y)
            model.train()
            if dist.get_rank() == 0:
                torch.save(model.module.state_dict(), folder / f"{step}.pt")
    watch.finish()
