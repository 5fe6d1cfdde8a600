"""A user's script with Lightning or with transformers' Trainer, that may stop and go on from a checkpoint, and what may hide a mistake in one."""

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
from isobatch.guard import GuardError, guard
from isobatch.integrations.torch import PlanLR


def lightning(plan_json, fault=None, *, stop=None, resume=None):
    """Gives the guard's error, or None; and what it left unchecked.

    Args:
        stop: step after which a checkpoint is written to the path `resume`, and the training ends.
        resume: path of a checkpoint to go on from, without `stop`.
    """
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

        def training_step(self, batch, index):
            x, y = batch
            if fault == "summed loss":
                return mse_loss(self(x), y, reduction="sum") / y.shape[1]
            return mse_loss(self(x), y)

        def configure_optimizers(self):
            return configure_optimizers(torch.optim.SGD(self.parameters(), lr=plan.lr), plan)

    class Others(pl.Callback):
        def on_train_batch_end(self, trainer, *_):
            trainer.should_stop = trainer.global_step == stop

    torch.manual_seed(0)
    n = plan.recipe.dataset_size
    data = TensorDataset(torch.randn(n, 6), torch.randn(n, 3))
    watch = guard(plan, lambda model, batch: mse_loss(model(batch[0]), batch[1]))
    with warnings.catch_warnings(), tempfile.TemporaryDirectory() as folder:
        warnings.simplefilter("ignore")
        trainer = pl.Trainer(
            accelerator="cpu",
            devices=dist.get_world_size(),
            strategy=DDPStrategy(process_group_backend="gloo"),
            accumulate_grad_batches=plan.accumulation,
            gradient_clip_val=plan.recipe.clip_norm,
            max_epochs=2,
            callbacks=[Others(), watch.lightning()],
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            default_root_dir=folder,
        )
        loader = DataLoader(data, plan.micro_batch, shuffle=True)
        try:
            trainer.fit(Module(), loader, ckpt_path=None if stop else resume)
        except GuardError as error:
            return error, watch.unchecked
        if stop:
            trainer.save_checkpoint(resume)
    return None, watch.unchecked


class _Rows(torch.utils.data.Dataset):
    def __init__(self, n, tutorial):
        self.tutorial = tutorial
        self.tokens = torch.randint(32, (n, 8), generator=torch.Generator().manual_seed(1))

    def __len__(self):
        return len(self.tokens)

    def __getitem__(self, index):
        # Rows of different lengths. The first label is no target: not every model tells the Trainer so.
        if self.tutorial:
            return {"input_ids": self.tokens[index], "labels": self.tokens[index]}
        labels = self.tokens[index].clone()
        labels[0] = labels[8 - index % 4 :] = -100
        return {"input_ids": self.tokens[index], "labels": labels}


def transformers(plan_json, fault=None, *, folder=None, stop=None, resume=False, tutorial=False):
    """Likewise, checkpoints lie in `folder`. `tutorial`: the labels are the input, all of them; then with the guard's notes."""
    os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_OFFLINE="1", ACCELERATE_USE_CPU="true")
    sys.modules.setdefault("deepspeed", None)  # accelerate would import it, which takes long, or fails
    import transformers as hf

    plan = Plan.from_json(plan_json)
    torch.manual_seed(0)
    model = hf.GPT2LMHeadModel(hf.GPT2Config(vocab_size=32, n_positions=8, n_embd=16, n_layer=1, n_head=2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=plan.lr)
    watch = guard(plan)

    class Trainer(hf.Trainer):
        def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
            if fault == "summed loss":
                return model(**inputs).loss * _labels(inputs) / plan.accumulation
            return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)

    class Others(hf.TrainerCallback):
        def on_step_end(self, args, state, control, **_):
            control.should_training_stop = state.global_step == stop

    with warnings.catch_warnings(), tempfile.TemporaryDirectory() as own:
        warnings.simplefilter("ignore")
        arguments = hf.TrainingArguments(
            folder or own,
            per_device_train_batch_size=plan.micro_batch,
            gradient_accumulation_steps=plan.accumulation,
            max_grad_norm=plan.recipe.clip_norm or 0.0,
            num_train_epochs=2,
            average_tokens_across_devices=fault != "own tokens",
            use_cpu=True,
            ddp_backend="gloo",
            save_strategy="steps" if stop else "no",
            save_steps=stop or 500,
            report_to=[],
            disable_tqdm=True,
            logging_strategy="no",
        )
        trainer = Trainer(
            model,
            arguments,
            train_dataset=_Rows(plan.recipe.dataset_size, tutorial),
            optimizers=(optimizer, PlanLR(optimizer, plan)),
            callbacks=[Others(), watch.transformers()],
        )
        try:
            trainer.train(resume_from_checkpoint=resume or None)
        except GuardError as error:
            return error, watch.notes if tutorial else watch.unchecked
    return None, watch.notes if tutorial else watch.unchecked


def _labels(inputs):
    return (inputs["labels"][:, 1:] != -100).sum()
