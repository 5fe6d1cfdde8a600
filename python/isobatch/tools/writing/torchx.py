"""TorchX: a command line with its built-in component dist.ddp."""

from __future__ import annotations

from collections.abc import Mapping

from isobatch.errors import InputError
from isobatch.tools.writing.environment import launcher, safe_name
from isobatch.tools.writing.forms import commented, shell
from isobatch.tools.writing.planned import Job, Planned, Sheet

NAME = "torchx"
TITLE = "TorchX"
VERSIONS = "0.5 to 0.7"
FILE = "launch.sh"
FORMS = ("sh",)


def write(plan: Planned, job: Job) -> Sheet:  # noqa: ARG001 - the name is rendered
    """Nodes by processes, and the environment."""
    return launcher(plan)


def render(sheet: Sheet, remarks: Mapping[str, str], top: str, job: Job) -> str:
    """`torchx run dist.ddp -j NxM`; add `--scheduler` for where it runs.

    Raises:
        InputError: a value has a comma or a semicolon, at which TorchX would cut it.
    """
    settings = sheet.settings
    for name, value in settings["env"].items():
        if "," in value or ";" in value:
            raise InputError(f"{value!r} has a comma, at which TorchX cuts the values of --env", field=name)
    env = ",".join(f"{name}={value}" for name, value in settings["env"].items())
    parts = [
        ["torchx", "run", "dist.ddp", "-j", f"{settings['nodes']}x{settings['gpus_per_node']}"],
        ["--name", safe_name(job.name, dns=True)],
        *([["--image", job.image]] if job.image is not None else []),
        ["--env", env],
        ["--script", job.command[0]],
    ]
    if len(job.command) > 1:
        parts.append(["--", *job.command[1:]])
    said = "".join(commented(f"{at}: {remark}") + "\n" for at, remark in remarks.items())
    return f"#!/usr/bin/env bash\n{top}{said}{shell(parts)}\n"
