"""Accelerate's launcher configuration, which has the processes and little of the training, and loops of one's own around an Accelerator."""

from collections.abc import Iterator

from isobatch.errors import InputError
from isobatch.tools.launchers import layout, port, script, variables
from isobatch.tools.page import SettingsPage, Unknown
from isobatch.tools.sheet import Job, Planned, SettingsSheet
from isobatch.tools.tool import Case, Issue, Reader, Tool, Weight, Writer
from isobatch.tools.trainer import undivided_loader
from isobatch.words import counted, share

_HARMLESS = """
    command* commands compute_environment distributed_type downcast_bf16 dynamo_config.* enable_cpu_affinity fp8_config.* fsdp_config.* gpu_ids
    machine_rank main_* mpirun_config.* num_machines same_network tpu_* use_cpu deepspeed_config.* megatron_lm_config.*
    megatron_lm_config.megatron_lm_sequence_parallelism megatron_lm_config.megatron_lm_expert_model_parallel_size
    megatron_lm_config.megatron_lm_expert_tensor_parallel_size parallelism_config.parallelism_config_dp_replicate_size
    parallelism_config.parallelism_config_dp_shard_size parallelism_config.parallelism_config_cp_backend parallelism_config.parallelism_config_sp_backend
    parallelism_config.parallelism_config_cp_comm_strategy parallelism_config.parallelism_config_sp_attn_implementation
    parallelism_config.parallelism_config_sp_seq_length parallelism_config.parallelism_config_sp_seq_length_is_variable
    Accelerator.* *.fused *.foreach *.capturable *.maximize *.last_epoch *.norm_type *.error_if_nonfinite
"""
_MATTERS = {
    "effective_batch": "Accelerator.dataloader_config",
    "accumulation": "Accelerator.gradient_accumulation_plugin Accelerator.deepspeed_plugin*",
    "model_parallel": "Accelerator.megatron_lm_plugin Accelerator.parallelism_config",
}
"""Arguments of a script's Accelerator that hold settings in a class of their own."""


def read(page: SettingsPage) -> None:
    """num_processes counts the processes of all machines together. A Python script has its loop instead."""
    if "Accelerator" in page.settings:
        _read_loop(page)
        return
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
        text = "deepspeed_config_file is not read: name it by another --from"
        page.note_until(text, lambda run: "deepspeed" in run.tools)
    sizes = (f"parallelism_config_{name}_size" for name in ("tp", "cp", "sp"))
    page.table("parallelism_config").read_parallel(*sizes)
    megatron = page.table("megatron_lm_config")
    sizes = (f"megatron_lm_{name}" for name in ("tp_degree", "pp_degree", "context_parallel_size"))
    megatron.read_parallel(*sizes)
    if megatron.has("megatron_lm_num_micro_batches"):
        megatron.whole("megatron_lm_num_micro_batches", "accumulation")
    if megatron.has("megatron_lm_gradient_clipping"):
        megatron.clip("megatron_lm_gradient_clipping")


def _read_loop(page: SettingsPage) -> None:
    """`Accelerator(…)`, `DataLoader(…)`, the optimizer, `clip_grad_norm_(…)` and the scheduler of a script, each a table of its arguments.
    The length is in a loop that is not read: it is asked for.
    """
    from isobatch.tools.signatures import OPTIMIZERS

    loader, own, fields = page.table("DataLoader"), page.table("Accelerator"), page.reading.fields
    micro = loader.whole("batch_size", "batch_per_gpu")
    of = "gradient_accumulation_plugin.num_steps"
    steps = of if own.has(of) else "gradient_accumulation_steps"
    accumulation = own.whole(steps, "accumulation", default=1)
    own.table("parallelism_config").read_parallel("tp_size", "cp_size", "sp_size")
    split = next((it for it in (own, own.table("dataloader_config")) if it.has("split_batches")), own)
    if isinstance(split.raw("split_batches"), Unknown):
        split.number("split_batches", "effective_batch")
    elif split.flag("split_batches") and micro:
        del fields["batch_per_gpu"], page.reading.keys["batch_per_gpu"]
        page.give("effective_batch", micro * (accumulation or 1), "DataLoader.batch_size")
        page.note("Accelerator.split_batches: DataLoader.batch_size is of all processes together")
    mixed = own.word("mixed_precision", "no")
    if mixed in ("bf16", "fp16"):
        page.give("precision", mixed, "Accelerator.mixed_precision")
    page.table("clip_grad_norm_").clip("max_norm")
    made = [name for name in OPTIMIZERS if name in page.settings]
    if len(made) > 1:
        text = f"the script makes {' and '.join(made)}: give optimizer and lr a value"
        page.fault("optimizer", InputError(text, field=made[0]))
    for name in made[:1]:
        page.optimizer(name, name)
        page.table(name).number("lr", "lr")
        page.table(name).torch_optimizer()
    schedulers = sorted(page.settings.keys() - {"DataLoader", "Accelerator", "clip_grad_norm_", *OPTIMIZERS})
    if len(schedulers) > 1:
        page.ask("schedule", f"the script makes {' and '.join(schedulers)}", schedulers[0])
    for name in schedulers[:1]:
        _read_schedule(page, page.table(name), name)


def _read_schedule(page: SettingsPage, call: SettingsPage, key: str) -> None:
    """A scheduler of transformers; its warmup is a share of its steps, as a prepared one takes a step for every process."""
    kind = (
        call.word("name") or ""
        if key == "get_scheduler"
        else key.removeprefix("get_").replace("_schedule", "")
    )
    shape = kind.lower().removesuffix("_with_warmup")
    if key == "OneCycleLR":
        return _read_one_cycle(page, call)
    if shape not in ("linear", "cosine", "constant") or call.number("num_cycles", default=0.5) != 0.5:
        return page.unsupported(key, f"the scheduler {kind or key}")
    page.give("schedule", shape, key)
    steps = call.number("num_training_steps") if shape != "constant" else None
    warmup = call.number("num_warmup_steps") if kind != "constant" else None
    if warmup and steps:
        page.give("warmup", share(warmup / steps), f"{key}.num_warmup_steps")
    elif warmup:
        text = f"{warmup:g} steps of warmup in a run of unknown length"
        page.ask("warmup", text, f"{key}.num_warmup_steps")
    return None


def _read_one_cycle(page: SettingsPage, call: SettingsPage) -> None:
    """OneCycleLR over the whole run, with the peak in the place of the optimizer's learning rate."""
    call.number("max_lr", "lr")
    rise = call.number("pct_start", default=0.3)
    plain = call.number("div_factor", default=25.0) == 25 and call.word("anneal_strategy", "cos") == "cos"
    if not plain or call.flag("three_phase") or not rise or rise >= 1:
        return page.unsupported("OneCycleLR", "the scheduler OneCycleLR with these arguments")
    page.give("schedule", f"one_cycle(rise={share(rise)})", "OneCycleLR.pct_start")
    page.times_lr("min_lr", 1 / 25 / (call.number("final_div_factor", default=1e4) or 1e4), "OneCycleLR")
    return page.note(
        "OneCycleLR is planned over the whole run, its bounds on whole steps; it also moves the momentum"
    )


def write(plan: Planned, job: Job) -> SettingsSheet:
    """Writes the processes and the precision; the rest as comments, with the commands to set it."""
    sheet = SettingsSheet()
    nodes, _ = layout(plan, sheet)
    precision, kind = plan.recipe.precision, job.own.get("distributed_type")
    plain = "MULTI_GPU" if plan.world_size > 1 else "NO"
    sheet.settings = {
        "compute_environment": "LOCAL_MACHINE",
        "distributed_type": plain if kind in (None, "NO", "MULTI_GPU") else kind,
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
    if kind is None:
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
        yield Issue.note(
            f"a scheduler that accelerator.prepare wraps takes {case.gpus} steps for each step of the optimizer",
            "Accelerate steps it once for every process",
            "accelerate, scheduler.py; huggingface/accelerate#2926, huggingface/diffusers#3954",
            f"build it for total_steps × {case.gpus}, or Accelerator(step_scheduler_with_optimizer=False) and step it yourself",
        )
    splits = (("Accelerator", "split_batches"), ("Accelerator", "dataloader_config", "split_batches"))
    if any(case.at(*path) is True for path in splits):
        batch = case.at("DataLoader", "batch_size")
        yield from undivided_loader(batch, "DataLoader.batch_size", case.replicas)
    if case.at("gradient_accumulation_steps") is not None:
        yield Issue(
            "gradient_accumulation_steps in this file is rejected",
            "the launcher's configuration has no such key",
            "accelerate, commands/config/config_args.py: unknown keys",
            "export ACCELERATE_GRADIENT_ACCUMULATION_STEPS=...",
            Weight.STOPS,
        )
    written = None if case.at("num_processes") is None else case.reading.fields.get("gpus")
    if written is not None and written != case.gpus:
        yield Issue(
            f"{counted(written, 'process starts', 'processes start')}, not {case.gpus}",
            "num_processes counts all machines together",
            "accelerate, commands/launch.py: --num_processes",
            f"num_processes: {case.gpus}",
        )


ACCELERATE = Tool(
    "accelerate",
    "Accelerate",
    Reader("0.20 to 1.15", read, check, _HARMLESS, _MATTERS),
    Writer(
        "1.0 to 1.15",
        "accelerate.yaml",
        ("yaml", "json"),
        write,
        runs_ragged=True,
        runs_ramps=True,
        is_part=True,
        leaves_out="seq_len drop_last even_batches image resume",
    ),
)
