"""The soak: whether the step slows down over minutes, and whether the same step gives the same bits each time (`--soak MINUTES`)."""

from __future__ import annotations

from isobatch.diagnosis.causes import Cause
from isobatch.validate.host import clocks
from isobatch.validate.measure import soak, timing
from isobatch.validate.options import Options
from isobatch.validate.proofs.claim import Claim
from isobatch.validate.proofs.host import place
from isobatch.validate.ranks.facts import few
from isobatch.validate.ranks.group import Group
from isobatch.validate.report.figures import Soak
from isobatch.validate.report.verdict import Proof, Verdict, unchecked
from isobatch.validate.trial import Trial

SHORT = 9
"""Blocks, below which a drift says nothing."""


def judge_bits(group: Group, found: Soak) -> Proof:
    """Whether the same step gave the same bits; the ranks that had others are named with their GPU."""
    values = {"repeats": found.repeats, "differing": found.differing}
    if not found.deterministic:
        text = "this step's gradients have other bits each time on most ranks, also with torch's deterministic kernels"
        return unchecked("same_bits", text, **values)
    bad = [rank for rank, count in enumerate(found.differing) if count]
    if not bad and found.averaged_differing:
        return Proof(
            name="same_bits",
            verdict=Verdict.CAUTION,
            text=f"all ranks' own gradients had the same bits {found.repeats} times, and their average others "
            f"{found.averaged_differing} times",
            diagnosis=Cause.WRONG_SUMS.likely("or an all-reduce whose order varies"),
            gate=0,
            values=values,
        )
    if not bad:
        text = f"the same step gave the same bits {found.repeats} times on {group.world_size} ranks"
        if found.averaged_differing is None:
            text += ", before the all-reduce: that has another order each time"
        return Proof(name="same_bits", verdict=Verdict.PASS, text=text, gate=0, values=values)
    named = few([f"{place(group, rank)} {found.differing[rank]} of {found.repeats} times" for rank in bad])
    return Proof(
        name="same_bits",
        verdict=Verdict.FAIL,
        text=f"the same step gave other bits: {named}",
        diagnosis=Cause.SILENT_CORRUPTION.likely(few([place(group, rank) for rank in bad])),
        gate=0,
        values=values,
    )


def judge_drift(group: Group, found: Soak, options: Options) -> Proof:
    """Whether steps have become slower."""
    slowest = max(range(len(found.rank_drift)), key=lambda rank: found.rank_drift[rank])
    values = {"drift": found.drift, "steps": found.steps, "rank_drift": found.rank_drift}
    text = (
        f"{found.steps} steps in {found.minutes:g} min, {found.drift:+.1%} from the first third to the last"
    )
    if len(found.block_seconds) < SHORT:
        return unchecked("drift", f"{text}; too few blocks of steps to tell", **values)
    if found.drift <= options.caution:
        return Proof(name="drift", verdict=Verdict.PASS, text=text, gate=options.caution, values=values)
    clock = found.clock_drift[slowest]
    text += f"; most on {place(group, slowest)}, its own part {found.rank_drift[slowest]:+.1%}"
    text += "" if clock is None else f", its clock {clock:+.1%}"
    if timing.spread(found.block_seconds) > found.drift:
        cause, verdict = Cause.NOISY_HOST.likely(), Verdict.INCONCLUSIVE
    else:
        cause, verdict = Cause.STEP_DRIFTS.likely(place(group, slowest)), Verdict.by(found.drift, options)
    return Proof(
        name="drift", verdict=verdict, text=text, diagnosis=cause, gate=options.caution, values=values
    )


def prove(trial: Trial) -> list[Proof]:
    """The plan's step with all its micro-batches, for as long as was asked for."""
    group, training, board = trial.group, trial.training, trial.board

    def megahertz() -> int | None:
        return None if isinstance(board, str) else clocks.sample(board).sm_clock_mhz

    with training.weights_kept():
        found = soak.measure(training, timing.Works(training), trial.options.soak_minutes, megahertz)
    trial.add(soak=found)
    return [judge_bits(group, found), judge_drift(group, found, trial.options)]


CLAIM = Claim(
    phase="soak", names=("same_bits", "drift"), prove=prove, wanted=lambda options: options.soak_minutes > 0
)
