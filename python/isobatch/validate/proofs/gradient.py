"""The gradient of the plan's step, and the weights after it, against one process on the same samples."""

import contextlib
import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from isobatch.equivalence.causes import Share, explain_factor
from isobatch.equivalence.laws import Cause
from isobatch.equivalence.likeness import Likeness
from isobatch.equivalence.observation import Observation, change_of, sketched
from isobatch.equivalence.records import Vector
from isobatch.equivalence.tensors import checksum, chunks, dense, differing, float32_as
from isobatch.errors import first_line
from isobatch.limits import within
from isobatch.validate.proofs.memory import free_on_host
from isobatch.validate.ranks.group import copy_from_first
from isobatch.validate.report import Proof, Verdict, judge_claim, pass_claim, skip_claim
from isobatch.validate.training import (
    LOSS_SCALE,
    Training,
    copy_to_host,
    grads,
    parameter_bytes,
    put,
    trained,
)
from isobatch.validate.trial import Claim, Trial
from isobatch.validate.workload import out_of_memory
from isobatch.words import few

SEED = 20
RANKS = 8
"""The most ranks whose samples one process goes through."""

GATES = {torch.float64: 1e-12, torch.float32: 1e-5, torch.float16: 5e-3, torch.bfloat16: 1e-2}
HOOK_GATES = {"none": 0.0, "fp16": 5e-3, "bf16": 1e-2}
UPDATE_GATE = 1e-3
SECONDS = {"quick": 5.0, "usual": 12.0, "full": 30.0}
"""For the one process, which does the work of several ranks."""


def name_of(dtype: torch.dtype | None) -> str:
    """Names a number format; None is float32's own."""
    return str(dtype or torch.float32).removeprefix("torch.")


class _How(NamedTuple):
    """The conditions of a step's proof: `smaller` is the reason for another step than the plan's."""

    measured: str
    amp: torch.dtype | None
    smaller: str | None
    coarse: torch.dtype
    gate: float

    @property
    def suffix(self) -> str:
        """Ends the proofs' names."""
        return "" if self.amp is None else f"_{name_of(self.amp)}"


@contextlib.contextmanager
def _without_hooks(model: nn.Module) -> Iterator[None]:
    """Leaves out the hooks on parameters: the reference shows what they change."""
    hooks = [p._backward_hooks for p in model.parameters() if p._backward_hooks]
    saved = [dict(own) for own in hooks]
    for own in hooks:
        own.clear()
    try:
        yield
    finally:
        for own, before in zip(hooks, saved, strict=True):
            own.update(before)


def _transport(model: nn.Module) -> float:
    """Returns the gate of a compressing hook's number format, if all gradients are numbers of it."""
    whole = [grad for grad in grads(model) if grad is not None and grad.dtype == torch.float32]
    for dtype in (torch.bfloat16, torch.float16):
        if whole and all(bool((piece.to(dtype) == piece).all()) for grad in whole for piece in chunks(grad)):
            return GATES[dtype]
    return 0.0


def _average_in_place(training: Training, scale: float) -> None:
    """Averages the ranks' own gradients by plain all-reduces, past DDP's."""
    for p in trained(training.model):
        own = torch.zeros_like(p) if p.grad is None else dense(p.grad).contiguous()
        dist.all_reduce(own)
        p.grad = own / (scale * training.group.world_size)


def _one_process(training: Training, how: _How, scale: float, total: float | None = None) -> None:
    """Computes the first ranks' gradient by this process alone, a mean over `total` units (None: theirs)."""
    weigh, model = training.workload.weight, training.model
    model.zero_grad(set_to_none=True)
    units, guess = 0.0, 0.0
    for rank, sizes in enumerate(training.sizes[:RANKS]):
        for index, n in enumerate(sizes):
            batch = training.samples(n, SEED, rank, index)
            unit = float(n if weigh is None else weigh(batch))
            # The sum of units is known only at the end: until then a guess keeps float16 in its range.
            guess = guess or max(unit, 1.0) / n * training.batch
            share = (1.0 if how.measured == "sum" else unit) / guess
            training.lone_backward(batch, share * scale, how.amp)
            units += unit
    for p in model.parameters():
        if p.grad is not None:
            p.grad *= guess / (total or units) / scale


def affordable(training: Training, seconds: float) -> tuple[Training, str | None]:
    """Returns the step to prove by `seconds` a micro-batch, and why it is smaller than the plan's, if it is.

    If one process takes too long for the samples of a few ranks, a replica takes fewer micro-batches, at
    least two, and then smaller ones. The loss weights of the smaller step are exact too, so that each fault
    of averaging or accumulating shows as in the whole step.
    """
    limit = min(SECONDS[training.options.extent], training.group.limit.total_seconds() / 6)
    most, alone = max(1, int(limit / seconds)), training.sizes[:RANKS]
    if sum(map(len, alone)) <= most:
        return training, None
    short = training.shortened(most // len(alone))
    share = min(1.0, most / sum(map(len, short.sizes[:RANKS])))
    small = short.of_sizes([[max(1, int(n * share)) for n in row] for row in short.sizes])
    return small, f"a smaller step than the plan's {training.batch}, which takes one process too long"


def prove_step(
    training: Training, measured: str, amp: torch.dtype | None, smaller: str | None
) -> list[Proof]:
    """Compares the gradient of a step, and the weights after it, with one process and between ranks."""
    group, model = training.group, training.model
    # The gate is that of the coarsest number format among the parameters.
    formats = {p.dtype for p in trained(model) if p.dtype in GATES}
    coarse = amp or max(formats, key=GATES.__getitem__, default=torch.float32)
    gate = max(GATES[coarse], HOOK_GATES[training.options.hook])
    how = _How(measured, amp, smaller, coarse, gate)
    loss_weights = training.weights(training.micro_batches(SEED))
    model.eval()  # without dropout; batch norm then uses its running statistics
    with float32_as("ieee"):
        scale, broken = _finite_scale(training, how, loss_weights)
        if broken:
            named = group.pulse.named(broken)
            text, likely = f"not finite before the all-reduce on {named}", Cause.NAN_ON_A_RANK.likely(named)
            return [judge_claim("gradient" + how.suffix, Verdict.FAIL, text, likely)]
        proofs = _step(training, how, loss_weights, scale)
    agreed: list[Proof] = group.from_first(proofs, list[Proof])
    return agreed


def _finite_scale(training: Training, how: _How, loss_weights: list[float]) -> tuple[float, list[int]]:
    """Finds a loss scale with finite gradients, left in place, and the ranks without any."""
    model = training.model
    scale = LOSS_SCALE if how.amp == torch.float16 else 1.0
    while True:
        scaler = training.scaler(scale) if how.amp is not None else None
        batches = training.micro_batches(SEED)
        training.backward(batches, loss_weights, sync=False, scaler=scaler, dtype=how.amp)
        own = (grad for grad in grads(model) if grad is not None)
        finite = all(bool(torch.isfinite(piece).all()) for grad in own for piece in chunks(grad))
        broken = [rank for rank, good in enumerate(training.group.gather(finite)) if not good]
        if not broken:
            return scale, []
        model.zero_grad(set_to_none=True)
        if scale <= 1:
            return scale, broken
        scale /= 16  # a scale that saves small gradients may take large ones out of float16's range


def _step(training: Training, how: _How, loss_weights: list[float], scale: float) -> list[Proof]:
    """Takes the reference's step and the real one; rank 0 has all proofs, and keeps the weights for all."""
    group, model = training.group, training.model
    before = copy_to_host(trained(model)) if group.rank == 0 else []
    expected, noise = _take_reference(training, how, scale, before)
    scaler, optimizer = training.scaler(scale) if how.amp is not None else None, training.optimizer()
    training.backward(training.micro_batches(SEED), loss_weights, scaler=scaler, dtype=how.amp)
    if scaler is not None:
        scaler.unscale_(optimizer)
    sums = group.gather(checksum([grad for grad in grads(model) if grad is not None]), tuple[int, int])
    if training.workload.hook is not None:
        how = how._replace(gate=max(how.gate, _transport(model)))
    gradient = _sketched(model)
    if scaler is None:
        training.step(optimizer, None)
    else:
        scaler.step(optimizer)
    after = group.gather(checksum(list(model.parameters())), tuple[int, int])
    optimizer.zero_grad(set_to_none=True)
    proofs = list[Proof]()
    if expected is not None:
        seen = _observed(gradient, model, before)
        put(model, before)
        proof = _gradient(training, Likeness.of(seen.gradient, expected.gradient), noise, how)
        if proof.diagnosis is not None and (apart := training.apart or differing(sums)):
            # Ranks that differ explain any gradient: its factor would name a wrong cause.
            named = group.pulse.named(apart)
            likely = Cause.NEVER_AVERAGED.likely(f"{named}, after the all-reduce")
            if training.apart:
                likely = Cause.OTHER_WEIGHTS.likely(f"{named}, before the step")
            proof = msgspec.structs.replace(proof, diagnosis=likely)
        steady = training.hook is None and how.coarse in (torch.float32, torch.float64)
        proofs += [proof, *(_after(seen, expected, how, exact=steady) if how.amp is None else ())]
    copy_from_first(group, [*model.parameters(), *model.buffers()])
    for name, values in ("gradients", sums), ("weights", after):
        proofs.append(_equal(training, name, how.suffix, values))
    return proofs


def _take_reference(
    training: Training, how: _How, scale: float, before: Sequence[Tensor]
) -> tuple[Observation | None, Likeness | None]:
    """Takes the step of one process, observed by rank 0; clears the ranks' own gradients.

    One process goes through the samples of the first ranks at most. Of more ranks the reference is the plain
    mean of all their own gradients; that of the first ones is compared with the one process.
    """
    group, model, seen, noise = training.group, training.model, None, None
    first = group.rank == 0

    def observed(gradient: Vector) -> Observation | None:
        if how.amp is None:
            training.step(training.optimizer(), None)
        observation = _observed(gradient, model, before)
        put(model, before)
        return observation

    total = None
    if group.world_size > RANKS:
        total = group.sum(sum(training.units(training.micro_batches(SEED))))
        own = torch.from_numpy(_sketched(model)) / (scale * group.world_size)
        whole, part = group.total(torch.stack([own, own * (group.rank < RANKS)])).numpy()
        if how.amp is None:
            _average_in_place(training, scale)
        seen = observed(whole) if first else None
    model.zero_grad(set_to_none=True)
    if first:
        with _without_hooks(model):
            _one_process(training, how, scale, total)
        alone = _sketched(model)
        if total is None:
            seen = observed(alone)
        else:
            noise = Likeness.of(part, alone)
    model.zero_grad(set_to_none=True)
    return seen, noise


def _sketched(model: nn.Module) -> Vector:
    return sketched(grads(model), trained(model))


def _observed(gradient: Vector, model: nn.Module, before: Sequence[Tensor]) -> Observation:
    weights = trained(model)
    return Observation(gradient, sketched(weights, weights), change_of(weights, before))


def _gradient(training: Training, like: Likeness, noise: Likeness | None, how: _How) -> Proof:
    """Judges a gradient by its distance to the reference, and the reference's own to one process."""
    name, gate = "gradient" + how.suffix, how.gate
    error, ratio, residual = like.error, like.ratio, like.residual
    text = f"relative L2 {error:.2g} to one process on {training.batch} samples, {name_of(how.coarse)}"
    values = {}
    if noise is not None:
        ranks, values = (
            training.group.world_size,
            {"relative_l2_to_sum": error, "relative_l2_of_sum": noise.error},
        )
        text = (
            f"relative L2 {error:.2g} to the plain sum over {ranks} ranks on {training.batch} samples, "
            f"and {noise.error:.2g} of that over {RANKS} ranks to one process, {name_of(how.coarse)}"
        )
        # NaN stays NaN, whichever of the two it is.
        error, ratio = float(np.maximum(error, noise.error)), ratio * noise.ratio
        residual = float(np.maximum(residual, noise.residual))
    values = {"relative_l2": error, "ratio": ratio, "residual": residual, "samples": training.batch} | values
    if how.smaller is not None:
        text += f"; {how.smaller}"
    if within(error, gate):
        return pass_claim(name, text, gate, **values)
    hooked = [name for name, p in training.model.named_parameters() if p._backward_hooks]
    if hooked:  # such as for a mask of rows, on purpose
        diagnosis = Cause.GRADIENT_FACTOR.likely(f"{ratio:.4g}×, by a hook on {few(hooked)}")
        verdict = Verdict.FAIL if within(residual, max(10 * gate, 1e-3)) else Verdict.CAUTION
        return judge_claim(name, verdict, text, diagnosis, gate, **values)
    diagnosis = Cause.ANOTHER_SAMPLES.likely("or a loss that is no mean over them")
    if within(residual, max(10 * gate, 1e-3)):
        share = Share(training.group.world_size, max(map(len, training.sizes)), training.micro_batch)
        diagnosis = explain_factor(ratio, share) or Cause.GRADIENT_FACTOR.likely(f"{ratio:.4g}×")
    return judge_claim(name, Verdict.FAIL, text, diagnosis, gate, **values)


def _after(own: Observation, expected: Observation, how: _How, *, exact: bool) -> list[Proof]:
    """Judges the weights after the step, and their change, beside the reference's."""
    whole = Likeness.of(own.weights, expected.weights).error
    update = Likeness.of(own.update, expected.update).error
    # The weights may be off by as much as the update may: Adam's first step divides each gradient by itself.
    gate = max(how.gate, UPDATE_GATE * whole / update if 0 < update < math.inf else 0.0)
    verdict = Verdict.PASS if within(whole, gate) else Verdict.FAIL
    text = f"relative L2 {whole:.2g} after the step"
    likely = Cause.OTHER_UPDATE.likely("or it saw another gradient")
    weights = judge_claim("weights" + how.suffix, verdict, text, likely, gate, relative_l2=whole)
    verdict, text = Verdict.PASS if within(update, UPDATE_GATE) else Verdict.FAIL, f"relative L2 {update:.2g}"
    if not exact:
        verdict, text = Verdict.UNCHECKED, f"{text}; gradients or weights are rounded, which Adam magnifies"
    likely, name = Cause.OTHER_UPDATE.likely(), "update" + how.suffix
    return [weights, judge_claim(name, verdict, text, likely, UPDATE_GATE, relative_l2=update)]


def _equal(training: Training, name: str, suffix: str, values: list[Any]) -> Proof:
    start = training.apart if name == "weights" else []
    off, name = start or differing(values), f"equal_{name}{suffix}"
    if not off:
        return pass_claim(name, f"the same bits on {training.group.world_size} ranks", 0)
    named = training.group.pulse.named(off)
    text = f"{name.split('_')[1]} differ on {named}{', before the first step' if start else ''}"
    cause = Cause.OTHER_WEIGHTS if name.startswith("equal_weights") else Cause.NEVER_AVERAGED
    return judge_claim(name, Verdict.FAIL, text, cause.likely(named), 0)


def prove(trial: Trial) -> list[Proof]:
    """Proves the step in full precision and under the plan's autocast, as far as there is room."""
    formats = dict.fromkeys((None, trial.training.dtype))
    return [proof for amp in formats for proof in _prove_fitting(trial.training, trial.reduction, amp)]


def _prove_fitting(training: Training, measured: str, amp: torch.dtype | None) -> list[Proof]:
    """Proves a step of as many and as large micro-batches as time and room in this format allow."""
    name, planned = "gradient" if amp is None else f"gradient_{name_of(amp)}", training.micro_batch
    own = parameter_bytes(training.model) / 2**30, free_on_host() / 2**30  # the weights before the step
    needed, free = training.group.from_first(own)
    if needed > free:
        text = f"on rank 0's host: no room ({needed:.3g} GiB needed, {free:.3g} GiB free)"
        return [skip_claim(name, text)]
    fitting = _fitting(training, amp)
    if isinstance(fitting, str):
        return [skip_claim(name, fitting)]
    most, seconds = fitting
    if most < planned:
        training = training.of_sizes([[min(n, most) for n in row] for row in training.sizes])
    training, smaller = affordable(training, seconds)
    if most < planned:
        smaller = f"micro-batches of at most {most} samples, since larger ones do not fit in this proof"
    return prove_step(training, measured, amp, smaller)


def _fitting(training: Training, amp: torch.dtype | None) -> tuple[int, float] | str:
    """Finds the largest micro-batch with a gradient on all ranks, its seconds, or why there is none."""
    group, n = training.group, training.micro_batch
    training.model.eval()
    while True:
        fault, took = None, 0.0
        try:
            with float32_as("ieee"):
                took = training.lone_seconds(n, SEED, amp)
        except (RuntimeError, MemoryError) as error:
            fault = "" if out_of_memory(error) else first_line(error)
        training.model.zero_grad(set_to_none=True)
        trials = group.gather((fault, took))
        faults = [fault for fault, _ in trials if fault is not None]
        if not faults:
            return n, max(seconds for _, seconds in trials)
        if any(faults):
            return f"the workload cannot be computed in {name_of(amp)}: {next(filter(None, faults))}"
        if n == 1:
            return f"not even one sample fits in {name_of(amp)} and eval mode"
        n //= 2


NAMES = ("gradient", "weights", "update", "equal_gradients", "equal_weights")
CLAIM = Claim(phase="step", names=NAMES, prove=prove)
