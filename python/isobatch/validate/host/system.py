"""A check's result, and the errors of GPUs (XID) in a host's kernel log. No tool is needed."""

import contextlib
import os
import re
import subprocess
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Literal, get_args

import msgspec

from isobatch.diagnosis.causes import Cause

KMSG = Path("/dev/kmsg")
XID = re.compile(r"NVRM: Xid \((?:PCI:)?([0-9a-fA-F:.]+)\): (\d+)(?:, (.*))?")
XIDS_OF_PROGRAMS = {13, 31, 43, 45}
"""Errors that a program makes by itself (an illegal access, an end in the middle of a kernel); the others are the GPU's, its memory's, its
link's or the driver's."""

REBOOTING_XIDS = {79}
"""A GPU that has fallen off the bus does not come back by its own reset, which the other errors ask for."""

MAX_FINDINGS, MAX_CHARACTERS = 8, 160
"""Of a rank, which travel to the others, each cut to so many characters: 512 ranks may all have some."""


Action = Literal["look", "reset", "reboot", "drain"]
"""What to do about a fault, the strongest last: a person looks, `nvidia-smi --gpu-reset`, a reboot, or the node is taken out for repair."""


def strongest(actions: Iterable[Action]) -> Action:
    """Returns the strongest of some actions.

    >>> strongest(["look", "reboot", "reset"])
    'reboot'
    """
    return max(actions, key=get_args(Action).index, default="look")


class HostFault(msgspec.Struct, frozen=True):
    """A bad (`fails`) or suspicious state, in words without the host's name, its cause, and what to do."""

    text: str
    cause: Cause
    fails: bool = False
    action: Action = "look"


class CheckResult(msgspec.Struct, frozen=True, kw_only=True):
    """A check's answer on one rank: why it could not be asked, or what is bad, with what it saw in a few words."""

    why_not: str | None = None
    findings: tuple[HostFault, ...] = ()
    seen: str = ""

    def short(self) -> "CheckResult":
        """Cuts it to as much as travels."""
        cut = tuple(
            msgspec.structs.replace(one, text=one.text[:MAX_CHARACTERS])
            for one in self.findings[:MAX_FINDINGS]
        )
        return msgspec.structs.replace(self, findings=cut, seen=self.seen[:MAX_CHARACTERS])


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
        return subprocess.check_output(
            ["dmesg"], stderr=subprocess.DEVNULL, text=True, errors="replace", timeout=10
        )
    return None


def check_log(text: str | None, before: str | None = None) -> CheckResult:
    """Looks for errors of GPUs since the host was started; or, with the log from `before`, since then.

    >>> check_log("[5.1] NVRM: Xid (PCI:0000:3B:00): 79, pid=1234, GPU has fallen off the bus.").findings[0].text
    'XID 79 of the GPU at 0000:3b:00, 1 ×: pid=1234, GPU has fallen off the bus.'
    """
    if text is None:
        return CheckResult(why_not="this user may not read the kernel's log (dmesg)")
    found = XID.findall(text if before is None else _added(before, text))
    own: dict[tuple[str, int], list[str]] = {}
    for bus, number, more in found:
        if int(number) not in XIDS_OF_PROGRAMS:
            own.setdefault((bus.lower(), int(number)), []).append(more)
    findings = tuple(
        HostFault(
            f"XID {number} of the GPU at {bus}, {len(each)} ×: {each[-1][:80]}",
            Cause.XID,
            before is not None,
            "reboot" if number in REBOOTING_XIDS else "reset",
        )
        for (bus, number), each in own.items()
    )
    since = "since the validation began" if before is not None else "since the host was started"
    programs = len(found) - sum(map(len, own.values()))
    seen = f"no XID of a GPU {since}" + (f" ({programs} of programs)" if programs else "")
    return CheckResult(findings=findings, seen=seen)


def _added(before: str, after: str) -> str:
    """Returns the added lines: by their times and not by their number, for a full log drops its oldest."""
    added = Counter(after.splitlines()) - Counter(before.splitlines())
    return "\n".join(added.elements())
