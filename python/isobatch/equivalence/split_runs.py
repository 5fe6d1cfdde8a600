"""The runs of a script at several splits, and their comparison."""

import re
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from isobatch.equivalence.commands.command import Command, start_line
from isobatch.equivalence.commands.runs import Recorded, SplitRun, Starter, run_both
from isobatch.equivalence.commands.starts import with_rollouts
from isobatch.equivalence.commands.typed import TypedSplit, read_typed
from isobatch.equivalence.compare import OF_RANKS, OTHER_SAMPLES, UNJUDGED, SplitResult
from isobatch.equivalence.epochs import look_at_end
from isobatch.equivalence.evidence import measure, verdict
from isobatch.equivalence.laws import SplitCause
from isobatch.equivalence.meshes.replicas import ALONE, find_replicas, join_replicas
from isobatch.equivalence.records import Recording, as_passes
from isobatch.equivalence.result import Same
from isobatch.equivalence.rounding import Rounding
from isobatch.equivalence.shared import advised, compare_splits, share_clock
from isobatch.equivalence.split import MAX_SAMPLES, Split, Splits, choose_rank_splits, choose_splits

_REFUSED = re.compile("unrecognized arguments|no such option|not used by the HfArgumentParser", re.IGNORECASE)
"""A script's words against flags that it does not have."""


class SplitRuns:
    """The runs of one command; `settings` are each run's, each in a folder of its own inside of theirs."""

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
        requested, first = self.first(requested)
        over_ranks = self.typed is not None and self.typed.over_ranks
        splits = choose_rank_splits(requested) if over_ranks else choose_splits(requested)
        first = self._give_samples(requested, first)
        by_update = first.measured == "update"
        whole, single = self._reference(splits, frozen=bool(first.notes("batch norm")), by_update=by_update)
        noise = Rounding.between(first, self.record(requested, "repeat", shake=True))
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
            changes=self.changes(first),
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

    @property
    def own(self) -> Split | None:
        """The split as typed; None where braces take any."""
        return self.command.own if self.typed is None else self.typed.own

    def look(self) -> Recording | None:
        """Starts a command as typed, once, to learn where its code has the numbers of a split."""
        if not self.command.in_code or self.typed is not None:
            return None
        run = self._run(self.command.default, "typed", look=MAX_SAMPLES)
        self.typed = read_typed(self.command, self._folder(run.split, "typed") / "record")
        if self.typed is None:
            raise run.no_step("the command")
        sets = {"sets": self.typed.sets, "loader": self.typed.loader, "flags": self.typed.flags}
        self.settings = msgspec.structs.replace(self.settings, **sets)
        return run.recording

    def first(self, requested: Split | None) -> tuple[Split, Recording]:
        """Runs the split to ask for: the one given, else the command's own.

        Numbers in the code are seen by a run as typed, which is the first where it has the split to ask for.
        """
        first = self.look()
        if self.typed is None:
            split = requested or self.command.default
            run = self._run(split, "asked")
            if run.recording is not None:
                return split, run.recording
            if self.command.adds_flags and _REFUSED.search(run.output):
                self.command = self.command.as_typed()
                return self.first(requested)
            raise run.no_step(f"the command at {split}")
        split = requested or self.typed.asked
        if first is None or len(first.of(0)) < self.settings.steps or not first.has_shape(split):
            first = self.record(split, "asked")
        self.typed.check_ranks(first)
        return split, msgspec.structs.replace(first, split=split)

    def _give_samples(self, requested: Split, first: Recording) -> Recording:
        """Gives completions, random draws and rows of the first run to all others; returns the first."""
        self._play(requested)
        if first.notes("draws") and first.rows(next(iter(first.steps))) is not None:
            self.settings = msgspec.structs.replace(self.settings, alike=True)
            first = self.record(requested, "asked")
        if first.draws_prompts:
            return first  # the completions are given, whatever the rows of a call
        self.loader, self.rows = first.draws()
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

    def record(self, split: Split, name: str, **switches: bool) -> Recording:
        """Runs a split; an InputError with the script's last lines where no step was recorded."""
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

    def changes(self, recording: Recording) -> list[str]:
        """Lists the changes of the script, with the notes of one run."""
        changes = [*self.command.launch.notes, *self.command.notes, *recording.changes]
        if self.typed is not None:
            changes += [text for text in self.typed.changes if text not in changes]
        if any(step.first.norms for step in recording.steps.values()):
            changes.append("clipping measured and not applied")
        if self.own is not None and self.own != recording.split:
            changes.append(f"{recording.split} in the place of {self.own}")
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
