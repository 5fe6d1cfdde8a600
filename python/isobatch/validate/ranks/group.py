"""The processes of one validation: what they are, how they meet, and how they time some work together."""

import math
import os
import time
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import PrefixStore, TCPStore

from isobatch.errors import InputError, must_be
from isobatch.launch.environments import rank_variables
from isobatch.training.exchange import gather_values
from isobatch.training.world import set_timeout
from isobatch.validate.figures import Rank
from isobatch.validate.options import Options
from isobatch.validate.ranks import network
from isobatch.validate.ranks.pulse import Pulse

SHORT_SECONDS = 1.0  # less than this needs no longer time limit
LATER = timedelta(seconds=30)
"""From a phase's limit to a collective's own: the pulse says who hangs before NCCL ends the process."""
MAX_MESH = 128  # the most ranks that all connect to each other
SLEEP_CYCLES = 1_000_000  # about half a millisecond of a GPU's clock

_runs = 0  # this process may validate several plans over one store


class Group:
    """The processes: `rank`, `world_size`, `local_rank`, `node`, `nodes`, `device`, `backend`.

    `emulated`: several ranks share a device. `roster` has a Rank for each process, and `facts` each one's own
    view of its host.
    """

    def __init__(self, options: Options) -> None:
        global _runs
        variables = _environment()
        self.rank, self.world_size = int(variables["RANK"]), int(variables["WORLD_SIZE"])
        self.local_rank = int(variables["LOCAL_RANK"])
        self.device = own_device(options)
        self.limit = timedelta(seconds=options.phase_seconds)
        if self.world_size > MAX_MESH:
            os.environ.setdefault("TORCH_GLOO_LAZY_INIT", "1")
        _runs += 1
        run = f"isobatch-{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}-{_runs}"
        self._made = not dist.is_initialized()
        self._store = self._first_store(variables) if self._made else self._connection()
        address = network.address_towards(os.environ["MASTER_ADDR"])
        own_facts = network.find_facts(self.world_size, self.local_rank, self.device, address)
        self.facts = network.agree(self._store, run, self.rank, own_facts, self.limit)
        self.emulated = network.gpu_is_shared(self.facts)
        if self._made:
            network.set_interface(address, [rank_facts.address for rank_facts in self.facts])
            # From 2.30 on NCCL allows several ranks on a GPU, if this variable says so.
            shared = self.emulated and os.environ.get("NCCL_MULTI_RANK_GPU_ENABLE") != "1"
            # Without a device id NCCL connects in its first collective, which is in a phase of its own.
            dist.init_process_group(
                "gloo" if self.device.type == "cpu" or shared else "nccl",
                store=PrefixStore("isobatch-group", self._store),
                rank=self.rank,
                world_size=self.world_size,
                timeout=self.limit + LATER,
            )
        self.backend = _backend(self.device)
        # Objects and barriers always go over gloo, from the host's memory.
        self.control = cast(dist.ProcessGroup, dist.new_group(backend="gloo", timeout=self.limit + LATER))
        self.pulse = Pulse(self.rank, self.world_size, self.limit, self._connection, run, self.entered)
        self.pulse.hosts = [rank_facts.host for rank_facts in self.facts]
        self._place()

    def _place(self) -> None:
        """Finds each rank's node, by the facts."""
        nodes = nodes_of([(f"{facts.host} {facts.machine}", facts.local_rank) for facts in self.facts])
        self.node, self.nodes = nodes[self.rank], max(nodes) + 1
        self.roster = [
            Rank(
                rank=rank,
                host=facts.host,
                node=nodes[rank],
                local_rank=facts.local_rank,
                device=facts.gpu or facts.device,
                device_memory_bytes=facts.gpu_memory_bytes,
            )
            for rank, facts in enumerate(self.facts)
        ]

    def _first_store(self, variables: dict[str, str]) -> TCPStore:
        """Opens the store for the ranks to meet in, and sets the environment for torch and NCCL."""
        os.environ.update(variables)
        # Under these, a lost rank makes NCCL end the process within the limit and leave a trace.
        seconds = self.limit.total_seconds()
        os.environ.setdefault("TORCH_FR_BUFFER_SIZE", "2000")
        os.environ.setdefault("TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC", str(int(seconds) + 60))
        hosts_store = self.rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
        if hosts_store:
            network.allow_connections(self.world_size)
        else:
            network.probe(variables["MASTER_ADDR"], int(variables["MASTER_PORT"]), min(30.0, seconds))
        return self._connection(hosts_store)

    def _connection(self, hosts_store: bool = False) -> TCPStore:
        return TCPStore(
            os.environ["MASTER_ADDR"],
            int(os.environ["MASTER_PORT"]),
            is_master=hosts_store,
            timeout=self.limit,
            wait_for_workers=False,
        )

    def connect(self) -> None:
        """Runs the first collective of the training's own backend: NCCL then makes its connections."""
        self._one = torch.zeros(1, device=self.device)
        dist.all_reduce(self._one)
        self.sync()

    def allow(self, seconds: float) -> None:
        """Gives more time to this phase, and to its collectives, for long work."""
        self.pulse.grant(seconds)
        if seconds > SHORT_SECONDS:
            for group in (self.control, *([dist.group.WORLD] if self._made else [])):
                set_timeout(self.limit + LATER + timedelta(seconds=seconds), group)

    def entered(self) -> int:
        """Counts the collectives entered by this rank, with DDP's, by the groups' own sequence numbers."""
        groups: tuple[Any, ...] = (self.control, dist.group.WORLD)
        try:
            return sum(int(group._get_sequence_number_for_group()) for group in groups)
        except RuntimeError:  # a backend that does not count: then no rank is behind
            return 0

    def gather(self, value: Any, kind: Any = Any) -> list[Any]:
        """Returns all ranks' values, on all ranks; beyond numbers, texts and lists they need their `kind`."""
        return gather_values(value, self.control, kind)

    def from_first(self, value: Any, kind: Any = Any) -> Any:
        """Returns rank 0's value."""
        return gather_values(value if self.rank == 0 else None, self.control, kind | None)[0]

    def barrier(self) -> None:
        """Waits for all ranks."""
        dist.barrier(group=self.control)

    def slowest(self, seconds: list[float]) -> list[float]:
        """Returns the maximum over ranks of each value."""
        values = torch.tensor(seconds, dtype=torch.float64)
        dist.all_reduce(values, dist.ReduceOp.MAX, group=self.control)
        return cast(list[float], values.tolist())

    def sum(self, value: float) -> float:
        """Sums a number over ranks; the same on all."""
        return float(self.total(torch.tensor(value, dtype=torch.float64)))

    def total(self, values: Tensor) -> Tensor:
        """Sums over ranks each element of a tensor in the host's memory, in place."""
        dist.all_reduce(values, group=self.control)
        return values

    def sync(self) -> None:
        """Waits for this rank's device."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def time(self, work: Callable[[], object]) -> float:
        """Times some work on this rank's device, started together with the other ranks."""
        self.sync()
        self.barrier()
        if self.backend == "nccl":
            # A sleeping kernel holds the stream until Python has launched the work behind a collective.
            torch.cuda._sleep(SLEEP_CYCLES)  # type: ignore[no-untyped-call]
            dist.all_reduce(self._one)
        return clock(work, cuda=self.device.type == "cuda")

    def repeat(
        self, sample: Callable[[], float], seconds: float, warmup: int, least: int, most: int
    ) -> list[float]:
        """Takes samples after a warmup, for about this many seconds by rank 0's clock."""
        begun = time.monotonic()
        for _ in range(warmup):
            sample()
        samples = [sample() for _ in range(least)]
        while len(samples) < most:
            passed = time.monotonic() - begun
            # The clock is checked less and less often: a check takes about as long as a small all-reduce.
            remaining = (seconds - passed) * (warmup + len(samples)) / max(passed, 1e-9)
            more = min(max(1, len(samples) // 2), most - len(samples), max(0, math.ceil(remaining)))
            (agreed,) = self.slowest([float(more) if self.rank == 0 else 0.0])
            if agreed == 0:
                break
            samples += [sample() for _ in range(int(agreed))]
        return samples

    def close(self) -> None:
        """Leaves the processes as they were found."""
        if self.rank == 0:  # stops watching first, or a clean exit looks like a lost rank
            self.pulse.stop()
        self.barrier()
        self.pulse.stop()
        dist.destroy_process_group(self.control)
        if self._made:
            dist.destroy_process_group()


def clock(work: Callable[[], object], *, cuda: bool) -> float:
    """Times some work of this rank; with `cuda` by the GPU's own clock."""
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


def copy_from_first(ranks: Any, tensors: Sequence[Tensor]) -> None:
    """Gives every rank rank 0's values of some tensors."""
    if ranks.world_size == 1:
        return
    for tensor in tensors:
        dense = tensor.detach().contiguous()
        dist.broadcast(dense, src=0)
        tensor.data.copy_(dense)


def nodes_of(places: list[tuple[str, int]]) -> list[int]:
    """Returns the node of each rank by its host and local rank: one that recurs is on another node.

    >>> nodes_of([("a", 0), ("b", 0), ("a", 1), ("b", 1)]), nodes_of([("a", 0), ("a", 1), ("a", 0)])
    ([0, 1, 0, 1], [0, 0, 1])
    """
    before: Counter[tuple[str, int]] = Counter()
    numbers: dict[tuple[str, int], int] = {}
    nodes = []
    for place in places:
        nodes.append(numbers.setdefault((place[0], before[place]), len(numbers)))
        before[place] += 1
    return nodes


def _environment() -> dict[str, str]:
    variables = rank_variables(os.environ)
    if variables is None:
        raise InputError("no torchrun or srun environment: start with `isobatch validate --nproc-per-node N`")
    return variables


def own_device(options: Options) -> torch.device:
    """Returns this rank's device, made the current one; more ranks than GPUs share them."""
    local_rank = int(_environment()["LOCAL_RANK"])
    gpus = torch.cuda.device_count() if options.device != "cpu" else 0
    if options.device == "cuda" and not gpus:
        raise must_be("cpu or auto; torch finds no CUDA device", options.device, field="device")
    if not gpus:
        return torch.device("cpu")
    device = torch.device("cuda", local_rank % gpus)
    torch.cuda.set_device(device)
    return device


def _backend(device: torch.device) -> str:
    """Returns the default group's backend for this kind of device: each kind may have another."""
    kinds = dict(item.split(":") for item in dist.get_backend_config().split(",") if ":" in item)
    return kinds.get(device.type, dist.get_backend())
