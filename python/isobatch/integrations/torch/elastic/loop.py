"""The steps of a run, and the ranks' agreement at each: in a training loop of yours, or in a trainer's own."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from torch.optim import Optimizer

from isobatch.errors import InputError
from isobatch.integrations.torch.dealing import Pass, Span
from isobatch.integrations.torch.elastic.agreement import Agreements, RankGroup, Signals
from isobatch.integrations.torch.elastic.chunks import Chunk, chunk_of
from isobatch.integrations.torch.elastic.equal_bits import EqualBits
from isobatch.integrations.torch.elastic.loader import RunShare, next_batch
from isobatch.integrations.torch.elastic.steps import Micro, Step, Tokens, Watch, check_window, count
from isobatch.integrations.torch.loader import GlobalLoader, Join
from isobatch.integrations.torch.lr import ElasticLR


class _Window(NamedTuple):
    """A step's micro-batches on the CPU, and how many tokens each has; not read yet where nothing is counted."""

    span: Span
    passes: Sequence[Pass]
    batches: Iterable[Any]
    counts: Sequence[float]

    @property
    def own(self) -> float:
        return sum(self.counts)


class Loop:
    """The steps from where the run is to its end, or until the training leaves them."""

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
        self._run, self._loader, self._tokens, self._watch = progress, loader, tokens, watch
        self._equal = isinstance(loader, GlobalLoader) and loader.equal
        self._agreements = Agreements(ranks)
        self.asked = self.joining = False
        self.current: Step | None = None
        self._batches: Iterator[Any] = iter(())

    @property
    def stopping(self) -> bool:
        """Whether some rank was asked to stop, as agreed on last."""
        return self._agreements.stopping

    def free(self) -> None:
        """Lets go of the ranks' group: a training may hold its last step longer. The loader's workers are ended here: where the garbage
        collector comes to them first, it takes their queues before them, and waits ten seconds for what they never read."""
        self._agreements.free()
        for name in "close", "_shutdown_workers":  # A GlobalLoader's iterator, and a DataLoader's.
            end = getattr(self._batches, name, None)
            if end is not None:
                end()

    @property
    def unfinished(self) -> str | None:
        """The work left in the step under way, in words; None where nothing is."""
        if self.current is None:
            return None
        if self.current.left:
            return f"step {self.current.number:,} has {self.current.left} micro-batches left"
        if any(scheduler.last_epoch != self.current.number + 1 for scheduler in self._run.schedulers):
            return f"the scheduler was not stepped in step {self.current.number:,}"
        return None

    def steps(self) -> Iterator[Step]:
        """Yields the steps, each to be finished before the next is asked for; where somebody waits to join they end behind one."""
        with Signals() as signals, self._watch.guard():
            self._batches = iter(self._loader)
            windows = self._windows(self._batches)
            window = next(windows, None)
            if window is not None and self._tokens is not None:
                self._agreements.begin_step(False, window.own)
            while window is not None:
                asked = signals.received or self.asked
                total, ahead = 0.0, None
                joining = self._watch.wanted
                if self._tokens is None:
                    self._agreements.begin_step(asked, joining=joining)
                else:  # The next window is read while the device still computes the last step.
                    total = self._agreements.total
                    check_window(total, window.own, window.span.number, whole=self._bits is not None)
                    ahead = next(windows, None)
                    self._agreements.begin_step(asked, 0.0 if ahead is None else ahead.own, joining=joining)
                step = self._step(window, total)
                yield from self._finished(step)
                self.joining = not self._watch.lost and self._agreements.joining
                if self._watch.lost or self.joining:
                    return
                window = ahead if self._tokens is not None else next(windows, None)
            self._agreements.end()

    def _finished(self, step: Step) -> Iterator[Step]:
        """Gives a step to the training, and counts it when it is done; also where the training leaves the loop after it."""
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
                    0.0 if one.stand_in else count(self._tokens, batch, whole=self._bits is not None)
                    for one, batch in zip(passes, batches, strict=True)
                ]
            yield _Window(span, passes, batches, counts)

    def _step(self, window: _Window, total: float) -> Step:
        # Chunks are summed, where DDP takes the mean over the replicas.
        replicas = self._run.replicas if self._bits is None else 1
        if self._tokens is None:
            factors = [one.samples * replicas / window.span.samples for one in window.passes]
        else:
            # All processes of a replica count the same tokens.
            total /= self._run.processes / self._run.replicas
            factors = [own * replicas / total for own in window.counts]
        batches = (
            Micro(
                batch,
                factor,
                one.last,
                one.stand_in,
                self._equal,
                self._watch,
                self._chunk(window.span, one),
                self._bits,
            )
            for batch, one, factor in zip(window.batches, window.passes, factors, strict=True)
        )
        return Step(window.span, batches, len(window.passes), self._watch)

    def _chunk(self, span: Span, one: Pass) -> Chunk | None:
        run = self._run
        if run.chunk is None:
            return None
        return chunk_of(span, run.chunk, one, run.seed, run.replica, run.replicas)


class TrainerLoop:
    """The steps of a run in a trainer's own loop, with the same number of micro-batches in each.

    Attributes:
        passes: micro-batches in every step, the trainer's accumulation. Where a step has fewer, stand-ins with factor 0 follow.
    """

    current: Step | None = None
    unfinished: str | None = None

    def __init__(self, progress: RunShare, ranks: RankGroup) -> None:
        self._progress = progress
        self.passes = progress.rounds
        self._signals = Signals()
        self._agreements = Agreements(ranks)
        self.asked = False

    @property
    def stopping(self) -> bool:
        """Whether some rank was asked to stop, as agreed on last."""
        return self._agreements.stopping

    @property
    def epoch(self) -> int:
        """The epoch of the step under way, else of the next."""
        return self._progress.place[0]

    @property
    def ends_epoch(self) -> bool:
        """Whether the step under way, else the next, is the last of an epoch. To the trainer all that is left of the run is one."""
        span = next(self._progress.spans(), None)
        return span is not None and span.last_of_epoch

    def loader(self, dataset: Any, join: Join, **options: Any) -> GlobalLoader:
        """Makes a loader of the micro-batches of the steps left, each joined with its factor."""
        return GlobalLoader.of_run(self._progress, dataset, options, equal=True, least=self.passes, join=join)

    def scheduler(self, optimizer: Optimizer) -> ElasticLR:
        """Makes a scheduler for the trainer to step, or not where its scaler skipped the optimizer's step."""
        scheduler = ElasticLR(optimizer, self._progress.course, self._progress.step, lambda _: True)
        self._progress.schedulers = [scheduler]
        return scheduler

    def begin(self) -> None:
        """Begins the training: signals are noted."""
        self._signals.__enter__()

    def begin_step(self) -> None:
        """Begins a step: if it is time, the ranks agree on whether to stop after it."""
        self._agreements.begin_step(self._signals.received or self.asked)

    def end_step(self) -> None:
        """Counts a step, also where the optimizer's was skipped."""
        self._progress.step += 1
        for scheduler in self._progress.schedulers:
            scheduler.go_to(self._progress.step)

    def end(self) -> None:
        """Ends the training: the handlers before are put back."""
        self._signals.__exit__()
