"""A crew's group ends what its ranks wait for, also where gloo does not; and a large state comes to all that are behind."""

import threading
import time

import pytest

torch = pytest.importorskip("torch", reason="survivors drives a torch training")

import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402
from torch.testing._internal.distributed.fake_pg import FakeStore  # noqa: E402

from ddp import surviving  # noqa: E402
from ddp.pool import Pool  # noqa: E402
from isobatch.integrations.torch.elastic import healing  # noqa: E402
from isobatch.integrations.torch.elastic.group import CrewGroup, is_loss  # noqa: E402


class Endless:
    """A collective that never ends, as gloo's where it forgot a send."""

    def __init__(self):
        self.future = torch.futures.Future()

    def allreduce(self, tensors):
        return self

    def size(self):
        return 2

    def get_future(self):
        return self.future

    def is_completed(self):
        return False

    def wait(self, timeout):
        time.sleep(timeout.total_seconds())
        raise RuntimeError("Operation timed out!")


@pytest.fixture
def group():
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    made = CrewGroup()
    model = made.wrap(nn.Linear(3, 1))
    cut = threading.Timer(0.2, made.cut)
    cut.start()
    yield made, model
    cut.join()
    made.free()


@pytest.mark.parametrize("waited_for", ["backward", "agreement"])
def test_what_never_ends_in_gloo_ends_when_the_group_is_cut(group, waited_for):
    made, model = group
    with pytest.MonkeyPatch.context() as patch, pytest.raises(RuntimeError, match="was cut") as caught:
        patch.setattr(dist.distributed_c10d, "_get_default_group", Endless)
        model(torch.ones(2, 3)).sum().backward() if waited_for == "backward" else made.wait(Endless())
    assert is_loss(caught.value)


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
