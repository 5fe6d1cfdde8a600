"""A plan's learning rate for the Trainer of transformers."""

from __future__ import annotations

from torch.optim import Optimizer

from isobatch.integrations.torch import PlanLR
from isobatch.planning.plan import Plan


def optimizers(optimizer: Optimizer, plan: Plan) -> tuple[Optimizer, PlanLR]:
    """What `Trainer(optimizers=…)` takes. The Trainer then ignores its own learning rate, warmup and scheduler type.

    The arguments' side of the plan: `per_device_train_batch_size=plan.micro_batch`,
    `gradient_accumulation_steps=plan.accumulation`, `max_steps=plan.total_steps`.

    Raises:
        InputError: as PlanLR.

    >>> import isobatch as ib, torch
    >>> optimizer = torch.optim.AdamW(torch.nn.Linear(2, 2).parameters())
    >>> plan = ib.plan(ib.Recipe(effective_batch=256, lr=3e-4, duration="10st"), 8)
    >>> optimizers(optimizer, plan)[1].get_last_lr()
    [0.0003]
    """
    return optimizer, PlanLR(optimizer, plan)
