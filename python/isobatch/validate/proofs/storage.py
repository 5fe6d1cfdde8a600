"""What a training does beside its steps, where the workload says how: saving checkpoints, and loading samples."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

from isobatch.diagnosis.batches import size
from isobatch.diagnosis.causes import Cause
from isobatch.errors import InputError
from isobatch.validate.options import Options
from isobatch.validate.proofs.claim import Claim
from isobatch.validate.ranks.group import Group
from isobatch.validate.report.verdict import Proof, Verdict, unchecked
from isobatch.validate.step.trying import user_code
from isobatch.validate.trial import Trial

SECONDS = {"quick": 3.0, "usual": 10.0, "full": 30.0}
LIMIT_SECONDS = 600.0
clock = time.monotonic


def judge_save(seconds: float, every_steps: int | None, step_seconds: float, options: Options) -> Proof:
    """Whether saving takes a large part of the run.

    Args:
        seconds: the slowest rank's, of one checkpoint.
        every_steps: between two checkpoints, as planned.
    """
    text, values = f"a checkpoint takes {seconds:.3g} s", {"save_seconds": seconds}
    if every_steps is None:
        return unchecked("checkpoint", f"{text}; the recipe has no save_every to compare with", **values)
    share = seconds / (seconds + every_steps * step_seconds)
    verdict = Verdict.by(share, options)
    return Proof(
        name="checkpoint",
        verdict=verdict,
        text=f"{text}, every {every_steps} steps of {step_seconds:.3g} s: {share:.1%} of the run where the steps wait for it",
        diagnosis=None if verdict is Verdict.PASS else Cause.SLOW_CHECKPOINT.likely(),
        gate=options.caution,
        values={**values, "share": share},
    )


def judge_loader(loaded: float, taken: float, options: Options) -> Proof:
    """Whether the loader keeps up with the step, in samples a second of the slowest rank."""
    short = 1 - loaded / taken
    verdict = Verdict.by(short, options)
    return Proof(
        name="loader",
        verdict=verdict,
        text=f"{loaded:.4g} samples/s a rank, where a step takes {taken:.4g}",
        diagnosis=None if verdict is Verdict.PASS else Cause.SLOW_LOADER.likely(),
        gate=options.caution,
        values={"loaded_samples_per_second": loaded, "needed_samples_per_second": taken},
    )


def samples_per_second(batches: Iterable[Any], seconds: float) -> float:
    """How fast an iterable gives samples, after its first batch, which waits for its workers to start. An end before the time is over is
    taken as it is."""
    coming = iter(batches)
    next(coming, None)
    begun, count = clock(), 0
    for batch in coming:
        count += size(batch)
        if clock() - begun >= seconds:
            break
    passed = clock() - begun
    return count / passed if count and passed > 0 else 0.0


def _save(trial: Trial, save: Callable[..., Any]) -> Proof:
    group, training, took, fault = trial.group, trial.training, 0.0, None
    optimizer = training.still_optimizer()
    group.barrier()
    begun = clock()
    try:
        with user_code("Workload.save"):
            save(training.ddp, optimizer)
    except InputError as error:
        fault = error
    took = clock() - begun
    _together(group, fault)
    slowest = max(group.slowest([took]))
    return judge_save(slowest, trial.plan.save_steps, trial.step.planned_step_seconds, trial.options)


def _load(trial: Trial, loader: Callable[[int], Iterable[Any]]) -> Proof:
    group, training, loaded, fault = trial.group, trial.training, 0.0, None
    group.barrier()
    try:
        with user_code("Workload.loader"):
            loaded = samples_per_second(loader(training.micro_batch), SECONDS[trial.options.extent])
    except InputError as error:
        fault = error
    _together(group, fault)
    slowest = -max(group.slowest([-loaded]))
    own = training.batch / group.world_size
    return judge_loader(slowest, own / trial.step.planned_step_seconds, trial.options)


def _together(group: Group, fault: InputError | None) -> None:
    """Ends the validation on all ranks alike where the user's code failed on one."""
    said = next(
        (text for text in group.gather(None if fault is None else str(fault)) if text is not None), None
    )
    if said is not None:
        raise fault or InputError(said, field="workload")


def prove(trial: Trial) -> list[Proof]:
    """Only what the workload has; all ranks do it at once, as in the training."""
    workload = trial.workload
    if workload.save is None and workload.loader is None:
        return []
    trial.group.allow(LIMIT_SECONDS)
    return [
        *([] if workload.save is None else [_save(trial, workload.save)]),
        *([] if workload.loader is None else [_load(trial, workload.loader)]),
    ]


CLAIM = Claim(phase="storage", names=("checkpoint", "loader"), prove=prove)
