"""A host's memory, disk and limits, and the least that a job asks of them. No torch."""

from __future__ import annotations

import os
import resource
import shutil
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from isobatch.diagnosis.causes import Cause
from isobatch.validate.report import Proof, Verdict, judge_claim
from isobatch.words import count, figure

GIB = 1 << 30


def _available_gib() -> float:
    """Returns the memory that new processes can have: the host's, or what the cgroup's limit leaves."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    found = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    with suppress(OSError, ValueError):  # no limit, or not known here
        limit, used = (Path(f"/sys/fs/cgroup/memory.{name}").read_text() for name in ("max", "current"))
        found = min(found, int(limit) - int(used))
    return found / GIB


def _free_disk_gib() -> float:
    """Writes a file where temporary files go, and returns what is free there."""
    with tempfile.NamedTemporaryFile(prefix="isobatch-") as file:
        file.write(bytes(1 << 20))
        file.flush()
        os.fsync(file.fileno())
        return shutil.disk_usage(file.name).free / GIB


def _limit(which: int) -> float:
    soft, _ = resource.getrlimit(which)
    return float("inf") if soft == resource.RLIM_INFINITY else float(soft)


def _shown(value: float) -> str:
    if value == float("inf"):
        return "unlimited"
    return count(value) if value == int(value) else figure(value)


FIGURES: dict[str, tuple[str, str, Callable[[], float]]] = {
    "memory_gib": ("host_memory", "GiB available", _available_gib),
    "disk_gib": ("disk", "GiB free where temporary files go", _free_disk_gib),
    "shared_memory_gib": ("limits", "GiB of /dev/shm", lambda: shutil.disk_usage("/dev/shm").total / GIB),
    "locked_memory_gib": ("limits", "GiB may be locked", lambda: _limit(resource.RLIMIT_MEMLOCK) / GIB),
    "open_files": ("limits", "open files", lambda: _limit(resource.RLIMIT_NOFILE)),
}
"""By threshold: the check that it belongs to, its unit in words, and how it is found."""
CHECKS = {name for name, _, _ in FIGURES.values()}


def check(name: str, least: Mapping[str, float]) -> Proof:
    """Judges the figures of one check by the least that they may be; without that they are only shown."""
    values: dict[str, float] = {}
    texts, verdicts = [], []
    for threshold, (owner, unit, ask) in FIGURES.items():
        if owner != name:
            continue
        try:
            found = values[threshold] = ask()
        except OSError as error:
            verdicts.append(Verdict.FAIL)
            texts.append(f"{unit}: {error}")
            continue
        text = f"{_shown(found)} {unit}"
        if threshold in least:
            verdicts.append(Verdict.FAIL if found < least[threshold] else Verdict.PASS)
            text += f" (at least {_shown(least[threshold])} asked for)"
        texts.append(text)
    text = ", ".join(texts) + ("" if verdicts else "; no threshold was given")
    return judge_claim(name, Verdict.of(verdicts), text, Cause.HOST_SHORT.likely(), **values)
