"""The ranks against the plan's replicas."""

from __future__ import annotations

from isobatch.diagnosis.causes import Cause
from isobatch.planning.plan import Plan
from isobatch.validate.proofs.claim import Claim
from isobatch.validate.ranks.group import Group
from isobatch.validate.report.verdict import Proof, Verdict
from isobatch.validate.trial import Trial


def judge(plan: Plan, group: Group) -> Proof:
    planned, ranks = plan.data_parallel or 1, group.world_size
    verdict, diagnosis = Verdict.PASS, None
    if ranks > planned:
        verdict, text = Verdict.FAIL, f"{ranks} ranks, but the plan has {planned} replicas"
        diagnosis = Cause.ANOTHER_WORLD_SIZE.likely()
    elif ranks == planned:
        text = f"{ranks} ranks, as planned"
    else:
        verdict = Verdict.UNCHECKED
        text = (
            f"rehearsal {ranks}/{planned}: micro-batch, accumulation, learning rate and the sampler of all replicas are "
            f"proven; the gradient over {planned} replicas and the performance are not"
        )
    if planned != plan.world_size:
        text += "; only the data-parallel part is proven"
    values = {"ranks": ranks, "data_parallel": planned}
    return Proof(name="world", verdict=verdict, text=text, diagnosis=diagnosis, gate=0, values=values)


def prove(trial: Trial) -> list[Proof]:
    """As many ranks as replicas, or a rehearsal with fewer."""
    ranks, planned = trial.group.world_size, trial.plan.data_parallel or 1
    trial.add(rehearsal=f"{ranks}/{planned}" if ranks < planned else None)
    return [judge(trial.plan, trial.group)]


CLAIM = Claim(phase="world", names=("world",), prove=prove, decisive=True)
