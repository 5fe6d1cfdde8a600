"""What the hosts say of themselves before anything is connected: GPUs, the driver's errors, network ports, limits."""

from __future__ import annotations

import msgspec
import torch

from isobatch.diagnosis.causes import Cause
from isobatch.validate.host import clocks, gpu, kernel, limits, nvml, ports
from isobatch.validate.host.finding import Finding, Found, judge, most
from isobatch.validate.proofs.claim import Claim
from isobatch.validate.ranks.facts import few
from isobatch.validate.ranks.group import Group
from isobatch.validate.report.figures import Gpu, Hosts, Port
from isobatch.validate.report.verdict import Proof
from isobatch.validate.trial import Before, Trial


def place(group: Group, rank: int) -> str:
    """A rank's GPU, as a sentence names it."""
    one = group.roster[rank]
    return f"host {one.host} GPU {one.local_rank} (rank {rank})"


def of_hosts(group: Group, answers: list[Found | None]) -> dict[str, Found]:
    """The answers of the first rank of each host, by its name."""
    found: dict[str, Found] = {}
    for rank, answer in zip(group.roster, answers, strict=True):
        if answer is not None:
            name = f"host {rank.host}"
            found[name if name not in found else f"{name} (node {rank.node})"] = answer
    return found


def _uneven(gpus: list[Gpu], answers: list[Found]) -> list[Found]:
    """The answers, and who has fewer NVLinks or PCIe lanes than most."""
    usual = {name: most(getattr(one, name) for one in gpus) for name in ("nvlinks_up", "pcie_width")}
    found = []
    for own, answer in zip(gpus, answers, strict=True):
        more = [
            Finding(f"{what}: {getattr(own, name)}, where most GPUs have {usual[name]}", Cause.GPU_LINK, True)
            for name, what in (("nvlinks_up", "NVLinks up"), ("pcie_width", "PCIe lanes"))
            if getattr(own, name) is not None and usual[name] is not None and getattr(own, name) < usual[name]
        ]
        found.append(msgspec.structs.replace(answer, findings=(*answer.findings, *more)))
    return found


def judge_gpus(group: Group, gpus: list[Gpu | None], answers: list[Found]) -> Proof:
    """Whether all GPUs are the job's alone, healthy and alike."""
    known = [one for one in gpus if one is not None]
    if len(known) == len(gpus):
        answers = _uneven(known, answers)
    return judge("gpu", {place(group, rank): answer for rank, answer in enumerate(answers)}, few)


def _own_gpu(trial: Trial) -> tuple[Gpu | None, Found]:
    group, board = trial.group, trial.board
    if isinstance(board, str):
        return None, Found(why_not=board)
    torch.zeros(1, device=group.device)  # from now on this process is one of those that NVML counts
    mine = group.facts[group.rank]
    here = sum((one.machine, one.bus) == (mine.machine, mine.bus) for one in group.facts)
    own = int(torch.cuda.memory_reserved(group.device))
    state = gpu.state(board, group.rank, own, here)
    return state, gpu.check(state).short()


def prove(trial: Trial) -> list[Proof]:
    """Each rank asks for its GPU and its limits, the first one of each host for what its host has once."""
    group = trial.group
    cuda, first = group.device.type == "cuda", group.local_rank == 0
    trial.before = Before(cuda=cuda)
    state, health = _own_gpu(trial)
    if isinstance(trial.board, nvml.Board):
        trial.sampler = clocks.Sampler(trial.board)
        trial.sampler.start()
    log = kernel.check(trial.before.log) if cuda else Found(why_not="the ranks run on the CPU")
    bus = nvml.bus_id(torch.cuda.get_device_properties(group.device)) if cuda else None
    limit = limits.check(cuda=cuda, ports=len(trial.before.ports), bus=bus)
    told = group.gather(
        (state, health, log.short() if first else None, limit.short() if cuda or first else None)
    )
    found = group.gather(trial.before.ports if first else None)
    by_host = ports_of(group, found)
    trial.rdma = {
        rank.node: any(port.state == "ACTIVE" for port in own)
        for rank, own in zip(group.roster, found, strict=True)
        if own is not None
    }
    gpus = [one for one, *_ in told]
    trial.gpus = [one for one in gpus if one is not None]
    trial.hosts = Hosts(gpus=trial.gpus, ports=by_host)
    trial.add(hosts=trial.hosts)
    limited = (
        {place(group, rank): one for rank, (*_, one) in enumerate(told)}
        if cuda
        else of_hosts(group, [t[3] for t in told])
    )
    return [
        judge_gpus(group, gpus, [health for _, health, *_ in told]),
        judge("gpu_errors", of_hosts(group, [answer for _, _, answer, _ in told]), few),
        judge("ports", ports.check(by_host), few),
        judge("host_limits", {who: one for who, one in limited.items() if one is not None}, few),
    ]


def ports_of(group: Group, answers: list[list[Port] | None]) -> dict[str, list[Port]]:
    """The ports of each host, by its name."""
    found: dict[str, list[Port]] = {}
    for rank, answer in zip(group.roster, answers, strict=True):
        if answer is not None:
            name = f"host {rank.host}"
            found[name if name not in found else f"{name} (node {rank.node})"] = answer
    return found


CLAIM = Claim(phase="host", names=("gpu", "gpu_errors", "ports", "host_limits"), prove=prove, connected=False)
