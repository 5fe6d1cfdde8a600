"""Halves the releases of a package to the first with another training."""

from collections.abc import Callable, Sequence

import msgspec

from isobatch.equivalence.commands.environments import (
    PRESENT,
    Environment,
    Release,
    interpreter_of,
    make_environment,
    number_of,
    read_range,
    releases_between,
)
from isobatch.equivalence.commands.runs import SplitRun
from isobatch.equivalence.commands.starts import OrderedRuns
from isobatch.equivalence.order.answer import OrderedSame, Start, answer_of
from isobatch.equivalence.order.comparison import OrderedComparison, compare_in_order
from isobatch.equivalence.records import Recording
from isobatch.equivalence.releases.weights import Sides, weigh_samples
from isobatch.errors import InputError


class Bisection:
    """Releases between two, each started once and compared with the first."""

    def __init__(
        self, runs: OrderedRuns, package: str, others: Sequence[Release], say: Callable[[str], None]
    ) -> None:
        self.runs, self.package, self.others, self.say = runs, package, others, say
        self.python = interpreter_of(runs.typed.launch)
        self.starts: list[Start] = []
        self.compared: dict[str, tuple[OrderedComparison, Sides]] = {}
        self.reference: tuple[str, Recording, Recording] | None = None
        self.environment = PRESENT  # of the reference, once it has started

    def begin(self, version: str) -> bool:
        """Starts the reference, twice; False where it cannot start."""
        environment = self._environment(version)
        if environment is None:
            return False
        self.environment = environment
        self.runs.look(environment)
        self.runs.keep(environment)
        runs = [self.runs.start(environment, version), self.runs.repeat(environment, version)]
        recording, repeat = (run.recording for run in runs)
        if recording is None or repeat is None:
            self._step_over(version, runs[0])
            return False
        self.reference = version, recording, repeat
        self.starts.append(Start(version, True, "the first that starts: the others are compared with it"))
        return True

    def compare(self, version: str) -> bool | None:
        """Starts a release; tells whether it is the same as the reference, None where it cannot start."""
        environment = self._environment(version)
        if environment is None:
            return None
        run = self.runs.start(environment, version)
        if run.recording is None:
            self._step_over(version, run)
            return None
        assert self.reference is not None
        first, recording, repeat = self.reference
        comparison = compare_in_order(recording, run.recording, repeat)
        sides = Sides(recording, run.recording, [f"{self.package} {first}", f"{self.package} {version}"])
        self.compared[version] = comparison, sides
        row, same = comparison.first, comparison.same
        text = "the same" if same else "not measured" if row is None else f"{row.measures} differs"
        self.starts.append(Start(version, same, text))
        self.say(f"{self.package} {version}: {text}, {run.seconds:.0f} s")
        return same is not False

    def _environment(self, version: str) -> Environment | None:
        try:
            return make_environment(self.python, [Release(self.package, version), *self.others])
        except InputError as error:
            self.starts.append(Start(version, None, f"stepped over: {error}"))
            self.say(f"{self.package} {version}: cannot be installed")
            return None

    def _step_over(self, version: str, run: SplitRun) -> None:
        last = run.output.strip().splitlines()[-1:] or ["it printed nothing"]
        self.starts.append(Start(version, None, f"stepped over, it {run.reason}: {last[0][:200]}"))
        self.say(f"{self.package} {version}: it cannot start the script")


def bisect_releases(
    runs: OrderedRuns, releases: Sequence[Release], bisect: str, say: Callable[[str], None]
) -> OrderedSame:
    """Halves the releases of a range to the first unlike the oldest."""
    package, first, last = read_range(bisect)
    bare = [release for release in releases if not release.version]
    if not package and not bare and len(releases) == 1:
        bare = [*releases]
    if not package:
        if len(bare) != 1:
            raise InputError(
                "--bisect A..B needs the package: write --bisect 'PACKAGE==A..B'", field="--bisect"
            )
        package = bare[0].package
    others = [release for release in releases if release.version and release.package != package]
    halves = Bisection(runs, package, others, say)
    versions = releases_between(halves.python, package, first, last)
    say(f"{len(versions)} releases of {package}, from {versions[0]} to {versions[-1]}")
    while versions and not halves.begin(versions[0]):
        del versions[0]
    if len(versions) < 2:
        raise InputError(_stepped_over(halves, f"no two releases of {package} start the command"))
    low, high = 0, len(versions) - 1
    while high > low and (same := halves.compare(versions[high])) is None:
        high -= 1
    if high == low:
        raise InputError(_stepped_over(halves, f"no release after {versions[0]} starts the command"))
    if same:
        return _bisected(halves, versions[high])
    unstarted: set[int] = set()
    while candidates := [at for at in range(low + 1, high) if at not in unstarted]:
        middle = min(candidates, key=lambda at: abs(at - (low + high) / 2))
        same = halves.compare(versions[middle])
        if same is None:
            unstarted.add(middle)
        elif same:
            low = middle
        else:
            high = middle
    return _bisected(halves, versions[high], versions[low])


def _bisected(halves: Bisection, version: str, before: str = "") -> OrderedSame:
    """Returns the answer of the release with the first difference, with all starts."""
    comparison, sides = halves.compared[version]
    weighed = weigh_samples(halves.runs, halves.environment, comparison, sides)
    answer = answer_of(halves.runs.typed.words, comparison, sides, weighed)
    starts = sorted(halves.starts, key=lambda start: number_of(start.name))
    causes = answer.causes
    if causes:
        since = f"since {halves.package} {version}, and not in {before}: {causes[0].text}"
        causes = [msgspec.structs.replace(causes[0], text=since), *causes[1:]]
    return msgspec.structs.replace(answer, starts=starts, causes=causes)


def _stepped_over(halves: Bisection, text: str) -> str:
    return "\n".join([f"{text}:", *(f"{start.name}: {start.text}" for start in halves.starts)])
