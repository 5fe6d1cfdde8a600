"""A plain DDP loop, right or with one fault: python loop.py --micro M --accum A --fault NAME."""

import argparse
import contextlib
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler


class Net(nn.Module):
    def __init__(self, normalized):
        super().__init__()
        self.embed, self.hidden, self.head = nn.Embedding(50, 16), nn.Linear(16, 32), nn.Linear(32, 50)
        self.norm = nn.BatchNorm1d(32) if normalized else nn.Identity()

    def forward(self, tokens):
        hidden = self.norm(torch.tanh(self.hidden(self.embed(tokens))).mean(1))
        return self.head(nn.functional.dropout(hidden, 0.1, self.training))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--micro", type=int)
    parser.add_argument("--accum", type=int)
    parser.add_argument("--fault", default="none")
    parser.add_argument("--mark")
    args = parser.parse_args()
    fault = args.fault
    if fault == "ignores its split":
        args.micro, args.accum = 4, 2
    ranks, rank = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("RANK", "0"))
    if fault == "dies":
        raise SystemExit("there is no data")
    if fault == "hangs":
        if args.mark:
            with Path(args.mark).open("a") as file:
                file.write(f"{os.getpid()}\n")
        time.sleep(600)
    if ranks > 1 and fault != "alone":
        dist.init_process_group("gloo")
    torch.manual_seed(0)
    net = Net(normalized=fault == "batch norm")
    model = nn.parallel.DistributedDataParallel(net) if dist.is_initialized() and fault != "no ddp" else net
    generator = torch.Generator().manual_seed(1)
    data = [torch.randint(1, 50, (6,), generator=generator) for _ in range(20 if fault == "window" else 256)]
    share = (1, 0) if fault == "same data" else (ranks, rank)
    loader = DataLoader(data, args.micro, sampler=DistributedSampler(data, *share, shuffle=True))
    decay = 0.1 / ranks if fault == "decay by ranks" else 0.1
    optimizer = torch.optim.AdamW(net.parameters(), 1e-3, weight_decay=decay)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: max(0.0, 1 - step / 50))
    if fault == "cosine of passes":
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 9000 * len(loader))
    if fault == "rate of a finished run":
        optimizer.param_groups[0]["lr"] = schedule.base_lrs[0] = 0.0
    for _epoch in range(3):
        batches = list(loader)
        for number, tokens in enumerate(batches):
            last = (number + 1) % args.accum == 0 or number + 1 == len(batches)
            window = min(args.accum, len(batches) - number // args.accum * args.accum)
            quiet = model.no_sync() if model is not net and not last else contextlib.nullcontext()
            with quiet:
                if fault == "noise":
                    torch.randn(3)
                loss = nn.functional.cross_entropy(model(tokens), tokens[:, 0])
                if fault == "sum":
                    loss = loss * len(tokens)
                if fault != "accumulation":
                    loss = loss / (args.accum if fault == "window" else window)
                if fault in ("nan", "zero"):
                    loss = loss * (float("nan") if fault == "nan" else 0.0)
                if fault != "no optimizer":
                    loss.backward()
            if fault == "clip each pass":
                nn.utils.clip_grad_norm_(net.parameters(), 0.1)
            if fault == "schedule each pass":
                schedule.step()
            if last and fault != "no optimizer":
                nn.utils.clip_grad_norm_(net.parameters(), 1.0)
                optimizer.step()
                if fault == "weights by passes":
                    net.head.weight.data *= 1 - 1e-4 * args.accum
                optimizer.zero_grad()
                if fault != "schedule each pass":
                    schedule.step()
            elif fault == "zero each pass":
                optimizer.zero_grad()


if __name__ == "__main__":
    main()
