"""What a validation found, as a whole: the structure that its JSON has."""

from __future__ import annotations

import hashlib
import io
import os
from typing import IO, Any, Self

import msgspec

from isobatch.errors import InputError, must_be
from isobatch.files.whole import read_whole, write_whole
from isobatch.forecast.measurements import Measurements
from isobatch.planning.plan import Plan
from isobatch.validate.options import Options
from isobatch.validate.report.figures import (
    AllReduce,
    Hosts,
    Machine,
    MicroBatchSearch,
    Noise,
    Part,
    Soak,
    Step,
)
from isobatch.validate.report.table import table
from isobatch.validate.report.verdict import Proof, Verdict

SCHEMA = "isobatch.validation/1"


class Report(Part, frozen=True, kw_only=True):
    """A validation of a plan.

    `rehearsal` is set, such as "2/64", where fewer ranks ran than the plan has. `measurements` is what a calibration reads.
    """

    schema: str = SCHEMA
    isobatch_version: str
    started: str
    wall_seconds: float
    verdict: Verdict
    rehearsal: str | None
    plan: Plan | None
    plan_digest: str
    options: Options
    proofs: list[Proof]
    machine: Machine | None = None
    allreduce: AllReduce | None = None
    step: Step | None = None
    noise: Noise | None = None
    micro_batch_search: MicroBatchSearch | None = None
    hosts: Hosts | None = None
    soak: Soak | None = None
    measurements: Measurements | None = None
    phase_seconds: dict[str, float] = {}

    def __repr__(self) -> str:
        """The verdict; `show` prints the proofs, `to_json` has all of it."""
        passed = sum(proof.verdict is Verdict.PASS for proof in self.proofs)
        return f"Report({self.verdict}, {passed} of {len(self.proofs)} proofs passed, rehearsal={self.rehearsal!r})"

    @property
    def exit_code(self) -> int:
        """0 for pass and caution, 1 for fail and inconclusive."""
        return int(self.verdict in (Verdict.FAIL, Verdict.INCONCLUSIVE))

    @property
    def max_micro_batch(self) -> int:
        """The largest micro-batch that fits, on a GPU with some memory to spare, for `ib.plan(..., max_micro_batch=…)`.

        Raises:
            InputError: it was not searched for, or nothing fits.
        """
        found = self.micro_batch_search
        if found is None or found.largest_micro_batch is None:
            why = "was not searched for: validate with --find-micro-batch" if found is None else "is none"
            raise InputError(f"the largest micro-batch {why}", field="micro_batch_search")
        return found.recommended_micro_batch or found.largest_micro_batch

    def proof(self, name: str) -> Proof:
        """The proof of that name.

        Raises:
            KeyError: there is none.
        """
        for proof in self.proofs:
            if proof.name == name:
                return proof
        raise KeyError(name)

    def show(self, file: IO[str] | None = None) -> None:
        """Prints the report as a table, to standard output where no file is given."""
        title = f"isobatch validate: {self.verdict}"
        if self.rehearsal is not None:
            title += f" (rehearsal {self.rehearsal})"
        table(title, self.verdict, self.proofs, self._footer(), file)

    def _footer(self) -> str:
        machine = self.machine
        if machine is None:
            return ""
        ranks = f"{len(machine.ranks)} {'rank' if len(machine.ranks) == 1 else 'ranks'}"
        nodes = f"{machine.nodes} {'node' if machine.nodes == 1 else 'nodes'}"
        devices = ", ".join(dict.fromkeys(rank.device for rank in machine.ranks))
        versions = f"torch {machine.versions['torch']}; {self.wall_seconds:.1f} s"
        return f"{ranks} on {nodes}, {machine.backend}, {devices}; {versions}"

    def _repr_pretty_(self, printer: Any, _: bool) -> None:
        """What a notebook shows: the table."""
        text = io.StringIO()
        self.show(text)
        printer.text(text.getvalue())

    def to_json(self) -> str:
        """The report as JSON text, as the schema in the package has it."""
        return msgspec.json.format(msgspec.json.encode(self), indent=1).decode()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the report as JSON, whole or not at all."""
        write_whole(path, (self.to_json() + "\n").encode())

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Reads a report that `save` wrote.

        Raises:
            InputError: the file cannot be read, or holds no report of this version.
        """
        try:
            text = read_whole(path)
            schema = msgspec.json.decode(text, type=dict[str, Any]).get("schema")
            if schema != SCHEMA:
                raise must_be(repr(SCHEMA), schema, file=str(path), field="schema")
            return msgspec.json.decode(text, type=cls)
        except msgspec.MsgspecError as error:
            raise InputError(f"not a report of this version: {error}", file=str(path)) from None


def digest(plan: Plan) -> str:
    """What a plan is known by: the SHA-256 of its JSON."""
    return "sha256:" + hashlib.sha256(plan.to_json().encode()).hexdigest()
