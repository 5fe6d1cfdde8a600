"""What the guard must not take from a training: its time, and its memory."""

from datetime import timedelta

import pytest

import isobatch as ib

pytest.importorskip("torch", reason="the guard needs torch")

import torch
import torch.distributed as dist
from torch.nn.functional import mse_loss

from isobatch.guard import gradient, guard, run


@pytest.mark.parametrize("minutes", [7, 90])
def test_the_guard_waits_as_long_as_the_training(minutes):
    """A rank that saves a checkpoint keeps the others waiting: only the training knows for how long."""
    limit = timedelta(minutes=minutes)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1, timeout=limit)
    try:
        assert run._patience(None) == run._patience(dist.group.WORLD) == limit
    finally:
        dist.destroy_process_group()


def test_without_room_for_another_gradient_it_is_unchecked(monkeypatch):
    asked = []
    monkeypatch.setattr(gradient, "has_room", lambda device, needed: asked.append(needed))
    recipe = ib.Recipe(
        effective_batch=8,
        lr=0.1,
        optimizer="sgd",
        dataset_size=32,
        duration="1ep",
        micro_batch=4,
        schedule="constant",
    )
    plan = ib.plan(recipe, 1)
    data = torch.utils.data.TensorDataset(torch.randn(32, 3), torch.randn(32, 2))
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = torch.utils.data.DataLoader(data, 4, shuffle=True)
    watch = guard(plan, lambda m, b: mse_loss(m(b[0]), b[1])).attach(model, optimizer, loader)
    for index, (x, y) in enumerate(loader, 1):
        (3 * mse_loss(model(x), y) / 2).backward()  # three times too large, which nobody can look at
        if index % 2 == 0:
            optimizer.step()
            optimizer.zero_grad()
    assert asked == [2 * 4 * 8]  # once: two more gradients of eight float32
    assert watch.unchecked == ["the gradient's size: no room for another gradient on the GPU"]
