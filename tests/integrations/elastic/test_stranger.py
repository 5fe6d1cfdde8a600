"""A stranger at each step of a run: nothing of his is executed, no vote is moved, and the run ends as if he
were not there.
"""

import os
import signal
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="survivors drives a torch training")

from ddp import surviving  # noqa: E402
from ddp.crews import Ranks  # noqa: E402
from ddp.stranger import Stranger  # noqa: E402
from isobatch.elastic.messages import Seal  # noqa: E402

KEY = "the-key-of-this-run-alone"
OPTIONS = {"ranks": 3, "min_ranks": 1, "lease": 3.0, "timeout": 60.0, "steps": 40, "pause": 0.1}
OPTIONS |= {"recipe": {"warmup": "5st"}, "environment": {"ISOBATCH_RUN_KEY": KEY}}


@pytest.fixture(scope="module")
def alone():
    return surviving.undisturbed(OPTIONS)


@pytest.fixture
def attacked(tmp_path):
    """A run with a store under a stranger's attack from before its first rank comes."""
    with Ranks(tmp_path, OPTIONS) as ranks:
        stranger = Stranger(f"127.0.0.1:{ranks.port}", tmp_path, Seal(b"a key of his own"))
        stranger.start()
        yield ranks
        stranger.end()
    assert stranger.attacks > 100
    assert not (tmp_path / "CANARY").exists()
    assert not any("a-stranger" in (path.read_text()) for path in tmp_path.glob("out-*"))


def test_a_stranger_does_not_end_a_quiet_run(alone, attacked):
    attacked.start_all()
    assert attacked.finish(alone, {"r0": 0, "r1": 0, "r2": 0})[-1][1] == 3


@pytest.mark.slow
def test_a_stranger_moves_no_vote_when_ranks_are_lost_and_join(alone, attacked):
    attacked.start_all({1: [[8, "between"]]})
    attacked.wait_for(lambda line: line.get("done") == 12)
    attacked.start("late", seed=9)
    crews = attacked.finish(alone, {"r0": 0, "r1": -signal.SIGKILL, "r2": 0, "late": 0})
    assert max(size for _, size, _ in crews) == 3


@pytest.mark.slow
def test_a_rank_that_wakes_among_a_stranger_s_messages_is_out(alone, attacked):
    attacked.start_all({0: [[6, "reduced"]]}, signal="SIGSTOP")
    attacked.wait_for(lambda line: line.get("of") == 2 and line.get("done", 0) >= 12)
    attacked.signal("r0", signal.SIGCONT)
    crews = attacked.finish(alone, {"r0": 0, "r1": 0, "r2": 0})
    assert {size for _, size, _ in crews} >= {2, 3}


@pytest.mark.slow
@pytest.mark.parametrize(("key", "own"), [("the-key-of-another-run", "another"), ("none", "none")])
def test_a_rank_with_another_key_is_refused_by_name_and_the_run_goes_on(tmp_path, alone, key, own):
    with Ranks(tmp_path, OPTIONS) as ranks:
        ranks.start_all()
        ranks.wait_for(lambda line: line.get("done") == 3)
        ranks.start("other", environment={"ISOBATCH_RUN_KEY": key})
        crews = ranks.finish(alone, {"r0": 0, "r1": 0, "r2": 0, "other": 3})
        assert [(number, size) for number, size, _ in crews] == [(0, 3)]
        owner = f"the run 'run' of the store at 127.0.0.1:{ranks.port}"
        assert f"{owner} has a key, and this rank has {own}: set ISOBATCH_RUN_KEY" in ranks.said("other")


@pytest.mark.slow
def test_no_process_has_the_key_in_its_arguments(tmp_path):
    with Ranks(tmp_path, OPTIONS) as ranks:
        process = ranks.start("r0", ranks=1)
        ranks.wait_for(lambda line: "done" in line)
        for pid in process.pid, ranks.store.pid, os.getpid():
            assert KEY.encode() not in Path(f"/proc/{pid}/cmdline").read_bytes()
        process.kill()
