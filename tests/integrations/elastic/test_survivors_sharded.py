"""Replicas of two or three shards: a lost rank takes its replica out, and the run is the one that nobody
disturbed.
"""

import gc
import signal
import time
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path

import pytest

import isobatch as ib

torch = pytest.importorskip("torch", reason="survivors drives a torch training")

import torch.distributed as dist  # noqa: E402
from torch.testing._internal.distributed.fake_pg import FakeStore  # noqa: E402

from ddp import surviving  # noqa: E402
from ddp.crews import Ranks  # noqa: E402
from isobatch.elastic import healing, sharding  # noqa: E402
from isobatch.elastic.crew import Crew  # noqa: E402
from isobatch.elastic.group import CrewGroup  # noqa: E402
from isobatch.elastic.membership import Membership  # noqa: E402
from isobatch.elastic.messages import (  # noqa: E402
    HALF,
    NEW,
    OUT,
    Circle,
    Held,
    Roster,
    Seat,
)
from isobatch.elastic.store import Store  # noqa: E402
from isobatch.elastic.surroundings import Surroundings  # noqa: E402
from isobatch.integrations.torch import survivors  # noqa: E402

OPTIONS = {"ranks": 4, "min_ranks": 2, "shards": 2, "lease": 10.0, "timeout": 60.0, "steps": 30}
OPTIONS |= {"recipe": {"warmup": "5st"}, "inside": True, "clip": 0.05}
DEAD = -signal.SIGKILL
OVER = 4
"""The exit code of a rank that waited for its replica when the run ended."""

# A rank that waits says so once: when, is up to the machine.
pytestmark = pytest.mark.filterwarnings("ignore:.*waits. the plan has no work:UserWarning")


@pytest.fixture(scope="module")
def alone():
    return surviving.undisturbed(OPTIONS)


def through(folder, alone, kills, expected, late=(), each=None, **options):
    """Trains through kills of ranks; returns the crews' sizes in order."""
    with Ranks(folder, {**OPTIONS, **options}) as ranks:
        ranks.start_all(kills, each, seed=0)
        for name in late:
            ranks.wait_for(lambda line: line.get("done") == 8)
            ranks.start(name, seed=9)
        crews = ranks.finish(alone, expected)
        return [size for _, size, _ in sorted(crews)]


def test_a_lost_rank_takes_its_replica_out_until_another_comes(tmp_path, alone):
    expected = {"r0": 0, "r1": DEAD, "r2": 0, "r3": 0, "late": 0}
    assert through(tmp_path, alone, {1: [[5, "between"]]}, expected, ["late"], pause=0.2) == [4, 2, 4]


@pytest.mark.slow
@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("place", surviving.PLACES)
def test_a_loss_at_each_line_of_the_loop(tmp_path, place, inside):
    """Without `with crew:` the loop has no collective of its own, as clipping is."""
    options = {"inside": inside, "clip": 0.05 if inside else None}
    expected = {"r0": DEAD, "r1": OVER, "r2": 0, "r3": 0}
    alone = surviving.undisturbed({**OPTIONS, **options})
    assert through(tmp_path, alone, {0: [[12, place]]}, expected, **options) == [4, 2]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kills", "late", "sizes", "options"),
    [
        ({0: [[9, "forward"]], 1: [[9, "forward"]]}, ["a", "b"], [4, 2, 4], {"pause": 0.2}),
        ({1: [[5, "between"]], 4: [[15, "reduced"]]}, [], [6, 4, 4], {"ranks": 6}),
        ({4: [[5, "forward"]]}, ["a"], [6, 3, 6], {"ranks": 6, "min_ranks": 3, "shards": 3, "pause": 0.2}),
    ],
)
def test_replicas_go_and_come_as_a_whole(tmp_path, alone, kills, late, sizes, options):
    codes = {f"r{rank}": DEAD if rank in kills else 0 for rank in range(options.get("ranks", 4))}
    expected = {**codes, **dict.fromkeys(late, 0)}
    assert through(tmp_path, alone, kills, expected, late, **options) == sizes


@pytest.mark.slow
def test_a_step_that_a_rank_was_about_to_apply_is_applied_where_another_did(tmp_path, alone):
    """Rank 0 does not hear that all are ready, while rank 1, the other half of the only replica left, has
    applied the step.
    """
    expected = {"r0": 0, "r1": 0, "r2": DEAD, "r3": OVER}
    assert through(tmp_path, alone, {2: [[12, "applied"]]}, expected, each={0: {"deaf": 12}}) == [4, 2]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kills", "each", "codes", "why"),
    [
        (
            {1: [[12, "between"]], 2: [[12, "between"]]},
            {},
            (3, DEAD, DEAD, 3),
            "of 2 replicas of 2 ranks only r0, r3 are left; start a new run from a "
            "checkpoint; the run ends here at step 12",
        ),
        (
            {},
            {0: {"tears": 12}, 3: {"tears": 12}},
            (3, 3, 3, 3),
            "of 2 replicas of 2 ranks only r0, r1, r2, r3 are left, and r0, r3 applied half of a step; start",
        ),
    ],
    ids=["shards lost", "half a step"],
)
def test_a_run_without_a_whole_replica_ends_with_its_step(tmp_path, kills, each, codes, why):
    with Ranks(tmp_path, {**OPTIONS, "pause": 0.1, "check": True}) as ranks:
        ranks.start_all(kills, each, seed=0)
        assert tuple(ranks.wait(90).values()) == codes
        for name in (f"r{rank}" for rank, code in enumerate(codes) if code == 3):
            assert why in ranks.said(name)
            assert "the last state_dict() is of step 10" in ranks.said(name)


@pytest.mark.slow
def test_a_replica_with_half_a_step_gets_the_state_of_one_with_all_of_it(tmp_path, alone):
    expected = {f"r{rank}": 0 for rank in range(4)}
    assert through(tmp_path, alone, {}, expected, each={0: {"tears": 12}}) == [4, 4]


@pytest.mark.slow
@pytest.mark.parametrize("wakes", [True, False])
def test_the_silent_half_of_the_only_replica_is_waited_for(tmp_path, alone, wakes):
    """Rank 1 is paused past its lease when the other replica is lost; where it wakes in time they go on, else
    the others end.
    """
    with Ranks(tmp_path, {**OPTIONS, "lease": 2.0, "timeout": 30.0 if wakes else 3.0}) as ranks:
        ranks.start_all({rank: [[12, "between"]] for rank in (1, 2)}, {1: {"signal": "SIGSTOP"}}, seed=0)
        ranks.wait_for(lambda line: line.get("kill") == "between" and "-r1-" in line["rank_of"])
        time.sleep(5.0)
        if wakes:
            ranks.signal("r1", signal.SIGCONT)
            ranks.finish(alone, {"r0": 0, "r1": 0, "r2": DEAD, "r3": OVER})
            return
        assert ranks.wait(20) == {"r0": 3, "r1": None, "r2": DEAD, "r3": 3}
        for name in "r0", "r3":
            assert "did not come in 6 s: r1; the run ends here at step 12" in ranks.said(name)


# ---- the list ----


@pytest.fixture
def replicas(store):
    """Makes members; those of the first crew are formed."""
    members = []

    def member(name):
        options = {"ranks": 4, "min_ranks": 2, "shards": 2, "lease": 2.0, "timeout": 8.0}
        members.append(Membership(Store(store, 5.0), name, **options))
        return members[-1]

    def form(*ranks):
        """Forms ranks with their votes at the same time; returns the answer of each, to be waited for."""
        pool = ThreadPoolExecutor(len(ranks))

        def come(rank, vote):
            try:
                return [(seat.name, seat.vote) for seat in rank.form(vote, OUT if vote != NEW else NEW).seats]
            except ib.InputError as error:
                return str(error)

        return [pool.submit(come, rank, vote) for rank, vote in ranks]

    first = [member(f"r{rank}") for rank in range(4)]
    wait(form(*((rank, NEW) for rank in first)), 20)
    yield member, form, first
    for rank in members:
        rank.leave()


@pytest.mark.slow  # races with the machine: six ranks form a list in threads, within the lease
def test_a_list_has_whole_replicas_only(replicas):
    member, form, (zero, first, two, three) = replicas
    first.leave()
    (waits,) = form((zero, 7))
    for answer in form((two, 7), (three, 7)):
        assert answer.result(20) == [("r2", 7), ("r3", 7)]
    (comes,) = form((member("late"), NEW))
    wait([comes], 0.5)
    assert not waits.done() and not comes.done()
    for answer in (*form((two, 9), (three, 9)), waits, comes):
        assert answer.result(20) == [("r2", 9), ("r3", 9), ("late", NEW), ("r0", OUT)]


def test_no_list_closes_where_no_replica_is_whole(replicas):
    _, form, (zero, first, two, three) = replicas
    first.leave()
    two.leave()
    for answer in form((zero, 7), (three, 7)):
        assert "no replica is left with all of its shards: of 2 replicas of 2 ranks only" in answer.result(20)


def test_a_replica_waits_for_its_silent_half_where_there_is_no_other(replicas):
    _, form, (zero, first, two, three) = replicas
    two.leave()
    waits, _ = form((zero, 7), (three, 7))
    wait([waits], 3)  # The lease is 2 s.
    assert not waits.done()
    for answer in waits, *form((first, 7)):
        assert answer.result(20) == [("r0", 7), ("r1", 7)]


def test_half_a_step_in_each_replica_ends_the_run(replicas):
    _, form, (zero, first, two, three) = replicas
    why = (
        "no replica is left with all of its shards: of 2 replicas of 2 ranks only r0, r1, r2, r3 are left, "
        "and r0, r3 applied half of a step; start a new run from a checkpoint"
    )
    for answer in form((zero, HALF), (three, HALF), (first, 7), (two, 7)):
        assert answer.result(20).endswith(why)


# ---- one rank's shards, from crew to crew ----


class Counting(torch.nn.Linear):
    """A layer with a buffer under two names, missing from its state."""

    def __init__(self):
        super().__init__(4, 4)
        self.register_buffer("seen", torch.zeros(1), persistent=False)
        self.register_buffer("again", self.seen, persistent=False)


@pytest.fixture
def state(monkeypatch):
    """Makes rank 0's state of 2 replicas of 2 shards, sharded in its first crew; the others are not there."""

    def mesh(*_):
        return dist.init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))

    def make(unfolded=True, **extra):
        net = torch.nn.Sequential(Counting())
        optimizer = torch.optim.AdamW(net.parameters(), lr=0.1)
        training = sharding.ShardedState(net, optimizer, extra, surviving.shard, 2)
        if unfolded:
            training.unfold(2.0, 2.0)
        return training

    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=4)
    monkeypatch.setattr(sharding, "_mesh", mesh)
    yield make
    dist.destroy_process_group()


def trained(state):
    for parameter in state.net.parameters():
        parameter.grad = torch.ones_like(parameter)
    state.optimizer.step()
    state.net[0].seen += 5
    return state.checksum()


def test_buffers_that_are_not_in_a_state_stay(state):
    training = state()
    checksum = trained(training)
    training.fold()
    training.unfold(2.0, 2.0)
    assert training.checksum() == checksum
    assert training.net[0].seen == 5
    assert training.net[0].again is training.net[0].seen


@pytest.mark.parametrize("cut", [False, True])
def test_a_crew_leaves_no_thread_and_no_file_when_it_is_folded(store, cut):
    """Also where a pass was cut off in it. The garbage collector frees what is left, but some day."""
    net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))
    training = sharding.ShardedState(net, torch.optim.AdamW(net.parameters()), {}, surviving.shard, 1)
    group, counts = CrewGroup(), []
    gc.disable()
    try:
        for number in range(6):
            group.begin()
            table = Roster(number, (Seat(f"r|127.0.0.1:1|{number:032x}", NEW),))
            group.form(Store(store, 5.0), table, 0, cuda=False, lease=5.0, timeout=5.0)
            training.unfold(5.0, 5.0)
            for _ in range(2):
                loss = net(torch.ones(1, 4)).sum()
                if not cut:
                    loss.backward()
                    training.optimizer.step()
            training.optimizer.zero_grad()
            training.fold()
            group.free()
            time.sleep(0.2)
            counts.append([len([*Path("/proc/self", folder).iterdir()]) for folder in ("task", "fd")])
    finally:
        gc.enable()
    assert all(now <= before for now, before in zip(counts[-1], counts[2], strict=True)), counts


@pytest.mark.parametrize("fails", ["_mesh", "_shard"])
def test_a_loss_before_shards_are_unfolded_leaves_them(state, monkeypatch, fails):
    def lost(*_):
        raise RuntimeError("gloo: the connection was closed")

    training = state()
    checksum = trained(training)
    training.fold()
    with monkeypatch.context() as patch:
        patch.setattr(sharding if fails == "_mesh" else training, fails, lost)
        # It was to hold the other shard, and gets its own again.
        patch.setattr(dist, "get_rank", lambda *_: 1)
        with pytest.raises(RuntimeError, match="closed"):
            training.unfold(2.0, 2.0)
    training.fold()
    training.unfold(2.0, 2.0)
    assert training.checksum() == checksum
    assert training.net[0].seen == 5


def test_a_loss_while_shards_are_made_for_the_first_time_leaves_the_whole(state, monkeypatch):
    def values():
        return [
            *training.net.parameters(),
            *(state_of_parameter["exp_avg"] for state_of_parameter in training.optimizer.state.values()),
        ]

    training = state(unfolded=False)
    trained(training)  # As where a checkpoint was loaded.
    whole = [value.detach().clone() for value in values()]

    def lost(net, mesh):
        surviving.fully_shard(net[0], mesh=mesh)
        raise RuntimeError("gloo: the connection was closed")

    with monkeypatch.context() as patch:
        patch.setattr(training, "_shard", lost)
        with pytest.raises(RuntimeError, match="closed"):
            training.unfold(2.0, 2.0)
    training.fold()
    training.unfold(2.0, 2.0)
    assert all(torch.equal(a[:2], b.to_local()) for a, b in zip(whole, values(), strict=True))
    assert training.net[0].seen == 5
    assert training.net[0].again is training.net[0].seen


def test_a_step_that_is_settled_by_half_is_torn_until_the_state_is_read(state, monkeypatch):
    training = state()
    trained(training)
    ahead = Held(5, True, "", None)
    layout, tensors = training.write()
    gradients = [torch.ones_like(parameter) for parameter in training._parameters()]
    training._prepared = 5, training.pack(gradients)
    monkeypatch.setattr(Circle, "gather", lambda _, __, own: [own, ahead])
    with monkeypatch.context() as patch:
        patch.setattr(torch.optim.AdamW, "step", lambda _: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            training.settle(ahead._replace(step=4), surviving.circle_of(4, 4))
    assert training.torn
    training.read(training.check_layout(layout, tensors.numel()), tensors)
    assert not training.torn


class Shadow:
    """An average beginning with the first step."""

    def __init__(self):
        self.of = {}

    def state_dict(self):
        return {"of": self.of}


def test_an_extra_of_shards_is_refused_in_its_second_step(state):
    shadow = Shadow()
    training = state(shadow=shadow)
    seats = tuple(Seat(f"r{rank}|here|{rank}", NEW) for rank in range(4))
    known = {"number": 0, "id": seats[0].id, "table": Roster(0, seats), "timeout": 5.0, "lease": 5.0}
    members = type("", (), known)
    group = CrewGroup()
    group.meet = lambda: None
    crew = Crew(members, training, group, None, Surroundings(), lambda: "")
    crew.commit(1)
    shadow.of = {name: parameter.detach().clone() for name, parameter in training.net.named_parameters()}
    why = "extra's shadow has a DTensor in its state, .* parameter.to_local"
    with pytest.raises(ib.InputError, match=why):
        crew.commit(2)
    with pytest.raises(ib.InputError, match=why):
        training.fold()
    shadow.of = {name: tensor.to_local() for name, tensor in shadow.of.items()}
    crew.commit(3)
    training.fold()


@pytest.mark.parametrize(("steps", "begins"), [((0, OUT, OUT, 0), False), ((0, OUT, 0, 0), True)])
def test_a_replica_with_half_a_step_begins_no_run(state, monkeypatch, steps, begins):
    states = [Held(step, False, "", None) for step in steps]
    sent = []
    monkeypatch.setattr(Circle, "gather", lambda *_: states)
    monkeypatch.setattr(healing, "_send", lambda _, sources, *__: sent.append(sources))
    training = state()
    if begins:
        assert healing.heal(training, states[0], 2.0, surviving.circle_of(*[NEW] * len(states))).step == 0
        assert sent == [{1: 3}]
    else:
        with pytest.raises(ib.InputError, match="no replica is left with all of its shards"):
            healing.heal(training, states[0], 2.0, surviving.circle_of(*[NEW] * len(states)))


# ---- what is refused ----


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"shard": None, "shards": 2}, "shard and shards go together: pass shard="),
        ({}, "shard and shards go together"),
        ({"shards": 0}, "shards must be a whole number from 1, got 0"),
        ({"shards": 3}, "ranks must be a multiple of shards, 3, got 4"),
        ({"shards": 2, "min_ranks": 3}, "min_ranks must be a multiple of shards, 2, got 3"),
        ({"shards": 4}, "ranks must be 2 replicas or more .* from a checkpoint"),
        ({"shards": 2, "foreign": True}, "optimizer must have parameters of net only"),
    ],
)
def test_replicas_that_cannot_be_are_refused(store, settings, why):
    net = torch.nn.Linear(1, 1)
    settings = {"shard": surviving.shard, **settings}
    parameters = torch.nn.Linear(1, 1).parameters() if settings.pop("foreign", False) else net.parameters()
    recipe = ib.Recipe(effective_batch=4, lr=0.1, optimizer="sgd", dataset_size=8, duration="2ep")
    with pytest.raises(ib.InputError, match=why):
        survivors(recipe, net, torch.optim.SGD(parameters, lr=0.1), store=store, ranks=4, **settings)


@pytest.mark.slow
def test_a_parameter_that_is_left_whole_is_named(tmp_path):
    with Ranks(tmp_path, {**OPTIONS, "leaves": True}) as ranks:
        ranks.start_all(seed=0)
        assert set(ranks.wait(90).values()) == {3}
        why = "shard must leave no parameter whole, and 0.weight is: call fully_shard"
        assert any(why in ranks.said(name) for name in ranks.processes)
