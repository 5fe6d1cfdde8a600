"""What a launcher hands to a script of one's own: the plan as environment variables, and the GPUs as nodes of processes."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping

from isobatch.tools.writing.forms import number
from isobatch.tools.writing.planned import Job, Planned, Sheet

GPUS_PER_NODE = 8
MOST_PER_NODE = 16
"""No machine on the market has more GPUs under one operating system."""
PORT = 29500


def variables(plan: Planned) -> dict[str, str]:
    """All that the plan decides, by name; what is not known is left out."""
    recipe = plan.recipe
    values = {
        "MICRO_BATCH": plan.micro_batch,
        "ACCUMULATION": plan.accumulation,
        "EFFECTIVE_BATCH": plan.effective_batch,
        "LR": plan.lr,
        "MIN_LR": plan.min_lr,
        "WARMUP_LR": plan.warmup_lr,
        "SCHEDULE": recipe.schedule if isinstance(recipe.schedule, str) else None,
        "WARMUP_STEPS": plan.warmup_steps,
        "TOTAL_STEPS": plan.total_steps,
        "EVAL_STEPS": plan.eval_steps,
        "SAVE_STEPS": plan.save_steps,
        "LOG_STEPS": plan.log_steps,
        "OPTIMIZER": recipe.optimizer,
        "BETA1": plan.beta1,
        "BETA2": plan.beta2,
        "EPS": plan.eps,
        "MOMENTUM": plan.momentum,
        "WEIGHT_DECAY": plan.weight_decay,
        "EMA_DECAY": plan.ema_decay,
        "CLIP_NORM": recipe.clip_norm,
        "PRECISION": recipe.precision,
        "RAMP": recipe.ramp,
    }
    return {
        f"ISOBATCH_{name}": number(value) if type(value) is float else str(value)
        for name, value in values.items()
        if value is not None
    }


def layout(plan: Planned, sheet: Sheet) -> tuple[int, int]:
    """Nodes, and processes on each. A plan for a bare number of GPUs does not say how they stand in machines."""
    nodes, each = plan.cluster.nodes, plan.cluster.gpus_per_node
    if nodes == 1 and each > MOST_PER_NODE:
        if each % GPUS_PER_NODE == 0:
            sheet.comments.append(
                f"{each} GPUs taken as {each // GPUS_PER_NODE} nodes of {GPUS_PER_NODE}: plan with --nodes and --gpus-per-node"
            )
            return each // GPUS_PER_NODE, GPUS_PER_NODE
        sheet.comments.append(f"{each} GPUs in one node: plan with --nodes and --gpus-per-node")
    return nodes, each


def launcher(plan: Planned) -> Sheet:
    """The sheet that every launcher starts from."""
    sheet = Sheet()
    nodes, each = layout(plan, sheet)
    sheet.settings = {"nodes": nodes, "gpus_per_node": each, "env": variables(plan)}
    sheet.comments.append(
        "the script reads ISOBATCH_*; a schedule comes from them or from isobatch.Plan.load(...).lr_at"
    )
    return sheet


def exports(env: Mapping[str, str], remarks: Mapping[str, str]) -> str:
    """`export NAME=value` for a shell, each value quoted."""
    lines = []
    for name, value in env.items():
        remark = remarks.get(f"env.{name}")
        lines.append(
            f"export {name}={shlex.quote(value)}" + (f"  # {' '.join(remark.split())}" if remark else "")
        )
    return "\n".join(lines) + "\n"


def script(job: Job) -> str:
    """The training script and its arguments, quoted for a shell."""
    return shlex.join(job.command)


def safe_name(name: str, *, dns: bool = False, most: int = 63) -> str:
    """A job's name that no launcher or file system reads as something else.

    >>> safe_name("a b; $(rm)"), safe_name("My_Job", dns=True), safe_name("..")
    ('a-b-rm', 'my-job', 'job')
    """
    plain = re.sub(r"[^A-Za-z0-9-]+" if dns else r"[^A-Za-z0-9._-]+", "-", name)
    plain = (plain.lower() if dns else plain)[:most].strip("-._")
    return plain or "job"
