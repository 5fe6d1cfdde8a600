"""A loop with Accelerate, with one of its published faults where an option says so."""

import argparse

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn
from torch.utils.data import DataLoader

STEPS = 20


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--per_device_train_batch_size", type=int)
    parser.add_argument("--gradient_accumulation_steps", type=int)
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument(
        "--size-schedule", choices=("steps", "steps-of-all-ranks"), default="steps-of-all-ranks"
    )
    parser.add_argument(
        "--shuffle", action="store_true", help="in random order, each rank with a seed of its own"
    )
    parser.add_argument("--weigh-last-window", action="store_true", help="the workaround of an open issue")
    return parser.parse_args()


def collate_rows(rows: list[torch.Tensor]) -> torch.Tensor:
    return nn.utils.rnn.pad_sequence(rows, batch_first=True)


def make_loader(options: argparse.Namespace) -> DataLoader:
    generator = torch.Generator().manual_seed(1)
    lengths = torch.randint(3, 20, (options.rows,), generator=generator).tolist()
    rows = [torch.randint(1, 50, (length,), generator=generator) for length in lengths]
    return DataLoader(
        rows, options.per_device_train_batch_size, shuffle=options.shuffle, collate_fn=collate_rows
    )


def mean_over_rows(logits: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    losses = nn.functional.cross_entropy(logits.transpose(1, 2), tokens, ignore_index=0, reduction="none")
    return (losses.sum(1) / (tokens != 0).sum(1)).mean()


def main() -> None:
    options = parse_options()
    accumulation = options.gradient_accumulation_steps
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=accumulation)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(50, 16), nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 50))
    set_seed(0, device_specific=options.shuffle)
    loader = make_loader(options)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    ranks = accelerator.num_processes if options.size_schedule == "steps-of-all-ranks" else 1
    scheduler = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: max(0.0, 1 - step / (STEPS * ranks))
    )
    model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
    passes = len(loader)
    for number, tokens in enumerate(loader):
        window = min(accumulation, passes - number // accumulation * accumulation)
        with accelerator.accumulate(model):
            loss = mean_over_rows(model(tokens), tokens)
            if options.weigh_last_window:
                loss = loss * accumulation / window
            accelerator.backward(loss)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()


main()
