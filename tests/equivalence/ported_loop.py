"""A plain loop, ported to ranks or rewritten: python ported_loop.py --kind old, or a port's fault."""

import argparse
import contextlib
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class Wrapped(nn.Module):
    """Another class around the model, with the loss in it and its own names."""

    def __init__(self, model, *, total):
        super().__init__()
        self.inner = model
        self.loss = nn.CrossEntropyLoss(reduction="sum" if total else "mean")

    def forward(self, features, labels):
        return self.loss(self.inner(features), labels)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--kind", default="old")
    parser.add_argument("--batch_size", type=int, default=4)
    parser.add_argument("--accum_steps", type=int, default=1)
    args = parser.parse_args()
    kind = args.kind
    if "WORLD_SIZE" in os.environ:
        dist.init_process_group("gloo")
    torch.manual_seed(3 if kind in ("seed", "narrow") else 0)
    model = nn.Sequential(nn.Linear(5, 24 if kind == "wider" else 16), nn.Tanh(), nn.LazyLinear(3))
    model(torch.zeros(1, 5))
    if kind == "narrow":
        model[0].weight.data *= 0.5
    generator = torch.Generator().manual_seed(9 if kind == "data" else 1)
    count = 48 if kind == "fewer rows" else 64
    rows = torch.randn(count, 5, generator=generator), torch.randint(0, 3, (count,), generator=generator)
    data = TensorDataset(*rows)
    net = model if kind == "old" else Wrapped(model, total=kind == "sum")
    net = nn.parallel.DistributedDataParallel(net) if dist.is_initialized() else net
    groups = [model.parameters()] if kind == "old" else [model[2].parameters(), model[0].parameters()]
    rate = 1e-3 * (dist.get_world_size() if kind == "rate" else 1)
    optimizer = torch.optim.AdamW([{"params": [*group]} for group in groups], rate)
    sampler = DistributedSampler(data) if dist.is_initialized() else None
    loader = DataLoader(data, args.batch_size, sampler=sampler, shuffle=sampler is None)
    for number, (features, labels) in enumerate(loader, 1):
        last = number % args.accum_steps == 0
        with net.no_sync() if dist.is_initialized() and not last else contextlib.nullcontext():
            if kind == "old":
                loss = nn.functional.cross_entropy(net(features), labels)
            else:
                loss = net(labels=labels, features=features)
            (loss / (1 if kind == "passes" else args.accum_steps)).backward()
        if kind == "clip" or (last and kind != "no clip"):
            nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        if last:
            optimizer.step()
            optimizer.zero_grad()


if __name__ == "__main__":
    main()
