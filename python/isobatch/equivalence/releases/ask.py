"""Asks whether a training is the same against another release of a library, or in another environment."""

import tempfile
import time
from collections.abc import Callable, Sequence

import msgspec

from isobatch.equivalence.commands.environments import (
    PRESENT,
    Environment,
    Release,
    installed_version,
    interpreter_of,
    make_environment,
    read_requirement,
)
from isobatch.equivalence.commands.runs import Recorded, run_both
from isobatch.equivalence.commands.starts import OrderedRuns, TypedCommand
from isobatch.equivalence.order.answer import OrderedSame, answer_of
from isobatch.equivalence.order.comparison import compare_in_order
from isobatch.equivalence.releases.bisection import bisect_releases
from isobatch.equivalence.releases.weights import Sides, weigh_samples
from isobatch.errors import InputError, missing


def compare_releases(
    typed: TypedCommand,
    requirements: Sequence[str],
    python: str | None,
    bisect: str | None,
    *,
    steps: int,
    limit: float,
    device: str,
    as_is: bool,
    say: Callable[[str], None],
) -> OrderedSame:
    """Compares a command with itself in another environment, up to the first difference.

    Args:
        typed: the command.
        requirements: `package==version`, or for a bisection a package.
        python: an interpreter with another environment, in the place of requirements.
        bisect: `A..B`: releases of the package, halved to the first that differs from A.
        steps: optimizer steps to compare.
        limit: seconds of a run.
        device: "cpu" or "cuda".
        as_is: keeps autocast.
        say: is called with each run as it ends.
    """
    releases = [read_requirement(text) for text in requirements]
    if python is not None and (releases or bisect):
        raise InputError(
            "--against-python takes the place of --against and --bisect", field="--against-python"
        )
    with tempfile.TemporaryDirectory(prefix="isobatch-against-") as folder:
        sets = () if typed.command is None else typed.command.sets
        settings = Recorded(folder, steps, as_is=as_is, each_pass=True, details=True, sets=sets)
        runs = OrderedRuns(typed, settings, limit, device)
        began = time.monotonic()
        try:
            if bisect is not None:
                answer = bisect_releases(runs, releases, bisect, say)
            else:
                answer = _compare_two(runs, *_both_sides(typed, releases, python, say), say)
        finally:
            runs.close()
        changes, seconds = [*answer.changes, *runs.changes], round(time.monotonic() - began, 1)
        return msgspec.structs.replace(answer, changes=changes, seconds=seconds)


def _both_sides(
    typed: TypedCommand, releases: Sequence[Release], python: str | None, say: Callable[[str], None]
) -> tuple[Environment, Environment]:
    """Returns the present environment and the other one, made where there is none."""
    if python is not None:
        return PRESENT, Environment(python, python=python)
    interpreter = interpreter_of(typed.launch)
    for release in releases:
        if not release.version:
            raise missing("the version", f"write {release.package}==VERSION, or --bisect A..B")
    second = make_environment(interpreter, releases)
    say(f"{second.label}: {', '.join(second.changes) or 'it is installed already'}")
    present = [Release(r.package, installed_version(interpreter, r.package)) for r in releases]
    return msgspec.structs.replace(PRESENT, label=", ".join(map(str, present))), second


def _compare_two(
    runs: OrderedRuns, present: Environment, second: Environment, say: Callable[[str], None]
) -> OrderedSame:
    runs.look(present)
    runs.keep(present)
    first, once = run_both(lambda: runs.start(present, "here"), lambda: runs.start(second, "there"))
    again = runs.repeat(present, "here")
    if runs.settings.rollouts:  # it began before there were completions to play
        once = runs.start(second, "there")
    ended = [first, again, once]
    names = [f"the command with {present.label}", "the command, started a second time,"]
    for label, run in zip([*names, f"the command with {second.label}"], ended, strict=True):
        if run.recording is None:
            raise run.no_step(label)
        say(f"{label.removeprefix('the command with ')}: {run.seconds:.0f} s")
    reference, repeat, recording = (run.recording for run in ended if run.recording is not None)
    comparison = compare_in_order(reference, recording, repeat)
    sides = Sides(reference, recording, [present.label, second.label])
    weighed = weigh_samples(runs, present, comparison, sides)
    return answer_of(runs.typed.words, comparison, sides, weighed)
