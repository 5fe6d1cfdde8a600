"""The road that NCCL took, and the bandwidth of its parts: inside each node, and between nodes on each rail."""

from __future__ import annotations

import statistics

from isobatch.diagnosis.causes import Cause
from isobatch.validate.host import road
from isobatch.validate.measure import parts
from isobatch.validate.proofs import stragglers
from isobatch.validate.proofs.claim import Claim
from isobatch.validate.proofs.host import place
from isobatch.validate.ranks.facts import few
from isobatch.validate.ranks.group import Group
from isobatch.validate.report.figures import Gpu
from isobatch.validate.report.verdict import Proof, Verdict, unchecked
from isobatch.validate.trial import Trial

LEGS = 24
"""Of a rank's road, which travel to the others: a rank has two neighbours in each ring and tree, and a few channels."""


def judge_road(group: Group, roads: list[road.Road], gpus: list[Gpu], rdma: dict[int, bool]) -> Proof:
    """Whether NCCL takes the fastest road that is there; `rdma` is by node, whether a port is active."""
    if not any(one.legs for one in roads):
        return unchecked(
            "nccl_road",
            "NCCL's log has no line about its channels: it was in use before, or has nothing to send",
        )
    linked = dict.fromkeys(range(group.world_size), False) | {one.rank: one.nvlinks_up > 0 for one in gpus}
    nodes = [rank.node for rank in group.roster]
    sockets, inside = road.detours(roads, nodes, rdma=rdma, nvlinks=[linked[rank] for rank in sorted(linked)])
    ways: dict[str, int] = {}
    for one in roads:
        for leg in one.legs:
            way = "/".join(part for part in leg.way.split("/") if not part.isdigit())
            ways[way] = ways.get(way, 0) + 1
    networks = few(list(dict.fromkeys(name for one in roads for name in one.networks)))
    text = f"{few([f'{way} ({count} legs)' for way, count in ways.items()])}" + (
        f"; network {networks}" if networks else ""
    )
    values = {"legs": ways}
    if not sockets and not inside:
        return Proof(name="nccl_road", verdict=Verdict.PASS, text=text, values=values)
    said = []
    if sockets:
        who = [f"{place(group, leg.source)} → rank {leg.target} by {leg.way}" for leg in sockets]
        said.append(f"sockets between nodes whose RDMA ports are active: {few(who)}")
    if inside:
        who = [f"{place(group, leg.source)} → rank {leg.target} by {leg.way}" for leg in inside]
        said.append(f"not over NVLink between GPUs that have it: {few(who)}")
    hosts_named = list(dict.fromkeys(group.roster[leg.source].host for leg in (*sockets, *inside)))
    return Proof(
        name="nccl_road",
        verdict=Verdict.CAUTION,
        text="; ".join(said),
        diagnosis=Cause.SLOW_ROAD.likely(few(hosts_named)),
        values=values,
    )


def judge_parts(name: str, what: str, found: dict[str, float]) -> Proof:
    """Whether a part of the network is slower than the others of its kind, by their bus bandwidths in GB/s."""
    values = {"bus_bw_gb_s": found}
    slowest = min(found, key=lambda part: found[part])
    if len(found) < 2:
        return unchecked(name, f"{slowest}: {found[slowest]:.3g} GB/s; nothing to compare with", **values)
    ratios = dict(zip(found, stragglers.slower([1 / bw for bw in found.values()]), strict=True))
    slow = [part for part, ratio in ratios.items() if ratio >= stragglers.GPU_CAUTION]
    usual = statistics.median(found.values())
    if not slow:
        text = f"{what}: the slowest of {len(found)}, {slowest}, reaches {found[slowest]:.3g} GB/s"
        return Proof(name=name, verdict=Verdict.PASS, text=text, gate=stragglers.GPU_CAUTION, values=values)
    return Proof(
        name=name,
        verdict=Verdict.FAIL if max(ratios.values()) >= stragglers.GPU_FAIL else Verdict.CAUTION,
        text=f"{what}: {few([f'{part} {found[part]:.3g} GB/s' for part in slow])}; the median is {usual:.3g}",
        diagnosis=Cause.SLOW_LINK.likely(few(slow)),
        gate=stragglers.GPU_CAUTION,
        values=values,
    )


def _parts(trial: Trial) -> list[Proof]:
    group = trial.group
    if group.nodes < 2 or group.emulated or group.backend != "nccl":
        why = (
            "one node: its bandwidth is above"
            if group.nodes < 2
            else f"over {group.backend} nodes have no rails of their own"
        )
        return [unchecked(name, why) for name in ("bandwidth_inside", "bandwidth_rails")]
    inside, rails = parts.measure(group)
    proofs = []
    for name, what, found in (
        ("bandwidth_inside", "all-reduce inside nodes", inside),
        ("bandwidth_rails", "all-reduce between nodes, rail by rail", rails),
    ):
        proofs.append(
            judge_parts(name, what, found) if found else unchecked(name, "one GPU in each: no wire")
        )
    return proofs


def prove(trial: Trial) -> list[Proof]:
    """The log so far: all sizes of the all-reduce have been sent by now."""
    group, log = trial.group, trial.nccl_log
    if group.backend != "nccl":
        return [unchecked("nccl_road", f"the ranks are connected by {group.backend}"), *_parts(trial)]
    why = next((why for why in group.gather(log.why_not) if why is not None), None)
    if why is not None:
        return [unchecked("nccl_road", why), *_parts(trial)]
    mine = log.read()
    roads = group.gather(road.Road(mine.legs[:LEGS], mine.networks[:2], mine.warnings[:2]))
    return [judge_road(group, roads, trial.gpus, trial.rdma), *_parts(trial)]


CLAIM = Claim(phase="road", names=("nccl_road", "bandwidth_inside", "bandwidth_rails"), prove=prove)
