"""The validator's own timer: what it says of nothing, and of work whose length is known."""

from __future__ import annotations

import os
import statistics
import time
from typing import Any

import torch

from gpu_parts.tools import CUDA, seconds_of
from isobatch.validate import Options
from isobatch.validate.ranks.group import Group

LIMIT_SECONDS = 120
CYCLES = 20_000_000


def run(small: bool) -> dict[str, Any]:
    """Medians in microseconds: of nothing; of work, by the timer and by a clock around many of them."""
    os.environ.update(
        RANK="0",
        WORLD_SIZE="1",
        LOCAL_RANK="0",
        LOCAL_WORLD_SIZE="1",
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(20_000 + os.getpid() % 10_000),
    )
    group = Group(Options())
    group.connect()

    def work() -> None:
        if CUDA:
            torch.cuda._sleep(CYCLES)  # type: ignore[no-untyped-call]
        else:
            time.sleep(0.005)

    try:
        repeats = 5 if small else 50
        nothing = statistics.median(group.time(lambda: None) for _ in range(repeats))
        timed = statistics.median(group.time(work) for _ in range(repeats))
        known = seconds_of(lambda: [work() for _ in range(20)], 3) / 20
    finally:
        group.close()
    return {
        "nothing_us": nothing * 1e6,
        "work_us": timed * 1e6,
        "known_us": known * 1e6,
        "bias_us": (timed - known) * 1e6,
    }
