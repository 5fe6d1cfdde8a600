"""The step's time and memory against their forecasts, and whether a rank is slower than the others."""

from __future__ import annotations

import math

from isobatch.diagnosis.causes import Cause
from isobatch.validate.measure import timing
from isobatch.validate.measure.enough import uncertainty
from isobatch.validate.proofs import stragglers
from isobatch.validate.proofs.claim import Claim
from isobatch.validate.report.figures import Step
from isobatch.validate.report.record import measurements
from isobatch.validate.report.verdict import Proof, Verdict, unchecked
from isobatch.validate.step.training import Training
from isobatch.validate.trial import Trial


def _foreign(training: Training) -> str | None:
    """Why a forecast says nothing about what was measured; None where it does."""
    if training.group.world_size != training.plan.data_parallel:
        return f"rehearsal {training.group.world_size}/{training.plan.data_parallel}"
    if training.group.emulated:
        return "emulated, several ranks on a GPU: function only, not performance"
    return None


def _forecast(training: Training, given: float | None, planned: float | None) -> float | None:
    """What was given as an option, else the plan's own forecast: that is of the user's model, not of a stand-in."""
    return given if given is not None or training.workload.stand_in else planned


def _expected(training: Training) -> float | None:
    return _forecast(training, training.options.step_seconds, training.plan.step_seconds)


def prove_time(training: Training, step: Step) -> Proof:
    """The step's time against its forecast."""
    options, expected = training.options, _expected(training)
    sure = uncertainty(step.sync_seconds)
    known = f" known to ± {sure:.1%}" if math.isfinite(sure) else ""
    text = (
        f"{step.planned_step_seconds:.4g} s a step, {step.samples_per_second:.4g} samples/s, median of "
        f"{len(step.sync_seconds)} steps{known}, spread {step.spread:.0%}"
    )
    if step.accumulation < step.planned_accumulation:
        text += f" ({step.accumulation} of {step.planned_accumulation} micro-batches timed, the others by arithmetic)"
    values = {"step_seconds": step.planned_step_seconds, "spread": step.spread}
    if math.isfinite(sure):
        values["median_uncertainty"] = sure
    why = _foreign(training) or (None if expected else "no forecast of this workload (--step-seconds)")
    if why is not None or expected is None:
        return unchecked("step_time", f"{text}; {why}", **values)
    off = step.planned_step_seconds / expected - 1
    text += f", {expected:.4g} s forecast ({off:+.0%})"
    noise = max(step.spread, sure if math.isfinite(sure) else 0.0)
    if abs(off) > options.caution and noise > abs(off) - options.caution:
        return Proof(
            name="step_time",
            verdict=Verdict.INCONCLUSIVE,
            text=text,
            diagnosis=Cause.NOISY_HOST.likely(),
            gate=options.caution,
            values=values,
        )
    verdict = Verdict.by(abs(off), options)
    cause = Cause.SLOWER_STEP if off > 0 else Cause.FASTER_STEP
    diagnosis = None if verdict is Verdict.PASS else cause.likely()
    return Proof(
        name="step_time", verdict=verdict, text=text, diagnosis=diagnosis, gate=options.caution, values=values
    )


def prove_memory(training: Training, peak: timing.Peak) -> Proof:
    """The peak memory against its forecast; and what the GPU itself has left."""
    options = training.options
    expected = _forecast(training, options.memory_gib, training.plan.memory_gib)
    gib = peak.bytes / 2**30
    text = f"{gib:.3g} GiB ({peak.kind}) at micro-batch {training.micro_batch}"
    values = {"peak_memory_bytes": peak.bytes}
    if peak.left is not None:
        text += f", {peak.left / 2**30:.3g} GiB of the GPU left"
        values["left_bytes"] = peak.left
    if expected is None:
        return Proof(
            name="memory",
            verdict=Verdict.PASS,
            text=f"fits: {text}; no forecast of this workload (--memory-gib)",
            values=values,
        )
    off = gib / expected - 1
    verdict = Verdict.by(off, options)
    return Proof(
        name="memory",
        verdict=verdict,
        text=f"{text}, {expected:.3g} GiB forecast ({off:+.0%})",
        diagnosis=None if verdict is Verdict.PASS else Cause.MORE_MEMORY.likely(),
        gate=options.caution,
        values=values,
    )


def prove(trial: Trial) -> list[Proof]:
    """Times the step, and each rank's own part of it."""
    group, table = trial.group, trial.allreduce.table
    judged = _expected(trial.timed) is not None and _foreign(trial.timed) is None
    step, peak, works = timing.measure(
        trial.timed, trial.training, table, trial.buckets, trial.largest, judged=judged
    )
    trial.step = step
    trial.measurements = measurements(trial.machine, step, trial.allreduce)
    trial.add(step=step, measurements=trial.measurements)
    seconds = timing.window_seconds(trial.options.extent)
    works.prepare()
    slow, _ = stragglers.prove(group, works.alone_again, seconds, "local_step", "the local step")
    return [slow, prove_time(trial.timed, step), prove_memory(trial.timed, peak)]


CLAIM = Claim(phase="step time", names=("local_step", "step_time", "memory"), prove=prove)
