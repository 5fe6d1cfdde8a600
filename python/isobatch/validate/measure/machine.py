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
from isobatch.validate.measure import room, windows
from isobatch.validate.ranks.facts import NAMED
from isobatch.validate.ranks.group import Group
from isobatch.validate.report.figures import Link, Machine, Rank

OWN = ("CUDA_VISIBLE_DEVICES", "GLOO_SOCKET_IFNAME")
"""Of the environment, what each rank may have for itself."""

# Nothing else of the environment goes into a report: it may hold secrets.
ENVIRONMENT = ("CUDA_LAUNCH_BLOCKING", "OMP_NUM_THREADS", "TORCH_FR_BUFFER_SIZE", *OWN)
PREFIXES = ("NCCL_", "TORCH_NCCL_", "FI_")
WINDOWS = windows.FIRST
LINK_BYTES, GPU_LINK_BYTES = 4 << 20, 256 << 20


def versions(group: Group) -> dict[str, str]:
    """The versions that decide how fast and how exact a run is."""
    found = {
        "isobatch": __version__,
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "system": platform.platform(),
    }
    if torch.version.cuda:
        found["cuda"] = torch.version.cuda
    mine = group.facts[group.rank]
    parts = {"nccl": mine.nccl, "driver": mine.driver, "gpu": mine.gpu, "gpus of the host": mine.gpus or None}
    return found | {name: str(value) for name, value in parts.items() if value is not None}


def environment() -> dict[str, str]:
    """What of the environment decides how a run goes, and can hold no secret."""
    names = [name for name in os.environ if name in ENVIRONMENT or name.startswith(PREFIXES)]
    return {name: os.environ[name] for name in sorted(names)}


def strays(group: Group) -> dict[int, list[str]]:
    """The ranks whose environment is not rank 0's, each with the variables."""
    mine = {name: value for name, value in environment().items() if name not in OWN}
    first: dict[str, str] = group.from_first(mine)
    names = sorted(name for name in {*mine, *first} if mine.get(name) != first.get(name))
    return {rank: found for rank, found in enumerate(group.gather(names[:NAMED])) if found}


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


class Product:
    """Matrix products of random numbers on this rank's device, as the work by which ranks are compared: on a GPU in the plan's format,
    which is what its units for that format do, and several in a row, since one takes less than the host needs to launch it."""

    def __init__(self, group: Group, dtype: torch.dtype | None) -> None:
        cuda = group.device.type == "cuda"
        size, self._count = (8192, 20) if cuda else (384, 1)
        self._a = torch.randn(size, size, device=group.device, dtype=dtype if cuda else None)
        self._out = torch.empty_like(self._a)
        self.operations = 2 * size**3 * self._count

    def __call__(self) -> None:
        for _ in range(self._count):
            torch.matmul(self._a, self._a, out=self._out)


def _copied_bytes(group: Group) -> int:
    """On a GPU far more than its caches hold, where there is room."""
    if group.device.type != "cuda":
        return 16 << 20
    return min(4 << 30, room.on_device(group) // 4)


def speed(group: Group, product: Product, products: list[windows.Window], seconds: float) -> Rank:
    """This rank with its own speed of matrix products, by these windows, and of copies in memory."""
    matmul = [window.seconds for window in products]
    source = torch.empty(_copied_bytes(group), dtype=torch.uint8, device=group.device)
    target = torch.empty_like(source)
    copy = [
        windows.window(group, lambda: target.copy_(source), seconds / WINDOWS).seconds for _ in range(WINDOWS)
    ]
    return msgspec.structs.replace(
        group.roster[group.rank],
        matmul_gflops=product.operations / min(matmul) / 1e9,
        copy_gb_s=2 * source.numel() / min(copy) / 1e9,
        window_spread=max(matmul) / min(matmul),
    )


def links(group: Group, rounds: int, repeats: int = 3) -> list[Link]:
    """The speed between nodes, pair by pair, all pairs of a round at once, so that no two share a node."""
    found: list[Link] = []
    if group.nodes < 2:
        return found
    # Gloo sends from the host's memory only, for one rank of a host; NCCL wants all ranks in the first call of a group.
    rails = group.backend == "nccl"
    device = group.device if rails else torch.device("cpu")
    places = {(rank.node, rank.local_rank): rank.rank for rank in group.roster}
    dist.all_reduce(torch.zeros(1, device=device))
    size = min(GPU_LINK_BYTES, room.on_device(group) // 4) if rails else LINK_BYTES
    size = min(group.gather(size))
    outgoing = torch.ones(size, dtype=torch.uint8, device=device)
    incoming = torch.empty_like(outgoing)
    for pairs in _pairings(group.nodes)[:rounds]:
        mine = next((pair for pair in pairs if group.node in pair), None)
        group.barrier()
        if mine is None or (group.local_rank and not rails):
            continue
        peer = places.get((mine[0] if mine[1] == group.node else mine[1], group.local_rank))
        if peer is None:  # a node with fewer ranks
            continue

        def both_ways(other: int = peer) -> None:
            sending = dist.P2POp(dist.isend, outgoing, other)
            receiving = dist.P2POp(dist.irecv, incoming, other)
            for request in dist.batch_isend_irecv([sending, receiving]):
                request.wait()

        samples = [seconds_of(group, both_ways, cuda=rails) for _ in range(repeats + 1)]
        if group.node == mine[0]:
            bw = size / statistics.median(samples[1:]) / 1e9
            found.append(Link(node=mine[0], peer=mine[1], local_rank=group.local_rank, bw_gb_s=bw))
    return [link for part in group.gather(found) for link in part]


def seconds_of(group: Group, work: Callable[[], object], *, cuda: bool) -> float:
    """Of some work that two ranks do with each other, while the others may do nothing: by the GPU's own clock where there is one."""
    group.sync()
    if not cuda:
        begun = time.perf_counter()
        work()
        return time.perf_counter() - begun
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    start.record()
    work()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) / 1e3


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
        versions=versions(group),
        environment=environment(),
        topology=topology(group),
        links=links,
    )
