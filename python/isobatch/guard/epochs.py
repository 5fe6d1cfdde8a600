"""Checks epochs: the samples that each covered, and that its order is new."""

import itertools

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import DistributedSampler, SequentialSampler

from isobatch.equivalence.laws import Cause
from isobatch.guard.calls import MicroBatches
from isobatch.guard.loader import MAX_DISTINCT_SAMPLES, LoaderWatch
from isobatch.guard.passes import ORDER_IDS, Epoch
from isobatch.guard.run import Run
from isobatch.planning.leg import rest_of_epoch
from isobatch.reason import Reason

MIN_COMPARED_IDS = 16  # first samples to compare before two orders count as the same


class Epochs:
    """Compares epochs with the plan and with earlier ones; `deals`: each sample goes to one rank only.

    `owned`: a trainer owns the loop, and may skip by itself what it has trained on.
    """

    def __init__(self, run: Run, watch: LoaderWatch | None, calls: MicroBatches, *, owned: bool) -> None:
        self._run, self._watch, self._calls, self.deals = run, watch, calls, True
        self._owned = owned
        self._checked: Epoch | None = None  # the last epoch whose samples were checked
        self._ordered: Epoch | None = None  # the last epoch whose order was checked
        self._irregular = bool({Reason.RAGGED, Reason.UNEVEN} & set(run.plan.reasons))

    def begin(self) -> None:
        """Finds, at the first step, the micro-batches left out by a resumed loop in the current epoch."""
        run, watch = self._run, self._watch
        epoch = None if watch is None else watch.now
        if watch is None or epoch is None:
            return
        if not epoch.ids and epoch.odd:
            run.leave(f"which samples: the sampler's ids are not whole numbers, such as {epoch.odd}")
        if epoch.place is not None:
            return
        position = run.plan.position(int(run.start))
        if run.plan.recipe.dataset_size is not None and position.epoch:
            self._resumed_order(watch, epoch, position.epoch)
        epoch.behind = (position.offset or 0) // (run.ranks * (run.plan.micro_batch or 1))
        if epoch.behind:
            run.leave("the epoch under way at the start: its sampler does not say where it resumes")
            if (epoch.given or len(epoch.sizes)) >= epoch.behind + epoch.trained:
                watch.skip(epoch.behind)
            else:
                self._repeated(watch, epoch, position.epoch or 0)

    def _repeated(self, watch: LoaderWatch, epoch: Epoch, planned: int) -> None:
        """Stops a resumed run at the start of its epoch, not amid it, if the sampler's order is known."""
        run, size = self._run, self._run.plan.micro_batch or 1
        text = f"the run resumes in epoch {planned} after {epoch.behind * size * run.ranks:,} samples, "
        ids, start = list(epoch.ids[:size]), epoch.behind * size
        ordered = isinstance(watch.sampler, DistributedSampler | SequentialSampler) and not watch.own_batches
        if ordered and not self._owned:
            order = list(watch.sampler)
            if len(epoch.sizes) < epoch.behind and ids == order[:size] != order[start : start + size]:
                run.stop(Cause.ANOTHER_PLACE, f"{text}but the loader begins it again")
        if len(epoch.sizes) < epoch.behind:
            run.note(f"{text}and the loader begins a pass: skip what the run has trained on")

    def _resumed_order(self, watch: LoaderWatch, epoch: Epoch, planned: int) -> None:
        """Stops a resumed run in the order of an earlier epoch; scripts may count epochs from 1."""
        run, kind = self._run, type(watch.sampler).__name__
        if epoch.order is None:
            run.leave(f"whether epoch {planned} has a new order: {kind} does not say which order it gives")
        elif epoch.order < planned and getattr(watch.sampler, "shuffle", True):
            text = f"the run resumes in epoch {planned}, but {kind} gives the order of epoch {epoch.order}"
            run.stop(Cause.MISSING_SET_EPOCH.likely("where the run resumes"), text)

    def check(self) -> None:
        """Checks once for each epoch: the last one's samples, and this one's order."""
        watch = self._watch
        if watch is None or watch.last is None:
            return
        if watch.last is not self._checked and not watch.last.open:
            self._coverage(watch.last)
        if watch.now is not None and watch.now.trained and watch.now is not self._ordered:
            self._order(watch.last, watch.now)

    def finish(self) -> None:
        """Checks the last epoch, if it was trained to its end."""
        self.check()
        now = None if self._watch is None else self._watch.now
        if now is not None and now.trained and now is not self._checked:
            now.left = False  # by the run's end
            self._coverage(now)

    def _coverage(self, epoch: Epoch) -> None:
        run, plan, dataset = self._run, self._run.plan, self._dataset
        self._checked = epoch
        if self._calls.draws or epoch.behind or plan.samples_per_epoch is None:
            return
        steps = plan.steps_per_epoch or 0
        is_cut = self._drops_steps and epoch.trained == steps * len(run.planned)
        if epoch.short and epoch.trained >= len(run.planned) and not is_cut:
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
            offset = self._watch.offset if self._watch is not None else 0
            unique = self._unique(np.asarray(epoch.ids, dtype=np.int64) + offset, unique)
        del epoch.ids[ORDER_IDS:]
        if served == unique == dataset < planned:
            run.note(f"an epoch of {served:,} samples, each once; {planned:,} planned, with padding")
            return
        if is_cut and self.leaves_rest(served):
            return
        # In an uneven plan's last step a replica without work gets one sample, which does not count.
        extra = served - planned if epoch.place is not None and self._irregular else 0
        if not 0 <= extra < run.ranks or served - extra != planned or unique < min(planned, dataset) - padded:
            self.stop(served, planned, unique=unique, every=all(every for _, every in answers))

    def leaves_rest(self, served: int) -> bool:
        """Tells whether a loader has less than a step more than the plan: the loop may leave it out too."""
        plan = self._run.plan
        rest = served - (plan.samples_per_epoch or 0)
        return self._drops_steps and 0 < rest < (plan.effective_batch or 0)

    @property
    def _drops_steps(self) -> bool:
        """Whether the plan drops the passes of no whole step, not only a loader's last samples."""
        return self._run.plan.recipe.convention == "exact" and bool(self._run.plan.dropped_samples)

    @property
    def _dataset(self) -> int:
        return self._run.plan.recipe.dataset_size or (self._watch.total if self._watch is not None else 0)

    def _unique(self, ids: NDArray[np.int64], unknown: int) -> int:
        """Counts the different samples of all ranks; `unknown` where they are too many to tell apart."""
        dataset = self._dataset
        if dataset > MAX_DISTINCT_SAMPLES or (len(ids) and int(ids.max()) >= dataset):
            return unknown
        covered = torch.zeros(dataset, dtype=torch.uint8)
        covered[torch.from_numpy(ids)] = 1
        return int(self._run.most(covered).sum())

    def _order(self, last: Epoch, now: Epoch) -> None:
        first, second = list(last.ids[:ORDER_IDS]), list(now.ids[:ORDER_IDS])
        n = min(len(first), len(second))
        if n < min(MIN_COMPARED_IDS, len(first)):
            return  # it has only begun
        self._ordered = now
        shuffled = any(b < a for a, b in itertools.pairwise(first))
        same = first[:n] == second[:n] and n > 1
        if same and not self.deals and self._watch is not None and self._watch.epoch_set:
            self._run.note("each epoch has the same order, as the script's own sampler gives it")
        elif same and shuffled:
            self._run.stop(Cause.MISSING_SET_EPOCH, "this epoch begins with the same samples as the last")

    def stop(self, served: int, planned: int, *, unique: int, every: bool) -> None:
        """Ends the training for an epoch unlike the plan's. `every`: each rank had the whole dataset."""
        watch, dataset = self._watch, self._run.plan.recipe.dataset_size
        if watch is not None and watch.total and dataset and watch.total != dataset:
            whose = "the loader's dataset has" if watch.total == watch.size else "the ranks' datasets have"
            text = f"{whose} {watch.total:,} samples, {dataset:,} planned"
            self._run.stop(Cause.ANOTHER_DATASET, text)
        samplers = (watch and watch.sampler, watch and watch.batch_sampler)
        if self._run.ranks > 1 and every:
            why = Cause.NOT_DISTRIBUTED.likely("all ranks see the same data")
        elif served < planned:
            where = "where the plan pads them" if planned >= self._dataset else "beyond the plan"
            drops = any(getattr(sampler, "drop_last", False) for sampler in samplers)
            why = Cause.SAMPLES_DROPPED.likely(f"drop_last is set {where}" if drops else where)
        elif served > planned:
            why = Cause.SAMPLES_PADDED.likely()
        else:
            repeats = unique < min(served, self._dataset)
            why = (Cause.SAMPLES_REPEATED if repeats else Cause.ANOTHER_SAMPLES).likely()
        self._run.stop(why, f"an epoch of {served} samples, {planned} planned")
