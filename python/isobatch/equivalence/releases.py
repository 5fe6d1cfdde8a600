"""Asks whether a training is the same against another release of a library, or in another environment."""

import tempfile
import time
from collections.abc import Callable, Sequence

import msgspec

from isobatch.equivalence.bisection import bisect_releases
from isobatch.equivalence.environments import (
    PRESENT,
    Environment,
    Release,
    installed_version,
    interpreter_of,
    make_environment,
    read_requirement,
)
from isobatch.equivalence.order import compare_in_order
from isobatch.equivalence.ordered import OrderedSame, answer_of
from isobatch.equivalence.runs import Recorded, run_both
from isobatch.equivalence.starts import OrderedRuns, TypedCommand
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
        settings = Recorded(folder, steps, as_is=as_is, each_pass=True, details=True)
        runs = OrderedRuns(typed, settings, limit, device)
        began = time.monotonic()
        if bisect is not None:
            answer = bisect_releases(runs, releases, bisect, say)
        elif python is not None:
            answer = _compare_two(runs, PRESENT, Environment(python, python=python), say)
        else:
            interpreter = interpreter_of(typed.launch)
            for release in releases:
                if not release.version:
                    raise missing("the version", f"write {release.package}==VERSION, or --bisect A..B")
            second = make_environment(interpreter, releases)
            say(f"{second.label}: {', '.join(second.changes) or 'it is installed already'}")
            present = [Release(r.package, installed_version(interpreter, r.package)) for r in releases]
            label = ", ".join(str(release) for release in present)
            answer = _compare_two(runs, msgspec.structs.replace(PRESENT, label=label), second, say)
        return msgspec.structs.replace(answer, seconds=round(time.monotonic() - began, 1))


def _compare_two(
    runs: OrderedRuns, present: Environment, second: Environment, say: Callable[[str], None]
) -> OrderedSame:
    twice, once = run_both(lambda: runs.start_twice(present, "here"), lambda: runs.start(second, "there"))
    ended = [*twice, once]
    names = [f"the command with {present.label}", "the command, started a second time,"]
    for label, run in zip([*names, f"the command with {second.label}"], ended, strict=True):
        if run.recording is None:
            raise run.no_step(label)
        say(f"{label.removeprefix('the command with ')}: {run.seconds:.0f} s")
    reference, repeat, recording = (run.recording for run in ended if run.recording is not None)
    comparison = compare_in_order(reference, recording, repeat)
    return answer_of(runs.typed.words, comparison, reference, recording, [present.label, second.label])
