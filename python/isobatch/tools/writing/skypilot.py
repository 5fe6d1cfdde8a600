"""SkyPilot: a task."""

from __future__ import annotations

from isobatch.errors import missing
from isobatch.tools.writing.environment import PORT, launcher, safe_name, script
from isobatch.tools.writing.planned import Job, Planned, Sheet

NAME = "skypilot"
TITLE = "SkyPilot"
VERSIONS = "0.6 to 0.14"
FILE = "task.yaml"
FORMS = ("yaml", "json")


def write(plan: Planned, job: Job) -> Sheet:
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
