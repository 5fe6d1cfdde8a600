"""The micro-batches of a plan, as a distributed batch sampler."""

from collections.abc import Iterator, Sized
from typing import Any, NamedTuple, cast

import numpy as np
import torch
import torch.distributed
from numpy.typing import NDArray
from torch.utils.data import Sampler

from isobatch.errors import InputError, must_be
from isobatch.planning.leg import rest_of_epoch
from isobatch.planning.plan import Plan, refuse_no_plan
from isobatch.training.dealing import Span, passes


class MicroBatch(NamedTuple):
    """A micro-batch in its step: `weight`, the factor of its mean loss, and whether it is the replica's
    `last` in the step.
    """

    weight: float
    last: bool


class _Place(NamedTuple):
    """A place in the data: `offset` samples of the epoch are taken by all replicas, `into_step` of them by an
    unfinished step."""

    epoch: int
    offset: int
    into_step: int


class PlanSampler(Sampler[list[int]]):
    """Draws one replica's micro-batches, from any place in an epoch on, as a DataLoader's `batch_sampler`.

    All replicas use the same order of an epoch's samples, and each round of micro-batches takes the next
    samples, dealt out like cards. So the consumed samples are always the beginning of the order, and a run
    resumes on any number of GPUs from two numbers, epoch and offset. For a plain plan the micro-batches are
    those of torch's DistributedSampler, seed for seed. The end of an epoch is padded or dropped as the plan
    says (`samples_per_epoch`, `padded_samples`, `dropped_samples`). A batch ramp counts across epochs: there
    a step that is not full at the end of an epoch takes its other samples from the next epoch.

    After an epoch the sampler is at the start of the next one: `set_epoch` is only needed to go elsewhere.
    DataLoader workers prefetch, so the sampler runs ahead of the training: save its state through torchdata's
    StatefulDataLoader, which accounts for that, or resume from `plan.position(step)`.

    Args:
        dataset: the dataset; only its length is used.
        plan: the plan; a plan moved by `replan` starts where it was moved.
        rank: the index of this replica, needed with model parallelism; None: the rank in the default process
            group.
        shuffle: whether each epoch has a new order, by `seed` + epoch; else the dataset's own is used.
        seed: the seed of the order, the same on all replicas and in all parts of a run.
        epoch, offset: the place to start: after the first `offset` samples of this epoch.

    Raises:
        InputError: the plan is infeasible or has no epochs (convention "megatron"), the dataset is not as
            long as the recipe's, the process group is not the plan's, or there is no such rank or place.

    >>> import isobatch as ib
    >>> plan = ib.plan(ib.Recipe(effective_batch=8, lr=0.1, dataset_size=20), 2, max_micro_batch=2)
    >>> list(PlanSampler(range(20), plan, rank=1, shuffle=False, offset=8))
    [[9, 11], [13, 15], [17, 19]]
    """

    def __init__(
        self,
        dataset: Sized,
        plan: Plan,
        *,
        rank: int | None = None,
        shuffle: bool = True,
        seed: int = 0,
        epoch: int | None = None,
        offset: int | None = None,
    ) -> None:
        refuse_no_plan(plan)
        micro, _, replicas, *_ = plan.layout
        self._plan, self._micro, self._replicas = plan, micro, replicas
        self._size, self._shuffle, self._seed = len(dataset), shuffle, seed
        self._streams = len(plan.course.legs[-1].stages) > 1
        self._alike: dict[tuple[int, bool], list[tuple[range, MicroBatch, int]]] = {}
        self._rank = _rank(replicas) if rank is None else rank
        if type(self._rank) is not int or not 0 <= self._rank < replicas:
            raise must_be(f"0 to {replicas - 1}", rank, field="rank")
        if plan.recipe.convention == "megatron":
            raise InputError(
                "megatron has no epochs; its own samplers take the samples consumed", field="convention"
            )
        if plan.recipe.dataset_size not in (None, self._size):
            raise InputError(
                f"the dataset has {self._size:,} samples, the recipe's dataset_size is "
                f"{plan.recipe.dataset_size:,}",
                field="dataset_size",
            )
        if not self._size:
            raise InputError("the dataset is empty", field="dataset")
        if epoch is None and offset is None and plan.moves:
            epoch, offset = plan.moves[-1].epoch, plan.moves[-1].offset
        self._start = self._checked(_Place(epoch or 0, offset or 0, 0))
        self._at = self._start
        self._last_start = self._start
        self._length: tuple[_Place | None, int] = None, 0

    @property
    def seed(self) -> int:
        """The seed of the order, before adding the epoch."""
        return self._seed

    @property
    def epoch(self) -> int:
        """The epoch of the next iterator."""
        return self._start.epoch

    @property
    def offset(self) -> int:
        """The samples of this epoch already consumed."""
        return self._start.offset

    def set_epoch(self, epoch: int) -> None:
        """Goes to the start of an epoch; a sampler already in this epoch stays."""
        if epoch != self._start.epoch:
            self._start = self._at = self._checked(_Place(epoch, 0, 0))

    def __len__(self) -> int:
        """Counts the micro-batches left of the epoch for this replica."""
        if self._length[0] != self._start:
            self._length = self._start, sum(1 for _ in self._passes(self._start))
        return self._length[1]

    def __iter__(self) -> Iterator[list[int]]:
        start = self._last_start = self._at = self._start
        return self._batches(start)

    def _batches(self, start: _Place) -> Iterator[list[int]]:
        order = self._order(start.epoch)
        after = _Place(start.epoch + 1, 0, 0)
        for part, _, then in self._passes(start):
            places = np.arange(part.start, part.stop, part.step)
            self._at = then
            if self._streams:
                after = then
            if part.stop > self._size and self._streams:
                yield self._of_later_epochs(start.epoch, places)
                continue
            if part.stop > self._size:  # Padding repeats samples from the epoch's beginning.
                places %= self._size
            yield (places if order is None else order[places]).tolist()
        self._start = self._at = after

    def _of_later_epochs(self, epoch: int, places: NDArray[np.int64]) -> list[int]:
        """Returns the samples at places of an epoch or, past its end, of the following epochs."""
        samples = []
        for later, place in zip(*(part.tolist() for part in divmod(places, self._size)), strict=True):
            order = self._order(epoch + later)
            samples.append(int(place if order is None else order[place]))
        return samples

    def weights(self) -> Iterator[MicroBatch]:
        """Yields a MicroBatch for each micro-batch of the last iterator: its weight, and when to step.

        The weight is n·replicas/N, with n samples in the micro-batch and N in its step. DDP's average of the
        gradients over the replicas is then the gradient of the step's mean loss, even in an epoch's smaller
        last step. A replica without samples in such a step gets one sample with weight 0, since all replicas
        must take part.

            for batch, (weight, last) in zip(loader, sampler.weights()):
                with contextlib.nullcontext() if last else model.no_sync():
                    (loss(model, batch) * weight).backward()
                if last:
                    optimizer.step(); scheduler.step(); optimizer.zero_grad()
        """
        for _, micro_batch, _ in self._passes(self._last_start):
            yield micro_batch

    def state_dict(self) -> dict[str, Any]:
        """Returns the place in the data; after a whole step it is the same for all replicas and any plan."""
        return {**self._at._asdict(), "seed": self._seed, "shuffle": self._shuffle}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes to the place of a `state_dict`, on any number of GPUs and with any batch.

        Raises:
            InputError: the order differs (seed, shuffle), or the place is in the middle of a step that this
                plan cannot continue.
        """
        for name, own in (("seed", self._seed), ("shuffle", self._shuffle)):
            if state[name] != own:
                raise InputError(
                    f"the state was saved with {state[name]!r}, this sampler has {own!r}", field=name
                )
        self._start = self._at = self._checked(_Place(state["epoch"], state["offset"], state["into_step"]))

    def _checked(self, place: _Place) -> _Place:
        epoch, offset, into = place
        if type(epoch) is not int or epoch < 0:
            raise must_be("a whole number of at least 0", epoch, field="epoch")
        # A padded epoch ends past the dataset's size, and so does a step that continues in the next epoch.
        past = self._plan.layout.effective_batch if self._streams else self._micro * self._replicas
        if type(offset) is not int or not 0 <= offset <= self._size + past:
            raise must_be(f"0 to {self._size}", offset, field="offset")
        if into and not any(
            then.offset == offset for *_, then in self._passes(_Place(epoch, offset - into, 0))
        ):
            raise InputError(
                "the state is of the middle of a step, and this plan's steps begin elsewhere: save after a "
                "whole step",
                field="offset",
            )
        return place

    def _order(self, epoch: int) -> NDArray[np.int64] | None:
        if not self._shuffle:
            return None
        generator = torch.Generator()
        generator.manual_seed(self._seed + epoch)
        return cast(NDArray[np.int64], torch.randperm(self._size, generator=generator).numpy())

    def _passes(self, place: _Place) -> Iterator[tuple[range, MicroBatch, _Place]]:
        """Yields this replica's passes from a place to the end of the epoch, each with the place after it."""
        epoch, offset, into = place
        start = offset - into
        end = self._size if self._streams else start + rest_of_epoch(self._plan, self._size, start).served
        while start < end:
            full = self._plan.course.batch_at(epoch * self._size + start)
            batch = full if self._streams else min(full, end - start)
            for places, micro_batch, after in self._step(batch, full=batch == full):
                if start + after > offset:
                    part = range(start + places.start, start + places.stop, places.step)
                    yield (
                        part,
                        micro_batch,
                        self._after(epoch, start + after, 0 if micro_batch.last else after),
                    )
            start += batch

    def _after(self, epoch: int, offset: int, into: int) -> _Place:
        if self._streams and not into:
            later, offset = divmod(offset, self._size)
            epoch += later
        return _Place(epoch, offset, into)

    def _step(self, batch: int, *, full: bool) -> list[tuple[range, MicroBatch, int]]:
        """Returns the passes of a step from sample 0 on, computed once for all steps of a size."""
        if (batch, full) not in self._alike:
            step = Span(0, 0, 0, batch, full, last_of_epoch=False)
            self._alike[batch, full] = [
                (
                    micro_batch.places,
                    MicroBatch(micro_batch.samples * self._replicas / batch, micro_batch.last),
                    batch if micro_batch.last else micro_batch.stop,
                )
                for micro_batch in passes(self._plan, step, self._rank)
            ]
        return self._alike[batch, full]


def _rank(replicas: int) -> int:
    distributed = torch.distributed
    if not (distributed.is_available() and distributed.is_initialized()):
        if replicas == 1:
            return 0
        raise InputError(
            f"the plan has {replicas} replicas, and there is no process group: start the script by torchrun "
            f"--nproc-per-node {replicas} and call torch.distributed.init_process_group first, or pass which "
            "replica this is",
            field="rank",
        )
    if distributed.get_world_size() != replicas:
        size = distributed.get_world_size()
        raise InputError(
            f"the process group has {size} processes, the plan {replicas} replicas: plan for {size} "
            f"(isobatch.plan(recipe, {size})), or use ElasticRun, which plans for as many as there are; with "
            "model parallelism, pass which replica this is",
            field="rank",
        )
    return distributed.get_rank()
