"""fastai's Learner with GradientAccumulation on a small regression."""

import argparse

import torch
from fastai.callback.training import GradientAccumulation
from fastai.data.core import DataLoaders
from fastai.data.load import DataLoader
from fastai.learner import Learner
from torch import nn


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--per_device_train_batch_size", type=int)
    parser.add_argument("--gradient_accumulation_steps", type=int)
    options = parser.parse_args()
    batch = options.per_device_train_batch_size
    generator = torch.Generator().manual_seed(1)
    inputs, targets = torch.randn(64, 20, generator=generator), torch.randn(64, 1, generator=generator)
    rows = list(zip(inputs, targets))
    loader = DataLoader(rows, bs=batch, shuffle=False, num_workers=0)
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(20, 32), nn.Tanh(), nn.Linear(32, 1))
    window = GradientAccumulation(n_acc=batch * options.gradient_accumulation_steps)  # counted in rows
    learner = Learner(DataLoaders(loader, loader), network, loss_func=nn.functional.mse_loss, cbs=window)
    learner.fit(1, 1e-2)


main()
