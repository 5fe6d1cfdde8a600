"""A user's script with Lightning or with transformers' Trainer, with the mistakes that people make in one."""

from __future__ import annotations

import logging
import os
import sys
import tempfile
import warnings

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import mse_loss
from torch.utils.data import DataLoader, TensorDataset

from isobatch import Plan
from isobatch.integrations import GuardError, guard
from isobatch.integrations.torch import PlanLR


def lightning(plan_json, fault=None):
    """Gives the guard's error, or None; and what it left unchecked."""
    import lightning.pytorch as pl
    from lightning.pytorch.strategies import DDPStrategy

    from isobatch.integrations.lightning import configure_optimizers

    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    plan = Plan.from_json(plan_json)

    class Module(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Dropout(0.3), nn.Linear(8, 3))

        def forward(self, x):
            return self.net(x)

        def training_step(self, batch, _):
            x, y = batch
            if fault == "summed loss":
                return mse_loss(self(x), y, reduction="sum") / y.shape[1]
            return mse_loss(self(x), y)

        def configure_optimizers(self):
            optimizer = torch.optim.SGD(self.parameters(), lr=plan.lr)
            if fault == "another lr":
                return torch.optim.SGD(self.parameters(), lr=2 * plan.lr)
            return configure_optimizers(optimizer, plan)

    torch.manual_seed(0)
    n = plan.recipe.dataset_size
    data = TensorDataset(torch.randn(n, 6), torch.randn(n, 3))
    watch = guard(plan, lambda model, batch: mse_loss(model(batch[0]), batch[1]))
    size = plan.micro_batch // 2 if fault == "another micro-batch" else plan.micro_batch
    with warnings.catch_warnings(), tempfile.TemporaryDirectory() as folder:
        warnings.simplefilter("ignore")
        trainer = pl.Trainer(
            accelerator="cpu",
            devices=dist.get_world_size(),
            strategy=DDPStrategy(process_group_backend="gloo"),
            accumulate_grad_batches=1 if fault == "another accumulation" else plan.accumulation,
            max_epochs=2,
            callbacks=[watch.lightning()],
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            default_root_dir=folder,
        )
        try:
            trainer.fit(Module(), DataLoader(data, size, shuffle=True))
        except GuardError as error:
            return error, watch.unchecked
    return None, watch.unchecked


class _Rows(torch.utils.data.Dataset):
    def __init__(self, n):
        self.tokens = torch.randint(32, (n, 8), generator=torch.Generator().manual_seed(1))

    def __len__(self):
        return len(self.tokens)

    def __getitem__(self, index):
        # Rows of different lengths. The first label is no target: not every model tells the Trainer so.
        labels = self.tokens[index].clone()
        labels[0] = labels[8 - index % 4 :] = -100
        return {"input_ids": self.tokens[index], "labels": labels}


def transformers(plan_json, fault=None):
    """Likewise."""
    os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_OFFLINE="1", ACCELERATE_USE_CPU="true")
    sys.modules.setdefault("deepspeed", None)  # accelerate would import it, which takes long, or fails
    from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

    plan = Plan.from_json(plan_json)
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=32, n_positions=8, n_embd=16, n_layer=1, n_head=2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=plan.lr * (2 if fault == "another lr" else 1))
    scheduler = (
        torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: 1.0)
        if fault == "another lr"
        else PlanLR(optimizer, plan)
    )
    watch = guard(plan)
    size = plan.micro_batch // 2 if fault == "another micro-batch" else plan.micro_batch
    with warnings.catch_warnings(), tempfile.TemporaryDirectory() as folder:
        warnings.simplefilter("ignore")
        arguments = TrainingArguments(
            folder,
            per_device_train_batch_size=size,
            gradient_accumulation_steps=1 if fault == "another accumulation" else plan.accumulation,
            max_grad_norm=0.0,
            num_train_epochs=2,
            use_cpu=True,
            ddp_backend="gloo",
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
            logging_strategy="no",
            dataloader_drop_last=fault == "drop_last",
        )
        trainer = Trainer(
            model,
            arguments,
            train_dataset=_Rows(plan.recipe.dataset_size),
            optimizers=(optimizer, scheduler),
            callbacks=[watch.transformers()],
        )
        try:
            trainer.train()
        except GuardError as error:
            return error, watch.unchecked
    return None, watch.unchecked
