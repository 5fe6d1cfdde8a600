"""The workload by itself: it runs and compiles, its loss is as declared, its learning rate the plan's.

And its samples may be coupled: the gradient of a mean over samples is the mean of their gradients, however
the batch is cut. With batch norm, in-batch negatives or a balance loss of experts it depends on the cut.
"""

import contextlib
import math
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, TypeVar

import torch
from torch import nn
from torch.nn.modules.dropout import _DropoutNd

from isobatch.equivalence import clock
from isobatch.equivalence.groups import differing_setting, planned_settings
from isobatch.equivalence.laws import Cause
from isobatch.equivalence.likeness import Likeness
from isobatch.equivalence.observation import sketched
from isobatch.equivalence.records import Vector
from isobatch.equivalence.tensors import (
    REDUCTION_GATE,
    float32_as,
    part,
    reduction_of,
    tensors_in,
    ulp,
)
from isobatch.errors import InputError
from isobatch.limits import within
from isobatch.training.lr import PlanLR
from isobatch.validate.report import Proof, Verdict, judge_claim, pass_claim, skip_claim
from isobatch.validate.training import Training, grads, trained
from isobatch.validate.trial import Claim, Trial
from isobatch.validate.workload import fault_of_loss, out_of_memory, user_code
from isobatch.words import few

MAX_SAMPLES = 8  # the loss is tried on
COMPILE_SECONDS = 900.0  # in a phase of its own, so that compiling takes no other phase over its limit
SEED = 20
ROUNDED_GATE = 0.02  # for a loss rounded to 8 bits
COUPLING_GATE = (
    1e-4  # in float32: rounding stays at a tenth of it, a balance loss of 0.01 is three times above
)
T = TypeVar("T")
MAX_LR_STEPS = {"quick": 2_000, "usual": 10_000, "full": 1_000_000}


def prove_runs(trial: Trial) -> list[Proof]:
    """Refuses, on all ranks alike, a workload without a computable loss: runs it once on some samples."""
    training, fault, finite = trial.training, None, True
    with training.weights_kept():
        try:
            finite = _try(training)
        except InputError as error:
            fault = error
        except (RuntimeError, MemoryError) as error:
            if not out_of_memory(error):  # another claim asks what fits
                raise
        finally:
            training.model.zero_grad(set_to_none=True)
        own = None if fault is None else (fault.message, fault.field)
        faults_by_rank, good = zip(*training.group.gather((own, finite)), strict=True)
        if first_fault := next(filter(None, faults_by_rank), None):
            raise fault or InputError(first_fault[0], field=first_fault[1])
        if not any(good):
            text = "the loss is not finite on any rank, with the model's initial weights"
            raise InputError(text, field="workload")
    return []


def _try(training: Training) -> bool:
    """Runs forward and backward; returns whether the loss is finite."""
    workload, rank = training.workload, training.group.rank
    training.model.train()
    with user_code("Workload.batch"):
        batch, further = (training.samples(sample_count(training), 0, rank + shift, 0) for shift in (0, 1))
        _refuse_other_rows(training, batch)
    with user_code("slicing the batch by sample"):
        part(batch, 0, 1)
    pairs = [*zip(tensors_in(batch), tensors_in(further), strict=False)]
    if pairs and all(torch.equal(first, second) for first, second in pairs):
        text = "Workload.batch gives the same samples for every state of its generator, so that all ranks"
        text += " train on the same data: draw them with generator=generator"
        raise InputError(text, field="workload")
    with user_code("Workload.loss"):
        loss: Any = training.loss(training.model, batch, training.dtype)
    if fault := fault_of_loss(loss):
        raise InputError(f"Workload.loss must return a {fault}", field="workload")
    loss.backward()
    unused = [name for name, p in training.model.named_parameters() if p.requires_grad and p.grad is None]
    if unused and not (workload.ddp or {}).get("find_unused_parameters"):
        more = f" and {len(unused) - 3} more" if len(unused) > 3 else ""
        raise InputError(
            f"the loss does not use {', '.join(unused[:3])}{more}, and DDP waits for every parameter's "
            "gradient: set requires_grad=False on what is not trained, or "
            'Workload(ddp={"find_unused_parameters": True})',
            field="workload",
        )
    if workload.weight is not None:
        with user_code("Workload.weight"):
            float(workload.weight(batch))
    return bool(torch.isfinite(loss.detach()))


def _row_count(batch: Any) -> int:
    return next((len(tensor) for tensor in tensors_in(batch) if tensor.dim()), 0)


def _refuse_other_rows(training: Training, batch: Any) -> None:
    """Refuses a batch function with another number of rows than asked for, such as one less."""
    count, rows = sample_count(training), _row_count(batch)
    if rows in (0, count):  # 0: the batch shows no tensor
        return
    twice = _row_count(training.samples(2 * count, 0, training.group.rank, 0))
    if twice - rows == count:  # of packed rows the number is another thing
        text = (
            f"Workload.batch was asked for {count} samples and gave {rows}: return as many as it is asked for"
        )
        raise InputError(text, field="workload")


def prove_compiles(trial: Trial) -> list[Proof]:
    """Compiles the step, in up to minutes; later phases may compile again, and get as much more time."""
    group, training = trial.group, trial.training
    group.allow(COMPILE_SECONDS)
    begun = time.monotonic()
    with training.weights_kept():
        try:
            training.lone_step(training.micro_batch)
        except (RuntimeError, MemoryError) as error:
            if not out_of_memory(error):  # the next claim asks whether it fits
                raise
    training.model.zero_grad(set_to_none=True)
    trial.compile_seconds = max(group.slowest([time.monotonic() - begun]))
    return []


def sample_count(training: Training) -> int:
    """Counts the samples to try the workload on: a few, at least two."""
    return max(2, min(MAX_SAMPLES, training.micro_batch))


class CutBatch(NamedTuple):
    """A batch, its two unequal parts, and the units under the loss of each part."""

    whole: Any
    parts: list[Any]
    units: list[float]


def cut_batch(training: Training) -> CutBatch:
    """Makes a batch and cuts it in two, the same on all ranks."""
    count, weigh = sample_count(training), training.workload.weight
    batch = training.samples(count, SEED, 0, 0)
    cut = count // 2 if count == 2 else count // 2 - 1
    parts = [part(batch, 0, cut), part(batch, cut, count)]
    units = [float(cut), float(count - cut)] if weigh is None else [float(weigh(piece)) for piece in parts]
    return CutBatch(batch, parts, units)


def compute_exactly(
    training: Training, compute: Callable[[torch.dtype | None], T]
) -> tuple[T, torch.dtype | None]:
    """Computes in float32 (None), or in the training's own format if it must be; returns both."""
    with float32_as("ieee"):
        try:
            return compute(None), None
        except RuntimeError:
            if training.dtype is None:
                raise
        return compute(training.dtype), training.dtype


def reduction(training: Training) -> str:
    """Classifies the loss by cutting a batch in two: "mean", "sum" or "neither"."""
    batch, model = cut_batch(training), training.model.eval()

    @torch.no_grad()
    def losses(dtype: torch.dtype | None) -> list[float]:
        return [float(training.loss(model, piece, dtype)) for piece in (batch.whole, *batch.parts)]

    (whole, first, second), dtype = compute_exactly(training, losses)
    gate = REDUCTION_GATE if dtype is None else ROUNDED_GATE
    return reduction_of(whole, (first, second), (batch.units[0], batch.units[1]), gate)


def judge_loss(measured: str, declared: str) -> Proof:
    """Judges whether the loss is as declared."""
    if measured == declared:
        return pass_claim("loss", f"a {measured} over the batch, as declared")
    verdict = Verdict.CAUTION if measured == "neither" else Verdict.FAIL
    cause = {"sum": Cause.SUMMED_LOSS, "mean": Cause.MEAN_LOSS}.get(measured, Cause.LOSS_WEIGHTED)
    observed = "neither a mean nor a sum" if measured == "neither" else f"a {measured}"
    return judge_claim("loss", verdict, f"{observed}, declared a {declared}", cause.likely())


def prove_loss(trial: Trial) -> list[Proof]:
    """Measures the loss's reduction by cutting a batch in two."""
    trial.reduction = trial.group.from_first(reduction(trial.training))
    return [judge_loss(trial.reduction, trial.workload.reduction)]


def coupling(training: Training, reduction: str) -> tuple[float, float]:
    """Measures the relative L2 distance of a gradient in two parts to the one-pass gradient, and its gate."""
    batch = cut_batch(training)
    shares = [1.0, 1.0] if reduction == "sum" else [unit / sum(batch.units) for unit in batch.units]

    def distance(dtype: torch.dtype | None) -> float:
        with _without_randomness(training.model):
            whole, again = (_gradient(training, [batch.whole], [1.0], dtype) for _ in range(2))
            if not within(Likeness.of(again, whole).error, _coupling_gate(dtype)):
                training.model.eval()  # the model has randomness of its own, such as functional dropout
                whole = _gradient(training, [batch.whole], [1.0], dtype)
            return Likeness.of(_gradient(training, batch.parts, shares, dtype), whole).error

    error, dtype = compute_exactly(training, distance)
    return error, _coupling_gate(dtype)


def _coupling_gate(dtype: torch.dtype | None) -> float:
    return COUPLING_GATE if dtype is None else ROUNDED_GATE


def _gradient(
    training: Training, batches: list[Any], shares: list[float], dtype: torch.dtype | None
) -> Vector:
    training.model.zero_grad(set_to_none=True)
    for batch, share in zip(batches, shares, strict=True):
        training.lone_backward(batch, share, dtype)
    gradient = sketched(grads(training.model), trained(training.model))
    training.model.zero_grad(set_to_none=True)
    return gradient


@contextlib.contextmanager
def _without_randomness(model: nn.Module) -> Iterator[None]:
    """Trains without dropout: a balance loss may exist in training mode alone. Puts buffers back."""
    model.train()
    buffers = {name: value.clone() for name, value in model.named_buffers()}
    for module in model.modules():
        if isinstance(module, _DropoutNd):
            module.eval()
    try:
        yield
    finally:
        for name, value in model.named_buffers():
            value.copy_(buffers[name])


def prove_coupling(trial: Trial) -> list[Proof]:
    """Compares one pass with two; a plan with the tuned micro-batch passes anyway."""
    training, plan, name = trial.training, trial.plan, "coupling"
    if training.micro_batch == 1:
        return [skip_claim(name, "a micro-batch of one sample has nothing to couple")]
    if trial.reduction == "neither":
        return [skip_claim(name, "the loss is neither a mean nor a sum over samples")]
    try:
        error, gate = coupling(training, trial.reduction)
    except (RuntimeError, MemoryError) as failure:
        if not out_of_memory(failure):
            raise
        error = gate = math.nan
    error = training.group.from_first(error)  # the same samples on all ranks
    if not math.isfinite(error):
        return [skip_claim(name, "no room for a second gradient, or a gradient that is not finite")]
    count = sample_count(training)
    text = f"the gradient of {count} samples in one pass differs by {error:.2g} from that in two"
    values = {"relative_l2": error, "samples": count}
    if within(error, gate):
        return [pass_claim(name, text, gate, **values)]
    tuned = plan.recipe.micro_batch
    if tuned == plan.micro_batch:
        return [pass_claim(name, f"{text}: coupled; the micro-batch is the tuned one", gate, **values)]
    text += f": micro-batch {plan.micro_batch}, tuned at {tuned or 'an unknown one'}"
    return [judge_claim(name, Verdict.CAUTION, text, Cause.COUPLED_SAMPLES.likely(), gate, **values)]


def prove_optimizer(trial: Trial) -> list[Proof]:
    """Compares the settings of the real optimizer with the plan's."""
    optimizer, settings = trial.training.optimizer(), planned_settings(trial.plan)
    if differs := differing_setting(optimizer, trial.plan.recipe.optimizer, settings):
        name, text = differs
        return [judge_claim("optimizer", Verdict.FAIL, text, Cause.ANOTHER_SETTING.likely(name))]
    named = [name for name, value in settings.items() if value is not None]
    text = f"{type(optimizer).__name__}{' with the planned ' if named else ''}{few(named)}"
    return [pass_claim("optimizer", text), *_frozen(trial.training.model)]


def _frozen(model: nn.Module) -> list[Proof]:
    """Lists parameters without training: the plan does not say what trains."""
    names = [name for name, p in model.named_parameters() if not p.requires_grad]
    if not names:
        return []
    count = sum(1 for _ in model.parameters())
    text = f"whether {len(names)} of {count} parameters are meant not to train, such as {names[0]}"
    return [skip_claim("frozen", f"{text}: requires_grad is False")]


def prove_learning_rate(trial: Trial) -> list[Proof]:
    """Compares the real optimizer's learning rate under the real scheduler with the plan's, step by step."""
    plan, name = trial.plan, "learning_rate"
    if plan.total_steps is None or plan.lr is None:
        return [skip_claim(name, "the recipe has no duration")]
    optimizer = trial.workload.optimizer([nn.Parameter(torch.zeros(2, 2, device=trial.group.device))])
    started, unit = float(optimizer.param_groups[0]["lr"]), ulp(optimizer.param_groups[0]["lr"])
    own = trial.workload.scheduler
    scheduler = own(optimizer) if own is not None else PlanLR(optimizer, plan)
    steps = min(MAX_LR_STEPS[trial.options.extent], plan.total_steps)
    observed = []
    for _ in range(steps):
        observed.append(float(optimizer.param_groups[0]["lr"]))
        optimizer.step()
        scheduler.step()
    fault = clock.learning_rate(
        dict(enumerate(observed)),
        plan.lr_at,
        peak=plan.lr,
        pace=clock.Pace(plan.accumulation or 1, plan.data_parallel or 1, plan.steps_per_epoch),
        initial=started if own is not None else None,
        ulp=unit,
    )
    worst = max(abs(lr - plan.lr_at(step)) for step, lr in enumerate(observed))
    values, gate = {"steps": steps, "worst_difference": worst}, clock.ULPS * unit * plan.lr
    if fault is not None:
        step, diagnosis = fault
        text = f"{observed[step]:.6g} at step {step}, {plan.lr_at(step):.6g} planned"
        return [judge_claim(name, Verdict.FAIL, text, diagnosis, gate, **values)]
    if own is None and not clock.close(started, plan.lr, plan.lr, unit):
        text = f"the optimizer is made with {started:g}, and the workload names no scheduler that sets"
        text += f" the plan's {plan.lr:g}"
        likely = Cause.ANOTHER_LR.likely(f"{started / plan.lr:.4g}× the plan's")
        return [judge_claim(name, Verdict.FAIL, text, likely, gate, **values)]
    where = "all" if steps == plan.total_steps else f"the first {steps} of"
    text = f"as planned at {where} {plan.total_steps} steps"
    if own is None:
        text += ", by PlanLR: the workload names no scheduler of its own"
    return [pass_claim(name, text, gate, **values)]


TRY = Claim(phase="workload", names=(), prove=prove_runs)
COMPILE = Claim(phase="compile", names=(), prove=prove_compiles, enabled=lambda options: options.compile)
LOSS = Claim(phase="loss", names=("loss",), prove=prove_loss)
COUPLING = Claim(phase="coupling", names=("coupling",), prove=prove_coupling)
OPTIMIZER = Claim(phase="optimizer", names=("optimizer", "frozen"), prove=prove_optimizer)
LEARNING_RATE = Claim(phase="learning rate", names=("learning_rate",), prove=prove_learning_rate)
