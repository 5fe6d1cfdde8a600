"""How a process finds the others: launcher's environment, rendezvous, network interface, facts of all hosts.

It needs no torch until a rank looks for its own facts.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import socket
import struct
import sys
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from isobatch.errors import InputError
from isobatch.words import few, few_ranks

if TYPE_CHECKING:
    import torch
    from torch._C._distributed_c10d import Store


def probe(host: str, port: int, seconds: float) -> None:
    """Waits until somebody listens at this host and port: torchrun alone would try for 15 minutes."""
    end = time.monotonic() + seconds
    while True:
        try:
            with socket.create_connection((host, port), timeout=max(0.1, end - time.monotonic())):
                return
        except socket.gaierror as error:
            text = f"the name {host!r} does not resolve: {error.strerror}"
            raise InputError(text, field="rendezvous") from None
        except OSError as error:
            if time.monotonic() > end:
                waited = f"no answer at {host}:{port} within {seconds:g} s ({error})"
                text = f"{waited}: is rank 0 up, and the port open?"
                raise InputError(text, field="rendezvous") from None
        time.sleep(0.1)


def allow_connections(ranks: int) -> None:
    """Raises the store's limit of open files: a rank connects up to four times."""
    if sys.platform == "win32":
        return  # no such limit
    import resource

    needed = 4 * ranks + 256
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return
    if hard != resource.RLIM_INFINITY and hard < needed:
        raise InputError(
            f"{ranks} ranks need {needed} open files on the host of rank 0, where the limit is {hard} "
            "(ulimit -Hn): raise it",
            field="rendezvous",
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))


def address_towards(host: str) -> str | None:
    """Returns this host's own address on the way to another; None where the system knows no way."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        try:
            asking.connect((host, 9))  # UDP: only asks for the route, sends nothing
        except OSError:
            return None
        return str(asking.getsockname()[0])


def _interface_of(address: str) -> str | None:
    """Finds the network interface of an address; None where none has it."""
    if sys.platform == "win32":
        return None
    import fcntl

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        for _, name in socket.if_nameindex():
            request = struct.pack("256s", name.encode()[:15])
            try:
                reply = fcntl.ioctl(asking.fileno(), 0x8915, request)  # SIOCGIFADDR
            except OSError:
                continue
            if socket.inet_ntoa(reply[20:24]) == address:
                return name
    return None


def set_interface(own: str | None, addresses: Sequence[str | None]) -> None:
    """Sets gloo's interface by the way to another host: by itself it may take the loopback."""
    elsewhere = [address for address in addresses if address is not None and not address.startswith("127.")]
    if elsewhere and (own is None or own.startswith("127.")):
        own = address_towards(elsewhere[0])
    name = None if own is None else _interface_of(own)
    if name is not None:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", name)


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """One rank's host and device. `machine` marks a host (names repeat), `bus` a GPU with all its slices."""

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


def find_facts(ranks: int, local_rank: int, device: torch.device, address: str | None) -> Facts:
    """Finds this rank's facts."""
    import torch

    of_gpu: dict[str, Any] = {}
    if device.type == "cuda":
        gpu: Any = torch.cuda.get_device_properties(device)
        parts = [getattr(gpu, f"pci_{part}_id", None) for part in ("domain", "bus", "device")]
        of_gpu = {
            "gpu": gpu.name,
            "gpu_memory_bytes": gpu.total_memory,
            "gpus": torch.cuda.device_count(),
            "bus": str(gpu.uuid) if None in parts else ":".join(f"{part:02x}" for part in parts),
            "driver": _read("/sys/module/nvidia/version"),
            "nccl": nccl_version(),
        }
    return Facts(
        host=socket.gethostname(),
        machine=_read("/proc/sys/kernel/random/boot_id") or socket.gethostname(),
        address=address,
        ranks=ranks,
        local_rank=local_rank,
        device=device.type,
        **of_gpu,
    )


def _read(file: str) -> str | None:
    with contextlib.suppress(OSError):
        return Path(file).read_text(encoding="utf-8").strip()
    return None


def nccl_version() -> str | None:
    """Returns the version of the loaded NCCL, perhaps not the one torch was built with; None without one."""
    import torch

    if not torch.distributed.is_nccl_available():
        return None
    version = ctypes.c_int()
    try:
        ctypes.CDLL("libnccl.so.2", mode=getattr(os, "RTLD_NOLOAD", 0)).ncclGetVersion(ctypes.byref(version))
    except OSError:  # NCCL is linked into torch itself
        return ".".join(map(str, torch.cuda.nccl.version()))  # type: ignore[no-untyped-call]
    return f"{version.value // 10_000}.{version.value // 100 % 100}.{version.value % 100}"


def agree(store: Store, run: str, rank: int, own: Facts, limit: timedelta) -> list[Facts]:
    """Returns the facts of all ranks, or refuses late and unlike ones; `run` names these ranks' keys."""
    keys = [f"{run}/facts/{peer}" for peer in range(own.ranks)]
    missing: list[int] = []
    store.set(keys[rank], msgspec.json.encode(own).decode())
    try:
        try:
            store.wait(keys, limit)
        except RuntimeError:  # torch's DistStoreError is one
            missing = [peer for peer, key in enumerate(keys) if not store.check([key])]
        texts = store.multi_get([key for peer, key in enumerate(keys) if peer not in missing])
    except RuntimeError:  # rank 0 hosts the store, and has already left
        raise InputError("rank 0 ended the run before all ranks arrived: see its log") from None
    facts = [msgspec.json.decode(text, type=Facts) for text in texts]
    _refuse_unlike(facts)
    if missing:
        raise InputError(
            f"{few_ranks(missing)} of {own.ranks} did not arrive within {limit.total_seconds():g} s: start "
            "all of them, and see their logs"
        )
    return facts


def _refuse_unlike(facts: list[Facts]) -> None:
    """Refuses hosts with differences in the way of a connection."""
    for field, description, todo in (
        ("ranks", "were started with different numbers of ranks", "use the same everywhere"),
        ("device", "have different devices", "look at the GPUs of {cpu} (nvidia-smi), or pass --device cpu"),
        ("nccl", "have loaded different versions of NCCL", "use the same everywhere"),
    ):
        hosts: dict[object, dict[str, None]] = {}
        for rank_facts in facts:
            hosts.setdefault(getattr(rank_facts, field), {})[rank_facts.host] = None
        if len(hosts) > 1:
            each = ", ".join(f"{value} on {few(names)}" for value, names in hosts.items())
            raise InputError(f"the hosts {description}: {each}; {todo.format(cpu=few(hosts.get('cpu', ())))}")


def gpu_is_shared(facts: Iterable[Facts]) -> bool:
    """Tells whether two ranks are on one GPU, by its place: under Slurm each may see just its own."""
    places = Counter((rank.machine, rank.bus) for rank in facts if rank.bus is not None)
    return any(count > 1 for count in places.values())
