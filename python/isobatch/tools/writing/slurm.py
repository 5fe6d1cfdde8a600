"""Slurm: a script for sbatch."""

from __future__ import annotations

import math
from collections.abc import Mapping

from isobatch.tools.writing.environment import PORT, exports, launcher, safe_name, script
from isobatch.tools.writing.planned import Job, Planned, Sheet

NAME = "slurm"
TITLE = "Slurm"
VERSIONS = "20.11 to 25"
FILE = "job.sbatch"
FORMS = ("sh",)


def write(plan: Planned, job: Job) -> Sheet:
    """Nodes, GPUs, the time where it is forecast, and the environment."""
    sheet = launcher(plan)
    name = safe_name(job.name)
    if name != job.name:
        sheet.comments.append(f"the job is named {name}")
    sheet.settings = {"name": name, **sheet.settings}
    if plan.hours is not None:
        # A tenth more than the forecast, in whole minutes.
        sheet.settings["minutes"] = math.ceil(plan.hours * 60 * 1.1)
    return sheet


def render(sheet: Sheet, remarks: Mapping[str, str], top: str, job: Job) -> str:
    """One task a node, and torchrun in it: it starts a process for each GPU."""
    settings = sheet.settings
    head = ["#!/usr/bin/env bash", f"#SBATCH --job-name={settings['name']}"]
    head += [f"#SBATCH --nodes={settings['nodes']}", "#SBATCH --ntasks-per-node=1"]
    head += [f"#SBATCH --gpus-per-node={settings['gpus_per_node']}"]
    if "minutes" in settings:
        head.append(f"#SBATCH --time={settings['minutes']}")
    said = "".join(f"# {at}: {remark}\n" for at, remark in remarks.items() if not at.startswith("env."))
    return (
        "\n".join(head)
        + f"\n{top}{said}set -euo pipefail\n{exports(settings['env'], remarks)}"
        + 'MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)\n'
        + f'srun torchrun --nnodes "$SLURM_JOB_NUM_NODES" --nproc-per-node {settings["gpus_per_node"]} --rdzv-backend c10d '
        + f'--rdzv-endpoint "$MASTER_ADDR:{PORT}" --rdzv-id "$SLURM_JOB_ID" {script(job)}\n'
    )
