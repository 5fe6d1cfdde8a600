"""Asks whether a training is the same: at other splits, on a mesh, or beside another run."""

import shlex
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from typing import Any

from isobatch.equivalence.commands.command import read_command
from isobatch.equivalence.commands.runs import Recorded
from isobatch.equivalence.commands.shell_lines import launch_words
from isobatch.equivalence.commands.starts import read_typed_command
from isobatch.equivalence.meshes.ask import same_across
from isobatch.equivalence.releases.ask import compare_releases
from isobatch.equivalence.restarts.ask import resumed
from isobatch.equivalence.result import Same
from isobatch.equivalence.rewritten import compare_commands
from isobatch.equivalence.split import Split
from isobatch.equivalence.split_runs import SplitRuns
from isobatch.errors import InputError
from isobatch.launch.command_line import require_command

__all__ = ["Same", "same"]

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
    against_command: str | Sequence[str] | None = None,
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
        against_command: another command to compare with, in one line or in words.
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
    if against_command is not None and (across or against or against_python or bisect or resume is not None):
        raise InputError(
            "--against-command is a question of its own: ask it without --across, --against, --bisect and "
            "--resume",
            field="--against-command",
        )
    beside = {"--resume": resume is not None, "--against": bool(against or against_python or bisect)}
    questions = [flag for flag, is_asked in ({"--across": across is not None} | beside).items() if is_asked]
    if len(questions) > 1:
        raise InputError(f"{questions[0]} and {questions[1]} are two questions: ask one after the other")
    for flag, value in {"--at-step": at_step, "--resume-ranks": resume_ranks}.items():
        if value is not None and resume is None:
            raise InputError(f"{flag} is of a restart: it needs --resume", field=flag)
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
    if len(splits) > 1 and (against_command is not None or any(beside.values())):
        raise InputError(
            "several --split are compared with each other: give one to compare beside another run"
        )
    if any(beside.values()):
        typed = read_typed_command(command, splits[0] if splits else None, tool)
        common: dict[str, Any] = {"limit": limit, "device": device, "as_is": as_is, "say": say}
        if resume is not None:
            return resumed(typed, resume, at_step=at_step, ranks=resume_ranks, steps=steps, **common)
        requirements = [against] if isinstance(against, str) else [*(against or ())]
        return compare_releases(typed, requirements, against_python, bisect, steps=steps or STEPS, **common)
    with tempfile.TemporaryDirectory(prefix="isobatch-same-") as name, ExitStack() as stack:

        def runs_of(words: Sequence[str], folder: str, tool: str | None, label: str = "") -> SplitRuns:
            read = read_command(words, tool=tool)
            settings = Recorded(folder, steps or STEPS, as_is=as_is, sets=read.sets, details=bool(label))
            runs = SplitRuns(read, settings, limit, device, lambda text: say(label + text))
            return stack.enter_context(closing(runs))

        if against_command is None:
            return runs_of(command, name, tool).ask(splits[0] if splits else None, tuple(splits[1:]))
        words = shlex.split(against_command) if isinstance(against_command, str) else against_command
        require_command(words)
        words = launch_words(words, limit, say)
        old = runs_of(words, tempfile.mkdtemp(dir=name), None, "old: ")
        new = runs_of(command, tempfile.mkdtemp(dir=name), tool, "new: ")
        return compare_commands(old, new, splits[0] if splits else None)
