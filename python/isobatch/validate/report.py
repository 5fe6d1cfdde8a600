"""What a validation found: the report's structure, which is also its JSON and its JSON Schema."""

from __future__ import annotations

import hashlib
import importlib.resources
import os
from enum import StrEnum
from typing import Any, Self

import msgspec

from isobatch._files import read_whole, write_whole
from isobatch._plan import Plan
from isobatch.errors import InputError
from isobatch.measurements import Measurements
from isobatch.validate.options import Options

SCHEMA = "isobatch.validation/1"


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


class _Part(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    pass


class Proof(_Part, frozen=True, kw_only=True):
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


class Rank(_Part, frozen=True, kw_only=True):
    """One process: where it runs and how fast it is alone. `matmul_gflops` and `copy_gb_s` are of the best window,
    `window_spread` is the slowest window over the fastest."""

    rank: int
    host: str
    node: int
    local_rank: int
    device: str
    device_memory_bytes: int | None
    matmul_gflops: float | None = None
    copy_gb_s: float | None = None
    window_spread: float | None = None


class Link(_Part, frozen=True, kw_only=True):
    """Point-to-point speed between two nodes, both ways together, each way its own share of the time."""

    node: int
    peer: int
    bw_gb_s: float


class Machine(_Part, frozen=True, kw_only=True):
    """What it ran on. `emulated`: several ranks share a device, so function is proven and performance is not."""

    ranks: list[Rank]
    nodes: int
    backend: str
    emulated: bool
    versions: dict[str, str]
    environment: dict[str, str]
    topology: str | None
    links: list[Link] = []


class AllReduceRow(_Part, frozen=True, kw_only=True):
    """All-reduce of one array: `bytes` is the whole array, `time_us` the median over iterations of the slowest rank's time,
    bus bandwidth is algorithm bandwidth × 2(n−1)/n, GB is 1e9 bytes. `mode` is "isolated" or "back_to_back"; `bucket`
    says that the size is one of the plan's DDP buckets; `wrong_elements` is None where it was not checked."""

    dtype: str
    bytes: int
    ranks: int
    nodes: int
    mode: str
    bucket: bool
    time_us: float
    p95_us: float
    alg_bw_gb_s: float
    bus_bw_gb_s: float
    wrong_elements: int | None
    samples_us: list[float]


class Fit(_Part, frozen=True, kw_only=True):
    """time_us = alpha_us + us_per_byte × bytes, both from 0, relative errors weighed alike. Where `worst_residual` (a
    fraction) is large, interpolate in the table."""

    dtype: str
    mode: str
    alpha_us: float
    us_per_byte: float
    median_residual: float
    worst_residual: float


class AllReduce(_Part, frozen=True, kw_only=True):
    """The all-reduce as measured: nothing where there is one rank, since there is no wire."""

    table: list[AllReduceRow]
    fits: list[Fit]


class MicroBatch(_Part, frozen=True, kw_only=True):
    """An optimizer step of one micro-batch at one size, without communication: seconds by rank, and the peak memory.
    `peak_memory_kind` is "cuda_allocated" or "resident" (the whole process, on a CPU)."""

    micro_batch: int
    step_seconds: list[list[float]]
    peak_memory_bytes: int
    peak_memory_reserved_bytes: int | None
    peak_memory_kind: str


class Step(_Part, frozen=True, kw_only=True):
    """The training step as measured. Samples are by rank, in seconds a step: `compute_seconds` under no_sync throughout,
    `sync_seconds` the whole step with its all-reduce. `exposed_seconds` is what communication adds; `overlap` is the share
    of the communication that is hidden, None where it could not be told from noise. A long accumulation is timed with fewer
    micro-batches: `accumulation` is theirs, `planned_step_seconds` and `samples_per_second` are the whole step's."""

    workload: str
    parameters: int
    ranks: int
    nodes: int
    micro_batch: int
    accumulation: int
    precision: str
    gradient_bytes: int
    bucket_bytes: list[int]
    compute_seconds: list[list[float]]
    sync_seconds: list[list[float]]
    compute_median_seconds: float
    sync_median_seconds: float
    sync_p95_seconds: float
    spread: float
    exposed_seconds: float
    communication_seconds: float | None
    overlap: float | None
    planned_accumulation: int
    planned_step_seconds: float
    samples_per_second: float
    micro_batches: list[MicroBatch]
    ddp: dict[str, str | int]
    compiled: bool
    channels_last: bool


class MicroBatchTry(_Part, frozen=True, kw_only=True):
    """A step of one micro-batch of that size, with its optimizer, by every rank alone; memory is the largest rank's.
    `fragmentation_bytes` is what CUDA's allocator has reserved at its peak and not given out at its: None on a CPU."""

    micro_batch: int
    fits: bool
    fault: str | None
    peak_memory_bytes: int
    peak_memory_reserved_bytes: int | None
    fragmentation_bytes: int | None
    peak_memory_kind: str


class MicroBatchSearch(_Part, frozen=True, kw_only=True):
    """The largest micro-batch that fits on all ranks, None where not even one sample does. Where the time was over before the
    next larger one was known not to fit, it is not `complete`."""

    largest_micro_batch: int | None
    complete: bool
    memory_limit_bytes: int | None
    tries: list[MicroBatchTry]


class Noise(_Part, frozen=True, kw_only=True):
    """The simple gradient noise scale tr(Σ)/|G|² of this workload, in samples, with its standard error by the jackknife.
    None where the mean gradient could not be told from zero."""

    steps: int
    noise_scale: float | None
    standard_error: float | None
    gradient_norm_sq: float
    variance_trace: float
    small_batch: int
    large_batch: int


class Report(_Part, frozen=True, kw_only=True):
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
        from isobatch.validate.show import table_text

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
    text = importlib.resources.files("isobatch.validate").joinpath("report.schema.json").read_bytes()
    schema: dict[str, Any] = msgspec.json.decode(text)
    return schema


def make_json_schema() -> dict[str, Any]:
    """The JSON Schema that follows from the structure: a test holds the one in the package to it."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": SCHEMA,
        **msgspec.json.schema(Report),
    }
