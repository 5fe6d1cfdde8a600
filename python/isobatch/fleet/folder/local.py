"""Parts of a fleet, planned in threads of this process."""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait

from isobatch.fleet.folder.blocks import BLOCK
from isobatch.fleet.folder.manifest import Receipt
from isobatch.fleet.folder.parts import Part, grouped
from isobatch.fleet.folder.work import Failure, Work, plan_parts


def run(work: Work, parts: Sequence[Part]) -> Iterator[Receipt | Failure]:
    """Plans the parts, a thread for each core, and gives their outcomes as they come.

    Raises:
        OSError: the output cannot be written.
    """
    threads = len(os.sched_getaffinity(0))
    groups = grouped(parts, work.query.rows_per_job, BLOCK, threads)
    pool = ThreadPoolExecutor(threads)
    stopped = threading.Event()
    flying: set[Future[list[Receipt | Failure]]] = set()
    waiting = iter(groups)
    try:
        while True:
            # Few, as each takes a kilobyte while it waits, and there may be 100,000; enough that no thread waits.
            for group in itertools.islice(waiting, 2 * threads - len(flying)):
                flying.add(pool.submit(plan_parts, work, group, stopped.is_set))
            if not flying:
                return
            done, flying = wait(flying, return_when=FIRST_COMPLETED)
            for future in done:
                yield from future.result()
    finally:
        stopped.set()
        pool.shutdown(cancel_futures=True)
