"""Ray Train: a Python file."""

from __future__ import annotations

from collections.abc import Mapping

from isobatch.tools.writing.environment import launcher
from isobatch.tools.writing.planned import Job, Planned, Sheet

NAME = "ray-train"
TITLE = "Ray Train"
VERSIONS = "2.7 to 2.60"
FILE = "launch.py"
FORMS = ("py",)


def write(plan: Planned, job: Job) -> Sheet:  # noqa: ARG001 - the name is rendered
    """Workers and the environment. Ray places a worker on any GPU that is free: it needs no nodes."""
    sheet = launcher(plan)
    sheet.comments = [comment for comment in sheet.comments if "nodes" not in comment]
    sheet.settings = {"num_workers": plan.world_size, "env": sheet.settings["env"]}
    return sheet


def render(sheet: Sheet, remarks: Mapping[str, str], top: str, job: Job) -> str:
    """Every worker runs the script as it is, with the environment that Ray gives its process group."""
    lines = [
        f"    {name!r}: {value!r},{_said(remarks, f'env.{name}')}"
        for name, value in sheet.settings["env"].items()
    ]
    environment = "\n".join(lines)
    return f'''{top}import os
import runpy
import sys

from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer

ENVIRONMENT = {{
{environment}
}}
COMMAND = {list(job.command)!r}
SCALING = ScalingConfig(num_workers={sheet.settings["num_workers"]}, use_gpu=True, resources_per_worker={{"GPU": 1}}){_said(remarks, "num_workers")}


def train(config):
    """A worker."""
    os.environ.update(config)
    sys.argv = COMMAND
    runpy.run_path(COMMAND[0], run_name="__main__")


if __name__ == "__main__":
    run = RunConfig(name={job.name!r})
    TorchTrainer(train, train_loop_config=ENVIRONMENT, scaling_config=SCALING, run_config=run).fit()
'''


def _said(remarks: Mapping[str, str], at: str) -> str:
    return f"  # {' '.join(remarks[at].split())}" if at in remarks else ""
