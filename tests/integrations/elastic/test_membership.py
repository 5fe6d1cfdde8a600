"""Whose list a crew has: closed once, with votes that count only where a rank holds the run's state."""

import os
import signal
import subprocess
import sys
import threading
from time import monotonic
from types import SimpleNamespace

import pytest

import isobatch as ib

torch = pytest.importorskip("torch", reason="survivors drives a torch training")

from isobatch.integrations.torch import survivors  # noqa: E402
from isobatch.integrations.torch.elastic.membership import Membership  # noqa: E402
from isobatch.integrations.torch.elastic.messages import HALF, NEW, OUT, Roster, Saved, Seat  # noqa: E402
from isobatch.integrations.torch.elastic.store import Store, StoreGone, host_and_port  # noqa: E402
from isobatch.integrations.torch.elastic.survivors import _Survivors  # noqa: E402


@pytest.fixture
def store():
    made = torch.distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    yield f"127.0.0.1:{made.port}"
    while MADE:
        MADE.pop().leave()
    del made


MADE = []


def member(store, name, **options):
    asked = {"ranks": 1, "min_ranks": 1, "lease": 2.0, "timeout": 5.0, **options}
    MADE.append(Membership(Store(store, 5.0), name, **asked))
    return MADE[-1]


def members(store, count, **options):
    return [member(store, f"r{number}", ranks=count, **options) for number in range(count)]


def formed(those, votes):
    """What each gets that forms at the same time; an error is its text."""
    found = [None] * len(those)

    def form(at):
        try:
            found[at] = those[at].form(votes[at], NEW if votes[at] == NEW else OUT)
        except ib.InputError as error:
            found[at] = str(error)

    threads = [threading.Thread(target=form, args=(at,)) for at in range(len(those))]
    [thread.start() for thread in threads]
    [thread.join(30) for thread in threads]
    return found


def test_all_have_one_list_in_the_order_of_their_names(store):
    those = members(store, 3)
    found = formed(those[::-1], [NEW] * 3)
    assert found[0] == found[1] == found[2]
    assert [seat.name for seat in found[0].seats] == ["r0", "r1", "r2"]


def test_a_rank_that_left_is_missed_at_once_and_a_silent_one_after_its_lease(store):
    those = members(store, 3)
    formed(those, [NEW] * 3)
    those[2].leave()
    (first, second) = formed(those[:2], [4, 5])
    assert first == second
    assert [(seat.name, seat.vote) for seat in first.seats] == [("r0", 4), ("r1", 5)]
    (alone,) = formed(those[:1], [6])  # r1 does not beat
    assert [seat.name for seat in alone.seats] == ["r0"]
    assert not those[1].is_current()
    assert those[0].is_current()


def test_more_than_half_go_on_or_nobody(store):
    those = members(store, 3, min_ranks=None, timeout=1.0)
    formed(those, [NEW] * 3)
    for one in those[1:]:
        one.leave()
    assert formed(those[:1], [3]) == [
        "1 of 3 ranks are left, and more than half is 2 (min_ranks= lets fewer go on)"
    ]


def test_a_run_does_not_begin_anew_while_a_rank_with_its_state_beats(store):
    (old,) = members(store, 1)
    formed([old], [NEW])
    old.say_over("it does not come back")
    ended = threading.Event()

    def beat():
        pulse = Store(store, 5.0)
        for count in range(1000):
            old.beat(pulse, count)
            if ended.wait(0.1):
                return

    beats = threading.Thread(target=beat)
    beats.start()
    found = formed([member(store, "late", timeout=1.5)], [NEW])
    ended.set()
    beats.join()
    assert found == ["the ranks that hold the run's state did not come in 3 s: r0"]


HALVES = "no replica is left: r0, r1 applied a step by half; start a new run from a checkpoint"


def test_a_run_ends_where_all_that_are_left_hold_half_a_step_though_new_ones_come(store):
    those = members(store, 3)
    formed(those, [NEW] * 3)
    those[2].leave()
    late = [member(store, f"late {number}", ranks=3) for number in range(3)]
    found = formed([*those[:2], *late], [HALF, HALF, NEW, NEW, NEW])
    assert found[:2] == [HALVES] * 2
    assert all(HALVES in said for said in found)  # Who comes a moment later hears that the run has ended.
    (said,) = formed([member(store, "later")], [NEW])
    assert said.startswith(f"the run of this store has ended ({HALVES})")


def test_who_holds_half_a_step_goes_on_with_who_holds_a_whole_one(store):
    those = members(store, 3)
    formed(those, [NEW] * 3)
    (table,) = {*formed(those, [HALF, 5, HALF])}
    assert [(seat.name, seat.vote) for seat in table.seats] == [("r0", HALF), ("r1", 5), ("r2", HALF)]


def test_who_holds_half_a_step_waits_for_a_silent_rank_with_the_state(store):
    those = members(store, 2, lease=0.5)
    formed(those, [NEW] * 2)
    those[0].say_over("it holds half a step")
    found = []
    thread = threading.Thread(target=lambda: found.append(those[0].form(HALF, OUT)), daemon=True)
    thread.start()
    thread.join(2.0)
    assert not found
    (table,) = formed(those[1:], [5])
    thread.join(10)
    assert found == [table]
    assert [(seat.name, seat.vote) for seat in table.seats] == [("r0", HALF), ("r1", 5)]


def test_a_store_that_does_not_answer_is_gone_after_its_time():
    """As one whose host is cut off: its socket is there, and says nothing."""
    command = [sys.executable, "-m", "isobatch", "store", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        asked = Store(f"127.0.0.1:{process.stdout.readline().split()[-1]}", 1.0)
        asked.write("a", Saved(1))
        process.send_signal(signal.SIGSTOP)
        os.waitpid(process.pid, os.WUNTRACED)
        begun = monotonic()
        try:
            for one in asked, asked:
                with pytest.raises(StoreGone, match="is gone"):
                    one.read("a", Saved)
        finally:
            process.kill()
        assert monotonic() - begun < 10


def test_a_store_whose_run_has_ended_says_so(store):
    those = members(store, 3, min_ranks=None, timeout=1.0)
    formed(those, [NEW] * 3)
    for one in those[1:]:
        one.leave()
    formed(those[:1], [3])
    (said,) = formed([member(store, "of another run", ranks=2)], [NEW])
    assert said.startswith("the run of this store has ended (1 of 3 ranks are left")
    assert said.endswith("a new run needs a new store")


def test_a_store_that_was_never_started_is_asked_for():
    with pytest.raises(
        ib.InputError, match=r"no store answers at 127.0.0.1:1 in 1 s: run isobatch store --port 1 "
    ):
        Store("127.0.0.1:1", 1.0)


def test_who_wants_to_join_does_not_end_a_crew_that_is_only_silent(store):
    those = members(store, 1, timeout=30.0)
    formed(those, [NEW])
    late = member(store, "late", lease=0.2, timeout=30.0)
    found = []
    thread = threading.Thread(target=lambda: found.append(late.form(NEW, NEW)), daemon=True)
    thread.start()
    thread.join(1.5)
    assert not found
    (table,) = formed(those, [7])
    thread.join(10)
    assert [(seat.name, seat.vote) for seat in table.seats] == [("r0", 7), ("late", NEW)]
    assert found == [table]


@pytest.mark.parametrize(
    ("votes", "holds"), [([NEW, NEW], True), ([5, NEW], False), ([NEW, OUT], True), ([5, OUT], False)]
)
def test_who_joins_holds_the_state_only_when_it_is_healed(votes, holds):
    mine = 1 if holds is False else 0
    table = Roster(3, tuple(Seat(f"r{rank}|x|{rank}", vote) for rank, vote in enumerate(votes)))
    one = object.__new__(_Survivors)
    one._members, one._holds, one._without = SimpleNamespace(id=table.ids[mine]), False, NEW
    one._take_seat(table)
    assert one._holds is holds


@pytest.mark.parametrize("address", ["node", "node:", ":1", "node:70000", 5])
def test_a_store_is_host_and_port(address):
    with pytest.raises(ib.InputError, match="store must be 'host:port', got"):
        host_and_port(address)


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        ({"ranks": 0}, "ranks must be a whole number from 1, got 0"),
        ({"ranks": 2, "min_ranks": 3}, "min_ranks must be at most ranks, 2, got 3"),
        ({"ranks": 2, "lease": 0}, "lease must be above 0 seconds, got 0"),
        ({}, "ranks is missing: pass ranks=, or set WORLD_SIZE"),
    ],
)
def test_bad_settings_are_refused_before_the_store_is_asked(monkeypatch, asked, why):
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    net = torch.nn.Linear(1, 1)
    recipe = ib.Recipe(effective_batch=4, lr=0.1, optimizer="sgd", dataset_size=8, duration="2ep")
    with pytest.raises(ib.InputError, match=why):
        survivors(recipe, net, torch.optim.SGD(net.parameters(), lr=0.1), store="127.0.0.1:1", **asked)


def test_a_rank_unlike_the_first_that_came_is_not_said_to_be_the_wrong_one(store):
    first, second = members(store, 2)
    first.compare({"seed": 1, "lr": 0.1})
    with pytest.raises(
        ib.InputError,
        match="seed is 0 on this rank, 1 on the rank that came first: one of the two was started",
    ):
        second.compare({"seed": 0, "lr": 0.1})
