"""What the ranks run on, how fast each is alone, and how fast each node's link is."""

from __future__ import annotations

import os
import platform
import statistics
import subprocess
import time
from collections.abc import Callable

import msgspec
import torch
import torch.distributed as dist

from isobatch import __version__
from isobatch.validate.group import Group
from isobatch.validate.report import Link, Machine, Proof, Rank, Verdict

# Nothing else of the environment goes into a report: it may hold secrets.
ENVIRONMENT = (
    "CUDA_VISIBLE_DEVICES",
    "GLOO_SOCKET_IFNAME",
    "NCCL_ALGO",
    "NCCL_DEBUG",
    "NCCL_IB_DISABLE",
    "NCCL_IB_HCA",
    "NCCL_MULTI_RANK_GPU_ENABLE",
    "NCCL_P2P_DISABLE",
    "NCCL_PROTO",
    "NCCL_SHM_DISABLE",
    "NCCL_SOCKET_IFNAME",
    "OMP_NUM_THREADS",
    "TORCH_FR_BUFFER_SIZE",
    "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC",
)
WINDOWS = 5
SECONDS = {"quick": 1.0, "usual": 2.5, "full": 5.0}
SLOW_CAUTION, SLOW_FAIL = 1.25, 2.0  # times the median of the others
LINK_CAUTION, LINK_FAIL = 1.25, 2.0
LINK_BYTES = 4 << 20


def versions() -> dict[str, str]:
    """The versions that decide how fast and how exact a run is."""
    found = {
        "isobatch": __version__,
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "system": platform.platform(),
    }
    if torch.version.cuda:
        found["cuda"] = torch.version.cuda
    if torch.cuda.is_available() and dist.is_nccl_available():
        # The NCCL that torch was built against; a preloaded one would not show.
        built = torch.cuda.nccl.version()  # type: ignore[no-untyped-call]
        found["nccl_built"] = ".".join(map(str, built))
    return found


def topology(group: Group) -> str | None:
    """How the GPUs of this host are connected, as nvidia-smi has it; None without."""
    if group.device.type != "cuda":
        return None
    try:
        done = subprocess.run(
            ["nvidia-smi", "topo", "-m"], capture_output=True, text=True, timeout=10, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout


def _median_seconds(group: Group, work: Callable[[], object], seconds: float) -> float:
    """The median time of some local work, repeated for so long; no other rank is waited for."""
    samples: list[float] = []
    end = time.perf_counter() + seconds
    while len(samples) < 3 or time.perf_counter() < end:
        group.sync()
        begun = time.perf_counter()
        work()
        group.sync()
        samples.append(time.perf_counter() - begun)
    return statistics.median(samples)


def speed(group: Group, seconds: float) -> tuple[Rank, list[float]]:
    """This rank with its own matmul and memory-copy speed, and the matmul's seconds by window."""
    size = 4096 if group.device.type == "cuda" else 384
    a = torch.randn(size, size, device=group.device)
    source = torch.empty(
        (256 if group.device.type == "cuda" else 16) << 20, dtype=torch.uint8, device=group.device
    )
    target = torch.empty_like(source)
    matmul, copy = [], []
    for _ in range(WINDOWS):
        group.barrier()
        matmul.append(_median_seconds(group, lambda: [a @ a for _ in range(8)], seconds / 2 / WINDOWS))
        copy.append(_median_seconds(group, lambda: target.copy_(source), seconds / 2 / WINDOWS))
    rank = msgspec.structs.replace(
        group.roster[group.rank],
        matmul_gflops=8 * 2 * size**3 / min(matmul) / 1e9,
        copy_gb_s=2 * source.numel() / min(copy) / 1e9,
        window_spread=max(matmul) / min(matmul),
    )
    return rank, matmul


def slower(values: list[float]) -> list[float]:
    """How many times each value is above the median of the others. (A deviation from the median of all could never flag one
    of two.)

    >>> slower([1.0, 1.0, 3.0])
    [0.5, 0.5, 3.0]
    """
    if len(values) < 2:
        return [1.0] * len(values)
    return [
        value / statistics.median(values[:index] + values[index + 1 :]) for index, value in enumerate(values)
    ]


def stragglers(group: Group, windows: list[list[float]], name: str, what: str) -> Proof:
    """Whether a rank is slower than the others at the same work.

    Args:
        windows: of each rank, the seconds that the work took in some windows of time. The best counts: another process that
            passes by takes one of them, a slow device takes all. A rank is slow where even its best window is above the
            others' worst, typically; where it is not, the host is too noisy to tell.
    """
    if len(windows) < 2:
        return Proof(name=name, verdict=Verdict.UNCHECKED, text="one rank: nothing to compare with")
    best, worst_windows = [min(times) for times in windows], [max(times) for times in windows]
    ratios = slower(best)
    worst = max(range(len(ratios)), key=ratios.__getitem__)
    values = {"times_median_of_others": ratios, "window_spread": [max(w) / min(w) for w in windows]}
    if ratios[worst] < SLOW_CAUTION:
        text = f"{what}: the slowest rank takes {ratios[worst]:.2f} × the median of the others"
        return Proof(name=name, verdict=Verdict.PASS, text=text, gate=SLOW_CAUTION, values=values)
    apart = best[worst] > statistics.median(worst_windows[:worst] + worst_windows[worst + 1 :])
    if not apart:
        return Proof(
            name=name,
            verdict=Verdict.INCONCLUSIVE,
            text=f"{what}: {ratios[worst]:.2f} × the median of the others at best, but the same rank's times vary by up to "
            f"{max(values['window_spread']):.2f} ×",
            cause="the host is too noisy to tell",
            gate=SLOW_CAUTION,
            values=values,
        )
    slow = [rank for rank, ratio in enumerate(ratios) if ratio >= SLOW_CAUTION]
    verdict = Verdict.FAIL if ratios[worst] >= SLOW_FAIL else Verdict.CAUTION
    named = ", ".join(f"{group.pulse.who(rank)} {ratios[rank]:.2f} ×" for rank in slow)
    return Proof(
        name=name,
        verdict=verdict,
        text=f"{what}: {named} the median of the others",
        cause=f"slow rank: {', '.join(group.pulse.who(rank) for rank in slow)}; every step waits for it",
        gate=SLOW_CAUTION,
        values=values,
    )


def links(group: Group, rounds: int, repeats: int = 3) -> list[Link]:
    """The speed between nodes, pair by pair, all pairs of a round at once, so that no two share a node."""
    found: list[Link] = []
    leaders = [rank.rank for rank in group.roster if rank.local_rank == 0]
    if group.nodes < 2:
        return found
    outgoing = torch.ones(LINK_BYTES, dtype=torch.uint8, device=group.device)
    incoming = torch.empty_like(outgoing)
    for pairs in _pairings(group.nodes)[:rounds]:
        mine = next((pair for pair in pairs if group.node in pair), None)
        group.barrier()
        if mine is None or group.local_rank:
            continue
        peer = leaders[mine[0] if mine[1] == group.node else mine[1]]
        samples = []
        for _ in range(repeats + 1):
            group.sync()
            begun = time.perf_counter()
            sending = dist.P2POp(dist.isend, outgoing, peer)
            receiving = dist.P2POp(dist.irecv, incoming, peer)
            for request in dist.batch_isend_irecv([sending, receiving]):
                request.wait()
            group.sync()
            samples.append(time.perf_counter() - begun)
        if group.node == mine[0]:
            bw = LINK_BYTES / statistics.median(samples[1:]) / 1e9
            found.append(Link(node=mine[0], peer=mine[1], bw_gb_s=bw))
    return [link for part in group.gather(found) for link in part]


def _pairings(count: int) -> list[list[tuple[int, int]]]:
    """Rounds in which everybody meets everybody once (the circle method).

    >>> _pairings(4)
    [[(0, 3), (1, 2)], [(0, 2), (1, 3)], [(0, 1), (2, 3)]]
    """
    seats = list(range(count)) + ([-1] if count % 2 else [])
    rounds = []
    for _ in range(len(seats) - 1):
        pairs = zip(seats[: len(seats) // 2], reversed(seats[len(seats) // 2 :]), strict=True)
        rounds.append(sorted((min(p), max(p)) for p in pairs if -1 not in p))
        seats = [seats[0], seats[-1], *seats[1:-1]]
    return rounds


def slow_links(group: Group, found: list[Link]) -> Proof:
    """Whether a node's link is slower than the others', by each node's best peer: a good link looks slow only towards a
    slow one."""
    if not found:
        return Proof(name="links", verdict=Verdict.UNCHECKED, text="one node: no link between nodes")
    best = [
        max((k.bw_gb_s for k in found if node in (k.node, k.peer)), default=0.0)
        for node in range(group.nodes)
    ]
    host = {rank.node: rank.host for rank in group.roster}
    values = {"bw_gb_s": best}
    slowest = min(best)
    if group.nodes < 3:
        text = f"{slowest:.3f} GB/s between {host[0]} and {host[1]}; with two nodes, whose link it is cannot be told"
        return Proof(name="links", verdict=Verdict.PASS, text=text, values=values)
    ratios = slower([1 / bw if bw else float("inf") for bw in best])
    slow = [node for node, ratio in enumerate(ratios) if ratio >= LINK_CAUTION]
    if not slow:
        text = f"the slowest of {group.nodes} nodes reaches {slowest:.3f} GB/s"
        return Proof(name="links", verdict=Verdict.PASS, text=text, gate=LINK_CAUTION, values=values)
    named = ", ".join(f"{host[node]} (node {node}) {best[node]:.3f} GB/s" for node in slow)
    return Proof(
        name="links",
        verdict=Verdict.FAIL if max(ratios) >= LINK_FAIL else Verdict.CAUTION,
        text=f"{named}; the others' median is {statistics.median(best):.3f} GB/s",
        cause=f"slow link: {', '.join(host[node] for node in slow)}",
        gate=LINK_CAUTION,
        values=values,
    )


def measure(group: Group, extent: str) -> tuple[Machine, list[Proof]]:
    """The machine, and whether a rank or a link is slower than the others."""
    told: list[tuple[Rank, list[float]]] = group.gather(speed(group, SECONDS[extent]))
    ranks = [rank for rank, _ in told]
    found = links(group, 7 if extent == "quick" else 31)
    machine = Machine(
        ranks=ranks,
        nodes=group.nodes,
        backend=group.backend,
        emulated=group.emulated,
        versions=versions(),
        environment={name: os.environ[name] for name in ENVIRONMENT if name in os.environ},
        topology=topology(group),
        links=found,
    )
    differing = {tuple(sorted(v.items())) for v in group.gather(versions())}
    same = Proof(
        name="versions",
        verdict=Verdict.PASS if len(differing) == 1 else Verdict.CAUTION,
        text="the same on all ranks" if len(differing) == 1 else "ranks differ in their versions",
        cause=None if len(differing) == 1 else "another environment on one of the nodes",
    )
    windows = [matmul for _, matmul in told]
    return machine, [
        same,
        stragglers(group, windows, "ranks", "matrix product"),
        slow_links(group, found),
    ]
