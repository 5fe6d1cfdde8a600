"""A crew's group ends what its ranks wait for, also where gloo does not; and a large state comes to all that are behind."""

import threading
import time
from datetime import timedelta

import pytest

torch = pytest.importorskip("torch", reason="survivors drives a torch training")

import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402

from ddp import surviving  # noqa: E402
from ddp.pool import Pool  # noqa: E402
from isobatch.integrations.torch.elastic import healing  # noqa: E402
from isobatch.integrations.torch.elastic.collectives import BACKEND, CuttableGroup  # noqa: E402
from isobatch.integrations.torch.elastic.group import CrewGroup, is_loss  # noqa: E402


class Endless:
    """A collective that never ends, as gloo's where it forgot a send."""

    def get_future(self):
        return torch.futures.Future()

    def is_completed(self):
        return False

    def wait(self, timeout):
        time.sleep(timeout.total_seconds() or 60)
        raise RuntimeError("Operation timed out!")


class Forgetful:
    """A group of gloo that forgets everything."""

    def __getattr__(self, name):
        return lambda *_, **__: Endless()


WAITS = {
    "backward": lambda model: model(torch.ones(2, 3)).sum().backward(),
    "all_reduce": lambda _: dist.all_reduce(torch.ones(1)),
    "objects": lambda _: dist.all_gather_object([None], {}),
    "barrier": lambda _: dist.barrier(),
    "send": lambda _: dist.isend(torch.ones(1), 0).wait(),
    "group": lambda _: dist.all_reduce(torch.ones(1), group=forgetful(dist.new_group())),
    "connecting": lambda _: CuttableGroup.cord.apart(lambda: time.sleep(60)),
}


def forgetful(group):
    group.inner = Forgetful()
    return group


@pytest.mark.parametrize("waits", WAITS.values(), ids=WAITS)
def test_what_never_ends_in_gloo_ends_when_the_group_is_cut(waits):
    made = CrewGroup()
    made.begin()
    dist.init_process_group(BACKEND, store=dist.HashStore(), rank=0, world_size=1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dist, "get_world_size", lambda: 2)
        model = made.wrap(nn.Linear(3, 1))
    forgetful(dist.group.WORLD)
    cut = threading.Timer(0.2, made.cut)
    cut.start()
    begun = time.monotonic()
    try:
        with pytest.raises(RuntimeError, match="was cut") as caught:
            waits(model)
    finally:
        cut.join()
        made.free()
    assert is_loss(caught.value)
    assert time.monotonic() - begun < 2.0


def test_an_error_of_its_own_gpu_is_no_loss_of_another_rank():
    assert is_loss(RuntimeError("NCCL error: remote process exited"))
    assert not is_loss(RuntimeError("ProcessGroupNCCL's watchdog: CUDA error: an illegal memory access"))


def test_a_wait_ends_at_its_own_limit():
    CrewGroup().begin()
    dist.init_process_group(BACKEND, store=dist.HashStore(), rank=0, world_size=1)
    forgetful(dist.group.WORLD)
    try:
        with pytest.raises(RuntimeError, match="longer than 0.3 s"):
            dist.all_reduce(torch.ones(1), async_op=True).wait(timedelta(seconds=0.3))
    finally:
        dist.destroy_process_group()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("late", "patience", "gives"), [(2.5, 20, [healing._CHUNK + 7] * 2), (6.0, 2, [True, True])]
)
def test_a_state_is_waited_for_as_long_as_the_lease(tmp_path, late, patience, gives):
    pool = Pool(2)
    try:
        assert pool(surviving.passed_on, str(tmp_path / "store"), late, patience) == gives
    finally:
        pool.close()
