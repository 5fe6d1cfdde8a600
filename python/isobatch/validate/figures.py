"""The measured figures of a validation, part by part, as the report has them."""

import msgspec


class ReportPart(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A part of a report."""


class Rank(ReportPart, frozen=True, kw_only=True):
    """One process, and where it runs."""

    rank: int
    host: str
    node: int
    local_rank: int
    device: str
    device_memory_bytes: int | None


class Machine(ReportPart, frozen=True, kw_only=True):
    """The hardware and software of a validation.

    `emulated`: several ranks share a device, so function is proven and performance is not.
    """

    ranks: list[Rank]
    nodes: int
    backend: str
    emulated: bool
    versions: dict[str, str]
    environment: dict[str, str]


class AllReduceRow(ReportPart, frozen=True, kw_only=True):
    """All-reduce of one array.

    `bytes` is the whole array, `time_us` the median over iterations of the slowest rank's time,
    bus bandwidth is algorithm bandwidth × 2(n−1)/n, GB is 1e9 bytes. `bucket` says that the size is one of
    the plan's DDP buckets.
    """

    dtype: str
    bytes: int
    ranks: int
    nodes: int
    bucket: bool
    time_us: float
    p95_us: float
    alg_bw_gb_s: float
    bus_bw_gb_s: float
    wrong_elements: int
    samples_us: list[float]


class AllReduce(ReportPart, frozen=True, kw_only=True):
    """The measured all-reduces; none with a single rank, since there is no wire."""

    table: list[AllReduceRow]


class MicroBatchTimes(ReportPart, frozen=True, kw_only=True):
    """An optimizer step of one micro-batch at one size, without communication.

    `step_seconds` are each repetition's, of the slowest rank; short steps run in blocks without a clock
    between them. `peak_memory_kind` is "cuda_allocated" or "resident" (the whole process, on a CPU).
    """

    micro_batch: int
    step_seconds: list[float]
    peak_memory_bytes: int
    peak_memory_reserved_bytes: int | None
    peak_memory_kind: str


class StepTimes(ReportPart, frozen=True, kw_only=True):
    """The training step as measured, in seconds a step.

    `compute_seconds` runs under no_sync throughout; `sync_seconds` is the whole step with its all-reduce.
    Both are the slowest rank's. `exposed_seconds` is added by communication; `overlap` is the hidden share of
    the communication, None where noise is larger. `free_running_seconds` is a step in a block of steps
    without a clock between them, if steps are short enough for that to matter. A long accumulation is timed
    with fewer micro-batches: `accumulation` is their number, while `planned_step_seconds` and
    `samples_per_second` are the whole step's.
    """

    workload: str
    parameters: int
    ranks: int
    nodes: int
    micro_batch: int
    accumulation: int
    precision: str
    gradient_bytes: int
    bucket_bytes: list[int]
    compute_seconds: list[float]
    sync_seconds: list[float]
    compute_median_seconds: float
    sync_median_seconds: float
    sync_p95_seconds: float
    free_running_seconds: float | None
    spread: float
    exposed_seconds: float
    communication_seconds: float | None
    overlap: float | None
    planned_accumulation: int
    planned_step_seconds: float
    samples_per_second: float
    micro_batches: list[MicroBatchTimes]


class MicroBatchTry(ReportPart, frozen=True, kw_only=True):
    """A step of one micro-batch of this size, with its optimizer, by each rank alone.

    Memory is the largest rank's. `left_bytes` is the free memory of the fullest rank's GPU at its peak, by
    the GPU's own count. `fragmentation_bytes` is the allocator's peak of reserved memory less its peak of
    memory in use; None on a CPU.
    """

    micro_batch: int
    fits: bool
    fault: str | None
    peak_memory_bytes: int
    peak_memory_reserved_bytes: int | None
    fragmentation_bytes: int | None
    left_bytes: int | None = None
    peak_memory_kind: str


class MicroBatchSearch(ReportPart, frozen=True, kw_only=True):
    """The largest micro-batch for all ranks, and the recommended one.

    None if not even one sample fits. The recommended one leaves max(2 GiB, 4 %) of a GPU for NCCL's buffers
    and fragmentation. `complete` is false if time ran out before the next larger size was known not to fit.
    """

    largest_micro_batch: int | None
    recommended_micro_batch: int | None = None
    complete: bool
    memory_limit_bytes: int | None
    tries: list[MicroBatchTry]


class Noise(ReportPart, frozen=True, kw_only=True):
    """The simple gradient noise scale tr(Σ)/|G|² of this workload, in samples.

    Its standard error is the jackknife's. None if the mean gradient could not be distinguished from zero.
    """

    steps: int
    noise_scale: float | None
    standard_error: float | None
    gradient_norm_sq: float
    variance_trace: float
    small_batch: int
    large_batch: int


class Gpu(ReportPart, frozen=True, kw_only=True, omit_defaults=True):
    """A rank's GPU at the start, by NVML; a value is None if NVML does not give it.

    `taken_bytes` is the memory taken by others than this process.
    """

    rank: int
    name: str | None = None
    memory_bytes: int | None = None
    taken_bytes: int | None = None
    other_processes: int | None = None
    mig: bool | None = None
    power_limit_w: float | None = None
    power_limit_default_w: float | None = None
