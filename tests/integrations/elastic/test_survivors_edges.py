"""The surroundings of the loop of `survivors`: the state beside the weights, the script's own collectives,
and mistakes of a script.
"""

import os
import signal

import pytest

import isobatch as ib

torch = pytest.importorskip("torch", reason="survivors drives a torch training")

import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402

from ddp.crews import Ranks, lines  # noqa: E402
from isobatch.integrations.torch import survivors  # noqa: E402
from isobatch.integrations.torch.elastic.drift import _distances  # noqa: E402
from isobatch.integrations.torch.elastic.steps import Micro  # noqa: E402
from isobatch.integrations.torch.elastic.training import _bits  # noqa: E402

RECIPE = ib.Recipe(effective_batch=4, lr=0.1, optimizer="sgd", dataset_size=8, duration="3ep")
LOSS = RuntimeError("gloo: the connection was closed")
DEAD = -signal.SIGKILL


class Net(nn.Module):
    """A network with dropout and statistics."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.BatchNorm1d(1), nn.Dropout(0.5), nn.Linear(1, 1))

    def forward(self, x):
        return self.layers(x)


def crews_of(store, net, **options):
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    return survivors(RECIPE, net, optimizer, store=store, ranks=1, lease=2.0, **options), optimizer


def train(store, net, *, in_pass=lambda crew, step: None, after=lambda crew, step: None):
    """Trains alone in `with crew:`; returns the training mode at the beginning of each crew."""
    modes = []
    crews, optimizer = crews_of(store, net)
    for crew in crews:
        modes.append(net.training)
        with crew:
            model = crew.wrap(net)
            for step in crew.run.steps(crew.run.loader(torch.ones(8, 1))):
                for micro in step:
                    with micro.sync(model):
                        loss = model(micro.batch).mean() * micro.weight
                        in_pass(crew, step)
                        loss.backward()
                optimizer.step()
                crew.scheduler.step()
                optimizer.zero_grad()
                after(crew, step)
    return modes


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

    assert train(store, net, after=evaluate) == [True, True]
    assert not net.layers[0].training
    assert not net.layers[2]._forward_hooks


@pytest.mark.parametrize("place", ["in_pass", "after"])
def test_a_lost_forward_does_not_count_in_statistics_and_an_applied_one_does(store, place):
    net = Net()

    def lose(crew, step):
        if step.number == 2 and crew.number == 0:
            raise LOSS

    train(store, net, **{place: lose})
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
    crews, _ = crews_of(store, nn.Linear(1, 1))
    with pytest.raises(ValueError, match="a mistake"):
        for _ in crews:
            assert dist.is_initialized()
            raise ValueError("a mistake")
    assert not dist.is_initialized()


def test_a_static_graph_with_more_than_one_pass_is_refused(store):
    crews, _ = crews_of(store, nn.Linear(1, 1), max_micro_batch=2)
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
    crews, _ = crews_of(store, nn.Linear(1, 1))
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


OPTIONS = {"ranks": 2, "min_ranks": 1, "lease": 10.0, "timeout": 60.0, "steps": 15}
OPTIONS |= {"recipe": {"warmup": None}}


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
    with Ranks(tmp_path, {**OPTIONS, **options}) as ranks:
        ranks.start_all(each=each, seed=0)
        printed = [ranks.said(name) for name in ranks.wait(60)]
        assert [process.exitcode for process in ranks.processes.values()] == codes, printed
        assert all(why in text for text, code in zip(printed, codes, strict=True) if code != DEAD)
    if DEAD in codes:
        assert max(line["done"] for line in lines(tmp_path) if "done" in line) == 4
