"""How one node is checked, and what was found: options, thresholds, the report, and the list of nodes that are unfit. No torch."""

import fcntl
import os
import socket
from pathlib import Path
from typing import IO, ClassVar

import msgspec

from isobatch.errors import InputError, must_be, unknown
from isobatch.files.formats import read_fields
from isobatch.files.whole import read_whole, write_whole
from isobatch.validate.host.system import Action
from isobatch.validate.options import Options
from isobatch.validate.report import ProofReport, Verdict, show_proofs
from isobatch.words import figure

Thresholds = dict[str, dict[str, float]]
"""The least that figures may be, by a GPU's model and the figure's name; "host" is the node itself."""


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


class Gates(msgspec.Struct, frozen=True, kw_only=True):
    """What a node has to reach: a number of GPUs, thresholds by GPU model (and the file that they are from), the report of a good node;
    and the seconds for all checks together.

    Raises:
        InputError: these are too few, or no number.
    """

    seconds: float = 60.0
    gpus: float = 0
    thresholds: Thresholds = {}
    file: str | None = None
    baseline: NodeReport | None = None

    def __post_init__(self) -> None:
        if not 2 <= self.seconds < float("inf"):
            raise must_be("a number of seconds, at least 2", self.seconds, field="seconds")

    def judge(self, text: str, found: float, model: str, name: str) -> tuple[Verdict, str]:
        """Judges a figure of a GPU by its threshold and the baseline; unchecked where there is neither.

        Raises:
            InputError: the thresholds or the baseline do not have this model.
        """
        if self.thresholds and model not in self.thresholds:
            raise unknown("GPU model", model, self.thresholds, file=self.file)
        verdicts: list[Verdict] = []
        if least := self.thresholds.get(model, {}).get(name):
            verdicts.append(Verdict.FAIL if found < least else Verdict.PASS)
            text += f", at least {figure(least)} asked for"
        proofs = [] if self.baseline is None else self.baseline.proofs
        for good in (proof.values for proof in proofs if name in proof.values):
            if good["model"] != model:
                text = f"the baseline is of {good['model']}, and this node has {model}"
                raise InputError(text, field="baseline")
            verdicts.append(Verdict.by(1 - found / good[name], Options()))
            text += f", {figure(good[name])} in the baseline"
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
        known = ("gpus",) if model == "host" else ("matmul_tflops", "bus_gb_s")
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
