"""A plain loop under DistributedDataParallel: no_sync, a DistributedSampler, workers, validation and a checkpoint each epoch."""

import contextlib

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class Net(nn.Module):
    """A perceptron with dropout."""

    def __init__(self):
        super().__init__()
        self.first, self.drop, self.last = nn.Linear(6, 16), nn.Dropout(0.2), nn.Linear(16, 4)

    def forward(self, x):
        return self.last(self.drop(torch.relu(self.first(x))))


def validate(model, loader):
    """The mean loss over the validation set."""
    model.eval()
    total = torch.zeros(2)
    with torch.no_grad():
        for x, y in loader:
            total += torch.tensor([functional.cross_entropy(model(x), y, reduction="sum"), len(y)])
    dist.all_reduce(total)
    model.train()
    return float(total[0] / total[1])


def main(plan, guard, folder, *, clip="norm", precision=None, averaged=False, **wrapping):
    """Trains for the plan's epochs; `averaged`: from the first step on, also an average of the weights."""
    rank = dist.get_rank()
    torch.manual_seed(rank)
    draw = torch.Generator().manual_seed(0)
    samples = plan.recipe.dataset_size
    inputs, labels = (
        torch.randn(samples, 6, generator=draw),
        torch.randint(4, (samples,), generator=draw),
    )
    train_set, val_set = TensorDataset(inputs, labels), TensorDataset(inputs[:50], labels[:50])
    sampler = DistributedSampler(train_set, drop_last=bool(plan.recipe.drop_last))
    loader = DataLoader(
        train_set,
        batch_size=plan.micro_batch,
        sampler=sampler,
        num_workers=2,
        drop_last=bool(plan.recipe.drop_last),
    )
    val_loader = DataLoader(val_set, 16, sampler=DistributedSampler(val_set, shuffle=False), num_workers=1)

    model = Net()
    ddp = DistributedDataParallel(model, **wrapping)
    settings = {"momentum": plan.momentum or 0.0, "weight_decay": plan.weight_decay}
    optimizer = torch.optim.SGD(ddp.parameters(), lr=plan.lr, **settings)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: plan.lr_at(step) / plan.lr)
    autocast = torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16")

    average = None
    watch = guard(plan, loss=lambda model, batch: functional.cross_entropy(model(batch[0]), batch[1]))
    watch.attach(ddp, optimizer, loader)
    for epoch in range(plan.total_steps // plan.steps_per_epoch):
        sampler.set_epoch(epoch)
        for index, (x, y) in enumerate(loader):
            step_now = (index + 1) % plan.accumulation == 0 or index + 1 == len(loader)
            with contextlib.nullcontext() if step_now else ddp.no_sync():
                with autocast:
                    loss = functional.cross_entropy(ddp(x), y)
                (loss / plan.accumulation).backward()
            if step_now:
                if clip == "norm":
                    nn.utils.clip_grad_norm_(ddp.parameters(), plan.recipe.clip_norm or 1.0)
                elif clip == "value":
                    nn.utils.clip_grad_value_(ddp.parameters(), 0.01)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
                if averaged:
                    average = average or torch.optim.swa_utils.AveragedModel(ddp.module)
                    average.update_parameters(ddp.module)
        validate(average or ddp, val_loader)
        if rank == 0:
            state = {"model": ddp.module.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch}
            torch.save(state, folder / "last.pt")
        dist.barrier()
    watch.finish()
