"""A Lightning module with a validation loader, a checkpoint callback, logging, and a scheduler by step."""

import contextlib

import lightning.pytorch as pl
import torch
import torch.distributed as dist
from lightning.pytorch.callbacks import LearningRateMonitor, ModelCheckpoint, StochasticWeightAveraging
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.strategies import DDPStrategy
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset


class Lit(pl.LightningModule):
    """A perceptron with batch norm."""

    def __init__(self, plan):
        super().__init__()
        self.plan = plan
        self.net = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 4))

    def forward(self, x):
        return self.net(x)

    def training_step(self, batch, index):
        loss = functional.cross_entropy(self(batch[0]), batch[1])
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch, index):
        self.log("val_loss", functional.cross_entropy(self(batch[0]), batch[1]), sync_dist=True)

    def configure_optimizers(self):
        plan = self.plan
        optimizer = torch.optim.AdamW(self.parameters(), lr=plan.lr)
        shape = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: plan.lr_at(step) / plan.lr)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": shape, "interval": "step"}}


class ByHand(Lit):
    """Its own loop within Lightning's: `manual_backward`, and a step after some micro-batches."""

    def __init__(self, plan):
        super().__init__(plan)
        self.automatic_optimization = False

    def training_step(self, batch, index):
        optimizer, last = self.optimizers(), (index + 1) % self.plan.accumulation == 0
        loss = super().training_step(batch, index) / self.plan.accumulation
        with contextlib.nullcontext() if last else self.trainer.model.no_sync():
            self.manual_backward(loss)
        if last:
            self.clip_gradients(optimizer, self.plan.recipe.clip_norm, "norm")
            optimizer.step()
            optimizer.zero_grad()
            self.lr_schedulers().step()


class Stop(pl.Callback):
    """Ends the training after a step."""

    def __init__(self, step):
        self.step = step

    def on_train_batch_end(self, trainer, *_):
        trainer.should_stop = trainer.global_step == self.step


def main(
    plan,
    guard,
    folder,
    *,
    clip="norm",
    by_hand=False,
    swa_from=None,
    size=None,
    stop=None,
    path=None,
    workers=2,
    **more,
):
    """Fits for the plan's epochs, to the step `stop` with a checkpoint in `path`, or on from there.

    `size`: samples, where a limit leaves some of them out.
    """
    pl.seed_everything(3, workers=True, verbose=False)
    size = size or plan.recipe.dataset_size
    data = TensorDataset(torch.randn(size, 6), torch.randint(4, (size,)))
    loader = DataLoader(data, plan.micro_batch, shuffle=True, num_workers=workers)
    val_loader = DataLoader(data, 16, num_workers=1)
    watch = guard(plan, loss=lambda model, batch: functional.cross_entropy(model(batch[0]), batch[1]))
    automatic = {
        "accumulate_grad_batches": plan.accumulation,
        "gradient_clip_val": (plan.recipe.clip_norm or 1.0) if clip == "norm" else 0.01,
        "gradient_clip_algorithm": clip,
    }
    trainer = pl.Trainer(
        accelerator="cpu",
        devices=dist.get_world_size(),
        strategy=DDPStrategy(process_group_backend="gloo"),
        max_epochs=plan.total_steps // plan.steps_per_epoch,
        **({} if by_hand else automatic),
        val_check_interval=0.5,
        log_every_n_steps=1,
        logger=CSVLogger(folder),
        callbacks=[
            ModelCheckpoint(folder, monitor="val_loss", save_last=True),
            LearningRateMonitor("step"),
            *([Stop(stop)] if stop else []),
            *([StochasticWeightAveraging(plan.lr / 3, swa_epoch_start=swa_from)] if swa_from else []),
            watch.lightning(),
        ],
        enable_progress_bar=False,
        enable_model_summary=False,
        **more,
    )
    module = (ByHand if by_hand else Lit)(plan)
    trainer.fit(module, loader, val_loader, ckpt_path=None if stop else path)
    if stop:
        trainer.save_checkpoint(path)
