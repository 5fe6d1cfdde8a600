"""Accelerate's launcher configuration: the processes, and little of the training."""

from __future__ import annotations

from collections.abc import Iterator

from isobatch.tools.launchers import layout, port, script, variables
from isobatch.tools.page import SettingsPage
from isobatch.tools.sheet import Job, Plan, SettingsSheet
from isobatch.tools.tool import Case, Issue, Reader, Tool, Weight, Writer

_HARMLESS = """
    command* commands compute_environment distributed_type downcast_bf16 dynamo_config.* enable_cpu_affinity fp8_config.* fsdp_config.* gpu_ids
    machine_rank main_* mpirun_config.* num_machines same_network tpu_* use_cpu deepspeed_config.* megatron_lm_config.*
    megatron_lm_config.megatron_lm_sequence_parallelism megatron_lm_config.megatron_lm_expert_model_parallel_size
    megatron_lm_config.megatron_lm_expert_tensor_parallel_size parallelism_config.parallelism_config_dp_replicate_size
    parallelism_config.parallelism_config_dp_shard_size parallelism_config.parallelism_config_cp_backend parallelism_config.parallelism_config_sp_backend
    parallelism_config.parallelism_config_cp_comm_strategy parallelism_config.parallelism_config_sp_attn_implementation
    parallelism_config.parallelism_config_sp_seq_length parallelism_config.parallelism_config_sp_seq_length_is_variable
"""


def read(page: SettingsPage) -> None:
    """num_processes counts the processes of all machines together."""
    page.whole("num_processes", "gpus", default=1)
    mixed = page.word("mixed_precision", "no")
    if mixed in ("bf16", "fp16"):
        page.give("precision", mixed, "mixed_precision")
    if page.has("gradient_accumulation_steps"):
        page.note(
            "Accelerate rejects gradient_accumulation_steps in this file: set ACCELERATE_GRADIENT_ACCUMULATION_STEPS"
        )
    inner = page.table("deepspeed_config")
    if inner.raw("gradient_accumulation_steps") not in (None, "auto"):
        inner.whole("gradient_accumulation_steps", "accumulation")
    if inner.raw("gradient_clipping") not in (None, "auto"):
        inner.clip("gradient_clipping")
    if inner.has("deepspeed_config_file"):
        page.note("deepspeed_config_file is not read: name it by another --from")
    sizes = (f"parallelism_config_{name}_size" for name in ("tp", "cp", "sp"))
    page.table("parallelism_config").read_parallel(*sizes)
    megatron = page.table("megatron_lm_config")
    sizes = (f"megatron_lm_{name}" for name in ("tp_degree", "pp_degree", "context_parallel_size"))
    megatron.read_parallel(*sizes)
    if megatron.has("megatron_lm_num_micro_batches"):
        megatron.whole("megatron_lm_num_micro_batches", "accumulation")
    if megatron.has("megatron_lm_gradient_clipping"):
        megatron.clip("megatron_lm_gradient_clipping")


def write(plan: Plan, job: Job) -> SettingsSheet:
    """Writes the processes and the precision; the rest as comments, with the commands to set it."""
    sheet = SettingsSheet()
    nodes, _ = layout(plan, sheet)
    precision = plan.recipe.precision
    sheet.settings = {
        "compute_environment": "LOCAL_MACHINE",
        "distributed_type": "MULTI_GPU" if plan.world_size > 1 else "NO",
        "num_machines": nodes,
        "num_processes": plan.world_size,
        "machine_rank": 0,
        # One node takes any free port by itself.
        "main_process_port": port(job.name) if nodes > 1 else 0,
        "main_training_function": "main",
        **(
            {}
            if precision is None
            else {"mixed_precision": precision if precision in ("bf16", "fp16") else "no"}
        ),
        "rdzv_backend": "static",
        "same_network": True,
        "use_cpu": False,
    }
    sheet.note("keep distributed_type where your file has FSDP, DEEPSPEED or MEGATRON_LM")
    if nodes > 1:
        sheet.note("on each node: set machine_rank, and main_process_ip to the first node's address")
    # Accelerate rejects gradient_accumulation_steps in this file, and ignores the flag of that name.
    given = {"ACCELERATE_GRADIENT_ACCUMULATION_STEPS": str(plan.accumulation), **variables(plan)}
    sheet.comments += [f"export {name}={value}" for name, value in given.items()]
    sheet.note(f"accelerate launch --config_file accelerate.yaml {script(job)}")
    if plan.world_size > 1:
        sheet.note(
            "a scheduler that accelerator.prepare wraps takes a step for every process: give it total_steps × num_processes, "
            "or Accelerator(step_scheduler_with_optimizer=False) and step it yourself"
        )
    return sheet


def check(case: Case) -> Iterator[Issue]:
    """Finds silent behaviour of the tool."""
    if case.gpus > 1:
        yield Issue(
            f"a scheduler that accelerator.prepare wraps takes {case.gpus} steps for each step of the optimizer",
            "Accelerate steps it once for every process",
            "accelerate, scheduler.py; huggingface/accelerate#2926, huggingface/diffusers#3954",
            f"build it for total_steps × {case.gpus}, or Accelerator(step_scheduler_with_optimizer=False) and step it yourself",
            Weight.NOTE,
        )
    if case.at("gradient_accumulation_steps") is not None:
        yield Issue(
            "gradient_accumulation_steps in this file is rejected",
            "the launcher's configuration has no such key",
            "accelerate, commands/config/config_args.py: unknown keys",
            "export ACCELERATE_GRADIENT_ACCUMULATION_STEPS=...",
            Weight.STOPS,
        )
    written = case.at("num_processes")
    if written is not None and written != case.gpus:
        yield Issue(
            f"{written} processes start, not {case.gpus}",
            "num_processes counts all machines together",
            "accelerate, commands/launch.py: --num_processes",
            f"num_processes: {case.gpus}",
        )


ACCELERATE = Tool(
    name="accelerate",
    title="Accelerate's launcher configuration",
    reader=Reader(versions="0.20 to 1.15", read=read, check=check, harmless=_HARMLESS),
    writer=Writer(
        versions="1.0 to 1.15",
        file="accelerate.yaml",
        forms=("yaml", "json"),
        write=write,
        runs_ragged=True,
        runs_ramps=True,
        is_part=True,
        leaves_out="seq_len drop_last even_batches image resume",
    ),
)
