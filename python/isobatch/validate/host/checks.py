"""The hosts' own state: their GPUs and kernel's logs, before anything is connected and while all the rest ran."""

from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import mode

import msgspec
import torch

from isobatch.diagnosis.causes import Cause
from isobatch.validate.figures import Gpu, Hosts
from isobatch.validate.host import gpu, system
from isobatch.validate.host.system import CheckResult, HostFault, strongest
from isobatch.validate.ranks.group import Group
from isobatch.validate.report import Proof, Verdict, judge_claim, pass_claim, skip_claim
from isobatch.validate.trial import Claim, Trial
from isobatch.words import few

ON_A_CPU = CheckResult(why_not="the ranks run on the CPU")

BOARDS = ("SXM", "HBM3", "B200", "B300")
"""In the names of GPUs that are on one board with NVLink; not those of PCIe cards."""


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
    action = strongest(one.action for _, one in bad)
    return judge_claim(name, verdict, text + behind, worst[0][1].cause.likely(named), action=action)


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


def compare(gpus: Sequence[Gpu], nodes: Sequence[int], answers: Sequence[CheckResult]) -> list[CheckResult]:
    """Adds to the answers who has fewer NVLinks or PCIe lanes than most; and where GPUs of one board, which NVLink joins, have none up:
    all alike, none has fewer than most."""
    usual = {name: mode(getattr(one, name) for one in gpus) for name in ("nvlinks_up", "pcie_width")}
    beside, found = Counter(nodes), []
    for own, node, answer in zip(gpus, nodes, answers, strict=True):
        more = [
            HostFault(
                f"{what}: {getattr(own, name)}, where most GPUs have {usual[name]}", Cause.GPU_LINK, True
            )
            for name, what in (("nvlinks_up", "NVLinks up"), ("pcie_width", "PCIe lanes"))
            if getattr(own, name) is not None and usual[name] is not None and getattr(own, name) < usual[name]
        ]
        joined = any(mark in (own.name or "") for mark in BOARDS) and beside[node] > 1
        if own.nvlinks and not own.nvlinks_up and joined:
            more.append(HostFault(f"none of its {own.nvlinks} NVLinks is up", Cause.GPU_LINK))
        found.append(msgspec.structs.replace(answer, findings=(*answer.findings, *more)))
    return found


def judge_gpus(group: Group, gpus: Sequence[Gpu | None], answers: Sequence[CheckResult]) -> Proof:
    """Judges whether all GPUs are the job's alone, healthy and alike."""
    known = [one for one in gpus if one is not None]
    if len(known) == len(gpus):
        answers = compare(known, [rank.node for rank in group.roster], answers)
    return judge("gpu", {place(group, rank): answer for rank, answer in enumerate(answers)})


def _own_gpu(group: Group) -> tuple[Gpu | None, CheckResult]:
    board = gpu.open_board(group)
    if isinstance(board, str):
        return None, CheckResult(why_not=board)
    torch.zeros(1, device=group.device)  # from now on this process is one of those that NVML counts
    mine = group.facts[group.rank]
    here = sum((one.machine, one.bus) == (mine.machine, mine.bus) for one in group.facts)
    state = gpu.state(board, group.rank, int(torch.cuda.memory_reserved(group.device)), here)
    return state, gpu.check(state).short()


def _judge_logs(name: str, group: Group, log: str | None, before: str | None = None) -> Proof:
    """Judges the kernel's logs of all hosts, each as its first rank has read it."""
    own = system.check_log(log, before).short() if group.device.type == "cuda" else ON_A_CPU
    found: dict[str, CheckResult] = {}
    answers = group.gather(own if group.local_rank == 0 else None, CheckResult | None)
    for rank, answer in zip(group.roster, answers, strict=True):
        if answer is not None:
            host = f"host {rank.host}"
            found[host if host not in found else f"{host} (node {rank.node})"] = answer
    return judge(name, found)


def prove(trial: Trial) -> list[Proof]:
    """Asks each rank for its GPU, and the first one of each host for its host."""
    group = trial.group
    if group.device.type == "cuda":
        trial.log_before = system.kernel_log()
    gpus, health = zip(*group.gather(_own_gpu(group), tuple[Gpu | None, CheckResult]), strict=True)
    trial.add(hosts=Hosts(gpus=[one for one in gpus if one is not None]))
    return [judge_gpus(group, gpus, health), _judge_logs("gpu_errors", group, trial.log_before)]


def prove_meanwhile(trial: Trial) -> list[Proof]:
    """Asks each host's first rank for new errors since the validation began."""
    group = trial.group
    log = system.kernel_log() if group.device.type == "cuda" and group.local_rank == 0 else None
    return [_judge_logs("host_meanwhile", group, log, trial.log_before or "")]


CLAIM = Claim(phase="host", names=("gpu", "gpu_errors"), prove=prove, connected=False)
MEANWHILE = Claim(phase="meanwhile", names=("host_meanwhile",), prove=prove_meanwhile)
