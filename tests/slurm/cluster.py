"""A real Slurm on this machine, in a folder of its own: two nodes of four GPUs, which are empty files."""

import getpass
import os
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

NODES = ("127.0.0.2", "127.0.0.3")
"""Names that are addresses of the loopback need no line in /etc/hosts."""
GPUS = 4
PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "scontrol", "setpriv")
PACKAGES = "slurmctld slurmd slurm-client slurm-wlm-basic-plugins munge"
SBIN = "/usr/sbin"

CONFIGURATION = """\
ClusterName=isobatch
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SwitchType=switch/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
SchedulerType=sched/builtin
SchedulerParameters=sched_min_interval=200000,sched_interval=1
KillWait=5
InactiveLimit=0
ReturnToService=2
GresTypes=gpu
JobSubmitPlugins=lua
{nodes}
PartitionName=main Nodes=ALL Default=YES MaxTime=60
"""
NODE = (
    "NodeName={name} NodeHostname={host} NodeAddr={name} Port={port} CPUs=32 RealMemory=1000 Gres=gpu:{gpus}"
)


def missing_programs():
    """Programs of Slurm and munge that are not installed."""
    return [name for name in PROGRAMS if shutil.which(name, path=_path()) is None]


def _path():
    return f"{os.environ['PATH']}{os.pathsep}{SBIN}"


def _free_ports(count):
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [connection.getsockname()[1] for connection in sockets]
    for connection in sockets:
        connection.close()
    return ports


class Cluster:
    """Slurm's daemons, its commands, and its jobs.

    Args:
        folder: for everything, a short path: sockets have their place in it.
        plugin: the text of job_submit.lua.
        table: of plans, for the plugin.
    """

    def __init__(self, folder: Path, plugin: str, table: Path) -> None:
        self.folder = folder
        self.daemons: list[subprocess.Popen[bytes]] = []
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("SLURM", "SBATCH"))},
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{_path()}",
            "SLURM_CONF": str(folder / "slurm.conf"),
            "ISOBATCH_TABLE": str(table),
        }
        self._configure(plugin)

    def _configure(self, plugin: str) -> None:
        host, ports = socket.gethostname().partition(".")[0], _free_ports(3)
        places = zip(NODES, ports[1:], strict=True)
        nodes = "\n".join(NODE.format(name=name, host=host, port=port, gpus=GPUS) for name, port in places)
        values = {
            "host": host,
            "user": getpass.getuser(),
            "folder": self.folder,
            "ports": ports,
            "nodes": nodes,
        }
        (self.folder / "state").mkdir()
        (self.folder / "slurm.conf").write_text(CONFIGURATION.format(**values))
        for index in range(GPUS):
            (self.folder / f"gpu{index}").touch()
        (self.folder / "gres.conf").write_text(f"Name=gpu File={self.folder}/gpu[0-{GPUS - 1}]\n")
        (self.folder / "job_submit.lua").write_text(plugin)
        (self.folder / "munge.key").write_bytes(os.urandom(128))
        (self.folder / "munge.key").chmod(0o600)

    def start(self) -> None:
        """Starts the daemons, and waits until both nodes are idle."""
        files = [f"--{end}-file={self.folder}/munge.{end}" for end in ("key", "pid", "log", "seed")]
        self._daemon("munged", "--foreground", "--force", f"--socket={self.folder}/munge.socket", *files)
        self._until(lambda: (self.folder / "munge.socket").exists(), "munged's socket")
        self._daemon("slurmctld", "-D", "-c")
        for name in NODES:
            self._daemon("slurmd", "-D", "-N", name)
        sinfo = ("sinfo", "-h", "-o", "%t %D")
        self._until(lambda: self.run(*sinfo, check=False).stdout.split() == ["idle", "2"], "idle nodes")

    def _daemon(self, *words: str) -> None:
        """Starts a daemon that ends with this process, also where that is killed."""
        with (self.folder / f"{words[0]}-{len(self.daemons)}.out").open("wb") as log:
            started = subprocess.Popen(
                ("setpriv", "--pdeathsig", "TERM", *words),
                env=self.environment,
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                cwd=self.folder,
            )
        self.daemons.append(started)

    def _until(self, is_done, state: str, seconds: float = 60) -> None:
        end = time.monotonic() + seconds
        while not is_done():
            ended = [daemon for daemon in self.daemons if daemon.poll() is not None]
            assert not ended and time.monotonic() < end, f"Slurm has no {state}\n{self.logs()}"
            time.sleep(0.1)

    def logs(self) -> str:
        """The ends of all logs."""
        return "\n".join(
            f"{path.name}: {path.read_text(errors='replace')[-600:]}"
            for path in self.folder.glob("*.*")
            if path.suffix in (".log", ".out")
        )

    def stop(self) -> None:
        """Ends the jobs and then the daemons, by their process ids."""
        self.run("scancel", "--user", getpass.getuser(), check=False)
        for daemon in reversed(self.daemons):
            daemon.terminate()
        for daemon in self.daemons:
            try:
                daemon.wait(15)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()

    def run(self, *words: str, check: bool = True, **environment: str) -> subprocess.CompletedProcess[str]:
        """One of Slurm's commands."""
        process = subprocess.run(
            words,
            env={**self.environment, **environment},
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert not check or process.returncode == 0, f"{words}: {process.stderr}"
        return process

    def sbatch(self, script: Path, *options: str, **environment: str) -> str:
        """Submits a script; returns the job's number."""
        out = f"--output={self.folder}/job-%j.txt"
        return self.run("sbatch", "--parsable", out, *options, str(script), **environment).stdout.split()[-1]

    def job(self, number: str) -> dict[str, str]:
        """A job as the controller has it."""
        answer = self.run("scontrol", "--oneliner", "show", "job", number).stdout
        return dict(word.split("=", 1) for word in answer.split() if "=" in word)

    def wait(self, number: str, *states: str, seconds: float = 300) -> str:
        """Waits until a job has ended, or is in one of the states; returns its state."""
        awaited = states or ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY")
        self._until(
            lambda: self.job(number)["JobState"] in awaited, f"job {number} that is {awaited[0]}", seconds
        )
        return self.job(number)["JobState"]

    def output(self, number: str) -> str:
        """The output of a job."""
        path = Path(self.job(number)["StdOut"])
        return path.read_text() if path.exists() else ""
