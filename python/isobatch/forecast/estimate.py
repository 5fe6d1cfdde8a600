"""A profile from a model's size and a data sheet, before anything is measured: every figure a range.

What is guessed has a range, and a constant's error covers it: the share of the peak that training reaches,
the share of a link, what kernels keep beside what must be kept. `Estimate.missing` says what is not in it.
"""

import os
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypedDict, Unpack, get_args

from isobatch import _core
from isobatch.errors import missing, must_be
from isobatch.forecast.data_sheets import DataSheet, peak_of, sheet_of
from isobatch.forecast.decoder import Decoder, read_model
from isobatch.forecast.profile import GIB, Constant, Profile, Recompute, state_bytes
from isobatch.limits import one_of, real, whole

UTILIZATION = (0.3, 0.5)
STATES = "weights, gradients, optimizer"
"""The name of their figure."""

LINK_SHARE = (0.5, 0.9)
LATENCY_US = 10.0
KEPT_GATED, KEPT_PLAIN = 1.3, 2.0
"""Stored activations over their count if operations are not fused (docs/forecast.md)."""
LOGITS_BYTES = 10.0
"""Bytes a logit beside its float32: in 16 bits, a float32 copy and its gradient."""


class Figure(NamedTuple):
    """A line of an estimate: `low` and `high` are the ends of its range, in `unit`."""

    name: str
    low: float
    high: float
    unit: str
    source: str


class EstimateOptions(TypedDict, total=False):
    """The arguments of `estimate` beside the GPU and the length of a sample, by name."""

    parameters: int | None
    precision: str
    optimizer: str
    tensor_parallel: int
    pipeline_parallel: int
    micro_batch: int
    utilization: float | Sequence[float]
    recompute: Recompute
    shards: int
    inter_gb_s: float | None


class Estimate(NamedTuple):
    """The profile, its figures, and a list of the costs left out."""

    profile: Profile
    figures: tuple[Figure, ...]
    missing: tuple[str, ...]


class _Request(NamedTuple):
    decoder: Decoder | None
    sheet: DataSheet
    seq_len: int
    parameters: int
    precision: str = "bf16"
    optimizer: str = "adamw"
    tensor_parallel: int = 1
    pipeline_parallel: int = 1
    micro_batch: int = 1
    utilization: tuple[float, float] = UTILIZATION
    recompute: Recompute = "attention"
    shards: int = 1
    inter_gb_s: float | None = None

    @property
    def width(self) -> int:
        """Bytes of a value in the format of computation."""
        return _core.precisions()[self.precision]

    @property
    def replays(self) -> float:
        """Returns done over needed operations: full recomputation runs the forward pass twice."""
        return 4 / 3 if self.recompute == "full" else 1.0


def estimate(
    model: str | os.PathLike[str] | None = None, *, gpu: str, seq_len: int, **options: Unpack[EstimateOptions]
) -> Profile:
    """Estimates a profile for `plan`, `plan_fleet` and `counts`.

    The error of every constant covers its range.

    Args:
        model: a transformers config.json, or the folder that has it, read as data (gpt2, gpt_neox, llama,
            mistral, qwen2, qwen3, gemma, phi3); None with `parameters`.
        parameters: the number of them, where there is no config: then attention's operations and activations
            are missing.
        seq_len: tokens in a sample.
        gpu: a name of `isobatch.forecast.estimate`, such as "H100-80".
        precision: bf16, fp16, tf32 or fp32.
        optimizer: as in a Recipe.
        tensor_parallel, pipeline_parallel: GPUs that share a layer, and stages; plan with model_parallel,
            their product.
        micro_batch: of the pipeline's bubble, (stages − 1) micro-batches a step (Narayanan et al. 2021, arXiv
            2104.04473).
        utilization: the share of the peak that is reached, one or a range; 0.3 to 0.5 unless given (PaLM's
            table 3 has 0.21 to 0.46 for four models, arXiv 2204.02311; Llama 3 405B 0.38 to 0.43, arXiv
            2407.21783).
        recompute: "attention" (scores are not kept, as in flash attention), "none" or "full".
        shards: GPUs over which weights, gradients and optimizer are sharded (ZeRO 3, FSDP), for the figure;
            above 1 the profile shards them over the replicas of each plan.
        inter_gb_s: of a node's network, in 1e9 bytes a second and one direction.

    Raises:
        InputError: a value is illegal, the config is of a model without an estimate, or the GPU has no such
            precision.

    >>> profile = estimate(parameters=7_000_000_000, seq_len=4096, gpu="H100-80")
    >>> pass_seconds = profile.compute_per_sample
    >>> profile.estimated, round(pass_seconds.value, 3), round(pass_seconds.error, 3)
    (True, 0.464, 0.116)
    """
    return estimated(model, gpu=gpu, seq_len=seq_len, **options).profile


def estimated(
    model: str | os.PathLike[str] | None = None, *, gpu: str, seq_len: int, **options: Unpack[EstimateOptions]
) -> Estimate:
    """Estimates the same with its figures, and the costs left out."""
    if (model is None) == (options.get("parameters") is None):
        raise missing("a model", "give either its config.json or its parameters")
    if model is not None and not isinstance(model, (str, os.PathLike)):
        raise must_be("the path of a config.json", model, field="model")
    decoder = None if model is None else read_model(model)
    fields: dict[str, Any] = {**options} if decoder is None else {**options, "parameters": decoder.parameters}
    request = _Request(decoder, sheet_of(gpu), seq_len, **fields)
    one_of(request.precision, "precision", _core.precisions())
    one_of(request.optimizer, "optimizer", _core.optimizers())
    one_of(request.recompute, "recompute", get_args(Recompute))
    peak_of(request.sheet, request.precision)
    if request.inter_gb_s is not None:
        real(request.inter_gb_s, "inter_gb_s", "a finite number above 0", lambda x: x > 0)
    counts = ("parameters", "seq_len", "tensor_parallel", "pipeline_parallel", "micro_batch", "shards")
    checked: dict[str, Any] = {name: whole(getattr(request, name), name) for name in counts}
    request = request._replace(utilization=_range(request.utilization), **checked)
    if decoder is not None:
        _check_parallel(request, decoder)
    return _profile_of(request)


def _range(share: Any) -> tuple[float, float]:
    ends = share if isinstance(share, (tuple, list)) else (share, share)
    says = "a share above 0 and at most 1, or two that ascend"
    if len(ends) != 2:
        raise must_be(says, share, field="utilization")
    low, high = (real(end, "utilization", says, lambda x: (x > 0) & (x <= 1)) for end in ends)
    if low > high:
        raise must_be(says, share, field="utilization")
    return low, high


def _check_parallel(request: _Request, model: Decoder) -> None:
    for field, count, title in (
        ("tensor_parallel", model.heads, "heads"),
        ("pipeline_parallel", model.layers, "layers"),
    ):
        parts = getattr(request, field)
        if count % parts:
            raise must_be(f"a divisor of the model's {count} {title}", parts, field=field)


def _profile_of(request: _Request) -> Estimate:
    compute, latency, figures = _pass(request)
    bubble = _each(
        compute, lambda end: (request.pipeline_parallel - 1) * (latency + end * request.micro_batch)
    )
    states, sample, of_memory = _memory(request)
    is_shared = request.shards > 1
    link, network = _each(LINK_SHARE, lambda share: share * request.sheet.link_gb_s), request.inter_gb_s
    assumed = f"{request.sheet.link}, share {LINK_SHARE[0]:g} to {LINK_SHARE[1]:g} assumed"
    lines = [*figures, *of_memory, Figure("link inside a node", *link, "GB/s", assumed)]
    if request.pipeline_parallel > 1:
        source = "Narayanan et al. 2021, arXiv 2104.04473"
        lines.append(Figure("pipeline bubble", *bubble, "s a step", source))
    family = request.decoder.family if request.decoder else "model"
    profile = Profile(
        workload=f"{family} of {request.parameters:,} parameters, {request.seq_len:,} tokens",
        parameters=request.parameters,
        seq_len=request.seq_len,
        recompute=request.recompute,
        gpu=request.sheet.name,
        gradient_bytes=float(request.parameters * request.width),
        compute_constant=Constant(value=latency, estimated=True),
        compute_per_sample=_constant(*compute),
        update=_constant(*bubble) if request.pipeline_parallel > 1 else None,
        intra_latency_us=Constant(value=LATENCY_US, estimated=True),
        intra_gb_s=_constant(*link),
        inter_latency_us=None if network is None else Constant(value=LATENCY_US, estimated=True),
        inter_gb_s=None if network is None else _constant(*_each(LINK_SHARE, lambda share: share * network)),
        overlap=Constant(value=1.0, estimated=True),
        memory_fixed_gib=_constant(*((0.0, 0.0) if is_shared else states)),
        memory_sharded_gib=_constant(*_each(states, lambda gib: gib * request.shards)) if is_shared else None,
        memory_per_sample_gib=None if sample is None else _constant(*sample),
    )
    return Estimate(profile, tuple(lines), _missing(request))


def _pass(request: _Request) -> tuple[tuple[float, float], float, list[Figure]]:
    """Estimates the (fastest, slowest) seconds per sample of a pass, seconds per micro-batch, and figures."""
    peak = peak_of(request.sheet, request.precision)
    gpus = request.tensor_parallel * request.pipeline_parallel
    model = request.decoder
    operations = model.operations(request.seq_len) if model else 6.0 * request.parameters * request.seq_len
    low, high = request.utilization
    ideal = operations * request.replays / (peak * 1e12 * gpus)
    fastest, slowest = ideal / high, ideal / low
    of_size, of_count, of_share = "as given", "6 per parameter and token", "as given"
    if model:
        of_size, of_count = "the config", "PaLM, arXiv 2204.02311, appendix B"
    if request.utilization == UTILIZATION:
        of_share = "PaLM, table 3; Llama 3, arXiv 2407.21783"
    lines = [
        Figure("parameters", request.parameters, request.parameters, "", of_size),
        Figure("operations", operations, operations, "a sample", of_count),
        Figure("peak", peak, peak, f"TFLOP/s, {request.precision}", request.sheet.source),
        Figure("share of the peak", low, high, "", of_share),
    ]
    latency = 0.0
    if request.tensor_parallel > 1 and model:
        # Two all-reduces in a layer's forward pass, two in its backward, and the forward's again where all is
        # recomputed.
        reduces = model.layers / request.pipeline_parallel * (6 if request.recompute == "full" else 4)
        ring = 2 * (request.tensor_parallel - 1)
        traffic = reduces * ring / request.tensor_parallel * request.seq_len * model.hidden * request.width
        quick, slow = (traffic / (share * request.sheet.link_gb_s * 1e9) for share in reversed(LINK_SHARE))
        latency = reduces * ring * LATENCY_US * 1e-6
        source = "Shoeybi et al. 2019, arXiv 1909.08053"
        lines.append(Figure("tensor-parallel traffic", quick, slow, "s a sample", source))
        fastest, slowest = fastest + quick, slowest + slow
    lines.append(Figure("pass", fastest, slowest, "s a sample", "the lines above"))
    return (fastest, slowest), latency, lines


def _memory(request: _Request) -> tuple[tuple[float, float], tuple[float, float] | None, list[Figure]]:
    """Estimates the GiB per GPU of states, and per sample of activations, with their figures."""
    gpus = request.tensor_parallel * request.pipeline_parallel * request.shards
    state, width = state_bytes(request.optimizer, request.precision)
    least = request.parameters * (state + 2 * width) / GIB / gpus
    most = least + request.parameters * 2 / GIB / gpus
    lines = [Figure(STATES, least, most, "GiB", "16 to 18 B a parameter for AdamW in 16 bits")]  # fmt: skip
    model = request.decoder
    if model is None:
        return (least, most), None, lines
    layer = model.layer_bytes(request.seq_len, request.width, keep_scores=request.recompute == "none")
    factor = KEPT_GATED if model.gated else KEPT_PLAIN
    # The first stage keeps as many micro-batches as there are stages, each of its share of the layers.
    bytes_kept = model.layers * layer, model.layers * layer * factor
    if request.recompute == "full":
        inputs = float(model.layers * request.seq_len * model.hidden * request.width)
        bytes_kept = inputs + layer, inputs + layer * factor
    head = model.head_bytes(request.seq_len, request.width)
    heads = head, head + LOGITS_BYTES * request.seq_len * model.vocabulary
    # The head is on the last stage, which keeps one micro-batch.
    low, high = (
        max(a, a / request.pipeline_parallel + b) / request.tensor_parallel / GIB
        for a, b in zip(bytes_kept, heads, strict=True)
    )
    lines.append(
        Figure("activations", low, high, "GiB a sample", "Korthikanti et al. 2022, arXiv 2205.05198")
    )
    return (least, most), (low, high), lines


def _missing(request: _Request) -> tuple[str, ...]:
    gaps = [
        "communication that hides behind computation: none is assumed to, so steps on many GPUs come out long"
    ]
    if request.decoder is None:
        gaps.append("operations of attention, and activations: give the model's config.json")
        if request.tensor_parallel > 1:
            gaps.append("traffic of tensor parallelism: give the model's config.json")
    elif request.tensor_parallel > 1:
        gaps.append("activations that tensor parallelism does not split: sequence parallelism is assumed")
    if request.recompute != "full":
        gaps.append("recomputation of layers (gradient checkpointing): estimate with recompute full")
    if request.pipeline_parallel > 1:
        gaps.append("what stages send to each other; a bubble of other micro-batches than "
                     f"{request.micro_batch}")  # fmt: skip
    if request.inter_gb_s is None:
        gaps.append("the network between nodes: give inter_gb_s, or plan on a cluster that has it")
    if request.shards > 1:
        gaps.append("gathers of sharded weights, half as many bytes again as the gradient's")
    gaps.append("memory of the driver's context, communication buffers and fragmentation")
    gaps.append("time of the loader, the optimizer's update and checkpoints")
    return tuple(gaps)


def _each(ends: tuple[float, float], of: Callable[[float], float]) -> tuple[float, float]:
    return of(ends[0]), of(ends[1])


def _constant(low: float, high: float) -> Constant:
    return Constant(value=(low + high) / 2, error=(high - low) / 2, estimated=True)
