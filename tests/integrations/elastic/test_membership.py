"""Lists of crews: closed once, with votes that count only where a rank holds the run's state."""

import os
import signal
import subprocess
import sys
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor, wait
from time import monotonic
from types import SimpleNamespace

import pytest

import isobatch as ib

torch = pytest.importorskip("torch", reason="survivors drives a torch training")

from isobatch.elastic.membership import Membership  # noqa: E402
from isobatch.elastic.messages import (  # noqa: E402
    HALF,
    NEW,
    OUT,
    Here,
    Roster,
    Saved,
    Seat,
)
from isobatch.elastic.run import can_begin  # noqa: E402
from isobatch.elastic.store import Store, StoreGone, host_and_port  # noqa: E402
from isobatch.elastic.survivors import _Survivors  # noqa: E402
from isobatch.integrations.torch import ElasticRun, survivors  # noqa: E402

# A rank that waits says so once: when, is up to the machine.
pytestmark = pytest.mark.filterwarnings("ignore:.*waits. the plan has no work:UserWarning")


@pytest.fixture
def member(store):
    """Makes a member of a run."""
    members = []

    def make(name, **options):
        settings = {"ranks": 1, "min_ranks": 1, "lease": 2.0, "timeout": 5.0, **options}
        members.append(Membership(Store(store, 5.0), name, **settings))
        return members[-1]

    yield make
    for rank in members:
        rank.leave()


@pytest.fixture
def members(member):
    """Makes so many members of a run."""
    return lambda count, **options: [member(f"r{rank}", ranks=count, **options) for rank in range(count)]


@pytest.fixture
def crew(members):
    """Makes so many members, formed as the first crew."""

    def make(count, **options):
        ranks = members(count, **options)
        formed(ranks, [NEW] * count)
        return ranks

    return make


def formed(ranks, votes):
    """Returns the roster of each rank forming at the same time; an error is its text."""
    return [answer.result(30) for answer in forming(ranks, votes)]


def forming(ranks, votes):
    """Lets ranks form at the same time; returns the answers to be waited for."""
    pool = ThreadPoolExecutor(len(ranks))

    def form(rank, vote):
        try:
            return rank.form(vote, NEW if vote == NEW else OUT)
        except ib.InputError as error:
            return str(error)

    return [pool.submit(form, rank, vote) for rank, vote in zip(ranks, votes, strict=True)]


def seats(table):
    return [(seat.name, seat.vote) for seat in table.seats]


def test_all_have_one_list_in_the_order_of_their_names(members):
    ranks = members(3)
    rosters = formed(ranks[::-1], [NEW] * 3)
    assert rosters[0] == rosters[1] == rosters[2]
    assert [seat.name for seat in rosters[0].seats] == ["r0", "r1", "r2"]


def test_a_rank_that_left_is_missed_at_once_and_a_silent_one_after_its_lease(crew):
    ranks = crew(3)
    ranks[2].leave()
    (first, second) = formed(ranks[:2], [4, 5])
    assert first == second
    assert seats(first) == [("r0", 4), ("r1", 5)]
    (alone,) = formed(ranks[:1], [6])  # r1 does not beat
    assert [seat.name for seat in alone.seats] == ["r0"]
    assert not ranks[1].is_current()
    assert ranks[0].is_current()


def test_more_than_half_go_on_or_nobody(crew):
    ranks = crew(3, min_ranks=None, timeout=1.0)
    for rank in ranks[1:]:
        rank.leave()
    assert formed(ranks[:1], [3]) == [
        "1 of 3 ranks are left, and more than half is 2 (min_ranks= lets fewer go on)"
    ]


# ---- ranks without work ----


def test_only_who_has_the_run_s_plan_closes_a_list(crew, member):
    """n1 was on the list of a crew that did not form: he is one of the crew before, and knows no plan."""
    ranks = crew(2)
    late = [member(f"n{number}") for number in (1, 2)]
    ranks[0].say_over("n1 joins")
    (joins,) = forming(late[:1], [NEW])
    wait([joins], 0.5)
    (table,) = {*formed(ranks, [3, 3]), joins.result(10)}
    assert len(table.seats) == 3
    for rank in ranks:
        rank.fits = lambda count: count <= 3
    ranks[0].say_over("it did not form")
    early = forming(late, [NEW, NEW])
    wait(early, 1.5)
    assert not any(answer.done() for answer in early)
    (table,) = {*formed(ranks, [3, 3])}
    assert seats(table) == [("r0", 3), ("r1", 3), ("n1", NEW)]
    late[1].leave()
    ranks[0].store.write(f"{table.mark}/done", Here(ranks[0].id))
    assert [answer.result(10) for answer in early] == [table, None]


@pytest.mark.slow  # races with the machine: three ranks form a list in threads, within the lease
@pytest.mark.parametrize(
    ("votes", "fits", "expected"),
    [
        ([4, 4, 4], {1, 2}, ["r0", "r1"]),
        ([4, 5, 6], {1}, ["r2"]),
        ([NEW, NEW, NEW], {2}, ["r0", "r1"]),
        ([4, 4, 4], set(), ["r0", "r1", "r2"]),  # The run says why none fits.
    ],
)
def test_a_list_is_as_long_as_the_plan_has_work_for(members, votes, fits, expected):
    ranks, begins = members(3), NEW in votes
    for rank in ranks:
        rank.ranks = 2 if begins else 3
    if not begins:
        formed(ranks, [NEW] * 3)
    for rank in ranks:
        rank.fits = fits.__contains__
    answers = forming(ranks, votes)
    chosen = [answers[int(name[1])].result(30) for name in expected]
    assert [seat.name for seat in chosen[0].seats] == expected
    ranks[0].store.write(f"{chosen[0].mark}/done", Here(ranks[0].id))  # Else the others wait.
    wait(answers, 10)


def test_a_rank_without_work_is_not_awaited_and_says_so_once(crew, member):
    (old,) = crew(1)
    late = member("late")
    late.fits = old.fits = lambda count: count == 1
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        (answer,) = forming([late], [NEW])
        wait([answer], 1.0)
        old.store.write(f"{old.table.mark}/done", Here(old.id))
        assert answer.result(10) is None
    why = "late waits: the plan has no work for 2 ranks; it joins once one of those that train is lost"
    assert [str(warning.message) for warning in caught] == [why]
    assert not old.has_room(1, 3)
    old.fits = lambda count: count in (1, 3)
    assert old.has_room(1, 2)
    assert not old.has_room(1, 1)


def test_rank_counts_that_fit_are_known_before_the_first_crew():
    recipe = ib.Recipe(effective_batch=12, lr=0.1, optimizer="sgd", dataset_size=24, duration="2ep")
    assert [can_begin(recipe, None, {"chunk": 4, "seed": 1}, ranks) for ranks in (1, 3, 4)] == [
        True,
        True,
        False,
    ]
    state = ElasticRun(recipe, chunk=4).state_dict()
    assert [can_begin(recipe, state, {"chunk": 4}, ranks) for ranks in (3, 4)] == [True, False]
    assert can_begin(recipe, None, {"chunk": 5}, 4) is False
    assert can_begin(recipe, None, {"policy": "grow", "chunk": 4}, 4)  # The run says why.


# ---- beginning anew ----


def test_a_run_does_not_begin_anew_while_a_rank_with_its_state_beats(store, member, crew):
    (old,) = crew(1)
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
    rosters = formed([member("late", timeout=1.5)], [NEW])
    ended.set()
    beats.join()
    assert rosters == ["the ranks that hold the run's state did not come in 3 s: r0"]


HALVES = "no replica is left: r0, r1 applied half of a step; start a new run from a checkpoint"


def test_a_run_ends_where_all_that_are_left_hold_half_a_step_though_new_ones_come(crew, member):
    ranks = crew(3)
    ranks[2].leave()
    late = [member(f"late {number}", ranks=3) for number in range(3)]
    messages = formed([*ranks[:2], *late], [HALF, HALF, NEW, NEW, NEW])
    assert messages[:2] == [HALVES] * 2
    # A rank that comes a moment later hears that the run has ended.
    assert all(HALVES in message for message in messages)
    (message,) = formed([member("later")], [NEW])
    assert message.startswith(f"the run of this store has ended ({HALVES})")


def test_half_a_step_goes_on_beside_a_whole_one(crew):
    ranks = crew(3)
    (table,) = {*formed(ranks, [HALF, 5, HALF])}
    assert seats(table) == [("r0", HALF), ("r1", 5), ("r2", HALF)]


def test_half_a_step_waits_for_a_silent_rank_with_the_state(crew):
    ranks = crew(2, lease=0.5)
    ranks[0].say_over("it holds half a step")
    (half,) = forming(ranks[:1], [HALF])
    wait([half], 2.0)
    assert not half.done()
    (table,) = formed(ranks[1:], [5])
    assert half.result(10) == table
    assert seats(table) == [("r0", HALF), ("r1", 5)]


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


def test_a_store_whose_run_has_ended_says_so(crew, member):
    ranks = crew(3, min_ranks=None, timeout=1.0)
    for rank in ranks[1:]:
        rank.leave()
    formed(ranks[:1], [3])
    (message,) = formed([member("of another run", ranks=2)], [NEW])
    assert message.startswith("the run of this store has ended (1 of 3 ranks are left")
    assert message.endswith("a new run needs a new store")


def test_a_store_that_was_never_started_is_asked_for():
    with pytest.raises(
        ib.InputError, match=r"no store answers at 127.0.0.1:1 in 1 s: run isobatch store --port 1 "
    ):
        Store("127.0.0.1:1", 1.0)


def test_a_newcomer_does_not_end_a_silent_crew(crew, member):
    ranks = crew(1, timeout=30.0)
    late = member("late", lease=0.2, timeout=30.0)
    (comes,) = forming([late], [NEW])
    wait([comes], 1.5)
    assert not comes.done()
    (table,) = formed(ranks, [7])
    assert seats(table) == [("r0", 7), ("late", NEW)]
    assert comes.result(10) == table


@pytest.mark.parametrize(
    ("votes", "holds"), [([NEW, NEW], True), ([5, NEW], False), ([NEW, OUT], True), ([5, OUT], False)]
)
@pytest.mark.parametrize("state", [None, {"step": 7}])
def test_a_newcomer_holds_the_state_only_when_it_is_healed(capsys, votes, holds, state):
    expected = 1 if holds is False else 0
    table = Roster(3, tuple(Seat(f"r{rank}|x|{rank}", vote) for rank, vote in enumerate(votes)))
    process = object.__new__(_Survivors)
    process._members, process._holds, process._without = SimpleNamespace(id=table.ids[expected]), False, NEW
    process._state = state
    process._take_seat(table)
    assert process._holds is holds
    assert ("begins anew" in capsys.readouterr().err) is (holds and state is None)


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


def test_a_rank_unlike_the_first_that_came_is_not_said_to_be_the_wrong_one(members):
    first, second = members(2)
    first.compare({"seed": 1, "lr": 0.1})
    with pytest.raises(
        ib.InputError,
        match="seed is 0 on this rank, 1 on the rank that came first: one of the two was started",
    ):
        second.compare({"seed": 0, "lr": 0.1})
