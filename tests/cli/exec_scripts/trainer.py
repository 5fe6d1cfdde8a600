"""Trains by transformers' Trainer without isobatch, and resumes from its last checkpoint."""

import json
import os
import time
from pathlib import Path

import torch
from transformers import HfArgumentParser, Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint

torch.set_default_dtype(torch.float64)
(args,) = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses()
torch.manual_seed(0)
rows = torch.randn(96, 4)
samples = []


class Net(torch.nn.Module):
    """Remembers its samples."""

    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))

    def forward(self, ids, x, labels):
        samples.extend(ids.tolist())
        return {"loss": torch.nn.functional.mse_loss(self.layers(x), labels)}


class Log(TrainerCallback):
    """Writes each step's samples and rate."""

    file = None

    def on_train_begin(self, args, state, control, **_):
        place = Path(args.output_dir).parent / f"log-{time.time_ns()}-{args.process_index}.jsonl"
        self.file = place.open("w", buffering=1)

    def on_pre_optimizer_step(self, args, state, control, lr_scheduler=None, **_):
        self.file.write(
            json.dumps([state.global_step, samples, lr_scheduler.get_last_lr()[0], args.world_size]) + "\n"
        )
        samples.clear()
        time.sleep(float(os.environ.get("PAUSE", "0")))


data = [{"ids": at, "x": row, "labels": row.sum().sin()[None]} for at, row in enumerate(rows)]
trainer = Trainer(Net(), args, train_dataset=data, callbacks=[Log()])
trainer.train(
    resume_from_checkpoint=get_last_checkpoint(args.output_dir) if Path(args.output_dir).exists() else None
)
if args.process_index == 0:
    torch.save({"net": trainer.model.state_dict()}, Path(args.output_dir).parent / "checkpoint.pt")
