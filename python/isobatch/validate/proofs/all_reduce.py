"""The all-reduce: every sum right, and the bandwidth against what was expected."""

from __future__ import annotations

from isobatch.diagnosis.causes import Cause
from isobatch.planning.plan import Plan
from isobatch.validate.measure import allreduce
from isobatch.validate.options import Options
from isobatch.validate.proofs.claim import Claim
from isobatch.validate.ranks.group import Group
from isobatch.validate.report.figures import AllReduceRow
from isobatch.validate.report.verdict import Proof, Verdict, unchecked
from isobatch.validate.trial import Trial


def _correct(table: list[AllReduceRow], left_out: int) -> Proof:
    checked = [row for row in table if row.wrong_elements is not None]
    bad = [row for row in checked if row.wrong_elements]
    if not bad:
        text = f"no wrong element in {len(checked)} sizes and formats"
        if left_out:
            text += f"; {left_out} of the table left out, which would take too long here, or find no room"
        return Proof(name="all_reduce", verdict=Verdict.PASS, text=text, gate=0)
    worst = bad[0]
    return Proof(
        name="all_reduce",
        verdict=Verdict.FAIL,
        text=f"{worst.wrong_elements} wrong elements at {worst.bytes} bytes of {worst.dtype}",
        diagnosis=Cause.WRONG_SUMS.likely(),
        gate=0,
        values={"wrong_elements": sum(row.wrong_elements or 0 for row in bad)},
    )


def _expected(group: Group, options: Options, plan: Plan) -> float | None:
    """The bus bandwidth that was given, else on GPUs the cluster's own."""
    if options.bus_gb_s is not None or group.device.type != "cuda":
        return options.bus_gb_s
    return plan.cluster.intra_gb_s if group.nodes == 1 else plan.cluster.inter_gb_s


def _bandwidth(group: Group, options: Options, table: list[AllReduceRow], expected: float | None) -> Proof:
    rows = [row for row in table if row.mode == "isolated" and row.dtype == "float32"]
    # Not the best of all: what limits a rate lets a burst pass, so that smaller ones can be faster than the link.
    large = max(rows, key=lambda row: row.bytes)
    values = {"bus_bw_gb_s": large.bus_bw_gb_s, "bytes": large.bytes}
    text = f"bus bandwidth {large.bus_bw_gb_s:.3f} GB/s at {large.bytes} bytes over {group.world_size} ranks"
    if group.emulated:
        text += "; emulated, several ranks on a GPU: function only, not performance"
        return unchecked("bandwidth", text, **values)
    if expected is None:
        return unchecked("bandwidth", f"{text}; no expected bandwidth was given (--bus-gb-s)", **values)
    short = 1 - large.bus_bw_gb_s / expected
    # Noise only makes it slower: where one sample was fast enough, it was not the link.
    fast = min(large.samples_us) / large.time_us
    verdict, diagnosis = Verdict.by(short, options), None
    if verdict is not Verdict.PASS:
        diagnosis = Cause.SLOW_LINK.likely()
    if short > options.caution >= 1 - (1 - short) / fast:
        verdict, diagnosis = Verdict.INCONCLUSIVE, Cause.NOISY_HOST.likely()
    return Proof(
        name="bandwidth",
        verdict=verdict,
        text=f"{text}, {expected:g} expected",
        diagnosis=diagnosis,
        gate=options.caution,
        values=values,
    )


def prove(trial: Trial) -> list[Proof]:
    """Measures the table; one rank has none, since there is no wire."""
    trial.allreduce, left_out = allreduce.measure(trial.group, trial.options, trial.buckets)
    trial.add(allreduce=trial.allreduce)
    table = trial.allreduce.table
    if trial.group.world_size == 1:
        return [unchecked(name, "one rank: no wire, so no bandwidth") for name in CLAIM.names]
    expected = _expected(trial.group, trial.options, trial.plan)
    return [_correct(table, left_out), _bandwidth(trial.group, trial.options, table, expected)]


CLAIM = Claim(phase="all-reduce", names=("all_reduce", "bandwidth"), prove=prove)
