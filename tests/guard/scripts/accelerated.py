"""Accelerate as its examples use it: `accumulate`, metrics over `gather_for_metrics`, `save_state`, and
either clipping; batches sharded, split or dispatched.
"""

import torch
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration, set_seed
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset


def main(plan, guard, folder, *, clip="norm", schedule="own", **dealing):
    """Trains for the plan's epochs.

    Args:
        schedule: "own" is stepped once a step; "prepared" has W times the lengths and is stepped W times, as
            the examples of diffusers have it; with split_batches Accelerate steps once.
        dealing: fields of a DataLoaderConfiguration.
    """
    accelerator = Accelerator(
        cpu=True,
        gradient_accumulation_steps=plan.accumulation,
        dataloader_config=DataLoaderConfiguration(**dealing),
        project_dir=folder,
    )
    set_seed(42)
    world, split = accelerator.num_processes, dealing.get("split_batches", False)
    size = plan.recipe.dataset_size
    data = TensorDataset(torch.randn(size, 6), torch.randint(4, (size,)))
    batch_size = plan.micro_batch * (world if split else 1)
    loader = DataLoader(data, shuffle=True, batch_size=batch_size, num_workers=2)
    eval_loader = DataLoader(data, batch_size=16, num_workers=1)
    model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 4))
    optimizer = torch.optim.AdamW(model.parameters(), lr=plan.lr)
    faster = world if schedule == "prepared" and not split else 1
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: plan.lr_at(step / faster) / plan.lr)
    if schedule == "prepared":
        scheduler = accelerator.prepare(scheduler)
    model, optimizer, loader, eval_loader = accelerator.prepare(model, optimizer, loader, eval_loader)

    watch = guard(plan, loss=lambda model, batch: functional.cross_entropy(model(batch[0]), batch[1]))
    watch.attach(model, optimizer, loader)
    for epoch in range(plan.total_steps // plan.steps_per_epoch):
        model.train()
        for x, y in loader:
            with accelerator.accumulate(model):
                loss = functional.cross_entropy(model(x), y)
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    if clip == "norm":
                        accelerator.clip_grad_norm_(model.parameters(), plan.recipe.clip_norm or 1.0)
                    else:
                        accelerator.clip_grad_value_(model.parameters(), 0.01)
                optimizer.step()
                if schedule == "prepared" or accelerator.sync_gradients:
                    scheduler.step()
                optimizer.zero_grad()
        model.eval()
        right = 0
        for x, y in eval_loader:
            with torch.no_grad():
                guess = model(x).argmax(dim=-1)
            guess, y = accelerator.gather_for_metrics((guess, y))
            right += int((guess == y).sum())
        accelerator.print(f"epoch {epoch}: {right} of {len(data)}")
        accelerator.save_state(folder / f"epoch_{epoch}")
    watch.finish()
