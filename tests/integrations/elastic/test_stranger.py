"""A stranger at each step of a run: nothing of his is executed, no vote is moved, and the run ends as if he
were not there.
"""

import os
import signal

import pytest

torch = pytest.importorskip("torch", reason="survivors drives a torch training")

from ddp import surviving  # noqa: E402
from ddp.crews import Ranks, faults, lines  # noqa: E402
from ddp.stranger import Stranger  # noqa: E402
from isobatch.integrations.torch.elastic.messages import Seal  # noqa: E402

KEY = "the-key-of-this-run-alone"
OPTIONS = {
    "ranks": 3,
    "min_ranks": 1,
    "lease": 3.0,
    "timeout": 60.0,
    "steps": 40,
    "recipe": {"warmup": "5st"},
    "pause": 0.1,
    "environment": {"ISOBATCH_RUN_KEY": KEY},
}


@pytest.fixture(scope="module")
def alone():
    before = torch.get_default_dtype()
    yield surviving.undisturbed(OPTIONS)
    torch.set_default_dtype(before)


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


def ended(ranks, folder, alone, expected):
    codes = ranks.wait(150)
    assert codes == expected, [ranks.said(name) for name in codes]
    assert faults(folder, alone)[0] == []
    return [*dict.fromkeys((line["crew"], line["of"]) for line in lines(folder) if "at" in line)]


def test_a_stranger_does_not_end_a_quiet_run(tmp_path, alone, attacked):
    for rank in range(3):
        attacked.start(f"r{rank}", seed=rank)
    assert ended(attacked, tmp_path, alone, {"r0": 0, "r1": 0, "r2": 0})[-1][1] == 3


@pytest.mark.slow
def test_a_stranger_moves_no_vote_when_ranks_are_lost_and_join(tmp_path, alone, attacked):
    for rank in range(3):
        attacked.start(f"r{rank}", seed=rank, kills=[[8, "between"]] if rank == 1 else [])
    attacked.wait_for(lambda line: line.get("done") == 12)
    attacked.start("late", seed=9)
    crews = ended(attacked, tmp_path, alone, {"r0": 0, "r1": -signal.SIGKILL, "r2": 0, "late": 0})
    assert max(of for _, of in crews) == 3


@pytest.mark.slow
def test_a_rank_that_wakes_among_a_stranger_s_messages_is_out(tmp_path, alone, attacked):
    for rank in range(3):
        attacked.start(f"r{rank}", seed=rank, kills=[[6, "reduced"]] if rank == 0 else [], signal="SIGSTOP")
    attacked.wait_for(lambda line: line.get("of") == 2 and line.get("done", 0) >= 12)
    attacked.signal("r0", signal.SIGCONT)
    crews = ended(attacked, tmp_path, alone, {"r0": 0, "r1": 0, "r2": 0})
    assert {of for _, of in crews} >= {2, 3}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("environment", "why"),
    [
        (
            {"ISOBATCH_RUN_KEY": "the-key-of-another-run"},
            "has a key, and this rank has another: set ISOBATCH_RUN_KEY",
        ),
        ({"ISOBATCH_RUN_KEY": "none"}, "has a key, and this rank has none: set ISOBATCH_RUN_KEY"),
    ],
)
def test_who_has_another_key_is_refused_by_name_and_the_run_goes_on(tmp_path, alone, environment, why):
    with Ranks(tmp_path, OPTIONS) as ranks:
        for rank in range(3):
            ranks.start(f"r{rank}", seed=rank)
        ranks.wait_for(lambda line: line.get("done") == 3)
        ranks.start("other", environment=environment)
        assert ended(ranks, tmp_path, alone, {"r0": 0, "r1": 0, "r2": 0, "other": 3}) == [(0, 3)]
        assert f"the run 'run' of the store at 127.0.0.1:{ranks.port} {why}" in ranks.said("other")


@pytest.mark.slow
def test_no_process_has_the_key_in_its_arguments(tmp_path, alone):
    with Ranks(tmp_path, OPTIONS) as ranks:
        process = ranks.start("r0", ranks=1)
        ranks.wait_for(lambda line: "done" in line)
        for pid in process.pid, ranks.store.pid, os.getpid():
            with open(f"/proc/{pid}/cmdline", "rb") as words:  # noqa: PTH123
                assert KEY.encode() not in words.read()
        process.kill()
