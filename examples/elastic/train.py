"""A training that torchrun may restart on any number of processes.

The lines marked `ours` are all that it needs.

TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 torchrun --nnodes 2:5 --max-restarts 9 ... examples/elastic/train.py
--folder run
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

import isobatch as ib
from isobatch.integrations.torch import ElasticRun

WORDS, LONGEST, SAMPLES = 29, 12, 500
RECIPE = ib.Recipe(
    effective_batch=24, lr=0.01, optimizer="adamw", dataset_size=SAMPLES, duration="4ep", warmup="1ep"
)


class Sequences(torch.utils.data.Dataset):
    """Sequences of unequal length, some of whose labels do not count."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> tuple[int, torch.Tensor, torch.Tensor]:
        random = torch.Generator().manual_seed(index)
        words = torch.randint(
            1, WORDS, (int(torch.randint(2, LONGEST, (1,), generator=random)),), generator=random
        )
        labels = (words * 3 + 1) % WORDS
        labels[torch.rand(len(words), generator=random) < 0.2] = -100
        labels[-1] = words[-1]
        return index, words, labels


def collate(
    rows: list[tuple[int, torch.Tensor, torch.Tensor]],
) -> tuple[list[int], torch.Tensor, torch.Tensor]:
    indices, words, labels = zip(*rows, strict=True)
    pad = nn.utils.rnn.pad_sequence
    return [*indices], pad([*words], batch_first=True), pad([*labels], batch_first=True, padding_value=-100)


def loss_of(model: nn.Module, words: torch.Tensor, labels: torch.Tensor, by_tokens: bool) -> torch.Tensor:
    """The mean over tokens; or over samples, each the mean over its tokens."""
    losses = cross_entropy(model(words).flatten(0, 1), labels.flatten(), reduction="none").view_as(labels)
    counted = labels != -100
    if by_tokens:
        return losses.sum() / counted.sum().clamp(min=1)
    return (losses.sum(1) / counted.sum(1)).mean()


def save(path: Path, checkpoint: dict) -> None:
    """Whole or not at all: a kill in the middle leaves the one before."""
    torch.save(checkpoint, path.with_suffix(".new"))
    path.with_suffix(".new").replace(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, required=True, help="for the checkpoint and the steps' log")
    parser.add_argument("--tokens", action="store_true", help="the loss is a mean over tokens")
    parser.add_argument("--every", type=int, default=5, help="steps between checkpoints")
    parser.add_argument("--pause", type=float, default=0.0, help="seconds that a step lasts longer")
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)
    if "RANK" in os.environ:
        dist.init_process_group("gloo")
    args.folder.mkdir(exist_ok=True, parents=True)
    path = args.folder / "checkpoint.pt"
    checkpoint = torch.load(path) if path.exists() else {}

    torch.manual_seed(0)
    net = nn.Sequential(nn.Embedding(WORDS, 24), nn.Linear(24, 48), nn.Tanh(), nn.Linear(48, WORDS))
    model = DistributedDataParallel(net) if dist.is_initialized() else net
    optimizer = torch.optim.AdamW(model.parameters(), lr=RECIPE.lr)

    run = ElasticRun(RECIPE, max_micro_batch=3, split="uneven", state=checkpoint.get("run"))  # ours
    loader = run.loader(Sequences(), collate_fn=collate)  # ours
    scheduler = run.scheduler(optimizer)  # ours
    if checkpoint:
        net.load_state_dict(checkpoint["model"])
        optimizer.load_state_dict(checkpoint["optimizer"])

    started = torch.tensor(time.time_ns())
    if dist.is_initialized():
        dist.broadcast(started, 0)
    log = (args.folder / f"log-{started.item()}-{run.world.rank}.jsonl").open("w", buffering=1)
    tokens = (lambda batch: (batch[2] != -100).sum()) if args.tokens else None
    for step in run.steps(loader, tokens):  # ours
        samples, total = [], 0.0
        for micro in step:  # ours
            indices, words, labels = micro.batch
            with micro.sync(model):  # ours
                loss = loss_of(model, words, labels, args.tokens) * micro.weight  # ours
                samples += [] if micro.stand_in else indices
                total += loss.item() / run.share[1]
                if micro.last:  # before this rank's share can enter the step
                    lr = optimizer.param_groups[0]["lr"]
                    line = {"step": step.number, "epoch": step.epoch, "ids": samples, "lr": lr, "loss": total}
                    log.write(json.dumps({**line, "of": run.share[1]}) + "\n")
                loss.backward()
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        time.sleep(args.pause)
        due = (step.number + 1) % args.every == 0 or run.stopping or run.finished
        if due and run.world.rank == 0:
            state = {"model": net.state_dict(), "optimizer": optimizer.state_dict(), "run": run.state_dict()}
            save(path, state)
        if run.stopping:
            break
    if dist.is_initialized():
        dist.destroy_process_group()
    sys.exit(0 if run.finished else 1)  # 0 tells torchrun that nothing is left to do


if __name__ == "__main__":
    main()
