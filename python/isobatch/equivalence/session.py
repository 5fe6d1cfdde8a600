"""Asks a script: starts it at several splits, and compares them."""

import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from isobatch.equivalence.causes import SplitCause
from isobatch.equivalence.command import Command, read_command, start_line
from isobatch.equivalence.compare import (
    OTHER_SAMPLES,
    UNJUDGED,
    Comparison,
    SplitResult,
    repeat_noise,
    share_factor,
)
from isobatch.equivalence.records import Recording
from isobatch.equivalence.result import Same
from isobatch.equivalence.runs import Recorded, SplitRun, start_run
from isobatch.equivalence.split import Split, Splits, choose_splits
from isobatch.errors import InputError

STEPS = 3
LIMIT = 300.0


def same(
    command: Sequence[str],
    split: str | Sequence[str] | None = None,
    *,
    tool: str | None = None,
    steps: int = STEPS,
    limit: float = LIMIT,
    device: str = "cpu",
    as_is: bool = False,
    say: Callable[[str], None] = lambda _: None,
) -> Same:
    """Compares a training with itself at other splits of its batch over ranks, accumulation and micro-batch.

    The command is started once a split, for a few optimizer steps; nothing of the script is edited.

    Args:
        command: words, with braces such as `{micro_batch}`, or of a tool whose options are known.
        split: RANKSxACCUMULATIONxMICRO_BATCH, or several of the same batch; by default the command's own.
        tool: the tool's name, if it is not recognized.
        steps: optimizer steps to compare.
        limit: seconds of a run.
        device: "cpu", or "cuda", where ranks may share a GPU.
        as_is: keeps autocast.
        say: is called with each run as it ends.

    Raises:
        InputError: the command cannot be split, or a run records no step; the message has its last lines.

    >>> same(["python", "-c", "pass"])
    Traceback (most recent call last):
    isobatch.errors.InputError: ...
    """
    words = list(command)
    requested, further = _requested_splits([split] if isinstance(split, str) else list(split or []))
    read = read_command(words, tool=tool)
    with tempfile.TemporaryDirectory(prefix="isobatch-same-") as folder:
        session = Session(
            words, read, Path(folder), steps=steps, limit=limit, device=device, as_is=as_is, say=say
        )
        return session.ask(requested or read.default, further)


def _requested_splits(texts: list[str]) -> tuple[Split | None, list[Split] | None]:
    splits = [Split.parse(text) for text in texts]
    for further in splits[1:]:
        if further.effective_batch != splits[0].effective_batch:
            raise InputError(
                f"--split {further} has {further.effective_batch} samples in a step and {splits[0]} has "
                f"{splits[0].effective_batch}: splits of one batch are compared"
            )
    return (splits[0], splits[1:] or None) if splits else (None, None)


class Session:
    """The runs of one question."""

    def __init__(
        self,
        words: list[str],
        command: Command,
        folder: Path,
        *,
        steps: int,
        limit: float,
        device: str,
        as_is: bool,
        say: Callable[[str], None],
    ) -> None:
        self.words, self.command, self.folder, self.say = words, command, folder, say
        self.steps, self.limit, self.device, self.as_is = steps, limit, device, as_is
        self.alike = False
        self.rows: list[list[int]] | None = None
        self.loader: str | None = None
        self.began = time.monotonic()

    def ask(self, requested: Split, further: list[Split] | None) -> Same:
        """Runs the splits and compares them."""
        splits = choose_splits(requested)
        if further is not None:
            splits = splits._replace(others=tuple(further))
        first = self._record(requested, "asked")
        if first.rows(next(first.events())) is not None and any(
            "random draws" in note for note in first.notes
        ):
            self.alike = True
            first = self._record(requested, "asked")
        self._keep_rows(first)
        whole, single = self._reference(splits, frozen="batch norm" in first.notes)
        repeat = self._record(requested, "repeat")
        noise = repeat_noise(first, repeat)
        reference = whole.recording or single.recording
        if reference is None:
            raise self._no_step(whole)
        comparison = Comparison(reference, single.recording, noise)
        recordings = [
            recording
            for recording in (first, whole.recording, single.recording)
            if recording not in (None, reference)
        ]
        unasked = {str(run.split): _reason(run) for run in (whole, single) if run.recording is None}
        for split in splits.others:
            run = self._run(split, "other")
            if run.recording is None:
                unasked[str(split)] = _reason(run)
            else:
                recordings.append(run.recording)
        results = share_factor(
            [comparison.compare(recording) for recording in recordings if recording is not None]
        )
        results, unjudged = _part_results(results)
        unasked |= {split: cause.text for split, cause in unjudged.items()}
        if unjudged and all(result.same for result in results):
            raise _not_comparable(unjudged, results)
        return Same(
            same=all(result.same for result in results),
            command=self.words,
            reference=str(reference.split),
            splits=results,
            changes=self._changes(first),
            unasked=unasked,
            noise=noise,
            tolerance=comparison.tolerance,
            steps=len(reference.steps[min(reference.steps)]),
            versions=first.last.first.versions,
            seconds=round(time.monotonic() - self.began, 1),
        )

    def _reference(self, splits: Splits, frozen: bool) -> tuple[SplitRun, SplitRun]:
        """Runs the whole batch in one pass beside one sample a pass: each has one thread."""
        with ThreadPoolExecutor(2) as pool:
            whole = pool.submit(self._run, splits.whole, "whole")
            single = pool.submit(self._run, splits.single, "single", each_pass=True, freeze=frozen)
            runs = whole.result(), single.result()
        if runs[1].recording is None or not np.linalg.norm(
            next(iter(runs[1].recording.steps.values()))[0].changes
        ):
            # A sample alone has no gradient, or is refused: two have one.
            pairs = Split(1, splits.single.accumulation // 2, splits.single.micro_batch * 2)
            if pairs.accumulation >= 1 and pairs.effective_batch == splits.whole.effective_batch:
                run = self._run(pairs, "pairs", each_pass=True, freeze=frozen)
                if run.recording is not None:
                    return runs[0], run
        return runs

    def _record(self, split: Split, name: str) -> Recording:
        run = self._run(split, name)
        if run.recording is None:
            raise self._no_step(run)
        return run.recording

    def _run(self, split: Split, name: str, *, each_pass: bool = False, freeze: bool = False) -> SplitRun:
        folder = self.folder / f"{name}-{split}"
        folder.mkdir(parents=True, exist_ok=True)
        words, environment = start_line(self.command, split, folder)
        settings = Recorded(
            folder=str(folder / "record"),
            steps=self.steps,
            each_pass=each_pass,
            freeze=freeze,
            alike=self.alike,
            as_is=self.as_is,
            rows=self._rows_for(split),
        )
        run = start_run(words, environment, settings, split, self.limit, self.device)
        self.say(f"{split}: {run.seconds:.0f} s" + ("" if run.recording else ", no step was recorded"))
        return run

    def _keep_rows(self, recording: Recording) -> None:
        """Keeps the requested split's dataset rows, step by step, for every other split."""
        steps = recording.drawn_steps()
        loader = recording.training_loader()
        if steps and loader is not None:
            self.rows, self.loader = steps, loader.name

    def _rows_for(self, split: Split) -> dict[str, Any] | None:
        if self.rows is None:
            return None
        ranks: list[list[int]] = [[] for _ in range(split.ranks)]
        for step in self.rows:
            for rank, share in enumerate(np.array_split(np.array(step), split.ranks)):
                ranks[rank] += share.tolist()
        return {"loader": self.loader, "ranks": ranks}

    def _changes(self, recording: Recording) -> list[str]:
        notes = recording.notes
        changes = [note for note in notes if note.endswith((" off", " not applied", "NCCL", "every sample"))]
        if any(step.first.norms for steps in recording.steps.values() for step in steps):
            changes.append("clipping measured and not applied")
        own = self.command.own
        if own is not None and own != recording.split:
            changes.append(f"{recording.split} in the place of {own}")
        return changes

    def _no_step(self, run: SplitRun) -> InputError:
        return InputError(
            f"the command at {run.split} {_reason(run)}:\n{run.output or '(it printed nothing)'}"
        )


def _part_results(results: list[SplitResult]) -> tuple[list[SplitResult], dict[str, SplitCause]]:
    """Separates splits with other samples or other random draws, each with its cause, from splits to judge."""
    judged, unjudged = [], {}
    for result in results:
        causes = [cause for cause in result.causes if cause.name in UNJUDGED]
        if causes and (causes[0].name == OTHER_SAMPLES or len(causes) == len(result.causes)):
            unjudged[result.split] = causes[0]
        else:
            judged.append(result)
    return judged, unjudged


def _not_comparable(unjudged: dict[str, SplitCause], judged: list[SplitResult]) -> InputError:
    """Names the splits that cannot be judged with their first cause, and the splits with the same training."""
    same = f" ({', '.join(result.split for result in judged)}: the same training)" if judged else ""
    cause = next(iter(unjudged.values()))
    return InputError(
        f"{', '.join(unjudged)} cannot be compared: {cause.text}. To fix it: {cause.mend}{same}"
    )


def _reason(run: SplitRun) -> str:
    if run.code is None:
        return f"took no optimizer step within {run.seconds:.0f} s"
    return f"ended with exit code {run.code} before an optimizer of torch took a step"
