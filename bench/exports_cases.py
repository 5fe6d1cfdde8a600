"""Plans to write for the tools (exports.py), and their rates beside the tools' schedules."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import isobatch as ib

TUNED: dict[str, Any] = {
    "effective_batch": 256,
    "gpus": 8,
    "micro_batch": 8,
    "lr": 2e-4,
    "betas": (0.9, 0.95),
    "weight_decay": 0.1,
    "clip_norm": 1.0,
    "precision": "bf16",
    "seq_len": 2048,
    "schedule": "linear",
}
TWO_NODES = ib.Cluster(nodes=2, gpus_per_node=8, gpu="H100")


class Case(NamedTuple):
    """A plan, and the step from which its file is started: 0, or a checkpoint's."""

    plan: ib.Plan
    start: int = 0


def cases() -> dict[str, Case]:
    """Plans as users have them: started on more GPUs, ramped, moved under way."""
    plain = ib.plan(ib.Recipe(**TUNED, duration="1000st", warmup="30st"), TWO_NODES)
    ramp = ib.plan(ib.Recipe(**TUNED, duration="256000sp", warmup="7680sp", ramp="64 64 25600"), TWO_NODES)
    return {
        "started": Case(plain),
        "restarted": Case(ib.replan(plain, at_step=400, cluster=32), 400),
        "another batch": Case(ib.replan(plain, at_step=400, cluster=24, effective_batch=384), 400),
        "ramped": Case(ramp),
        "restarted in the ramp": Case(ib.replan(ramp, at_step=100, cluster=8), 100),
        "restarted behind it": Case(ib.replan(ramp, at_step=600, cluster=32), 600),
        "behind it, other batch": Case(ib.replan(ramp, at_step=600, cluster=25, batch_tolerance=0.1), 600),
    }


def saved(case: Case, tool: str, folder: Path, form: str | None = None) -> Path:
    """Writes the plan as the tool's file."""
    export = case.plan.to(tool, form=form)
    export.save(folder / export.file)
    return folder / export.file


def words_of(path: Path) -> list[str]:
    """Returns the words of the command in a script, its lines joined as a shell joins them."""
    return shlex.split(path.read_text().replace("\\\n", " "), comments=True)


def rates(case: Case, rate_at: Callable[[int], float]) -> str:
    """Compares the learning rate of every step that is left with the plan's."""
    steps = range(case.start, case.plan.total_steps)
    worst = max(abs(rate_at(step) - case.plan.lr_at(step)) for step in steps) / case.plan.lr
    return "LR as planned" if worst < 1e-9 else f"LR off by {worst:.2%}"


def stepped(case: Case, optimizer: Any, scheduler: Any) -> str:
    """Steps a scheduler of torch's kind through the run."""
    rates_seen = []
    for _ in range(case.plan.total_steps):
        rates_seen.append(optimizer.param_groups[0]["lr"])
        scheduler.step()
    return rates(case, rates_seen.__getitem__)


def adamw(lr: float) -> Any:
    """Returns an optimizer for a scheduler to move."""
    import torch

    return torch.optim.AdamW([torch.nn.Parameter(torch.zeros(1))], lr=lr)
