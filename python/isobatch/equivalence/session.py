"""Asks a script: starts it at several splits, and compares them."""

import re
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from isobatch.equivalence.commands.command import Command, read_command, start_line
from isobatch.equivalence.commands.runs import Recorded, SplitRun, Starter, run_both
from isobatch.equivalence.commands.shell_lines import launch_words
from isobatch.equivalence.commands.starts import read_typed_command, with_rollouts
from isobatch.equivalence.commands.typed import TypedSplit, read_typed
from isobatch.equivalence.compare import OF_RANKS, OTHER_SAMPLES, UNJUDGED, SplitResult
from isobatch.equivalence.epochs import look_at_end
from isobatch.equivalence.evidence import measure, verdict
from isobatch.equivalence.laws import SplitCause
from isobatch.equivalence.meshes.ask import same_across
from isobatch.equivalence.meshes.replicas import ALONE, find_replicas, join_replicas
from isobatch.equivalence.records import Recording, as_passes
from isobatch.equivalence.releases.ask import compare_releases
from isobatch.equivalence.restarts.ask import resumed
from isobatch.equivalence.result import Same
from isobatch.equivalence.rounding import Rounding
from isobatch.equivalence.shared import advised, compare_splits, share_clock
from isobatch.equivalence.split import MAX_SAMPLES, Split, Splits, choose_rank_splits, choose_splits
from isobatch.errors import InputError
from isobatch.launch.command_line import require_command

__all__ = ["Same", "same"]

_REFUSED = re.compile("unrecognized arguments|no such option|not used by the HfArgumentParser", re.IGNORECASE)
"""A script's words against flags that it does not have."""
STEPS = 3
LIMIT = 300.0


def same(
    command: Sequence[str],
    split: str | Sequence[str] | None = None,
    *,
    across: str | Mapping[str, int] | None = None,
    tool: str | None = None,
    steps: int | None = None,
    limit: float = LIMIT,
    device: str = "cpu",
    as_is: bool = False,
    against: str | Sequence[str] | None = None,
    against_python: str | None = None,
    bisect: str | None = None,
    resume: str | None = None,
    at_step: int | None = None,
    resume_ranks: int | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> Same:
    """Compares a training with itself at other splits of its batch over ranks, accumulation and micro-batch.

    The command is started once a split, for a few optimizer steps; nothing of the script is edited. With
    `against` it is compared with itself under other releases, in the order in which things happen.

    Args:
        command: words, with braces such as `{micro_batch}`, or of a tool whose options are known; of a shell
            script, the line that it launches.
        split: RANKSxACCUMULATIONxMICRO_BATCH, or several of the same batch; by default the command's own.
        across: dimensions of a mesh, such as "tp=2,pp=2", compared with the run without in place of splits.
        tool: the tool's name, if it is not recognized.
        steps: optimizer steps to compare.
        limit: seconds of a run.
        device: "cpu", or "cuda", where ranks may share a GPU.
        as_is: keeps autocast.
        against: `package==version`, or several: another environment to compare with.
        against_python: the interpreter of an environment to compare with.
        bisect: `A..B`, the releases of a package to find the first difference in.
        resume: words for a restart after a checkpoint, whose path is `{checkpoint}` in them.
        at_step: the checkpoint after this step.
        resume_ranks: of the restart.
        say: is called with each run as it ends.

    Raises:
        InputError: the command cannot be split, or a run records no step; the message has its last lines.

    >>> same(["python", "-c", "pass"])
    Traceback (most recent call last):
    isobatch.errors.InputError: ...
    """
    require_command(command)
    command = launch_words(command, limit, say)
    if across is not None:
        if split:
            raise InputError("--across compares meshes and --split splits of a batch: ask one of them")
        return same_across(command, across, limit=limit, device=device, as_is=as_is, say=say)
    texts = [split] if isinstance(split, str) else split or ()
    splits = [Split.parse(each) for text in texts for each in text.split(",")]
    for further in splits[1:]:
        if further.effective_batch != splits[0].effective_batch:
            raise InputError(
                f"--split {further} has {further.effective_batch} samples in a step and {splits[0]} has "
                f"{splits[0].effective_batch}: splits of one batch are compared"
            )
    if against or against_python or bisect or resume is not None:
        typed = read_typed_command(command, splits[0] if splits else None, tool)
        common: dict[str, Any] = {"limit": limit, "device": device, "as_is": as_is, "say": say}
        if resume is not None:
            if against or against_python or bisect:
                raise InputError("--resume and --against are two questions: ask one after the other")
            return resumed(typed, resume, at_step=at_step, ranks=resume_ranks, steps=steps, **common)
        requirements = [against] if isinstance(against, str) else [*(against or ())]
        return compare_releases(typed, requirements, against_python, bisect, steps=steps or STEPS, **common)
    read = read_command(command, tool=tool)
    with tempfile.TemporaryDirectory(prefix="isobatch-same-") as folder:
        session = Session(
            read, Recorded(folder, steps or STEPS, as_is=as_is, sets=read.sets), limit, device, say
        )
        try:
            return session.ask(splits[0] if splits else None, tuple(splits[1:]))
        finally:
            session.close()


class Session:
    """The runs of one question; `settings` are each run's, each in a folder of its own inside of theirs."""

    def __init__(
        self, command: Command, settings: Recorded, limit: float, device: str, say: Callable[[str], None]
    ) -> None:
        self.command, self.settings, self.say = command, settings, say
        self.device = device
        self.rows: list[list[int]] = []  # of the dataset, step by step
        self.loader = ""
        self.typed: TypedSplit | None = None
        self.replicas = ALONE
        self.starter = Starter(limit, device)

    def ask(self, requested: Split | None, further: tuple[Split, ...]) -> Same:
        """Runs the splits and compares them; `further`: the splits beside the requested one."""
        began = time.monotonic()
        requested, first = self._first(requested)
        over_ranks = self.typed is not None and self.typed.over_ranks
        splits = choose_rank_splits(requested) if over_ranks else choose_splits(requested)
        first = self._give_samples(requested, first)
        by_update = first.measured == "update"
        whole, single = self._reference(splits, frozen=bool(first.notes("batch norm")), by_update=by_update)
        noise = Rounding.between(first, self._record(requested, "repeat", shake=True))
        reference = whole.recording or single.recording
        if reference is None:
            raise whole.no_step(f"the command at {whole.split}")
        others = [split for split in further or splits.further if split not in (whole.split, single.split)]
        runs = [whole, *(self._run(split, "other") for split in dict.fromkeys(others))]
        if requested.ranks == 1 and self.command.launch.name in ("", "python"):
            runs = [_of_a_group(run) for run in runs]
        if not by_update:
            runs.append(single)
        recordings = {first.split: first}
        for run in runs:
            if run.recording is not None:
                recordings.setdefault(run.split, run.recording)
        compared = [recording for split, recording in recordings.items() if split != reference.split]
        comparison, results = compare_splits(reference, single.recording, noise, compared)
        results = advised(share_clock(results), reference.last.first.trainer)
        measured = measure(list(recordings.values()), reference, results, noise)
        results, unjudged = _part_results(results)
        unasked = {str(run.split): run.reason for run in runs if run.recording is None}
        asked_and_missing = [str(split) for split in further if str(split) in unasked]
        same = verdict(measured, reference, results, whole_question=not unjudged and not asked_and_missing)
        if same and single.recording is not None and not by_update:
            row, results = look_at_end(self._run, first, single.recording, self.loader, noise, results)
            measured.append(row)
        return Same(
            same=same and all(result.same for result in results),
            measured=measured,
            measured_by=first.measured,
            command=list(self.command.words),
            reference=str(reference.split),
            splits=results,
            changes=self._changes(first),
            unasked=unasked | {split: f"{cause.text}. {cause.remedy}" for split, cause in unjudged.items()},
            noise=noise.gradients[0],
            tolerance=comparison.tolerance,
            steps=len(reference.of(next(iter(reference.steps))[0])),
            versions=first.last.first.versions,
            seconds=round(time.monotonic() - began, 1),
        )

    def close(self) -> None:
        """Ends the process for forked starts."""
        self.starter.close()

    def _first(self, requested: Split | None) -> tuple[Split, Recording]:
        """Runs the split to ask for: the one given, else the command's own.

        Numbers in the code are seen by a run as typed, which is the first where it has the split to ask for.
        """
        if not self.command.in_code:
            split = requested or self.command.default
            run = self._run(split, "asked")
            if run.recording is not None:
                return split, run.recording
            if self.command.adds_flags and _REFUSED.search(run.output):
                self.command = self.command.as_typed()
                return self._first(requested)
            raise run.no_step(f"the command at {split}")
        run = self._run(self.command.default, "typed", look=MAX_SAMPLES)
        self.typed = read_typed(self.command, self._folder(run.split, "typed") / "record")
        if self.typed is None:
            raise run.no_step("the command")
        sets = {"sets": self.typed.sets, "loader": self.typed.loader, "flags": self.typed.flags}
        self.settings = msgspec.structs.replace(self.settings, **sets)
        split, first = requested or self.typed.asked, run.recording
        if first is None or len(first.of(0)) < self.settings.steps or not first.has_shape(split):
            first = self._record(split, "asked")
        self.typed.check_ranks(first)
        return split, msgspec.structs.replace(first, split=split)

    def _give_samples(self, requested: Split, first: Recording) -> Recording:
        """Gives completions, random draws and rows of the first run to all others; returns the first."""
        self._play(requested)
        if first.notes("draws") and first.rows(next(iter(first.steps))) is not None:
            self.settings = msgspec.structs.replace(self.settings, alike=True)
            first = self._record(requested, "asked")
        if first.draws_prompts:
            return first  # the completions are given, whatever the rows of a call
        if (loader := first.training_loader()) is not None:
            self.rows, self.loader = first.drawn_steps(), loader.name
        else:
            self.loader, self.rows = first.steps_by_hand()
        return first

    def _play(self, requested: Split) -> None:
        """Gives the completions of the first run to all others."""
        runs = (self._folder(requested, "asked"), self._folder(self.command.default, "typed"))
        self.settings = with_rollouts(self.settings, next(run for run in runs if run.exists()) / "record")

    def _reference(self, splits: Splits, *, frozen: bool, by_update: bool) -> Sequence[SplitRun]:
        """Runs the whole batch in one pass beside one sample a pass: each has one thread.

        By updates, the samples are steps of their own: no gradient of a pass is seen.
        """

        if self.typed is not None and self.typed.over_ranks:
            left_out = "the script does not accumulate, so that no run shows each sample's gradient"
            return self._run(splits.whole, "whole"), SplitRun(splits.single, None, None, 0.0, "", left_out)

        def run_single(split: Split, name: str) -> SplitRun:
            if not by_update:
                return self._run(split, name, each_pass=True, freeze=frozen)
            alone = Split(1, 1, split.micro_batch)
            run = self._run(alone, name, steps=split.accumulation, singles=True, freeze=frozen)
            if run.recording is None or len(run.recording.steps) < split.accumulation:
                return msgspec.structs.replace(run, recording=None)
            return msgspec.structs.replace(run, recording=as_passes(run.recording))

        runs = run_both(lambda: self._run(splits.whole, "whole"), lambda: run_single(splits.single, "single"))
        recording = runs[1].recording
        if recording is None or not np.linalg.norm(next(iter(recording.steps.values())).changes):
            # A sample alone has no gradient, or is refused: two have one.
            passes, rest = divmod(splits.single.accumulation, 2)
            if passes and not rest:
                run = run_single(Split(1, passes, 2), "pairs")
                return [runs[0], run if run.recording is not None else runs[1]]
        return runs

    def _record(self, split: Split, name: str, **switches: bool) -> Recording:
        run = self._run(split, name, **switches)
        if run.recording is None:
            raise run.no_step(f"the command at {split}")
        return run.recording

    def _folder(self, split: Split, name: str) -> Path:
        return Path(self.settings.folder) / f"{name}-{split}"

    def _run(self, split: Split, name: str, **switches: Any) -> SplitRun:
        folder = self._folder(split, name)
        folder.mkdir(exist_ok=True)
        words, environment = start_line(self.command, split, folder, self.device)
        settings = msgspec.structs.replace(
            self.settings,
            folder=str(folder / "record"),
            split=split,
            **({"rows": self._rows_for(split)} | switches),
        )
        run = self.starter.start(words, environment, settings, split)
        self.say(f"{split}: {run.seconds:.0f} s" + ("" if run.recording else ", no step was recorded"))
        if settings.rows and run.recording is not None and run.recording.draws_alike_by_hand:
            # Given rows would hide that every rank draws the same: it runs with its own.
            settings = msgspec.structs.replace(settings, rows=None)
            run = self.starter.start(words, environment, settings, split)
        if run.recording is None:
            return run
        replicas = find_replicas(run.recording)
        was_strided = self.replicas.is_strided
        if len(replicas.ranks) >= len(self.replicas.ranks):
            self.replicas = replicas
        if settings.rows and replicas.is_strided and not was_strided:
            # The rows were dealt to neighbouring ranks as to one replica, and they are of different ones.
            return self._run(split, name, **switches)
        return msgspec.structs.replace(run, recording=join_replicas(run.recording, replicas))

    def _rows_for(self, split: Split) -> dict[str, Any] | None:
        """Deals the requested split's dataset rows out to the ranks of a split, step by step."""
        if not self.rows:
            return None
        shares = [np.array_split(np.array(step, dtype=int), split.ranks) for step in self.rows]
        return {
            "loader": self.loader,
            "ranks": self.replicas.deal(
                [np.concatenate(rank).tolist() for rank in zip(*shares, strict=True)]
            ),
        }

    def _changes(self, recording: Recording) -> list[str]:
        changes = [*self.command.launch.notes, *self.command.notes, *recording.changes]
        if self.typed is not None:
            changes += [text for text in self.typed.changes if text not in changes]
        if any(step.first.norms for step in recording.steps.values()):
            changes.append("clipping measured and not applied")
        own = self.command.own if self.typed is None else self.typed.own
        if own is not None and own != recording.split:
            changes.append(f"{recording.split} in the place of {own}")
        return changes


def _of_a_group(run: SplitRun) -> SplitRun:
    """Leaves ranks without a process group out: the script, started as one process, is for one."""
    if run.recording is None or run.recording.last.first.world >= run.split.ranks:
        return run
    left_out = f"its {run.split.ranks} processes form no process group: the script trains in one"
    return msgspec.structs.replace(run, recording=None, left_out=left_out)


def _part_results(results: list[SplitResult]) -> tuple[list[SplitResult], dict[str, SplitCause]]:
    """Separates the splits to judge from those with other samples or random draws, each with its cause."""
    judged, unjudged = [], {}
    for result in results:
        if any(cause.id in OF_RANKS for cause in result.causes):  # whatever the samples are
            sure = [cause for cause in result.causes if cause.id not in UNJUDGED]
            judged.append(msgspec.structs.replace(result, causes=sure))
            continue
        causes = [cause for cause in result.causes if cause.id in UNJUDGED]
        if causes and (causes[0].id == OTHER_SAMPLES or len(causes) == len(result.causes)):
            unjudged[result.split] = causes[0]
        else:
            judged.append(result)
    return judged, unjudged
