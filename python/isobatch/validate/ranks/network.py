"""How a process finds the others: torchrun's and Slurm's environment, the rendezvous, the network interface. No torch."""

from __future__ import annotations

import fcntl
import os
import re
import socket
import struct
import time
from collections.abc import Mapping, Sequence

from isobatch.errors import InputError

TORCHRUN = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def slurm_hosts(nodelist: str) -> list[str]:
    """Lists the hosts of a Slurm node list.

    >>> slurm_hosts("gpu[01-03,7],login")
    ['gpu01', 'gpu02', 'gpu03', 'gpu7', 'login']
    """
    hosts = []
    for prefix, ranges, suffix in re.findall(r"([^,\[\]]+)(?:\[([^\]]*)\])?([^,\[\]]*)", nodelist):
        if not ranges:
            hosts.append(prefix + suffix)
        for item in filter(None, ranges.split(",")):
            first, _, last = item.partition("-")
            numbers = range(int(first), int(last or first) + 1)
            hosts += [f"{prefix}{number:0{len(first)}d}{suffix}" for number in numbers]
    return hosts


def environment(env: Mapping[str, str]) -> dict[str, str] | None:
    """Returns torchrun's variables for this process: as they stand, or from srun's; None where neither
    started it.

    >>> srun = {"SLURM_PROCID": "3", "SLURM_STEP_NUM_TASKS": "4", "SLURM_LOCALID": "1", "SLURM_JOB_ID": "7",
    ...         "SLURM_STEP_NODELIST": "n[1-2]", "SLURM_STEP_TASKS_PER_NODE": "2(x2)", "SLURM_NODEID": "1"}
    >>> environment(srun)["RANK"], environment(srun)["MASTER_ADDR"], environment(srun)["LOCAL_WORLD_SIZE"]
    ('3', 'n1', '2')

    A batch script without srun has the job's number of tasks, and is one process:

    >>> environment({"SLURM_PROCID": "0", "SLURM_NTASKS": "4", "SLURM_JOB_NODELIST": "n1"}) is None
    True

    Raises:
        InputError: only a part of them is there.
    """
    if "RANK" in env and "WORLD_SIZE" in env:
        missing = [name for name in TORCHRUN if name not in env]
        if missing:
            raise InputError(f"RANK is set, but not {', '.join(missing)}: start with torchrun, or unset it")
        return {name: env[name] for name in TORCHRUN}
    if "SLURM_PROCID" not in env or int(env.get("SLURM_STEP_NUM_TASKS", "1")) < 2:
        return None
    per_node: list[str] = []
    tasks = env.get("SLURM_STEP_TASKS_PER_NODE", env.get("SLURM_TASKS_PER_NODE", "1"))
    for count, times in re.findall(r"(\d+)(?:\(x(\d+)\))?", tasks):
        per_node += [count] * int(times or 1)
    hosts = slurm_hosts(env.get("SLURM_STEP_NODELIST", env.get("SLURM_JOB_NODELIST", "")))
    if not hosts:
        raise InputError("SLURM_PROCID is set, but no SLURM_JOB_NODELIST")
    return {
        "RANK": env["SLURM_PROCID"],
        "WORLD_SIZE": env["SLURM_STEP_NUM_TASKS"],
        "LOCAL_RANK": env["SLURM_LOCALID"],
        "LOCAL_WORLD_SIZE": per_node[min(int(env.get("SLURM_NODEID", "0")), len(per_node) - 1)],
        "MASTER_ADDR": env.get("MASTER_ADDR", hosts[0]),
        # Apart from the ports that Linux gives out by itself (32768 and up), the same on all hosts, another for each job.
        "MASTER_PORT": env.get("MASTER_PORT", str(15000 + int(env.get("SLURM_JOB_ID", "0")) % 15000)),
    }


def probe(host: str, port: int, seconds: float) -> None:
    """Waits until somebody listens there.

    Raises:
        InputError: nobody did in that time, or the name does not resolve. torchrun alone would try for 15 minutes.
    """
    end = time.monotonic() + seconds
    while True:
        try:
            with socket.create_connection((host, port), timeout=max(0.1, end - time.monotonic())):
                return
        except socket.gaierror as error:
            raise InputError(
                f"the name {host!r} does not resolve: {error.strerror}", field="rendezvous"
            ) from None
        except OSError as error:
            if time.monotonic() > end:
                raise InputError(
                    f"no answer at {host}:{port} within {seconds:g} s ({error}): is rank 0 up, and the port open?",
                    field="rendezvous",
                ) from None
        time.sleep(0.1)


def address_towards(host: str) -> str | None:
    """Returns this host's own address on the way to another; None where the system knows no way."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        try:
            asking.connect((host, 9))  # UDP: only asks for the route, sends nothing
        except OSError:
            return None
        return str(asking.getsockname()[0])


def _interface_of(address: str) -> str | None:
    """Finds the network interface of an address; None where none has it."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        for _, name in socket.if_nameindex():
            request = struct.pack("256s", name.encode()[:15])
            try:
                reply = fcntl.ioctl(asking.fileno(), 0x8915, request)  # SIOCGIFADDR
            except OSError:
                continue
            if socket.inet_ntoa(reply[20:24]) == address:
                return name
    return None


def set_interface(own: str | None, addresses: Sequence[str | None]) -> None:
    """Sets the interface that gloo takes, where the user did not: on its own it takes the one of the host's name, which on many hosts
    is the loopback, and then fails to connect to the others. NCCL finds its own, as it will in the training.

    Args:
        own: this rank's address on the way to rank 0. On rank 0's host that may be the loopback too, such as 127.0.1.1.
        addresses: those of all ranks.
    """
    elsewhere = [one for one in addresses if one is not None and not one.startswith("127.")]
    if elsewhere and (own is None or own.startswith("127.")):
        own = address_towards(elsewhere[0])
    name = None if own is None else _interface_of(own)
    if name is not None:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", name)
