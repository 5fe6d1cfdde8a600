"""`survivors` on one rank: what it refuses, and where a run says it ends."""

import os
import signal
import subprocess
import sys
import threading

import msgspec
import pytest

import isobatch as ib

torch = pytest.importorskip("torch", reason="survivors drives a torch training")

import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402
from torch.testing._internal.distributed.fake_pg import FakeStore  # noqa: E402

from ddp import surviving  # noqa: E402
from isobatch.integrations.torch import LeftOut, survivors  # noqa: E402
from isobatch.integrations.torch.elastic import healing  # noqa: E402
from isobatch.integrations.torch.elastic import survivors as module  # noqa: E402
from isobatch.integrations.torch.elastic.group import CrewGroup  # noqa: E402
from isobatch.integrations.torch.elastic.membership import Membership  # noqa: E402
from isobatch.integrations.torch.elastic.messages import NEW, Saved  # noqa: E402
from isobatch.integrations.torch.elastic.store import Store  # noqa: E402
from isobatch.integrations.torch.elastic.survivors import _Survivors  # noqa: E402
from isobatch.integrations.torch.elastic.training import TrainingState  # noqa: E402

RECIPE = ib.Recipe(effective_batch=4, lr=0.1, optimizer="sgd", dataset_size=8, duration="3ep", warmup="1st")


def crews(address, net=None, **options):
    net = net or nn.Linear(1, 1)
    return survivors(
        RECIPE, net, torch.optim.SGD(net.parameters(), lr=0.1), store=address, ranks=1, lease=2.0, **options
    )


def train(address, *, after=lambda crew: None, forget=(), **options):
    """Trains alone; `after` is called after each step."""
    net = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for crew in survivors(RECIPE, net, optimizer, store=address, ranks=1, lease=2.0, **options):
        model = crew.wrap(net)
        for step in [] if "steps" in forget else crew.run.steps(crew.run.loader(torch.ones(8, 1))):
            for micro in step:
                with micro.sync(model):
                    (model(micro.batch).mean() * micro.weight).backward()
            optimizer.step()
            if "scheduler" not in forget:
                crew.scheduler.step()
            if "zero_grad" not in forget:
                optimizer.zero_grad()
            after(crew)


def test_a_run_that_nobody_disturbs_ends(store):
    steps = []
    train(store, after=lambda crew: steps.append(crew.run.state_dict()["step"]))
    assert steps == [1, 2, 3, 4, 5, 6]
    assert not dist.is_initialized()


@pytest.mark.parametrize(
    ("forget", "why"),
    [
        ("steps", r"took no steps: .*; the run ends here at step 0, and state_dict\(\) was never called"),
        ("scheduler", "the scheduler was not stepped in step 0: .*; the run ends here at step 1, and state"),
        ("zero_grad", "the gradients of the last step are still there, .* call optimizer.zero_grad"),
    ],
)
def test_a_loop_that_forgets_is_told_where_the_run_ends(store, forget, why):
    with pytest.raises(ib.InputError, match=why):
        train(store, forget=forget)


def test_a_state_that_is_asked_for_when_the_store_is_gone_names_the_last_one():
    command = [sys.executable, "-m", "isobatch", "store", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        address = f"127.0.0.1:{process.stdout.readline().split()[-1]}"

        def after(crew):
            if crew.run.position.step == 2:
                process.kill()
                process.wait()
            crew.run.state_dict()

        with pytest.raises(
            ib.InputError, match=r"is gone .*at step 2, and the last state_dict.* is of step 1$"
        ):
            train(address, after=after)


def test_ranks_that_never_reach_each_other_end(store, monkeypatch):
    def form(*args, **options):
        raise RuntimeError("gloo: connect to 127.0.1.1 refused")

    monkeypatch.setattr(CrewGroup, "form", form)
    with pytest.raises(
        ib.InputError,
        match=r"formed 5 times .* \(RuntimeError: gloo: connect .* GLOO_SOCKET_IFNAME .* step 0",
    ):
        next(crews(store))


@pytest.mark.parametrize(("changes", "loses"), [("settle", "heal"), ("heal", "CrewRun")])
def test_a_rank_votes_the_step_of_its_weights_after_a_loss_while_it_forms(store, monkeypatch, changes, loses):
    """The weights are of step 3 once settled or healed, and the next part loses a rank, once."""
    states, votes, owner = {}, [], TrainingState if changes == "settle" else module
    begins = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    train(f"127.0.0.1:{begins.port}", after=lambda crew: states.update({len(states): crew.run.state_dict()}))
    form, follows = Membership.form, getattr(module, loses)

    def ahead(_, own, *__):
        return own._replace(step=3, trained=True, run=states[2])

    def voted(members, vote, *rest):
        votes.append(vote)
        return form(members, vote, *rest)

    def lost(*args, **options):
        if len(votes) == 1:
            raise RuntimeError("gloo: the connection was closed")
        return follows(*args, **options)

    monkeypatch.setattr(owner, changes, ahead)
    monkeypatch.setattr(module, loses, lost)
    monkeypatch.setattr(Membership, "form", voted)
    assert next(crews(store)).run.position.step == 3
    assert votes == [NEW, 3]


def test_a_rank_that_is_asked_to_stop_while_it_waits_does_not_end_quietly(store):
    """Its script would save weights of no run."""
    timer = threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGTERM))
    timer.start()
    net = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with pytest.raises(LeftOut, match="was asked to stop while in no crew: its weights are not the run's"):
        next(survivors(RECIPE, net, optimizer, store=store, ranks=2, lease=2.0))
    timer.join()


def test_a_crew_without_a_whole_replica_ends_the_run_for_who_waits_too(store, monkeypatch):
    def heal(*_):
        raise healing.NoReplica("no replica is left")

    monkeypatch.setattr(module, "heal", heal)
    with pytest.raises(ib.InputError, match="no replica is left; the run ends here"):
        next(crews(store))
    monkeypatch.undo()
    with pytest.raises(ib.InputError, match=r"the run of this store has ended \(no replica is left\)"):
        next(crews(store))


def test_a_connection_that_torch_lets_wait_is_made_anew(store):
    """Every 25th of a process, with torch 2.15."""
    first = Store(store, 2.0)
    connections = [first.another() for _ in range(25)]
    first.write("saved", Saved(7))
    assert [connection.read("saved", Saved) for connection in connections] == [Saved(7)] * 25


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"lr": 0.2}, "recipe's lr is 0.2 on this rank, 0.1 on the rank that came first"),
        ({"warmup": None}, "recipe's warmup is None on this rank, '1st'"),
        ({"dataset_size": 9}, "recipe's dataset_size is 9"),
        ({"seed": 1}, "settings is {'seed': '1'}"),
        ({"version": "9.9"}, "isobatch is .* '9.9' on the rank that"),
        ({"net": nn.Linear(2, 1)}, "model is "),
    ],
)
def test_a_rank_of_another_run_is_refused(store, monkeypatch, change, why):
    def comes(recipe, net, **settings):
        members = Membership(Store(store, 5.0), "r", ranks=2, min_ranks=1, lease=2.0, timeout=5.0)
        training = TrainingState(net, torch.optim.SGD(net.parameters(), lr=0.1), {})
        try:
            members.compare(_Survivors(members, training, recipe, None, settings)._facts())
        finally:
            members.leave()

    with monkeypatch.context() as patch:
        if "version" in change:
            patch.setattr("isobatch.integrations.torch.elastic.survivors.__version__", change["version"])
        comes(RECIPE, nn.Linear(1, 1), seed=0)
    fields = {name: value for name, value in change.items() if name in RECIPE.__struct_fields__}
    with pytest.raises(ib.InputError, match=why):
        comes(
            msgspec.structs.replace(RECIPE, **fields),
            change.get("net", nn.Linear(1, 1)),
            seed=change.get("seed", 0),
        )


def test_a_state_that_cannot_be_sent_ends_all_ranks(two):
    messages = two(surviving.healed)
    assert messages == ["the training's state cannot be sent: RuntimeError: it holds a file"] * 2


def sharded():
    from torch.distributed.fsdp import fully_shard

    return fully_shard(nn.Linear(4, 4), mesh=dist.init_device_mesh("cpu", (2,)))


def zero():
    from torch.distributed.optim import ZeroRedundancyOptimizer

    return ZeroRedundancyOptimizer(nn.Linear(4, 4).parameters(), torch.optim.SGD, lr=0.1)


@pytest.mark.parametrize(("make", "kind"), [(sharded, "DTensor"), (zero, "ZeroRedundancyOptimizer")])
def test_what_is_sharded_is_refused(make, kind):
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    try:
        part = make()
    finally:
        dist.destroy_process_group()
    net = part if isinstance(part, nn.Module) else nn.Linear(4, 4)
    optimizer = part if part is not net else torch.optim.SGD(net.parameters(), lr=0.1)
    with pytest.raises(ib.InputError, match=f"must be whole on every rank, got a {kind}: .* checkpoint"):
        survivors(RECIPE, net, optimizer, store="127.0.0.1:1", ranks=2)


def test_a_process_group_of_a_trainer_is_refused():
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    try:
        with pytest.raises(ib.InputError, match="a process group is there already, .* use ElasticRun"):
            crews("127.0.0.1:1")
    finally:
        dist.destroy_process_group()
