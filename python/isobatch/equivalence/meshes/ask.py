"""Asks a script along the dimensions of a mesh: tensor, context, pipeline and expert parallelism.

The run without them is the reference. Each tensor of a rank is compared with its place there.
"""

import re
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from math import prod
from pathlib import Path

import msgspec
import numpy as np

from isobatch.equivalence.commands.command import read_command, start_line
from isobatch.equivalence.commands.runs import Recorded, Starter
from isobatch.equivalence.compare import SplitResult
from isobatch.equivalence.evidence import Measured
from isobatch.equivalence.laws import SplitCause
from isobatch.equivalence.meshes.causes import MeshStep, compare_steps, starts_apart
from isobatch.equivalence.meshes.shards import Tensor, place, read_tensors
from isobatch.equivalence.records import Recording
from isobatch.equivalence.result import Same
from isobatch.equivalence.split import Split
from isobatch.equivalence.weights import GroupDifference
from isobatch.errors import InputError
from isobatch.launch.command_line import require_command
from isobatch.words import few

DIMENSIONS = ("tp", "pp", "cp", "ep")
MOST_RANKS = 8
"""Processes of one start."""
ROWS = {
    "dimension": ("ranks and dimensions", "each run has the mesh's ranks, and holds or sees a part on them"),
    "weights": ("the first weights", "each rank's are a part of those without the mesh; all parts are there"),
    "gradient": ("the gradient by parameter", "finite and not 0, on each rank that of its place without"),
    "norm": ("the norm that clipping sees", "on each rank that of the whole gradient"),
    "update": ("the first update", "learning rate and change of the weights, in each place"),
}
_BRACE = re.compile(r"\{(world|dp|tp|pp|cp|ep)\}")
_LAWS = {"another_lr": "update", "another_update": "update", "other_weights": "weights"}
_NORMS = ("norm_of_shards", "norm_of_copies", "mesh_norm")


class Mesh(msgspec.Struct, frozen=True):
    """The sizes of a mesh's dimensions."""

    sizes: dict[str, int]

    @property
    def world(self) -> int:
        """Its ranks."""
        return prod(self.sizes.values())

    @property
    def inside(self) -> dict[str, int]:
        """The dimensions beside data parallelism, of more than one rank."""
        return {name: size for name, size in self.sizes.items() if name != "dp" and size > 1}

    def __str__(self) -> str:
        return ",".join(f"{name}={size}" for name, size in self.inside.items()) or "without"

    def fill(self, words: Sequence[str]) -> list[str]:
        """Fills the braces of a command."""
        numbers = {"dp": 1, **dict.fromkeys(DIMENSIONS, 1), **self.sizes, "world": self.world}
        return [_BRACE.sub(lambda brace: str(numbers[brace[1]]), word) for word in words]


def read_across(across: str | Mapping[str, int], words: Sequence[str]) -> list[Mesh]:
    """Reads `tp=2,pp=2`: the mesh without, each dimension alone, and all together if they fit.

    >>> [str(mesh) for mesh in read_across("tp=2,pp=4", ["{world}", "{tp}", "{pp}"])]
    ['without', 'tp=2', 'pp=4', 'tp=2,pp=4']
    """
    typed = across
    if isinstance(across, str):
        pairs = [re.fullmatch(r"\s*(\w+)\s*=\s*([1-9]\d{0,2})\s*", pair) for pair in across.split(",")]
        if not all(pairs):
            raise InputError(f"--across {across!r}: expected DIMENSION=RANKS, such as tp=2,pp=2")
        across = {pair[1]: int(pair[2]) for pair in pairs if pair is not None}
    unknown = [name for name in across if name not in ("dp", *DIMENSIONS)]
    inside = {name: size for name, size in across.items() if name != "dp" and size > 1}
    if unknown or not inside:
        raise InputError(
            f"--across {typed!r}: expected at least one of {few(DIMENSIONS)} of two ranks or more, and dp "
            f"beside them{f'; got {few(unknown)}' if unknown else ''}"
        )
    written = {brace for word in words for brace in _BRACE.findall(word)}
    if absent := [f"{{{name}}}" for name in ("world", *inside) if name not in written]:
        raise InputError(
            f"--across needs {few(absent)} in the command, such as torchrun --nproc-per-node {{world}} "
            "train.py " + " ".join(f"--{name} {{{name}}}" for name in inside)
        )
    data = {"dp": across.get("dp", 1)}
    together = [Mesh(data | inside)] if len(inside) > 1 else []
    alone = [Mesh(data | {name: size}) for name, size in inside.items()]
    return [Mesh(data), *alone, *(mesh for mesh in together if mesh.world <= MOST_RANKS)]


def same_across(
    command: Sequence[str],
    across: str | Mapping[str, int],
    *,
    limit: float,
    device: str = "cpu",
    as_is: bool = False,
    say: Callable[[str], None] = lambda _: None,
) -> Same:
    """Compares a training under a mesh with the same training without; the arguments are those of `same`."""
    without, *meshes = read_across(across, command)
    require_command(command)
    with tempfile.TemporaryDirectory(prefix="isobatch-same-") as folder:
        runs = MeshRuns(Recorded(folder, 1, as_is=as_is, entries=True), limit, device, say)
        try:
            return runs.ask(command, without, meshes)
        finally:
            runs.close()


class MeshRuns:
    """The runs of questions about scripts with the same libraries, one question after the other."""

    def __init__(
        self,
        settings: Recorded,
        limit: float,
        device: str = "cpu",
        say: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.settings, self.device, self.say = settings, device, say
        self.command: Sequence[str] = ()
        self.starter = Starter(limit, device)

    def close(self) -> None:
        """Ends the process for forked starts."""
        self.starter.close()

    def ask(self, command: Sequence[str], without: Mesh, meshes: Sequence[Mesh]) -> Same:
        """Runs the meshes and compares each with the run without."""
        began, self.command = time.monotonic(), command
        reference, tensors = self._run(without, "without")
        trusted = _check_reference(tensors[0])
        unasked: dict[str, str] = {}
        results: list[SplitResult] = []
        for mesh in meshes:
            try:
                recording, held = self._run(mesh, str(mesh))
                _check_mesh(mesh, recording, reference)
                if (apart := starts_apart(tensors[0], held)) is not None:
                    results.append(_result(mesh, recording, [apart], [], (float("inf"), None)))
                    continue
                step = MeshStep(mesh.sizes, recording, place(tensors[0], held))
                causes, groups, figures = compare_steps(step, reference, tensors[0])
                if causes:
                    _check_rows(mesh, recording, reference)
                results.append(_result(mesh, recording, causes, groups, figures))
            except InputError as error:
                first, *further = str(error).splitlines()
                unasked[str(mesh)] = " … ".join([first, *further[-1:]])
        if any(result.causes for result in results):
            trusted = trusted or self._differs_from_itself(without, tensors[0])
        measured = _measure(trusted, unasked, results, has_norm=bool(reference.last.first.norms))
        different = any(not result.same for result in results)
        return Same(
            same=None if trusted else False if different else None if unasked else True,
            measured=measured,
            command=list(self.command),
            across={name: size for mesh in meshes for name, size in mesh.sizes.items()},
            reference=str(without),
            splits=results,
            changes=reference.changes,
            unasked=unasked,
            noise=0.0,
            tolerance=0.0,
            steps=1,
            versions=reference.last.first.versions,
            seconds=round(time.monotonic() - began, 1),
        )

    def _run(self, mesh: Mesh, name: str) -> tuple[Recording, list[list[Tensor]]]:
        """Runs a mesh; returns its recording, and each rank's tensors."""
        folder = Path(self.settings.folder) / name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        split = Split(mesh.world, 1, 1)
        words, environment = start_line(read_command(mesh.fill(self.command)), split, folder, self.device)
        settings = msgspec.structs.replace(self.settings, folder=str(folder / "record"))
        run = self.starter.start(words, environment, settings, split)
        self.say(f"{mesh}: {run.seconds:.0f} s" + ("" if run.recording else ", no step was recorded"))
        if run.recording is None:
            raise run.no_step(f"the command at {mesh}")
        ranks = next(iter(run.recording.steps.values())).ranks
        held = [read_tensors(Path(settings.folder), record) for record in ranks]
        if not all(held):
            kind = ranks[0].kind
            raise InputError(
                f"at {mesh} the engine of {kind} keeps gradients in buffers of its own: --across reads "
                "parameters' gradients"
            )
        return run.recording, held

    def _differs_from_itself(self, without: Mesh, tensors: Sequence[Tensor]) -> str:
        """Runs the reference again: tells what differs where it is not the same twice."""
        _, again = self._run(without, "again")
        for tensor, repeated in zip(tensors, again[0], strict=True):
            if not np.allclose(
                tensor.gradient, repeated.gradient, rtol=1e-3, atol=1e-5 * np.abs(tensor.gradient).max()
            ):
                return (
                    f"two runs without the mesh differ in the gradient of {tensor.name}: seed what the "
                    "script draws, so that two runs are the same"
                )
        return ""


def _check_reference(tensors: Sequence[Tensor]) -> str:
    """Tells why nothing can be compared with the run without a mesh; empty where it can be."""
    broken = [t.name for t in tensors if not np.isfinite(t.gradient).all()]
    if broken:
        return f"the run without has a gradient that is not finite: {few(broken)}"
    if not any(tensor.gradient.any() for tensor in tensors):
        return "the run without has a gradient of 0"
    return ""


def _check_mesh(mesh: Mesh, recording: Recording, reference: Recording) -> None:
    """Refuses a run without the ranks of its mesh, or without a sign of its dimensions."""
    ranks = next(iter(recording.steps.values())).ranks
    if ranks[0].world != mesh.world:
        raise InputError(
            f"{mesh.world} processes run, and the process group has {ranks[0].world}: expected all of them"
        )
    first = next(iter(reference.steps.values())).first
    parted = any(record.held < first.held for record in ranks)
    grouped = ranks[0].groups_made != first.groups_made
    inputs = [[samples.hashes for samples in record.passes] for record in ranks]
    apart = any(hashes != inputs[0] for hashes in inputs) and mesh.sizes["dp"] == 1
    if not (parted or grouped or apart):
        braces = few([f"{{{name}}}" for name in mesh.inside])
        raise InputError(
            f"nothing shows that the script uses {braces}: each rank holds the whole model, is given the "
            "same input, and makes no DeviceMesh or group of this size"
        )


def _check_rows(mesh: Mesh, recording: Recording, reference: Recording) -> None:
    """Refuses a difference made by other samples."""
    drawn = []
    for run in (recording, reference):
        event = next(iter(run.steps))
        rows = run.rows(event, own=True)
        if rows is None:
            ranks = run.steps[event].hashes
            drawn.append({row for rank in ranks for samples in rank for row in samples})
        else:
            drawn.append({str(row) for rank in rows for batch in rank for row in batch})
    taken, expected = drawn
    if expected <= taken and taken > expected and not {"pp", "cp"} & mesh.inside.keys():
        raise InputError(
            f"a step takes {len(taken)} different samples, and {len(expected)} without the mesh: keep the "
            "batch of a step, whatever the mesh (divide it by {ep} where ranks have samples of their own)"
        )


def _result(
    mesh: Mesh,
    recording: Recording,
    causes: list[SplitCause],
    groups: list[GroupDifference],
    figures: tuple[float, float | None],
) -> SplitResult:
    first = next(iter(recording.steps.values())).first
    return SplitResult(
        split=str(mesh),
        same=not causes,
        step=0,
        difference=figures[0],
        weights=[],
        residual=None,
        groups=groups,
        lrs=first.lrs[:1],
        norms=[norm for norm, _ in first.clips],
        samples=sum(len(samples.hashes) for samples in first.passes),
        update=figures[1],
        seconds=round(recording.seconds, 1),
        causes=causes,
    )


def _measure(
    trusted: str, unasked: Mapping[str, str], results: Sequence[SplitResult], *, has_norm: bool
) -> list[Measured]:
    """Tables the measurements."""
    broken: dict[str, dict[str, None]] = {}
    for result in results:
        for cause in result.causes:
            row = "norm" if cause.id in _NORMS else _LAWS.get(cause.id, "gradient")
            broken.setdefault(row, {})[cause.name] = None
    missing = trusted or "; ".join(f"{mesh}: {reason}" for mesh, reason in unasked.items())
    states = []
    for row, (measures, how) in ROWS.items():
        text = ", ".join(broken.get(row, ())) or missing
        holds = False if row in broken else None if missing else True
        if row == "norm" and not has_norm:
            measures, holds, text = f"{measures} (the script clips none)", True, ""
        states.append(Measured(row, measures, how, holds, text))
    return states
