"""`survivors` on one rank: what it refuses, where a run says it ends, and the state beside the weights."""

import os
import signal
import subprocess
import sys
import threading
from contextlib import nullcontext

import msgspec
import pytest

import isobatch as ib

torch = pytest.importorskip("torch", reason="survivors drives a torch training")

import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402
from torch.testing._internal.distributed.fake_pg import FakeStore  # noqa: E402

from ddp import surviving  # noqa: E402
from isobatch.elastic import healing  # noqa: E402
from isobatch.elastic import survivors as module  # noqa: E402
from isobatch.elastic.drift import _distances  # noqa: E402
from isobatch.elastic.group import CrewGroup  # noqa: E402
from isobatch.elastic.membership import Membership  # noqa: E402
from isobatch.elastic.messages import NEW, Saved  # noqa: E402
from isobatch.elastic.steps import Micro  # noqa: E402
from isobatch.elastic.store import Store  # noqa: E402
from isobatch.elastic.survivors import _Survivors  # noqa: E402
from isobatch.elastic.training import TrainingState, _bits  # noqa: E402
from isobatch.integrations.torch import LeftOut, survivors  # noqa: E402

RECIPE = ib.Recipe(effective_batch=4, lr=0.1, optimizer="sgd", dataset_size=8, duration="3ep")
LOSS = RuntimeError("gloo: the connection was closed")


class Net(nn.Module):
    """A network with dropout and statistics."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.BatchNorm1d(1), nn.Dropout(0.5), nn.Linear(1, 1))

    def forward(self, x):
        return self.layers(x)


def crews_of(store, net=None, **options):
    net = net or nn.Linear(1, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    options = {"ranks": 1, "lease": 2.0, **options}
    return survivors(RECIPE, net, optimizer, store=store, **options), optimizer


def train(store, net=None, *, forget="", inside=False, in_pass=lambda *_: None, after=lambda *_: None):
    """Trains alone, with calls in each pass and after each step; returns the training mode of each crew."""
    net, modes = net or nn.Linear(1, 1), []
    crews, optimizer = crews_of(store, net)
    for crew in crews:
        modes.append(net.training)
        with crew if inside else nullcontext():
            model = crew.wrap(net)
            for step in [] if forget == "steps" else crew.run.steps(crew.run.loader(torch.ones(8, 1))):
                for micro in step:
                    with micro.sync(model):
                        loss = model(micro.batch).mean() * micro.weight
                        in_pass(crew, step)
                        loss.backward()
                optimizer.step()
                if forget != "scheduler":
                    crew.scheduler.step()
                if forget != "zero_grad":
                    optimizer.zero_grad()
                after(crew, step)
    return modes


def test_a_run_that_nobody_disturbs_ends(store):
    steps = []
    train(store, after=lambda crew, _: steps.append(crew.run.state_dict()["step"]))
    assert steps == [1, 2, 3, 4, 5, 6]
    assert not dist.is_initialized()


@pytest.mark.parametrize(
    ("forget", "why"),
    [
        (
            "steps",
            r"the loop took no steps: .*; the run ends here at step 0, and state_dict\(\) was never called",
        ),
        (
            "scheduler",
            "the scheduler was not stepped in step 0: .*; the run ends here at step 1, and state_dict",
        ),
        ("zero_grad", "the gradients of the last step are still there, .* call optimizer.zero_grad"),
    ],
)
def test_a_loop_that_forgets_is_told_where_the_run_ends(store, forget, why):
    with pytest.raises(ib.InputError, match=why):
        train(store, forget=forget)


def test_a_rank_that_is_lost_while_the_network_is_wrapped_leaves_a_crew_without_steps(store, monkeypatch):
    wrap, crews, steps = CrewGroup.wrap, [], []

    def breaks_once(group, net, **options):
        crews.append(group)
        if len(crews) == 1:
            raise LOSS
        return wrap(group, net, **options)

    monkeypatch.setattr(CrewGroup, "wrap", breaks_once)
    train(store, after=lambda crew, step: steps.append((crew.number, step.number)))
    assert [number for number, _ in steps] == [1] * 6 and [step for _, step in steps] == [*range(6)]


def test_a_state_that_is_asked_for_when_the_store_is_gone_names_the_last_one():
    command = [sys.executable, "-m", "isobatch", "store", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        address = f"127.0.0.1:{process.stdout.readline().split()[-1]}"

        def after(crew, _):
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
        next(crews_of(store)[0])


@pytest.mark.parametrize(("changes", "loses"), [("settle", "heal"), ("heal", "CrewRun")])
def test_a_rank_votes_the_step_of_its_weights_after_a_loss_while_it_forms(store, monkeypatch, changes, loses):
    """The weights are of step 3 once settled or healed, and the next part loses a rank, once."""
    states, votes, owner = {}, [], TrainingState if changes == "settle" else module
    begins = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    train(
        f"127.0.0.1:{begins.port}", after=lambda crew, _: states.update({len(states): crew.run.state_dict()})
    )
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
    assert next(crews_of(store)[0]).run.position.step == 3
    assert votes == [NEW, 3]


def test_a_run_that_begins_anew_says_so_once(store, capsys):
    """Its first crew is lost with the state, and a new process finds none."""
    anew = "isobatch: the run begins anew at step 0: all who held the state were lost\n"

    def dies(*_):
        raise ValueError("it dies")

    with pytest.raises(ValueError, match="it dies"):
        train(store, after=dies)
    assert anew not in capsys.readouterr().err
    train(store)
    assert capsys.readouterr().err.count(anew) == 1


def test_a_new_run_at_a_store_whose_run_is_over_is_told_what_it_needs(store):
    train(store)
    with pytest.raises(LeftOut, match="weights are not the run's; a new run needs a new store, or run=NAME"):
        train(store)


def test_a_rank_that_is_asked_to_stop_while_it_waits_does_not_end_quietly(store):
    """Its script would save weights of no run."""
    timer = threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGTERM))
    timer.start()
    with pytest.raises(LeftOut, match="was asked to stop while in no crew: its weights are not the run's"):
        next(crews_of(store, ranks=2)[0])
    timer.join()


def test_a_crew_without_a_whole_replica_ends_the_run_for_who_waits_too(store, monkeypatch):
    def heal(*_):
        raise healing.NoReplica("no replica is left")

    monkeypatch.setattr(module, "heal", heal)
    with pytest.raises(ib.InputError, match="no replica is left; the run ends here"):
        next(crews_of(store)[0])
    monkeypatch.undo()
    with pytest.raises(ib.InputError, match=r"the run of this store has ended \(no replica is left\)"):
        next(crews_of(store)[0])


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
        ({"warmup": "1st"}, "recipe's warmup is '1st' on this rank, None"),
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
            patch.setattr("isobatch.elastic.survivors.__version__", change["version"])
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
def test_sharded_states_are_refused(make, kind):
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
            crews_of("127.0.0.1:1")
    finally:
        dist.destroy_process_group()


# ---- the surroundings of the loop ----


def test_a_loss_in_an_evaluation_leaves_no_trace(store):
    net = Net()
    net.layers[0].eval()  # Frozen by the script.

    def evaluate(crew, step):
        net.eval()
        handle = net.layers[2].register_forward_hook(lambda *_: None)
        if step.number == 2 and crew.number == 0:
            raise LOSS
        handle.remove()
        net.train()
        net.layers[0].eval()

    assert train(store, net, inside=True, after=evaluate) == [True, True]
    assert not net.layers[0].training
    assert not net.layers[2]._forward_hooks


@pytest.mark.parametrize("place", ["in_pass", "after"])
def test_a_lost_forward_does_not_count_in_statistics_and_an_applied_one_does(store, place):
    net = Net()

    def lose(crew, step):
        if step.number == 2 and crew.number == 0:
            raise LOSS

    train(store, net, inside=True, **{place: lose})
    assert net.layers[0].num_batches_tracked == 6


def test_an_optimizer_trains_again_after_a_run_that_ended_in_a_void_step(store):
    net = nn.Linear(1, 1)
    crews, optimizer = crews_of(store, net)
    crew, before = next(crews), net.weight.item()
    crew.void = True
    crews._crews.close()
    net(torch.ones(1, 1)).sum().backward()
    optimizer.step()
    assert net.weight.item() != before


def test_a_loop_that_an_error_leaves_ends_though_the_script_holds_the_crews(store):
    crews, _ = crews_of(store)
    with pytest.raises(ValueError, match="a mistake"):
        for _ in crews:
            assert dist.is_initialized()
            raise ValueError("a mistake")
    assert not dist.is_initialized()


def test_a_static_graph_with_more_than_one_pass_is_refused(store):
    crews, _ = crews_of(store, max_micro_batch=2)
    with pytest.raises(ib.InputError, match="static_graph must be False .* up to 2 here"):
        next(crews).wrap(nn.Linear(1, 1), static_graph=True)
    crews._crews.close()
    model = nn.Linear(1, 1)
    model.static_graph = True
    with pytest.raises(ib.InputError, match="static_graph must be False for DDP"):
        Micro(None, 1.0, last=False, stand_in=False, equal=True).sync(model)


def test_groups_connect_when_they_are_made(store, monkeypatch):
    """Otherwise a group's first collective waits for a rank already dead."""
    monkeypatch.setenv("TORCH_GLOO_LAZY_INIT", "1")
    crews, _ = crews_of(store)
    next(crews)
    assert os.environ["TORCH_GLOO_LAZY_INIT"] == "0"
    crews._crews.close()


@pytest.mark.parametrize(
    ("rows", "apart"),
    [
        ([[3.0, 2.0], [3.0, 2.0], [3.5, 2.0]], [0.0, 0.0, 0.25]),
        ([[float("nan"), 1.0]] * 2, [0.0, 0.0]),
        ([[0.0, 0.0]] * 3, [0.0] * 3),
    ],
)
def test_weights_are_compared_over_their_norm(rows, apart):
    assert _distances(rows) == apart


@pytest.mark.parametrize("kind", [torch.uint8, torch.float16, torch.float32, torch.complex64, torch.bool])
@pytest.mark.parametrize("start", [0, 1, 3])
def test_a_checksum_sees_each_element(kind, start):
    """Also elements beside a multiple of eight bytes, and in a view starting elsewhere."""
    tensor = torch.zeros(30, dtype=kind)[start : start + 21]
    before = _bits(tensor)
    for at in range(21):
        tensor[at] = 1
        assert _bits(tensor) != before
        tensor[at] = 0
    assert _bits(tensor) == before
