"""One validation under way: its plan, the results that later proofs use, and the record of a claim."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

from isobatch.forecast.measurements import Measurements
from isobatch.planning.plan import Plan
from isobatch.validate.figures import AllReduce, Machine
from isobatch.validate.options import Options
from isobatch.validate.ranks.group import Group
from isobatch.validate.report import Draft, Proof
from isobatch.validate.training import Training, parameter_bytes
from isobatch.validate.workload import Workload

COMPILED_AGAIN = 4
"""Times that a phase may compile: for new and variable sizes, eval mode, with and without the all-reduce."""

BYTES_PER_SECOND = 1e8
"""Of weights: a phase copies, compares and sums them, partly in the host's memory, at least at this rate."""

STEP_SECONDS = {"quick": 0.15, "usual": 0.6, "full": 3.0}
"""The longest step to be timed as a whole: at least some thirty are taken."""


@dataclass
class Trial:
    """A validation on this rank.

    All ranks must ask for a cached property at the same place, since its first use measures on all of them.
    `reduction` is the loss's measured reduction over a batch: "mean", "sum" or "neither".
    """

    plan: Plan
    options: Options
    workload: Workload
    group: Group
    draft: Draft
    machine: Machine = field(init=False)
    allreduce: AllReduce = field(init=False)
    measurements: Measurements | None = field(init=False)
    reduction: str = field(init=False)
    compile_seconds: float = 0.0

    @property
    def allowance_seconds(self) -> float:
        """The seconds of a phase beyond its limit, for a large or compiled model."""
        size = parameter_bytes(self.workload.model)
        return size / BYTES_PER_SECOND + COMPILED_AGAIN * self.compile_seconds

    @cached_property
    def training(self) -> Training:
        """The plan's step on this rank."""
        return Training(self.plan, self.options, self.workload, self.group)

    @cached_property
    def micro_batch_seconds(self) -> float:
        """The seconds of forward and backward of one micro-batch on rank 0 alone."""
        return self.training.micro_batch_seconds()

    @cached_property
    def timed(self) -> Training:
        """The step, shortened to as many micro-batches as can be timed often enough."""
        return self.training.shortened(int(STEP_SECONDS[self.options.extent] / self.micro_batch_seconds))

    @cached_property
    def buckets(self) -> list[int]:
        """The sizes of DDP's buckets, bytes."""
        return self.timed.bucket_bytes()

    @cached_property
    def largest(self) -> int:
        """The largest micro-batch known to fit: the planned one, until a search finds a larger one."""
        return self.training.micro_batch


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A part of a validation, declared by a file of proofs. All ranks run it together, within one time limit.

    `names` are those of its possible proofs, without the suffix of a number format, in the table's order.
    """

    phase: str
    names: tuple[str, ...]
    #: Gives the proofs, equal on all ranks; figures go into the trial.
    prove: Callable[[Trial], list[Proof]]
    enabled: Callable[[Options], bool] = lambda _: True
    #: Whether it needs the ranks' connections. Making them may hang: claims without them come first.
    connected: bool = True
    #: Whether nothing after it makes sense once one of its proofs has failed.
    decisive: bool = False
