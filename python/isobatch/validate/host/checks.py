"""The hosts' own state: before anything is connected, of NCCL's transports, and while all the rest ran."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeVar

import msgspec
import torch

from isobatch.diagnosis.causes import Cause
from isobatch.validate.figures import Gpu, Hosts, Port
from isobatch.validate.host import gpu, system
from isobatch.validate.host.nccl_log import Link, Transports, detours
from isobatch.validate.host.system import CheckResult, HostFault, most
from isobatch.validate.ranks.group import Group
from isobatch.validate.report import Proof, Verdict, judge_claim, pass_claim, skip_claim
from isobatch.validate.trial import Claim, Trial
from isobatch.words import few

MAX_LINKS = 24
"""Of a rank, which travel to the others: a rank has two neighbours in each ring and tree, and a few channels."""

ON_A_CPU = CheckResult(why_not="the ranks run on the CPU")


T = TypeVar("T")


def judge(name: str, found: Mapping[str, CheckResult]) -> Proof:
    """Makes one proof of the results of ranks or hosts, by their names as in a sentence."""
    bad = [(who, one) for who, answer in found.items() for one in answer.findings]
    silent = _by_value({who: one.why_not for who, one in found.items() if one.why_not is not None})
    if sum(map(len, silent.values())) == len(found):
        return skip_claim(name, "; ".join(silent))
    why = "; ".join(f"{reason} ({few(who)})" for reason, who in silent.items())
    behind = f"; not asked: {why}" if why else ""
    if not bad:
        kinds = _by_value({who: one.seen for who, one in found.items() if one.why_not is None})
        several = "; ".join(f"{few(who)}: {seen}" for seen, who in list(kinds.items())[:3])
        return pass_claim(name, (next(iter(kinds)) if len(kinds) == 1 else several) + behind)
    fails = any(one.fails for _, one in bad)
    worst = [(who, one) for who, one in bad if one.fails == fails]
    text = few([f"{who}: {one.text}" for who, one in sorted(bad, key=lambda pair: not pair[1].fails)])
    named = few(list(dict.fromkeys(who for who, _ in worst)))
    verdict = Verdict.FAIL if fails else Verdict.CAUTION
    return judge_claim(name, verdict, text + behind, worst[0][1].cause.likely(named))


def _by_value(answers: Mapping[str, str]) -> dict[str, list[str]]:
    """Groups by answer who gave it."""
    found: dict[str, list[str]] = {}
    for who, answer in answers.items():
        found.setdefault(answer, []).append(who)
    return found


def place(group: Group, rank: int) -> str:
    """Names a rank's GPU, as in a sentence."""
    one = group.roster[rank]
    return f"host {one.host} GPU {one.local_rank} (rank {rank})"


def by_host(group: Group, answers: Sequence[T | None]) -> dict[str, T]:
    """Returns the answers of the first rank of each host, by the host's name."""
    found: dict[str, T] = {}
    for rank, answer in zip(group.roster, answers, strict=True):
        if answer is not None:
            name = f"host {rank.host}"
            found[name if name not in found else f"{name} (node {rank.node})"] = answer
    return found


class _Mine(NamedTuple):
    """One rank's answers; of what its host has once, only the host's first rank."""

    gpu: Gpu | None
    health: CheckResult
    log: CheckResult | None
    limits: CheckResult | None
    ports: list[Port] | None


def _uneven(gpus: list[Gpu], answers: list[CheckResult]) -> list[CheckResult]:
    """Adds to the answers who has fewer NVLinks or PCIe lanes than most."""
    usual = {name: most(getattr(one, name) for one in gpus) for name in ("nvlinks_up", "pcie_width")}
    found = []
    for own, answer in zip(gpus, answers, strict=True):
        more = [
            HostFault(
                f"{what}: {getattr(own, name)}, where most GPUs have {usual[name]}", Cause.GPU_LINK, True
            )
            for name, what in (("nvlinks_up", "NVLinks up"), ("pcie_width", "PCIe lanes"))
            if getattr(own, name) is not None and usual[name] is not None and getattr(own, name) < usual[name]
        ]
        found.append(msgspec.structs.replace(answer, findings=(*answer.findings, *more)))
    return found


def judge_gpus(group: Group, gpus: list[Gpu | None], answers: list[CheckResult]) -> Proof:
    """Judges whether all GPUs are the job's alone, healthy and alike."""
    known = [one for one in gpus if one is not None]
    if len(known) == len(gpus):
        answers = _uneven(known, answers)
    return judge("gpu", {place(group, rank): answer for rank, answer in enumerate(answers)})


def _own_gpu(trial: Trial) -> tuple[Gpu | None, CheckResult]:
    group, board = trial.group, gpu.open_board(trial.group)
    if isinstance(board, str):
        return None, CheckResult(why_not=board)
    torch.zeros(1, device=group.device)  # from now on this process is one of those that NVML counts
    mine = group.facts[group.rank]
    here = sum((one.machine, one.bus) == (mine.machine, mine.bus) for one in group.facts)
    state = gpu.state(board, group.rank, int(torch.cuda.memory_reserved(group.device)), here)
    return state, gpu.check(state).short()


def _ask(trial: Trial) -> _Mine:
    """Asks this rank's GPU and limits, and its host where this rank is the first one there."""
    group, ports = trial.group, system.read_ports()
    cuda, first = group.device.type == "cuda", group.local_rank == 0
    trial.log_before, trial.ports_before = system.kernel_log() if cuda else None, ports
    log = system.check_log(trial.log_before) if cuda else ON_A_CPU
    bus = gpu.bus_id(torch.cuda.get_device_properties(group.device)) if cuda else None
    limits = system.check_limits(cuda=cuda, ports=len(ports), bus=bus).short()
    state, health = _own_gpu(trial)
    return _Mine(
        gpu=state,
        health=health,
        log=log.short() if first else None,
        limits=limits if cuda or first else None,
        ports=ports if first else None,
    )


def prove(trial: Trial) -> list[Proof]:
    """Asks each rank for its GPU and its limits, and the first one of each host for its host."""
    group = trial.group
    found = [_Mine(*one) for one in group.gather(tuple(_ask(trial)))]
    ports = by_host(group, [one.ports for one in found])
    trial.rdma = {
        rank.node: any(port.state == "ACTIVE" for port in one.ports)
        for rank, one in zip(group.roster, found, strict=True)
        if one.ports is not None
    }
    gpus = [one.gpu for one in found]
    trial.gpus = [one for one in gpus if one is not None]
    trial.add(hosts=Hosts(gpus=trial.gpus, ports=ports))
    limits = by_host(group, [one.limits for one in found])
    if group.device.type == "cuda":
        limits = {place(group, rank): one.limits for rank, one in enumerate(found) if one.limits is not None}
    return [
        judge_gpus(group, gpus, [one.health for one in found]),
        judge("gpu_errors", by_host(group, [one.log for one in found])),
        judge("ports", system.check_ports(ports)),
        judge("host_limits", limits),
    ]


def judge_transports(group: Group, found: list[Transports], gpus: list[Gpu], rdma: dict[int, bool]) -> Proof:
    """Judges whether NCCL takes the fastest transports there are; `rdma` is by node, whether a port is active."""
    name = "nccl_transports"
    if not any(one.links for one in found):
        why = "NCCL's log has no line about its channels: it was in use before, or has nothing to send"
        return skip_claim(name, why)
    linked = [False] * group.world_size
    for one in gpus:
        linked[one.rank] = one.nvlinks_up > 0
    nodes = [rank.node for rank in group.roster]
    sockets, inside = detours(found, nodes, rdma=rdma, nvlinks=linked)
    counts: dict[str, int] = {}
    for link in (link for one in found for link in one.links):
        detail = "/".join(part for part in link.detail.split("/") if not part.isdigit())
        counts[detail] = counts.get(detail, 0) + 1
    if not sockets and not inside:
        networks = few(list(dict.fromkeys(network for one in found for network in one.networks)))
        text = few([f"{detail} ({count} links)" for detail, count in counts.items()])
        return pass_claim(name, text + (f"; network {networks}" if networks else ""), links=counts)

    def listed(what: str, links: list[Link]) -> list[str]:
        rows = [f"{place(group, link.source)} → rank {link.target} by {link.detail}" for link in links]
        return [f"{what}: {few(rows)}"] if rows else []

    text = "; ".join(
        [
            *listed("sockets between nodes whose RDMA ports are active", sockets),
            *listed("not over NVLink between GPUs that have it", inside),
        ]
    )
    hosts = few(list(dict.fromkeys(group.roster[link.source].host for link in (*sockets, *inside))))
    return judge_claim(name, Verdict.CAUTION, text, Cause.SLOW_TRANSPORT.likely(hosts), links=counts)


def prove_transports(trial: Trial) -> list[Proof]:
    """Reads NCCL's log so far: all sizes of the all-reduce have been sent by now."""
    group, log = trial.group, trial.nccl_log
    if group.backend != "nccl":
        return [skip_claim("nccl_transports", f"the ranks are connected by {group.backend}")]
    why = next((why for why in group.gather(log.why_not) if why is not None), None)
    if why is not None:
        return [skip_claim("nccl_transports", why)]
    mine = log.read()
    found = group.gather(Transports(mine.links[:MAX_LINKS], mine.networks[:2]))
    return [judge_transports(group, found, trial.gpus, trial.rdma)]


def prove_meanwhile(trial: Trial) -> list[Proof]:
    """Asks each host's first rank for new errors since the validation began."""
    group, mine = trial.group, None
    if group.local_rank == 0:
        found = [system.compare_ports(trial.ports_before, system.read_ports())]
        if group.device.type == "cuda":
            found.append(system.check_log(system.kernel_log(), trial.log_before or ""))
        mine = join(found).short()
    return [judge("host_meanwhile", by_host(group, group.gather(mine)))]


def join(found: list[CheckResult]) -> CheckResult:
    """Joins several answers: those that could be asked, and those that could not."""
    asked = [one for one in found if one.why_not is None]
    silent = "; ".join(one.why_not for one in found if one.why_not is not None)
    if not asked:
        return CheckResult(why_not=silent)
    seen = "; ".join(one.seen for one in asked) + (f"; not asked: {silent}" if silent else "")
    return CheckResult(findings=tuple(bad for one in asked for bad in one.findings), seen=seen)


CLAIM = Claim(phase="host", names=("gpu", "gpu_errors", "ports", "host_limits"), prove=prove, connected=False)
TRANSPORTS = Claim(phase="transports", names=("nccl_transports",), prove=prove_transports)
MEANWHILE = Claim(phase="meanwhile", names=("host_meanwhile",), prove=prove_meanwhile)
