"""What other tools make of the files that a plan is written to, each asked by its own parser, model, calculator and scheduler.

`scripts/check-exports` runs it where they are installed and keeps what it prints. Megatron-LM's own start-up is asked where MEGATRON_LM names a checkout of it.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from importlib.metadata import PackageNotFoundError, version
from itertools import pairwise
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
    }


class Check(NamedTuple):
    """How a tool is asked: the package that gives the version, what is asked of it, and the cases that it takes."""

    package: str
    asked: str
    ask: Callable[[Case, Path], str]
    cases: Sequence[str] = ("started",)
    beside: str = ""
    """The folder of a version that lies beside the environment's own packages."""


def saved(case: Case, tool: str, folder: Path, form: str | None = None) -> Path:
    """Writes the plan as the tool's file."""
    export = case.plan.to(tool, form=form)
    export.save(folder / export.file)
    return folder / export.file


def words_of(path: Path) -> list[str]:
    """Returns the words of the command in a script, its lines joined as a shell joins them."""
    return shlex.split(path.read_text().replace("\\\n", " "), comments=True)


def rates(case: Case, theirs: Callable[[int], float]) -> str:
    """Compares the learning rate of every step that is left with the plan's."""
    steps = range(case.start, case.plan.total_steps)
    worst = max(abs(theirs(step) - case.plan.lr_at(step)) for step in steps) / case.plan.lr
    return "LR at each step as planned" if worst < 1e-9 else f"LR differs by up to {worst:.2%} of the peak"


def stepped(case: Case, optimizer: Any, scheduler: Any) -> str:
    """Steps a scheduler of torch's kind through the run."""
    seen = []
    for _ in range(case.plan.total_steps):
        seen.append(optimizer.param_groups[0]["lr"])
        scheduler.step()
    return rates(case, seen.__getitem__)


def adamw(lr: float) -> Any:
    """Returns an optimizer for a scheduler to move."""
    import torch

    return torch.optim.AdamW([torch.nn.Parameter(torch.zeros(1))], lr=lr)


def megatron(case: Case, folder: Path) -> str:
    """Trains without a model: its calculator gives the batch of every iteration, its scheduler the learning rate."""
    from megatron.core import num_microbatches_calculator as calculators
    from megatron.core.optimizer_param_scheduler import OptimizerParamScheduler

    plan, words = case.plan, words_of(saved(case, "megatron", folder))[1:]
    started = megatron_start(case, words)
    flags = [*(at for at, word in enumerate(words) if word.startswith("--")), len(words)]
    given = {words[at]: words[at + 1 : end] for at, end in pairwise(flags)}
    one = {flag: float(values[0]) for flag, values in given.items() if values and values[0][0].isdigit()}
    batch, micro = int(one["--global-batch-size"]), int(one["--micro-batch-size"])
    ramp = [int(word) for word in given.get("--rampup-batch-size", [])]
    if ramp:
        calculator = calculators.RampupBatchsizeNumMicroBatchesCalculator(
            batch, micro, plan.data_parallel, False, 0, *ramp
        )
    else:
        calculator = calculators.ConstantNumMicroBatchesCalculator(batch, micro, plan.data_parallel, False, 0)
    unit, per = ("samples", 1) if "--train-samples" in one else ("iters", batch)
    scheduler = OptimizerParamScheduler(
        adamw(one["--lr"]),
        init_lr=0.0,
        max_lr=one["--lr"],
        min_lr=one["--min-lr"],
        lr_warmup_steps=int(one[f"--lr-warmup-{unit}"]) * per,
        lr_decay_steps=int(one[f"--lr-decay-{unit}"]) * per,
        lr_decay_style=given["--lr-decay-style"][0],
        start_wd=0.1,
        end_wd=0.1,
        wd_incr_steps=0,
        wd_incr_style="constant",
    )
    consumed, step, seen, wrong = int(plan.position(case.start).samples), case.start, {}, 0
    while step < one["--train-iters"] if unit == "iters" else consumed < one["--train-samples"]:
        calculator.update(consumed, True)
        scheduler.num_steps = consumed
        seen[step] = float(scheduler.get_lr(scheduler.optimizer.param_groups[0]))
        following = consumed + calculator.get_current_global_batch_size()
        step += 1
        wrong += step <= plan.total_steps and following != int(plan.position(step).samples)
        consumed = following
    batches = f"{wrong} batches differ" if wrong else f"batch {batch}"
    steps = f"steps {step}" if step == plan.total_steps else f"steps {step} for {plan.total_steps}"
    return f"{batches}, {steps}, {rates(case, lambda at: seen.get(at, 0.0))}{started}"


def megatron_start(case: Case, words: Sequence[str]) -> str:
    """Gives the arguments to Megatron-LM's own parser and validation, as its start-up does."""
    if not (home := os.environ.get("MEGATRON_LM")):
        return ""
    model = "--num-layers 2 --hidden-size 64 --num-attention-heads 4 --max-position-embeddings 2048 --transformer-impl local"
    program = (
        "import sys, typing, typing_extensions; typing.override = typing_extensions.override\n"
        "from megatron.training.arguments import parse_args, validate_args\n"
        "validate_args(parse_args(), {})"
    )
    arguments = [*model.split(), "--tokenizer-type", "NullTokenizer", "--vocab-size", "100", *words]
    environment = {**os.environ, "PYTHONPATH": home, "WORLD_SIZE": str(case.plan.world_size), "RANK": "0"}
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    return (
        ", its start-up accepts it"
        if done.returncode == 0
        else f"; its start-up: {done.stderr.strip().splitlines()[-1][:120]}"
    )


def transformers(case: Case, folder: Path) -> str:
    """Reads the file as HfArgumentParser does, and makes the scheduler that the Trainer makes."""
    from transformers import HfArgumentParser, TrainingArguments, get_scheduler

    path = saved(case, "transformers", folder)
    path.write_text(path.read_text() + "\nuse_cpu: true\n")
    (arguments,) = HfArgumentParser(TrainingArguments).parse_yaml_file(str(path))
    optimizer = adamw(arguments.learning_rate)
    scheduler = get_scheduler(
        arguments.lr_scheduler_type,
        optimizer,
        arguments.get_warmup_steps(arguments.max_steps),
        arguments.max_steps,
    )
    batch = (
        arguments.per_device_train_batch_size * arguments.gradient_accumulation_steps * case.plan.world_size
    )
    return f"batch {batch}, steps {arguments.max_steps}, {stepped(case, optimizer, scheduler)}"


def accelerate(case: Case, folder: Path) -> str:
    """Gives the file to its launcher, up to where that would start the processes."""
    from accelerate.commands.launch import _validate_launch_command, launch_command_parser

    path = saved(case, "accelerate", folder)
    arguments, _, _ = _validate_launch_command(
        launch_command_parser().parse_args(["--config_file", str(path), "train.py"])
    )
    return f"{arguments.num_processes} processes on {arguments.num_machines} machines, {arguments.mixed_precision}"


def lightning(case: Case, folder: Path) -> str:
    """Gives the file to the parser of LightningCLI."""
    import jsonargparse
    import torch
    import yaml
    from lightning.pytorch import Trainer

    parser = jsonargparse.ArgumentParser(exit_on_error=False)
    parser.add_class_arguments(Trainer, "trainer", instantiate=False)
    parser.add_subclass_arguments(torch.optim.Optimizer, "optimizer", skip={"params"}, required=True)
    parser.add_argument("--data.batch_size", type=int)
    read = parser.parse_object(yaml.safe_load(saved(case, "lightning", folder).read_text()))
    trainer = read.trainer
    batch = read.data.batch_size * trainer.accumulate_grad_batches * trainer.devices * trainer.num_nodes
    return f"batch {batch}, steps {trainer.max_steps}, peak LR {read.optimizer.init_args.lr:.3g}, {read.optimizer.class_path}"


def deepspeed(case: Case, folder: Path) -> str:
    """Gives the file to its configuration's class, and steps its scheduler."""
    import deepspeed.runtime.config
    from deepspeed.runtime import lr_schedules
    from deepspeed.runtime.config import DeepSpeedConfig

    class Mesh:
        def get_data_parallel_world_size(self) -> int:
            return case.plan.world_size

    # The world size is asked for only where there is a rank.
    deepspeed.runtime.config.dist.get_rank = lambda: 0
    config = DeepSpeedConfig(json.loads(saved(case, "deepspeed", folder).read_text()), mpu=Mesh())
    optimizer = adamw(config.optimizer_params["lr"])
    scheduler = getattr(lr_schedules, config.scheduler_name)(optimizer, **config.scheduler_params)
    split = f"{config.train_micro_batch_size_per_gpu} × {config.gradient_accumulation_steps} × {case.plan.world_size}"
    return f"batch {config.train_batch_size} = {split}, {stepped(case, optimizer, scheduler)}"


def torchtitan(case: Case, folder: Path) -> str:
    """Gives the file to its configuration's manager, and steps its scheduler."""
    from torchtitan.components.lr_scheduler import build_lr_schedulers
    from torchtitan.config import ConfigManager

    path = saved(case, "torchtitan", folder)
    config = ConfigManager().parse_args(["--job.config_file", str(path)])
    optimizer = adamw(config.optimizer.lr)
    scheduler = build_lr_schedulers([optimizer], config.lr_scheduler, config.training.steps)
    return f"{sizes(config.training)}, {stepped(case, optimizer, scheduler)}"


def torchtitan_python(case: Case, folder: Path) -> str:
    """Calls the function on one of its own configurations, as is done since 0.3, and builds optimizer and scheduler."""
    import runpy

    import torch
    from torchtitan.models.llama3.config_registry import llama3_8b

    path = saved(case, "torchtitan", folder, "py")
    config = runpy.run_path(str(path))["planned"](llama3_8b())
    config.optimizer.implementation = "for-loop"
    optimizers = config.optimizer.build(model_parts=[torch.nn.Linear(1, 1)])
    schedulers = config.lr_scheduler.build(optimizers=optimizers, training_steps=config.training.steps)
    return f"{sizes(config.training)}, {stepped(case, optimizers.optimizers[0], schedulers)}"


def sizes(training: Any) -> str:
    """Says what torchtitan's configuration has come to."""
    return f"batch {training.global_batch_size}, {training.local_batch_size} a GPU, steps {training.steps}"


def ray_train(case: Case, folder: Path) -> str:
    """Runs the file, and asks its ScalingConfig."""
    import runpy

    scaling = runpy.run_path(str(saved(case, "ray-train", folder)))["SCALING"]
    return f"{scaling.num_workers} workers, {scaling.resources_per_worker}"


def torchx(case: Case, folder: Path) -> str:
    """Builds the component from the line's own words, as `torchx run --dryrun` does."""
    from torchx.runner import get_runner

    words = words_of(saved(case, "torchx", folder))
    with get_runner("isobatch") as runner:
        info = runner.dryrun_component(
            words[2], words[3:], scheduler="local_cwd", cfg={"log_dir": str(folder)}
        )
    (role,) = info._app.roles
    split = f"{role.env['ISOBATCH_MICRO_BATCH']} samples × {role.env['ISOBATCH_ACCUMULATION']}"
    return f"{role.num_replicas} × {split}, entrypoint {role.entrypoint}"


def kubeflow(case: Case, folder: Path) -> str:
    """Gives the TrainJob to its own model, that must know every field."""
    import yaml
    from kubeflow_trainer_api.models import TrainerV1alpha1TrainJob

    data = yaml.safe_load(saved(case, "kubeflow", folder).read_text())
    job = TrainerV1alpha1TrainJob.from_dict(data)
    back = job.to_dict()
    assert back["spec"]["trainer"] == data["spec"]["trainer"], back
    trainer = job.spec.trainer
    return f"{trainer.num_nodes} nodes × {trainer.num_proc_per_node} processes, {len(trainer.env)} variables"


def skypilot(case: Case, folder: Path) -> str:
    """Loads the task."""
    import sky

    task = sky.Task.from_yaml(str(saved(case, "skypilot", folder)))
    return f"{task.num_nodes} nodes of {next(iter(task.resources)).accelerators}"


MOVED = ("started", "restarted", "another batch")
CHECKS: dict[str, Check] = {
    "transformers": Check("transformers", "its parser and scheduler", transformers, MOVED),
    "accelerate": Check("accelerate", "its launcher, up to the processes", accelerate),
    "deepspeed": Check("deepspeed", "its configuration's class and scheduler", deepspeed, MOVED),
    "lightning": Check("lightning", "the parser of its command line", lightning, MOVED),
    "megatron": Check("megatron-core", "its calculator and scheduler", megatron, tuple(cases())),
    "torchtitan": Check("torchtitan", "its job configuration and scheduler", torchtitan, MOVED),
    "torchtitan, Python": Check(
        "torchtitan",
        "its Trainer.Config, optimizer and scheduler",
        torchtitan_python,
        MOVED,
        "torchtitan-0.3",
    ),
    "ray-train": Check("ray", "the file is run", ray_train),
    "kubeflow": Check("kubeflow-trainer-api", "its model", kubeflow),
    "skypilot": Check("skypilot", "its task", skypilot),
    "torchx": Check("torchx", "a dry run", torchx),
}


def main() -> None:
    """Prints a table of Markdown; with a tool's name, its rows alone."""
    if sys.argv[1:]:
        print("\n".join(rows(sys.argv[1])))
        return
    print("# Written files, checked by the tools\n")
    print(f"Made by `scripts/check-exports`, Python {sys.version.split()[0]}. The cases:\n")
    for name, (plan, start) in cases().items():
        split = f"{plan.effective_batch} = {plan.micro_batch} × {plan.accumulation} × {plan.data_parallel}"
        print(f"- {name}: batch {split}, steps {start} to {plan.total_steps}, peak LR {plan.lr:.3g}, linear")
    print("\n| target | version | asked | case | what it reported |\n|---|---|---|---|---|")
    for tool, check in CHECKS.items():
        print("\n".join(beside(tool) if check.beside else rows(tool)), flush=True)
    print(
        "\nDeepSpeed's WarmupLR and WarmupDecayLR, and the warmup of its WarmupCosineLR, use the step before; torchtitan warms up by"
        "\n(step + 1)/warmup. Both are what `isobatch plan --to` itself computes of them, and says in its notes, as it does where a"
        "\ntool has no curve for a run that moved to another batch."
    )


def beside(tool: str) -> list[str]:
    """Returns the rows of a version that lies beside the environment's own, asked in a process of its own."""
    places = [str(Path(sys.prefix) / CHECKS[tool].beside), os.environ.get("PYTHONPATH")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, places))}
    done = subprocess.run(
        [sys.executable, __file__, tool], env=environment, stdout=subprocess.PIPE, text=True, check=True
    )
    return done.stdout.strip().splitlines()


def rows(tool: str) -> list[str]:
    """Asks a tool about each of its cases."""
    check, plans = CHECKS[tool], cases()
    try:
        found = version(check.package)
    except PackageNotFoundError:
        return [f"| {tool} | not installed | {check.asked} | | not checked |"]
    return [
        f"| {tool} | {found} | {check.asked} | {name} | {answer(check, plans[name])} |"
        for name in check.cases
    ]


def answer(check: Check, case: Case) -> str:
    """Asks a tool about one case."""
    try:
        # Some of them log to stdout.
        with tempfile.TemporaryDirectory() as folder, redirect_stdout(sys.stderr):
            return check.ask(case, Path(folder))
    except Exception as error:
        traceback.print_exc()
        return f"failed: {type(error).__name__}: {' '.join(str(error).split())[:120]}"


if __name__ == "__main__":
    main()
