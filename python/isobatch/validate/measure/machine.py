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

from isobatch._core import __version__
from isobatch.validate.measure import windows
from isobatch.validate.ranks.group import Group
from isobatch.validate.report.figures import Link, Machine, Rank

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
WINDOWS = windows.FIRST
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


def product(group: Group) -> Callable[[], object]:
    """A matrix product on this rank's device, as the work by which ranks are compared."""
    size = _size(group)
    a = torch.randn(size, size, device=group.device)
    return lambda: a @ a


def _size(group: Group) -> int:
    return 4096 if group.device.type == "cuda" else 384


def speed(group: Group, products: list[windows.Window], seconds: float) -> Rank:
    """This rank with its own speed of matrix products, by these windows, and of copies in memory."""
    matmul = [window.seconds for window in products]
    elements = (256 if group.device.type == "cuda" else 16) << 20
    source = torch.empty(elements, dtype=torch.uint8, device=group.device)
    target = torch.empty_like(source)
    copy = [
        windows.window(group, lambda: target.copy_(source), seconds / WINDOWS).seconds for _ in range(WINDOWS)
    ]
    return msgspec.structs.replace(
        group.roster[group.rank],
        matmul_gflops=2 * _size(group) ** 3 / min(matmul) / 1e9,
        copy_gb_s=2 * source.numel() / min(copy) / 1e9,
        window_spread=max(matmul) / min(matmul),
    )


def links(group: Group, rounds: int, repeats: int = 3) -> list[Link]:
    """The speed between nodes, pair by pair, all pairs of a round at once, so that no two share a node."""
    found: list[Link] = []
    leaders = [rank.rank for rank in group.roster if rank.local_rank == 0]
    if group.nodes < 2:
        return found
    # Gloo sends from the host's memory only; NCCL wants all ranks in the first call of a group.
    device = group.device if group.backend == "nccl" else torch.device("cpu")
    dist.all_reduce(torch.zeros(1, device=device))
    outgoing = torch.ones(LINK_BYTES, dtype=torch.uint8, device=device)
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


def describe(group: Group, ranks: list[Rank], links: list[Link]) -> Machine:
    """What the ranks run on, as the report has it."""
    return Machine(
        ranks=ranks,
        nodes=group.nodes,
        backend=group.backend,
        emulated=group.emulated,
        versions=versions(),
        environment={name: os.environ[name] for name in ENVIRONMENT if name in os.environ},
        topology=topology(group),
        links=links,
    )
