"""`survivors`: a run that outlives its ranks. After a loss the remaining processes form a new group and go
on with the same step.
"""

import atexit
import os
import socket
import sys
from collections.abc import Callable, Collection, Generator, Iterator, Mapping
from contextlib import closing, suppress
from functools import cache, partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.optim import Optimizer

from isobatch._core import __version__
from isobatch.elastic import parcels
from isobatch.elastic import state as states
from isobatch.elastic.agreement import Signals
from isobatch.elastic.crew import Crew, CrewRun
from isobatch.elastic.group import CrewGroup, LeftOut, is_loss
from isobatch.elastic.healing import NoReplica, heal
from isobatch.elastic.heartbeat import Heartbeat
from isobatch.elastic.membership import Membership
from isobatch.elastic.messages import HALF, NEW, OUT, Circle, Held, Roster, Seal, key_for
from isobatch.elastic.run import can_begin
from isobatch.elastic.server import is_local
from isobatch.elastic.sharding import ShardedState, check_shards
from isobatch.elastic.store import Store, StoreGone, host_and_port
from isobatch.elastic.surroundings import Surroundings
from isobatch.elastic.training import TrainingState, check_whole, watch_steps
from isobatch.errors import InputError, first_line, must_be
from isobatch.planning.plan import Plan
from isobatch.recipes.recipe import Recipe
from isobatch.system import require_posix

_STORE_SECONDS = 60.0
"""Seconds to wait for the store: on a busy host it may answer late and still be alive. If its process died,
the connection fails at once.
"""
_FRUITLESS = 5
"""How often the same ranks may form a crew without finishing a step."""
_FRUITLESS_FOR_NEWCOMERS = 2
"""How often a rank without the run's state may be in such a crew: the others go on without it."""


def survivors(
    recipe: Recipe | Plan,
    net: nn.Module,
    optimizer: Optimizer,
    *,
    store: str | None = None,
    ranks: int | None = None,
    min_ranks: int | None = None,
    shard: Callable[[nn.Module, Any], Any] | None = None,
    shards: int = 1,
    name: str | None = None,
    run: str = "run",
    state: dict[str, Any] | None = None,
    extra: Mapping[str, Any] | None = None,
    lease: float = 10.0,
    timeout: float = 600.0,
    accept: Collection[str] = (),
    **settings: Any,
) -> Iterator[Crew]:
    """Trains a run through the loss and the return of ranks; yields each crew, the ranks training together
    until one is lost or joins.

    No process restarts and no file is read, as every rank of a data-parallel training has the whole state.
    The interrupted step is split again over the remaining ranks, with the same samples, learning rate and
    weights.

        for crew in survivors(recipe, net, optimizer, store="node0:29400", ranks=4, min_ranks=1,
        split="uneven"):
            model = crew.wrap(net)
            for step in crew.run.steps(crew.run.loader(dataset)):
                for micro in step:
                    with micro.sync(model):
                        (loss_of(model, micro.batch) * micro.weight).backward()
                optimizer.step(); crew.scheduler.step(); optimizer.zero_grad()

    If a rank is lost in this loop, the body still runs to its end but changes nothing: the optimizer and the
    scheduler do not step, and `extra` is put back. If the body does more, above all collectives of its own,
    write `with crew:` around it: a loss then leaves the body at once.

    Args:
        recipe: as in ElasticRun.
        net: the network, on its device; only its values may differ between the ranks.
        optimizer: the one optimizer of all of net's parameters.
        store: "host:port" of `isobatch store`; None: MASTER_ADDR and MASTER_PORT.
        ranks: how many ranks the first crew waits for; None: WORLD_SIZE.
        min_ranks: the fewest ranks that go on; None: more than half of the previous crew.
        shard: for HSDP: a function that shards net over a mesh of (replicate, shard), such as
            `lambda net, mesh: fully_shard(net, mesh=mesh)`; called for each crew.
        shards: the ranks that share one replica. If one of them is lost, the whole replica pauses until
            another rank takes the lost one's place.
        name: this rank's name; None: the host and LOCAL_RANK.
        run: the run's name; a store may have several runs.
        state: from a checkpoint, the result of `crew.run.state_dict()`; load net and optimizer yourself
            before.
        extra: other objects that a step changes, by name: {"ema": ema, "scaler": scaler}; each has
            state_dict and load_state_dict.
        lease: seconds of silence after which a paused or cut-off rank is lost. A rank that died is noticed at
            once.
        timeout: seconds that ranks wait for one another, in a collective or for a crew; must be longer than
            a rank is ever busy alone.
        accept, settings: as in ElasticRun, with seed, shuffle and chunk.

    The run's key is in ISOBATCH_RUN_KEY, or in a file named by ISOBATCH_RUN_KEY_FILE; a rank with another key
    is never admitted. A store on loopback needs no key.

    Raises:
        InputError: too few ranks are left, the store is gone, the key is missing or wrong, the state has
            more than numbers, texts and tensors, or this process belongs to another run; later, as
            ElasticRun.
        LeftOut: the run went on, or ended, without this process.
    """
    require_posix("survivors")
    address = store or _variables("store", "MASTER_ADDR", "MASTER_PORT")
    count = ranks if ranks is not None else int(_variables("ranks", "WORLD_SIZE"))
    for field, value in ("ranks", count), ("min_ranks", 1 if min_ranks is None else min_ranks):
        if type(value) is not int or value < 1:
            raise must_be("a whole number from 1", value, field=field)
    if min_ranks is not None and min_ranks > count:
        raise must_be(f"at most ranks, {count}", min_ranks, field="min_ranks")
    check_shards(shard, shards, count, min_ranks)
    if shard is not None and settings.get("chunk") is not None:
        raise InputError("chunk= needs the whole model on every rank: leave shard= out", field="chunk")
    for field, seconds in ("lease", lease), ("timeout", timeout):
        if not seconds > 0:
            raise must_be("above 0 seconds", seconds, field=field)
    if dist.is_initialized():
        raise InputError(
            "a process group is there already, and survivors forms one for each crew: call it before "
            "init_process_group; inside of a Trainer, Lightning or Ray Train, which form their own, use "
            "ElasticRun and its checkpoints"
        )
    check_whole(net, optimizer)
    name = name or f"{socket.gethostname()}/{os.environ.get('LOCAL_RANK', os.getpid())}"
    seal = Seal(key_for(address, is_local=is_local(host_and_port(address)[0])), run)
    connection = Store(address, max(lease, _STORE_SECONDS), seal)
    connection.check_key()
    whole = TrainingState(net, optimizer, extra or {})
    training = whole if shard is None else ShardedState(net, optimizer, extra or {}, shard, shards)
    members = Membership(
        connection, name, ranks=count, min_ranks=min_ranks, lease=lease, timeout=timeout, shards=shards
    )
    return _Crews(_Survivors(members, training, recipe, state, {"accept": accept, **settings}).crews())


def _variables(field: str, *names: str) -> str:
    missing = [name for name in names if name not in os.environ]
    if missing:
        raise InputError(f"{field} is missing: pass {field}=, or set {' and '.join(missing)}", field=field)
    return ":".join(os.environ[name] for name in names)


class _Crews(Iterator[Crew]):
    """Iterates over the crews of a run; leaving the loop, also by an error, ends this process's part in it.

    A bare generator that the script has bound to a name would stay open while the error is handled, and the
    other ranks would wait.
    """

    def __init__(self, crews: Generator[Crew]) -> None:
        self._crews = crews

    def __next__(self) -> Crew:
        return next(self._crews)

    def __iter__(self) -> Iterator[Crew]:
        with closing(self._crews):
            yield from self._crews


class _Survivors:
    """A process's way through the crews of a run."""

    def __init__(
        self,
        members: Membership,
        training: TrainingState,
        recipe: Recipe | Plan,
        state: dict[str, Any] | None,
        settings: dict[str, Any],
    ) -> None:
        self._members, self._training, self._recipe, self._settings = members, training, recipe, settings
        members.fits = cache(partial(can_begin, recipe, state, settings))
        self._state, members.saved = state, None if state is None else state.get("step")
        # Whether this rank has the run's state, and its vote if it does not.
        self._holds, self._without = False, NEW
        self._group = CrewGroup()
        self._pulse = Heartbeat(members, self._group)
        self._crew: Crew | None = None
        self._surroundings = Surroundings()
        # The ranks of the last crew and its step, how often they formed in it, and why the last one was lost.
        self._formed_before: tuple[list[str], int] = [], -1
        self._times, self._why = 0, "steps are lost"

    def crews(self) -> Generator[Crew]:
        """Yields the crews until the run ends."""
        members = self._members
        try:
            members.compare(self._facts())
            try:
                parcels.write_tree(self._training.tree())
            except InputError as error:  # On all ranks, and before the first step.
                members.refuse(str(error))
                raise
        except InputError:
            members.leave()
            raise
        atexit.register(members.leave)
        self._pulse.start()
        stop_watching = watch_steps(self._training.optimizer, self._apply_step)
        with Signals() as self._signals:
            try:
                while True:
                    yield (crew := self._formed())
                    if self._is_over(crew):
                        return
            except InputError as error:
                raise InputError(f"{error}; {self._where()}", field=error.field) from None
            finally:
                stop_watching()
                self._pulse.end()
                self._pulse.exit()
                if self._crew is not None and hasattr(self._crew, "run"):
                    self._crew.run.free()
                self._group.free()
                members.leave()
                atexit.unregister(members.leave)

    # ---- between crews ----

    @property
    def _step(self) -> int:
        return int((self._state or {}).get("step", 0))

    def _formed(self) -> Crew:
        while True:
            vote = HALF if self._training.torn else self._step if self._holds else self._without
            table = self._members.form(vote, self._without, lambda: self._signals.received)
            if table is None:
                # A loop that just ended would look complete, and code after it would save weights that are
                # not the run's.
                todo = "" if self._members.number >= 0 else "; a new run needs a new store, or run=NAME"
                why = f"the run ended without {self._members.name}"
                if self._signals.received:
                    why, todo = f"{self._members.name} was asked to stop while in no crew", ""
                raise LeftOut(f"{why}: its weights are not the run's{todo}")
            self._take_seat(table)
            try:
                self._crew = self._made(table)
                return self._crew
            except RuntimeError as error:
                if not is_loss(error):
                    raise
                self._why = first_line(error)
                with suppress(StoreGone):  # `form` says so.
                    self._members.say_over(self._why)
                self._pulse.exit()
                self._let_go()

    def _let_go(self) -> None:
        """Frees a crew's group and the training's hold on it."""
        self._training.fold()
        self._group.free()

    def _take_seat(self, table: Roster) -> None:
        """Notes whether this rank has the run's state: all do when a run begins, a newcomer once healed."""
        vote = table.seats[table.ids.index(self._members.id)].vote
        begins = all(seat.vote < 0 for seat in table.seats)
        self._holds = vote >= 0 or (vote == NEW and begins)
        if self._holds:
            self._without = OUT
        first = next((seat.id for seat in table.seats if seat.vote == NEW), None)
        if begins and table.number > 0 and self._state is None and self._members.id == first:
            why = "all who held the state were lost"
            print(f"isobatch: the run begins anew at step 0: {why}", file=sys.stderr, flush=True)

    def _made(self, table: Roster) -> Crew:
        members = self._members
        self._refuse_standstill(table.ids)
        crew = Crew(members, self._training, self._group, self._pulse, self._surroundings, self._where)
        self._group.begin()
        self._pulse.enter(table)
        self._group.form(
            members.store,
            table,
            crew.rank,
            cuda=self._training.device.type == "cuda",
            lease=members.lease,
            timeout=members.timeout,
        )
        self._training.unfold(members.lease, members.timeout)
        self._surroundings.enter(self._training.net)
        vote = table.seats[crew.rank].vote
        own = Held(OUT if vote <= OUT else self._step, vote >= 0, self._training.checksum(), self._state)
        # `settle` and `heal` change the weights, and a rank may be lost after either: the next vote must name
        # the step that the weights are at.
        circle = Circle(members.store.seal, table)
        own = self._training.settle(own, circle)
        if own.step != OUT:
            self._state = own.run
        try:
            best = heal(self._training, own, members.lease, circle)
        except NoReplica as error:
            members.end_all(str(error))
            raise
        self._state = best.run
        self._holds, self._without = True, OUT
        accept = {} if not best.trained else {"accept": ()}
        crew.run = CrewRun(crew, members, self._recipe, **{**self._settings, **accept, "state": best.run})
        self._group.ready()
        self._state = crew.run.written()
        crew.applied = self._step
        members.fits = lambda count: crew.run.plans([count])[count].status != "infeasible"
        if not best.trained:
            self._check_counts(crew)
        crew.scheduler = crew.run.scheduler(self._training.optimizer)
        if self._signals.received:
            crew.run.ask()
        return crew

    def _is_over(self, crew: Crew) -> bool:
        """Closes a crew; returns whether the run ended with it."""
        run = crew.run
        if not (run.begun or crew.lost):
            raise InputError("the loop took no steps: iterate over crew.run.steps(crew.run.loader(dataset))")
        goes_on = crew.lost or (run.joining and not run.finished)
        # If an error after optimizer.step() left the loop, nobody knows whether the body's rest was done.
        if crew.applied > run.done:
            run.count(crew.applied)
            self._training.torn = bool(self._training.extra)
        self._state = run.written()
        if crew.lost:
            self._why = crew.why
        over = not goes_on and self._members.end()
        run.free()
        crew.close()
        if over:
            self._group.free()
        else:
            self._let_go()
        return over

    def _refuse_standstill(self, ids: list[str]) -> None:
        """Refuses a further crew of the same ranks where the crews before it finished no step."""
        self._times = self._times + 1 if self._formed_before == (ids, self._step) else 1
        self._formed_before = ids, self._step
        if self._times > _FRUITLESS_FOR_NEWCOMERS and not self._holds:
            raise InputError(
                f"{self._members.name} could not join: {_FRUITLESS_FOR_NEWCOMERS} crews with it finished no "
                f"step, as its network fails ({self._why}); the run goes on without it"
            )
        if self._times > _FRUITLESS:
            raise InputError(
                f"the same {len(ids)} ranks formed {_FRUITLESS} times and finished no step, as their network "
                f"fails ({self._why}); where hosts have several, GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME "
                "name the one to use"
            )

    def _check_counts(self, crew: Crew) -> None:
        """Refuses settings without a plan for each smaller crew after a loss."""
        least, shards = self._members.least(crew.size), self._members.shards
        for count, plan in crew.run.plans(range(crew.size - shards, least - 1, -shards)).items():
            if plan.status == "infeasible":
                raise InputError(
                    f"the run may have to go on with {count} of its {crew.size} ranks, and cannot: "
                    f"{plan.explain()}"
                )

    # ---- the optimizer's steps, and facts ----

    def _apply_step(self, step: Callable[[], Any]) -> Any:
        """Takes a step of the optimizer and counts it; skips a void step."""
        crew = self._crew
        if crew is None:
            return step()
        if not crew.void and crew.run.under_way is not None:
            crew.commit(crew.run.under_way + 1)
        if crew.void:
            return None
        self._training.torn = True
        result = step()
        self._training.torn = False
        if (number := crew.run.under_way) is not None:
            crew.applied = number + 1
        return result

    def _facts(self) -> dict[str, Any]:
        recipe = self._recipe.recipe if isinstance(self._recipe, Plan) else self._recipe
        settings = {name: str(value) for name, value in self._settings.items() if name != "accept"}
        return {
            "isobatch": __version__,
            "torch": str(torch.__version__),
            **{f"recipe's {name}": value for name, value in states.recipe_fields(recipe).items()},
            "settings": settings,
            **self._training.description(),
        }

    def _where(self) -> str:
        step = self._step if self._crew is None else max(self._step, self._crew.applied)
        saved = self._members.last_saved()
        last = "state_dict() was never called"
        if saved is not None:
            last = f"the last state_dict() is of step {saved:,}"
        return f"the run ends here at step {step:,}, and {last}"
