"""Counts a step's micro-batches, by the model's calls, the loader's batches and the backward passes."""

import math
from typing import NamedTuple

from isobatch.equivalence.laws import Cause, either
from isobatch.guard.loader import LoaderWatch
from isobatch.guard.passes import Epoch
from isobatch.guard.run import MAX_CALLS, Run

CALLED = "the model is called several times per micro-batch, or without one; each {} counts as a micro-batch"
CLEARED = "some gradients are cleared before a step: the calls of the model before that are not counted"
DIVIDED = "the loop divides or repeats the loader's batches: samples are not compared with the plan's"
STORED = "the epoch has ended, but the loop continues with stored batches (as itertools.cycle does)"
ELSEWHERE = "the loop goes on with batches of another loader: samples are not compared with the plan's"
HALVES = ("fp16", "float16", "16-mixed")


class Call(NamedTuple):
    """A call of the model: the first for a batch of the loader, after these backward passes, in this pass."""

    new: bool
    backwards: int
    epoch: Epoch | None


class MicroBatches:
    """Compares the micro-batches of steps with the plan; `draws`: samples are not; `vary`: sizes are not.

    `epochs`: the pass over the loader that each micro-batch of the step is from.
    """

    def __init__(self, run: Run, watch: LoaderWatch | None) -> None:
        self._run, self._watch, self.draws, self.vary = run, watch, False, False
        self._calls, self.epochs = list[Call](), list[Epoch]()
        self._calls_each = 0  # of the model for a batch, where they are several
        self.ramps = run.plan.recipe.ramp is not None
        if self.ramps:
            run.leave("accumulation and micro-batches: the batch ramps")

    def forward(self) -> None:
        """Counts a call of the model."""
        run, epoch = self._run, None if self._watch is None else self._watch.current
        run.micro += 1
        new = self._watch is None
        if epoch is not None and epoch.called != epoch.given:
            epoch.called, new = epoch.given, True
        elif epoch is not None and not epoch.given:
            new = True  # a sampler's ids, of a loader that is not the watched one
        self._calls.append(Call(new, run.backwards, epoch))
        if len(self._calls) > MAX_CALLS:
            del self._calls[: -MAX_CALLS // 2]

    def fold(self) -> list[bool] | None:
        """Finds the step's micro-batches among the calls of the model.

        A call may be for a measure, whose gradient is in no step; and a loop may call the model several times
        for a batch. Returns for each call whether it was the first of a micro-batch; None where the calls are
        as planned, or nothing explains them.
        """
        run, calls, self._calls = self._run, self._calls, []
        first, epoch_of_first = None, calls[0].epoch if calls else None
        if (
            not (len(calls) == len(run.planned) and all(epoch is epoch_of_first for *_, epoch in calls))
            or self._calls_each
        ):
            first = self._first_calls(calls)
            run.micro = len(calls) if first is None else sum(first)
        epochs = (
            [epoch for *_, epoch in calls]
            if first is None
            else [epoch for (*_, epoch), is_first in zip(calls, first, strict=True) if is_first]
        )
        self.epochs = [epoch for epoch in epochs if epoch is not None] if calls else self._taken()
        for epoch in {id(epoch): epoch for epoch in self.epochs}.values():
            epoch.stepped = epoch.given
        if self._watch is not None:
            self._watch.follow(self.epochs)
        return first

    def _taken(self) -> list[Epoch]:
        """Returns the pass of each new batch, where the model was not called; none if unlike the plan."""
        epoch, planned = None if self._watch is None else self._watch.current, len(self._run.planned)
        return [epoch] * planned if epoch is not None and epoch.given - epoch.stepped == planned else []

    def _first_calls(self, calls: list[Call]) -> list[bool] | None:
        """Tells for each call whether it begins a micro-batch of the step; None if all do."""
        trains = self._training(calls)
        some = [call for call, does in zip(calls, trains, strict=True) if does]
        first = self._first_of(some)
        if first is None:
            return trains if len(some) < len(calls) else None
        marks = iter(first)
        return [does and next(marks) for does in trains]

    def _training(self, calls: list[Call]) -> list[bool]:
        """Tells for each call whether its gradient is in the step.

        It is not if no backward pass came after it while others had one, if the gradients were cleared since,
        or if the pass after it is of another epoch's batches.
        """
        run, epoch_of_pass = self._run, dict[int, Epoch | None]()
        passed = any(call.backwards < run.backwards for call in calls)
        trains = [False] * len(calls)
        for index in reversed(range(len(calls))):
            call = calls[index]
            if passed and call.backwards == run.backwards:
                continue
            trains[index] = epoch_of_pass.setdefault(call.backwards, call.epoch) is call.epoch
        staying = [does and call.backwards >= run.fresh for does, call in zip(trains, calls, strict=True)]
        cleared = [
            call for call, does, stays in zip(calls, trains, staying, strict=True) if does and not stays
        ]
        if not cleared or not any(staying):
            return trains
        epochs = {id(call.epoch) for call, stays in zip(calls, staying, strict=True) if stays}
        batches = sum(call.new for call in calls if id(call.epoch) in epochs)
        if (
            self._watch is not None
            and batches > len(run.planned)
            and any(id(c.epoch) in epochs for c in cleared)
        ):
            return trains  # a step of this epoch was left out
        if self._watch is None:
            run.note(CLEARED)
        return staying

    def _first_of(self, calls: list[Call]) -> list[bool] | None:
        """Tells for each call of the training whether it begins a micro-batch; None without an explanation.

        The loader's batches decide as they come, else those fetched ahead for the step, else the passes.
        """
        run, planned, total = self._run, len(self._run.planned), len(calls)
        rest = total // self._calls_each if self._calls_each and total % self._calls_each == 0 else 0
        tail = 0 < rest < planned  # an epoch's last step, with fewer micro-batches
        if not calls or (total == planned and not tail):
            return None
        by_batch = [new for new, *_ in calls]
        passes = [backwards for _, backwards, _ in calls]
        by_pass = [index == 0 or passes[index] != passes[index - 1] for index in range(total)]
        epochs = {id(epoch): epoch for *_, epoch in calls if epoch is not None}.values()
        batches = sum(by_batch) if self._watch is not None else 0
        fetched = sum(epoch.given - epoch.stepped for epoch in epochs)
        note, first = CALLED.format("batch of the loader"), None
        if batches == planned or (tail and batches == rest):
            first = by_batch
        elif (fetched == planned and total % planned == 0) or tail:
            each = total // (rest if tail else planned)
            first = [index % each == 0 for index in range(total)]
        elif run.backwards - calls[0].backwards == planned:
            note = CALLED.format("backward pass")
            # If the last call has no pass of its own, the first calls are counted, one for each pass.
            first = by_pass if sum(by_pass) == planned else [index < planned for index in range(total)]
        if first is not None:
            run.note(note)
            self._calls_each = total // sum(first) if total % sum(first) == 0 else 0
        return first

    def at_end(self) -> bool:
        """Tells whether the last micro-batch trained on was its epoch's last, as far as can be known."""
        epoch = None if self._watch is None else self._watch.now
        if epoch is None:
            return True
        trained = epoch.trained + (epoch.behind or epoch.skipped)
        return epoch.length in (None, trained, epoch.skipped + epoch.trained)

    def check(self) -> None:
        """Checks the accumulation before an optimizer step, and whether the step is a whole one."""
        run, watch = self._run, self._watch
        run.whole = not self.ramps and run.micro == len(run.planned)
        if self.ramps:
            return
        epoch = watch.now if watch is not None else None
        before = 0  # micro-batches of the epoch before, in this step
        if epoch is not None and run.plan.steps_per_epoch is not None:
            before = sum(source is not epoch for source in self.epochs)
        served = epoch.given if epoch is not None else 0
        if epoch is not None and epoch.trained > served > 0 and served != epoch.length:
            self._elsewhere(served, epoch)
        known = bool(run.plan.samples_per_epoch) and not self.draws
        if known and epoch is not None and epoch.whole and epoch.trained > len(epoch.sizes):
            if epoch.stored:
                run.stop(Cause.SAMPLES_REPEATED, STORED)
            self.draws = True
            run.note(ELSEWHERE)
        if run.near or before or run.micro != len(run.planned):
            self._count(last=before)
        run.whole = run.micro == len(run.planned)

    def _elsewhere(self, served: int, epoch: Epoch) -> None:
        """Handles a step without a new batch of the loader: on other batches, or on the same once more."""
        run, epoch.trained = self._run, served
        if DIVIDED in run.notes:
            return
        if run.rows == run.planned and sum(epoch.sizes[:served]) == (run.since + 1) * sum(run.planned):
            self.draws = True
            run.note(DIVIDED)
            return
        if run.near and run.plan.steps_per_epoch is not None and not self.draws:
            steps = f"{run.plan.steps_per_epoch:,}"
            text = f"this step has no new batch of the loader, whose epoch has {steps} steps by the plan"
            run.stop(Cause.ANOTHER_LENGTH, text)
        self.draws = True
        run.note("some steps train on no new batch of the loader: samples are not compared with the plan's")

    def _count(self, *, last: int) -> None:
        """Checks the number of micro-batches before this step; `last` of them belong to the epoch before.

        There may be more where a loss scaler skipped steps, and fewer at the end of an epoch.
        """
        run, end = self._run, self.at_end()
        counted, planned = run.micro, len(run.planned)
        if run.plan.recipe.precision in HALVES and counted and (counted % planned == 0 or end):
            run.skipped += math.ceil(counted / planned) - 1
        elif counted != planned and not (counted < planned and end):
            causes = [Cause.ANOTHER_ACCUMULATION]
            if counted and counted % planned == 0:  # after steps as planned, not the accumulation
                causes.insert(0 if run.since else 1, Cause.SKIPPED_STEPS)
            why = either(*(cause.likely() for cause in causes))
            run.stop(why, f"{counted} micro-batches before this step, {planned} planned")
        elif last:
            text = f"{last} micro-batches of the last epoch in this step; the plan ends an epoch with a step"
            run.stop(Cause.ANOTHER_ACCUMULATION, text)

    def check_length(self) -> bool:
        """Tells whether the plan has no more steps: the first extra step is a note, the second an error."""
        run, total = self._run, self._run.plan.total_steps
        if total is None or run.step < total:
            return False
        if run.step > total and not self.vary:
            run.stop(Cause.ANOTHER_LENGTH, f"two more optimizer steps, {total:,} planned")
        run.note(f"the loop takes one optimizer step more than the {total:,} planned")
        return True
