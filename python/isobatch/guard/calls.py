"""Counts a step's micro-batches, by the model's calls, the loader's batches and the backward passes."""

import math

from isobatch.diagnosis.causes import Cause, either
from isobatch.guard.loader import Epoch, LoaderWatch
from isobatch.guard.run import Run

CALLED = "the model is called several times per micro-batch, or without one; each {} counts as a micro-batch"
HALVES = ("fp16", "float16", "16-mixed")


class MicroBatches:
    """Compares the micro-batches of steps with the plan; `draws`: samples are not; `vary`: sizes are not."""

    def __init__(self, run: Run, watch: LoaderWatch | None) -> None:
        self._run, self._watch, self.draws, self.vary = run, watch, False, False
        self._calls = list[tuple[bool, int, Epoch | None]]()
        self._served = self._stepped = 0 if watch is None else watch.served
        self._calls_each = 0  # of the model for a batch, where they are several
        self.ramps = run.plan.recipe.ramp is not None
        if self.ramps:
            run.unchecked.append("accumulation and micro-batches: the batch ramps")

    def forward(self) -> None:
        """Counts a call of the model."""
        run, watch = self._run, self._watch
        epoch = None if watch is None else watch.now
        served = self._served if watch is None else watch.served
        run.micro += 1
        if epoch is not None:
            epoch.trained += 1
        self._calls.append((watch is None or served != self._served, run.backwards, epoch))
        self._served = served

    def fold(self) -> list[bool] | None:
        """Counts each batch of the loader as one micro-batch, however often the loop calls the model for it.

        Returns for each call whether it was the first of a micro-batch; None where the calls are as planned,
        or nothing explains them.
        """
        run, calls, self._calls = self._run, self._calls, []
        fetched, self._stepped = self._served - self._stepped, self._served
        first = self._first_calls(calls, fetched)
        if first is None:
            return None
        run.micro = sum(first)
        for is_first, (*_, epoch) in zip(first, calls, strict=True):
            if not is_first and epoch is not None:
                epoch.trained -= 1
        return first

    def _first_calls(self, calls: list[tuple[bool, int, Epoch | None]], fetched: int) -> list[bool] | None:
        """Tells for each call whether it begins a micro-batch.

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
        batches = sum(by_batch) if self._watch is not None else 0
        note, first = CALLED.format("batch of the loader"), None
        if batches == planned or (tail and batches == rest):
            first = by_batch
        elif (fetched == planned and total % planned == 0) or tail:
            each = total // (rest if tail else planned)
            first = [index % each == 0 for index in range(total)]
        elif run.backwards == planned:
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
        crossing = epoch is not None and epoch.trained < run.micro and run.plan.steps_per_epoch is not None
        served = watch.given if watch is not None else 0
        if epoch is not None and epoch.trained > served > 0 and served != epoch.length:
            self._elsewhere(served, epoch)
        known = bool(run.plan.samples_per_epoch) and not self.draws
        if known and epoch is not None and epoch.whole and epoch.trained > len(epoch.sizes):
            text = "the epoch has ended, but the loop continues with stored batches (as itertools.cycle does)"
            run.stop(Cause.SAMPLES_REPEATED, text)
        if run.near or crossing or run.micro != len(run.planned):
            self._count(last=run.micro - epoch.trained if epoch is not None and crossing else 0)
        run.whole = run.micro == len(run.planned)

    def _elsewhere(self, served: int, epoch: Epoch) -> None:
        """Handles a step without a new batch of the loader: on other batches, or on the same once more."""
        run, epoch.trained = self._run, served
        if run.near and run.plan.steps_per_epoch is not None:
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
