"""A crew: the ranks that train together until one is lost or joins, and the run among them."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from copy import deepcopy
from datetime import timedelta
from typing import Any, Self

import torch
from torch import nn

from isobatch.elastic import state as states
from isobatch.elastic.agreement import Watch
from isobatch.elastic.collectives import CPU_BACKEND
from isobatch.elastic.drift import Drift
from isobatch.elastic.group import CrewGroup, LeftOut, connecting, is_loss
from isobatch.elastic.heartbeat import Heartbeat
from isobatch.elastic.loop import Loop, NoLoop
from isobatch.elastic.membership import Membership
from isobatch.elastic.run import ElasticRun
from isobatch.elastic.store import StoreGone
from isobatch.elastic.surroundings import Surroundings
from isobatch.elastic.training import TrainingState
from isobatch.errors import InputError, first_line
from isobatch.planning.plan import Plan
from isobatch.recipes.recipe import Recipe
from isobatch.training.loader import GlobalLoader
from isobatch.training.lr import ElasticLR
from isobatch.training.reading import is_death


class Crew(Watch):
    """The ranks training together until one is lost or joins.

    Attributes:
        number: the crew's number, from 0.
        rank, size: this process's rank in the crew, and the number of ranks.
        run: an ElasticRun, already at its step.
        scheduler: the run's scheduler, for the optimizer.
        lost: whether a rank was lost; the next crew goes on.
        void: whether the current step was lost before it could be applied.
    """

    def __init__(
        self,
        members: Membership,
        training: TrainingState,
        group: CrewGroup,
        pulse: Heartbeat,
        surroundings: Surroundings,
        where: Callable[[], str],
    ) -> None:
        self._members, self._training, self._group, self._pulse = members, training, group, pulse
        self._where = where
        self.number, self.size = members.number, len(members.table.seats)
        self.rank = members.table.ids.index(members.id)
        self.lost, self.void, self.applied, self.why = False, False, 0, ""
        self._entered = False
        self._passes = _Guard(self, self._make_void)  # One guard for all passes.
        self.backend, self.timeout = CPU_BACKEND, timedelta(seconds=members.timeout)
        self.connecting = connecting(members.lease)
        self._surroundings = surroundings
        self._drift: Drift | None = None
        self._begun: int | None = None
        self._extras: dict[str, Any] | None = None
        self._looks = 2  # Checks of the extras' state: parts made lazily are in it by the second step.
        self.run: CrewRun
        self.scheduler: ElasticLR

    def wrap(self, net: nn.Module, **options: Any) -> nn.Module:
        """Returns the network in a new DDP over this crew.

        With a single rank, with `shard`, or with chunk= it returns the network itself.

        Args:
            options: arguments of DDP, such as device_ids.

        Raises:
            InputError: options for a sharded network; or static_graph=True, if a rank may make more than one
                pass in a step.
        """
        if options.get("static_graph"):
            self.run.check_one_pass()
        if self._training.shards > 1:
            if options:
                raise InputError(f"wrap takes no options where shard is given, got {next(iter(options))}")
            return net
        with self.guard():
            return self.run.wrap(net, **options)
        return net

    def __enter__(self) -> Self:
        self._entered = True
        self._group.hide_hint()
        return self

    def begin_step(self, step: int) -> None:
        """Notes buffers, modes and hooks, and compares the weights of all ranks now and then."""
        self._surroundings.note()
        self._begun = step
        if self.size > 1:
            if self._drift is None:
                names = [seat.name for seat in self._members.table.seats]
                self._drift = Drift(names, self._training.shards, self.run.group)
            self._drift.step(step, [*self._training.net.parameters()])

    def finish(self, step: int) -> None:
        """Compares the weights of all ranks a last time."""
        if self._drift is not None:
            self._drift.finish(step, [*self._training.net.parameters()])

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> bool:
        return error is not None and self._is_loss(error)

    @property
    def is_awaited(self) -> bool:  # type: ignore[override]
        """Whether ranks wait to join."""
        return self._pulse.is_awaited

    def guard(self) -> AbstractContextManager[Any]:
        """Catches a lost rank's errors and ends the loop; inside `with crew:` they pass through."""
        return _Guard(self, lambda: None)

    def pass_guard(self) -> AbstractContextManager[Any]:
        """Catches a lost rank's errors in a pass; the rest of the step then changes nothing."""
        return self._passes

    def _make_void(self) -> None:
        self.void = True
        self._extras = deepcopy(self._training.extras())
        for group in self._training.optimizer.param_groups:
            for parameter in group["params"]:
                if parameter.requires_grad:  # For code that reads gradients before the optimizer's step.
                    parameter.grad = torch.zeros_like(parameter)

    def commit(self, step: int) -> None:
        """Waits until all ranks are about to apply a step, if each has only a shard. A loss may leave some
        ranks with the step applied and others without it: `settle` resolves that."""
        if self._training.shards == 1:
            return
        if self._looks:
            self._looks -= 1
            self._training.extras()
        if self._training.device.type == "cuda":
            torch.cuda.synchronize(self._training.device)
        with self.pass_guard():
            try:
                self._group.meet()
            except RuntimeError:
                self._training.prepare(step)
                raise

    def _is_loss(self, error: BaseException) -> bool:
        """Notes an error of a lost rank, or of a dead worker of the script's loader, and tells the others;
        returns False for any other error."""
        if not (is_loss(error) or is_death(error)):
            return False
        if not self.lost:
            self.lost = True
            self.why = first_line(error)
            with suppress(StoreGone):  # Then there can be no next crew, and `survivors` says so.
                self._members.say_over(self.why)
        return True

    @contextmanager
    def located(self) -> Iterator[None]:
        """Adds to an InputError the run's last step and its last saved state."""
        try:
            yield
        except InputError as error:
            raise InputError(f"{error}; {self._where()}", field=error.field) from None

    def check_current(self) -> None:
        """Raises LeftOut if a later crew has formed without this process."""
        with self.located():
            current = self._members.is_current()
        if not current:
            self.lost = True
            name = self._members.name
            raise LeftOut(f"{name} was left out: the run went on without it after crew {self.number}")

    def close(self) -> None:
        """Ends the crew: puts back extras, hooks and buffers of a lost step, and clears gradients."""
        if self._extras is not None:
            self._training.read_extras(self._extras)
        if self.lost:
            self._surroundings.restore_hooks()
            if self._begun is None or self.applied <= self._begun:
                self._surroundings.restore_buffers()
        self._drift = None
        self._training.optimizer.zero_grad()
        self._pulse.exit()


class _Guard(AbstractContextManager[Any]):
    """Catches errors of a crew's lost ranks, and then calls a function."""

    def __init__(self, crew: Crew, then: Callable[[], None]) -> None:
        self._crew, self._then = crew, then

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> bool:
        if not isinstance(error, Exception) or not self._crew._is_loss(error) or self._crew._entered:
            return False
        self._then()
        return True


class CrewRun(ElasticRun):
    """An ElasticRun among ranks of a crew."""

    def __init__(self, crew: Crew, members: Membership, recipe: Recipe | Plan, **settings: Any) -> None:
        self._crew, self._members, self._is_asked = crew, members, False
        super().__init__(recipe, _watch=crew, **settings)

    def _parallel(self, net: nn.Module, options: dict[str, Any]) -> nn.Module:
        return self._crew._group.wrap(net, **options)

    @property
    def stopping(self) -> bool:
        """Whether some rank was asked to stop."""
        with self._crew.guard():
            return super().stopping
        return False

    def state_dict(self) -> dict[str, Any]:
        """Returns the run's state, and raises LeftOut if the run went on; a void step does not count."""
        self._crew.check_current()
        written = self.written() if self._crew.void else super().state_dict()
        self._members.note_saved(written["step"])
        return written

    def written(self) -> dict[str, Any]:
        """Returns the run's state after its last whole step."""
        return states.write(self._state())

    @property
    def group(self) -> Any:
        """The run's own group of all ranks, on CPUs."""
        return self._ranks.group()

    def check_one_pass(self) -> None:
        """Refuses a run with more than one pass of a rank in a step, now or with fewer ranks."""
        counts = range(self._members.least(self.world.size), self.world.size + 1)
        passes = max(plan.accumulation or 1 for plan in self.plans(counts).values())
        if max(passes, self._progress.rounds) > 1:
            raise InputError(
                f"static_graph must be False where ranks make more than one pass in a step, up to {passes} "
                "here: DDP would not synchronize all of them; leave it out, or raise max_micro_batch until "
                "each rank makes one pass",
                field="static_graph",
            )

    @property
    def begun(self) -> bool:
        """Whether the script asked for the run's steps."""
        return isinstance(self._loop, Loop)

    @property
    def joining(self) -> bool:
        """Whether the loop ended because ranks wait to join."""
        return self._loop.joining

    @property
    def under_way(self) -> int | None:
        """The number of the loop's current step; None outside of a step."""
        return None if self._loop.current is None else self._loop.current.number

    @property
    def done(self) -> int:
        """The number of finished steps, as the loop counts them."""
        return self._done

    def ask(self) -> None:
        """Asks the run to stop after its first step in this crew."""
        self._is_asked = True

    def loader(self, dataset: Any, *, equal_passes: bool = False, **options: Any) -> GlobalLoader:
        """Makes the loader, but waits for workers no longer than the other ranks wait for this one."""
        if options.get("num_workers"):
            options = {"timeout": self._members.timeout, **options}
        return super().loader(dataset, equal_passes=equal_passes, **options)

    def steps(self, loader: Any, tokens: Any = None) -> Iterator[Any]:
        """Yields the steps, as ElasticRun does, until a rank is lost or joins."""
        steps = super().steps(loader, tokens)
        if self._is_asked:
            self.stop()

        def located() -> Iterator[Any]:
            with self._crew.located():
                yield from steps

        return located()

    def count(self, applied: int) -> None:
        """Counts a step applied by the optimizer, but not counted by the loop."""
        if applied > self._done:
            self._progress.step = applied
            self._loop = NoLoop()

    def free(self) -> None:
        """Frees the run's hold on the crew's group."""
        self._loop.free()
        self._ranks.free()
        self._loop, self._bits = NoLoop(), None
