"""Slurm: a plan as an sbatch file, with a task on each node and torchrun in it."""

import math
from collections.abc import Mapping

from isobatch.tools.launchers import FIRST_PORT, PORTS, check, exports, launcher, record, safe_name, script
from isobatch.tools.sheet import Job, Planned, SettingsSheet, remark_lines

CPUS_PER_GPU = 4
"""A process and a few of a loader; by default Slurm gives a task one CPU, or as many as the site has set."""
SIGNALS = "SIGTERM,SIGINT,SIGHUP,SIGQUIT,SIGUSR1"
SECONDS_TO_SAVE = 120


def write(plan: Planned, job: Job) -> SettingsSheet:
    """Writes nodes, GPUs, the environment and, if there is a forecast, the time."""
    sheet = launcher(plan, job)
    name = safe_name(job.name)
    if name != job.name:
        sheet.note(f"the job is named {name}")
    sheet.note(
        f"{CPUS_PER_GPU} CPUs for each GPU: take your nodes' own number, or none where the site sets it"
    )
    sheet.settings = {"name": name, **sheet.settings}
    if plan.hours is not None:
        # Slurm ends a longer job: the forecast's upper end, and at least a tenth over the forecast.
        hours = plan.hours + max(plan.hours_error or 0.0, plan.hours / 10)
        sheet.settings["minutes"] = math.ceil(hours * 60)
    return sheet


def render(sheet: SettingsSheet, remarks: Mapping[str, str], top: str, job: Job) -> str:
    """Writes directives, environment, check and command; one task a node runs torchrun."""
    settings = sheet.settings
    head = "".join(f"#SBATCH --{line}\n" for line in _directives(sheet, job))
    notes = remark_lines({at: text for at, text in remarks.items() if not at.startswith("env.")})
    return (
        f"#!/usr/bin/env bash\n{head}{top}{notes}set -euo pipefail\n{exports(settings['env'], remarks)}"
        + f"GPUS_PER_NODE=${{SLURM_GPUS_ON_NODE:-{settings['gpus_per_node']}}}\n"
        + check(job, "slurm", "SLURM_JOB_NUM_NODES * GPUS_PER_NODE")
        + 'MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)\n'
        + f"MASTER_PORT=$(({FIRST_PORT} + SLURM_JOB_ID % {PORTS}))  # of its own: jobs may share a node\n"
        + f"{_command(job)} {script(job)}\n"
    )


def _directives(sheet: SettingsSheet, job: Job) -> list[str]:
    """Lists the job's directives; an elastic job is also signalled before its end, and requeued."""
    settings = sheet.settings
    directives = [f"job-name={settings['name']}", f"nodes={settings['nodes']}", "ntasks-per-node=1"]
    directives += [f"gpus-per-node={settings['gpus_per_node']}", f"cpus-per-gpu={CPUS_PER_GPU}"]
    if "minutes" in settings:
        directives.append(f"time={settings['minutes']}")
    if job.elastic:
        directives += ["requeue", "open-mode=append", f"signal=USR1@{SECONDS_TO_SAVE}"]
    return directives


def _command(job: Job) -> str:
    """Writes the step to start torchrun, with the whole environment even under --export=NONE."""
    handled = f"--signals-to-handle {SIGNALS} " if job.elastic else ""
    return (
        'srun --export=ALL torchrun --nnodes "$SLURM_JOB_NUM_NODES" --nproc-per-node "$GPUS_PER_NODE" '
        f'{handled}--rdzv-backend c10d --rdzv-endpoint "$MASTER_ADDR:$MASTER_PORT" --rdzv-id "$SLURM_JOB_ID"'
    )


SLURM = record("slurm", "Slurm", "20.11 to 25", "job.sbatch", ("sh",), write, render, leaves_out="image")
