"""Asks whether a training is the same after a kill and a restart."""

import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from isobatch.equivalence.commands.runs import Recorded
from isobatch.equivalence.commands.starts import TypedCommand
from isobatch.equivalence.laws import SplitCause
from isobatch.equivalence.order.answer import OrderedSame, Start
from isobatch.equivalence.order.comparison import OrderedRow
from isobatch.equivalence.records import Recording
from isobatch.equivalence.restarts.checks import epoch_starts
from isobatch.equivalence.restarts.comparison import Resumed, compare_resumed, repeats
from isobatch.equivalence.restarts.starts import (
    MOST_PLACES,
    Checkpoint,
    Restarts,
    choose_checkpoints,
    find_checkpoints,
)
from isobatch.errors import InputError
from isobatch.words import counted, few

PAGE = "resume.md#is-it-the-same-after-a-restart"
MOST_STEPS = 100
"""Steps of a run that does not end before."""


def resumed(
    typed: TypedCommand,
    resume: str,
    *,
    at_step: int | None,
    ranks: int | None,
    steps: int | None,
    limit: float,
    device: str,
    as_is: bool,
    say: Callable[[str], None],
) -> OrderedSame:
    """Compares a run with one killed after its checkpoint and started again.

    Args:
        typed: the training command.
        resume: words to add at the restart; `{checkpoint}` is the checkpoint's path.
        at_step: the least steps before the checkpoint; None: the first in mid-epoch, and at an epoch's end.
        ranks: of the restart, if they are others.
        steps: of the whole run; None: to its end, at most MOST_STEPS.
        limit: seconds of a run.
        device: "cpu" or "cuda".
        as_is: keeps autocast.
        say: is called with each run as it ends.
    """
    began = time.monotonic()
    same_ranks = ranks is None or ranks == typed.split.ranks
    with tempfile.TemporaryDirectory(prefix="isobatch-resume-") as name:
        starts = Restarts(typed, resume, Path(name), limit, device)
        settings = Recorded(
            "",
            steps or MOST_STEPS,
            as_is=as_is,
            details=True,
            untouched=True,
            sets=() if typed.command is None else typed.command.sets,
            dropout=same_ranks,  # over other ranks it cannot be the same
        )
        try:
            answer = _ask(starts, settings, at_step, ranks, say)
        finally:
            starts.close()
    return msgspec.structs.replace(answer, seconds=round(time.monotonic() - began, 1))


def _ask(
    starts: Restarts,
    settings: Recorded,
    at_step: int | None,
    ranks: int | None,
    say: Callable[[str], None],
) -> OrderedSame:
    """Runs to the end, then to each chosen checkpoint and on from there."""
    settings = starts.look(settings)
    for number in range(MOST_PLACES):
        place = starts.place(f"whole-{number}")
        run = starts.start(f"whole-{number}", place, settings)
        if not starts.learn(f"whole-{number}"):
            break
    say(f"without a stop: {counted(run.steps, 'step')}, {run.seconds:.0f} s")
    if run.recording is None:
        raise run.no_step("the command")
    whole, last = run.recording, len(run.recording.last_steps)
    ends = last if run.code == 0 and last < settings.steps else None
    checkpoints = find_checkpoints(whole, place)
    answers = []
    for checkpoint in choose_checkpoints(checkpoints, epoch_starts(whole), last, at_step):
        say(f"killed after step {checkpoint.step}, and started again with {Path(checkpoint.path).name}")
        answers.append(_restart(starts, settings, whole, checkpoint, ends, ranks))
    joined = _joined(starts.typed.words, whole, answers)
    return msgspec.structs.replace(joined, changes=[*joined.changes, *starts.changes])


def _restart(
    starts: Restarts,
    settings: Recorded,
    whole: Recording,
    checkpoint: Checkpoint,
    ends: int | None,
    ranks: int | None,
) -> Resumed:
    """Kills a run after a checkpoint, starts it again, and compares both with the one without a stop.

    `ends`: the steps to the script's own end; None where the run was ended.
    """
    step, last = checkpoint.step, len(whole.last_steps)
    place = starts.place(f"at-{step}")
    killed = starts.start(f"killed-{step}", place, msgspec.structs.replace(settings, stop=step))
    if killed.recording is None:
        raise killed.no_step("the command, started a second time,")
    written = {point.step: point for point in find_checkpoints(killed.recording, place)}
    if step not in written:
        raise InputError(f"the run that was to be killed wrote no checkpoint after step {step}")
    rest = settings.steps if ends is not None else last - step
    again = msgspec.structs.replace(settings, steps=rest, seed=1)
    run = starts.start(f"again-{step}", place, again, written[step], ranks)
    if run.recording is None and run.code != 0:
        raise run.no_step(f"the command, started again with {' '.join(starts.resume) or 'no further words'},")
    return compare_resumed(
        whole,
        run.recording,
        step,
        repeat=repeats(whole, killed.recording, step),
        ends=ends,
        same_ranks=ranks is None or ranks == starts.typed.split.ranks,
    )


def _joined(command: Sequence[str], whole: Recording, answers: Sequence[Resumed]) -> OrderedSame:
    """Joins the answers at each checkpoint: a row differs where it differs after one of them."""
    rows: list[OrderedRow] = []
    for states in zip(*(answer.rows for answer in answers), strict=True):
        order = sorted(states, key=lambda row: {False: 0, None: 1, True: 2}[row.holds])
        rows.append(order[0])
    causes: dict[str, SplitCause] = {}
    for answer in answers:
        for cause in answer.causes:
            page = msgspec.structs.replace(cause, text=f"{answer.where}: {cause.text}", page=PAGE)
            causes.setdefault(cause.id, page)
    verdicts = [answer.same for answer in answers]
    same = False if False in verdicts else None if None in verdicts else True
    starts = [
        Start(
            answer.where,
            answer.same,
            "the same"
            if answer.same
            else "differs: " + few([cause.name for cause in answer.causes])
            if answer.same is False
            else "not measured",
        )
        for answer in answers
    ]
    first = whole.last.first
    return OrderedSame(
        kind="resume",
        same=same,
        sides=["the run without a stop", "the run that was killed and started again"],
        measured=rows,
        starts=starts,
        causes=[*causes.values()],
        command=list(command),
        reference="the run without a stop",
        splits=[],
        changes=sorted(whole.changes),
        unasked={},
        noise=0.0,
        tolerance=0.0,
        steps=max((answer.steps for answer in answers), default=0),
        versions=first.versions,
        seconds=0.0,
    )
