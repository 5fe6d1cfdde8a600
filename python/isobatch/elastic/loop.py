"""The steps of a run with the ranks' agreements, in your own training loop (`Loop`) or in a trainer's
(`TrainerLoop`).
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from typing import Any, NamedTuple

from torch.optim import Optimizer

from isobatch.elastic.agreement import Agreements, RankGroup, Signals, Watch
from isobatch.elastic.equal_bits import EqualBits
from isobatch.elastic.steps import Micro, Step, Tokens, check_window, count
from isobatch.errors import InputError
from isobatch.training.chunks import Chunk, chunk_of
from isobatch.training.dealing import Pass, Span
from isobatch.training.loader import GlobalLoader, Join
from isobatch.training.lr import ElasticLR
from isobatch.training.reading import next_batch
from isobatch.training.shares import RunShare
from isobatch.training.workers import end_iteration


class _Window(NamedTuple):
    """A step's micro-batches and their token counts; without token counts the batches are read lazily."""

    span: Span
    passes: Sequence[Pass]
    batches: Iterable[Any]
    counts: Sequence[float]


class NoLoop:
    """Stands for the loop of a run before its first one."""

    source: Iterable[Any] = ()
    current: Step | None = None
    unfinished: str | None = None
    is_asked = stopping = joining = False

    def free(self) -> None:
        """Frees nothing."""


class Loop(NoLoop):
    """The run's remaining steps, until its end or until the training leaves the loop."""

    def __init__(
        self,
        progress: RunShare,
        ranks: RankGroup,
        loader: Iterable[Any],
        tokens: Tokens | None,
        watch: Watch,
        bits: EqualBits | None = None,
    ) -> None:
        self._bits = bits
        self._run, self.source, self._tokens, self._watch = progress, loader, tokens, watch
        self._equal = isinstance(loader, GlobalLoader) and loader.equal
        self._agreements = Agreements(ranks)
        self._begun = 0
        self._batches: Iterator[Any] = iter(())

    @property
    def stopping(self) -> bool:  # type: ignore[override]
        """Whether some rank was asked to stop, by the last agreement."""
        return self._agreements.last.stopping

    def free(self) -> None:
        """Ends all workers and frees the ranks' group, even if the training still holds its last step."""
        self._agreements.free()
        self._end_iteration()
        if isinstance(self.source, GlobalLoader):
            self.source.end_workers()

    def _end_iteration(self) -> None:
        """Ends the iteration over the loader, and its workers unless they persist: the garbage collector
        would free their queues first, and then wait ten seconds for unread batches."""
        end_iteration(self._batches)
        self._batches = iter(())

    @property
    def unfinished(self) -> str | None:  # type: ignore[override]
        """The work left in the current step, in words; None if there is none."""
        if self.current is None:
            return None
        if self.current.left:
            return f"step {self.current.number:,} has {self.current.left} micro-batches left"
        if any(scheduler.last_epoch != self.current.number + 1 for scheduler in self._run.schedulers):
            return f"the scheduler was not stepped in step {self.current.number:,}"
        return None

    def steps(self) -> Iterator[Step]:
        """Yields the steps, each to be finished before the next; ends after a step if ranks wait to join."""
        with ExitStack() as stack:
            stack.callback(self._end_iteration)
            signals = stack.enter_context(Signals())
            stack.enter_context(self._watch.guard())
            if self._watch.lost:  # while the network was wrapped: a step would have this rank's samples alone
                return
            self._batches = iter(self.source)
            windows = self._windows(self._batches)
            window = next(windows, None)
            if window is not None and self._tokens is not None:
                self._agreements.begin_step(False, sum(window.counts))
            while window is not None:
                is_asked = signals.received or self.is_asked
                total, ahead = 0.0, None
                joining = self._watch.is_awaited
                if self._tokens is None:
                    self._agreements.begin_step(is_asked, joining=joining)
                else:  # The next window is read while the device still computes the last step.
                    total = self._agreements.last.total
                    own = sum(window.counts)
                    check_window(total, own, window.span.number, whole=self._bits is not None)
                    ahead = next(windows, None)
                    own = 0.0 if ahead is None else sum(ahead.counts)
                    self._agreements.begin_step(is_asked, own, joining=joining)
                step = self._step(window, total)
                self._watch.begin_step(step.number)
                yield from self._finished(step)
                if self._watch.lost:
                    return
                self.joining = self._agreements.last.joining
                if self.joining:
                    break
                window = ahead if self._tokens is not None else next(windows, None)
            _ = self._agreements.last  # Waits for the agreement under way.
            self._watch.finish(self._run.step)

    def _finished(self, step: Step) -> Iterator[Step]:
        """Yields a step, and counts it once it is finished, even if the training leaves the loop after it."""
        self.current = step
        try:
            yield step
        finally:
            if self.unfinished is None:
                self._run.step = step.number + 1
                self.current = None
        if self.unfinished is not None and not self._watch.void:
            raise InputError(
                f"{self.unfinished}: take all of them, step the optimizer, then the scheduler, once each"
            )

    def _windows(self, loader: Iterator[Any]) -> Iterator[_Window]:
        for span in self._run.spans():
            passes = self._run.passes_like(span, equal=self._equal)
            batches: Iterable[Any] = (next_batch(loader, span.number) for _ in passes)
            counts: Sequence[float] = ()
            if self._tokens is not None:
                batches = [*batches]
                counts = [
                    0.0 if portion.stand_in else count(self._tokens, batch, whole=self._bits is not None)
                    for portion, batch in zip(passes, batches, strict=True)
                ]
            yield _Window(span, passes, batches, counts)

    def _step(self, window: _Window, total: float) -> Step:
        # Chunks are summed; DDP takes the mean over the replicas instead.
        replicas = self._run.replicas if self._bits is None else 1
        if self._tokens is None:
            factors = [portion.samples * replicas / window.span.samples for portion in window.passes]
        else:
            # All processes of a replica count the same tokens.
            total /= self._run.processes / self._run.replicas
            factors = [own * replicas / total for own in window.counts]
        self._begun += 1
        check = self._check_gradients if self._begun == 2 else None
        batches = (
            Micro(
                batch,
                factor,
                portion.last,
                portion.stand_in,
                self._equal,
                self._watch,
                None if at else check,
                self._chunk(window.span, portion),
                self._bits,
            )
            for at, (batch, portion, factor) in enumerate(
                zip(window.batches, window.passes, factors, strict=True)
            )
        )
        return Step(window.span, batches, len(window.passes), self._watch)

    def _chunk(self, span: Span, portion: Pass) -> Chunk | None:
        run = self._run
        if run.chunk is None:
            return None
        return chunk_of(span, run.chunk, portion, run.seed, run.replica, run.replicas)

    def _check_gradients(self) -> None:
        """Refuses gradients of the first step still there in the second; with several optimizers they may
        accumulate gradients for each other."""
        if len(self._run.schedulers) != 1:
            return
        groups = self._run.schedulers[0].optimizer.param_groups
        gradients = (parameter.grad for group in groups for parameter in group["params"])
        local = (gradient.to_local() if hasattr(gradient, "to_local") else gradient for gradient in gradients)
        if any(gradient is not None and not gradient.is_sparse and gradient.any() for gradient in local):
            raise InputError(
                "the gradients of the last step are still there, and this step's would be added to them: "
                "call optimizer.zero_grad() after each optimizer.step()"
            )


class TrainerLoop(NoLoop):
    """The steps of a run in a trainer's own loop, with the same number of micro-batches (`passes`) in each:
    where a step has fewer, stand-ins with factor 0 follow."""

    def __init__(self, progress: RunShare, ranks: RankGroup) -> None:
        self._progress = progress
        self.passes = progress.rounds
        self._signals = Signals()
        self._agreements = Agreements(ranks)

    @property
    def stopping(self) -> bool:  # type: ignore[override]
        """Whether some rank was asked to stop, as agreed on last."""
        return self._agreements.last.stopping

    @property
    def epoch(self) -> int:
        """The epoch of the step under way, else of the next."""
        return self._progress.place[0]

    @property
    def ends_epoch(self) -> bool:
        """Whether the current step, else the next, is the last of an epoch: a trainer has a single one."""
        span = next(self._progress.spans(), None)
        return span is not None and span.last_of_epoch

    def loader(self, dataset: Any, join: Join, **options: Any) -> GlobalLoader:
        """Makes a loader of the remaining micro-batches, each joined with its factor."""
        return GlobalLoader.of_run(self._progress, dataset, options, equal=True, least=self.passes, join=join)

    def scheduler(self, optimizer: Optimizer) -> ElasticLR:
        """Makes a scheduler for the trainer to step; the trainer may leave out steps skipped by a scaler."""
        scheduler = ElasticLR(optimizer, self._progress.course, self._progress.step, lambda _: True)
        self._progress.schedulers = [scheduler]
        return scheduler

    def begin(self) -> None:
        """Begins the training: signals are noted."""
        self._signals.__enter__()

    def begin_step(self) -> None:
        """Begins a step: if it is time, the ranks agree on whether to stop after it."""
        self._agreements.begin_step(self._signals.received or self.is_asked)

    def end_step(self) -> None:
        """Counts a step, also if the optimizer's step was skipped."""
        self._progress.step += 1
        for scheduler in self._progress.schedulers:
            scheduler.go_to(self._progress.step)

    def end(self) -> None:
        """Ends the training: the previous signal handlers are restored."""
        self._signals.__exit__()
