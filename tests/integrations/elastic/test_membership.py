"""Lists of crews: closed once, with votes that count only where a rank holds the run's state."""

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
    server = torch.distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    yield f"127.0.0.1:{server.port}"
    while MADE:
        MADE.pop().leave()
    del server


MADE = []


def member(store, name, **options):
    settings = {"ranks": 1, "min_ranks": 1, "lease": 2.0, "timeout": 5.0, **options}
    MADE.append(Membership(Store(store, 5.0), name, **settings))
    return MADE[-1]


def members(store, count, **options):
    return [member(store, f"r{number}", ranks=count, **options) for number in range(count)]


def formed(ranks, votes):
    """Returns the roster of each rank forming at the same time; an error is its text."""
    rosters = [None] * len(ranks)

    def form(at):
        try:
            rosters[at] = ranks[at].form(votes[at], NEW if votes[at] == NEW else OUT)
        except ib.InputError as error:
            rosters[at] = str(error)

    threads = [threading.Thread(target=form, args=(at,)) for at in range(len(ranks))]
    [thread.start() for thread in threads]
    [thread.join(30) for thread in threads]
    return rosters


def test_all_have_one_list_in_the_order_of_their_names(store):
    ranks = members(store, 3)
    rosters = formed(ranks[::-1], [NEW] * 3)
    assert rosters[0] == rosters[1] == rosters[2]
    assert [seat.name for seat in rosters[0].seats] == ["r0", "r1", "r2"]


def test_a_rank_that_left_is_missed_at_once_and_a_silent_one_after_its_lease(store):
    ranks = members(store, 3)
    formed(ranks, [NEW] * 3)
    ranks[2].leave()
    (first, second) = formed(ranks[:2], [4, 5])
    assert first == second
    assert [(seat.name, seat.vote) for seat in first.seats] == [("r0", 4), ("r1", 5)]
    (alone,) = formed(ranks[:1], [6])  # r1 does not beat
    assert [seat.name for seat in alone.seats] == ["r0"]
    assert not ranks[1].is_current()
    assert ranks[0].is_current()


def test_more_than_half_go_on_or_nobody(store):
    ranks = members(store, 3, min_ranks=None, timeout=1.0)
    formed(ranks, [NEW] * 3)
    for rank in ranks[1:]:
        rank.leave()
    assert formed(ranks[:1], [3]) == [
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
    rosters = formed([member(store, "late", timeout=1.5)], [NEW])
    ended.set()
    beats.join()
    assert rosters == ["the ranks that hold the run's state did not come in 3 s: r0"]


HALVES = "no replica is left: r0, r1 applied half of a step; start a new run from a checkpoint"


def test_a_run_ends_where_all_that_are_left_hold_half_a_step_though_new_ones_come(store):
    ranks = members(store, 3)
    formed(ranks, [NEW] * 3)
    ranks[2].leave()
    late = [member(store, f"late {number}", ranks=3) for number in range(3)]
    messages = formed([*ranks[:2], *late], [HALF, HALF, NEW, NEW, NEW])
    assert messages[:2] == [HALVES] * 2
    assert all(
        HALVES in message for message in messages
    )  # Who comes a moment later hears that the run has ended.
    (message,) = formed([member(store, "later")], [NEW])
    assert message.startswith(f"the run of this store has ended ({HALVES})")


def test_who_holds_half_a_step_goes_on_with_who_holds_a_whole_one(store):
    ranks = members(store, 3)
    formed(ranks, [NEW] * 3)
    (table,) = {*formed(ranks, [HALF, 5, HALF])}
    assert [(seat.name, seat.vote) for seat in table.seats] == [("r0", HALF), ("r1", 5), ("r2", HALF)]


def test_who_holds_half_a_step_waits_for_a_silent_rank_with_the_state(store):
    ranks = members(store, 2, lease=0.5)
    formed(ranks, [NEW] * 2)
    ranks[0].say_over("it holds half a step")
    rosters = []
    thread = threading.Thread(target=lambda: rosters.append(ranks[0].form(HALF, OUT)), daemon=True)
    thread.start()
    thread.join(2.0)
    assert not rosters
    (table,) = formed(ranks[1:], [5])
    thread.join(10)
    assert rosters == [table]
    assert [(seat.name, seat.vote) for seat in table.seats] == [("r0", HALF), ("r1", 5)]


def test_a_store_that_does_not_answer_is_gone_after_its_time():
    """As with a host cut off: its socket is there, and says nothing."""
    command = [sys.executable, "-m", "isobatch", "store", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        connection = Store(f"127.0.0.1:{process.stdout.readline().split()[-1]}", 1.0)
        connection.write("a", Saved(1))
        process.send_signal(signal.SIGSTOP)
        os.waitpid(process.pid, os.WUNTRACED)
        begun = monotonic()
        try:
            for question in connection, connection:
                with pytest.raises(StoreGone, match="is gone"):
                    question.read("a", Saved)
        finally:
            process.kill()
        assert monotonic() - begun < 10


def test_a_store_whose_run_has_ended_says_so(store):
    ranks = members(store, 3, min_ranks=None, timeout=1.0)
    formed(ranks, [NEW] * 3)
    for rank in ranks[1:]:
        rank.leave()
    formed(ranks[:1], [3])
    (message,) = formed([member(store, "of another run", ranks=2)], [NEW])
    assert message.startswith("the run of this store has ended (1 of 3 ranks are left")
    assert message.endswith("a new run needs a new store")


def test_a_store_that_was_never_started_is_asked_for():
    with pytest.raises(
        ib.InputError, match=r"no store answers at 127.0.0.1:1 in 1 s: run isobatch store --port 1 "
    ):
        Store("127.0.0.1:1", 1.0)


def test_who_wants_to_join_does_not_end_a_crew_that_is_only_silent(store):
    ranks = members(store, 1, timeout=30.0)
    formed(ranks, [NEW])
    late = member(store, "late", lease=0.2, timeout=30.0)
    rosters = []
    thread = threading.Thread(target=lambda: rosters.append(late.form(NEW, NEW)), daemon=True)
    thread.start()
    thread.join(1.5)
    assert not rosters
    (table,) = formed(ranks, [7])
    thread.join(10)
    assert [(seat.name, seat.vote) for seat in table.seats] == [("r0", 7), ("late", NEW)]
    assert rosters == [table]


@pytest.mark.parametrize(
    ("votes", "holds"), [([NEW, NEW], True), ([5, NEW], False), ([NEW, OUT], True), ([5, OUT], False)]
)
def test_who_joins_holds_the_state_only_when_it_is_healed(votes, holds):
    expected = 1 if holds is False else 0
    table = Roster(3, tuple(Seat(f"r{rank}|x|{rank}", vote) for rank, vote in enumerate(votes)))
    process = object.__new__(_Survivors)
    process._members, process._holds, process._without = SimpleNamespace(id=table.ids[expected]), False, NEW
    process._take_seat(table)
    assert process._holds is holds


@pytest.mark.parametrize("address", ["node", "node:", ":1", "node:70000", 5])
def test_a_store_is_host_and_port(address):
    with pytest.raises(ib.InputError, match="store must be 'host:port', got"):
        host_and_port(address)


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"ranks": 0}, "ranks must be a whole number from 1, got 0"),
        ({"ranks": 2, "min_ranks": 3}, "min_ranks must be at most ranks, 2, got 3"),
        ({"ranks": 2, "lease": 0}, "lease must be above 0 seconds, got 0"),
        ({}, "ranks is missing: pass ranks=, or set WORLD_SIZE"),
    ],
)
def test_bad_settings_are_refused_before_the_store_is_asked(monkeypatch, settings, why):
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    net = torch.nn.Linear(1, 1)
    recipe = ib.Recipe(effective_batch=4, lr=0.1, optimizer="sgd", dataset_size=8, duration="2ep")
    with pytest.raises(ib.InputError, match=why):
        survivors(recipe, net, torch.optim.SGD(net.parameters(), lr=0.1), store="127.0.0.1:1", **settings)


def test_a_rank_unlike_the_first_that_came_is_not_said_to_be_the_wrong_one(store):
    first, second = members(store, 2)
    first.compare({"seed": 1, "lr": 0.1})
    with pytest.raises(
        ib.InputError,
        match="seed is 0 on this rank, 1 on the rank that came first: one of the two was started",
    ):
        second.compare({"seed": 0, "lr": 0.1})
