"""One plan: the record, and what it answers."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import cached_property, lru_cache, partial
from typing import TYPE_CHECKING, Any, Literal, Self, Unpack, cast, overload

import msgspec

from isobatch import _core
from isobatch.errors import InputError, must_be
from isobatch.limits import plain_whole
from isobatch.planning.record import PLANNER, Handover, PlanOrigin, PlanRecord
from isobatch.planning.settings import Keywords, Policy, Settings, settings_of, with_settings
from isobatch.reason import Reason, reasons_in
from isobatch.recipes.cluster import Cluster
from isobatch.recipes.foreign import of_tools
from isobatch.recipes.recipe import Recipe, refuse_no_recipe
from isobatch.words import count, counted, real

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from isobatch.forecast.profile import Profile
    from isobatch.planning.course import Course
    from isobatch.planning.explain import Explanation
    from isobatch.planning.export import Export, Job
    from isobatch.planning.leg import Position, Stage
    from isobatch.schedules.schedule import Schedule


class Move(Handover, frozen=True, forbid_unknown_fields=True):
    """A change of hardware or batch in a run under way, made by `replan`.

    Attributes:
        step: optimizer steps done before it.
        samples: samples consumed before it, as `Plan.position` counts them.
        epoch, offset: where the sampler resumes: in this epoch, behind its first `offset` samples; None where
            the recipe has no dataset_size, or a convention without epochs.
        repeated_samples, skipped_samples: of the epoch under way, what the change adds to its padding and its
            dropping; the offset itself repeats and skips nothing.
        velocity_factor: what an optimizer that keeps the learning rate inside its momentum buffer multiplies
            the buffer by (Goyal et al. 2017, arXiv 1706.02677, remark 2); torch's SGD keeps it outside and
            needs none.
        before: the plan that ran until then.
    """

    before: FeasiblePlan


_MAX_REPR_LENGTH = 590
"""Characters of a plan's repr."""

# Micro-batches that an array lists: 128 MiB of them.
_MAX_LISTED_MICRO_BATCHES = 2**24


class Plan(PlanRecord, frozen=True, dict=True, forbid_unknown_fields=True):
    """A way to train a recipe on a cluster. Values that are not known, or of an infeasible plan, are None.

    The result columns are those of a fleet (docs/fleet.md has their units). Beside them: `rule` as `auto`
    resolved it; `warmup_lr` and `min_lr`, the schedule's ends; `nearest_world_sizes` and `nearest_batches`,
    what would work below and above; `micro_batch_cap` and `cap_source` ("fixed": by min_ and max_micro_batch,
    "max_micro_batch", "memory", "tuned" or "open"); `settings`, `recipe`, `cluster`. In a run that `replan`
    moved, `moves` has what ran before, and steps are counted from the start of the run.
    """

    moves: tuple[Move, ...] = ()

    def __repr__(self) -> str:
        """The plan on one line; `explain` says it in words, `to_json` has all of it."""
        batch = ""
        if self.status != "infeasible":
            micro, passes, replicas, samples, _ = map(count, self.layout)
            batch = f", {micro} × {passes} × {replicas} = {samples} samples, lr={real(self.lr or 0.0)}"
        steps = "" if self.total_steps is None else f", {counted(self.total_steps, 'step')}"
        changed = ", ".join(f"{name}={getattr(self.settings, name)!r}" for name in self.settings.changed())
        recipe = repr(self.recipe)
        gpus = counted(self.world_size, "GPU")
        text = f"{type(self).__name__}({self.status}: {gpus}{batch}{steps}{changed and f', {changed}'}; "
        room = _MAX_REPR_LENGTH - len(text) - 2
        shown = recipe if len(recipe) <= room else recipe[: max(0, room - 1)] + "…"
        return f"{text[:_MAX_REPR_LENGTH]}{shown})"

    @property
    def policy(self) -> Policy | int:
        """The policy: "keep", "grow", "goodput" or the effective batch to reach."""
        return self.settings.policy

    @property
    def betas(self) -> tuple[float | None, float | None]:
        """(beta1, beta2)."""
        return self.beta1, self.beta2

    def require(self) -> FeasiblePlan:
        """Returns the plan as a feasible one: its batch, split and learning rate are then known to type
        checkers too.

        Raises:
            InputError: it is infeasible; the message explains why, and lists what would work.

        >>> from isobatch import plan
        >>> plan(Recipe(effective_batch=256, lr=0.1), 8).require().micro_batch
        32
        """
        if not isinstance(self, FeasiblePlan):
            raise InputError(self.explain())
        return self

    @cached_property
    def options(self) -> tuple[FeasiblePlan, ...]:
        """The ways out of an infeasible plan, best first; each is a plan with the cluster and the settings to
        make it. Of a plan with another micro-batch than a coupled recipe was tuned with, ways to keep the
        tuned one.

        >>> from isobatch import plan
        >>> best = plan(Recipe(effective_batch=256, lr=0.1), 3).options[0]
        >>> best.effective_batch, best.settings.batch_tolerance
        (255, 0.004)
        """
        if isinstance(self, FeasiblePlan) and Reason.COUPLED_MOVED not in self.reasons:
            return ()
        from isobatch.planning.ways_out import options

        make = self.origin.make or partial(plan_of, self.recipe)
        return tuple(cast(list[FeasiblePlan], options(self, make)))

    @cached_property
    def schedule(self) -> Schedule:
        """The learning rate as a function of the optimizer step, from 0.

        Raises:
            InputError: the plan is infeasible, or its recipe has no duration.
        """
        return self.course.schedule

    @cached_property
    def lr_at(self) -> Callable[[float], float]:
        """The learning rate at an optimizer step, from 0: `plan.lr_at(step)`.

        Raises:
            InputError: as `schedule`.

        >>> from isobatch import plan
        >>> plan(Recipe(effective_batch=256, lr=0.1, duration="1000st", warmup="100st"), 8).lr_at(50)
        0.05
        """
        return self.schedule.at

    def position(self, step: int) -> Position:
        """Finds the run's place after `step` optimizer steps: (step, samples, epoch, offset).

        Raises:
            InputError: the plan is infeasible, or `step` is no step.

        >>> from isobatch import plan
        >>> plan(Recipe(effective_batch=256, lr=0.1, dataset_size=1000, duration="9ep"), 8).position(6)
        Position(step=6, samples=1512, epoch=1, offset=512)
        """
        return self.course.position(_step(step))

    @cached_property
    def course(self) -> Course:
        """The whole run, moves included: steps, samples, epochs and the schedule's clock.

        Raises:
            InputError: the plan is infeasible.
        """
        from isobatch.planning.course import Course

        return Course(self.legs)

    @property
    def legs(self) -> list[tuple[int, PlanRecord]]:
        """The parts of the run: the optimizer step at which each starts, and its plan; one where it was never
        moved.
        """
        starts = [0, *(move.step for move in self.moves)]
        return [*zip(starts, [*(move.before for move in self.moves), self], strict=True)]

    def explain(self, currency: str = "$") -> str:
        """Explains in plain words the changes, by formula and paper, the unchanged values and the warnings;
        of an infeasible plan the reasons and the ways out.

        Args:
            currency: the sign of the prices.

        >>> from isobatch import plan
        >>> print(plan(Recipe(effective_batch=256, lr=0.1), 8).explain().splitlines()[0])
        8 GPUs: micro-batch 32 × accumulation 1 × 8 replicas = 256 samples per step.
        """
        return self.explanation(currency).text()

    def explanation(self, currency: str = "$", options: Sequence[PlanRecord] | None = None) -> Explanation:
        """Returns the sentences of `explain` by their topics, for pages and programs.

        Args:
            currency: the sign of the prices.
            options: the ways out to list; None: all.
        """
        from isobatch.planning.explain import explanation

        ramped = self.recipe.ramp is not None and self.status != "infeasible"
        stages = self.course.legs[-1].stages if ramped else ()
        options = self.options if options is None else options
        return explanation(self, self.moves, self.legs, options, stages, currency)

    @property
    def stages(self) -> tuple[Stage, ...]:
        """The parts of the run with one batch each: one, unless a ramp or a move changes it.

        Raises:
            InputError: the plan is infeasible.

        >>> from isobatch import plan
        >>> growing = plan(Recipe(effective_batch=256, lr=0.1, ramp="128 128 1000", duration="90st"), 8)
        >>> [(stage.step, stage.batch) for stage in growing.stages]
        [(0, 128), (8, 256)]
        """
        return tuple(self.course.stages)

    def batch_at(self, step: int) -> int:
        """Finds the effective batch of an optimizer step, from 0; an epoch's last step counts as a full one.

        Raises:
            InputError: the plan is infeasible, or `step` is no step.

        >>> from isobatch import plan
        >>> growing = plan(Recipe(effective_batch=256, lr=0.1, ramp="128 128 1000", duration="90st"), 8)
        >>> growing.batch_at(7), growing.batch_at(8)
        (128, 256)
        """
        at = _step(step)
        return next(stage.batch for stage in reversed(self.stages) if stage.step <= at)

    def micro_batches(self, rank: int) -> NDArray[np.int64]:
        """The sizes of a replica's micro-batches in one full step, shape (its accumulation,), samples.

        Raises:
            InputError: the plan is infeasible, has no such replica, or more micro-batches than can be listed.

        >>> from isobatch import plan
        >>> plan(Recipe(effective_batch=256, lr=0.1), 7, split="ragged").micro_batches(6)
        array([36])
        """
        import numpy as np

        micro, accumulation, replicas, batch, _ = self.layout
        rank = plain_whole(rank)
        if type(rank) is not int or not 0 <= rank < replicas:
            raise must_be(f"a whole number from 0 to {replicas - 1}", rank, field="rank")
        if accumulation > _MAX_LISTED_MICRO_BATCHES:
            legal = f"at most {_MAX_LISTED_MICRO_BATCHES:,} to be listed"
            raise must_be(legal, accumulation, field="accumulation")
        if Reason.UNEVEN in self.reasons:
            passes = batch // micro
            return np.full(passes // replicas + (rank < passes % replicas), micro, dtype=np.int64)
        samples = batch // replicas + (rank < batch % replicas)
        sizes = np.full(-(-samples // micro), micro, dtype=np.int64)
        sizes[-1] = samples - micro * (len(sizes) - 1)
        return sizes

    def loss_weights(self, rank: int) -> NDArray[np.float64]:
        """Computes the factor of each micro-batch's mean loss on a replica, shape as `micro_batches`, to make
        DDP's average over replicas the gradient of the mean over the effective batch:
        n·replicas/effective_batch.

        Raises:
            InputError: as `micro_batches`.

        >>> from isobatch import plan
        >>> plan(Recipe(effective_batch=256, lr=0.1), 8, max_micro_batch=8).loss_weights(0)
        array([0.25, 0.25, 0.25, 0.25])
        """
        layout = self.layout
        weights: NDArray[np.float64] = (
            self.micro_batches(rank) * layout.data_parallel / layout.effective_batch
        )
        return weights

    def to(self, tool: str, *, form: str | None = None, job: Job | None = None) -> Export:
        """The plan as another tool's file or arguments; docs/tools.md lists the tools.

        Args:
            tool: such as "transformers" or "slurm".
            form: "yaml", "json", "toml" or "sh", as far as the tool has it; None: its usual one.
            job: name, script, image and checkpoint, for launchers.

        Returns:
            An Export: `str()` of it is the file, `notes` is what the tool cannot say and what changed from
            the tuned run.

        Raises:
            InputError: the plan is infeasible or has no end, or the tool is not known or cannot run it.

        >>> from isobatch import plan
        >>> recipe = Recipe.from_gpus(gpus=8, batch_per_gpu=4, lr=1e-4, duration="100st")
        >>> plan(recipe, 4).to("transformers").settings["gradient_accumulation_steps"]
        2
        """
        written: Export = of_tools("export")(self.require(), tool, was=self.tuned(), form=form, job=job)
        return written

    def tuned(self) -> FeasiblePlan | None:
        """Plans the recipe on the GPUs of its tuned run; None where they are not known."""
        if self.recipe.gpus is None:
            return None
        multiple = self.settings.batch_multiple
        multiple = 1 if self.recipe.effective_batch % multiple else multiple
        where = Cluster(gpus_per_node=self.recipe.gpus, gpu=self.cluster.gpu)
        tuned = plan(self.recipe, where, batch_multiple=multiple)
        return tuned if isinstance(tuned, FeasiblePlan) else None

    def to_json(self) -> str:
        """The plan as JSON text with a schema version."""
        from isobatch.planning.saved import text_of

        return text_of(self)

    @classmethod
    def from_json(cls, text: str | bytes, *, file: str | None = None) -> Self:
        """Reads the text of `to_json`.

        The plan is worked out again from its recipe, cluster and settings, and must come out the same; what a
        profile gave, which is not in the file, must be consistent. Of a plan that another version of isobatch
        wrote, all is.

        Raises:
            InputError: it is no plan, of a newer schema, or was changed: the fields that differ are named.

        >>> from isobatch import plan
        >>> made = plan(Recipe(effective_batch=256, lr=0.1), 8)
        >>> Plan.from_json(made.to_json()) == made
        True
        """
        from isobatch.planning.saved import NotAPlan, check, fields_of

        fields, same_version = fields_of(text, file)
        kind = Plan if fields.get("status") == "infeasible" else FeasiblePlan
        try:
            saved = msgspec.convert(fields, kind)
        except (msgspec.MsgspecError, RecursionError) as error:
            raise NotAPlan(f"is not a plan: {str(error)[:500]}", file=file) from None
        check(saved.moves, saved.legs, file, same_version=same_version)
        return cast(Self, saved)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the plan as JSON, whole or not at all.

        Raises:
            InputError: the file cannot be written.
        """
        from isobatch.files.whole import save_json

        save_json(path, self.to_json())

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Reads a plan written by `save`.

        Raises:
            InputError: the file cannot be read, or as `from_json`.
        """
        from isobatch.files.whole import read_whole

        return cls.from_json(read_whole(path), file=os.fspath(path))


class FeasiblePlan(Plan, frozen=True, dict=True, forbid_unknown_fields=True):
    """A feasible plan: its batch, split and learning rate are known. `Plan.require` gives it, and `plan(...,
    strict=True)`.
    """

    if TYPE_CHECKING:  # the same fields, known
        data_parallel: int = 0
        micro_batch: int = 0
        accumulation: int = 0
        effective_batch: int = 0
        batch_change: float = 0
        lr: float = 0
        lr_scale: float = 0
        weight_decay: float = 0
        warmup_lr: float = 0
        min_lr: float = 0


def plan_of(
    recipe: Recipe,
    cluster: Cluster,
    settings: Settings,
    workloads: _core.Workloads | None = None,
    consumed: int = 0,
) -> Plan:
    """Plans from checked arguments; `consumed` counts the samples of a run under way."""
    where = msgspec.structs.astuple(cluster)
    status, bits, values = PLANNER.plan(recipe.core, where, settings, workloads, consumed)
    kind = Plan if status == "infeasible" else FeasiblePlan
    plan = kind(recipe, cluster, settings, status, reasons_in(bits), *values)
    if status != "infeasible" and workloads is None:
        return plan
    again = partial(plan_of, recipe, workloads=workloads, consumed=consumed)
    return plan.with_origin(PlanOrigin(again, workloads))


def _step(step: int) -> int:
    number = plain_whole(step)
    if type(number) is not int or not 0 <= number < 2**53:
        raise must_be("a whole number from 0", step, field="step")
    return number


@lru_cache(maxsize=4096)
def _node_of(count: int) -> Cluster:
    return Cluster(nodes=1, gpus_per_node=count)


def cluster_of(cluster: Cluster | int) -> Cluster:
    """Makes a Cluster of a number of GPUs, on one node; a Cluster stays."""
    count = cluster if type(cluster) is int else plain_whole(cluster)
    if type(count) is not int:
        if isinstance(cluster, Cluster):
            return cluster
        raise must_be("a Cluster or a number of GPUs", cluster, field="cluster")
    if not 1 <= count <= 2**31:
        legal = "at least 1" if count < 1 else "at most 2,147,483,648"
        raise must_be(legal, cluster, field="GPUs")
    return _node_of(count)


@overload
def plan(
    recipe: Recipe,
    cluster: Cluster | int,
    *,
    strict: Literal[True],
    profile: Profile | Sequence[Profile] | None = None,
    **settings: Unpack[Keywords],
) -> FeasiblePlan: ...


@overload
def plan(
    recipe: Recipe,
    cluster: Cluster | int,
    *,
    strict: bool = False,
    profile: Profile | Sequence[Profile] | None = None,
    **settings: Unpack[Keywords],
) -> Plan: ...


@with_settings
def plan(
    recipe: Recipe,
    cluster: Cluster | int,
    *,
    strict: bool = False,
    profile: Profile | Sequence[Profile] | None = None,
    **settings: Any,
) -> Plan:
    """Works out how to train a recipe on a cluster.

    Args:
        recipe: what was tuned.
        cluster: the target; a number is that many GPUs.
        strict: whether an infeasible plan is an error.
        profile: what was measured of the workload, for the columns of time, memory and money; of several the
            one for the cluster's GPU type counts.
        **settings: how to plan:

    Returns:
        A Plan. One that cannot be is a Plan too, with status "infeasible", its reasons, and `options` that
        would work; a FeasiblePlan otherwise.

    Raises:
        InputError: there is no such keyword, or a value is illegal; the message names all such fields and
            what is legal. With `strict`, the plan is infeasible.

    >>> recipe = Recipe.from_gpus(gpus=32, batch_per_gpu=8, lr=0.1, optimizer="sgd")
    >>> p = plan(recipe, 64)
    >>> p.micro_batch, p.accumulation, p.effective_batch, p.lr
    (4, 1, 256, 0.1)
    >>> plan(recipe, 128, policy="grow", rule="sqrt").lr
    0.2
    """
    if type(recipe) is not Recipe:
        refuse_no_recipe(recipe)
    if type(cluster) is not Cluster:
        cluster = cluster_of(cluster)
    workloads = workloads_of_profiles(profile)
    planned = plan_of(recipe, cluster, settings_of(settings), workloads)
    if profile is not None and Reason.OTHER_HARDWARE in planned.reasons:
        planned = _with_mute(planned, profile)
    return planned.require() if strict else planned


def _with_mute(planned: Plan, profile: Profile | Sequence[Profile]) -> Plan:
    """Remembers why the profile of the plan's GPUs, or the only one, has no times of it."""
    from isobatch.forecast.profile import as_profiles
    from isobatch.planning.refusal import why_no_times

    profiles = as_profiles(profile)
    same = [each for each in profiles if each.gpu in (None, planned.cluster.gpu)] or profiles
    mute = why_no_times(same[0], planned.recipe, planned.cluster) if len(same) == 1 else None
    return planned.with_origin(planned.origin._replace(mute=mute))


def workloads_of_profiles(profile: Profile | Sequence[Profile] | None) -> _core.Workloads | None:
    """Converts profiles to the core's form."""
    if profile is None:
        return None
    from isobatch.forecast.profile import as_profiles, workloads_of

    return workloads_of(as_profiles(profile))


def refuse_no_plan(plan: Any) -> None:
    """Refuses anything but a plan, and says how to make one of it."""
    if isinstance(plan, Plan):
        return
    if isinstance(plan, str) or hasattr(plan, "__fspath__"):
        value = f"the path {str(plan)!r}: Plan.load(path) reads one"
    elif isinstance(plan, Recipe):
        value = "a Recipe: isobatch.plan(recipe, gpus) makes one"
    else:
        todo = "isobatch.plan(recipe, gpus) makes one, Plan.load reads one"
        raise must_be("a Plan", plan, field="plan", todo=todo)
    raise InputError(f"plan must be a Plan, got {value}", field="plan")
