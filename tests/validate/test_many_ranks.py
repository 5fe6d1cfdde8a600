"""The costs of a validation with 8 ranks, 64 and 512: work, gathers and report must not grow with them."""

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
def runs():
    """By number of ranks: the report, the counts, and the seconds of processor time."""

    def run(ranks):
        plan = loop_of(ranks, effective_batch=24 * ranks, dataset_size=50_000)
        begun = time.process_time()
        limits = {"memory_limit_gib": 64, "phase_seconds": 1200.0}
        options = Options(extent="quick", find_micro_batch=True, noise_steps=2, **limits)
        return *fake.validate(plan, options, ranks), time.process_time() - begun

    return {ranks: run(ranks) for ranks in (8, 64, 512)}


def test_no_phase_works_more_for_more_ranks(runs):
    """By passes through the model, independent of this machine's load; one process does 8 ranks' at most."""
    passes = {ranks: counts.passes for ranks, (_, counts, _) in runs.items()}
    assert passes[8] == passes[64] == passes[512]
    assert sum(seconds for _, _, seconds in runs.values()) < 60


def test_gathers_and_reports_stay_small(runs):
    for ranks, (_, counts, _) in runs.items():
        assert max(counts.gathered.values()) < MB, (ranks, counts.gathered)
    assert len(runs[512][0].to_json()) < MB


def test_every_claim_was_proven(runs):
    report = runs[512][0]
    # NCCL makes its connections after GPUs were asked, and before all else.
    assert [*report.phase_seconds][:2] == ["gpu", "connect"]
    assert {"gradient", "noise_scale", "all_reduce", "step_time", "epoch", "micro_batch"} <= {
        proof.name for proof in report.proofs
    }
    assert "to one process" in report.proof("gradient").text


def test_the_gpus_state_is_in_the_report_where_nccl_then_hangs(monkeypatch):
    published, worker = [], fake.worker

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


LAZY = """
import os
from isobatch.validate.options import Options
from isobatch.validate.ranks import group
group.MAX_MESH = 0
group.Group(Options(device="cpu")).close()
print(os.environ["TORCH_GLOO_LAZY_INIT"])
"""


def test_many_ranks_do_not_connect_each_to_each_other():
    """From 1,024 on a process could not: it would need more open files than it gets."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    own = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
    env = {**os.environ, **own, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    env.pop("TORCH_GLOO_LAZY_INIT", None)
    words = [sys.executable, "-c", LAZY]
    ran = subprocess.run(words, env=env, capture_output=True, text=True, timeout=200)
    assert ran.stdout == "1\n", ran.stderr


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
            "512 ranks need 2304 open files on the host of rank 0, where the limit is 1024 "
            "(ulimit -Hn): raise it",
        ),
    ],
)
def test_the_store_of_many_ranks_has_files_enough(hard, says):
    words = [sys.executable, "-c", FILES, str(hard)]
    ran = subprocess.run(words, capture_output=True, text=True, timeout=100)
    assert says in ran.stdout, ran.stderr
