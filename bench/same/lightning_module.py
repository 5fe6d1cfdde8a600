"""Lightning's Trainer on a small regression."""

import argparse
import os

import lightning
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--per_device_train_batch_size", type=int)
    parser.add_argument("--gradient_accumulation_steps", type=int)
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--weigh-last-window", action="store_true", help="the workaround of an open issue")
    return parser.parse_args()


class Regression(lightning.LightningModule):
    def __init__(self, options: argparse.Namespace):
        super().__init__()
        torch.manual_seed(0)
        self.network = nn.Sequential(nn.Linear(20, 32), nn.Tanh(), nn.Linear(32, 1))
        self.options = options

    def training_step(self, batch: list[torch.Tensor], number: int) -> torch.Tensor:
        inputs, targets = batch
        loss = nn.functional.mse_loss(self.network(inputs), targets)
        if self.options.weigh_last_window:
            accumulation = self.options.gradient_accumulation_steps
            passes = int(self.trainer.num_training_batches)
            loss = loss * accumulation / min(accumulation, passes - number // accumulation * accumulation)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), 1e-2)


def main() -> None:
    options = parse_options()
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(options.rows, 20, generator=generator)
    targets = torch.randn(options.rows, 1, generator=generator)
    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=ranks,
        strategy="ddp" if ranks > 1 else "auto",
        accumulate_grad_batches=options.gradient_accumulation_steps,
        max_epochs=2,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(
        Regression(options), DataLoader(TensorDataset(inputs, targets), options.per_device_train_batch_size)
    )


main()
