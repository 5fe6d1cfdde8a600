"""One plan."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, Self, cast

import msgspec
import numpy as np
from numpy.typing import NDArray

from isobatch.errors import InputError
from isobatch.files.whole import read_whole, write_whole
from isobatch.forecast.profile import Profile, as_profiles, workloads_of
from isobatch.planning.course import Course, Position
from isobatch.planning.explain import explain
from isobatch.reason import Reason, reasons_of
from isobatch.recipes.recipe import Cluster, Recipe
from isobatch.schedules import Schedule

if TYPE_CHECKING:
    from isobatch.tools.writing.export import Export
    from isobatch.tools.writing.planned import Job

SCHEMA = "isobatch.plan/1"


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What was asked for: the keywords of `plan`, which are also columns of a fleet."""

    policy: str | int = "keep"
    rule: str = "auto"
    max_micro_batch: int | None = None
    max_batch: int | None = None
    batch_tolerance: float = 0.0
    micro_batch_multiple: int = 1
    require_multiple: bool = False
    ragged: bool = False
    uneven: bool = False
    beta_half_life: bool = False
    deadline_hours: float | None = None
    budget: float | None = None


class Move(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A change of hardware or batch in a run that was under way, as `replan` made it.

    Attributes:
        step: optimizer steps done before it.
        samples: samples consumed before it, as `Plan.position` counts them.
        epoch, offset: where the sampler resumes: in this epoch, behind its first `offset` samples; None where the recipe has
            no dataset_size, or a convention without epochs.
        repeated_samples, skipped_samples: of the epoch under way, what the change adds to its padding and its dropping; the
            offset itself repeats and skips nothing.
        velocity_factor: what an optimizer that keeps the learning rate inside its momentum buffer multiplies the buffer by
            (Goyal et al. 2017, arXiv 1706.02677, remark 2); torch's SGD keeps it outside and needs none.
        before: the plan that ran until then.
    """

    step: int
    samples: int
    epoch: int | None
    offset: int | None
    repeated_samples: int
    skipped_samples: int
    velocity_factor: float
    before: Plan


class Plan(msgspec.Struct, frozen=True, dict=True, forbid_unknown_fields=True):
    """How to train a recipe on a cluster. Values that are not known, or of an infeasible plan, are None.

    The result columns are those of a fleet (docs/fleet.md has their units). Beside them: `rule` as `auto` resolved it;
    `warmup_lr` and `min_lr`, the schedule's ends; `nearest_world_sizes` and `nearest_batches`, what would work below and
    above; `micro_batch_cap` and `cap_source` ("max_micro_batch", "memory", "tuned" or "open"); `settings`, `recipe`, `cluster`. In a run
    that `replan` moved, `moves` has what ran before, and steps are counted from the start of the run.
    """

    status: str
    reasons: tuple[Reason, ...]
    rule: str
    world_size: int
    data_parallel: int | None
    micro_batch: int | None
    accumulation: int | None
    effective_batch: int | None
    batch_change: float | None
    lr: float | None
    lr_scale: float | None
    beta1: float | None
    beta2: float | None
    eps: float | None
    weight_decay: float | None
    momentum: float | None
    ema_decay: float | None
    warmup_steps: int | None
    steps_per_epoch: int | None
    total_steps: int | None
    samples_per_epoch: int | None
    padded_samples: int | None
    dropped_samples: int | None
    step_seconds: float | None
    step_error: float | None
    samples_per_second: float | None
    efficiency: float | None
    hours: float | None
    gpu_hours: float | None
    cost: float | None
    memory_gib: float | None
    nearest_world_size: int | None
    nearest_batch: int | None
    warmup_lr: float | None
    min_lr: float | None
    nearest_world_sizes: tuple[int | None, int | None]
    nearest_batches: tuple[int | None, int | None]
    micro_batch_cap: int | None
    cap_source: str
    settings: Settings
    recipe: Recipe
    cluster: Cluster
    moves: tuple[Move, ...] = ()

    @property
    def policy(self) -> str | int:
        """What was held: "keep", "grow", "goodput" or the effective batch to reach."""
        return self.settings.policy

    @property
    def betas(self) -> tuple[float | None, float | None]:
        """(beta1, beta2)."""
        return self.beta1, self.beta2

    @cached_property
    def schedule(self) -> Schedule:
        """The learning rate as a function of the optimizer step, the first of which is 0.

        Raises:
            InputError: the plan is infeasible, or its recipe has no duration.
        """
        self._layout()
        return self._course.schedule

    @cached_property
    def lr_at(self) -> Callable[[float], float]:
        """The learning rate at an optimizer step, the first of which is 0: `plan.lr_at(step)`.

        Raises:
            InputError: as `schedule`.

        >>> from isobatch import plan
        >>> plan(Recipe(effective_batch=256, lr=0.1, duration="1000st", warmup="100st"), 8).lr_at(50)
        0.05
        """
        at: Callable[[float], float] = self.schedule.at
        return at

    def position(self, step: int) -> Position:
        """Where the run stands after `step` optimizer steps: (step, samples, epoch, offset).

        Raises:
            InputError: the plan is infeasible, or `step` is no step.

        >>> from isobatch import plan
        >>> plan(Recipe(effective_batch=256, lr=0.1, dataset_size=1000, duration="9ep"), 8).position(6)
        Position(step=6, samples=1512, epoch=1, offset=512)
        """
        if type(step) is not int or not 0 <= step < 2**53:
            raise InputError(f"{step!r} is not legal; legal: a whole number from 0", field="step")
        return self._course.position(step)

    @cached_property
    def _course(self) -> Course:
        starts = [0, *(move.step for move in self.moves)]
        return Course([*zip(starts, [*(move.before for move in self.moves), self], strict=True)])

    def explain(self) -> str:
        """What was held, what moved, by which formula, from which paper, and what to be wary of, in plain words."""
        return explain(self)

    def micro_batches(self, rank: int) -> NDArray[np.int64]:
        """The sizes of a replica's micro-batches in one full step, shape (its accumulation,), samples.

        Raises:
            InputError: the plan is infeasible, or has no such replica.

        >>> from isobatch import plan
        >>> plan(Recipe(effective_batch=256, lr=0.1), 7, ragged=True).micro_batches(6)
        array([36])
        """
        micro, batch, replicas = self._layout()
        if type(rank) is not int or not 0 <= rank < replicas:
            raise InputError(f"{rank!r} is not legal; legal: 0 to {replicas - 1}", field="rank")
        if Reason.UNEVEN in self.reasons:
            passes = batch // micro
            return np.full(passes // replicas + (rank < passes % replicas), micro, dtype=np.int64)
        samples = batch // replicas + (rank < batch % replicas)
        sizes = np.full(-(-samples // micro), micro, dtype=np.int64)
        sizes[-1] = samples - micro * (len(sizes) - 1)
        return sizes

    def loss_weights(self, rank: int) -> NDArray[np.float64]:
        """The factor of each micro-batch's mean loss on a replica, shape as `micro_batches`, so that the gradients that DDP
        averages over replicas are those of the mean over the effective batch: n·replicas/effective_batch.

        >>> from isobatch import plan
        >>> plan(Recipe(effective_batch=256, lr=0.1), 8, max_micro_batch=8).loss_weights(0)
        array([0.25, 0.25, 0.25, 0.25])
        """
        _, batch, replicas = self._layout()
        weights: NDArray[np.float64] = self.micro_batches(rank) * replicas / batch
        return weights

    def _layout(self) -> tuple[int, int, int]:
        if self.status == "infeasible":
            raise InputError(f"the plan is infeasible: {'; '.join(reason.text for reason in self.reasons)}")
        return cast(tuple[int, int, int], (self.micro_batch, self.effective_batch, self.data_parallel))

    def to(self, tool: str, *, form: str | None = None, job: Job | None = None) -> Export:
        """The plan as another tool's file or arguments; docs/tools.md lists the tools.

        Args:
            tool: such as "transformers" or "slurm".
            form: "yaml", "json", "toml" or "sh", as far as the tool has it; None: its usual one.
            job: name, script, image and checkpoint, for launchers.

        Returns:
            An Export: `str()` of it is the file, `notes` is what the tool cannot say and what changed from the tuned run.

        Raises:
            InputError: the plan is infeasible or has no end, or the tool is not known or cannot run it.

        >>> from isobatch import plan
        >>> made = plan(Recipe.from_gpus(gpus=8, batch_per_gpu=4, lr=1e-4, duration="100st"), 4).to("transformers")
        >>> print(str(made).splitlines()[2])
        gradient_accumulation_steps: 2  # was 1
        """
        from isobatch.tools.writing.export import export

        self._layout()
        return export(self, tool, was=self.tuned(), form=form, job=job)

    def tuned(self) -> Plan | None:
        """The recipe planned on the GPUs that it was tuned on; None where they are not known."""
        if self.recipe.gpus is None:
            return None
        made = plan(self.recipe, Cluster(gpus_per_node=self.recipe.gpus, gpu=self.cluster.gpu))
        return None if made.status == "infeasible" else made

    def to_json(self) -> str:
        """The plan as JSON text with a schema version."""
        text = msgspec.json.encode({"schema": SCHEMA, **msgspec.structs.asdict(self)}, enc_hook=_described)
        return msgspec.json.format(text, indent=2).decode()

    @classmethod
    def from_json(cls, text: str | bytes, *, file: str | None = None) -> Self:
        """The plan that `to_json` wrote.

        Raises:
            InputError: it is no plan, or of another schema version.
        """
        try:
            fields = msgspec.json.decode(text)
            schema = fields.pop("schema", None) if isinstance(fields, dict) else None
            if schema != SCHEMA:
                raise InputError(f"{schema!r} is not legal; legal: {SCHEMA!r}", file=file, field="schema")
            return msgspec.convert(fields, cls)
        except msgspec.MsgspecError as error:
            raise InputError(f"no plan: {error}", file=file) from None

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the plan as JSON, whole or not at all."""
        write_whole(path, (self.to_json() + "\n").encode())

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Reads a plan that `save` wrote.

        Raises:
            InputError: the file cannot be read, or holds no plan of this version.
        """
        return cls.from_json(read_whole(path), file=os.fspath(path))


def _described(value: Any) -> Any:
    if isinstance(value, Schedule):
        return msgspec.Raw(value.to_json().encode())
    raise TypeError(f"{type(value).__name__} has no JSON form")


@lru_cache(maxsize=4096)
def _gpus(count: int) -> Cluster:
    return Cluster(nodes=1, gpus_per_node=count)


def plan(
    recipe: Recipe,
    cluster: Cluster | int,
    *,
    policy: str | int = "keep",
    rule: str = "auto",
    max_micro_batch: int | None = None,
    max_batch: int | None = None,
    batch_tolerance: float = 0.0,
    micro_batch_multiple: int = 1,
    require_multiple: bool = False,
    ragged: bool = False,
    uneven: bool = False,
    beta_half_life: bool = False,
    deadline_hours: float | None = None,
    budget: float | None = None,
    profile: Profile | Sequence[Profile] | None = None,
) -> Plan:
    """Works out how to train a recipe on a cluster.

    Args:
        recipe: what was tuned.
        cluster: where it shall run; a number is that many GPUs.
        policy: "keep" holds the effective batch and the learning rate; "grow" holds the samples per replica, so that the
            batch grows with the replicas; a number is the effective batch to reach; "goodput" finds the batch, from the
            tuned one to max_batch, that reaches the same loss soonest by the profile and the noise scale.
        rule: how the learning rate follows the batch: `isobatch rules` lists them. Under "keep" nothing moves.
        max_micro_batch: samples in a forward pass that fit; else the cap is what fits in the cluster's memory by the profile,
            else the tuned micro-batch, where it is known.
        max_batch: no effective batch above it.
        batch_tolerance: the fraction by which the batch may move to one that divides.
        micro_batch_multiple: preferred divisor of the micro-batch (8 for tensor cores).
        require_multiple: whether that is a demand.
        ragged: allows micro-batches that differ in size; their losses then need `Plan.loss_weights`.
        uneven: allows the first replicas one more micro-batch than the others; likewise.
        beta_half_life: holds the half-life of β2 in samples: β2' = β2^k (Marek 2025, arXiv 2507.07101).
        deadline_hours, budget: a plan that takes longer, or costs more, is infeasible; both need the profile.
        profile: what was measured of the workload, for the columns of time, memory and money; of several the one for the
            cluster's GPU type counts.

    Returns:
        A Plan. One that cannot be is a Plan too, with status "infeasible" and its reasons.

    Raises:
        InputError: a value is not legal; the message names the field and what is.

    >>> recipe = Recipe.from_gpus(gpus=32, batch_per_gpu=8, lr=0.1, optimizer="sgd")
    >>> p = plan(recipe, 64)
    >>> p.micro_batch, p.accumulation, p.effective_batch, p.lr
    (4, 1, 256, 0.1)
    >>> plan(recipe, 128, policy="grow", rule="sqrt").lr
    0.2
    """
    if type(cluster) is not Cluster:
        cluster = _gpus(cluster)
    settings = Settings(
        policy,
        rule,
        max_micro_batch,
        max_batch,
        batch_tolerance,
        micro_batch_multiple,
        require_multiple,
        ragged,
        uneven,
        beta_half_life,
        deadline_hours,
        budget,
    )
    workloads = None if profile is None else workloads_of(as_profiles(profile))
    values = recipe.core.plan(msgspec.structs.astuple(cluster), msgspec.structs.astuple(settings), workloads)
    return Plan(*(values[0], reasons_of(values[1]), *values[2:], settings, recipe, cluster))
