"""`GlobalLoader`: steps with the same samples at every number of ranks, for any loop or trainer."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, Self, TypeAlias

from isobatch.errors import InputError, must_be, raise_all
from isobatch.planning.plan import Plan, plan
from isobatch.recipes.recipe import Recipe
from isobatch.training.dealing import Span
from isobatch.training.reading import LoaderReader
from isobatch.training.shares import PassesOf, ReplicaShare, data_loader, is_stream
from isobatch.training.workers import RankLoader
from isobatch.training.world import find_world
from isobatch.words import shown

Join: TypeAlias = Callable[[Any, float], Any]
"""Puts a batch and its factor together; the factor of a stand-in is 0."""

_SCHEMA = "isobatch.loader/1"
_PLACE = ("epoch", "offset")
_SAME = ("seed", "batch", "dataset_size")


class GlobalLoader:
    """Loads this rank's micro-batches; a step has the same samples at every number of ranks.

    Like a DataLoader's, each iteration runs to the end of the epoch; it starts at the loader's place. A
    stream without `dataset_size` is read without end. The state counts whole steps: after a resume, a step
    begins again unless its last micro-batch was taken. Workers may run ahead; a trainer that itself reads
    ahead must save the state of the step it computes, not of the step it reads.

        loader = GlobalLoader(dataset, 256, max_micro_batch=8)
        if checkpoint:
            loader.load_state_dict(checkpoint["loader"])
        for batch in loader:
            (loss_of(model, batch) * loader.weight).backward()
            if loader.last:
                optimizer.step(); optimizer.zero_grad()

    It is not a DataLoader, so Accelerate's `prepare` and the like leave it alone: the data is already split
    over the ranks.

    Attributes:
        plan: how a step is split over the ranks.
        dataset: the dataset or stream.
        batch_sampler, num_workers: those of the DataLoader inside.
        passes: with `equal_passes`, the micro-batches of a rank in each step; else 1.
        equal: whether all ranks make the same number of passes in a step.
        weight: the factor for the present micro-batch's mean loss, so that the mean of the ranks' gradients
            is the gradient of the step's mean loss.
        last: whether the present micro-batch is this rank's last in its step.
        stand_in: whether the present micro-batch only keeps the rank in the others' collectives: one sample,
            weight 0.

    Args:
        dataset: a map-style dataset, or a stream: an IterableDataset, or any object that can only be
            iterated, in the same order on every rank.
        batch: samples per step, over all ranks.
        rank, ranks: this process's rank and the number of ranks; None: from the process group, else from
            torchrun's or Slurm's variables, else 0 of 1.
        max_micro_batch: the most samples of a micro-batch; None: a rank's whole share of a step.
        split: "uneven" or "ragged" if the batch does not divide, as in `isobatch.plan`.
        seed: the seed of the order, with the epoch added.
        shuffle: whether each epoch has a new order; else the dataset's own is used, as always with a stream.
        drop_last: whether an epoch ends with its last full step.
        dataset_size: for a stream: the samples of an epoch.
        equal_passes: every rank makes the same number of passes in every step, so that a trainer can
            accumulate `passes` micro-batches; a rank with fewer gets stand-ins.
        options: arguments of the DataLoader: num_workers, persistent_workers, pin_memory, collate_fn, …; with
            a stream, num_workers is 0 or 1.

    Raises:
        InputError: the batch cannot be split over the ranks, or an argument is not valid.

    >>> loader = GlobalLoader(range(10), 4, rank=1, ranks=2, max_micro_batch=1, shuffle=False)
    >>> [(batch.tolist(), loader.weight, loader.last) for batch in loader][:3]
    [([1], 0.5, False), ([3], 0.5, True), ([5], 0.5, False)]
    >>> loader.state_dict()["epoch"]
    1
    """

    def __init__(
        self,
        dataset: Any,
        batch: int,
        *,
        rank: int | None = None,
        ranks: int | None = None,
        max_micro_batch: int | None = None,
        split: Literal["even", "uneven", "ragged"] = "even",
        seed: int = 0,
        shuffle: bool = True,
        drop_last: bool = False,
        dataset_size: int | None = None,
        equal_passes: bool = False,
        **options: Any,
    ) -> None:
        world = find_world()
        ranks = world.size if ranks is None else ranks
        rank = world.rank if rank is None else rank
        for name, value, least in (("batch", batch, 1), ("ranks", ranks, 1), ("seed", seed, 0)):
            if type(value) is not int or value < least:
                raise must_be(f"a whole number from {least}", value, field=name)
        if type(rank) is not int or not 0 <= rank < ranks:
            raise must_be(f"0 to {ranks - 1}", rank, field="rank")
        if split not in ("even", "uneven", "ragged"):
            raise must_be("even, uneven or ragged", split, field="split")
        size = dataset_size
        if not is_stream(dataset):
            size = len(dataset)
            if dataset_size not in (None, size):
                raise must_be(f"{size:,}, as the dataset has", dataset_size, field="dataset_size")
        if size is not None and size < (batch if drop_last else 1):
            raise InputError(f"the dataset has {size:,} samples, and no step of {batch:,}", field="dataset")
        recipe = Recipe(effective_batch=batch, lr=1.0, dataset_size=size, convention="exact", duration="1st")
        own_plan = plan(recipe, ranks, max_micro_batch=max_micro_batch, split=split, short_epochs=True)
        share = _EpochShare(
            plan=own_plan.require(), replica=rank, seed=seed, shuffle=shuffle, drop_last=drop_last
        )
        self._load(share, dataset, options, equal_passes, share.rounds if equal_passes else 1, None)

    @classmethod
    def of_run(
        cls,
        share: ReplicaShare,
        dataset: Any,
        options: dict[str, Any],
        *,
        equal: bool,
        least: int = 1,
        join: Join | None = None,
    ) -> Self:
        """Makes the loader of a run, at the run's place, with `least` passes or more in a step. A trainer
        that divides by them gets each batch joined with its factor."""
        loader = cls.__new__(cls)
        loader._load(share, dataset, options, equal, least, join)
        return loader

    def _load(
        self,
        share: ReplicaShare,
        dataset: Any,
        options: dict[str, Any],
        equal: bool,
        least: int,
        join: Join | None,
    ) -> None:
        self._share, self.dataset, self.equal, self.passes, self._join = share, dataset, equal, least, join
        self._passes_of: PassesOf = partial(share.passes, equal=equal, least=least)
        self._loader: RankLoader = data_loader(share, self._passes_of, dataset, options)
        self.batch_sampler, self.num_workers = self._loader.batch_sampler, self._loader.num_workers
        self.weight, self.last, self.stand_in = 0.0, True, False

    @property
    def plan(self) -> Plan:
        """The plan of a step."""
        return self._share.plan

    def __len__(self) -> int:
        """Counts the micro-batches left for this rank in the epoch; of a run, to its end."""
        if self.plan.recipe.dataset_size is None and isinstance(self._share, _EpochShare):
            raise TypeError("a stream without dataset_size has no length")
        return sum(
            max(len(self._share.passes_like(span, equal=self.equal)), self.passes)
            for span in self._share.spans()
        )

    def __iter__(self) -> Iterator[Any]:
        reader = LoaderReader(self._loader)
        scale = self._share.replicas
        try:
            for span in self._share.spans():
                for passed, micro_batch in enumerate(self._passes_of(span)):
                    batch = reader.read(span, passed)
                    self.weight = micro_batch.samples * scale / span.samples
                    self.last, self.stand_in = micro_batch.last, micro_batch.stand_in
                    if micro_batch.last:
                        self._share.advance(span)
                    yield batch if self._join is None else self._join(batch, self.weight * self.passes)
        finally:
            reader.end()

    def end_workers(self) -> None:
        """Ends workers kept from one iteration to the next."""
        self._loader.end_workers()

    def set_epoch(self, epoch: int) -> None:
        """Goes to the start of an epoch; in a run, a loader already in this epoch stays."""
        if type(epoch) is not int or epoch < 0:
            raise must_be("a whole number from 0", epoch, field="epoch")
        if isinstance(self._share, _EpochShare) and epoch != self._share.epoch:
            self._share.epoch, self._share.offset = epoch, 0

    def state_dict(self) -> dict[str, Any]:
        """Returns the place in the data, the same on all ranks and valid at any number of ranks.

        Steps of `batch` samples have consumed the first `offset` samples of `epoch`, in the order of `seed`
        (None: not shuffled).
        """
        return {"schema": _SCHEMA, **dict(zip(_PLACE, self._share.place, strict=True)), **self._conditions()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Goes to a place for the next iteration; iterations under way are not affected.

        Raises:
            InputError: it is not a loader's state, or has another dataset length, batch or seed; or a run's
                loader is at another place.
        """
        if not isinstance(state_dict, dict) or state_dict.get("schema") != _SCHEMA:
            raise InputError(
                f"state must be what GlobalLoader.state_dict() gave ({_SCHEMA}), got {shown(state_dict)}",
                field="state",
            )
        conditions = self._conditions()
        if missing := [name for name in (*_PLACE, *_SAME) if name not in state_dict]:
            raise InputError(f"state is damaged: it has no {missing[0]}", field=missing[0])
        as_in = "{} must be {} as in the state, got {}".format
        raise_all(
            InputError(as_in(name, shown(state_dict[name]), shown(conditions[name])), field=name)
            for name in _SAME
            if state_dict[name] != conditions[name]
        )
        epoch, offset = (state_dict[name] for name in _PLACE)
        for name, value in ("epoch", epoch), ("offset", offset):
            if type(value) is not int or value < 0:
                raise must_be("a whole number from 0", value, field=name)
        if not isinstance(self._share, _EpochShare):
            if (epoch, offset) != self._share.place:
                raise InputError(
                    f"state must be of the run's place {self._share.place}, got {(epoch, offset)}: give the "
                    "run's own state to ElasticRun",
                    field="state",
                )
            return
        batch, size = conditions["batch"], conditions["dataset_size"]
        if offset % batch or (size is not None and offset >= size):
            raise must_be(f"a multiple of {batch:,} within the epoch", offset, field="offset")
        self._share.epoch, self._share.offset = epoch, offset

    def _conditions(self) -> dict[str, Any]:
        recipe = self.plan.recipe
        seed = self._share.seed if self._share.shuffle and not is_stream(self.dataset) else None
        return {"seed": seed, "batch": recipe.effective_batch, "dataset_size": recipe.dataset_size}


@dataclass(eq=False, kw_only=True)
class _EpochShare(ReplicaShare):
    """The rest of an epoch, from the loader's own place."""

    drop_last: bool
    epoch: int = 0
    offset: int = 0

    @property
    def place(self) -> tuple[int, int]:
        """The place after the last complete step."""
        return self.epoch, self.offset

    def spans(self) -> Iterator[Span]:
        """Yields the samples of the epoch's remaining steps, numbered within the epoch."""
        return self._spans(*self.place)

    def spans_from(self, span: Span) -> Iterator[Span]:
        """Yields a step and those after it."""
        return self._spans(span.epoch, span.offset)

    def _spans(self, epoch: int, offset: int) -> Iterator[Span]:
        size, batch = self.plan.recipe.dataset_size, self.plan.recipe.effective_batch or 1
        least = batch if self.drop_last else 1
        while size is None or size - offset >= least:
            samples = batch if size is None else min(batch, size - offset)
            after = offset + samples
            ends = size is not None and size - after < least
            yield Span(offset // batch, epoch, offset, samples, samples == batch, ends)
            offset = after

    def advance(self, span: Span) -> None:
        """Notes the end of a step's last micro-batch."""
        self.epoch, self.offset = span.epoch, span.offset + span.samples
        if span.last_of_epoch:
            self.epoch, self.offset = span.epoch + 1, 0
