"""A run through losses and joins of ranks equals the undisturbed run."""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="survivors drives a torch training")

from ddp import surviving  # noqa: E402
from ddp.crews import Ranks, faults, gaps  # noqa: E402

OPTIONS = {"ranks": 3, "min_ranks": 1, "lease": 10.0, "timeout": 60.0, "steps": 40}
OPTIONS |= {"recipe": {"warmup": "5st"}}
DEAD = -signal.SIGKILL


@pytest.fixture(scope="module")
def alone():
    return surviving.undisturbed(OPTIONS)


def through(folder, alone, kills, expected, each=None, **options):
    """Trains through kills of ranks; returns the crews' (number, size, step) in order."""
    with Ranks(folder, {**OPTIONS, **options}) as ranks:
        ranks.start_all(kills, each)
        return ranks.finish(alone, dict(zip(("r0", "r1", "r2"), expected, strict=True)))


@pytest.mark.parametrize(("steps", "missing"), [((0, 1, 2), None), ((0, 2), "1 steps were not done")])
def test_a_run_that_was_cut_off_is_compared_up_to_there(tmp_path, alone, steps, missing):
    log = [{"take": step, "crew": 0, "ids": alone[0][step][0], "lr": alone[0][step][1]} for step in steps]
    log += [{"done": step, "crew": 0} for step in steps]
    (tmp_path / "log-r0-1.jsonl").write_text("".join(json.dumps({"t": 0.0, **line}) + "\n" for line in log))
    assert faults(tmp_path, alone, cut_off=True)[0] == ([missing] if missing else [])
    assert faults(tmp_path, alone)[0][0] == f"{40 - len(steps)} steps were not done"


def test_two_losses_cost_a_step_each(tmp_path, alone):
    crews = through(tmp_path, alone, {1: [[10, "between"]], 0: [[20, "reduced"]]}, (DEAD, DEAD, 0))
    assert crews == [(0, 3, 0), (1, 2, 10), (2, 1, 21)]


@pytest.mark.parametrize(
    ("workers", "inside"),
    [
        (0, True),
        *(pytest.param(*case, marks=pytest.mark.slow) for case in [(0, False), (1, True), (1, False)]),
    ],
)
@pytest.mark.parametrize("place", surviving.PLACES)
def test_a_loss_at_each_line_of_the_loop(tmp_path, alone, place, inside, workers):
    crews = through(tmp_path, alone, {0: [[12, place]]}, (DEAD, 0, 0), inside=inside, workers=workers)
    assert [size for _, size, _ in crews] == [3, 2]
    assert crews[1][2] == (12 if place in ("forward", "between") else crews[1][2])


def test_a_rank_that_holds_half_a_step_gets_the_state_of_one_that_does_not(tmp_path, alone):
    torn = {rank: {"tears": 12} for rank in (1, 2)}
    crews = through(tmp_path, alone, {}, (0, 0, 0), each=torn, inside=True)
    assert [number for number, *_ in crews] == [0, 1]


@pytest.mark.slow
@pytest.mark.parametrize("inside", [False, True])
def test_a_rank_that_comes_gets_the_state_from_the_others(tmp_path, alone, inside):
    with Ranks(tmp_path, {**OPTIONS, "pause": 0.1, "inside": inside}) as ranks:
        ranks.start_all({1: [[5, "between"]]})
        ranks.wait_for(lambda line: line.get("done") == 2)
        ranks.start("late", seed=9)
        crews = ranks.finish(alone, {"r0": 0, "r1": DEAD, "r2": 0, "late": 0})
        assert max(size for _, size, _ in crews) == 3
        assert len({line["rank_of"] for line in ranks.lines if "ended" in line}) == 3


def test_a_rank_that_can_never_connect_ends_and_the_others_go_on(tmp_path, alone):
    with Ranks(tmp_path, {**OPTIONS, "pause": 0.1}) as ranks:
        ranks.start_all()
        ranks.wait_for(lambda line: line.get("done") == 2)
        ranks.start("late", seed=9, environment={"GLOO_SOCKET_IFNAME": "nowhere"})
        crews = ranks.finish(alone, {"r0": 0, "r1": 0, "r2": 0, "late": 3}, 300)
        assert "late could not join: 2 crews with it finished no step" in ranks.said("late")
    assert {size for _, size, _ in crews} == {3}


@pytest.mark.slow
def test_ranks_that_failed_to_form_meet_one_that_did_not(tmp_path, alone):
    with Ranks(tmp_path, {**OPTIONS, "pause": 0.1}) as ranks:
        ranks.start_all({0: [[5, "between"]], 1: [[1, "forming"]]})
        ranks.wait_for(lambda line: line.get("kill") == "forming")
        ranks.start("late", seed=9)
        crews = ranks.finish(alone, {"r0": DEAD, "r1": DEAD, "r2": 0, "late": 0})
    assert max(size for number, size, _ in crews if number > 1) == 2


@pytest.mark.slow
def test_a_paused_rank_is_out_and_comes_in_again(tmp_path, alone):
    with Ranks(tmp_path, {**OPTIONS, "lease": 1.5, "pause": 0.2}) as ranks:
        ranks.start_all({0: [[5, "reduced"]]}, signal="SIGSTOP")
        ranks.wait_for(lambda line: line.get("crew") == 1 and line.get("done", 0) >= 7)
        ranks.signal("r0", signal.SIGCONT)
        crews = ranks.finish(alone, {"r0": 0, "r1": 0, "r2": 0})
    assert {(number, size) for number, size, _ in crews} >= {(1, 2), (2, 3)}


@pytest.mark.slow
@pytest.mark.parametrize("own", [0, 1 << 20])
def test_the_last_rank_with_the_state_goes_on_at_once_when_it_wakes(tmp_path, own):
    """The others cut it off while it was paused, and gloo forgets its next send."""
    options = {"ranks": 2, "lease": 2.0, "steps": 100000, "pause": 0.02, "own": own, "inside": True}
    with Ranks(tmp_path, {**OPTIONS, **options}) as ranks:
        ranks.start("r0")
        for turn in range(4):
            joiner = ranks.start(f"j{turn}")
            ranks.wait_for(lambda line, turn=turn: f"log-j{turn}-" in line["rank_of"] and "done" in line)
            ranks.signal("r0", signal.SIGSTOP)
            time.sleep(3.5)
            ranks.signal("r0", signal.SIGCONT)
            joiner.kill()
            crew, killed = max(line["crew"] for line in ranks.lines if "at" in line), time.time()
            ranks.wait_for(lambda line, crew=crew: line.get("crew", 0) > crew and "done" in line, 20)
            assert time.time() - killed < 10


@pytest.mark.slow
@pytest.mark.parametrize("place", ["forming", "healing"])
def test_a_rank_that_is_paused_in_forming_holds_nobody_up(tmp_path, alone, place):
    """Neither the others, who go on after the lease, nor itself when it wakes."""
    with Ranks(tmp_path, {**OPTIONS, "lease": 2.0, "pause": 0.2}) as ranks:
        ranks.start_all({0: [[1, place]], 1: [[5, "between"]]}, {0: {"signal": "SIGSTOP"}})
        ranks.wait_for(lambda line: line.get("kill") == place)
        paused = time.time()
        ranks.wait_for(lambda line: line.get("of") == 1 and "done" in line, 20)
        assert time.time() - paused < 8
        ranks.signal("r0", signal.SIGCONT)
        woken = time.time()
        ranks.wait_for(lambda line: line.get("of") == 2 and line.get("crew", 0) > 1 and "done" in line, 20)
        assert time.time() - woken < 8
        ranks.finish(alone, {"r0": 0, "r1": DEAD, "r2": 0})


@pytest.mark.slow
def test_a_torchrun_for_each_rank_starts_its_own_again(tmp_path, alone):
    """The killed rank comes in again, by its torchrun, while the others go on."""
    options = {**OPTIONS, "pause": 0.6}
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "1"]
    command += ["--max-restarts", "3", surviving.__file__]
    with Ranks(tmp_path, options) as store, ExitStack() as stack:
        launchers = []
        for rank in range(3):
            settings = {**options, "kills": [[5, "between"]] if rank == 1 else []}
            words = [f"127.0.0.1:{store.port}", str(tmp_path), f"r{rank}", json.dumps(settings)]
            process = stack.enter_context(subprocess.Popen([*command, *words], start_new_session=True))
            stack.callback(os.killpg, process.pid, signal.SIGTERM)
            launchers.append(process)
        assert [process.wait(180) for process in launchers] == [0, 0, 0]
        stack.pop_all()
        assert [(number, size) for number, size, _ in store.finish(alone, {})] == [(0, 3), (1, 2), (2, 3)]


@pytest.mark.slow
def test_a_rank_whose_worker_hangs_ends_and_the_others_go_on(tmp_path, alone):
    with Ranks(tmp_path, {**OPTIONS, "workers": 1, "timeout": 8.0}) as ranks:
        ranks.start_all(each={1: {"stuck": True}})
        ranks.finish(alone, {"r0": 0, "r1": 1, "r2": 0})
        assert "DataLoader timed out after 8.0 seconds" in ranks.said("r1")


@pytest.mark.parametrize("inside", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_a_worker_that_dies_ends_neither_its_rank_nor_the_crew(tmp_path, alone, inside):
    each = {rank: {"killed": 10 + rank} for rank in range(3)}
    crews = through(tmp_path, alone, {}, (0, 0, 0), each=each, workers=1, inside=inside)
    assert crews == [(0, 3, 0)]


def test_a_rank_of_another_recipe_ends_the_first_crew(tmp_path):
    with Ranks(tmp_path, {**OPTIONS, "ranks": 2}) as ranks:
        ranks.start_all(each={1: {"recipe": {"warmup": "6st"}}})
        assert ranks.wait(90) == {"r0": 3, "r1": 3}
        for name in "r0", "r1":
            assert "recipe's warmup" in ranks.said(name)
            assert "one of the two was started wrongly" in ranks.said(name)


TOO_FEW = "1 of 3 ranks are left, and more than half is 2 (min_ranks= lets fewer go on)"
HALVES = "no replica is left: r0, r1, r2 applied half of a step; start a new run from a checkpoint"
SAVED = "the run ends here at step 12, and the last state_dict() is of step 10"


@pytest.mark.parametrize(
    ("options", "kills", "codes", "why"),
    [
        ({"inside": True, "check": True, "tears": 12}, {}, (3, 3, 3), f"{HALVES}; {SAVED}"),
        pytest.param(
            {"ranks": 1, "timeout": 3.0, "awaited": 2},
            {},
            (3,),
            "1 of 2 ranks came in 3 s; the run ends here at step 0, and state_dict() was never called",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            {"min_ranks": None, "timeout": 5.0, "check": True},
            {1: [[12, "between"]], 2: [[12, "between"]]},
            (3, DEAD, DEAD),
            f"{TOO_FEW}; {SAVED}",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_a_run_that_cannot_go_on_ends_with_the_step_of_its_checkpoint(tmp_path, options, kills, codes, why):
    with Ranks(tmp_path, {**OPTIONS, **options}) as ranks:
        ranks.start_all(kills, ranks=options.get("awaited", 3))
        assert tuple(ranks.wait(90).values()) == codes
        assert all(why in ranks.said(f"r{rank}") for rank, code in enumerate(codes) if code == 3)


UNLIKE = "do not match: broadcast of 3 float64 on rank 0, broadcast of 1,000 float64 on rank 1"


@pytest.mark.parametrize(
    ("options", "each", "codes", "why"),
    [
        ({"unwrapped": True}, {}, [3, 3], "r0 and r1 have different weights before step 1 ("),
        ({"inside": True}, {0: {"own": 3}, 1: {"own": 1000}}, [3, 3], UNLIKE),
        ({"own": 3}, {1: {"kills": [[5, "scheduled"]]}}, [1, DEAD], "write `with crew:` around the body"),
        ({"compiled": True, "inside": True}, {}, [0, 0], ""),
    ],
    ids=["weights drift", "collectives unlike", "own collective", "compiled"],
)
def test_ranks_end_with_advice(tmp_path, options, each, codes, why):
    settings = {**OPTIONS, "ranks": 2, "steps": 15, "recipe": {"warmup": None}, **options}
    with Ranks(tmp_path, settings) as ranks:
        ranks.start_all(each=each, seed=0)
        printed = [ranks.said(name) for name in ranks.wait(60)]
        assert [process.exitcode for process in ranks.processes.values()] == codes, printed
        assert all(why in text for text, code in zip(printed, codes, strict=True) if code != DEAD)
    if DEAD in codes:
        assert max(line["done"] for line in ranks.lines if "done" in line) == 4


@pytest.mark.slow
def test_all_end_together_where_the_store_is_gone(tmp_path):
    with Ranks(tmp_path, {**OPTIONS, "pause": 0.1, "lease": 3.0}) as ranks:
        ranks.start_all()
        ranks.wait_for(lambda line: line.get("done") == 5)
        os.kill(ranks.store.pid, signal.SIGKILL)
        codes = ranks.wait(60)
    messages = [ranks.said(name).splitlines()[-1] for name in codes]
    assert set(codes.values()) == {3}, messages
    assert all("the store at 127.0.0.1:" in message and "is gone" in message for message in messages)
    assert len({message.split("at step ")[1] for message in messages}) == 1


@pytest.mark.slow
def test_threads_and_files_do_not_grow_over_many_crews(tmp_path):
    counts = []
    with Ranks(tmp_path, {**OPTIONS, "steps": 4000, "pause": 0.05, "ranks": 1}) as ranks:
        stays = ranks.start("r0")
        for turn in range(26):
            joiner = ranks.start(f"j{turn}")
            ranks.wait_for(lambda line, turn=turn: f"log-j{turn}-" in line["rank_of"] and "done" in line)
            joiner.kill()
            crews = max(line["crew"] for line in ranks.lines if "at" in line)
            ranks.wait_for(lambda line, crews=crews: line.get("crew", 0) > crews and "done" in line)
            time.sleep(0.3)
            counts.append([len([*Path(f"/proc/{stays.pid}", folder).iterdir()]) for folder in ("task", "fd")])
    assert crews >= 50
    assert counts[-1] == counts[1], counts


@pytest.mark.slow
def test_a_rank_that_dies_while_the_others_connect_is_not_waited_for(tmp_path, alone):
    """gloo waits for it five times as long as the group's time-out, whatever happens to its sockets."""
    begun = time.monotonic()
    with Ranks(tmp_path, {**OPTIONS, "pause": 0.1}) as ranks:
        ranks.start_all()
        ranks.wait_for(lambda line: line.get("done") == 2)
        ranks.start("late", kills=[[0, "connecting"]])
        ranks.finish(alone, {"r0": 0, "r1": 0, "r2": 0, "late": DEAD})
    assert time.monotonic() - begun < 60


@pytest.mark.slow
def test_the_workers_of_a_lost_crew_do_not_hold_up_the_next(tmp_path, alone):
    kills = {0: [[10, "between"]], 1: [[20, "between"]]}
    through(tmp_path, alone, kills, (DEAD, DEAD, 0), workers=1, pause=0.02)
    assert max(gaps(tmp_path)) < 4.0
