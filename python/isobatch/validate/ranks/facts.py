"""Each rank's facts of its host, agreed through the store before the ranks connect: where hosts differ, they would wait for each
other, and nobody would say why."""

from __future__ import annotations

import contextlib
import ctypes
import os
import socket
from collections import Counter
from collections.abc import Iterable
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch._C._distributed_c10d import Store

from isobatch.errors import InputError
from isobatch.words import few


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """One rank: `machine` is its host's own mark, since host names may repeat; `address` is how it reaches rank 0; `bus` is the place
    of its GPU, which the slices of a divided GPU share."""

    host: str
    machine: str
    address: str | None
    ranks: int
    local_rank: int
    device: str
    gpu: str | None = None
    gpu_memory_bytes: int | None = None
    gpus: int = 0
    bus: str | None = None
    driver: str | None = None
    nccl: str | None = None


def find(ranks: int, local_rank: int, device: torch.device, address: str | None) -> Facts:
    """This rank's."""
    here = Facts(
        host=socket.gethostname(),
        machine=_read("/proc/sys/kernel/random/boot_id") or socket.gethostname(),
        address=address,
        ranks=ranks,
        local_rank=local_rank,
        device=device.type,
    )
    if device.type != "cuda":
        return here
    gpu: Any = torch.cuda.get_device_properties(device)
    parts = [getattr(gpu, f"pci_{part}_id", None) for part in ("domain", "bus", "device")]
    return msgspec.structs.replace(
        here,
        gpu=gpu.name,
        gpu_memory_bytes=gpu.total_memory,
        gpus=torch.cuda.device_count(),
        bus=str(gpu.uuid) if None in parts else ":".join(f"{part:02x}" for part in parts),
        driver=_read("/sys/module/nvidia/version"),
        nccl=nccl_version(),
    )


def _read(file: str) -> str | None:
    with contextlib.suppress(OSError):
        return Path(file).read_text().strip()
    return None


def nccl_version() -> str | None:
    """Returns the version of the loaded NCCL, another than torch was built with where one is preloaded; None without one."""
    version = ctypes.c_int()
    try:
        loaded = ctypes.CDLL("libnccl.so.2", mode=os.RTLD_NOLOAD)
        if loaded.ncclGetVersion(ctypes.byref(version)):
            return None
    except (OSError, AttributeError):  # linked into torch itself
        if not torch.distributed.is_nccl_available():
            return None
        return ".".join(map(str, torch.cuda.nccl.version()))  # type: ignore[no-untyped-call]
    number = version.value
    major, rest = divmod(number, 10_000 if number >= 10_000 else 1_000)
    return f"{major}.{rest // 100}.{rest % 100}"


def agree(store: Store, run: str, rank: int, mine: Facts, limit: timedelta) -> list[Facts]:
    """Returns the facts of all ranks; all of them call this.

    Args:
        run: what is the same for these ranks, and for no others that the store has seen.
        limit: how long to wait for the last one.

    Raises:
        InputError: ranks did not come, were started as another number of ranks, or have another kind of device.
    """
    keys = [f"{run}/facts/{other}" for other in range(mine.ranks)]
    store.set(keys[rank], msgspec.json.encode(mine).decode())
    late = False
    try:
        store.wait(keys, limit)
    except RuntimeError:  # torch's DistStoreError is one
        late = True
    try:
        present = {other: key for other, key in enumerate(keys) if not late or store.check([key])}
        read = store.multi_get(list(present.values()))
    except RuntimeError:  # rank 0 has the store, and has seen it first
        raise InputError(
            "rank 0 has ended the run before all ranks had come: look at what it logged"
        ) from None
    found = {other: msgspec.json.decode(text, type=Facts) for other, text in zip(present, read, strict=True)}
    _refuse_unlike(found)
    if late:
        missing = [other for other in range(mine.ranks) if other not in found]
        raise InputError(
            f"{named(missing)} of {mine.ranks} did not come within {limit.total_seconds():g} s: start all of them, and look at "
            "what they logged"
        )
    return [found[other] for other in range(mine.ranks)]


def _refuse_unlike(found: dict[int, Facts]) -> None:
    """Refuses hosts that differ where ranks would then wait for each other."""
    for field, what, todo in (
        ("ranks", "were started with different numbers of ranks", "use the same everywhere"),
        ("device", "have different devices", "look at the GPUs of {cpu} (nvidia-smi), or pass --device cpu"),
        ("nccl", "have loaded different versions of NCCL", "use the same everywhere"),
    ):
        hosts = _hosts(found, field)
        if len(hosts) > 1:
            each = ", ".join(f"{value} on {names}" for value, names in hosts.items())
            raise InputError(f"the hosts {what}: {each}; {todo.format(cpu=hosts.get('cpu'))}")


def _hosts(found: dict[int, Facts], field: str) -> dict[object, str]:
    """Names the hosts by their value of a field."""
    hosts: dict[object, dict[str, None]] = {}
    for facts in found.values():
        hosts.setdefault(getattr(facts, field), {})[facts.host] = None
    return {value: few(names) for value, names in hosts.items()}


def gpu_is_shared(found: Iterable[Facts]) -> bool:
    """Tells whether anywhere two ranks are on the same GPU, or on two slices of one: NCCL refuses both.

    It goes by the GPU's place in its host, not by how many a process sees: under Slurm each task may see just its own.
    """
    places = Counter((facts.machine, facts.bus) for facts in found if facts.bus is not None)
    return any(count > 1 for count in places.values())


def named(ranks: list[int]) -> str:
    """Names some ranks by number, the first ones where they are many.

    >>> named([3]), named([1, 2]), named(list(range(100)))
    ('rank 3', 'ranks 1, 2', 'ranks 0, 1, 2, 3, 4, 5, 6, 7 and 92 more')
    """
    return f"rank{'s' if len(ranks) > 1 else ''} {few(map(str, ranks))}"
