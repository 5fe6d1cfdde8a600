"""Ranks started for real, by command, under torchrun, from a notebook; and ranks that die or hang."""

import contextlib
import gc
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from isobatch.equivalence.laws import Cause
from isobatch.validate.launching import gc_frozen
from plan_of import loop_of

pytest.importorskip("torch", reason="the validator needs torch")

TESTS = Path(__file__).parent.parent
COMMAND = [sys.executable, "-m", "isobatch", "validate"]


@pytest.fixture
def plan(tmp_path):
    file = tmp_path / "plan.json"
    loop_of(effective_batch=32).save(file)
    return file


def start(command, cwd, **env):
    environment = {k: v for k, v in os.environ.items() if k not in ("RANK", "WORLD_SIZE", "OMP_NUM_THREADS")}
    path = os.pathsep.join(filter(None, [str(TESTS), os.environ.get("PYTHONPATH")]))
    environment |= {"PYTHONPATH": path, "PYTHONWARNINGS": "default", **env}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen([str(word) for word in command], cwd=cwd, env=environment, **pipes)


def end(process, seconds=240):
    try:
        out, err = process.communicate(timeout=seconds)
    finally:
        process.kill()
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def run(command, cwd, seconds=240, **env):
    return end(start(command, cwd, **env), seconds)


def proofs(file):
    return {proof["name"]: proof for proof in json.loads(Path(file).read_text())["proofs"]}


def test_by_command(plan, tmp_path):
    ran = run([*COMMAND, plan, "--quick", "--output", "report.json"], tmp_path)
    report = json.loads((tmp_path / "report.json").read_text())
    failures = {proof["name"] for proof in report["proofs"] if proof["verdict"] == "fail"}
    # A machine that others use may really have a slow rank.
    assert failures <= {"ranks"}, ran.stdout + ran.stderr
    assert ran.returncode == (report["verdict"] in ("fail", "inconclusive"))
    assert "isobatch validate" in ran.stdout and "gradient" in ran.stdout
    assert len(report["machine"]["ranks"]) == 2


def test_ranks_share_the_cores(tmp_path):
    """OpenMP takes its threads at torch's first import; too many on a shared host wait for each other."""
    code = (
        "import sys; from isobatch.validate import launching; assert 'torch' not in sys.modules\n"
        "launching._config(2, 1, 0, None, fork=True); import os, torch\n"
        "print(torch.get_num_threads(), max(1, os.cpu_count() // 2))"
    )
    ran = run([sys.executable, "-c", code], tmp_path)
    threads, share = ran.stdout.split()
    assert threads == share, ran.stderr


NEW_MODULES = """
import sys
from pathlib import Path
from isobatch.validate import launching

work = launching.work

def watched(*args):
    before = set(sys.modules)
    try:
        return work(*args)
    finally:
        Path(f"new-{__import__('os').environ['RANK']}.txt").write_text("\\n".join(set(sys.modules) - before))

launching.work = watched
from isobatch.cli import main
main(sys.argv[1:])
print("torch" in sys.modules, *{"isobatch.validate.worker", "torch._dynamo"} - set(sys.modules))
"""


@pytest.mark.slow
def test_forked_ranks_have_all_that_they_need(plan, tmp_path):
    """Else every rank would import the rest by itself, one beside the other."""
    ran = run([sys.executable, "-c", NEW_MODULES, "validate", plan, "--quick"], tmp_path)
    assert ran.stdout.endswith("True\n"), ran.stdout + ran.stderr
    for rank in range(2):
        new = (tmp_path / f"new-{rank}.txt").read_text().split()
        assert [name for name in new if name.startswith(("torch", "isobatch", "sympy"))] == []


def test_present_objects_are_frozen_for_the_collector_for_a_while():
    before = gc.get_freeze_count()
    with gc_frozen():
        assert gc.get_freeze_count() > 10_000
        cycle = []
        cycle.append(cycle)
        assert any(item is cycle for item in gc.get_objects())
    assert gc.get_freeze_count() <= before


TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]


def lose(folder, workload, launcher=COMMAND, options=(), **env):
    """Starts a run with a rank that will be lost."""
    folder.mkdir()
    loop_of(effective_batch=32).save(folder / "plan.json")
    words = ["plan.json", "--quick", "--workload", f"ddp.workloads:{workload}", "-o", "report.json", *options]
    return folder, start([*launcher, *words], folder, OMP_NUM_THREADS="1", **env)


def hang(folder, place, rank, **env):
    return lose(folder, f"hangs_{place}", options=["--phase-seconds", "6"], HANGS=str(rank), **env)


def alive_of(run):
    """Returns the proofs of a run that lost a rank, and among them that of the rank."""
    folder, process = run
    ran = end(process)
    assert ran.returncode == 1, ran.stdout + ran.stderr
    verdicts = proofs(folder / "report.json")
    return verdicts["ranks_alive"], verdicts


@pytest.fixture(scope="module")
def lost(tmp_path_factory):
    """Loses ranks in five runs at once: most of their time they wait."""
    folder, torchrun = tmp_path_factory.mktemp("lost"), [*TORCHRUN, "-m", "isobatch.validate"]
    started = {
        "loss": hang(folder / "loss", "in_the_loss", 1),
        "loader": hang(folder / "loader", "in_the_loader", 0),
        "fork": lose(folder / "fork", "dies_on_rank_1"),
        "torchrun": lose(folder / "torchrun", "dies_on_rank_1", torchrun),
        "at once": lose(folder / "at once", "dies_at_once", options=["--nproc-per-node", "1"]),
    }
    return {name: alive_of(run) for name, run in started.items()}


@pytest.mark.parametrize("launcher", ["fork", "torchrun"])
def test_a_killed_rank_is_named(lost, launcher):
    """With the proofs before; torchrun sends rank 0 SIGTERM as soon as it misses another one."""
    proof, verdicts = lost[launcher]
    assert f"rank 1 (host {socket.gethostname()})" in proof["text"] and "in phase" in proof["text"]
    assert "rank 0" not in proof["text"]
    assert proof["diagnosis"]["causes"] == [Cause.DEAD_RANK]
    assert verdicts["world"]["verdict"] == "pass"


def test_a_rank_that_dies_before_it_can_say_anything_is_named_with_its_host(lost):
    text = f"rank 0 (host {socket.gethostname()}) died with signal SIGKILL"
    assert lost["at once"][0]["text"] == text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["plan.json", "--workload", "ddp.workloads:raises"], "ValueError: no data at /data"),
        (["plan.json", "--fail", "-1"], "fail"),
    ],
)
def test_wrong_use_is_2(plan, tmp_path, arguments, message):
    assert plan.name == "plan.json"
    ran = run([*COMMAND, *arguments], tmp_path)
    assert (ran.returncode, message in ran.stderr) == (2, True), ran.stdout + ran.stderr
    assert "Traceback" not in ran.stderr
    assert not re.search(r"^[WE]\d{4} ", ran.stderr, re.MULTILINE)


NVML = """
typedef struct { char bytes[4096]; } any;
int nvmlInit(void) { return 0; }
int nvmlInit_v2(void) { return 0; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = 1; return 0; }
"""


@pytest.mark.skipif(shutil.which("cc") is None, reason="the made-up driver needs a compiler")
def test_a_host_with_a_gpu_spawns_ranks_and_forks_are_not_spoiled(tmp_path, monkeypatch):
    """A compiled stand-in of the driver's library reports one GPU."""
    monkeypatch.delenv("PYTORCH_NVML_BASED_CUDA_CHECK", raising=False)  # Lightning's import sets it
    (tmp_path / "nvml.c").write_text(NVML)
    library = tmp_path / "libnvidia-ml.so.1"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, tmp_path / "nvml.c"], check=True)
    code = (
        "import torch\n"
        "from isobatch.validate import launching\n"
        "from isobatch.validate.ranks import rendezvous\n"
        "starts = [launching._config(1, 1, 0, None, fork=fork).start_method for fork in (None, True)]\n"
        "print(rendezvous.has_gpus(), *starts)\n"
        "print(rendezvous.is_cuda_used()); torch.cuda.is_available(); print(rendezvous.is_cuda_used())"
    )
    ran = run([sys.executable, "-c", code], tmp_path, LD_LIBRARY_PATH=str(tmp_path))
    assert ran.stdout.split("\n")[:3] == ["True spawn fork", "False", "True"], ran.stdout + ran.stderr


def test_the_ranks_of_one_host_meet_on_its_loopback():
    from isobatch.validate.ranks.rendezvous import Loopback

    meeting = Loopback(SimpleNamespace(run_id="run"))
    port = meeting.next_rendezvous().bootstrap_store_info.master_port
    sockets = [
        line.split()[1:4:2]
        for table in ("/proc/net/tcp", "/proc/net/tcp6")
        for line in Path(table).read_text().splitlines()[1:]
    ]
    assert [place for place, state in sockets if place.endswith(f":{port:04X}") and state == "0A"] == [
        f"0100007F:{port:04X}"
    ]


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        ["--full", "--parameters", "1e5"],
        ["--quick", "--compile"],
        ["--quick", "--channels-last", "--workload", "ddp.workloads:images"],
        ["--quick", "--channels-last", "--compile", "--workload", "ddp.workloads:images"],
    ],
    ids=" ".join,
)
def test_an_option_that_takes_long(plan, tmp_path, options):
    ran = run([*COMMAND, plan, *options, "--output", "report.json"], tmp_path, seconds=600)
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["verdict"] in ("pass", "caution", "inconclusive"), ran.stdout + ran.stderr
    verdicts = proofs(tmp_path / "report.json")
    assert verdicts["gradient"]["verdict"] == verdicts["update"]["verdict"] == "pass"
    if "--full" in options:
        formats = {row["dtype"] for row in report["allreduce"]["table"]}
        assert "float32" in formats and formats <= {"float32", "bfloat16", "float16"}


@pytest.mark.slow
def test_one_command_a_host(plan, tmp_path):
    """Two agents on this machine stand for two hosts."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [*COMMAND, str(plan), "--quick", "--nproc-per-node", "1", "--nnodes", "2"]
    command += ["--rendezvous", f"127.0.0.1:{port}", "--json", "--node-rank"]
    started = [start([*command, node], tmp_path) for node in "01"]
    hosts = [end(process) for process in started]
    report = json.loads(hosts[0].stdout)
    assert report["verdict"] in ("pass", "caution", "inconclusive"), hosts
    assert (report["machine"]["nodes"], len(report["machine"]["ranks"])) == (2, 2)
    assert hosts[1].stdout == ""
    assert hosts[0].returncode == hosts[1].returncode == (report["verdict"] == "inconclusive"), hosts


@pytest.mark.slow
def test_a_host_that_never_comes_is_an_error(plan, tmp_path):
    command = [*COMMAND, plan, "--nnodes", "2", "--node-rank", "1", "--rendezvous", "127.0.0.1:9"]
    ran = run(command, tmp_path)
    assert (ran.returncode, "no answer at 127.0.0.1:9" in ran.stderr) == (2, True)


def is_waited_for(proof, rank):
    """Tells whether a rank is named, and never its peer."""
    text = rf"the others wait for rank {rank} \(host .*\), in _hang \(workloads.py:\d+\)"
    assert re.search(text, proof["text"])
    assert f"rank {1 - rank}" not in proof["text"]
    return proof["diagnosis"]["causes"] == [Cause.RANK_FAILED]


@pytest.mark.parametrize(("place", "rank"), [("loss", 1), ("loader", 0)])
def test_a_rank_that_hangs_is_named(lost, place, rank):
    assert is_waited_for(lost[place][0], rank)


@pytest.mark.slow
@pytest.mark.parametrize(("place", "rank"), [("loss", 0), ("loader", 1), ("optimizer", 0), ("optimizer", 1)])
def test_a_rank_that_hangs_anywhere_is_named(tmp_path, place, rank):
    assert is_waited_for(alive_of(hang(tmp_path / "run", f"in_the_{place}", rank))[0], rank)


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_whose_threads_all_stop_is_named(tmp_path, rank):
    proof, _ = alive_of(hang(tmp_path / "run", "in_the_loss", rank, HANGS_LOCKED="1"))
    assert f"rank {rank} (host" in proof["text"] and "no longer answers" in proof["text"]
    assert f"rank {1 - rank}" not in proof["text"]
    assert proof["diagnosis"]["causes"] == [Cause.DEAD_RANK]


@pytest.mark.slow
def test_none_is_named_where_none_is_behind(tmp_path):
    text = alive_of(hang(tmp_path / "run", "together", 1))[0]["text"]
    assert re.search(r"collectives, so that none can be named; rank 0 \(host .*, rank 1 \(host", text)


@pytest.mark.slow
def test_under_srun(plan, tmp_path):
    """Slurm's variables, without Slurm."""
    ranks = []
    for rank in range(2):
        slurm = {
            "SLURM_PROCID": str(rank),
            "SLURM_LOCALID": str(rank),
            "SLURM_STEP_NUM_TASKS": "2",
            "SLURM_NODEID": "0",
            "SLURM_STEP_TASKS_PER_NODE": "2",
            "SLURM_JOB_NODELIST": "127.0.0.1",
            "SLURM_JOB_ID": str(os.getpid()),
        }
        ranks.append(start([*COMMAND, plan, "--quick", "--json"], tmp_path, **slurm))
    texts = [end(process).stdout for process in ranks]
    assert json.loads(texts[0])["verdict"] in ("pass", "caution", "inconclusive")
    assert texts[1] == ""


def _throttle(stop, find):
    """Lets a process run for a tenth of the time, as a hot GPU does."""
    while not stop.is_set() and (pid := find()) is None:
        time.sleep(0.05)
    while not stop.is_set():
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP)
            time.sleep(0.09)
            os.kill(pid, signal.SIGCONT)
        time.sleep(0.01)


@pytest.mark.slow
def test_a_slow_rank_is_named(plan, tmp_path):
    def find():
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                environment = (folder / "environ").read_bytes().split(b"\0")
                if b"LOCAL_RANK=1" in environment and f"ISOBATCH_TEST={tmp_path}".encode() in environment:
                    return int(folder.name)
        return None

    stop = threading.Event()
    thread = threading.Thread(target=_throttle, args=(stop, find))
    thread.start()
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command += ["-m", "isobatch.validate", plan, "--quick", "--output", "report.json"]
    command += ["--phase-seconds", "240"]  # it imports torch ten times slower, too
    try:
        run(command, tmp_path, seconds=400, ISOBATCH_TEST=str(tmp_path), OMP_NUM_THREADS="1")
    finally:
        stop.set()
        thread.join()
    proof = proofs(tmp_path / "report.json")["ranks"]
    assert proof["verdict"] in ("caution", "fail"), proof
    assert proof["diagnosis"]["causes"] == [Cause.SLOW_RANK]
    assert proof["diagnosis"]["text"].startswith("slow rank (rank 1 (host ")


@pytest.mark.slow
def test_from_a_notebook(plan, tmp_path):
    nbclient = pytest.importorskip("nbclient", reason="notebooks are executed by nbclient")
    nbformat = pytest.importorskip("nbformat", reason="notebooks are executed by nbclient")
    cells = [
        "import isobatch as ib, torch\n"
        "from isobatch.validate import Options, Workload\n"
        "def factory():\n"
        "    model = torch.nn.Linear(4, 1)\n"
        "    batch = lambda n, generator, device: torch.randn(n, 4, generator=generator).to(device)\n"
        "    loss = lambda model, x: model(x).square().mean()\n"
        "    return Workload(model, lambda p: torch.optim.SGD(p, lr=0.1), batch, loss)\n"
        "torch.randn(512, 512) @ torch.randn(512, 512);",
        f"report = ib.validate.launch({str(plan)!r}, 2, workload=factory, options=Options(extent='quick'))\n"
        "print(report.proof('gradient').verdict, report.step.workload)",
        f"report = ib.validate.launch({str(plan)!r}, 2, options=Options(extent='quick'))\nreport",
    ]
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    nbclient.NotebookClient(
        book, timeout=200, kernel_name="python3", resources={"metadata": {"path": tmp_path}}
    ).execute()
    assert book.cells[1].outputs[0]["text"].startswith("pass")
    assert "isobatch validate" in book.cells[2].outputs[0]["data"]["text/plain"]
