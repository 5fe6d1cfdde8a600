"""Checks micro-batches and samples: how many in every step, whose in the first steps, and an epoch's coverage."""

import itertools
import math
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import DistributedSampler, RandomSampler, SequentialSampler

from isobatch.diagnosis import faults
from isobatch.diagnosis.causes import Cause, either
from isobatch.diagnosis.tensors import differing
from isobatch.guard.loader import MAX_DISTINCT_SAMPLES, ORDER_IDS, Epoch, LoaderWatch
from isobatch.guard.run import Run
from isobatch.integrations.torch.sampler import PlanSampler
from isobatch.planning.leg import rest_of_epoch
from isobatch.reason import Reason
from isobatch.words import few_ranks

KNOWN_SAMPLERS = DistributedSampler, RandomSampler, SequentialSampler
CALLED = "the model is called several times for a micro-batch, or for none; each {} counts as one"
MIN_COMPARED_IDS = 16  # samples in the same order that make it the same epoch


class Samples:
    """Compares the loader's samples, and the loop's steps, with the plan."""

    def __init__(self, run: Run, watch: LoaderWatch | None, *, weighted: bool = False) -> None:
        """Checks the sampler; `weighted`: the reference knows what a batch counts. `vary` becomes True for batches of varying sizes."""
        self._run, self._watch, self._weighted, self.vary = run, watch, weighted, False
        self._seen: Epoch | None = None  # the last one that was checked
        self._calls_each = 0  # of the model for a batch, where they are several
        self._ordered: Epoch | None = None
        self._resumed: Epoch | None = None  # began in the middle, by a sampler that does not say where
        self._calls, self._served = list[tuple[bool, Epoch | None]](), 0 if watch is None else watch.served
        self._behind = 0  # its micro-batches that were trained on before the run was resumed
        sampler = None if watch is None else watch.sampler
        # One of the user's own may draw with replacement, by weights or by a curriculum.
        self._deals = isinstance(sampler, KNOWN_SAMPLERS) and not getattr(sampler, "replacement", False)
        self._draws = False
        self._irregular = bool({Reason.RAGGED, Reason.UNEVEN} & set(run.plan.reasons))
        if watch is not None and watch.dispatched:
            run.unchecked.append(
                "the samples: rank 0 reads and deals out those of all ranks (dispatch_batches)"
            )
        elif watch is None or not watch.sampled:
            run.unchecked.append("the samples: no loader over a dataset with ids was given")
        else:
            self._same_order(watch)
            if isinstance(watch.sampler, DistributedSampler):
                self._length(watch, watch.sampler)
            elif watch.sharded and watch.batch_sampler.drop_last:
                self._whole_rounds(watch)
        self._ramps = run.plan.recipe.ramp is not None
        if self._ramps:
            run.unchecked.append("accumulation and micro-batches: the batch ramps")

    def _same_order(self, watch: LoaderWatch) -> None:
        """Checks that all ranks' samplers deal out one order."""
        sampler: Any = watch.sampler
        if isinstance(watch.batch_sampler, PlanSampler):
            order = (watch.batch_sampler.seed, True)
        elif isinstance(sampler, DistributedSampler):
            order = (sampler.seed, sampler.shuffle)
        else:
            return
        off = differing(self._run.exchange("seed", order, tuple[Any, ...]))
        if off:
            text = (
                f"the sampler of {few_ranks(off)} has seed {order[0]}"
                if self._run.rank in off
                else "seeds differ"
            )
            self._run.stop(Cause.SAMPLER_SEEDS, text, off)

    def _length(self, watch: LoaderWatch, sampler: DistributedSampler[Any]) -> None:
        """Checks the length of torch's sampler, before an epoch."""
        run, plan = self._run, self._run.plan
        if sampler.num_replicas != run.ranks:
            text = f"the sampler divides by {sampler.num_replicas}, there are {run.ranks} ranks"
            run.stop(Cause.SAMPLER_REPLICAS.likely(f"num_replicas={sampler.num_replicas}"), text)
        drop = bool(getattr(watch.batch_sampler, "drop_last", False))
        size = int(getattr(watch.batch_sampler, "batch_size", 0) or 0)
        if plan.samples_per_epoch is None or size != plan.micro_batch or watch.limit is not None:
            return
        served = sum(run.exchange("length", len(sampler) // size * size if drop else len(sampler)))
        if served != plan.samples_per_epoch:
            self._stop(served, plan.samples_per_epoch, unique=served, every=False)

    def _whole_rounds(self, watch: LoaderWatch) -> None:
        """Checks the length of Accelerate's epoch of whole micro-batches on all ranks only."""
        planned, size = self._run.plan.samples_per_epoch, self._run.plan.micro_batch or 1
        served = watch.size // (size * self._run.ranks) * size * self._run.ranks
        if planned is not None and watch.batch_sampler.batch_size == size and served != planned:
            self._stop(served, planned, unique=served, every=False)

    # Steps.

    def begin(self) -> None:
        """Finds, at the first step, the micro-batches of the epoch under way left out by a resumed loop."""
        run, watch = self._run, self._watch
        if watch is None or watch.now is None:
            return
        if not watch.now.ids and watch.now.odd:
            run.unchecked.append(
                f"whose samples: the sampler's ids are no whole numbers, such as {watch.now.odd}"
            )
        if watch.now.place is not None:
            return
        offset = run.plan.position(int(run.start)).offset
        self._behind = (offset or 0) // (run.ranks * (run.plan.micro_batch or 1))
        if self._behind:
            self._resumed = watch.now
            run.unchecked.append(
                "the epoch under way at the start: its sampler does not say where it resumes"
            )
            if (watch.given or len(watch.now.sizes)) >= self._behind + watch.now.trained:
                watch.skip(self._behind)

    def forward(self) -> None:
        """Counts a micro-batch."""
        watch, served = self._watch, self._served
        now = None if watch is None else watch.now
        self._run.micro += 1
        if watch is not None:
            self._served = watch.served
        if now is not None:
            now.trained += 1
        self._calls.append((watch is None or watch.served != served, now))

    def fold(self) -> list[bool] | None:
        """Counts each batch of the loader once, where the loop calls the model several times for it, or for none; else, each backward pass.
        Returns which calls were the first of a batch; None where the calls are as planned, or neither explains them."""
        run, calls, self._calls = self._run, self._calls, []
        planned, fresh = len(run.planned), [first for first, _ in calls]
        batches = sum(fresh) if self._watch is not None else 0
        tail = 0 < batches < planned and len(fresh) == self._calls_each * batches  # of an epoch
        if not fresh or (len(fresh) == planned and not tail):
            return None
        if batches == planned or tail:
            run.note(CALLED.format("batch of the loader"))
            self._calls_each = len(fresh) // batches if len(fresh) % batches == 0 else 0
            run.micro = batches
        elif run.backwards == planned:
            run.note(CALLED.format("backward pass"))
            run.micro = planned
        else:
            return None
        for first, epoch in calls:
            if not first and epoch is not None:
                epoch.trained -= 1
        return fresh

    def check(self) -> bool:
        """Checks before an optimizer step. Tells whether it is a whole step on all ranks, as far as can be known."""
        run, watch = self._run, self._watch
        if self._ramps:
            return False
        now = watch.now if watch is not None else None
        crossing = now is not None and now.trained < run.micro and run.plan.steps_per_epoch is not None
        given = watch.given if watch is not None else 0
        if now is not None and now.trained > given > 0 and given != now.length:
            self._elsewhere(given, now)
        if now is not None and run.plan.samples_per_epoch and now.whole and now.trained > len(now.sizes):
            text = "the epoch has ended, and the loop goes on with batches that it has kept (itertools.cycle does)"
            run.stop(Cause.SAMPLES_REPEATED, text)
        end = False
        if run.near or crossing or run.micro != len(run.planned):
            end = now is None or self._at_end(now)
            self._count(end=end, last=run.micro - now.trained if now is not None and crossing else 0)
        if run.near and watch is not None and watch.workers > 1 and not watch.sampled:
            first = watch.digests[: watch.workers]  # the workers take turns
            if any(run.exchange("workers", len(first) > 1 and len(set(first)) == 1)):
                text = f"the first {len(first)} batches of {watch.workers} workers are the same"
                run.stop(Cause.WORKERS_REPEAT, text)
        if not run.near or now is None or watch is None or self._draws:
            return run.micro == len(run.planned)
        if watch.size and isinstance(watch.sampler, DistributedSampler):
            self._set_epoch(watch, watch.sampler)
        return self._step(now, end)

    def _elsewhere(self, given: int, now: Epoch) -> None:
        """Counts a step on other batches than those the loader gave, or once more on the same: an epoch has more steps than it has of its
        own."""
        run, now.trained = self._run, given
        if run.near and run.plan.steps_per_epoch is not None:
            text = f"this step has no new batch of the loader, whose epoch has {run.plan.steps_per_epoch:,} steps by the plan"
            run.stop(Cause.ANOTHER_LENGTH, text)
        self._draws = True
        run.note("some steps train on no new batch of the loader: samples are not compared with the plan's")

    def _count(self, *, end: bool, last: int) -> None:
        """Checks the accumulation. A loss scaler skips the steps that overflow, and an epoch's last step may be a smaller one; none
        mixes two epochs; `last` of its micro-batches are of the last one."""
        run = self._run
        counted, planned = run.micro, len(run.planned)
        halves = run.plan.recipe.precision in ("fp16", "float16", "16-mixed")
        if halves and counted and (counted % planned == 0 or end):
            run.skipped += math.ceil(counted / planned) - 1
        elif counted != planned and not (counted < planned and end):
            causes = [Cause.ANOTHER_ACCUMULATION]
            if counted and counted % planned == 0:  # after steps as planned, not the accumulation
                causes.insert(0 if run.since else 1, Cause.SKIPPED_STEPS)
            run.stop(
                either(*(cause.likely() for cause in causes)),
                f"{counted} micro-batches before this step, {planned} planned",
            )
        elif last:
            text = f"{last} micro-batches of the last epoch in this step; the plan ends an epoch with a step"
            run.stop(Cause.ANOTHER_ACCUMULATION, text)

    def _at_end(self, now: Epoch) -> bool:
        """Tells whether the last micro-batch trained on was its epoch's last."""
        done = now.trained + (self._behind if now is self._resumed else now.skipped)
        return now.length in (None, done, now.skipped + now.trained)

    def _step(self, now: Epoch, end: bool) -> bool:
        """Checks one of the first steps: nobody's samples are somebody else's, and micro-batches are as large as planned."""
        run = self._run
        answers = run.exchange("samples", (*now.step(min(run.micro, now.trained, len(run.planned))), end))
        owned = [set(ids) for _, ids, _ in answers]
        ends = any(end for *_, end in answers)
        repeats = sum(map(len, owned)) - len(set().union(*owned))
        if repeats > (run.ranks + (run.plan.padded_samples or 0) if ends else 0):
            first = answers[0][1]
            same = all(ids == owned[0] for ids in owned)
            # Repeated augmentation gives a sample to a rank several times in a row.
            alike = all(ids == first for _, ids, _ in answers) and len(owned[0]) == len(first)
            if alike or self._deals:
                how = "all ranks see the same data" if same else "ranks share samples"
                text = f"{repeats} of {sum(map(len, owned))} samples of this step go to more than one rank"
                run.stop(Cause.NOT_DISTRIBUTED.likely(how), text)
            self._draws = True
            kind = type(self._watch and self._watch.sampler).__name__
            run.note(
                f"{kind} gives some samples of a step to more than one rank: its epochs are not compared with the plan's"
            )
        planned = [[int(n) for n in run.plan.micro_batches(rank)] for rank in range(run.ranks)]
        off = [rank for rank, (sizes, *_) in enumerate(answers) if sizes != planned[rank]]
        if not off or ends:
            return not off
        sizes = answers[off[0]][0]
        if not (
            self._watch and self._watch.own_batches and len({n for found, *_ in answers for n in found}) > 1
        ):
            text = f"micro-batches of {sizes} samples on {few_ranks(off[:1])}, {planned[off[0]]} planned"
            run.stop(Cause.ANOTHER_MICRO_BATCH, text)
        self._draws = self.vary = True
        run.note(f"micro-batches of {sizes} samples: their sizes and epochs are not compared with the plan's")
        if not self._weighted:
            run.unchecked.append(
                "the gradient's size: micro-batches of different sizes, and no weight was given"
            )
        return self._weighted

    def _set_epoch(self, watch: LoaderWatch, sampler: DistributedSampler[Any]) -> None:
        plan = self._run.plan
        several = plan.total_steps is None or (plan.steps_per_epoch or 0) < plan.total_steps
        if sampler.shuffle and several and not watch.epoch_set:
            text = "set_epoch was not called before the first epoch: each would repeat the first one's order"
            self._run.stop(Cause.MISSING_SET_EPOCH, text)

    # Epochs.

    def epochs(self) -> None:
        """Checks once for each epoch: the last one's samples, and this one's order."""
        watch = self._watch
        if watch is None or watch.last is None:
            return
        if watch.last is not self._seen:
            self._epoch(watch.last)
            self._seen = watch.last
        if watch.now is not None and watch.now.trained and watch.now is not self._ordered:
            self._order(watch.last, watch.now)

    def finish(self) -> None:
        """Checks the last epoch, if it was trained to its end."""
        self.epochs()
        now = None if self._watch is None else self._watch.now
        if now is not None and now.trained and now is not self._seen:
            self._epoch(now)
            self._seen = now

    def _epoch(self, epoch: Epoch) -> None:
        run, plan, dataset = self._run, self._run.plan, self._dataset
        if self._draws or epoch is self._resumed or plan.samples_per_epoch is None:
            return
        if epoch.short and epoch.trained >= len(run.planned):
            text = f"an epoch ended after {epoch.given:,} of {epoch.length:,} micro-batches on each rank"
            run.stop(Cause.ANOTHER_SAMPLES.likely("an epoch left before its end"), text)
        if not epoch.whole:
            return
        planned, padded = plan.samples_per_epoch, plan.padded_samples or 0
        if epoch.place is not None and epoch.place[1]:
            rest = rest_of_epoch(plan, dataset, epoch.place[1])
            planned, padded = rest.served, rest.padded
        answers = run.exchange("epoch", (epoch.count, epoch.count == dataset))
        served = sum(count for count, _ in answers)
        unique = min(served, dataset)
        if not epoch.odd:
            unique = self._unique(np.asarray(epoch.ids, dtype=np.int64), unique)
        del epoch.ids[ORDER_IDS:]
        # A replica that has nothing to do in an unequal plan's last step gets one sample, which does not count.
        if served == unique == dataset < planned:
            run.note(f"an epoch of {served:,} samples, each once; {planned:,} planned, with padding")
            return
        extra = served - planned if epoch.place is not None and self._irregular else 0
        if not 0 <= extra < run.ranks or served - extra != planned or unique < min(planned, dataset) - padded:
            self._stop(served, planned, unique=unique, every=all(every for _, every in answers))

    @property
    def _dataset(self) -> int:
        return self._run.plan.recipe.dataset_size or (self._watch.size if self._watch is not None else 0)

    def _unique(self, ids: NDArray[np.int64], unknown: int) -> int:
        """Counts the different samples of all ranks; `unknown` where they are too many to tell apart."""
        dataset = self._dataset
        if dataset > MAX_DISTINCT_SAMPLES or (len(ids) and int(ids.max()) >= dataset):
            return unknown
        seen = torch.zeros(dataset, dtype=torch.uint8)
        seen[torch.from_numpy(ids)] = 1
        return int(self._run.most(seen).sum())

    def _order(self, last: Epoch, now: Epoch) -> None:
        first, second = list(last.ids[:ORDER_IDS]), list(now.ids[:ORDER_IDS])
        n = min(len(first), len(second))
        if n < min(MIN_COMPARED_IDS, len(first)):
            return  # it has only begun
        self._ordered = now
        shuffled = any(b < a for a, b in itertools.pairwise(first))
        kept = first[:n] == second[:n] and n > 1
        if kept and not self._deals and self._watch is not None and self._watch.epoch_set:
            self._run.note("each epoch has the same order, as the script's own sampler gives it")
        elif kept and shuffled:
            self._run.stop(Cause.MISSING_SET_EPOCH, "this epoch begins with the same samples as the last")

    def _stop(self, served: int, planned: int, *, unique: int, every: bool) -> None:
        watch, planned_size = self._watch, self._run.plan.recipe.dataset_size
        if watch is not None and watch.size and planned_size and watch.size != planned_size:
            text = f"the loader's dataset has {watch.size:,} samples, {planned_size:,} planned"
            self._run.stop(Cause.ANOTHER_DATASET, text)
        drops = [
            getattr(thing, "drop_last", False)
            for thing in (watch and watch.sampler, watch and watch.batch_sampler)
        ]
        why = faults.epoch(
            served=served,
            planned=planned,
            unique=unique,
            dataset=self._dataset,
            per_rank_all=every,
            drop_last=any(drops),
            ranks=self._run.ranks,
        )
        self._run.stop(why, f"an epoch of {served} samples, {planned} planned")
