"""Kubeflow Trainer: a TrainJob."""

from __future__ import annotations

from isobatch.tools.writing.environment import launcher, safe_name
from isobatch.tools.writing.planned import Job, Planned, Sheet

NAME = "kubeflow"
TITLE = "Kubeflow Trainer"
VERSIONS = "2.0 to 2.3"
FILE = "trainjob.yaml"
FORMS = ("yaml", "json")


def write(plan: Planned, job: Job) -> Sheet:
    """A TrainJob of the runtime torch-distributed, which calls torchrun."""
    sheet = launcher(plan)
    nodes, each, env = (sheet.settings[name] for name in ("nodes", "gpus_per_node", "env"))
    name = safe_name(job.name, dns=True)
    if name != job.name:
        sheet.comments.append(f"the job is named {name}: Kubernetes takes small letters, digits and dashes")
    trainer = {"image": job.image} if job.image is not None else {}
    if job.image is None:
        sheet.comments.append(
            "no image is named: the runtime's own runs; --image names one that holds the script"
        )
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
