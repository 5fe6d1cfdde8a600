"""What a validation costs with 8 ranks, 64 and 512.

Nothing that one rank does, gathers or reports may grow with their number.
"""

import math
import os
import socket
import subprocess
import sys
import time

import pytest

pytest.importorskip("torch", reason="the validator needs torch")

from ddp import fake
from isobatch.validate import Options
from plan_of import loop_of

MB = 10**6


@pytest.fixture(scope="module")
def found():
    """By number of ranks: the report, what was counted, and the seconds of processor time that it took."""

    def one(ranks):
        plan = loop_of(ranks, effective_batch=24 * ranks, dataset_size=50_000)
        begun = time.process_time()
        limits = {"memory_limit_gib": 64, "phase_seconds": 1200.0}
        options = Options(extent="quick", find_micro_batch=True, noise_steps=2, **limits)
        return *fake.validate(plan, options, ranks), time.process_time() - begun

    return {ranks: one(ranks) for ranks in (8, 64, 512)}


def test_no_phase_works_more_for_more_ranks(found):
    """By passes through the model, which do not depend on how busy this machine is."""
    passes = {ranks: counts.passes for ranks, (_, counts, _) in found.items()}
    assert passes[512] == passes[64]
    # One process against 8 ranks, whether there are more or not.
    assert passes[8] == passes[512]


def test_nobody_gathers_much(found):
    for ranks, (_, counts, _) in found.items():
        assert max(counts.gathered.values()) < MB, (ranks, counts.gathered)


def test_a_report_of_512_ranks_is_small(found):
    assert len(found[512][0].to_json()) < MB


def test_512_ranks_are_looked_at_in_a_minute(found):
    assert sum(seconds for _, _, seconds in found.values()) < 60


def test_every_claim_was_looked_at(found):
    report = found[512][0]
    # What GPUs say of themselves comes before NCCL makes its connections, all else behind.
    assert [*report.phase_seconds][:2] == ["gpu", "connect"]
    assert {"gradient", "noise_scale", "all_reduce", "step_time", "epoch", "micro_batch"} <= {
        proof.name for proof in report.proofs
    }
    assert "to one process" in report.proof("gradient").text


def test_what_gpus_say_is_in_the_report_where_nccl_then_hangs(monkeypatch):
    published = []
    worker = fake.worker

    def hang(self):
        self.pulse.on_loss("in phase 'connect': rank 3 is over the phase's limit of 60 s")
        raise SystemExit

    monkeypatch.setattr(fake.FakeGroup, "connect", hang)
    real = worker.run
    monkeypatch.setattr(worker, "run", lambda *a, **k: real(*a, publish=published.append, **k))
    plan = loop_of(8, effective_batch=64, dataset_size=None)
    with pytest.raises(SystemExit):
        fake.validate(plan, Options(extent="quick"), 8)
    (report,) = published
    names = [proof.name for proof in report.proofs]
    assert names == ["gpu", "ranks_alive"]


GROUPS = """
import os, sys
os.environ |= {"MASTER_ADDR": "127.0.0.1", "WORLD_SIZE": "16", "LOCAL_WORLD_SIZE": "16", "GLOO_SOCKET_IFNAME": "lo"}
from isobatch.validate.options import Options
from isobatch.validate.ranks import group
worlds = []
for port, most_meshed in zip(sys.argv[1::2], sys.argv[2::2]):
    if (world := os.fork()) == 0:
        break
    worlds.append(world)
else:
    [os.waitpid(world, 0) for world in worlds]
    sys.exit()
os.environ["MASTER_PORT"], group.MAX_MESH = port, int(most_meshed)
children = []
for rank in range(1, 16):
    if (child := os.fork()) == 0:
        break
    children.append(child)
else:
    rank = 0
os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank)}
here = group.Group(Options(device="cpu"))
here.connect()
assert here.from_first(rank) == 0 and here.slowest([rank]) == [15] and here.sum(rank) == 120
here.barrier()
files = [os.path.realpath(f"/proc/self/fd/{name}") for name in os.listdir("/proc/self/fd")]
found = here.gather(sum("socket:" in file for file in files))
here.close()
if rank == 0:
    [os.waitpid(child, 0) for child in children]
    print(most_meshed, max(found[1:]), flush=True)
os._exit(0)
"""


def sockets(*most_meshed):
    """The most sockets that a rank of 16 has after everything that the ranks do together, but for rank 0.

    Which hosts the store.
    """
    words = [sys.executable, "-c", GROUPS]
    for most in most_meshed:
        with socket.create_server(("127.0.0.1", 0)) as free:
            words += [str(free.getsockname()[1]), str(most)]
    env = {name: value for name, value in os.environ.items() if name != "TORCH_GLOO_LAZY_INIT"}
    done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=200)
    found = dict(map(int, line.split()) for line in done.stdout.splitlines())
    assert found.keys() == {*most_meshed}, done.stderr
    return [found[most] for most in most_meshed]


def test_many_ranks_do_not_connect_each_to_each_other():
    """From 1,024 on a process could not: it would need more open files than it gets.

    Two groups: a ring, a tree, a barrier's partners.
    """
    stores, groups, steps = 3, 2, math.ceil(math.log2(16))
    meshed, on_demand = sockets(128, 15)
    assert meshed >= groups * 15
    assert on_demand <= stores + groups * (3 + 2 * steps) < groups * 15


FILES = """
import resource, sys
from isobatch.validate.ranks.network import allow_connections
resource.setrlimit(resource.RLIMIT_NOFILE, (256, int(sys.argv[1])))
try:
    allow_connections(512)
    print(resource.getrlimit(resource.RLIMIT_NOFILE))
except Exception as error:
    print(error)
"""


@pytest.mark.parametrize(
    ("hard", "says"),
    [
        (4000, "(2304, 4000)"),
        (
            1024,
            "512 ranks need 2304 open files on the host of rank 0, where the limit is 1024 (ulimit -Hn): "
            "raise it",
        ),
    ],
)
def test_the_store_of_many_ranks_has_files_enough(hard, says):
    words = [sys.executable, "-c", FILES, str(hard)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=100)
    assert says in done.stdout, done.stderr
