"""What the hosts have counted while the validation ran: clocks and throttling, errors of GPUs and links, a processor quota."""

from __future__ import annotations

import time

import msgspec

from isobatch.validate.host import clocks, kernel, limits, ports
from isobatch.validate.host.finding import Found, judge
from isobatch.validate.proofs.claim import Claim
from isobatch.validate.proofs.host import of_hosts, place
from isobatch.validate.ranks.facts import few
from isobatch.validate.ranks.group import Group
from isobatch.validate.report.figures import Clocks, Gpu
from isobatch.validate.report.verdict import Proof, unchecked
from isobatch.validate.trial import Trial


def judge_clocks(group: Group, found: list[Clocks | None], gpus: list[Gpu], why_not: str) -> Proof:
    """Whether a GPU was slowed down while it worked, or is slower clocked than the others."""
    known = [one for one in found if one is not None]
    if not known:
        return unchecked("clocks", why_not)
    most = {one.rank: one.pcie_generation_max for one in gpus}
    answers = {
        place(group, rank): Found(why_not=why_not)
        if one is None
        else clocks.check(one, [other for other in known if other is not one], most.get(rank))
        for rank, one in enumerate(found)
    }
    # Each GPU's own figures are in the report: the sentence has one for all.
    slow = min((one.sm_clock_mhz for one in known if one.sm_clock_mhz is not None), default=None)
    said = "not slowed down" + ("" if slow is None else f", at {slow:.0f} MHz at least")
    same = {who: msgspec.structs.replace(one, seen=said) for who, one in answers.items()}
    return judge("clocks", same, few)


def prove_clocks(trial: Trial) -> Proof:
    """The samples since the first matrix product."""
    group, own, why = trial.group, None, ""
    if trial.sampler is not None:
        trial.sampler.stop()
        own = trial.sampler.clocks(group.rank)
    if isinstance(trial.board, str):
        why = trial.board
    found = group.gather(own)
    trial.hosts = msgspec.structs.replace(trial.hosts, clocks=[one for one in found if one is not None])
    trial.add(hosts=trial.hosts)
    return judge_clocks(group, found, trial.gpus, why)


def counted(trial: Trial) -> list[tuple[str, Found]]:
    """What this host has counted since the validation began, of each kind."""
    before, cuda = trial.before, trial.group.device.type == "cuda"
    found = [("ports", ports.grown(before.ports, ports.read()))]
    if cuda:
        found.append(("gpu_errors", kernel.check(kernel.log(), before.log or "")))
    stopped = limits.throttled(
        before.throttled, limits.throttled_seconds(), time.monotonic() - before.seconds
    )
    if not cuda:  # on a CPU it is noise as any other, and said where times are judged
        stopped = msgspec.structs.replace(stopped, findings=())
    return [*found, ("quota", stopped)]


def joined(found: list[tuple[str, Found]]) -> Found:
    """One answer of several: what could be asked, and what could not."""
    asked = [one for _, one in found if one.why_not is None]
    unasked = "; ".join(one.why_not for _, one in found if one.why_not is not None)
    if not asked:
        return Found(why_not=unasked)
    seen = "; ".join(one.seen for one in asked) + (f"; not asked: {unasked}" if unasked else "")
    return Found(findings=tuple(bad for one in asked for bad in one.findings), seen=seen)


def prove(trial: Trial) -> list[Proof]:
    """Clocks by rank, the others by host."""
    group = trial.group
    mine = joined(counted(trial)).short() if group.local_rank == 0 else None
    return [prove_clocks(trial), judge("host_meanwhile", of_hosts(group, group.gather(mine)), few)]


CLAIM = Claim(phase="meanwhile", names=("clocks", "host_meanwhile"), prove=prove)
