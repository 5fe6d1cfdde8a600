"""Writes the GPU counts with a plan as tables for other platforms."""

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, TypeAlias

from isobatch import words
from isobatch.errors import InputError, unknown
from isobatch.files.texts import commented, yaml_text
from isobatch.tools.sheet import Job

Counts: TypeAlias = Any
"""The result of `isobatch.counts`; the fleet is a room above this one."""


def write(counts: Counts, platform: str, job: Job | None = None) -> tuple[str, tuple[str, ...]]:
    """Writes the table of a platform, and notes on counts left out."""
    if platform not in PLATFORMS:
        raise unknown("platform", platform, PLATFORMS, field="platform")
    request = _Request(counts, job or Job(), [])
    return PLATFORMS[platform](request), tuple(request.notes)


class _Request(NamedTuple):
    """The counts to write, and notes on those left out."""

    counts: Counts
    job: Job
    notes: list[str]

    @property
    def per_node(self) -> int:
        """GPUs of a node."""
        each: int = self.counts.cluster.gpus_per_node
        return each

    def nodes(self) -> list[int]:
        """Lists the numbers of whole nodes with a plan, in order; a note names the other counts."""
        working = sorted(set(self.counts.working))
        if parts := [words.count(gpus) for gpus in working if gpus % self.per_node]:
            self.notes.append(f"left out {words.few(parts, 8)} GPUs: a part of a node of {self.per_node}")
        whole = [gpus // self.per_node for gpus in working if gpus % self.per_node == 0]
        if not whole:
            raise InputError(f"no count of whole nodes of {self.per_node} GPUs has a plan", field="gpus")
        return whole


def torchrun_line(gpus: Sequence[int], per_node: int, model_parallel: int = 1) -> str:
    """Writes torchrun's flags for a run on these GPU counts, and warns of the counts between.

    >>> torchrun_line((8, 16), per_node=8)
    'torchrun --nnodes 1:2 --nproc-per-node 8'
    >>> print(torchrun_line((8, 16, 32), per_node=8).replace(" (", "\\n("))
    torchrun --nnodes 1:4 --nproc-per-node 8
    (3 nodes do not divide the batch: there ElasticRun needs split='uneven')
    >>> print(torchrun_line((16, 32), per_node=8, model_parallel=16).replace(" (", "\\n("))
    torchrun --nnodes 2:4 --nproc-per-node 8
    (3 nodes are not a whole number of replicas of 16 GPUs: there it cannot run)
    """
    nodes = sorted(count // per_node for count in gpus)
    line = f"torchrun --nnodes {nodes[0]}:{nodes[-1]} --nproc-per-node {per_node}"
    between = [count for count in range(nodes[0], nodes[-1]) if count not in nodes]
    whole = [str(count) for count in between if count * per_node % model_parallel == 0]
    broken = [str(count) for count in between if count * per_node % model_parallel]
    warnings = []
    if whole:
        warnings.append(
            f"{words.few(whole, 8)} nodes do not divide the batch: there ElasticRun needs split='uneven'"
        )
    if broken:
        warnings.append(
            f"{words.few(broken, 8)} nodes are not a whole number of replicas of {model_parallel} GPUs: "
            "there it cannot run"
        )
    return line + (f" ({'; '.join(warnings)})" if warnings else "")


def _hyperpod(request: _Request) -> str:
    """Writes `elastic_policy` and `scale_config` of a HyperPod recipe, a row for each number of nodes.

    An uneven row has one pass of `small_local_batch_size` or `large_local_batch_size` samples on each GPU, as
    in aws/sagemaker-hyperpod-recipes at 2631995; one of more passes cannot be said there and is left out.
    """
    columns = request.counts.columns["gpus"].tolist()
    groups = dict(zip(columns, request.counts.groups, strict=True))
    rows: dict[int, Any] = {}
    for nodes in request.nodes():
        gpus = nodes * request.per_node
        plan = request.counts.plan_at(gpus)
        arguments: dict[str, Any] = {"train_batch_size": plan.effective_batch}
        if len(groups[gpus]) == 1:
            arguments["micro_train_batch_size"] = plan.micro_batch
        elif plan.accumulation == 1 and plan.data_parallel == gpus:
            (_, large), (number, small) = groups[gpus]
            arguments["uneven_batch"] = {
                "use_uneven_batch": True,
                "num_dp_groups_with_small_batch_size": number,
                "small_local_batch_size": small,
                "large_local_batch_size": large,
            }
        else:
            request.notes.append(
                f"left out {gpus} GPUs: their uneven groups take {plan.accumulation} passes, and HyperPod's "
                "take one"
            )
            continue
        arguments["learning_rate"] = plan.lr
        rows[nodes] = {"trainer": {"num_nodes": nodes}, "training_config": {"training_args": arguments}}
    if not rows:
        raise InputError("no count that HyperPod can express has a plan", field="gpus")
    policy = {"is_elastic": True, "min_nodes": min(rows), "max_nodes": max(rows)}
    top = commented(
        f"for nodes of {request.per_node} GPUs; on the command line --elastic-replica-discrete-values "
        f"'{list(rows)}' --max-node-count {max(rows)}"
    )
    devices = {"devices": request.per_node}
    text = yaml_text({"trainer": devices, "elastic_policy": policy, "scale_config": rows})
    return top + "\n" + re.sub(r'^  "(\d+)":', r"  \1:", text, flags=re.MULTILINE)  # their keys are numbers


def _kubeflow(request: _Request) -> str:
    """Writes a TrainJob for each count, one document each: submit the one that the free GPUs allow."""
    documents = []
    for gpus in sorted(set(request.counts.working)):
        written = request.counts.plan_at(gpus).to(
            "kubeflow", job=replace(request.job, name=f"{request.job.name}-{gpus}")
        )
        documents.append(written.text)
    if not documents:
        raise InputError("no count has a plan", field="gpus")
    return "---\n".join(documents)


def _torchft(request: _Request) -> str:
    """Writes the numbers of replica groups, one node each, and the lighthouse's fewest.

    Each group is a torchrun of its own; torchft's Manager divides by its participants (manager.py), so that a
    number of groups between those listed trains another batch.
    """
    groups = request.nodes()
    request.notes.append("torchft waits for no listed number: it goes on with any from --min_replicas up")
    return (
        f"torchft_lighthouse --min_replicas {groups[0]}\n"
        f"# replica groups of {request.per_node} GPUs that keep the plan: {' '.join(map(str, groups))}\n"
    )


def _torchrun(request: _Request) -> str:
    """Writes torchrun's range of nodes, and notes the counts between."""
    each, cluster = request.per_node, request.counts.cluster
    return (
        torchrun_line([nodes * each for nodes in request.nodes()], each, cluster.model_parallel or 1) + "\n"
    )


def _slurm(request: _Request) -> str:
    """Writes Slurm's `--nodes` as a list of numbers (sbatch of 23.02 and later)."""
    nodes = ",".join(map(str, request.nodes()))
    return f"#SBATCH --nodes={nodes}\n#SBATCH --gpus-per-node={request.per_node}\n"


PLATFORMS: dict[str, Callable[[_Request], str]] = {
    "hyperpod": _hyperpod,
    "kubeflow": _kubeflow,
    "slurm": _slurm,
    "torchft": _torchft,
    "torchrun": _torchrun,
}
