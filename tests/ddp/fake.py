"""The whole validator on one process that takes itself for one of many: in torch's "fake" process group,
whose collectives do nothing, and a control group that answers with this rank's own values.
"""

import contextlib
import pickle
import time
from collections import Counter
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import mse_loss
from torch.testing._internal.distributed.fake_pg import FakeStore

from isobatch.validate import trial, worker
from isobatch.validate.proofs import all_reduce, machine, memory, step_time
from isobatch.validate.ranks.group import Group
from isobatch.validate.ranks.network import Facts
from isobatch.validate.workload import Workload

PER_NODE = 8


class Pulse:
    """Phases, and how long each took."""

    def __init__(self, counts):
        self.phase_seconds, self.on_loss, self._counts = {}, print, counts

    @contextlib.contextmanager
    def phase(self, name):
        begun, self._counts.phase = time.monotonic(), name
        yield
        self.phase_seconds[name] = time.monotonic() - begun

    def grant(self, seconds):
        pass

    def fail(self, text):
        raise AssertionError(text)

    def who(self, rank):
        return f"rank {rank}"

    def named(self, ranks):
        return ", ".join(map(self.who, ranks))


class Counts:
    """By phase: passes through the model, and the most bytes that a rank gets at once."""

    def __init__(self):
        self.phase, self.passes, self.gathered = "", Counter(), Counter()


class FakeGroup(Group):
    """Rank 0 of many."""

    def __init__(self, options, counts, world_size):
        self.rank, self.world_size, self.local_rank = 0, world_size, 0
        self.device, self.limit = torch.device("cpu"), timedelta(seconds=options.phase_seconds)
        self.emulated, self.backend, self.control = False, "fake", dist.group.WORLD
        self.counts, self.pulse = counts, Pulse(counts)
        self.facts = [self._facts_of(*divmod(rank, PER_NODE)) for rank in range(world_size)]
        self._place()

    def _facts_of(self, node, local_rank):
        place = {"host": f"host{node}", "machine": f"machine{node}", "address": None, "device": "cpu"}
        return Facts(**place, ranks=self.world_size, local_rank=local_rank)

    def gather(self, value, kind=None):
        size = len(pickle.dumps(value)) * self.world_size
        self.counts.gathered[self.counts.phase] = max(self.counts.gathered[self.counts.phase], size)
        return [value] * self.world_size

    def from_first(self, value, kind=None):
        return value

    def allow(self, seconds):
        pass

    def barrier(self):
        pass

    def close(self):
        pass


def validate(plan, options, world_size):
    """The report and the counts of a validation with so many ranks."""
    counts = Counts()

    def loss(model, batch):
        counts.passes[counts.phase] += 1
        if len(batch) > 37:  # where the search for the largest micro-batch ends
            raise MemoryError
        return mse_loss(model(batch), batch[:, :3])

    def hook(_, bucket):  # DDP's own all-reduce fails in a fake group
        future = torch.futures.Future()
        future.set_result(bucket.buffer())
        return future

    def factory():
        return Workload(
            nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)),
            lambda params: torch.optim.SGD(params, lr=0.1),
            lambda n, generator, device: torch.randn(n, 6, generator=generator),
            loss,
            hook=hook,
        )

    dist.init_process_group("fake", rank=0, world_size=world_size, store=FakeStore())
    try:
        with pytest.MonkeyPatch.context() as patch:
            # The least number of repetitions, which is always the same; a busy machine shortens nothing.
            for part in all_reduce, machine, step_time:
                patch.setitem(part.SECONDS, options.extent, 0.0)
            patch.setattr(step_time, "SHORT_SECONDS", float("inf"))
            patch.setitem(trial.STEP_SECONDS, options.extent, 1e6)
            patch.setitem(memory.SECONDS, options.extent, 600.0)
            patch.setattr(worker, "Group", lambda options: FakeGroup(options, counts, world_size))
            patch.setattr(worker, "own_device", lambda options: None)
            return worker.run(plan, options, factory=factory), counts
    finally:
        dist.destroy_process_group()
