"""A crew's group ends all waiting when it is cut, even where gloo does not; and a large state reaches all
ranks behind.
"""

import threading
import time
import weakref
from contextlib import closing
from datetime import timedelta
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch", reason="survivors drives a torch training")

import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402

from ddp import surviving  # noqa: E402
from ddp.pool import Pool  # noqa: E402
from isobatch.elastic import collectives, healing  # noqa: E402
from isobatch.elastic.collectives import BACKEND, Cord, CuttableGroup, Mean  # noqa: E402
from isobatch.elastic.group import CrewGroup, is_loss  # noqa: E402


class Endless:
    """A collective without an end, as gloo's where it forgot a send."""

    def is_completed(self):
        return False

    def wait(self, timeout):
        time.sleep(timeout.total_seconds() or 60)
        raise RuntimeError("Operation timed out!")


class Forgetful:
    """A forgetful group of gloo."""

    def __getattr__(self, name):
        return lambda *_, **__: Endless()


WAITS = {
    "backward": lambda _, model: model(torch.ones(2, 3)).sum().backward(),
    "meet": lambda group, _: group.meet(),
    "all_reduce": lambda *_: dist.all_reduce(torch.ones(1)),
    "async": lambda *_: dist.all_reduce(torch.ones(1), async_op=True).wait(),
    "all_gather": lambda *_: dist.all_gather_into_tensor(torch.ones(1), torch.ones(1)),
    "reduce_scatter": lambda *_: dist.reduce_scatter_tensor(torch.ones(1), torch.ones(1)),
    "broadcast": lambda *_: dist.broadcast(torch.ones(1), 0),
    "objects": lambda *_: dist.all_gather_object([None], {}),
    "barrier": lambda *_: dist.barrier(),
    "send": lambda *_: dist.isend(torch.ones(1), 0).wait(),
    "group": lambda *_: dist.all_reduce(torch.ones(1), group=forgetful(dist.new_group())),
    "connecting": lambda *_: CuttableGroup.cord.apart(lambda: time.sleep(60)),
}


def forgetful(group):
    group.inner = group.gloo = Forgetful()
    return group


@pytest.fixture
def alone():
    group = CrewGroup()
    group.begin()
    dist.init_process_group(BACKEND, store=dist.HashStore(), rank=0, world_size=1)
    yield group
    group.free()


def wrapped(group):
    """Wraps a network as if there were another rank."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dist, "get_world_size", lambda: 2)
        return group.wrap(nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 1)), bucket_cap_mb=1e-5)


@pytest.mark.alone
@pytest.mark.parametrize("waits", WAITS.values(), ids=WAITS)
def test_endless_waits_of_gloo_end_when_the_group_is_cut(alone, waits):
    forgetful(dist.group.WORLD)
    model, cut = wrapped(alone), threading.Timer(0.2, alone.cut)
    cut.start()
    begun = time.monotonic()
    with pytest.raises(RuntimeError, match="was cut") as caught:
        waits(alone, model)
    cut.join()
    alone.free()
    assert is_loss(caught.value)
    assert time.monotonic() - begun < 2.0


def test_each_bucket_has_its_gradients_in_each_step(alone):
    model = wrapped(alone)
    for step in range(4):
        model.zero_grad()
        model(torch.full((2, 3), 1.0 + step)).sum().backward()
        alike = model.module(torch.full((2, 3), 1.0 + step)).sum()
        expected = torch.autograd.grad(alike, [*model.parameters()])
        assert all(torch.equal(a.grad, b) for a, b in zip(model.parameters(), expected, strict=True))
    assert len(alone._means[0]._buckets) > 1


def test_gradients_are_divided_by_the_ranks_and_a_bucket_keeps_its_future():
    gradients = torch.tensor([3.0])
    bucket = SimpleNamespace(buffer=lambda: gradients, index=lambda: 0, is_last=lambda: True)
    mean = Mean(SimpleNamespace(allreduce=lambda tensors, _: tensors[0].add_(1.0)), Cord(), 3)
    mean._wait = lambda _: True
    assert mean.of(bucket).wait().item() == pytest.approx(2.0)
    assert mean.of(bucket) is mean.of(bucket)


def test_a_model_that_the_training_holds_does_not_hold_the_group(alone):
    model, gloo = wrapped(alone), weakref.ref(dist.group.WORLD.gloo)
    model(torch.ones(2, 3)).sum().backward()
    alone.free()
    assert gloo() is None


def test_torch_looks_for_nothing_in_the_group_that_it_does_not_have(alone, monkeypatch):
    """Its C++ asks a class of Python for each method by its own name, in each step anew where there is
    none.
    """
    model, missed = wrapped(alone), []

    def miss(_, name):
        missed.append(name)
        raise AttributeError(name)

    monkeypatch.setattr(CuttableGroup, "__getattr__", miss, raising=False)
    model(torch.ones(2, 3)).sum().backward()
    assert missed == []


@pytest.mark.usefixtures("alone")
def test_gloo_has_the_frequent_collectives_under_the_names_of_a_group():
    group = dist.group.WORLD
    assert all(
        hasattr(kind, name) for kind in (group.gloo, group.inner, group) for name in collectives.FREQUENT
    )
    assert "__reduce_ex__" not in vars(CuttableGroup)


def test_an_error_of_its_own_gpu_is_no_loss_of_another_rank():
    assert is_loss(RuntimeError("NCCL error: remote process exited"))
    assert not is_loss(RuntimeError("ProcessGroupNCCL's watchdog: CUDA error: an illegal memory access"))


@pytest.mark.usefixtures("alone")
def test_a_wait_ends_at_its_own_limit():
    forgetful(dist.group.WORLD)
    with pytest.raises(RuntimeError, match="longer than 0.3 s"):
        dist.all_reduce(torch.ones(1), async_op=True).wait(timedelta(seconds=0.3))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("late", "patience", "gives"), [(2.5, 20, [healing._PIECE + 7] * 2), (6.0, 2, [True, True])]
)
def test_a_state_is_waited_for_as_long_as_the_lease(tmp_path, late, patience, gives):
    with closing(Pool(2)) as pool:
        assert pool(surviving.passed_on, str(tmp_path / "store"), late, patience) == gives
