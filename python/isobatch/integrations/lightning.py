"""A plan's learning rate for Lightning."""

from __future__ import annotations

from typing import Any

from torch.optim import Optimizer

from isobatch.integrations.torch import PlanLR
from isobatch.planning.plan import Plan


def configure_optimizers(optimizer: Optimizer, plan: Plan) -> dict[str, Any]:
    """What `LightningModule.configure_optimizers` returns: the optimizer, and its PlanLR stepped every optimizer step.

    The Trainer's side of the plan: `accumulate_grad_batches=plan.accumulation`, `max_steps=plan.total_steps`, and for a
    PlanSampler `use_distributed_sampler=False`.

    Raises:
        InputError: as PlanLR.

    >>> import isobatch as ib, torch
    >>> optimizer = torch.optim.SGD(torch.nn.Linear(2, 2).parameters(), lr=0.1)
    >>> plan = ib.plan(ib.Recipe(effective_batch=256, lr=3.0, optimizer="sgd", duration="10st"), 8)
    >>> configure_optimizers(optimizer, plan)["lr_scheduler"]["interval"]
    'step'
    """
    scheduler = {"scheduler": PlanLR(optimizer, plan), "interval": "step", "frequency": 1, "name": "lr"}
    return {"optimizer": optimizer, "lr_scheduler": scheduler}
