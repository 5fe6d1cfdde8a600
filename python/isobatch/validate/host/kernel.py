"""The kernel's log, where NVIDIA's driver reports the errors of a GPU by number (XID)."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from isobatch.diagnosis.causes import Cause
from isobatch.validate.host.finding import Finding, Found

KMSG = Path("/dev/kmsg")
LINE = re.compile(r"NVRM: Xid \((?:PCI:)?([0-9a-fA-F:.]+)\): (\d+)(?:, (.*))?")
PROGRAMS = {13, 31, 43, 45}
"""Errors that a program makes by itself (an illegal access, an end in the middle of a kernel); the others are the GPU's, its memory's, its
link's or the driver's."""


class Xid(NamedTuple):
    """An error of a GPU: its place on the bus, the error's number, what the driver said more."""

    bus: str
    number: int
    more: str


def parse(log: str) -> list[Xid]:
    """The errors in a kernel's log.

    >>> parse("[5.1] NVRM: Xid (PCI:0000:3b:00): 79, pid=1234, name=python, GPU has fallen off the bus.")[0].number
    79
    """
    return [Xid(found[1].lower(), int(found[2]), found[3] or "") for found in LINE.finditer(log)]


def log(kmsg: Path = KMSG) -> str | None:
    """The kernel's log since the host was started, or what is left of it; None where this user may not read it."""
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
        done = subprocess.run(
            ["dmesg"], capture_output=True, text=True, errors="replace", timeout=10, check=True
        )
        return done.stdout
    return None


def check(text: str | None, before: str | None = None) -> Found:
    """What the driver has reported since the host was started; or, with the log from `before`, since then."""
    if text is None:
        return Found(why_not="this user may not read the kernel's log (dmesg)")
    found = parse(text if before is None else _added(before, text))
    own = [xid for xid in found if xid.number not in PROGRAMS]
    findings = tuple(_named(own, fails=before is not None))
    said = "since the validation began" if before is not None else "since the host was started"
    programs = len(found) - len(own)
    seen = f"no XID of a GPU {said}" + (f" ({programs} of programs)" if programs else "")
    return Found(findings=findings, seen=seen)


def _added(before: str, after: str) -> str:
    """The lines that came since: by their times and not by their number, for a full log drops its oldest."""
    known = Counter(before.splitlines())
    lines = []
    for line in after.splitlines():
        if known[line]:
            known[line] -= 1
        else:
            lines.append(line)
    return "\n".join(lines)


def _named(found: Sequence[Xid], *, fails: bool) -> list[Finding]:
    """One finding for each GPU and number."""
    counts: dict[tuple[str, int], list[Xid]] = {}
    for xid in found:
        counts.setdefault((xid.bus, xid.number), []).append(xid)
    return [
        Finding(f"XID {number} of the GPU at {bus}, {len(each)} ×: {each[-1].more[:80]}", Cause.XID, fails)
        for (bus, number), each in counts.items()
    ]
