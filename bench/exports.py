"""A plan's files in other tools: by their own parsers, models, calculators and schedulers.

`scripts/check-exports` runs it where they are installed and keeps what it prints. Megatron-LM's own start-up
is asked where MEGATRON_LM names a checkout of it.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import NamedTuple

import exports_trainers as trainers
from exports_cases import Case, cases, saved


class Check(NamedTuple):
    """A question to a tool: the package of its version, what is asked, and the cases."""

    package: str
    question: str
    ask: Callable[[Case, Path], str]
    cases: Sequence[str] = ("started",)
    beside: str = ""
    """The folder of a version that lies beside the environment's own packages."""


def ray_train(case: Case, folder: Path) -> str:
    """Runs the file, and asks its ScalingConfig."""
    import runpy

    scaling = runpy.run_path(str(saved(case, "ray-train", folder)))["SCALING"]
    return f"{scaling.num_workers} workers, {scaling.resources_per_worker}"


def torchx(case: Case, folder: Path) -> str:
    """Builds the component from the line's own words, as `torchx run --dryrun` does."""
    from torchx.runner import get_runner

    shell = f"torchx() {{ printf '%s\\n' \"$@\"; }}; . {shlex.quote(str(saved(case, 'torchx', folder)))}"
    words = subprocess.check_output(["bash", "-c", shell], text=True).splitlines()
    with get_runner("isobatch") as runner:
        info = runner.dryrun_component(
            words[1], words[2:], scheduler="local_cwd", cfg={"log_dir": str(folder)}
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
    "transformers": Check("transformers", "its parser and scheduler", trainers.transformers, MOVED),
    "trl": Check("trl", "the parser of its command line", trainers.trl, MOVED),
    "trl, GRPO": Check("trl", "its GRPOConfig at 1 to 64 GPUs, 8 completions a prompt", trainers.trl_groups),
    "axolotl": Check("axolotl", "its validation", trainers.axolotl, MOVED, "axolotl"),
    "llama_factory": Check(
        "llamafactory", "the parser of its command line", trainers.llama_factory, MOVED, "llamafactory"
    ),
    "accelerate": Check("accelerate", "its launcher, up to the processes", trainers.accelerate),
    "deepspeed": Check("deepspeed", "its configuration's class and scheduler", trainers.deepspeed, MOVED),
    "lightning": Check("lightning", "the parser of its command line", trainers.lightning, MOVED),
    "megatron": Check("megatron-core", "its calculator and scheduler", trainers.megatron, tuple(cases())),
    "torchtitan": Check("torchtitan", "its job configuration and scheduler", trainers.torchtitan, MOVED),
    "torchtitan, Python": Check(
        "torchtitan",
        "its Trainer.Config, optimizer and scheduler",
        trainers.torchtitan_python,
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
    print(f"Made by `scripts/check-exports`, Python {sys.version.split()[0]}. LR off: at most, of the peak.")
    print("The cases:\n")
    for name, (plan, start) in cases().items():
        split = f"{plan.effective_batch} = {plan.micro_batch} × {plan.accumulation} × {plan.data_parallel}"
        print(f"- {name}: batch {split}, steps {start} to {plan.total_steps}, peak LR {plan.lr:.3g}, linear")
    print("\n| target | version | asked | cases: what it reported |\n|---|---|---|---|")
    for tool, check in CHECKS.items():
        print("\n".join(beside(tool) if check.beside else rows(tool)), flush=True)
    print(
        "\nDeepSpeed's WarmupLR, WarmupDecayLR and warmup of WarmupCosineLR use the step before; torchtitan "
        "warms up by\n(step + 1)/warmup. `isobatch plan --to` says so in its notes, and where a tool has no "
        "curve for a moved run."
    )


def beside(tool: str) -> list[str]:
    """Returns the rows of a version that lies beside the environment's own, asked in a process of its own."""
    places = [str(Path(sys.prefix) / CHECKS[tool].beside), os.environ.get("PYTHONPATH")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, places))}
    process = subprocess.run(
        [sys.executable, __file__, tool], env=environment, stdout=subprocess.PIPE, text=True, check=True
    )
    return process.stdout.strip().splitlines()


def rows(tool: str) -> list[str]:
    """Asks a tool about each of its cases; cases of one answer are named together."""
    check, plans = CHECKS[tool], cases()
    try:
        installed = version(check.package)
    except PackageNotFoundError:
        return [f"| {tool} | not installed | {check.question} | not checked |"]
    named: dict[str, list[str]] = {}
    for name in check.cases:
        named.setdefault(answer(check, plans[name]), []).append(name)
    texts = "; ".join(f"{', '.join(names)}: {text}" for text, names in named.items())
    return [f"| {tool} | {installed} | {check.question} | {texts} |"]


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
