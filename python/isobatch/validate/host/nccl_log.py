"""NCCL's transports between GPUs, by its own log (INFO of INIT, NET and GRAPH), written to a file while it connects."""

from __future__ import annotations

import os
import re
import socket
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

SETTINGS = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,NET,GRAPH"}
FILE = "NCCL_DEBUG_FILE"
CHANNEL = re.compile(
    r"NCCL INFO (?:Channel|Ring) (\d+)(?:/\d+)? : (\d+)(?:\[\w+\])? -> (\d+)(?:\[\w+\])?(?: \[(?:send|receive)\])? via (.+?)\s*$",
    re.MULTILINE,
)
NETWORK = re.compile(r"NCCL INFO (?:\w+: )?Using network (.+?)\s*$", re.MULTILINE)


class Link(NamedTuple):
    """The way from one rank to another: "P2P", "SHM" or "NET", and in `detail`, such as "P2P/CUMEM" or "NET/IB/0/GDRDMA"."""

    source: int
    target: int
    transport: str
    detail: str


class Transports(NamedTuple):
    """One rank's log: its links, and the networks by name."""

    links: tuple[Link, ...]
    networks: tuple[str, ...]


def parse(log: str) -> Transports:
    """Reads a rank's log.

    >>> line = "n1:7:9 [0] NCCL INFO Channel 00/0 : 0[0] -> 8[0] [send] via NET/IB/0/GDRDMA"
    >>> parse(line).links
    (Link(source=0, target=8, transport='NET', detail='NET/IB/0/GDRDMA'),)
    """
    links = dict.fromkeys(
        Link(int(found[2]), int(found[3]), found[4].partition("/")[0], found[4])
        for found in CHANNEL.finditer(log)
    )
    networks = dict.fromkeys(found[1] for found in NETWORK.finditer(log))
    return Transports(tuple(links), tuple(networks))


class Log:
    """Where this process's NCCL writes; `why_not` where the user's own settings say otherwise."""

    def __init__(self) -> None:
        self.why_not: str | None = None
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._pattern = ""

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Sets NCCL's environment around its first call, in which it reads it; that is put back afterwards."""
        level, own = os.environ.get("NCCL_DEBUG"), os.environ.get(FILE)
        if level is not None or own is not None:
            self._pattern = own or ""
            if own is None:
                self.why_not = f"NCCL_DEBUG={level} is set without {FILE}: unset it, or set both"
            elif (level or "").upper() not in ("INFO", "TRACE"):
                self.why_not = f"{FILE} is set without NCCL_DEBUG=INFO"
            yield
            return
        self._folder = tempfile.TemporaryDirectory(prefix="isobatch-nccl-")
        self._pattern = f"{self._folder.name}/nccl.%p.log"
        settings = {**SETTINGS, FILE: self._pattern}
        before = {name: os.environ.get(name) for name in settings}
        os.environ.update(settings)
        try:
            yield
        finally:
            for name, value in before.items():
                if value is None:
                    del os.environ[name]
                else:
                    os.environ[name] = value

    def read(self) -> Transports:
        """Reads the log so far."""
        path = self._pattern.replace("%p", str(os.getpid())).replace("%h", socket.gethostname())
        file = Path(path)
        return parse(file.read_text(errors="replace") if path and file.is_file() else "")

    def close(self) -> None:
        """Removes the file."""
        if self._folder is not None:
            self._folder.cleanup()


def detours(
    found: Iterable[Transports], nodes: Sequence[int], *, rdma: Mapping[int, bool], nvlinks: Sequence[bool]
) -> tuple[list[Link], list[Link]]:
    """Finds links slower than need be: sockets between nodes that have an active RDMA port, and shared memory or the
    network between two GPUs of a node that have NVLinks.

    Args:
        nodes: of each rank.
        rdma: by node, whether a port is active.
        nvlinks: by rank, whether its GPU has some that are up.
    """
    sockets, inside = [], []
    for link in dict.fromkeys(link for one in found for link in one.links):
        if max(link.source, link.target) >= len(nodes):  # of another communicator
            continue
        here, there = nodes[link.source], nodes[link.target]
        if here != there:
            if link.detail.startswith("NET/Socket") and rdma.get(here) and rdma.get(there):
                sockets.append(link)
        elif link.transport in ("SHM", "NET") and nvlinks[link.source] and nvlinks[link.target]:
            inside.append(link)
    return sockets, inside
