"""Checks samples: the sampler's settings, and the samples of all ranks in the first steps."""

from typing import Any

from torch.utils.data import (
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from isobatch.equivalence.laws import Cause
from isobatch.equivalence.tensors import differing
from isobatch.guard.calls import DIVIDED, MicroBatches
from isobatch.guard.epochs import Epochs
from isobatch.guard.loader import LoaderWatch, length
from isobatch.guard.run import Run
from isobatch.training.sampler import PlanSampler
from isobatch.words import few_ranks

KNOWN_SAMPLERS = DistributedSampler, RandomSampler, SequentialSampler
UNDISTRIBUTED_SAMPLERS = RandomSampler, SequentialSampler, SubsetRandomSampler, WeightedRandomSampler
SHARED = "{} gives some samples of a step several times: its epochs are not compared with the plan's"
OUTSIDE = (
    "the samples: no pass over the attached loader since the guard was attached has these steps' batches"
)
NO_SET_EPOCH = (
    "set_epoch was not called before the first epoch: the next repeats its order unless it is called there"
)
SAME = "all ranks see the same data"


class Samples:
    """Compares the samples of all ranks in the first steps with the plan."""

    def __init__(
        self,
        run: Run,
        watch: LoaderWatch | None,
        calls: MicroBatches,
        epochs: Epochs,
        *,
        weighted: bool = False,
    ) -> None:
        """Checks the sampler; `weighted`: the reference has a weight for each batch."""
        self._run, self._watch, self._calls, self._epochs = run, watch, calls, epochs
        self._weighted = weighted
        sampler = None if watch is None else watch.sampler
        # A sampler of the user's own may draw with replacement, by weights or by a curriculum.
        self._deals = isinstance(sampler, KNOWN_SAMPLERS) and not getattr(sampler, "replacement", False)
        epochs.deals = self._deals
        if watch is not None and watch.dispatched:
            run.leave("the samples: rank 0 reads and deals out those of all ranks (dispatch_batches)")
        elif watch is None or not watch.sampled:
            run.leave("the samples: no loader over a dataset with ids was given")
        else:
            self._same_order(watch)
            if isinstance(watch.sampler, DistributedSampler):
                self._length(watch, watch.sampler)
            elif watch.sharded:
                self._whole_rounds(watch)

    def _same_order(self, watch: LoaderWatch) -> None:
        """Compares the seeds of all ranks' samplers."""
        run, sampler = self._run, watch.sampler
        if isinstance(watch.batch_sampler, PlanSampler):
            order: tuple[Any, ...] = (watch.batch_sampler.seed, True)
        elif isinstance(sampler, DistributedSampler):
            order = (sampler.seed, sampler.shuffle)
        else:
            return
        orders = run.exchange("seed", order, tuple[Any, ...])
        if ranks := differing(orders):
            seeds = ", ".join(str(seed) for seed, _ in orders[:8])
            run.stop(Cause.SAMPLER_SEEDS, f"the samplers' seeds on the ranks are {seeds}", ranks)

    def _length(self, watch: LoaderWatch, sampler: DistributedSampler[Any]) -> None:
        """Checks the length of torch's sampler, before an epoch."""
        run, plan = self._run, self._run.plan
        if sampler.num_replicas != run.ranks:
            text = f"the sampler divides by {sampler.num_replicas}, but there are {run.ranks} ranks"
            run.stop(Cause.SAMPLER_REPLICAS.likely(f"num_replicas={sampler.num_replicas}"), text)
        drop = bool(getattr(watch.batch_sampler, "drop_last", False))
        size = int(getattr(watch.batch_sampler, "batch_size", 0) or 0)
        if plan.samples_per_epoch is None or size != plan.micro_batch or watch.limit is not None:
            return
        served = sum(run.exchange("length", len(sampler) // size * size if drop else len(sampler)))
        if served != plan.samples_per_epoch and not self._epochs.leaves_rest(served):
            self._epochs.stop(served, plan.samples_per_epoch, unique=served, every=False)

    def _whole_rounds(self, watch: LoaderWatch) -> None:
        """Checks the length of Accelerate's epoch, if it has only whole micro-batches on all ranks."""
        planned, size = self._run.plan.samples_per_epoch, self._run.plan.micro_batch or 1
        if (length(watch.sampler) or 0) > watch.size and not self._deals:
            # Such as TRL's sampler, which repeats a prompt for each completion.
            self._calls.draws = True
            self._run.note(SHARED.format(type(watch.sampler).__name__))
        elif watch.batch_sampler.drop_last and watch.batch_sampler.batch_size == size:
            served = watch.size // (size * self._run.ranks) * size * self._run.ranks
            if planned is not None and served != planned and not self._epochs.leaves_rest(served):
                self._epochs.stop(served, planned, unique=served, every=False)

    def check(self) -> None:
        """Checks one of the first steps; `run.whole` remains True where it is a whole step on all ranks."""
        run, watch = self._run, self._watch
        if watch is None or self._calls.ramps:
            return
        if watch.workers > 1 and not watch.sampled:
            first = watch.digests[: watch.workers]  # the workers take turns
            if any(run.exchange("workers", len(first) > 1 and len(set(first)) == 1)):
                text = f"the first {len(first)} batches of {watch.workers} workers are the same"
                run.stop(Cause.WORKERS_REPEAT, text)
        contents = run.exchange("contents", watch.contents(self._calls.epochs))
        if watch.now is None:
            self._same_contents(contents)
            if watch.sampled:
                run.leave(OUTSIDE)
            return
        if self._calls.draws:
            return
        undistributed = isinstance(watch.sampler, UNDISTRIBUTED_SAMPLERS) and not watch.sharded
        if undistributed and run.ranks > 1 and not run.since:
            self._divided(watch)
        if watch.size and isinstance(watch.sampler, DistributedSampler):
            self._set_epoch(watch, watch.sampler)
        self._step(watch, contents)

    def _same_contents(self, contents: list[str | None]) -> None:
        """Stops where ranks have equal batches of data without ids."""
        ranks = [rank for rank, text in enumerate(contents) if text is not None and contents.count(text) > 1]
        if ranks:
            some = ranks if len(ranks) < self._run.ranks else []
            text = f"the batches of {few_ranks(some) if some else 'all ranks'} are equal to the last bit"
            self._run.stop(Cause.SAME_DATA, text, some)

    def _step(self, watch: LoaderWatch, contents: list[str | None]) -> None:
        """Compares the ranks' samples with each other, and the sizes of micro-batches with the plan."""
        run, epoch = self._run, watch.now
        assert epoch is not None
        end = self._calls.at_end()
        sizes, ids = epoch.step(min(run.micro, epoch.trained, len(run.planned)))
        ids = [index + watch.offset for index in ids]
        answers = run.exchange("samples", (sizes, ids, end))
        rank_ids, ends = [ids for _, ids, _ in answers], any(end for *_, end in answers)
        total, different = sum(len(set(ids)) for ids in rank_ids), len(set().union(*rank_ids))
        if total - different > (run.ranks + (run.plan.padded_samples or 0) if ends else 0):
            self._shared(watch, rank_ids, contents, f"{total - different} of {total}")
        planned = [[int(n) for n in run.plan.micro_batches(rank)] for rank in range(run.ranks)]
        rank_sizes = [sizes for sizes, *_ in answers]
        off = [rank for rank, sizes in enumerate(rank_sizes) if sizes != planned[rank]]
        if off:
            run.whole = False
        if off and not ends:
            self._sizes(watch, rank_sizes, planned, off)
        if not self._deals and not self._calls.draws and sum(map(len, rank_ids)) > total:
            self._calls.draws = True
            run.note(SHARED.format(type(watch.sampler).__name__))

    def _divided(self, watch: LoaderWatch) -> None:
        """Finds out whether each rank has a dataset of its own: its sampler need not divide that.

        Where this cannot be told, samples are unchecked: an equal position is no proof of an equal sample.
        """
        run = self._run
        answers = run.exchange("rows of the dataset", (watch.first_rows(), watch.size))
        rows, sizes = [row for row, _ in answers], [size for _, size in answers]
        if all(rows) and len(set(rows)) < len(rows):
            return
        text = ", ".join(f"{size:,}" for size in sizes[:8])
        run.leave(f"whether ranks share samples: each has a dataset of its own (of {text} samples)")
        watch.offset, watch.total = sum(sizes[: run.rank]), sum(sizes)
        self._calls.draws = not all(rows)

    def _shared(
        self, watch: LoaderWatch, rank_ids: list[list[int]], contents: list[str | None], shared: str
    ) -> None:
        """Judges samples given to several ranks.

        They are a fault if the sampler should give each to one rank, or if ranks have the same batches.
        Repeated augmentation is none: several ranks get a sample, each another view of it.
        """
        run, sampler = self._run, watch.sampler
        text = f"{shared} samples of this step go to more than one rank"
        alike = [rank for rank, ids in enumerate(rank_ids) if rank_ids.count(ids) > 1 and len(ids) > 1]
        everywhere = len(alike) == run.ranks and rank_ids.count(rank_ids[0]) == run.ranks
        views = isinstance(sampler, UNDISTRIBUTED_SAMPLERS) or any(
            contents[rank] is not None and contents.count(contents[rank]) > 1 for rank in alike
        )
        if self._deals:
            run.stop(Cause.NOT_DISTRIBUTED.likely(SAME if everywhere else "ranks share samples"), text)
        if alike and views:
            run.stop(Cause.SAME_DATA, text, alike)
        self._calls.draws = True
        run.note(SHARED.format(type(sampler).__name__))

    def _sizes(
        self, watch: LoaderWatch, rank_sizes: list[list[int]], planned: list[list[int]], off: list[int]
    ) -> None:
        """Judges other sizes: a fault, unless the script divides batches or makes them by tokens."""
        run, sizes = self._run, rank_sizes[off[0]]
        if all(run.exchange("rows", run.rows == run.planned)):
            self._calls.draws = run.whole = True
            run.note(DIVIDED)
            return
        if not (watch.own_batches and len({size for row in rank_sizes for size in row}) > 1):
            text = f"micro-batches of {sizes} samples on {few_ranks(off[:1])}, {planned[off[0]]} planned"
            run.stop(Cause.ANOTHER_MICRO_BATCH, text)
        self._calls.draws = self._calls.vary = True
        run.note(f"micro-batches of {sizes} samples: their sizes and epochs are not compared with the plan's")
        if not self._weighted:
            run.leave("the gradient's size: micro-batches of different sizes, and no weight was given")
        run.whole = self._weighted

    def _set_epoch(self, watch: LoaderWatch, sampler: DistributedSampler[Any]) -> None:
        plan = self._run.plan
        several = plan.total_steps is None or (plan.steps_per_epoch or 0) < plan.total_steps
        if sampler.shuffle and several and not watch.epoch_set:
            self._run.note(NO_SET_EPOCH)
