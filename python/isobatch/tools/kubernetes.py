"""The command, nodes and processes in Kubeflow's TrainJob and PyTorchJob and in a Kubernetes Job."""

import re
import shlex
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from isobatch.errors import missing, must_be
from isobatch.tools.page import Unknown, value_at

_TORCHRUN = re.compile(r"torchrun|torch\.distributed\.(run|launch)")
_REFERENCE = re.compile(r"\$\$|\$\(([^)]*)\)")
"""In a command `$(NAME)` is a variable of the container, where it has one of that name, and `$$` is `$`."""


class Pods(NamedTuple):
    """The container of each node, its place in the file, and its number of processes.

    A `ranked` one has its rank from the controller, as in a PyTorchJob without torchrun; a number that the
    file leaves to its runtime is None.
    """

    nodes: Any
    processes: Any
    container: Mapping[str, Any]
    place: str
    ranked: bool = False


def command(data: Mapping[str, Any], notes: list[str]) -> tuple[str, dict[str, Any]]:
    """Returns a node's command line, and torchrun's nodes and processes (PET_* in its pod)."""
    pods = _pods(data)
    words = [*_words(pods, "command"), *_words(pods, "args")]
    if not words:
        raise missing(
            f"{pods.place}.command",
            "the image's own is not known; name the file with the training's settings",
        )
    known = dict(_variables(pods))
    for name, value in (("PET_NNODES", pods.nodes), ("PET_NPROC_PER_NODE", pods.processes)):
        if value is not None:
            known[name] = str(value)

    def variable(match: re.Match[str]) -> str:
        return "$" if match[0] == "$$" else known.get(match[1], match[0])

    line = shlex.join(_REFERENCE.sub(variable, word) for word in words)
    lines = [f"export {name}={shlex.quote(value)}" for name, value in known.items()]
    return "\n".join([*lines, line]), _started(pods, line, notes)


def _started(pods: Pods, line: str, notes: list[str]) -> dict[str, Any]:
    """Gives nodes and processes to torchrun; asks for those missing in the file."""
    if not _TORCHRUN.search(line):
        if pods.ranked and str(pods.processes) == "1":
            return {"nnodes": pods.nodes, "nproc_per_node": 1}
        notes.append("its command is not torchrun: the processes of a node are not read (--set gpus=N)")
        return {}
    started: dict[str, Any] = {}
    for key, value, name, why in (
        ("nnodes", pods.nodes, "number of nodes", "is not in the file, but its runtime's"),
        ("nproc_per_node", pods.processes, "processes of a node", "is not in the file, nor a node's GPUs"),
    ):
        if value is not None and not re.fullmatch(r"[1-9]\d*", str(value)):
            raise must_be("a whole number from 1", value, field=f"{pods.place}: {name}")
        started[key] = Unknown(why=why) if value is None else value
    return started


def _pods(data: Mapping[str, Any]) -> Pods:
    """Finds the container of a node, and how many nodes there are."""
    spec = data.get("spec")
    if data["kind"] == "TrainJob":
        trainer = _table(spec, "spec.trainer")
        processes = _processes(trainer.get("numProcPerNode"), trainer.get("resourcesPerNode"))
        return Pods(trainer.get("numNodes"), processes, trainer, "spec.trainer")
    if data["kind"] == "PyTorchJob":
        replicas = _table(spec, "spec.pytorchReplicaSpecs")
        nodes = sum(_count(replica, f"spec.pytorchReplicaSpecs.{name}") for name, replica in replicas.items())
        # Without a command the others have their image's.
        role = "Master" if "Master" in replicas else "Worker"
        at, processes = f"spec.pytorchReplicaSpecs.{role}", value_at(spec, "nprocPerNode")
        return _container(replicas.get(role), at, nodes, processes)._replace(ranked=True)
    return _container(spec, "spec", value_at(spec, "parallelism") or 1, None)


def _container(table: Any, at: str, nodes: Any, processes: Any) -> Pods:
    listed = value_at(table, "template.spec.containers")
    place = f"{at}.template.spec.containers"
    if not isinstance(listed, list) or not listed or not isinstance(listed[0], Mapping):
        raise must_be("a list of containers", listed, field=place)
    return Pods(nodes, _processes(processes, listed[0].get("resources")), listed[0], f"{place}[0]")


def _table(spec: Any, place: str) -> Mapping[str, Any]:
    table = value_at(spec, place.partition(".")[2])
    if not isinstance(table, Mapping):
        raise must_be("a table", table, field=place)
    return table


def _count(replica: Any, place: str) -> int:
    number = value_at(replica, "replicas")
    if number is not None and (type(number) is not int or number < 0):
        raise must_be("a whole number from 0", number, field=f"{place}.replicas")
    return 1 if number is None else number


def _processes(processes: Any, resources: Any) -> Any:
    """Counts a node's processes: the file's number, else its GPUs, which `auto` and `gpu` mean too."""
    if processes not in (None, "auto", "gpu"):
        return processes
    for kind in ("limits", "requests"):
        amounts = value_at(resources, kind)
        for name, number in amounts.items() if isinstance(amounts, Mapping) else ():
            if str(name).endswith("/gpu"):
                return number
    return None


def _words(pods: Pods, name: str) -> list[str]:
    words = pods.container.get(name)
    if words is None:
        return []
    if not isinstance(words, list) or not all(isinstance(word, str | int | float) for word in words):
        raise must_be("a list of texts", words, field=f"{pods.place}.{name}")
    return [str(word) for word in words]


def _variables(pods: Pods) -> Iterator[tuple[str, str]]:
    """Yields the container's variables with values; those from secrets and fields are the cluster's."""
    entries = pods.container.get("env")
    for entry in entries if isinstance(entries, list) else ():
        name, value = value_at(entry, "name"), value_at(entry, "value")
        if isinstance(name, str) and name.isidentifier() and value is not None:
            yield name, str(value)
