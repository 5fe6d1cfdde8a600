"""Launchers of a script of one's own: torchrun, Slurm, Ray Train, Kubeflow, SkyPilot and TorchX. They hand it the plan as environment
variables, and place the GPUs as nodes of processes.
"""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Mapping
from typing import Any

from isobatch.errors import InputError, missing
from isobatch.files.texts import number_text, remark
from isobatch.tools.sheet import Job, Plan, SettingsSheet, parts, remark_lines, shell
from isobatch.tools.tool import Tool, Writer

GPUS_PER_NODE = 8
MAX_NODE_GPUS = 16
"""No machine on the market has more GPUs under one operating system."""
PORT = 29500


def variables(plan: Plan) -> dict[str, str]:
    """Names the plan's decisions as environment variables, without unknown ones."""
    return {
        f"ISOBATCH_{name.upper()}": number_text(value) if type(value) is float else str(value)
        for name, value in parts(plan).items()
        if value is not None
    }


def layout(plan: Plan, sheet: SettingsSheet) -> tuple[int, int]:
    """Nodes, and processes on each. A plan for a bare number of GPUs does not say how they stand in machines."""
    nodes, each = plan.cluster.nodes, plan.cluster.gpus_per_node
    if nodes == 1 and each > MAX_NODE_GPUS:
        if each % GPUS_PER_NODE == 0:
            sheet.note(
                f"{each} GPUs taken as {each // GPUS_PER_NODE} nodes of {GPUS_PER_NODE}: plan with --nodes and --gpus-per-node"
            )
            return each // GPUS_PER_NODE, GPUS_PER_NODE
        sheet.note(f"{each} GPUs in one node: plan with --nodes and --gpus-per-node")
    return nodes, each


def launcher(plan: Plan) -> SettingsSheet:
    """Returns the settings common to all launchers."""
    sheet = SettingsSheet()
    nodes, each = layout(plan, sheet)
    sheet.settings = {"nodes": nodes, "gpus_per_node": each, "env": variables(plan)}
    sheet.note(
        "the script reads ISOBATCH_*; a schedule comes from them or from isobatch.Plan.load(...).lr_at"
    )
    return sheet


def exports(env: Mapping[str, str], remarks: Mapping[str, str]) -> str:
    """`export NAME=value` for a shell, each value quoted."""
    return "".join(
        f"export {name}={shlex.quote(value)}{remark(remarks, f'env.{name}')}\n" for name, value in env.items()
    )


def script(job: Job) -> str:
    """The training script and its arguments, quoted for a shell."""
    return shlex.join(job.command)


def safe_name(name: str, *, dns: bool = False, most: int = 63) -> str:
    """Makes a job's name safe for any launcher and file system.

    >>> safe_name("a b; $(rm)"), safe_name("My_Job", dns=True), safe_name("..")
    ('a-b-rm', 'my-job', 'job')
    """
    plain = re.sub(r"[^A-Za-z0-9-]+" if dns else r"[^A-Za-z0-9._-]+", "-", name)
    plain = (plain.lower() if dns else plain)[:most].strip("-._")
    return plain or "job"


def _torchrun(plan: Plan, job: Job) -> SettingsSheet:  # noqa: ARG001 - the name is rendered
    """Nodes, processes and the environment."""
    sheet = launcher(plan)
    if sheet.settings["nodes"] > 1:
        sheet.note("run this on every node, with MASTER_ADDR set to the first node's name")
    return sheet


def _torchrun_script(sheet: SettingsSheet, remarks: Mapping[str, str], top: str, job: Job) -> str:
    """The script."""
    command = start(sheet.settings["nodes"], sheet.settings["gpus_per_node"], safe_name(job.name))
    return f"#!/usr/bin/env bash\n{top}set -euo pipefail\n{exports(sheet.settings['env'], remarks)}exec {command} {script(job)}\n"


def start(nodes: int, each: int, name: str) -> str:
    """The command line in front of the script."""
    if nodes == 1:
        return f"torchrun --standalone --nnodes 1 --nproc-per-node {each}"
    where = f'"${{MASTER_ADDR:?set it to the name of the first node}}:{PORT}"'
    return (
        f"torchrun --nnodes {nodes} --nproc-per-node {each} --rdzv-backend c10d --rdzv-endpoint {where} "
        f"--rdzv-id {shlex.quote(name)}"
    )


def _slurm(plan: Plan, job: Job) -> SettingsSheet:
    """Nodes, GPUs, the time where it is forecast, and the environment."""
    sheet = launcher(plan)
    name = safe_name(job.name)
    if name != job.name:
        sheet.note(f"the job is named {name}")
    sheet.settings = {"name": name, **sheet.settings}
    if plan.hours is not None:
        # A tenth more than the forecast, in whole minutes.
        sheet.settings["minutes"] = math.ceil(plan.hours * 60 * 1.1)
    return sheet


def _slurm_script(sheet: SettingsSheet, remarks: Mapping[str, str], top: str, job: Job) -> str:
    """One task a node, and torchrun in it: it starts a process for each GPU."""
    settings = sheet.settings
    head = ["#!/usr/bin/env bash", f"#SBATCH --job-name={settings['name']}"]
    head += [f"#SBATCH --nodes={settings['nodes']}", "#SBATCH --ntasks-per-node=1"]
    head += [f"#SBATCH --gpus-per-node={settings['gpus_per_node']}"]
    if "minutes" in settings:
        head.append(f"#SBATCH --time={settings['minutes']}")
    said = remark_lines({at: text for at, text in remarks.items() if not at.startswith("env.")})
    return (
        "\n".join(head)
        + f"\n{top}{said}set -euo pipefail\n{exports(settings['env'], remarks)}"
        + 'MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)\n'
        + f'srun torchrun --nnodes "$SLURM_JOB_NUM_NODES" --nproc-per-node {settings["gpus_per_node"]} --rdzv-backend c10d '
        + f'--rdzv-endpoint "$MASTER_ADDR:{PORT}" --rdzv-id "$SLURM_JOB_ID" {script(job)}\n'
    )


def _ray_train(plan: Plan, job: Job) -> SettingsSheet:  # noqa: ARG001 - the name is rendered
    """Workers and the environment. Ray places a worker on any GPU that is free: it needs no nodes."""
    sheet = launcher(plan)
    sheet.comments = [comment for comment in sheet.comments if "nodes" not in str(comment)]
    sheet.settings = {"num_workers": plan.world_size, "env": sheet.settings["env"]}
    return sheet


def _ray_train_script(sheet: SettingsSheet, remarks: Mapping[str, str], top: str, job: Job) -> str:
    """Runs the script as it is in every worker, in the environment of Ray's process group."""
    environment = "\n".join(
        f"    {name!r}: {value!r},{remark(remarks, f'env.{name}')}"
        for name, value in sheet.settings["env"].items()
    )
    return f'''{top}import os
import runpy
import sys

from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer

ENVIRONMENT = {{
{environment}
}}
COMMAND = {list(job.command)!r}
SCALING = ScalingConfig(num_workers={sheet.settings["num_workers"]}, use_gpu=True, resources_per_worker={{"GPU": 1}}){remark(remarks, "num_workers")}


def train(config):
    """A worker."""
    os.environ.update(config)
    sys.argv = COMMAND
    runpy.run_path(COMMAND[0], run_name="__main__")


if __name__ == "__main__":
    run = RunConfig(name={job.name!r})
    TorchTrainer(train, train_loop_config=ENVIRONMENT, scaling_config=SCALING, run_config=run).fit()
'''


def _kubeflow(plan: Plan, job: Job) -> SettingsSheet:
    """Writes a TrainJob of the runtime torch-distributed, a caller of torchrun."""
    sheet = launcher(plan)
    nodes, each, env = (sheet.settings[name] for name in ("nodes", "gpus_per_node", "env"))
    name = safe_name(job.name, dns=True)
    if name != job.name:
        sheet.note(f"the job is named {name}: Kubernetes takes small letters, digits and dashes")
    trainer = {"image": job.image} if job.image is not None else {}
    if job.image is None:
        sheet.note("no image is named: the runtime's own runs; --image names one that holds the script")
    sheet.settings = {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainJob",
        "metadata": {"name": name},
        "spec": {
            "runtimeRef": {"name": "torch-distributed"},
            "trainer": {
                **trainer,
                "numNodes": nodes,
                "numProcPerNode": each,
                "resourcesPerNode": {"limits": {"nvidia.com/gpu": each}},
                "command": ["torchrun", *map(_literal, job.command)],
                "env": [{"name": key, "value": _literal(value)} for key, value in env.items()],
            },
        },
    }
    return sheet


def _literal(text: str) -> str:
    """Kubernetes replaces `$(NAME)` in commands and variables by the variable; `$$(` stays."""
    return text.replace("$(", "$$(")


def _skypilot(plan: Plan, job: Job) -> SettingsSheet:
    """A task of nodes with accelerators.

    Raises:
        InputError: the GPU type is not known; SkyPilot chooses machines by it.
    """
    if plan.cluster.gpu is None:
        raise missing(
            "gpu", "SkyPilot chooses machines by the GPU type: --gpu H100, in Python Cluster(gpu='H100')"
        )
    sheet = launcher(plan)
    nodes, each, env = (sheet.settings[name] for name in ("nodes", "gpus_per_node", "env"))
    lines = [
        'MASTER_ADDR=$(echo "$SKYPILOT_NODE_IPS" | head -n 1)',
        f'torchrun --nnodes "$SKYPILOT_NUM_NODES" --nproc-per-node {each} --node-rank "$SKYPILOT_NODE_RANK" '
        f'--master-addr "$MASTER_ADDR" --master-port {PORT} {script(job)}',
    ]
    sheet.settings = {
        "name": safe_name(job.name, dns=True),
        "num_nodes": nodes,
        "resources": {
            "accelerators": f"{plan.cluster.gpu}:{each}",
            **({"image_id": f"docker:{job.image}"} if job.image is not None else {}),
        },
        "envs": env,
        "run": "\n".join(lines) + "\n",
    }
    return sheet


def _torchx(plan: Plan, job: Job) -> SettingsSheet:  # noqa: ARG001 - the name is rendered
    """Nodes by processes, and the environment."""
    return launcher(plan)


def _torchx_script(sheet: SettingsSheet, remarks: Mapping[str, str], top: str, job: Job) -> str:
    """`torchx run dist.ddp -j NxM`; add `--scheduler` for where it runs.

    Raises:
        InputError: a value has a comma or a semicolon, at which TorchX would cut it.
    """
    settings = sheet.settings
    for name, value in settings["env"].items():
        if "," in value or ";" in value:
            raise InputError(f"{value!r} has a comma, at which TorchX cuts the values of --env", field=name)
    env = ",".join(f"{name}={value}" for name, value in settings["env"].items())
    words = [
        ["torchx", "run", "dist.ddp", "-j", f"{settings['nodes']}x{settings['gpus_per_node']}"],
        ["--name", safe_name(job.name, dns=True)],
        *([["--image", job.image]] if job.image is not None else []),
        ["--env", env],
        ["--script", job.command[0]],
    ]
    if len(job.command) > 1:
        words.append(["--", *job.command[1:]])
    return f"#!/usr/bin/env bash\n{top}{remark_lines(remarks)}{shell(words)}\n"


def _tool(
    name: str,
    title: str,
    versions: str,
    file: str,
    forms: tuple[str, ...],
    write: Any,
    render: Any,
    leaves_out: str = "",
) -> Tool:
    """The record of a launcher: the script that it starts may weight its losses, and let its batch ramp up."""
    return Tool(
        name=name,
        title=title,
        writer=Writer(
            versions=versions,
            file=file,
            forms=forms,
            write=write,
            render=render,
            runs_ragged=True,
            runs_ramps=True,
            is_part=False,
            leaves_out=f"seq_len drop_last even_batches resume {leaves_out}",
        ),
    )


TORCHRUN = _tool(
    "torchrun", "torchrun", "torch 2.0 to 2.15", "launch.sh", ("sh",), _torchrun, _torchrun_script, "image"
)
SLURM = _tool("slurm", "Slurm", "20.11 to 25", "job.sbatch", ("sh",), _slurm, _slurm_script, "image")
RAY_TRAIN = _tool(
    "ray-train", "Ray Train", "2.7 to 2.60", "launch.py", ("py",), _ray_train, _ray_train_script, "image"
)
KUBEFLOW = _tool(
    "kubeflow", "Kubeflow Trainer", "2.0 to 2.3", "trainjob.yaml", ("yaml", "json"), _kubeflow, None
)
SKYPILOT = _tool("skypilot", "SkyPilot", "0.6 to 0.14", "task.yaml", ("yaml", "json"), _skypilot, None)
TORCHX = _tool("torchx", "TorchX", "0.5 to 0.7", "launch.sh", ("sh",), _torchx, _torchx_script)
