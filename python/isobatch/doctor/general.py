"""What holds for every tool: the batch, the rule of the learning rate, the lengths, uneven steps."""

from __future__ import annotations

import math
from collections.abc import Iterator

from isobatch import _core
from isobatch.doctor.finding import Case, Finding
from isobatch.reason import Reason
from isobatch.words import count, figure, real

_SOURCES = {name: source for name, _, _, source in _core.rules()}


def check(case: Case) -> Iterator[Finding]:
    """All of them."""
    yield from _batch(case)
    yield from _rule(case)
    yield from _lengths(case)
    yield from _uneven(case)


def _batch(case: Case) -> Iterator[Finding]:
    if case.growth == 1:
        return
    plan = case.plan
    change = ""
    if plan is not None:
        by_total = "global" in case.key("accumulation")  # the tool works the accumulation out
        parts = plan.effective_batch if by_total else plan.accumulation
        change = "; ".join((case.line("batch_per_gpu", plan.micro_batch), case.line("accumulation", parts)))
    yield Finding(
        f"a step has {count(case.batch or 0)} samples, {figure(case.growth)} × the {count(case.tuned or 0)} that it was tuned with",
        f"{case.key('batch_per_gpu')} counts per GPU, and the GPUs changed",
        "torch, DistributedDataParallel: each process has its own loader",
        change or "no split of the tuned batch fits these GPUs: isobatch plan --from lists what would",
    )


def _rule(case: Case) -> Iterator[Finding]:
    """The learning rate stays as it is in the file, whatever the batch does."""
    lr, name = case.fields.get("lr"), case.fields.get("optimizer", "adamw")
    if case.growth == 1 or lr is None:
        return
    rule, factor = ("linear", case.growth) if name == "sgd" else ("sqrt", case.growth**0.5)
    yield Finding(
        f"the learning rate {real(lr)} follows no rule: the batch is {figure(case.growth)} × the tuned one, the learning rate the same",
        f"nothing rescales it; for {name} the usual rule is {rule}: {real(lr * factor)} at this batch. With the tuned batch it stays",
        _SOURCES[rule],
        case.line("lr", real(lr * factor)) + "  (only if the batch is to grow)",
    )


def _lengths(case: Case) -> Iterator[Finding]:
    """A number of steps is a number of samples times the batch."""
    if case.growth == 1:
        return
    # As a plan rounds them: the run takes a step for what is left, the warmup ends at the nearest.
    for field, what, whole in (("duration", "the run", math.ceil), ("warmup", "the warmup", _nearest)):
        length = case.fields.get(field)
        counted_anew = case.key(field) == "num_train_epochs"  # a checkpoint's steps, which its epochs make
        if isinstance(length, str) and length.endswith("st") and not counted_anew:
            steps = float(length.removesuffix("st"))
            yield Finding(
                f"{what} takes {figure(case.growth)} × the samples of the tuned one",
                f"{case.key(field)} is {count(steps)} steps, and a step has more or fewer samples now",
                "samples = steps × batch",
                case.line(field, count(max(1, whole(round(steps / case.growth, 6)))).replace(",", ""))
                + "  (for the tuned samples, if the batch moves)",
            )


def _nearest(steps: float) -> int:
    return math.floor(steps + 0.5)


def _uneven(case: Case) -> Iterator[Finding]:
    plan = case.plan
    if plan is not None and Reason.UNEVEN_TAIL in plan.reasons:
        yield Finding(
            "the last step of an epoch is smaller, and the mean over its micro-batches weighs its samples more",
            Reason.UNEVEN_TAIL.text,
            Reason.UNEVEN_TAIL.source,
            "drop the incomplete batch, or multiply each micro-batch's loss by plan.loss_weights(rank)",
        )
    if plan is not None and Reason.PADDED in plan.reasons:
        yield Finding(
            f"an epoch repeats {count(plan.padded_samples or 0)} samples",
            Reason.PADDED.text,
            Reason.PADDED.source
            or "torch DistributedSampler, which repeats samples so that each rank has as many",
            "drop the incomplete batch, or leave it: the plan counts them",
        )


def stops(case: Case, source: str) -> Iterator[Finding]:
    """A global batch that the GPUs must divide."""
    batch, replicas = case.fields.get("effective_batch"), case.replicas
    micro = case.fields.get("micro_batch") or case.fields.get("batch_per_gpu")
    if batch and micro and replicas and batch % (micro * replicas):
        yield Finding(
            f"the run stops: {count(batch)} samples are no multiple of {micro} × {replicas} replicas",
            f"{case.key('effective_batch')} must be a multiple of the micro-batch times the replicas",
            source,
            "isobatch plan --from lists the micro-batches and batches that fit",
        )
