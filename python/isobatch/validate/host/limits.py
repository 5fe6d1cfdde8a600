"""Limits of a host that break or slow a job: locked memory, shared memory, processors of another NUMA node, a processor quota."""

from __future__ import annotations

import contextlib
import os
import resource
from collections.abc import Iterator
from pathlib import Path

from isobatch.diagnosis.causes import Cause
from isobatch.validate.host.finding import Finding, Found

SHM_BYTES = 1 << 30
"""NCCL and the workers of a loader share memory there; a container has 64 MiB unless it is told (--shm-size)."""
THROTTLED = 0.01
"""Of the time that a quota stopped this container's processes."""


def check(*, cuda: bool, ports: int, bus: str | None, root: Path = Path("/")) -> Found:
    """The limits of this process and its host.

    Args:
        cuda: whether the job uses GPUs; without, shared memory is only said.
        ports: InfiniBand, RoCE and EFA ports of this host, which need locked memory.
        bus: this rank's GPU, such as "00000000:3B:00.0".
        root: where /sys, /proc and /dev are.
    """
    findings, seen = [], []
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    seen.append("memlock " + ("unlimited" if soft == resource.RLIM_INFINITY else f"{soft / 2**20:.4g} MiB"))
    if ports and soft != resource.RLIM_INFINITY:
        findings.append(
            Finding(f"locked memory is limited to {soft / 2**20:.4g} MiB, which RDMA needs", Cause.HOST_LIMIT)
        )
    shared = shared_memory(root / "dev/shm")
    if shared is not None:
        seen.append(f"/dev/shm {shared / 2**30:.3g} GiB")
        if cuda and shared < SHM_BYTES:
            findings.append(Finding(f"/dev/shm has {shared / 2**20:.4g} MiB", Cause.HOST_LIMIT))
    quota = processors(root)
    if quota is not None:
        seen.append(f"a quota of {quota:.3g} processors")
    if bus is not None:
        findings += _far(bus, os.sched_getaffinity(0), root)
    return Found(findings=tuple(findings), seen=", ".join(seen))


def shared_memory(folder: Path) -> int | None:
    """The size of a file system, bytes; None where there is none."""
    with contextlib.suppress(OSError):
        found = os.statvfs(folder)
        return found.f_blocks * found.f_frsize
    return None


def processors(root: Path) -> float | None:
    """How many processors a quota leaves this container; None without one."""
    with contextlib.suppress(OSError, ValueError):
        allowed, period = (root / "sys/fs/cgroup/cpu.max").read_text().split()
        return int(allowed) / int(period)  # "max" is no number
    return None


def throttled_seconds(root: Path = Path("/")) -> float | None:
    """How long a quota has stopped this container's processes so far; None where nothing counts it."""
    for file, name, unit in (("cpu.stat", "throttled_usec", 1e6), ("cpu/cpu.stat", "throttled_time", 1e9)):
        with contextlib.suppress(OSError, ValueError):
            lines = dict(line.split() for line in (root / "sys/fs/cgroup" / file).read_text().splitlines())
            if name in lines:
                return int(lines[name]) / unit
    return None


def _far(bus: str, allowed: set[int], root: Path) -> Iterator[Finding]:
    """Whether this process may run on no processor that is near its GPU."""
    domain, _, rest = bus.partition(":")
    device = root / "sys/bus/pci/devices" / f"{domain[-4:]}:{rest}".lower()
    with contextlib.suppress(OSError, ValueError):
        node = int((device / "numa_node").read_text())
        if node < 0:  # the host has one, or does not tell
            return
        near = numbers((root / f"sys/devices/system/node/node{node}/cpulist").read_text())
        if near and not near & allowed:
            yield Finding(
                f"this rank is bound to processors away from its GPU, which is at NUMA node {node}",
                Cause.HOST_LIMIT,
            )


def numbers(text: str) -> set[int]:
    """The processors of a kernel's list.

    >>> sorted(numbers("0-2,8"))
    [0, 1, 2, 8]
    """
    found: set[int] = set()
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        found |= set(range(int(first), int(last or first) + 1))
    return found


def throttled(before: float | None, after: float | None, seconds: float) -> Found:
    """Whether a quota stopped this container during the validation."""
    if before is None or after is None:
        return Found(why_not="nothing counts here how long a processor quota stopped this container (cgroup)")
    share = (after - before) / seconds
    findings: tuple[Finding, ...] = ()
    if share > THROTTLED:
        findings = (
            Finding(
                f"a processor quota stopped this container for {share:.0%} of the time", Cause.HOST_LIMIT
            ),
        )
    return Found(findings=findings, seen=f"stopped by a processor quota for {share:.0%} of the time")
