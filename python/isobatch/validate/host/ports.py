"""InfiniBand, RoCE and EFA ports of a host, by the kernel's sysfs: no tool and no rights are needed."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from isobatch.diagnosis.causes import Cause
from isobatch.validate.host.finding import Finding, Found, most
from isobatch.validate.report.figures import Port

ROOT = Path("/sys/class/infiniband")
NONE = "this host has no InfiniBand, RoCE or EFA device"
COUNTERS = {
    "link_downed": "times the link went down",
    "symbol_error": "symbol errors",
    "link_error_recovery": "link recoveries",
    "local_link_integrity_errors": "link integrity errors",
    "port_rcv_errors": "receive errors",
    "VL15_dropped": "dropped management packets",
}
"""Of `counters/`: what a healthy link does not count up. port_xmit_discards and port_xmit_wait are congestion's, and left out."""


def read(root: Path = ROOT) -> list[Port]:
    """The ports of this host, in order."""
    found = []
    for port in sorted(root.glob("*/ports/*")):
        device = port.parent.parent
        rate = re.match(r"[\d.]+", _text(port / "rate"))
        found.append(
            Port(
                name=f"{device.name}:{port.name}",
                kind=_kind(device, port),
                # "4: ACTIVE"
                state=_text(port / "state").partition(": ")[2] or "unknown",
                rate_gbit_s=float(rate[0]) if rate else None,
                errors={
                    name: count
                    for name in COUNTERS
                    if (count := _count(port / "counters" / name)) is not None
                },
            )
        )
    return found


def _kind(device: Path, port: Path) -> str:
    driver = device / "device" / "driver"
    with contextlib.suppress(OSError):
        if driver.resolve(strict=True).name == "efa":
            return "EFA"
    return {"InfiniBand": "InfiniBand", "Ethernet": "RoCE"}.get(_text(port / "link_layer"), "RDMA")


def _text(file: Path) -> str:
    with contextlib.suppress(OSError):
        return file.read_text().strip()
    return ""


def _count(file: Path) -> int | None:
    with contextlib.suppress(OSError, ValueError):
        return int(file.read_text())
    return None


def check(hosts: Mapping[str, Sequence[Port]]) -> dict[str, Found]:
    """Whether each host's ports are up, and as fast as the same port of most hosts.

    Args:
        hosts: by name, the ports that `read` found there.
    """
    usual: dict[str, list[Port]] = {}
    for ports in hosts.values():
        for port in ports:
            usual.setdefault(port.name, []).append(port)
    counts = most(len(ports) for ports in hosts.values())
    return {host: _check(ports, usual, counts, len(hosts)) for host, ports in hosts.items()}


def _check(ports: Sequence[Port], usual: Mapping[str, Sequence[Port]], count: int, hosts: int) -> Found:
    if not ports and not count:
        return Found(why_not=NONE)
    findings = []
    if len(ports) != count:
        findings.append(
            Finding(f"{len(ports)} ports, where most hosts have {count}", Cause.PORT, len(ports) < count)
        )
    for port in ports:
        states = most(one.state for one in usual[port.name])
        rate = most(one.rate_gbit_s for one in usual[port.name])
        if port.state != "ACTIVE" and (states == "ACTIVE" or hosts == 1) and port.kind != "RoCE":
            findings.append(Finding(f"{port.kind} port {port.name} is {port.state}", Cause.PORT, hosts > 1))
        elif port.rate_gbit_s is not None and rate is not None and port.rate_gbit_s < rate:
            text = f"{port.kind} port {port.name} has {port.rate_gbit_s:g} Gbit/s, elsewhere {rate:g}"
            findings.append(Finding(text, Cause.PORT))
    return Found(findings=tuple(findings), seen=_seen(ports))


def _seen(ports: Sequence[Port]) -> str:
    active = [port for port in ports if port.state == "ACTIVE"]
    kinds = dict.fromkeys(f"{port.kind} {port.rate_gbit_s or 0:g} Gbit/s" for port in active)
    return f"{len(active)} of {len(ports)} ports active" + (f" ({', '.join(kinds)})" if kinds else "")


def grown(before: Sequence[Port], after: Sequence[Port]) -> Found:
    """Whether a host's ports have counted errors between two looks."""
    if not after:
        return Found(why_not=NONE)
    was = {port.name: port for port in before}
    findings = []
    for port in after:
        earlier = was[port.name].errors if port.name in was else {}
        for name, count in port.errors.items():
            more = count - earlier.get(name, count)
            if more > 0:
                text = f"port {port.name} counted {more} {COUNTERS[name]} meanwhile"
                findings.append(Finding(text, Cause.PORT, name == "link_downed"))
        if port.name in was and was[port.name].state == "ACTIVE" != port.state:
            findings.append(Finding(f"port {port.name} has become {port.state}", Cause.PORT, True))
    if not any(port.errors for port in after):
        return Found(why_not="its ports count no link errors (EFA has none in sysfs)")
    return Found(findings=tuple(findings), seen="no port counted an error meanwhile")
