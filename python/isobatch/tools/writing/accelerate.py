"""Accelerate's launcher configuration. It cannot hold the training: that goes beside it, as environment variables."""

from __future__ import annotations

from isobatch.tools.writing.environment import PORT, layout, script, variables
from isobatch.tools.writing.planned import Job, Planned, Sheet

NAME = "accelerate"
TITLE = "Accelerate's launcher configuration"
VERSIONS = "1.0 to 1.15"
FILE = "accelerate.yaml"
FORMS = ("yaml", "json")


def write(plan: Planned, job: Job) -> Sheet:
    """The processes and the precision; the rest as comments, with the command that sets it."""
    sheet = Sheet()
    nodes, _ = layout(plan, sheet)
    precision = plan.recipe.precision
    sheet.settings = {
        "compute_environment": "LOCAL_MACHINE",
        "distributed_type": "MULTI_GPU" if plan.world_size > 1 else "NO",
        "num_machines": nodes,
        "num_processes": plan.world_size,
        "machine_rank": 0,
        "main_process_port": PORT,
        "main_training_function": "main",
        "mixed_precision": precision if precision in ("bf16", "fp16") else "no",
        "rdzv_backend": "static",
        "same_network": True,
        "use_cpu": False,
    }
    if nodes > 1:
        sheet.comments.append(
            "on each node: set machine_rank, and main_process_ip to the first node's address"
        )
    # Accelerate rejects gradient_accumulation_steps in this file, and ignores the flag of that name.
    given = {"ACCELERATE_GRADIENT_ACCUMULATION_STEPS": str(plan.accumulation), **variables(plan)}
    sheet.comments += [f"export {name}={value}" for name, value in given.items()]
    sheet.comments.append(f"accelerate launch --config_file {FILE} {script(job)}")
    if plan.world_size > 1:
        sheet.comments.append(
            "a scheduler that accelerator.prepare wraps takes a step for every process: give it total_steps × num_processes, "
            "or Accelerator(step_scheduler_with_optimizer=False) and step it yourself"
        )
    return sheet
