"""Several hosts on one machine: network namespaces on a bridge, each with a limited link.

Needs root and iproute2.

with Hosts(2, "1gbit") as hosts:
    done = hosts.run(["-m", "isobatch.validate", "plan.json"])
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from pathlib import Path

NETWORK = "10.77.0"


def _sh(*words: str) -> None:
    subprocess.run(words, check=True, capture_output=True, text=True)


def kill(processes: list[subprocess.Popen[str]]) -> None:
    """Kills what still runs."""
    for process in processes:
        process.kill()
        process.wait()


class Hosts:
    """Hosts 1 … n with the addresses 10.77.0.1 … n, inside of their namespaces only; the names of links and
    namespaces begin with `name`. A link may be at full speed for a `burst`.
    """

    def __init__(self, count: int, rate: str, *, name: str = "ibt", burst: str = "128k") -> None:
        self.count, self.rate, self.name, self.burst = count, rate, name, burst

    def __enter__(self) -> Hosts:
        self.__exit__()  # what a killed test has left
        try:
            _sh("ip", "link", "add", f"{self.name}-br", "type", "bridge")
            _sh("ip", "link", "set", f"{self.name}-br", "up")
            for host in range(1, self.count + 1):
                space, outer = f"{self.name}-h{host}", f"{self.name}-v{host}"
                _sh("ip", "netns", "add", space)
                _sh("ip", "link", "add", outer, "type", "veth", "peer", "name", "eth0", "netns", space)
                _sh("ip", "link", "set", outer, "master", f"{self.name}-br")
                _sh("ip", "link", "set", outer, "up")
                _sh("ip", "-n", space, "addr", "add", f"{NETWORK}.{host}/24", "dev", "eth0")
                _sh("ip", "-n", space, "link", "set", "eth0", "up")
                _sh("ip", "-n", space, "link", "set", "lo", "up")
                self.limit(host, self.rate)
        except BaseException:
            self.__exit__()
            raise
        return self

    def limit(self, host: int, rate: str) -> None:
        """Sets the rate of a host's link, both ways."""
        shape = ["root", "tbf", "rate", rate, "burst", self.burst, "latency", "50ms"]
        _sh("tc", "qdisc", "replace", "dev", f"{self.name}-v{host}", *shape)
        _sh("ip", "netns", "exec", f"{self.name}-h{host}", "tc", "qdisc", "replace", "dev", "eth0", *shape)

    def cut(self, host: int, state: str = "down") -> None:
        """Takes a host's link down, or up again."""
        _sh("ip", "link", "set", f"{self.name}-v{host}", state)

    def start(self, command: list[str], cwd: Path, **env: str) -> list[subprocess.Popen[str]]:
        """torchrun on every host, one rank each; host 1 is node 0."""
        path = f"{Path(__file__).parent.parent}:{os.environ.get('PYTHONPATH', '')}"
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path, **env}
        environment.pop("RANK", None)
        processes = []
        for host in range(1, self.count + 1):
            # Before other programs: two cores carry all hosts and links, and the link shall be the limit.
            launch = ["nice", "-n", "-15", "ip", "netns", "exec", f"{self.name}-h{host}"]
            launch += ["unshare", "--uts", "bash", "-c"]
            launch += [
                'hostname "$0"; exec "$@"',
                f"host{host}",
                sys.executable,
                "-m",
                "torch.distributed.run",
            ]
            launch += ["--nnodes", str(self.count), "--nproc-per-node", "1", "--node-rank", str(host - 1)]
            launch += ["--rdzv-backend", "static", "--rdzv-endpoint", f"{NETWORK}.1:29517"]
            launch += ["--rdzv-id", "isobatch", "--local-addr", f"{NETWORK}.{host}", *command]
            with (cwd / f"host{host}.log").open("w") as log:
                options = {"env": environment, "cwd": cwd, "stdout": log, "stderr": log, "text": True}
                processes.append(subprocess.Popen(launch, **options))
        return processes

    def run(self, command: list[str], cwd: Path, seconds: float = 240, **env: str) -> list[int]:
        """The exit codes of the hosts."""
        processes = self.start(command, cwd, **env)
        try:
            return [process.wait(seconds) for process in processes]
        finally:
            kill(processes)

    def __exit__(self, *_: object) -> None:
        things = []
        for host in range(1, 9):  # Links first: else the next start meets them.
            things += [("link", f"{self.name}-v{host}"), ("netns", f"{self.name}-h{host}")]
        for kind, name in [*things, ("link", f"{self.name}-br")]:
            with contextlib.suppress(subprocess.CalledProcessError):
                _sh("ip", kind, "del", name)
