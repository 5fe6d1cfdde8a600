"""torchrun: a shell script."""

from __future__ import annotations

import shlex
from collections.abc import Mapping

from isobatch.tools.writing.environment import PORT, exports, launcher, safe_name, script
from isobatch.tools.writing.planned import Job, Planned, Sheet

NAME = "torchrun"
TITLE = "torchrun"
VERSIONS = "torch 2.0 to 2.15"
FILE = "launch.sh"
FORMS = ("sh",)


def write(plan: Planned, job: Job) -> Sheet:  # noqa: ARG001 - the name is rendered
    """Nodes, processes and the environment."""
    sheet = launcher(plan)
    if sheet.settings["nodes"] > 1:
        sheet.comments.append("run this on every node, with MASTER_ADDR set to the first node's name")
    return sheet


def render(sheet: Sheet, remarks: Mapping[str, str], top: str, job: Job) -> str:
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
