"""How one node is checked, and what was found: options, thresholds, the report, and the list of nodes that are unfit. No torch."""

from __future__ import annotations

import fcntl
import os
import socket
from collections.abc import Iterable
from pathlib import Path
from typing import IO, Any, ClassVar, Literal, get_args

import msgspec

from isobatch.errors import InputError, must_be, unknown
from isobatch.files.formats import read_fields
from isobatch.files.whole import read_whole, write_whole
from isobatch.validate.host.system import Action
from isobatch.validate.options import Options
from isobatch.validate.report import ProofReport, Verdict, show_proofs
from isobatch.words import figure

HOST_THRESHOLDS, GPU_THRESHOLDS = ("gpus",), ("matmul_tflops", "bus_gb_s")
Thresholds = dict[str, dict[str, float]]
"""The least that figures may be, under "host" or a GPU's model, by name."""


def strongest(actions: Iterable[Action]) -> Action:
    """Returns the strongest of some actions.

    >>> strongest(["look", "reboot", "reset"])
    'reboot'
    """
    return max(actions, key=get_args(Action).index, default="look")


def node_name() -> str:
    """Returns the name by which the scheduler knows this node: Slurm's, Kubernetes' where NODE_NAME has it, else the host's."""
    return os.environ.get("SLURMD_NODENAME") or os.environ.get("NODE_NAME") or socket.gethostname()


class NodeReport(ProofReport, frozen=True, kw_only=True):
    """What the checks of a node found. `actions` says by check what to do about one that did not pass, `action` the strongest."""

    SCHEMA: ClassVar[str] = "isobatch.node/1"

    schema: str = "isobatch.node/1"
    node: str
    action: Action | None
    actions: dict[str, Action]

    def show(self, file: IO[str] | None = None) -> None:
        """Prints the checks as a table, to standard output where no file is given."""
        action = "" if self.action is None else f" ({self.action})"
        show_proofs(f"isobatch node {self.node}: {self.verdict}{action}", self.verdict, self.proofs, file)


class NodeOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How to check a node.

    Args:
        only: the checks to make, by name; none: all.
        seconds: for all checks together.
        device: "auto"; "cuda": a node without a GPU is unfit; "cpu": GPUs are left out.
        thresholds, thresholds_file: the least that figures may be, and the file that they are from.
        baseline: the report of a good node, and how far below its figures is a caution or fails, as a fraction.

    Raises:
        InputError: values are out of range.
    """

    only: tuple[str, ...] = ()
    seconds: float = 60.0
    device: Literal["auto", "cpu", "cuda"] = "auto"
    thresholds: Thresholds = {}
    thresholds_file: str | None = None
    baseline: NodeReport | None = None
    caution: float = 0.10
    fail: float = 0.25

    def __post_init__(self) -> None:
        if not 2 <= self.seconds < float("inf"):
            raise must_be("a number of seconds, at least 2", self.seconds, field="seconds")
        Options(caution=self.caution, fail=self.fail)

    def judge(self, text: str, found: float, model: str, name: str) -> tuple[Verdict, str]:
        """Judges a figure of a GPU by its threshold and the baseline; unchecked where there is neither.

        Raises:
            InputError: the thresholds or the baseline do not have this model.
        """
        models = [one for one in self.thresholds if one != "host"]
        if models and model not in models:
            raise unknown("GPU model", model, models, file=self.thresholds_file)
        verdicts: list[Verdict] = []
        least = self.thresholds.get(model, {}).get(name)
        if least is not None:
            verdicts.append(Verdict.FAIL if found < least else Verdict.PASS)
            text += f", at least {figure(least)} asked for"
        before: dict[str, Any] = next(
            (one.values for one in self.baseline.proofs if name in one.values) if self.baseline else iter(()),
            {},
        )
        if before and before["model"] != model:
            raise InputError(
                f"the baseline is of {before['model']}, and this node has {model}", field="baseline"
            )
        if before:
            off = 1 - found / before[name]
            verdicts.append(Verdict.by(off, Options(caution=self.caution, fail=self.fail)))
            text += f", {figure(before[name])} in the baseline"
        return Verdict.of(verdicts), text if verdicts else f"{text}; no threshold and no baseline was given"


def read_thresholds(path: Path) -> Thresholds:
    """Reads the least that figures may be: a table "host", and one for each GPU model under the name that NVML gives it.

    Raises:
        InputError: the file cannot be read, or a name or value in it cannot be used.
    """
    found = read_fields(path)
    for model, table in found.items():
        if not isinstance(table, dict):
            raise must_be("a table of thresholds", table, field=model, file=str(path))
        known = HOST_THRESHOLDS if model == "host" else GPU_THRESHOLDS
        for name, value in table.items():
            if name not in known:
                raise unknown("threshold", name, known, file=str(path))
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < float("inf"):
                raise must_be("a number above 0", value, field=f"{model}.{name}", file=str(path))
    return found


def list_unfit(path: Path, node: str, *, fit: bool) -> None:
    """Adds a node's name to a file of one name a line, or takes it out where the node is fit again; many nodes may do so at once.

    Raises:
        InputError: the file cannot be read or written.
    """
    try:
        with path.with_name(f".{path.name}.lock").open("w") as lock:
            fcntl.lockf(lock, fcntl.LOCK_EX)  # which also holds between the clients of NFS
            names = read_whole(path).split() if path.exists() else []
            if fit == (node in names):
                kept = [name for name in names if name != node] + ([] if fit else [node])
                write_whole(path, "".join(f"{name}\n" for name in kept).encode())
    except OSError as error:
        raise InputError(f"cannot be locked: {error.strerror}", file=str(path)) from None
