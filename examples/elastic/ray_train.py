"""A training that Ray Train may start again on any number of workers.

The lines marked `ours` are all that it needs.

python examples/elastic/ray_train.py --folder /tmp/run --workers 1 2
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import ray.train
import torch
from ray.train.torch import TorchTrainer, prepare_model
from torch.nn.functional import mse_loss

import isobatch as ib
from isobatch.integrations.elastic_ray import elastic_run, report

RECIPE = ib.Recipe(
    effective_batch=12, lr=0.05, optimizer="sgd", dataset_size=70, duration="3ep", warmup="1ep"
)


def train(config: dict[str, Any]) -> None:
    """The training of each worker, after each start from the last checkpoint."""
    torch.manual_seed(0)
    rows = torch.randn(RECIPE.dataset_size, 4, dtype=torch.float64)
    model = prepare_model(torch.nn.Linear(3, 1).double())
    optimizer = torch.optim.SGD(model.parameters(), lr=RECIPE.lr)
    run, saved = elastic_run(RECIPE, max_micro_batch=2, split="uneven")  # ours
    loader, scheduler = run.loader(rows), run.scheduler(optimizer)  # ours
    own = getattr(model, "module", model)  # of one worker Ray makes no DDP
    if saved:
        own.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
    for step in run.steps(loader):  # ours
        for micro in step:
            x, y = micro.batch[:, :3], micro.batch[:, 3:]
            with micro.sync(model):  # ours
                loss = mse_loss(model(x), y)
                (loss * micro.weight).backward()  # ours
        lr = optimizer.param_groups[0]["lr"]
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        if run.finished or (step.number + 1) % config["every"] == 0:
            metrics = {"loss": loss.item(), "lr": lr, "workers": run.world.size}
            report(run, metrics, {"model": own.state_dict(), "optimizer": optimizer.state_dict()})  # ours


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, required=True, help="for Ray's checkpoints")
    parser.add_argument(
        "--workers", type=int, nargs="+", default=[1, 2], help="how many, or the least and the most"
    )
    parser.add_argument("--every", type=int, default=3, help="steps between checkpoints")
    args = parser.parse_args()
    workers = tuple(args.workers) if len(args.workers) > 1 else args.workers[0]
    trainer = TorchTrainer(
        train,
        train_loop_config={"every": args.every},
        scaling_config=ray.train.ScalingConfig(num_workers=workers),
        run_config=ray.train.RunConfig(
            name="run", storage_path=str(args.folder), failure_config=ray.train.FailureConfig(max_failures=-1)
        ),
    )
    print(trainer.fit().metrics)


if __name__ == "__main__":
    main()
