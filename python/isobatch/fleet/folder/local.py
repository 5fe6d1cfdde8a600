"""Parts of a fleet, planned in threads of this process."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed

from isobatch.fleet.folder.manifest import Receipt
from isobatch.fleet.folder.parts import Part
from isobatch.fleet.folder.work import Failure, Work, plan_part


def run(work: Work, parts: Sequence[Part]) -> Iterator[Receipt | Failure]:
    """Plans the parts, a thread for each core, and gives their outcomes as they come.

    Raises:
        OSError: the output cannot be written.
    """
    pool = ThreadPoolExecutor(len(os.sched_getaffinity(0)))
    stopped = threading.Event()
    try:
        for done in as_completed([pool.submit(plan_part, work, part, stopped.is_set) for part in parts]):
            yield done.result()
    finally:
        stopped.set()
        pool.shutdown(cancel_futures=True)
