"""The forks of a rank, such as loader workers: they free nothing of the rank, and daemons end with it."""

import ctypes
import gc
import multiprocessing
import os
import signal
import sys
import threading
from multiprocessing.util import register_after_fork
from typing import Any

_PR_SET_PDEATHSIG = 1


class Forks:
    """Hooks of all forks of this process, such as those of loader workers, whoever made the loader.

    A forked worker of a killed rank would hold the rank's sockets open, and the other ranks would wait for
    five seconds. And the rank's garbage may have groups of past crews: freeing a group waits for threads that
    a fork lacks. torch seeds a worker, and Python may collect, before its `worker_init_fn`.
    """

    def __init__(self) -> None:
        self._under_way, self._collects = 0, True
        self._here = threading.local()
        self._tied = 0

    def begin(self) -> None:
        """Stops the garbage collector; several threads may fork at the same time."""
        if not self._under_way:
            self._collects = gc.isenabled()
        self._under_way += 1
        gc.disable()
        # Linux watches the forking thread, and only the main thread lives as long as the process.
        self._here.is_main = threading.current_thread() is threading.main_thread()

    def end(self) -> None:
        """Goes on collecting."""
        self._under_way -= 1
        if self._collects and not self._under_way:
            gc.enable()

    def leave(self) -> None:
        """Goes on collecting in the fork, without the garbage of the rank."""
        self._under_way = 0
        gc.freeze()
        if self._collects:
            gc.enable()

    def tie(self) -> None:
        """Ties this process to its parent's end, once, if it is a daemon like workers."""
        parent = multiprocessing.parent_process()
        if parent is None or not multiprocessing.current_process().daemon or self._tied == os.getpid():
            return
        self._tied = os.getpid()
        # A fork server's children are not forked by the rank.
        if sys.platform == "linux" and getattr(self._here, "is_main", False):
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != parent.pid:  # The parent died before.
                os._exit(1)
        else:
            threading.Thread(target=_end_with, args=(parent,), daemon=True).start()


def _end_with(parent: Any) -> None:
    parent.join()
    os._exit(1)


FORKS = Forks()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=FORKS.begin, after_in_parent=FORKS.end, after_in_child=FORKS.leave)
    register_after_fork(FORKS, Forks.tie)
