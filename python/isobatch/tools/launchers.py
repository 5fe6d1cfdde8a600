"""Launchers of a script of your own: torchrun, Ray Train, Kubeflow, SkyPilot and TorchX; Slurm is beside.

They hand the plan to the script as environment variables, and place the GPUs as nodes of processes. A file
for a launcher stops if it is started on another number of GPUs than planned.
"""

import re
import zlib
from collections.abc import Mapping
from typing import Any

from isobatch.errors import InputError, missing
from isobatch.files.texts import remark, shell_word, shell_words
from isobatch.planning.handed import variables
from isobatch.tools.sheet import Job, Planned, SettingsSheet, remark_lines, shell
from isobatch.tools.tool import Tool, Writer

GPUS_PER_NODE = 8
MAX_NODE_GPUS = 16
"""No machine on the market has more GPUs under one operating system."""
FIRST_PORT, PORTS = 15000, 15000
"""Below the ports that Linux hands out, and above most services'."""


def layout(plan: Planned, sheet: SettingsSheet) -> tuple[int, int]:
    """Returns the nodes and the processes on each; a bare number of GPUs does not say how they are spread."""
    nodes, each = plan.cluster.nodes, plan.cluster.gpus_per_node
    if nodes == 1 and each > MAX_NODE_GPUS:
        if each % GPUS_PER_NODE == 0:
            sheet.note(
                f"{each} GPUs taken as {each // GPUS_PER_NODE} nodes of {GPUS_PER_NODE}: plan with --nodes "
                "and --gpus-per-node"
            )
            return each // GPUS_PER_NODE, GPUS_PER_NODE
        sheet.note(f"{each} GPUs in one node: plan with --nodes and --gpus-per-node")
    return nodes, each


def launcher(plan: Planned, job: Job) -> SettingsSheet:
    """Returns the settings common to all launchers; an elastic job plans for itself, where it starts."""
    sheet = SettingsSheet()
    nodes, each = layout(plan, sheet)
    sheet.settings = {"nodes": nodes, "gpus_per_node": each, "env": {} if job.elastic else variables(plan)}
    if job.elastic:
        sheet.note("the script trains with ElasticRun, on as many GPUs as it is started on")
    elif getattr(plan, "moves", ()):
        sheet.note(
            "the run moved: its learning rate is isobatch.Plan.load(...).lr_at, and no curve of ISOBATCH_* "
            "alone"
        )
    else:
        sheet.note(
            "the script reads ISOBATCH_*; a schedule comes from them or from isobatch.Plan.load(...).lr_at"
        )
    return sheet


def check(job: Job, tool: str, gpus: str) -> str:
    """Writes the lines to end a script on other GPUs than the plan's (`gpus`: the shell's product)."""
    if job.elastic:
        return ""
    again = re.sub(r'([\\"$`])', r"\\\1", job.again)
    return (
        f'GPUS=$(({gpus}))\nif [ "$GPUS" -ne "$ISOBATCH_WORLD_SIZE" ]; then\n'
        f'  echo "isobatch: planned for $ISOBATCH_WORLD_SIZE GPUs, started on $GPUS; plan anew: {again} '
        f'--gpus $GPUS --to {tool}" >&2\n'
        "  exit 1\nfi\n"
    )


def port(name: str) -> int:
    """Returns a port derived from a job's name: two jobs on one node must not share one.

    >>> port("vision"), port("gpt3-xl")
    (19609, 25634)
    """
    return FIRST_PORT + zlib.crc32(name.encode()) % PORTS


def exports(env: Mapping[str, str], remarks: Mapping[str, str]) -> str:
    """Writes `export NAME=value` for a shell, each value quoted."""
    return "".join(
        f"export {name}={shell_word(value)}{remark(remarks, f'env.{name}')}\n" for name, value in env.items()
    )


def script(job: Job) -> str:
    """Returns the training script and its arguments, quoted for a shell."""
    return shell_words(job.command)


def safe_name(name: str, *, dns: bool = False, most: int = 63) -> str:
    """Makes a job's name safe for any launcher and file system.

    >>> safe_name("a b; $(rm)"), safe_name("My_Job", dns=True), safe_name("..")
    ('a-b-rm', 'my-job', 'job')
    """
    plain = re.sub(r"[^A-Za-z0-9-]+" if dns else r"[^A-Za-z0-9._-]+", "-", name)
    plain = (plain.lower() if dns else plain)[:most].strip("-._")
    return plain or "job"


def _torchrun(plan: Planned, job: Job) -> SettingsSheet:
    """Writes nodes, processes and the environment."""
    sheet = launcher(plan, job)
    if sheet.settings["nodes"] > 1:
        sheet.note("run this on every node, with MASTER_ADDR set to the first node's name")
    return sheet


def _torchrun_script(sheet: SettingsSheet, remarks: Mapping[str, str], top: str, job: Job) -> str:
    """Starts torchrun in a rendezvous of its own, after the check of the numbers at the top."""
    settings = sheet.settings
    return (
        f"#!/usr/bin/env bash\n{top}set -euo pipefail\n{exports(settings['env'], remarks)}"
        + f"NODES={settings['nodes']}\nGPUS_PER_NODE={settings['gpus_per_node']}\n"
        + check(job, "torchrun", "NODES * GPUS_PER_NODE")
        + f"exec {start(settings['nodes'], safe_name(job.name))} {script(job)}\n"
    )


def start(nodes: int, name: str) -> str:
    """Returns the command line in front of the script."""
    if nodes == 1:
        return 'torchrun --standalone --nnodes "$NODES" --nproc-per-node "$GPUS_PER_NODE"'
    where = f'"${{MASTER_ADDR:?set it to the name of the first node}}:${{MASTER_PORT:-{port(name)}}}"'
    return (
        'torchrun --nnodes "$NODES" --nproc-per-node "$GPUS_PER_NODE" --rdzv-backend c10d --rdzv-endpoint '
        f"{where} --rdzv-id {shell_word(name)}"
    )


def _ray_train(plan: Planned, job: Job) -> SettingsSheet:
    """Writes workers and the environment; Ray places a worker on any free GPU, so it needs no nodes."""
    sheet = launcher(plan, job)
    sheet.comments = [comment for comment in sheet.comments if "nodes" not in str(comment)]
    sheet.settings = {"num_workers": plan.world_size, "env": sheet.settings["env"]}
    return sheet


_RAY_CHECK = """\
    gpus, planned = get_context().get_world_size(), int(config["ISOBATCH_WORLD_SIZE"])
    if gpus != planned:
        again = f"{AGAIN} --gpus {gpus} --to ray-train"
        raise RuntimeError(f"planned for {planned} GPUs, started on {gpus}; plan anew: {again}")
"""


def _ray_train_script(sheet: SettingsSheet, remarks: Mapping[str, str], top: str, job: Job) -> str:
    """Runs the script as it is in every worker, in the environment of Ray's process group."""
    environment = "".join(
        f"    {name!r}: {value!r},{remark(remarks, f'env.{name}')}\n"
        for name, value in sheet.settings["env"].items()
    )
    again, checked = ("", "") if job.elastic else (f"AGAIN = {job.again!r}\n", _RAY_CHECK)
    return f'''{top}import os
import runpy
import sys

from ray.train import RunConfig, ScalingConfig, get_context
from ray.train.torch import TorchTrainer

ENVIRONMENT = {{
{environment}}}
{again}COMMAND = {list(job.command)!r}
WORKERS = {sheet.settings["num_workers"]}{remark(remarks, "num_workers")}
SCALING = ScalingConfig(num_workers=WORKERS, use_gpu=True, resources_per_worker={{"GPU": 1}})


def train(config):
    """A worker."""
{checked}    os.environ.update(config)
    sys.argv = COMMAND
    runpy.run_path(COMMAND[0], run_name="__main__")


if __name__ == "__main__":
    run = RunConfig(name={job.name!r})
    TorchTrainer(train, train_loop_config=ENVIRONMENT, scaling_config=SCALING, run_config=run).fit()
'''


def _kubeflow(plan: Planned, job: Job) -> SettingsSheet:
    """Writes a TrainJob of the runtime torch-distributed, a caller of torchrun."""
    sheet = launcher(plan, job)
    nodes, each, env = (sheet.settings[name] for name in ("nodes", "gpus_per_node", "env"))
    # The runtime sets PET_* to what must be checked; without them torchrun takes 1.
    checked = check(job, "kubeflow", "${PET_NNODES:-1} * ${PET_NPROC_PER_NODE:-1}")
    start = ["sh", "-c", f'{checked}exec torchrun "$@"\n', "torchrun"] if checked else ["torchrun"]
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
                "command": [_literal(word) for word in (*start, *job.command)],
                "env": [{"name": key, "value": _literal(value)} for key, value in env.items()],
            },
        },
    }
    return sheet


def _literal(text: str) -> str:
    """Escapes `$(` as `$$(`: Kubernetes replaces `$(NAME)` by a variable."""
    return text.replace("$(", "$$(")


def _skypilot(plan: Planned, job: Job) -> SettingsSheet:
    """Writes a task of nodes with accelerators; SkyPilot chooses machines by the type of GPU."""
    if plan.cluster.gpu is None:
        raise missing(
            "gpu", "SkyPilot chooses machines by the GPU type: --gpu H100, in Python Cluster(gpu='H100')"
        )
    sheet = launcher(plan, job)
    nodes, each, env = (sheet.settings[name] for name in ("nodes", "gpus_per_node", "env"))
    run = (
        check(job, "skypilot", "SKYPILOT_NUM_NODES * SKYPILOT_NUM_GPUS_PER_NODE")
        + 'MASTER_ADDR=$(echo "$SKYPILOT_NODE_IPS" | head -n 1)\n'
        + 'NUMBER=$(echo "$SKYPILOT_TASK_ID" | cksum | cut -d " " -f 1)\n'
        + f"MASTER_PORT=$(({FIRST_PORT} + NUMBER % {PORTS}))  # of its own: tasks may share a machine\n"
        + 'torchrun --nnodes "$SKYPILOT_NUM_NODES" --nproc-per-node "$SKYPILOT_NUM_GPUS_PER_NODE" '
        + '--node-rank "$SKYPILOT_NODE_RANK" --master-addr "$MASTER_ADDR" --master-port "$MASTER_PORT" '
        + f"{script(job)}\n"
    )
    sheet.settings = {
        "name": safe_name(job.name, dns=True),
        "num_nodes": nodes,
        "resources": {
            "accelerators": f"{plan.cluster.gpu}:{each}",
            **({"image_id": f"docker:{job.image}"} if job.image is not None else {}),
        },
        "envs": env,
        "run": run,
    }
    return sheet


def _torchx_script(sheet: SettingsSheet, remarks: Mapping[str, str], top: str, job: Job) -> str:
    """Writes `torchx run dist.ddp -j NxM`; TorchX would cut a value at a comma or a semicolon."""
    settings = sheet.settings
    for name, value in settings["env"].items():
        if "," in value or ";" in value:
            raise InputError(f"{value!r} has a comma, at which TorchX cuts the values of --env", field=name)
    env = ",".join(f"{name}={value}" for name, value in settings["env"].items())
    name = safe_name(job.name, dns=True)
    words = [
        ["--name", name],
        # For several nodes; a single one takes any free port.
        ["--rdzv_port", str(port(name))],
        *([["--image", job.image]] if job.image is not None else []),
        *([["--env", env]] if env else []),
        ["--script", job.command[0]],
    ]
    if len(job.command) > 1:
        words.append(["--", *job.command[1:]])
    planned = "" if job.elastic else f"ISOBATCH_WORLD_SIZE={settings['env']['ISOBATCH_WORLD_SIZE']}\n"
    return (
        f"#!/usr/bin/env bash\n{top}{remark_lines(remarks)}{planned}"
        + f"NODES={settings['nodes']}\nGPUS_PER_NODE={settings['gpus_per_node']}\n"
        + check(job, "torchx", "NODES * GPUS_PER_NODE")
        + f'torchx run dist.ddp -j "${{NODES}}x$GPUS_PER_NODE" \\\n  {shell(words)}\n'
    )


def record(name: str, title: str, *writer: Any, leaves_out: str = "") -> Tool:
    """Makes the record of a launcher; its script may weight its losses and ramp up its batch."""
    omitted = f"seq_len drop_last even_batches resume {leaves_out}"
    tool_writer = Writer(*writer, runs_ragged=True, runs_ramps=True, is_part=False, leaves_out=omitted)
    return Tool(name, title, writer=tool_writer)


TORCHRUN = record(
    "torchrun",
    "torchrun",
    "torch 2.0 to 2.15",
    "launch.sh",
    ("sh",),
    _torchrun,
    _torchrun_script,
    leaves_out="image",
)
RAY_TRAIN = record(
    "ray-train",
    "Ray Train",
    "2.7 to 2.60",
    "launch.py",
    ("py",),
    _ray_train,
    _ray_train_script,
    leaves_out="image",
)
KUBEFLOW = record("kubeflow", "Kubeflow Trainer", "2.0 to 2.3", "trainjob.yaml", ("yaml", "json"), _kubeflow)
SKYPILOT = record("skypilot", "SkyPilot", "0.6 to 0.14", "task.yaml", ("yaml", "json"), _skypilot)
TORCHX = record("torchx", "TorchX", "0.5 to 0.7", "launch.sh", ("sh",), launcher, _torchx_script)
