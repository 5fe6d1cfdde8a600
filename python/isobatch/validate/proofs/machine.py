"""The machine: the same versions on all ranks, and no rank and no link slower than the others."""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable

from isobatch.diagnosis.causes import Cause
from isobatch.diagnosis.precision import AUTOCAST
from isobatch.validate.measure import machine
from isobatch.validate.proofs import stragglers
from isobatch.validate.proofs.claim import Claim
from isobatch.validate.ranks.facts import few
from isobatch.validate.ranks.group import Group
from isobatch.validate.report.figures import Link
from isobatch.validate.report.verdict import Proof, Verdict, unchecked
from isobatch.validate.trial import Trial

SECONDS = {"quick": 0.6, "usual": 2.5, "full": 5.0}
COPIES_SHARE = {"quick": 1 / 6, "usual": 1 / 2, "full": 1 / 2}
"""Of these seconds for copies in memory, of which the best is a figure; the others are for products, by which ranks are judged."""
ROUNDS = {"quick": 7, "usual": 31, "full": 31}
"""Of pairs of nodes that send to each other."""
CAUTION, FAIL = 1.25, 2.0  # times the others' median


def judge_links(group: Group, found: list[Link]) -> Proof:
    """Whether a node's link is slower than the others', by each node's best peer: a good link looks slow only towards a
    slow one. Where each GPU has its own, each is judged."""
    if not found:
        return unchecked("links", "one node: no link between nodes")
    best: dict[tuple[int, int], float] = {}
    for link in found:
        for place in ((link.node, link.local_rank), (link.peer, link.local_rank)):
            best[place] = max(best.get(place, 0.0), link.bw_gb_s)
    host = {rank.node: rank.host for rank in group.roster}
    rails = any(link.local_rank for link in found)
    values = {"bw_gb_s": list(best.values())}
    slowest = min(best.values())
    if group.nodes < 3:
        text = f"{slowest:.3f} GB/s between {host[0]} and {host[1]}; with two nodes, nobody can say which of them limits it"
        return Proof(name="links", verdict=Verdict.PASS, text=text, values=values)
    ratios = stragglers.slower([1 / bw for bw in best.values()])
    slow = [place for place, ratio in zip(best, ratios, strict=True) if ratio >= CAUTION]
    if not slow:
        text = f"the slowest of {group.nodes} nodes reaches {slowest:.3f} GB/s"
        return Proof(name="links", verdict=Verdict.PASS, text=text, gate=CAUTION, values=values)
    names = [f"{host[node]} GPU {local}" if rails else host[node] for node, local in slow]
    named = few(
        [f"{name} (node {place[0]}) {best[place]:.3f} GB/s" for name, place in zip(names, slow, strict=True)]
    )
    return Proof(
        name="links",
        verdict=Verdict.FAIL if max(ratios) >= FAIL else Verdict.CAUTION,
        text=f"{named}; the others' median is {statistics.median(best.values()):.3f} GB/s",
        diagnosis=Cause.SLOW_LINK.likely(few(names)),
        gate=CAUTION,
        values=values,
    )


def same_versions(
    found: list[dict[str, str]], who: Callable[[int], str], strays: dict[int, list[str]] | None = None
) -> Proof:
    """Whether all ranks have the same versions and environment, else which ones differ, and where.

    Args:
        strays: by rank, the variables that it has not as rank 0 has them.
    """
    differ = []
    for name in sorted(set().union(*found)):
        here = [versions.get(name, "none") for versions in found]
        first = {version: who(here.index(version)) for version in here}
        if len(first) > 1:
            differ.append(f"{name} " + ", ".join(f"{version} on {rank}" for version, rank in first.items()))
    others: dict[str, list[str]] = {}
    for rank, names in (strays or {}).items():
        for name in names:
            others.setdefault(name, []).append(who(rank))
    differ += [f"{name} is another on {few(ranks)} than on {who(0)}" for name, ranks in others.items()]
    if os.environ.get("CUDA_LAUNCH_BLOCKING", "0") != "0":
        differ.append(
            "CUDA_LAUNCH_BLOCKING is set: each kernel waits for the one before it, and every time here is too long"
        )
    return Proof(
        name="versions",
        verdict=Verdict.CAUTION if differ else Verdict.PASS,
        text="; ".join(differ) or "the same on all ranks",
        diagnosis=Cause.OTHER_ENVIRONMENT.likely() if differ else None,
    )


def prove(trial: Trial) -> list[Proof]:
    """Each rank's own speed, the speed between nodes, and the versions."""
    group, seconds = trial.group, SECONDS[trial.options.extent]
    copies = seconds * COPIES_SHARE[trial.options.extent]
    work = machine.Product(group, AUTOCAST[trial.plan.recipe.precision])
    each = (seconds - copies) / machine.WINDOWS
    slow_ranks, windows = stragglers.prove(group, work, each, "ranks", "matrix product")
    ranks = group.gather(machine.speed(group, work, windows[group.rank], copies))
    found = machine.links(group, ROUNDS[trial.options.extent])
    trial.machine = machine.describe(group, ranks, found)
    trial.add(machine=trial.machine)
    same = same_versions(group.gather(machine.versions(group)), group.pulse.who, machine.strays(group))
    return [same, slow_ranks, judge_links(group, found)]


CLAIM = Claim(phase="machine", names=("versions", "ranks", "links"), prove=prove)
