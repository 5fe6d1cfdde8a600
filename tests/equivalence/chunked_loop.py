"""An ElasticRun in chunks, or with DDP: python chunked_loop.py --batch B --chunk C [--plain]."""

import argparse
import os

import torch
import torch.distributed as dist
from torch import nn

import isobatch as ib
from isobatch.integrations.torch import ElasticRun


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int)
    parser.add_argument("--chunk", type=int)
    parser.add_argument("--plain", action="store_true")
    args = parser.parse_args()
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        dist.init_process_group("gloo")
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 64), nn.Dropout(0.1), nn.Linear(64, 1))
    recipe = ib.Recipe(
        effective_batch=args.batch, lr=0.01, optimizer="adamw", dataset_size=120, duration="9ep"
    )
    run = ElasticRun(recipe, **({"max_micro_batch": args.chunk} if args.plain else {"chunk": args.chunk}))
    model, optimizer = run.wrap(net), torch.optim.AdamW(net.parameters())
    scheduler = run.scheduler(optimizer)
    for step in run.steps(run.loader(torch.randn(120, 8))):
        for micro in step:
            with micro.sync(model):
                (model(micro.batch).square().mean() * micro.weight).backward()
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    main()
