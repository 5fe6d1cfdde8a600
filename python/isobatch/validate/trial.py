"""One validation under way: what is validated, and what earlier proofs have found for later ones."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from functools import cached_property
from typing import Any

from isobatch.forecast.measurements import Measurements
from isobatch.planning.plan import Plan
from isobatch.validate.host import clocks, kernel, limits, nvml, ports, road
from isobatch.validate.measure import timing
from isobatch.validate.options import Options
from isobatch.validate.ranks.group import Group
from isobatch.validate.report.draft import Draft
from isobatch.validate.report.figures import AllReduce, Gpu, Hosts, Machine, Port, Step
from isobatch.validate.step.training import Training
from isobatch.validate.step.workload import Workload

COMPILED_AGAIN = 4
"""Times that a phase may compile: another size, which then may vary; eval mode; with the all-reduce, and without."""

BYTES_PER_SECOND = 1e8
"""Of the weights: a phase copies, compares and sums them, some of it in the host's memory, at least at this rate."""


class Before:
    """What a host has counted so far, for a look at it in the end."""

    def __init__(self, *, cuda: bool) -> None:
        self.seconds = time.monotonic()
        self.log = kernel.log() if cuda else None
        self.ports: list[Port] = ports.read()
        self.throttled = limits.throttled_seconds()


class Trial:
    """A validation on this rank. What is worked out when it is first asked for is asked for by all ranks at the same place.

    `rdma` says by node whether one of its InfiniBand, RoCE or EFA ports is active, `gpus` what the driver says of each rank's GPU;
    `reduction` is what the loss was seen to do over a batch, "mean", "sum" or "neither".
    """

    machine: Machine
    allreduce: AllReduce
    measurements: Measurements | None
    step: Step
    before: Before
    reduction: str
    compile_seconds = 0.0
    sampler: clocks.Sampler | None = None

    def __init__(self, plan: Plan, options: Options, workload: Workload, group: Group, draft: Draft) -> None:
        self.plan, self.options, self.workload, self.group = plan, options, workload, group
        self._draft = draft
        self.hosts = Hosts()
        self.gpus: list[Gpu] = []
        self.rdma: dict[int, bool] = {}
        self.nccl_log = road.Log()

    def add(self, **parts: Any) -> None:
        """Figures, by their names in the report."""
        self._draft.add(**parts)

    @contextlib.contextmanager
    def connecting(self) -> Iterator[None]:
        """Around the first collective, in which NCCL says which road it takes."""
        with self.nccl_log.writing() if self.group.backend == "nccl" else contextlib.nullcontext():
            yield

    def close(self) -> None:
        """Ends what runs beside the validation."""
        if self.sampler is not None:
            self.sampler.stop()
        self.nccl_log.close()

    @cached_property
    def board(self) -> nvml.Board | str:
        """This rank's GPU as the driver has it, or why it cannot be asked."""
        return nvml.open_board(self.group)

    @property
    def allowance_seconds(self) -> float:
        """What a phase gets beyond its limit, for a large model and for one that is compiled."""
        size = sum(p.numel() * p.element_size() for p in self.workload.model.parameters())
        return size / BYTES_PER_SECOND + COMPILED_AGAIN * self.compile_seconds

    @cached_property
    def training(self) -> Training:
        """The plan's step on this rank."""
        return Training(self.plan, self.options, self.workload, self.group)

    @cached_property
    def micro_batch_seconds(self) -> float:
        """How long rank 0 alone takes for forward and backward of one micro-batch."""
        return timing.micro_batch_seconds(self.training)

    @cached_property
    def timed(self) -> Training:
        """The step with as many micro-batches as can be timed often enough."""
        return timing.affordable(self.training, self.micro_batch_seconds)

    @cached_property
    def buckets(self) -> list[int]:
        """The sizes of DDP's buckets, bytes."""
        return timing.bucket_bytes(self.timed)

    @cached_property
    def largest(self) -> int:
        """The largest micro-batch that is known to fit: the planned one, until a search finds a larger one."""
        return self.training.micro_batch
