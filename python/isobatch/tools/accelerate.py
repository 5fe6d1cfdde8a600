"""Accelerate's launcher configuration (processes, little of the training), and loops on an Accelerator."""

from collections.abc import Iterator, Mapping
from typing import Any, Literal

from isobatch.errors import InputError
from isobatch.planning.handed import variables
from isobatch.tools.launchers import layout, port, script
from isobatch.tools.map import Setting, by_code, read_settings
from isobatch.tools.page import SettingsPage, Unknown, length, value_at
from isobatch.tools.run_schedules import Multiple, exact_share, read_run_schedule
from isobatch.tools.sheet import Job, Planned, SettingsSheet
from isobatch.tools.tool import Case, Issue, Reader, Tool, Weight, Writer, number
from isobatch.tools.trainer import undivided_loader
from isobatch.words import counted

_HARMLESS = """
    command* compute_environment distributed_type downcast_bf16 fp8_config.* main_* mpirun_config.*
    num_machines tpu_* use_cpu megatron_lm_config.* megatron_lm_config.megatron_lm_sequence_parallelism
    megatron_lm_config.megatron_lm_expert_model_parallel_size
    megatron_lm_config.megatron_lm_expert_tensor_parallel_size
    parallelism_config.parallelism_config_dp_replicate_size
    parallelism_config.parallelism_config_dp_shard_size parallelism_config.parallelism_config_cp_backend
    parallelism_config.parallelism_config_sp_backend parallelism_config.parallelism_config_cp_comm_strategy
    parallelism_config.parallelism_config_sp_attn_implementation
    parallelism_config.parallelism_config_sp_seq_length
    parallelism_config.parallelism_config_sp_seq_length_is_variable Accelerator.* *.fused *.foreach
    *.capturable *.maximize *.last_epoch *.norm_type *.error_if_nonfinite
"""
_MATTERS = {
    "effective_batch": "Accelerator.dataloader_config",
    "accumulation": "Accelerator.gradient_accumulation_plugin Accelerator.deepspeed_plugin*",
    "model_parallel": "Accelerator.megatron_lm_plugin Accelerator.parallelism_config",
}
"""Arguments of a script's Accelerator that hold settings in a class of their own."""
_LENGTHS = "num_warmup_steps total_iters T_max total_steps step_size milestones num_training_steps"
"""Arguments of schedulers that count steps."""
_PRECISIONS = {"bf16": "bf16", "fp16": "fp16"}
_LAUNCH = (
    Setting("num_processes", "gpus", default=1),
    Setting("mixed_precision", "precision", words=_PRECISIONS, writes=False),
)
SETTINGS = (
    *_LAUNCH,
    by_code("deepspeed_config.gradient_accumulation_steps", "accumulation"),
    by_code("deepspeed_config.gradient_clipping", "clip_norm"),
    by_code("megatron_lm_config.megatron_lm_num_micro_batches", "accumulation"),
    by_code("megatron_lm_config.megatron_lm_gradient_clipping", "clip_norm"),
)
_IGNORED = "Accelerator(split_batches=…) is ignored since accelerate 1.0"


def read(page: SettingsPage) -> None:
    """Reads the launcher's configuration, with the processes of all machines; of a script, its loop."""
    if "Accelerator" in page.settings:
        _read_loop(page)
        return
    read_settings(page, _LAUNCH)
    if page.has("gradient_accumulation_steps"):
        page.note(
            "Accelerate rejects gradient_accumulation_steps in this file: set "
            "ACCELERATE_GRADIENT_ACCUMULATION_STEPS"
        )
    inner = page.table("deepspeed_config")
    if inner.raw("gradient_accumulation_steps") not in (None, "auto"):
        inner.whole("gradient_accumulation_steps", "accumulation")
    if inner.raw("gradient_clipping") not in (None, "auto"):
        inner.clip("gradient_clipping")
    sizes = (f"parallelism_config_{name}_size" for name in ("tp", "cp", "sp"))
    page.table("parallelism_config").read_parallel(*sizes)
    megatron = page.table("megatron_lm_config")
    sizes = (f"megatron_lm_{name}" for name in ("tp_degree", "pp_degree", "context_parallel_size"))
    megatron.read_parallel(*sizes)
    if megatron.has("megatron_lm_num_micro_batches"):
        megatron.whole("megatron_lm_num_micro_batches", "accumulation")
    megatron.clip("megatron_lm_gradient_clipping")


def _read_loop(page: SettingsPage) -> None:
    """Reads a loop of your own: each class of the script is a table of its arguments."""
    from isobatch.tools.signatures import OPTIMIZERS, OTHERS

    loader, accelerator = page.table("DataLoader"), page.table("Accelerator")
    micro = loader.whole("batch_size", "batch_per_gpu")
    plugin = "gradient_accumulation_plugin.num_steps"
    steps = plugin if accelerator.has(plugin) else "gradient_accumulation_steps"
    accumulation = accelerator.whole(steps, "accumulation", default=1)
    accelerator.table("parallelism_config").read_parallel("tp_size", "cp_size", "sp_size")
    split = accelerator.table("dataloader_config")
    if isinstance(split.raw("split_batches"), Unknown):
        split.number("split_batches", "effective_batch")
    elif split.flag("split_batches") and micro:
        page.reading.drop("batch_per_gpu")
        page.give("effective_batch", micro * (accumulation or 1), "DataLoader.batch_size")
        page.note("split_batches: DataLoader.batch_size counts the samples of all processes together")
    if accelerator.raw("split_batches") not in (None, False):
        page.note(f"{_IGNORED}: DataLoader.batch_size counts the samples of one process")
    accelerator.choice("mixed_precision", "precision", _PRECISIONS)
    page.table("clip_grad_norm_").clip("max_norm")
    optimizers = [name for name in OPTIMIZERS if name in page.settings]
    if len(optimizers) > 1:
        text = f"the script makes {' and '.join(optimizers)}: give optimizer and lr a value"
        page.fault("optimizer", InputError(text, field=optimizers[0]))
    for name in optimizers[:1]:
        page.optimizer(name, name)
        page.table(name).number("lr", "lr")
        page.table(name).torch_optimizer()
    schedulers = sorted(page.settings.keys() - {*OPTIMIZERS, *OTHERS, "scheduler"})
    if isinstance(elsewhere := page.raw("scheduler"), Unknown):
        page.ask("schedule", f"the schedule {elsewhere.why}", "scheduler")
        return
    if len(schedulers) > 1:
        page.ask("schedule", f"the script makes {' and '.join(schedulers)}", schedulers[0])
    for name in schedulers[:1]:
        _read_schedule(page, page.table(name), name, accumulation or 1)
    if not schedulers:
        page.give("schedule", "constant", "")
        page.note(
            "there is no scheduler in the script: planned with a constant learning rate (--set schedule=...)"
        )


def _read_schedule(page: SettingsPage, call: SettingsPage, key: str, accumulation: int) -> None:
    """Reads a scheduler over the whole run; Accelerate may step it once for every process."""
    run = read_run_schedule(page, call, key)
    if run is None:
        return
    steps = _steps_of(page.settings)
    per_process = steps in ("a process", "unknown")
    is_once = steps == "one" or (steps == "a call" and accumulation == 1)
    total, warmup = run.total, run.warmup
    same_unit = isinstance(total, Multiple) == isinstance(warmup, Multiple)
    counts = [steps.number if isinstance(steps, Multiple) else steps for steps in (total, warmup)]
    is_of_run = isinstance(total, Multiple) if per_process else is_once and type(total) in (int, float)
    if counts[0] and is_of_run:
        page.give("duration", length(counts[0], "st"), f"{key}.{run.key}")
        page.note(f"the run's length is taken from its scheduler: {key}.{run.key}")
    elif (page.reading.fields["schedule"] != "constant" or warmup) and (
        total is not None or not call.has(run.key)
    ):
        text = f"{key} counts steps of its own, and the loop's length is not read"
        page.ask("duration", text, key, is_gap=True)
    if not warmup:
        return
    if counts[0] and same_unit:
        page.give("warmup", exact_share(counts[1], counts[0]), f"{key}.num_warmup_steps")
    elif total is None and (isinstance(warmup, Multiple) if per_process else is_once):
        page.give("warmup", length(counts[1], "st"), f"{key}.num_warmup_steps")
    else:
        text = f"{counts[1]:g} steps of warmup in a run of unknown length"
        page.ask("warmup", text, f"{key}.num_warmup_steps", is_gap=True)


def write(plan: Planned, job: Job) -> SettingsSheet:
    """Writes the processes and the precision; all else as comments, with the commands to set it."""
    sheet = SettingsSheet()
    nodes, _ = layout(plan, sheet)
    precision, kind = plan.recipe.precision, job.own.get("distributed_type")
    plain = "MULTI_GPU" if plan.world_size > 1 else "NO"
    mixed = {} if precision is None else {"mixed_precision": _PRECISIONS.get(precision, "no")}
    sheet.settings = {
        "compute_environment": "LOCAL_MACHINE",
        "distributed_type": plain if kind in (None, "NO", "MULTI_GPU") else kind,
        "num_machines": nodes,
        "num_processes": plan.world_size,
        "machine_rank": 0,
        # One node takes any free port by itself.
        "main_process_port": port(job.name) if nodes > 1 else 0,
        "main_training_function": "main",
        **mixed,
        "rdzv_backend": "static",
        "same_network": True,
        "use_cpu": False,
    }
    if kind is None:
        sheet.note("keep distributed_type where your file has FSDP, DEEPSPEED or MEGATRON_LM")
    if nodes > 1:
        sheet.note("on each node: set machine_rank, and main_process_ip to the first node's address")
    # Accelerate rejects gradient_accumulation_steps in this file, and ignores the flag of that name.
    exports = {"ACCELERATE_GRADIENT_ACCUMULATION_STEPS": str(plan.accumulation), **variables(plan)}
    sheet.comments += [f"export {name}={value}" for name, value in exports.items()]
    sheet.note(f"accelerate launch --config_file accelerate.yaml {script(job)}")
    if plan.world_size > 1:
        sheet.note(
            "a scheduler that accelerator.prepare wraps takes a step for every process: give it total_steps "
            "× num_processes, or Accelerator(step_scheduler_with_optimizer=False) and step it yourself"
        )
    return sheet


def _steps_of(settings: Mapping[str, Any]) -> Literal["one", "a call", "a process", "unknown"]:
    """Returns the steps of a script's scheduler for each of the optimizer."""
    accelerator = settings["Accelerator"]
    switches = (accelerator.get("prepare"), accelerator.get("step_scheduler_with_optimizer", True))
    if False in switches:
        return "a call"
    if switches != (True, True):
        return "unknown"
    return "one" if value_at(accelerator, "dataloader_config.split_batches") is True else "a process"


def check(case: Case) -> Iterator[Issue]:
    """Finds silent behaviour of the tool."""
    if case.at("Accelerator") is not None:
        yield from _check_loop(case)
    elif case.gpus > 1:
        yield _scheduler_issue(case, "a scheduler that accelerator.prepare wraps", Weight.NOTE)
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
        machines = max(1, int(number(case.at("num_machines"))))
        nodes = case.nodes_like(written, machines)
        yield Issue(
            f"{counted(written, 'process starts', 'processes start')}, not {case.gpus}",
            "num_processes counts all machines together",
            "accelerate, commands/launch.py: --num_processes",
            f"num_processes: {case.gpus}" + ("" if nodes == machines else f"; num_machines: {nodes}"),
        )


def _check_loop(case: Case) -> Iterator[Issue]:
    """Finds silent behaviour of a loop of your own."""
    settings = case.reading.settings
    if case.at("Accelerator", "dataloader_config", "split_batches") is True:
        batch = case.at("DataLoader", "batch_size")
        yield from undivided_loader(batch, "DataLoader.batch_size", case.replicas)
    if case.at("Accelerator", "split_batches") not in (None, False) and case.gpus > 1:
        yield Issue(
            f"a step has {case.gpus} × the samples of DataLoader.batch_size",
            _IGNORED,
            "accelerate 1.0, accelerator.py: Accelerator.__init__",
            "Accelerator(dataloader_config=DataLoaderConfiguration(split_batches=True))",
        )
    key = next((name for name in settings if "sched" in name or name.endswith("LR")), None)
    steps = _steps_of(settings)
    accumulation = case.fields.get("accumulation") or 1
    if key is None or not settings[key] or case.gpus < 2:
        return
    if steps == "a call" and accumulation > 1:
        yield Issue.note(
            f"scheduler.step() counts its calls: {accumulation} for each step of the optimizer in "
            "accumulate()",
            "Accelerate leaves out the calls between two steps only of a prepared scheduler",
            "accelerate, scheduler.py",
            "if accelerator.sync_gradients: scheduler.step()",
        )
    if steps in ("a call", "one"):
        return
    arguments = [settings[key].get(name) for name in _LENGTHS.split() if settings[key].get(name)]
    kinds = {type(argument) for argument in arguments}
    planned = str(case.fields.get("duration", "")).removesuffix("st")
    run = float(planned) if planned.isdecimal() else 0.0
    if steps == "a process" and kinds - {int, float, Multiple}:
        yield Issue.note(
            f"{key}, which accelerator.prepare wraps, takes {case.gpus} steps for each of the optimizer's, "
            "and its length is not read",
            "Accelerate steps it once for every process",
            "accelerate, scheduler.py; huggingface/accelerate#2926, huggingface/diffusers#3954",
            "leave it if its length counts the optimizer's steps of all processes: the batches of the loader "
            f"before prepare{f', over {accumulation}' if accumulation > 1 else ''}; else multiply its steps "
            "by accelerator.num_processes",
        )
    elif steps == "unknown" or kinds - {int, float, Multiple}:
        yield _scheduler_issue(case, f"{key}, if accelerator.prepare wraps it,", Weight.NOTE)
    elif kinds - {Multiple} and arguments[-1] != run * case.gpus:
        yield _scheduler_issue(case, f"{key}, which accelerator.prepare wraps,", Weight.CHANGES)


def _scheduler_issue(case: Case, scheduler: str, weight: Weight) -> Issue:
    return Issue(
        f"{scheduler} takes {case.gpus} steps for each step of the optimizer",
        "Accelerate steps it once for every process",
        "accelerate, scheduler.py; huggingface/accelerate#2926, huggingface/diffusers#3954",
        "multiply its steps by accelerator.num_processes, or "
        "Accelerator(step_scheduler_with_optimizer=False) and step it yourself",
        weight,
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
    settings=SETTINGS,
)
