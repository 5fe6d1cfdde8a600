"""The processes of one validation: what they are, how they meet, and how it is noticed that one of them is gone."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, cast

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, Store, TCPStore

from isobatch.errors import InputError
from isobatch.validate import network
from isobatch.validate.options import Options
from isobatch.validate.report import Rank

BEAT_SECONDS = 0.5
LOST_SECONDS = 20.0  # without a sign of life: on a link that is full, they come late
SUSPECT_SECONDS = 5.0  # likewise, once torchrun has ended the run
GRACE_SECONDS = 5.0  # between a phase's limit and the end of the process

_runs = 0


class Group:
    """The processes: `rank`, `world_size`, `local_rank`, `node`, `nodes`, `device`, `backend`, `emulated` (several ranks on
    a device); `roster` has a Rank for each, without its speed."""

    def __init__(self, options: Options) -> None:
        global _runs
        found = network.environment(os.environ)
        if found is None:
            raise InputError(
                "no torchrun or srun environment: start with `isobatch validate --nproc-per-node N`"
            )
        self._made = not dist.is_initialized()
        # Only so many GPUs as this host has: more ranks share one, which NCCL does not do.
        gpus = torch.cuda.device_count() if options.device != "cpu" else 0
        if options.device == "cuda" and not gpus:
            raise InputError("'cuda' is not legal here: no CUDA device", field="device")
        self.rank, self.world_size = int(found["RANK"]), int(found["WORLD_SIZE"])
        self.local_rank = int(found["LOCAL_RANK"])
        self.device = torch.device("cuda", self.local_rank % gpus) if gpus else torch.device("cpu")
        if gpus:
            torch.cuda.set_device(self.device)
        self.limit = timedelta(seconds=options.phase_seconds)
        _runs += 1
        run = f"isobatch-{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}-{_runs}"
        if self._made:
            os.environ.update(found)
            network.set_interface()
            # What NCCL needs so that a lost rank ends the process within the limit and leaves a trace.
            os.environ.setdefault("TORCH_FR_BUFFER_SIZE", "2000")
            os.environ.setdefault("TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC", str(int(options.phase_seconds) + 60))
            hosts_store = self.rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
            if not hosts_store:
                network.probe(
                    found["MASTER_ADDR"], int(found["MASTER_PORT"]), min(30.0, options.phase_seconds)
                )
            self._store = self._connect(hosts_store)
        else:
            self._store = self._connect(hosts_store=False)
        gpu = str(torch.cuda.get_device_properties(self.device).uuid) if gpus else None
        self.emulated = gpu_is_shared(self._store, run, gpu, self.world_size, self.limit)
        if self._made:
            # From 2.30 on NCCL can have several ranks on a GPU, where it is told to.
            shared = self.emulated and os.environ.get("NCCL_MULTI_RANK_GPU_ENABLE") != "1"
            self.backend = "nccl" if gpus and not shared else "gloo"
            dist.init_process_group(
                self.backend,
                store=PrefixStore("isobatch-group", self._store),
                rank=self.rank,
                world_size=self.world_size,
                timeout=self.limit,
                device_id=self.device if self.backend == "nccl" else None,
            )
        else:
            self.backend = dist.get_backend()
        # Objects and barriers go over gloo in any case: it can name who is missing.
        self.control = cast(dist.ProcessGroup, dist.new_group(backend="gloo", timeout=self.limit))
        self.pulse = Pulse(self, run)
        hosts: list[str] = self.gather(socket.gethostname())
        first_of_node = [rank for rank, local in enumerate(self.gather(self.local_rank)) if local == 0]
        node_of = [sum(first <= rank for first in first_of_node) - 1 for rank in range(self.world_size)]
        self.node, self.nodes = node_of[self.rank], len(first_of_node)
        self.roster: list[Rank] = self.gather(
            Rank(
                rank=self.rank,
                host=hosts[self.rank],
                node=self.node,
                local_rank=self.local_rank,
                device=torch.cuda.get_device_name(self.device) if gpus else "cpu",
                device_memory_bytes=torch.cuda.get_device_properties(self.device).total_memory
                if gpus
                else None,
            )
        )
        self.pulse.hosts = hosts

    def _connect(self, hosts_store: bool) -> TCPStore:
        return TCPStore(
            os.environ["MASTER_ADDR"],
            int(os.environ["MASTER_PORT"]),
            is_master=hosts_store,
            timeout=self.limit,
            wait_for_workers=False,
        )

    def second_store(self) -> Store:
        """Another connection to the store, for another thread."""
        return self._connect(hosts_store=False)

    def gather(self, value: Any) -> list[Any]:
        """The values of all ranks, on all ranks."""
        values: list[Any] = [None] * self.world_size
        dist.all_gather_object(values, value, group=self.control)
        return values

    def from_first(self, value: Any) -> Any:
        """Rank 0's value."""
        values = [value]
        dist.broadcast_object_list(values, src=0, group=self.control)
        return values[0]

    def barrier(self) -> None:
        """Waits for all ranks; who does not come is named."""
        dist.monitored_barrier(group=self.control, timeout=self.limit, wait_all_ranks=True)

    def slowest(self, seconds: list[float]) -> list[float]:
        """The maximum over ranks of each value."""
        values = torch.tensor(seconds, dtype=torch.float64)
        dist.all_reduce(values, dist.ReduceOp.MAX, group=self.control)
        return cast(list[float], values.tolist())

    def sync(self) -> None:
        """Waits for this rank's device."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def time(self, work: Callable[[], None]) -> float:
        """Seconds that some work takes on this rank's device, started together with the other ranks."""
        self.sync()
        dist.barrier(group=self.control)
        if self.device.type == "cuda":
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
            start.record()
            work()
            end.record()
            end.synchronize()
            return float(start.elapsed_time(end)) / 1e3
        begun = time.perf_counter()
        work()
        return time.perf_counter() - begun

    def repeat(
        self, sample: Callable[[], float], seconds: float, warmup: int, least: int, most: int
    ) -> list[float]:
        """Samples after a warmup, for about so many seconds. Rank 0 says when to stop, and is asked ever more rarely: to ask
        takes about as long as a small all-reduce."""
        begun = time.monotonic()
        for _ in range(warmup):
            sample()
        samples = [sample() for _ in range(least)]
        while len(samples) < most and self.from_first(time.monotonic() - begun < seconds):
            more = min(max(1, len(samples) // 2), most - len(samples))
            samples += [sample() for _ in range(more)]
        return samples

    def close(self) -> None:
        """Leaves the processes as they were found."""
        self.pulse.stop()
        dist.destroy_process_group(self.control)
        if self._made:
            dist.destroy_process_group()


def gpu_is_shared(store: Store, run: str, gpu: str | None, ranks: int, limit: timedelta) -> bool:
    """Whether anywhere two ranks are on the same GPU: the same for all ranks, which all call it.

    It goes by the GPU's own number, not by how many a process sees: under Slurm each task may see just its own.

    Args:
        run: what is the same for these ranks, and for no others that the store has seen.
        gpu: this rank's GPU; None on a CPU.
    """
    if gpu is not None and store.add(f"{run}/gpu/{gpu}", 1) > 1:
        store.add(f"{run}/shared", 1)
    if store.add(f"{run}/told", 1) == ranks:
        store.set(f"{run}/all-told", "")
    store.wait([f"{run}/all-told"], limit)
    return bool(store.add(f"{run}/shared", 0))


class Pulse:
    """Signs of life in the store, and rank 0's watch over them.

    Each rank counts up a key of its own. Rank 0 notices a count that stands still, an error that a rank has left, or a phase
    over its limit, calls `on_loss` with what it knows, and ends the process; the other ranks end when rank 0 says so. A
    collective that waits for a lost rank would else hold everybody until its time-out, without a name.
    """

    def __init__(self, group: Group, key: str) -> None:
        self._group, self._key = group, key
        self._stop = threading.Event()
        self._deadline = float("inf")
        self._phase = "start"
        self._patience = LOST_SECONDS
        self.hosts: list[str] = []
        self.phase_seconds: dict[str, float] = {}
        self.on_loss: Callable[[str], None] = print
        self._store = group.second_store()
        self._thread = threading.Thread(target=self._beat, name="isobatch-pulse", daemon=True)
        self._thread.start()
        self._limiter = threading.Thread(target=self._limit, name="isobatch-limit", daemon=True)
        self._limiter.start()

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """A part of the run with a time limit."""
        begun = time.monotonic()
        self._phase = name
        self._deadline = begun + self._group.limit.total_seconds() + GRACE_SECONDS
        yield
        self.phase_seconds[name] = round(time.monotonic() - begun, 3)
        self._deadline = float("inf")

    def grant(self, seconds: float) -> None:
        """More time for this phase, since what it has to do is known to take that long."""
        self._deadline += seconds

    def fail(self, text: str) -> None:
        """Tells rank 0 what went wrong on this rank, and waits for the end."""
        self._group.second_store().set(f"{self._key}/error/{self._group.rank}", text)
        self.linger()

    def linger(self) -> None:
        """Goes on giving signs of life until rank 0 has ended the run."""
        self._patience = SUSPECT_SECONDS
        time.sleep(SUSPECT_SECONDS + 2 * GRACE_SECONDS)

    def stop(self) -> None:
        """Ends the watch. Rank 0's goes first, so that it takes nobody's leave for a loss."""
        if self._group.rank == 0:
            self._end_threads()
        self._group.barrier()
        self._end_threads()

    def _end_threads(self) -> None:
        self._stop.set()
        self._thread.join()
        self._limiter.join()

    def who(self, rank: int) -> str:
        """A rank by number and host."""
        return f"rank {rank} (host {self.hosts[rank]})" if self.hosts else f"rank {rank}"

    def _beat(self) -> None:
        rank, world_size = self._group.rank, self._group.world_size
        counts = dict.fromkeys(range(world_size), 0)
        moved = dict.fromkeys(range(world_size), time.monotonic())
        try:
            while not self._stop.wait(BEAT_SECONDS):
                self._store.add(f"{self._key}/beat/{rank}", 1)
                if rank:
                    if self._store.check([f"{self._key}/end"]):
                        os._exit(1)
                    continue
                now = time.monotonic()
                for other in range(1, world_size):
                    count = self._store.add(f"{self._key}/beat/{other}", 0)
                    if count != counts[other]:
                        counts[other], moved[other] = count, now
                failed = [r for r in range(world_size) if self._store.check([f"{self._key}/error/{r}"])]
                lost = [r for r, at in moved.items() if r and now - at > self._patience]
                if failed or lost:
                    self._end(self._account(failed, lost))
        except (dist.DistError, RuntimeError):
            # The store is gone: with it rank 0's host, or the way to it. The main thread's collective says so too.
            if not self._stop.is_set() and rank:
                time.sleep(GRACE_SECONDS)
                print(f"isobatch: {self.who(rank)} lost rank 0 in phase {self._phase!r}", flush=True)
                os._exit(1)

    def _account(self, failed: list[int], lost: list[int]) -> str:
        said = [
            f"{self.who(r)} failed: {self._store.get(f'{self._key}/error/{r}').decode(errors='replace')}"
            for r in failed
        ]
        # Who only reports that a connection broke is a witness, not the cause.
        own = [text for text in said if not _is_witness(text)]
        gone = [
            f"{self.who(r)} gave no sign of life for {self._patience:g} s: dead, or cut off" for r in lost
        ]
        if said and not own and not gone:
            time.sleep(SUSPECT_SECONDS)
            before = [self._store.add(f"{self._key}/beat/{r}", 0) for r in range(self._group.world_size)]
            time.sleep(3 * BEAT_SECONDS)
            after = [self._store.add(f"{self._key}/beat/{r}", 0) for r in range(self._group.world_size)]
            gone = [
                f"{self.who(r)} is dead or cut off"
                for r in range(1, self._group.world_size)
                if before[r] == after[r]
            ]
        return "; ".join(dict.fromkeys(own + gone or said))

    def _end(self, text: str) -> None:
        try:
            self.on_loss(f"in phase {self._phase!r}: {text}")
            self._store.set(f"{self._key}/end", "")
            time.sleep(2 * BEAT_SECONDS)
        finally:
            os._exit(1)

    def _limit(self) -> None:
        while not self._stop.wait(BEAT_SECONDS):
            if time.monotonic() > self._deadline:
                limit = self._group.limit.total_seconds()
                text = f"{self.who(self._group.rank)} is over the phase's limit of {limit:g} s"
                if self._group.rank == 0:
                    self._end(text)
                print(f"isobatch: {text}: {self._phase}", flush=True)
                os._exit(1)


def _is_witness(text: str) -> bool:
    return any(
        sign in text for sign in ("Connection closed", "Connection reset", "Timed out", "monitoredBarrier")
    )
