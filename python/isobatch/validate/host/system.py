"""A check's result, and a host without its GPUs: the kernel's log, InfiniBand, RoCE and EFA ports, limits. No tool is needed."""

from __future__ import annotations

import contextlib
import os
import re
import resource
import subprocess
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from isobatch.diagnosis.causes import Cause
from isobatch.validate.figures import Port

KMSG = Path("/dev/kmsg")
XID = re.compile(r"NVRM: Xid \((?:PCI:)?([0-9a-fA-F:.]+)\): (\d+)(?:, (.*))?")
XIDS_OF_PROGRAMS = {13, 31, 43, 45}
"""Errors that a program makes by itself (an illegal access, an end in the middle of a kernel); the others are the GPU's, its memory's, its
link's or the driver's."""

PORTS = Path("/sys/class/infiniband")
NO_PORT = "this host has no InfiniBand, RoCE or EFA device"
PORT_ERRORS = {
    "link_downed": "times the link went down",
    "symbol_error": "symbol errors",
    "link_error_recovery": "link recoveries",
    "local_link_integrity_errors": "link integrity errors",
    "port_rcv_errors": "receive errors",
    "VL15_dropped": "dropped management packets",
}
"""Of `counters/`: what a healthy link does not count up. port_xmit_discards and port_xmit_wait are congestion's, and left out."""

MIN_SHM_BYTES = 1 << 30
"""NCCL and the workers of a loader share memory there; a container has 64 MiB by default (--shm-size)."""


MAX_FINDINGS, MAX_CHARACTERS = 8, 160
"""Of a rank, which travel to the others, each cut to so many characters: 512 ranks may all have some."""


class HostFault(msgspec.Struct, frozen=True):
    """A bad (`fails`) or suspicious state, in words without the host's name, and its cause."""

    text: str
    cause: Cause
    fails: bool = False


class CheckResult(msgspec.Struct, frozen=True, kw_only=True):
    """A check's answer on one rank: why it could not be asked, or what is bad, with what it saw in a few words."""

    why_not: str | None = None
    findings: tuple[HostFault, ...] = ()
    seen: str = ""

    def short(self) -> CheckResult:
        """Cuts it to as much as travels."""
        cut = tuple(
            msgspec.structs.replace(one, text=one.text[:MAX_CHARACTERS])
            for one in self.findings[:MAX_FINDINGS]
        )
        return msgspec.structs.replace(self, findings=cut, seen=self.seen[:MAX_CHARACTERS])


def most(values: Iterable[Any]) -> Any:
    """Returns the most frequent value; of several, the first.

    >>> most([12, 12, 9])
    12
    """
    row = list(values)
    return max(row, key=row.count)


class Xid(NamedTuple):
    """A GPU's error in its driver's log: its place on the bus, the error's number, what the driver said more."""

    bus: str
    number: int
    more: str


def xids(log: str) -> list[Xid]:
    """Finds the errors in a kernel's log.

    >>> xids("[5.1] NVRM: Xid (PCI:0000:3b:00): 79, pid=1234, name=python, GPU has fallen off the bus.")[0].number
    79
    """
    return [Xid(found[1].lower(), int(found[2]), found[3] or "") for found in XID.finditer(log)]


def kernel_log(kmsg: Path = KMSG) -> str | None:
    """Reads the kernel's log since the host was started, or what is left of it; None where this user may not read it."""
    records: list[str] = []
    with contextlib.suppress(OSError):
        reading = os.open(kmsg, os.O_RDONLY | os.O_NONBLOCK)
        try:
            while True:
                try:
                    record = os.read(reading, 8192)
                except BlockingIOError:  # the end
                    return "\n".join(records)
                except BrokenPipeError:  # a record was overwritten meanwhile
                    continue
                if not record:  # the end of a plain file
                    return "\n".join(records)
                records.append(record.decode(errors="replace"))
        finally:
            os.close(reading)
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        words = ["dmesg"]
        return subprocess.run(
            words, capture_output=True, text=True, errors="replace", timeout=10, check=True
        ).stdout
    return None


def check_log(text: str | None, before: str | None = None) -> CheckResult:
    """Looks for errors of GPUs since the host was started; or, with the log from `before`, since then."""
    if text is None:
        return CheckResult(why_not="this user may not read the kernel's log (dmesg)")
    found = xids(text if before is None else _added(before, text))
    own: dict[tuple[str, int], list[Xid]] = {}
    for one in found:
        if one.number not in XIDS_OF_PROGRAMS:
            own.setdefault((one.bus, one.number), []).append(one)
    findings = tuple(
        HostFault(
            f"XID {number} of the GPU at {bus}, {len(each)} ×: {each[-1].more[:80]}",
            Cause.XID,
            before is not None,
        )
        for (bus, number), each in own.items()
    )
    since = "since the validation began" if before is not None else "since the host was started"
    programs = len(found) - sum(map(len, own.values()))
    seen = f"no XID of a GPU {since}" + (f" ({programs} of programs)" if programs else "")
    return CheckResult(findings=findings, seen=seen)


def _added(before: str, after: str) -> str:
    """Returns the added lines: by their times and not by their number, for a full log drops its oldest."""
    known = Counter(before.splitlines())
    lines = []
    for line in after.splitlines():
        if known[line]:
            known[line] -= 1
        else:
            lines.append(line)
    return "\n".join(lines)


def read_ports(root: Path = PORTS) -> list[Port]:
    """Reads the ports of this host, in order."""
    found = []
    for port in sorted(root.glob("*/ports/*")):
        device = port.parent.parent
        rate = re.match(r"[\d.]+", _text(port / "rate"))
        counts = {name: _text(port / "counters" / name) for name in PORT_ERRORS}
        found.append(
            Port(
                name=f"{device.name}:{port.name}",
                kind=_kind(device, port),
                # "4: ACTIVE"
                state=_text(port / "state").partition(": ")[2] or "unknown",
                rate_gbit_s=float(rate[0]) if rate else None,
                errors={name: int(text) for name, text in counts.items() if text.isdigit()},
            )
        )
    return found


def _kind(device: Path, port: Path) -> str:
    with contextlib.suppress(OSError):
        if (device / "device" / "driver").resolve(strict=True).name == "efa":
            return "EFA"
    return {"InfiniBand": "InfiniBand", "Ethernet": "RoCE"}.get(_text(port / "link_layer"), "RDMA")


def _text(file: Path) -> str:
    with contextlib.suppress(OSError):
        return file.read_text().strip()
    return ""


def check_ports(hosts: Mapping[str, Sequence[Port]]) -> dict[str, CheckResult]:
    """Checks whether each host's ports are up, and as fast as the same port of most hosts.

    Args:
        hosts: by name, the ports that `read_ports` found there.
    """
    usual: dict[str, list[Port]] = {}
    for ports in hosts.values():
        for port in ports:
            usual.setdefault(port.name, []).append(port)
    count = most(len(ports) for ports in hosts.values())
    return {host: _check_ports(ports, usual, count, len(hosts)) for host, ports in hosts.items()}


def _check_ports(
    ports: Sequence[Port], usual: Mapping[str, Sequence[Port]], count: int, hosts: int
) -> CheckResult:
    if not ports and not count:
        return CheckResult(why_not=NO_PORT)
    findings = []
    if len(ports) != count:
        text = f"{len(ports)} ports, where most hosts have {count}"
        findings.append(HostFault(text, Cause.PORT, len(ports) < count))
    for port in ports:
        states = most(one.state for one in usual[port.name])
        rate = most(one.rate_gbit_s for one in usual[port.name])
        if port.state != "ACTIVE" and (states == "ACTIVE" or hosts == 1) and port.kind != "RoCE":
            findings.append(HostFault(f"{port.kind} port {port.name} is {port.state}", Cause.PORT, hosts > 1))
        elif port.rate_gbit_s is not None and rate is not None and port.rate_gbit_s < rate:
            text = f"{port.kind} port {port.name} has {port.rate_gbit_s:g} Gbit/s, elsewhere {rate:g}"
            findings.append(HostFault(text, Cause.PORT))
    active = [port for port in ports if port.state == "ACTIVE"]
    kinds = ", ".join(dict.fromkeys(f"{port.kind} {port.rate_gbit_s or 0:g} Gbit/s" for port in active))
    seen = f"{len(active)} of {len(ports)} ports active" + (f" ({kinds})" if kinds else "")
    return CheckResult(findings=tuple(findings), seen=seen)


def compare_ports(before: Sequence[Port], after: Sequence[Port]) -> CheckResult:
    """Checks whether a host's ports have counted errors between two looks."""
    if not after:
        return CheckResult(why_not=NO_PORT)
    was = {port.name: port for port in before}
    findings = []
    for port in after:
        earlier = was[port.name].errors if port.name in was else {}
        for name, count in port.errors.items():
            more = count - earlier.get(name, count)
            if more > 0:
                text = f"port {port.name} counted {more} {PORT_ERRORS[name]} meanwhile"
                findings.append(HostFault(text, Cause.PORT, name == "link_downed"))
        if port.name in was and was[port.name].state == "ACTIVE" != port.state:
            findings.append(HostFault(f"port {port.name} has become {port.state}", Cause.PORT, True))
    if not any(port.errors for port in after):
        return CheckResult(why_not="its ports count no link errors (EFA has none in sysfs)")
    return CheckResult(findings=tuple(findings), seen="no port counted an error meanwhile")


def check_limits(*, cuda: bool, ports: int, bus: str | None, root: Path = Path("/")) -> CheckResult:
    """Checks limits that break or slow a job: locked memory, shared memory, processors of another NUMA node, a processor quota.

    Args:
        cuda: whether the job uses GPUs; without, shared memory is only reported.
        ports: InfiniBand, RoCE and EFA ports of this host, which need locked memory.
        bus: this rank's GPU, such as "00000000:3B:00.0".
        root: where /sys, /proc and /dev are.
    """
    findings, seen = [], []
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    seen.append("memlock " + ("unlimited" if soft == resource.RLIM_INFINITY else f"{soft / 2**20:.4g} MiB"))
    if ports and soft != resource.RLIM_INFINITY:
        text = f"locked memory is limited to {soft / 2**20:.4g} MiB, which RDMA needs"
        findings.append(HostFault(text, Cause.HOST_LIMIT))
    shared = shared_memory(root / "dev/shm")
    if shared is not None:
        seen.append(f"/dev/shm {shared / 2**30:.3g} GiB")
        if cuda and shared < MIN_SHM_BYTES:
            findings.append(HostFault(f"/dev/shm has {shared / 2**20:.4g} MiB", Cause.HOST_LIMIT))
    with contextlib.suppress(OSError, ValueError):
        allowed, period = (root / "sys/fs/cgroup/cpu.max").read_text().split()
        seen.append(f"a quota of {int(allowed) / int(period):.3g} processors")  # "max" is no number
    if bus is not None:
        findings += _far(bus, os.sched_getaffinity(0), root)
    return CheckResult(findings=tuple(findings), seen=", ".join(seen))


def shared_memory(folder: Path) -> int | None:
    """Returns the size of a file system, bytes; None where there is none."""
    with contextlib.suppress(OSError):
        found = os.statvfs(folder)
        return found.f_blocks * found.f_frsize
    return None


def _far(bus: str, allowed: set[int], root: Path) -> Iterator[HostFault]:
    """Finds a process that may run on no processor near its GPU."""
    domain, _, rest = bus.partition(":")
    device = root / "sys/bus/pci/devices" / f"{domain[-4:]}:{rest}".lower()
    with contextlib.suppress(OSError, ValueError):
        node = int((device / "numa_node").read_text())
        if node < 0:  # the host has one, or does not tell
            return
        near = processors((root / f"sys/devices/system/node/node{node}/cpulist").read_text())
        if near and not near & allowed:
            text = f"this rank is bound to processors away from its GPU, which is at NUMA node {node}"
            yield HostFault(text, Cause.HOST_LIMIT)


def processors(text: str) -> set[int]:
    """Reads the processors of a kernel's list.

    >>> sorted(processors("0-2,8"))
    [0, 1, 2, 8]
    """
    found: set[int] = set()
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        found |= set(range(int(first), int(last or first) + 1))
    return found
