"""What a validation found: the report's structure, which is also its JSON and its JSON Schema."""

from __future__ import annotations

import hashlib
import importlib.resources
import os
from enum import StrEnum
from typing import Any, Self

import msgspec

from isobatch.errors import InputError
from isobatch.files.whole import read_whole, write_whole
from isobatch.forecast.measurements import Measurements
from isobatch.planning.plan import Plan
from isobatch.validate.options import Options
from isobatch.validate.report.figures import AllReduce, Machine, MicroBatchSearch, Noise, Part, Step

SCHEMA = "isobatch.validation/1"
NOISY = "the host is too noisy to tell: run again when other programs are quiet"
"""The cause of an inconclusive verdict."""


class Verdict(StrEnum):
    """How a proof came out. The order is the one in which they win over each other in the whole.

    `fail` and `inconclusive` (the host was too noisy to tell) end with exit code 1; `caution`, `pass` and `unchecked`
    (not looked at, and why is said) with 0.
    """

    FAIL = "fail"
    INCONCLUSIVE = "inconclusive"
    CAUTION = "caution"
    PASS = "pass"
    UNCHECKED = "unchecked"

    @classmethod
    def of(cls, verdicts: list[Verdict]) -> Verdict:
        """The verdict of the whole.

        >>> Verdict.of([Verdict.PASS, Verdict.UNCHECKED, Verdict.CAUTION]).value
        'caution'
        """
        return next((verdict for verdict in cls if verdict in verdicts), cls.UNCHECKED)

    @classmethod
    def by(cls, off: float, options: Options) -> Verdict:
        """The verdict on a figure that is off by such a fraction.

        >>> Verdict.by(0.2, Options(caution=0.1, fail=0.25)).value
        'caution'
        """
        return cls.FAIL if off > options.fail else cls.CAUTION if off > options.caution else cls.PASS


class Proof(Part, frozen=True, kw_only=True):
    """One claim of the plan and how it came out.

    `values` are the figures behind it, with units in their names; `gate` is the largest value that passes, where there is
    one; `cause` names what most likely went wrong.
    """

    name: str
    verdict: Verdict
    text: str
    cause: str | None = None
    gate: float | None = None
    values: dict[str, Any] = msgspec.field(default_factory=dict)


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
    measurements: Measurements | None = None
    phase_seconds: dict[str, float] = {}

    @property
    def exit_code(self) -> int:
        """0 for pass and caution, 1 for fail and inconclusive."""
        return int(self.verdict in (Verdict.FAIL, Verdict.INCONCLUSIVE))

    @property
    def max_micro_batch(self) -> int:
        """The largest micro-batch that fits, for `ib.plan(..., max_micro_batch=…)`.

        Raises:
            InputError: it was not searched for, or nothing fits.
        """
        found = self.micro_batch_search
        if found is None or found.largest_micro_batch is None:
            why = "was not searched for: validate with --find-micro-batch" if found is None else "is none"
            raise InputError(f"the largest micro-batch {why}", field="micro_batch_search")
        return found.largest_micro_batch

    def proof(self, name: str) -> Proof:
        """The proof of that name.

        Raises:
            KeyError: there is none.
        """
        for proof in self.proofs:
            if proof.name == name:
                return proof
        raise KeyError(name)

    def _repr_pretty_(self, printer: Any, _: bool) -> None:
        """What a notebook shows: the table."""
        from isobatch.validate.report.show import table_text

        printer.text(table_text(self))

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
                raise InputError(
                    f"{schema!r} is not legal; legal: {SCHEMA!r}", file=str(path), field="schema"
                )
            return msgspec.json.decode(text, type=cls)
        except msgspec.MsgspecError as error:
            raise InputError(f"no report: {error}", file=str(path)) from None


def digest(plan: Plan) -> str:
    """What a plan is known by: the SHA-256 of its JSON."""
    return "sha256:" + hashlib.sha256(plan.to_json().encode()).hexdigest()


def json_schema() -> dict[str, Any]:
    """The JSON Schema of a report, as it stands in the package.

    >>> json_schema()["title"]
    'isobatch.validation/1'
    """
    text = importlib.resources.files("isobatch.validate.report").joinpath("report.schema.json").read_bytes()
    schema: dict[str, Any] = msgspec.json.decode(text)
    return schema


def make_json_schema() -> dict[str, Any]:
    """The JSON Schema that follows from the structure: a test holds the one in the package to it."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": SCHEMA,
        **msgspec.json.schema(Report),
    }
