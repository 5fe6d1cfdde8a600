"""What other tools make of the files that a plan is exported to, each asked by its own parser, model or calculator.

`scripts/check-exports` runs it where they are installed and keeps what it prints.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable
from contextlib import redirect_stdout
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import isobatch as ib

RECIPE = ib.Recipe(
    effective_batch=256,
    gpus=8,
    micro_batch=8,
    lr=2e-4,
    betas=(0.9, 0.95),
    weight_decay=0.1,
    clip_norm=1.0,
    precision="bf16",
    seq_len=2048,
    duration="1000st",
    warmup="30st",
    schedule="linear",
)
PLAN = ib.plan(RECIPE, ib.Cluster(nodes=2, gpus_per_node=8, gpu="H100"))
STEPS = range(1000)


def written(tool: str, folder: str) -> Path:
    """The exported file."""
    made = PLAN.to(tool)
    path = Path(folder) / made.file
    made.save(path)
    return path


def words_of(path: Path) -> list[str]:
    """The words of the command in a script, its lines joined as a shell joins them."""
    return shlex.split(path.read_text().replace("\\\n", " "), comments=True)


def rates(theirs: Callable[[int], float]) -> str:
    """How far a learning rate is from the plan's."""
    worst = max(abs(theirs(step) - PLAN.lr_at(step)) for step in STEPS) / RECIPE.lr
    return "LR at each step as planned" if worst < 1e-9 else f"LR differs by up to {worst:.2%} of the peak"


def lightning(folder: str) -> str:
    """LightningCLI parses the configuration and builds the optimizer's class."""
    import jsonargparse
    import torch
    import yaml
    from lightning.pytorch import Trainer

    path = written("lightning", folder)
    parser = jsonargparse.ArgumentParser(exit_on_error=False)
    parser.add_class_arguments(Trainer, "trainer", instantiate=False)
    parser.add_subclass_arguments(torch.optim.Optimizer, "optimizer", skip={"params"}, required=True)
    parser.add_argument("--data.batch_size", type=int)
    said = parser.parse_object(yaml.safe_load(path.read_text()))
    trainer = said.trainer
    batch = said.data.batch_size * trainer.accumulate_grad_batches * trainer.devices * trainer.num_nodes
    return f"batch {batch}, steps {trainer.max_steps}, peak LR {said.optimizer.init_args.lr}, {said.optimizer.class_path}"


def ray_train(folder: str) -> str:
    """The file is loaded, and its ScalingConfig asked."""
    import runpy

    scaling = runpy.run_path(str(written("ray-train", folder)))["SCALING"]
    return f"{scaling.num_workers} workers, {scaling.resources_per_worker}"


def torchx(folder: str) -> str:
    """The component is built from the line's own words, as `torchx run --dryrun` does."""
    from torchx.runner import get_runner

    shell = f"torchx() {{ printf '%s\\n' \"$@\"; }}; . {shlex.quote(str(written('torchx', folder)))}"
    words = subprocess.check_output(["bash", "-c", shell], text=True).splitlines()
    with get_runner("isobatch") as runner:
        info = runner.dryrun_component(words[1], words[2:], scheduler="local_cwd", cfg={"log_dir": folder})
    roles = info._app.roles
    env = roles[0].env
    return f"{roles[0].num_replicas} × {env['ISOBATCH_MICRO_BATCH']} samples × {env['ISOBATCH_ACCUMULATION']}, entrypoint {roles[0].entrypoint}"


def kubeflow(folder: str) -> str:
    """The TrainJob's own model takes every field, and knows all of them."""
    import yaml
    from kubeflow_trainer_api.models import TrainerV1alpha1TrainJob

    data = yaml.safe_load(written("kubeflow", folder).read_text())
    job = TrainerV1alpha1TrainJob.from_dict(data)
    back = job.to_dict()
    assert back["spec"]["trainer"] == data["spec"]["trainer"], back
    trainer = job.spec.trainer
    return f"{trainer.num_nodes} nodes × {trainer.num_proc_per_node} processes, {len(trainer.env)} variables"


def skypilot(folder: str) -> str:
    """The task is loaded."""
    import sky

    task = sky.Task.from_yaml(str(written("skypilot", folder)))
    return f"{task.num_nodes} nodes of {next(iter(task.resources)).accelerators}"


def megatron(folder: str) -> str:
    """Its calculator of micro-batches, and its scheduler."""
    import torch
    from megatron.core.num_microbatches_calculator import ConstantNumMicroBatchesCalculator
    from megatron.core.optimizer_param_scheduler import OptimizerParamScheduler

    words = words_of(written("megatron", folder))
    said = {
        word: words[at + 1] for at, word in enumerate(words) if word.startswith("--") and at + 1 < len(words)
    }
    batch, micro = int(said["--global-batch-size"]), int(said["--micro-batch-size"])
    calculator = ConstantNumMicroBatchesCalculator(batch, micro, PLAN.data_parallel, False, 0)
    scheduler = OptimizerParamScheduler(
        torch.optim.AdamW([torch.nn.Parameter(torch.zeros(1))], lr=float(said["--lr"])),
        init_lr=0.0,
        max_lr=float(said["--lr"]),
        min_lr=float(said["--min-lr"]),
        lr_warmup_steps=int(said["--lr-warmup-iters"]) * batch,
        lr_decay_steps=int(said["--lr-decay-iters"]) * batch,
        lr_decay_style=said["--lr-decay-style"],
        start_wd=0.1,
        end_wd=0.1,
        wd_incr_steps=0,
        wd_incr_style="constant",
    )

    def rate(step: int) -> float:
        scheduler.num_steps = step * batch
        return float(scheduler.get_lr(scheduler.optimizer.param_groups[0]))

    return f"batch {batch} in {calculator.get()} micro-batches, steps {said['--train-iters']}, {rates(rate)}"


def deep_speed(folder: str) -> str:
    """Its configuration's class on 16 processes, and its scheduler."""
    import deepspeed.runtime.config
    import torch
    from deepspeed.runtime import lr_schedules
    from deepspeed.runtime.config import DeepSpeedConfig

    path = written("deepspeed", folder)

    class Mesh:
        def get_data_parallel_world_size(self) -> int:
            return PLAN.world_size

    deepspeed.runtime.config.dist.get_rank = lambda: (
        0
    )  # the world size is asked for only where there is a rank
    config = DeepSpeedConfig(json.loads(path.read_text()), mpu=Mesh())
    optimizer = torch.optim.AdamW([torch.nn.Parameter(torch.zeros(1))], lr=config.optimizer_params["lr"])
    scheduler = getattr(lr_schedules, config.scheduler_name)(optimizer, **config.scheduler_params)
    seen = []
    for _ in range(1000):
        seen.append(optimizer.param_groups[0]["lr"])
        scheduler.step()
    return (
        f"batch {config.train_batch_size} = {config.train_micro_batch_size_per_gpu} × {config.gradient_accumulation_steps} × 16, "
        f"{rates(lambda step: seen[step])}"
    )


def torchtitan(folder: str) -> str:
    """Its job configuration, and its scheduler."""
    import torch
    from torchtitan.config import ConfigManager

    path = written("torchtitan", folder)
    config = ConfigManager().parse_args(["--job.config_file", str(path)])
    from torchtitan.components.lr_scheduler import build_lr_schedulers

    optimizer = torch.optim.AdamW([torch.nn.Parameter(torch.zeros(1))], lr=config.optimizer.lr)
    return stepped(
        config.training,
        optimizer,
        build_lr_schedulers([optimizer], config.lr_scheduler, config.training.steps),
    )


def torchtitan_python(folder: str) -> str:
    """Since 0.3 a function changes one of its own configurations, and that builds optimizer and scheduler."""
    import runpy

    import torch
    from torchtitan.models.llama3.config_registry import llama3_8b

    path = Path(folder) / "planned.py"
    PLAN.to("torchtitan", form="py").save(path)
    config = runpy.run_path(str(path))["planned"](llama3_8b())
    config.optimizer.implementation = "for-loop"
    optimizers = config.optimizer.build(model_parts=[torch.nn.Linear(1, 1)])
    schedulers = config.lr_scheduler.build(optimizers=optimizers, training_steps=config.training.steps)
    return stepped(config.training, optimizers.optimizers[0], schedulers)


def stepped(training: Any, optimizer: Any, schedulers: Any) -> str:
    """What torchtitan's configuration has come to, and its scheduler at every step."""
    seen = []
    for _ in range(training.steps):
        seen.append(optimizer.param_groups[0]["lr"])
        schedulers.step()
    return f"batch {training.global_batch_size}, {training.local_batch_size} a GPU, steps {training.steps}, {rates(lambda step: seen[step])}"


CHECKS: dict[str, tuple[str, Callable[[str], str], str]] = {
    "deepspeed": ("deepspeed", deep_speed, "its configuration's class and scheduler"),
    "lightning": ("lightning", lightning, "the parser of its command line"),
    "megatron": ("megatron-core", megatron, "its calculator and scheduler"),
    "torchtitan": ("torchtitan", torchtitan, "its job configuration and scheduler"),
    "torchtitan, Python": ("torchtitan", torchtitan_python, "its Trainer.Config, optimizer and scheduler"),
    "ray-train": ("ray", ray_train, "the file is loaded"),
    "kubeflow": ("kubeflow-trainer-api", kubeflow, "its model"),
    "skypilot": ("skypilot", skypilot, "its task"),
    "torchx": ("torchx", torchx, "a dry run"),
}


LATE = f"""
DeepSpeed's WarmupLR and WarmupDecayLR, and the warmup of its WarmupCosineLR, use the step before: 1/{PLAN.warmup_steps} of the peak here. torchtitan
warms up by (step + 1)/{PLAN.warmup_steps}. Both are what `isobatch plan --to` itself computes of them, and says in its notes."""


def main() -> None:
    """A table of Markdown; with a name, its row alone."""
    if sys.argv[1:]:
        print(row(sys.argv[1]))
        return
    print("# Exports, checked by the tools\n")
    print(
        f"Made by `scripts/check-exports`, Python {sys.version.split()[0]}. The plan: {PLAN.world_size} GPUs, batch 256 ="
    )
    print(
        f"{PLAN.micro_batch} × {PLAN.accumulation} × {PLAN.data_parallel}, 1000 steps, 30 of warmup, peak LR 0.0002, linear.\n"
    )
    print("| target | version | asked | what it reported |\n|---|---|---|---|")
    for tool in CHECKS:
        print(beside(tool) if tool == "torchtitan, Python" else row(tool), flush=True)
    print(LATE)


def beside(tool: str) -> str:
    """The row of a version that lies beside the environment's own."""
    places = [str(Path(sys.prefix) / "torchtitan-0.3"), os.environ.get("PYTHONPATH")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, places))}
    done = subprocess.run(
        [sys.executable, __file__, tool], env=environment, stdout=subprocess.PIPE, text=True, check=True
    )
    return done.stdout.strip()


def row(tool: str) -> str:
    """What one tool said."""
    package, check, asked = CHECKS[tool]
    try:
        found = version(package)
    except PackageNotFoundError:
        return f"| {tool} | {package} not installed | {asked} | not checked |"
    try:
        # Some of them log to stdout.
        with tempfile.TemporaryDirectory() as folder, redirect_stdout(sys.stderr):
            said = check(folder)
    except Exception as error:
        traceback.print_exc()
        said = f"failed: {type(error).__name__}: {' '.join(str(error).split())[:120]}"
    return f"| {tool} | {found} | {asked} | {said} |"


if __name__ == "__main__":
    main()
