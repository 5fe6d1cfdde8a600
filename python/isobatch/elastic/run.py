"""`ElasticRun`: a training run that resumes on another number of GPUs and stays the same training."""

import warnings
from collections.abc import Collection, Iterable, Iterator
from typing import Any, Self

import msgspec
import numpy as np
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from isobatch.elastic import state as states
from isobatch.elastic.agreement import ALL_THERE, RankGroup, Watch, check_rendezvous
from isobatch.elastic.equal_bits import EqualBits, digest
from isobatch.elastic.loop import Loop, NoLoop, TrainerLoop
from isobatch.elastic.state import Leg, RunPlan, State
from isobatch.elastic.steps import Step, Tokens
from isobatch.errors import InputError, must_be
from isobatch.planning.handed import handed_plan
from isobatch.planning.leg import Position
from isobatch.planning.plan import Plan, plan_of
from isobatch.planning.settings import settings_of
from isobatch.recipes.cluster import Cluster
from isobatch.recipes.recipe import Recipe, refuse_no_recipe
from isobatch.training.chunks import check_chunks, chunk_settings
from isobatch.training.loader import GlobalLoader
from isobatch.training.lr import ElasticLR
from isobatch.training.shares import RunShare
from isobatch.training.world import find_world, replica_of

_MASK = (1 << 64) - 1


class ElasticRun:
    """A run, the same on any number of GPUs: same samples in each step, same learning rate, same length.

    Make it on every rank, after `init_process_group`. Given the state from a checkpoint, the run resumes at
    the checkpoint's step, planned anew for the present processes; without a state it starts at step 0.

    The run counts epochs exactly: ⌈dataset_size / batch⌉ steps (⌊…⌋ with `drop_last`), nothing padded, the
    last step weighted by the samples it has. So a recipe with another convention may have a different number
    of steps here than in its own tool.

        run = ElasticRun(recipe, split="uneven", state=checkpoint.get("isobatch"))
        loader, scheduler = run.loader(dataset), run.scheduler(optimizer)
        for step in run.steps(loader):
            for micro in step:
                with micro.sync(model):
                    (loss_of(model, micro.batch) * micro.weight).backward()
            optimizer.step(); scheduler.step(); optimizer.zero_grad()
            if run.world.rank == 0 and (run.stopping or (step.number + 1) % 500 == 0):
                save({"isobatch": run.state_dict(), ...})
            if run.stopping:
                break

    Args:
        recipe: the tuned recipe; or a plan, to take its recipe, settings and kind of cluster.
        state: the result of `state_dict`, from a checkpoint; None: a new run.
        accept: recipe fields, "seed" or "shuffle" that may differ from the checkpoint, such as
            ("duration",).
        replica: with model parallelism, the replica that this process belongs to: a number, or a
            one-dimensional DeviceMesh.
        seed: the seed of the data's order, with the epoch added; the same in all parts of a run.
        shuffle: whether each epoch has a new order; else the dataset's own is used.
        chunk: the samples of a micro-batch when gradients are added in an order independent of the ranks. The
            weights are then the same, to the last bit, on any number of ranks. The network must go through
            `wrap`.
        settings: as `isobatch.plan` takes them: policy, max_micro_batch, split, …; they may change at a
            restart.

    Raises:
        InputError: on all ranks, if any of them fails: nothing can be planned for this many GPUs, the
            checkpoint is of another recipe, dataset size or seed, or the ranks make different plans.

    >>> import isobatch as ib, torch
    >>> recipe = ib.Recipe(effective_batch=4, lr=0.1, optimizer="sgd", dataset_size=10, duration="2ep")
    >>> run = ElasticRun(recipe, max_micro_batch=2)
    >>> steps = run.steps(run.loader(range(10)))
    >>> [(step.number, step.epoch, [micro.batch.tolist() for micro in step]) for step in steps][2]
    (2, 0, [[6, 2]])
    >>> run.state_dict()["step"], run.plan.total_steps
    (6, 6)
    """

    def __init__(
        self,
        recipe: Recipe | Plan,
        *,
        state: dict[str, Any] | None = None,
        accept: Collection[str] = (),
        replica: Any = None,
        seed: int = 0,
        shuffle: bool = True,
        chunk: int | None = None,
        _watch: Watch = ALL_THERE,  # knows whether its ranks can be lost
        **settings: Any,
    ) -> None:
        self.world, self._watch = find_world(), _watch
        self._ranks = RankGroup(self.world, _watch)
        self.seed, self.shuffle, self._chunk = seed, shuffle, chunk
        self._bits = None if chunk is None else EqualBits(self._ranks)
        self._loop: NoLoop = NoLoop()
        self._agreed = False
        self._start = 0
        try:
            self._prepare(recipe, settings)
            self._resume(state, accept)
            replicas = self._run_plan.plan.data_parallel or 0
            self._progress = RunShare(
                plan=self.plan,
                course=self._run_plan.course,
                replica=replica_of(replica, self.world.rank, replicas, self.world.size),
                processes=self.world.size,
                step=self._start,
                seed=seed,
                shuffle=shuffle,
                chunk=chunk,
            )
        except InputError as error:
            if self._ranks.connected:
                self._ranks.agree(error)
            raise
        if self._ranks.connected:
            self._agree()

    @classmethod
    def from_env(cls, **options: Any) -> Self:
        """Makes the run of the plan from `isobatch exec`.

        Args:
            options: as for the class, such as state=.

        Raises:
            InputError: no plan was handed, its file is not on this host, or as for the class.

        >>> import isobatch as ib, os, tempfile, unittest.mock
        >>> recipe = ib.Recipe(effective_batch=4, lr=0.1, optimizer="sgd", dataset_size=8, duration="2ep")
        >>> path = os.path.join(tempfile.mkdtemp(), "plan.json")
        >>> ib.plan(recipe, 1).save(path)
        >>> with unittest.mock.patch.dict(os.environ, ISOBATCH_PLAN=path):
        ...     ElasticRun.from_env().plan.effective_batch
        4
        """
        plan: Plan = handed_plan()
        if plan.moves:  # The moves of a run are in its own state.
            plan = plan_of(plan.recipe, plan.cluster, plan.settings)
        return cls(plan, **options)

    # ---- the plan ----

    @property
    def plan(self) -> Plan:
        """The plan on the present processes, with the steps, length and learning rate of the whole run."""
        return self._run_plan.plan

    def plans(self, counts: Iterable[int]) -> dict[int, Plan]:
        """Plans the rest of the run at each of some GPU counts; infeasible plans are included.

        Raises:
            InputError: a count is not a whole number from 1.
        """
        counts = [*counts]
        for count in counts:
            if type(count) is not int or count < 1:
                raise must_be("a whole number from 1", count, field="counts")
        return {count: self._plan_for(self._cluster(count, None), self._done).plan for count in counts}

    @property
    def share(self) -> tuple[int, int]:
        """(this replica, replicas), to split a stream by hand if all ranks read it."""
        return self._progress.replica, self._progress.replicas

    @property
    def position(self) -> Position:
        """The run's place after its finished steps: (step, samples, epoch, offset). A stream resumes after
        `samples` samples.
        """
        return self._run_plan.course.position(self._done)

    def seed_of(self, sample: int) -> int:
        """Returns a seed for a sample's random values in the current step, the same on every replica.

        Args:
            sample: the sample's index in the dataset.

        >>> import isobatch as ib
        >>> recipe = ib.Recipe(effective_batch=4, lr=0.1, optimizer="sgd", dataset_size=8, duration="2ep")
        >>> run = ElasticRun(recipe)
        >>> seeds = {step.number: run.seed_of(3) for step in run.steps(run.loader(range(8))) for _ in step}
        >>> len(set(seeds.values())) == len(seeds) == 4
        True
        """
        current = self._loop.current
        step = self._progress.step if current is None else current.number
        words = np.random.SeedSequence([self.seed & _MASK, step, sample]).generate_state(1, np.uint64)
        return int(words[0] >> np.uint64(1))

    def _prepare(self, recipe: Recipe | Plan, settings: dict[str, Any]) -> None:
        if self._chunk is not None:
            settings = chunk_settings(self._chunk, settings)
        if isinstance(recipe, Plan):
            if recipe.moves:
                raise InputError(
                    "recipe must be a recipe, or a plan that was not moved, got one that was: pass state= to "
                    "go on"
                )
            self.recipe, self._hardware = recipe.recipe, recipe.cluster
            settings = {**recipe.settings._asdict(), **settings}
        else:
            refuse_no_recipe(recipe, "a Recipe or a Plan")
            self.recipe, self._hardware = recipe, Cluster()
        if self.recipe.convention in ("lightning", "transformers"):
            warnings.warn(
                f"convention={self.recipe.convention!r} pads by the GPUs; this run counts exactly, so that "
                "it is the same on any number of them",
                stacklevel=4,
            )
        self._settings = settings_of(settings)

    def _cluster(self, gpus: int, per_node: int | None) -> Cluster:
        per_node = per_node or gpus
        return msgspec.structs.replace(self._hardware, nodes=gpus // per_node, gpus_per_node=per_node)

    def _plan_for(self, cluster: Cluster, step: int) -> RunPlan:
        return states.plan_run(self.recipe, cluster, self._settings, self._stretches, step)

    def _resume(self, written: dict[str, Any] | None, accept: Collection[str]) -> None:
        self._stretches: tuple[Leg, ...] = ()
        if written is not None:
            before = states.read(written)
            states.check_same(before, self.recipe, self.seed, self.shuffle, accept)
            self._start, self._stretches = before.step, before.stretches
        self._run_plan = self._plan_for(self._cluster(self.world.size, self.world.per_node), self._start)
        if self._chunk is not None:
            check_chunks(self._chunk, *self._run_plan, self.world.size)
        if self.plan.status == "infeasible":
            raise InputError(self.plan.explain())
        total = self.plan.total_steps or 0
        if self._start > total:
            raise InputError(
                f"state must be of a step up to {total:,}, the run's end, got {self._start:,}", field="state"
            )
        settings = self._settings.changed()
        leg = Leg(self._start, self.world.size, self.plan.effective_batch or 0, settings)
        self._stretches = states.add_leg(self._stretches, leg)

    # ---- agreement ----

    def _facts(self) -> dict[str, Any]:
        """Returns this rank's facts for the comparison with all ranks."""
        names = "micro_batch accumulation data_parallel effective_batch lr total_steps warmup_steps"
        return {
            "step": self._start,
            **{name: getattr(self.plan, name) for name in names.split()},
            "seed": self.seed,
            "shuffle": self.shuffle,
            "chunk": self._chunk,
            **{f"recipe's {name}": value for name, value in states.recipe_fields(self.recipe).items()},
            "settings": self._settings.changed(),
            "legs": self._stretches,
        }

    def _agree(self) -> None:
        if not self._agreed:
            self._ranks.agree(self._facts())
            self._agreed = True
            if self._watch is ALL_THERE:  # `survivors` has a store of its own.
                check_rendezvous(self.world.rank)

    # ---- for the training loop ----

    def wrap(self, net: nn.Module, **options: Any) -> nn.Module:
        """Returns the network in DDP, or the network itself with a single rank or with chunk=.

        With chunk= no DDP is needed: `micro.sync(model)` collects each chunk's gradient separately and puts
        the step's sum into `.grad`.

        Args:
            options: arguments of DDP, such as device_ids.

        Raises:
            InputError: on all ranks, with chunk=, if bits would depend on the rank: batch norm in training
                mode, sparse gradients, FSDP, or ranks with unlike devices, versions or threads.
        """
        self._agree()
        if self._bits is None:
            return self._parallel(net, options)
        if options:
            raise InputError(f"wrap takes no options with chunk=, got {next(iter(options))}")
        return self._bits.wrap(net, send=self._watch is ALL_THERE)

    def _parallel(self, net: nn.Module, options: dict[str, Any]) -> nn.Module:
        return net if self.world.size == 1 else DistributedDataParallel(net, **options)

    @staticmethod
    def digest(*parts: Any) -> str:
        """Returns the SHA-256 of weights and optimizer state, such as `run.digest(net, optimizer)`.

        The ranks exchange nothing. With chunk= the digest is the same on every rank and at any number of
        ranks, so one logged line is enough to compare two runs.

        Args:
            parts: the network, its optimizer, and anything else with a `state_dict`.
        """
        return digest(*parts)

    def loader(self, dataset: Any, *, equal_passes: bool = False, **options: Any) -> GlobalLoader:
        """Makes a GlobalLoader of this replica's micro-batches, from the run's step to its end, over all
        epochs.

        Every rank reads a stream (an IterableDataset, or any object that can only be iterated) in the same
        order and keeps its part; after a restart the consumed samples are read again and dropped. An epoch is
        the stream's first dataset_size samples; without dataset_size it lasts until the stream ends.

        Args:
            dataset: a dataset as long as the recipe's dataset_size, or a stream.
            equal_passes: every replica makes the same number of passes in a step; FSDP and SyncBatchNorm need
                it if micro-batches do not divide evenly. A replica with fewer passes gets stand-ins: one
                sample, weight 0.
            options: arguments of the DataLoader, except batch_size, shuffle, sampler, batch_sampler and
                drop_last, which the plan decides; with a stream, num_workers is 0 or 1.

        Raises:
            InputError: the dataset is not as long as the recipe says, or an option is the plan's.
        """
        return GlobalLoader.of_run(self._progress, dataset, options, equal=equal_passes)

    def scheduler(self, optimizer: Optimizer, *, velocity: str | None = None) -> ElasticLR:
        """Makes a scheduler for an optimizer, at the run's step; call its `step()` once after each
        `optimizer.step()`.

        The scheduler also sets betas, eps and the weight decay if the plan changes them.

        Args:
            optimizer: one of the run's optimizers; its state may be loaded before or after.
            velocity: the name, in the optimizer's state, of a momentum that includes the learning rate and
                so changes with it; None: there is none, or the optimizer is timm's RMSpropTF.

        Raises:
            InputError: as PlanLR.
        """
        course = self._run_plan.course
        scheduler = ElasticLR(optimizer, course, self._progress.step, self._scheduled, velocity)
        schedulers = [known for known in self._progress.schedulers if known.optimizer is not optimizer]
        self._progress.schedulers = [*schedulers, scheduler]
        return scheduler

    def steps(self, loader: Iterable[Any], tokens: Tokens | None = None) -> Iterator[Step]:
        """Yields the run's remaining steps.

        During the iteration SIGTERM and SIGUSR1 set `stopping`.

        Args:
            loader: the result of `run.loader`.
            tokens: counts the tokens that a batch's mean loss averages over, as an int or a tensor of one:
                `lambda batch: (batch["labels"] != -100).sum()`. Micro-batches are then weighted by tokens
                instead of samples, counted over the whole step and all replicas. None: the loss is a mean
                over samples.

        Raises:
            InputError: a step is left unfinished, the loader ends before the run, or a step has no token on
                any rank.
        """
        self._agree()
        if self._loop.source is not loader:
            self._loop.free()
        loop = self._loop = Loop(self._progress, self._ranks, loader, tokens, self._watch, self._bits)
        return loop.steps()

    def trainer_loop(self) -> TrainerLoop:
        """Returns the run's steps for a trainer's own loop: transformers or Lightning."""
        if self._bits is not None:
            raise InputError(
                "chunk= is for a training loop of your own, and this run is a trainer's", field="chunk"
            )
        loop = self._loop
        if not isinstance(loop, TrainerLoop):
            self._agree()
            loop = self._loop = TrainerLoop(self._progress, self._ranks)
        return loop

    @property
    def stopping(self) -> bool:
        """Whether some rank was asked to stop: the same on all ranks and all through a step."""
        return self._loop.stopping

    @property
    def finished(self) -> bool:
        """Whether no step is left. A process that stops earlier should exit with a code other than 0:
        torchrun takes 0 for done.
        """
        return self._done == self.plan.total_steps

    def stop(self) -> None:
        """Asks the run to stop after one of the next steps, as a signal does; one rank is enough.

        Ranks agree on stopping every 50 ms or every ten steps, whichever comes first: with steps of 50 ms or
        more the run ends after this step or the next.
        """
        self._loop.is_asked = True

    def state_dict(self) -> dict[str, Any]:
        """Returns the run's state for a checkpoint: JSON types, the same on all ranks, under 4 kB after a
        hundred restarts.

        Inside the loop a step counts as done once the optimizer and the scheduler have stepped.

        Raises:
            InputError: the current step is unfinished: micro-batches are left, or the scheduler was not
                stepped.
        """
        if (unfinished := self._loop.unfinished) is not None:
            raise InputError(
                f"the run's state is that of whole steps, and {unfinished}: take it after scheduler.step()"
            )
        return states.write(self._state())

    def _scheduled(self, scheduler: ElasticLR) -> bool:
        """Refuses a scheduler's step in the wrong place; returns False if the run's step is void."""
        if self._watch.void:
            return False
        step = self._loop.current
        if step is None:
            where = "outside of run.steps"
        elif step.left or scheduler.last_epoch != step.number:
            where = f"{'with micro-batches left' if step.left else 'twice'} in step {step.number:,}"
        else:
            return True
        raise InputError(f"scheduler.step() was called {where}: call it once, after optimizer.step()")

    @property
    def _done(self) -> int:
        """Finished steps, including the current one if nothing of it is left to do."""
        current = self._loop.current
        return self._progress.step if current is None or self._loop.unfinished else current.number + 1

    def _state(self) -> State:
        steps = self._done
        samples = self._run_plan.course.position(steps).samples
        recipe = states.recipe_fields(self.recipe)
        return State(steps, samples, self.seed, self.shuffle, recipe, self._stretches)


def can_begin(
    recipe: Recipe | Plan, state: dict[str, Any] | None, settings: dict[str, Any], ranks: int
) -> bool:
    """Returns whether a new run has work for a number of ranks; True if nothing can be planned at any
    number: the run says why."""
    run = ElasticRun.__new__(ElasticRun)
    own = ("accept", "seed", "shuffle", "chunk")
    run._chunk, run._stretches, step = settings.get("chunk"), (), 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            run._prepare(recipe, {name: value for name, value in settings.items() if name not in own})
            if state is not None:
                before = states.read(state)
                step, run._stretches = before.step, before.stretches
            return run._plan_for(run._cluster(ranks, None), step).plan.status != "infeasible"
        except InputError:
            return True
