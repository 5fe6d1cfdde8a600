"""Questions to trainers about their files (exports.py), by their own parsers, calculators and schedulers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from exports_cases import Case, adamw, rates, saved, stepped, words_of


def transformers(case: Case, folder: Path) -> str:
    """Reads the file as HfArgumentParser does, and makes the scheduler that the Trainer makes."""
    from transformers import HfArgumentParser, TrainingArguments

    path = saved(case, "transformers", folder)
    path.write_text(path.read_text() + "\nuse_cpu: true\n")
    (arguments,) = HfArgumentParser(TrainingArguments).parse_yaml_file(str(path))
    return of_trainer(case, arguments)


def of_trainer(case: Case, arguments: Any) -> str:
    """Makes the scheduler of transformers' Trainer from its arguments."""
    from transformers import get_scheduler

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


def trl(case: Case, folder: Path) -> str:
    """Reads the file as TRL's command line does."""
    from trl import SFTConfig, TrlParser

    path = saved(case, "trl", folder)
    path.write_text(path.read_text() + "\nuse_cpu: true\n")
    (arguments,) = TrlParser(SFTConfig).parse_args_and_config(["--config", str(path)])
    return of_trainer(case, arguments)


def trl_groups(case: Case, folder: Path) -> str:
    """Gives the files for 1 to 64 GPUs to GRPOConfig; it refuses a batch of parts of groups."""
    from transformers import TrainingArguments
    from trl import GRPOConfig

    import isobatch as ib

    refused, planned = [], 0
    for gpus in range(1, 65):
        plan = ib.plan(case.plan.recipe, gpus, batch_tolerance=0.1, batch_multiple=8)
        if plan.status == "infeasible":
            continue
        planned += 1
        TrainingArguments.world_size = property(lambda _, gpus=gpus: gpus)
        written = plan.to("trl").settings
        try:
            GRPOConfig(output_dir=str(folder), num_generations=8, use_cpu=True, **written)
        except ValueError as error:
            refused.append(f"{gpus}: {error}")
    few = " ".join(refused[:2])
    return f"{planned} of 64 counts can be planned, {len(refused)} of these refused {few}".strip()


def axolotl(case: Case, folder: Path) -> str:
    """Gives the file to its own validation, and makes the scheduler of the Trainer that it drives."""
    import yaml
    from axolotl.utils.config import validate_config
    from axolotl.utils.dict import DictDefault
    from transformers import TrainingArguments

    model = {
        "base_model": "any",
        "datasets": [{"path": "any", "type": "alpaca"}],
        "num_epochs": 1,
        "sequence_len": 2048,
    }
    read = validate_config(
        DictDefault(model | yaml.safe_load(saved(case, "axolotl", folder).read_text())),
        capabilities={"bf16": True, "fp8": False, "n_gpu": 1, "compute_capability": "sm_90", "tf32": False},
        env_capabilities={"torch_version": "2.11.0"},
    )
    arguments = TrainingArguments(
        output_dir=str(folder),
        use_cpu=True,
        per_device_train_batch_size=read.micro_batch_size,
        gradient_accumulation_steps=read.gradient_accumulation_steps,
        learning_rate=float(read.learning_rate),
        lr_scheduler_type=read.lr_scheduler,
        warmup_steps=read.warmup_steps,
        max_steps=read.max_steps,
    )
    return of_trainer(case, arguments)


def llama_factory(case: Case, folder: Path) -> str:
    """Gives the file to the parser of its training command."""
    import yaml

    os.environ["DISABLE_VERSION_CHECK"] = "1"
    from llamafactory.hparams import get_train_args

    model = {
        "model_name_or_path": "any",
        "stage": "sft",
        "do_train": True,
        "dataset": "any",
        "template": "llama3",
        "finetuning_type": "lora",
        "output_dir": str(folder),
        "use_cpu": True,
    }
    arguments = get_train_args(model | yaml.safe_load(saved(case, "llama_factory", folder).read_text()))[2]
    return of_trainer(case, arguments)


def accelerate(case: Case, folder: Path) -> str:
    """Gives the file to its launcher, up to where that would start the processes."""
    from accelerate.commands.launch import _validate_launch_command, launch_command_parser

    path = saved(case, "accelerate", folder)
    arguments, _, _ = _validate_launch_command(
        launch_command_parser().parse_args(["--config_file", str(path), "train.py"])
    )
    processes = f"{arguments.num_processes} processes on {arguments.num_machines} machines"
    return f"{processes}, {arguments.mixed_precision}"


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
    optimizer = f"peak LR {read.optimizer.init_args.lr:.3g}, {read.optimizer.class_path}"
    return f"batch {batch}, steps {trainer.max_steps}, {optimizer}"


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
    micro, parts = config.train_micro_batch_size_per_gpu, config.gradient_accumulation_steps
    split = f"{micro} × {parts} × {case.plan.world_size}"
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
    """Calls the function on one of its own configurations (0.3), and builds optimizer and scheduler."""
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


def megatron(case: Case, folder: Path) -> str:
    """Trains without a model: its calculator gives each batch, its scheduler the learning rate."""
    from megatron.core import num_microbatches_calculator as calculators
    from megatron.core.optimizer_param_scheduler import OptimizerParamScheduler

    plan, words = case.plan, words_of(saved(case, "megatron", folder))[1:]
    started = megatron_start(case, words)
    flags = [*(at for at, word in enumerate(words) if word.startswith("--")), len(words)]
    values_of = {words[at]: words[at + 1 : end] for at, end in pairwise(flags)}
    number_of = {
        flag: float(values[0]) for flag, values in values_of.items() if values and values[0][0].isdigit()
    }
    batch, micro = int(number_of["--global-batch-size"]), int(number_of["--micro-batch-size"])
    ramp = [int(word) for word in values_of.get("--rampup-batch-size", [])]
    if ramp:
        calculator = calculators.RampupBatchsizeNumMicroBatchesCalculator(
            batch, micro, plan.data_parallel, False, 0, *ramp
        )
    else:
        calculator = calculators.ConstantNumMicroBatchesCalculator(batch, micro, plan.data_parallel, False, 0)
    unit, per = ("samples", 1) if "--train-samples" in number_of else ("iters", batch)
    scheduler = OptimizerParamScheduler(
        adamw(number_of["--lr"]),
        init_lr=0.0,
        max_lr=number_of["--lr"],
        min_lr=number_of["--min-lr"],
        lr_warmup_steps=int(number_of[f"--lr-warmup-{unit}"]) * per,
        lr_decay_steps=int(number_of[f"--lr-decay-{unit}"]) * per,
        lr_decay_style=values_of["--lr-decay-style"][0],
        start_wd=0.1,
        end_wd=0.1,
        wd_incr_steps=0,
        wd_incr_style="constant",
    )
    consumed, step, rates_seen, wrong = int(plan.position(case.start).samples), case.start, {}, 0
    while step < number_of["--train-iters"] if unit == "iters" else consumed < number_of["--train-samples"]:
        calculator.update(consumed, True)
        scheduler.num_steps = consumed
        rates_seen[step] = float(scheduler.get_lr(scheduler.optimizer.param_groups[0]))
        following = consumed + calculator.get_current_global_batch_size()
        step += 1
        wrong += step <= plan.total_steps and following != int(plan.position(step).samples)
        consumed = following
    batches = f"{wrong} batches differ" if wrong else f"batch {batch}"
    steps = f"steps {step}" if step == plan.total_steps else f"steps {step} for {plan.total_steps}"
    return f"{batches}, {steps}, {rates(case, lambda at: rates_seen.get(at, 0.0))}{started}"


def megatron_start(case: Case, words: Sequence[str]) -> str:
    """Gives the arguments to Megatron-LM's own parser and validation, as its start-up does."""
    if not (home := os.environ.get("MEGATRON_LM")):
        return ""
    model = (
        "--num-layers 2 --hidden-size 64 --num-attention-heads 4 --max-position-embeddings 2048 "
        "--transformer-impl local"
    )
    program = (
        "import sys, typing, typing_extensions; typing.override = typing_extensions.override\n"
        "from megatron.training.arguments import parse_args, validate_args\n"
        "validate_args(parse_args(), {})"
    )
    arguments = [*model.split(), "--tokenizer-type", "NullTokenizer", "--vocab-size", "100", *words]
    environment = {**os.environ, "PYTHONPATH": home, "WORLD_SIZE": str(case.plan.world_size), "RANK": "0"}
    process = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    return (
        ", its start-up accepts it"
        if process.returncode == 0
        else f"; its start-up: {process.stderr.strip().splitlines()[-1][:120]}"
    )
