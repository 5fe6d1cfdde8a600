"""The result of a validation: its verdicts and proofs, and the report with its JSON and its table."""

from __future__ import annotations

import hashlib
import io
import os
import sys
import time
from datetime import UTC, datetime
from enum import StrEnum
from typing import IO, Any, Self

import msgspec

from isobatch._core import __version__
from isobatch.equivalence.laws import Cause, Diagnosis
from isobatch.errors import InputError, must_be
from isobatch.files.whole import read_whole, save_json
from isobatch.forecast.measurements import Measurements
from isobatch.planning.plan import Plan
from isobatch.validate.figures import AllReduce, Gpu, Machine, MicroBatchSearch, Noise, ReportPart, StepTimes
from isobatch.validate.options import Options
from isobatch.words import counted, printable, readable

SCHEMA = "isobatch.validation/2"


class Verdict(StrEnum):
    """The result of a proof; of several, `fail` wins, then `inconclusive`, `caution`, `pass`, `unchecked`.

    `fail` and `inconclusive` (the host was too noisy to tell) end with exit code 1; `caution`, `pass` and
    `unchecked` (not looked at, for the reason given) with 0.
    """

    FAIL = "fail"
    INCONCLUSIVE = "inconclusive"
    CAUTION = "caution"
    PASS = "pass"
    UNCHECKED = "unchecked"

    @classmethod
    def of(cls, verdicts: list[Verdict]) -> Verdict:
        """Returns the verdict of the whole.

        >>> Verdict.of([Verdict.PASS, Verdict.UNCHECKED, Verdict.CAUTION]).value
        'caution'
        """
        return next((verdict for verdict in cls if verdict in verdicts), cls.UNCHECKED)

    @classmethod
    def by(cls, off: float, options: Options) -> Verdict:
        """Judges a figure by its relative deviation.

        >>> Verdict.by(0.2, Options(caution=0.1, fail=0.25)).value
        'caution'
        """
        return cls.FAIL if off > options.fail else cls.CAUTION if off > options.caution else cls.PASS


STYLES = {
    Verdict.PASS: "green",
    Verdict.CAUTION: "yellow",
    Verdict.FAIL: "bold red",
    Verdict.INCONCLUSIVE: "magenta",
    Verdict.UNCHECKED: "dim",
}


class Proof(ReportPart, frozen=True, kw_only=True):
    """One claim of the plan and how it came out.

    `values` are the figures behind it, with units in their names; `gate` is the largest value that passes,
    where there is one; `diagnosis` says what most likely went wrong, and `.cause` is its likeliest cause.
    """

    name: str
    verdict: Verdict
    text: str
    diagnosis: Diagnosis | None = None
    gate: float | None = None
    values: dict[str, Any] = msgspec.field(default_factory=dict)

    @property
    def cause(self) -> Cause | None:
        """The likeliest cause; None where nothing is wrong."""
        return None if self.diagnosis is None else self.diagnosis.cause


def judge_claim(
    name: str, verdict: Verdict, text: str, diagnosis: Diagnosis, gate: float | None = None, **values: Any
) -> Proof:
    """Returns a judged claim, without a diagnosis if it passes."""
    shown = None if verdict in (Verdict.PASS, Verdict.UNCHECKED) else diagnosis
    return Proof(name=name, verdict=verdict, text=text, diagnosis=shown, gate=gate, values=values)


def pass_claim(name: str, text: str, gate: float | None = None, **values: Any) -> Proof:
    """Returns a proven claim."""
    return Proof(name=name, verdict=Verdict.PASS, text=text, gate=gate, values=values)


def skip_claim(name: str, text: str, **values: Any) -> Proof:
    """Returns a claim without a verdict, and why."""
    return Proof(name=name, verdict=Verdict.UNCHECKED, text=text, values=values)


class Report(ReportPart, frozen=True, kw_only=True):
    """A validation of a plan.

    `rehearsal` is set, such as "2/64", where fewer ranks ran than the plan has. `measurements` is what a
    calibration reads.
    """

    schema: str = SCHEMA
    isobatch_version: str = __version__
    started: str
    wall_seconds: float
    verdict: Verdict
    proofs: list[Proof]
    rehearsal: str | None
    plan: Plan | None
    plan_digest: str
    options: Options
    machine: Machine | None = None
    allreduce: AllReduce | None = None
    step: StepTimes | None = None
    noise: Noise | None = None
    micro_batch_search: MicroBatchSearch | None = None
    gpus: list[Gpu] = []
    measurements: Measurements | None = None
    phase_seconds: dict[str, float] = {}

    @property
    def exit_code(self) -> int:
        """0 for pass and caution, 1 for fail and inconclusive."""
        return int(self.verdict in (Verdict.FAIL, Verdict.INCONCLUSIVE))

    def to_json(self) -> str:
        """Returns the report as JSON text."""
        return msgspec.json.format(msgspec.json.encode(self), indent=1).decode()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the report as JSON, whole or not at all."""
        save_json(path, self.to_json())

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Reads a report of `save`.

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

    def __repr__(self) -> str:
        """The verdict; `show` prints the proofs, `to_json` has all of it."""
        passed = sum(proof.verdict is Verdict.PASS for proof in self.proofs)
        proofs = f"{passed} of {len(self.proofs)} proofs passed"
        return f"Report({self.verdict}, {proofs}, rehearsal={self.rehearsal!r})"

    @property
    def max_micro_batch(self) -> int:
        """The largest fitting micro-batch, for `ib.plan(..., max_micro_batch=…)`.

        On a GPU it leaves some memory to spare.

        Raises:
            InputError: it was not searched for, or nothing fits.
        """
        search = self.micro_batch_search
        if search is None or search.largest_micro_batch is None:
            why = "was not searched for: validate with --find-micro-batch" if search is None else "is none"
            raise InputError(f"the largest micro-batch {why}", field="micro_batch_search")
        return search.recommended_micro_batch or search.largest_micro_batch

    def proof(self, name: str) -> Proof:
        """Returns the proof of this name.

        Raises:
            KeyError: there is none.
        """
        return {proof.name: proof for proof in reversed(self.proofs)}[name]

    def show(self, file: IO[str] | None = None) -> None:
        """Prints the report as a table, to standard output where no file is given."""
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text

        title = f"isobatch validate: {self.verdict}"
        if self.rehearsal is not None:
            title += f" (rehearsal {self.rehearsal})"
        # As Text: a proof's text may hold anything, and none of it is markup.
        heading = Text(readable(title), style=STYLES[self.verdict])
        rows = Table(title=heading, title_justify="left", show_edge=False)
        rows.add_column("proof", no_wrap=True)
        rows.add_column("verdict", no_wrap=True)
        rows.add_column("what was found", overflow="fold")
        for proof in self.proofs:
            text = proof.text
            if proof.diagnosis is not None:
                text += f"\n→ {proof.diagnosis.text}: {proof.diagnosis.advice}"
            verdict = Text(proof.verdict, style=STYLES[proof.verdict])
            rows.add_row(printable(proof.name), verdict, Text(readable(text)))
        Console(file=file or sys.stdout).print(rows)
        if (machine := self.machine) is not None:
            where = f"{counted(len(machine.ranks), 'rank')} on {counted(machine.nodes, 'node')}"
            devices = ", ".join(dict.fromkeys(rank.device for rank in machine.ranks))
            versions = f"torch {machine.versions['torch']}; {self.wall_seconds:.1f} s"
            print(printable(f"{where}, {machine.backend}, {devices}; {versions}"), file=file)

    def _repr_pretty_(self, printer: Any, _: bool) -> None:
        """Shows the table in a notebook."""
        text = io.StringIO()
        self.show(text)
        printer.text(text.getvalue())


def json_schema() -> dict[str, Any]:
    """Returns the JSON Schema of a report.

    >>> json_schema()["title"]
    'isobatch.validation/2'
    """
    dialect = "https://json-schema.org/draft/2020-12/schema"
    return {"$schema": dialect, "title": SCHEMA, **msgspec.json.schema(Report)}


class Draft:
    """A report in the making, complete enough to be written at any time, such as when a rank is lost."""

    def __init__(self, plan: Plan, options: Options) -> None:
        self._begun = time.monotonic()
        self.phase_seconds: dict[str, float] = {}
        self._report = Report(
            started=datetime.now(UTC).isoformat(timespec="seconds"),
            wall_seconds=0.0,
            verdict=Verdict.UNCHECKED,
            rehearsal=None,
            plan=plan,
            plan_digest="sha256:" + hashlib.sha256(plan.to_json().encode()).hexdigest(),
            options=options,
            proofs=[],
        )

    def add(self, *new_proofs: Proof, **parts: Any) -> None:
        """Adds proofs, and parts of the report by name."""
        proofs = [*self._report.proofs, *new_proofs]
        self._report = msgspec.structs.replace(self._report, proofs=proofs, **parts)

    def report(self) -> Report:
        """Returns the report so far."""
        return msgspec.structs.replace(
            self._report,
            verdict=Verdict.of([proof.verdict for proof in self._report.proofs]),
            wall_seconds=round(time.monotonic() - self._begun, 3),
            phase_seconds=dict(self.phase_seconds),
        )
