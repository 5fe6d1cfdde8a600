"""Starts of a training, each in a working folder of its own, and their checkpoints."""

import os
import shlex
from collections.abc import Sequence
from pathlib import Path

import msgspec

from isobatch.equivalence.commands.runs import Recorded, SplitRun, Starter
from isobatch.equivalence.commands.starts import TypedCommand, as_observed, set_in_code
from isobatch.equivalence.records import Recording
from isobatch.equivalence.split import MAX_SAMPLES, Split
from isobatch.errors import InputError
from isobatch.launch.words import given_settings
from isobatch.words import counted, few

MOST_PLACES = 6
"""Starts of the first run: each finds another folder that is there already and is written into."""
STATES = (".pt", ".pth", ".bin", ".ckpt", ".safetensors", ".distcp", ".pkl", ".npz", ".tar")
"""Ends of files of states; where none is written, any other file may be one."""
_OUTPUTS = ("out", "save", "dir", "checkpoint", "ckpt", "log")
"""Parts of the names of settings for folders to write into."""


class Checkpoint(msgspec.Struct, frozen=True):
    """A checkpoint: the optimizer steps before it, and its path below the run's folder."""

    step: int
    path: str


class Restarts:
    """The starts of one question, each in a working folder with links to the present one's files."""

    def __init__(self, typed: TypedCommand, resume: str, folder: Path, limit: float, device: str) -> None:
        self.typed, self.folder, self.device = typed, folder, device
        self.resume = shlex.split(resume)
        self.starter = Starter(limit, device)
        self.changes: list[str] = []  # in the code
        self.apart: set[Path] = set()  # folders that a run writes into, below the working folder

    def place(self, name: str) -> Path:
        """Makes a working folder: links to the present one's files, without the folders for output."""
        place = self.folder / name
        place.mkdir()
        own = {
            Path(str(setting.value)).parts[0]
            for setting in given_settings([*self.typed.words, *self.resume])
            if any(part in setting.name for part in _OUTPUTS) and Path(str(setting.value)).parts
        }
        self._link(Path.cwd(), place, Path(), {*self.apart, *map(Path, own)})
        return place

    def _link(self, folder: Path, place: Path, below: Path, apart: set[Path]) -> None:
        """Links the entries of a folder, but for those of `apart`: their folders are made anew."""
        for entry in os.scandir(folder):
            path = below / entry.name
            if path in apart:
                if entry.is_dir():
                    (place / entry.name).mkdir()
            elif any(path in second.parents for second in apart):
                (place / entry.name).mkdir()
                self._link(folder / entry.name, place / entry.name, path, apart)
            else:
                (place / entry.name).symlink_to(folder / entry.name)

    def close(self) -> None:
        """Ends the process for forked starts."""
        self.starter.close()

    def learn(self, name: str) -> bool:
        """Learns the user's own folder in front of a run's write into it; False without one."""
        note = self.folder / f"{name}-files" / "record" / "elsewhere.txt"
        if not note.exists():
            return False
        self.apart.add(Path(note.read_text()))
        return True

    def look(self, settings: Recorded) -> Recorded:
        """Returns settings to set the split where the code has its numbers, by a first start."""
        command = self.typed.command
        if command is None or not command.in_code:
            return settings
        looking = msgspec.structs.replace(settings, steps=1, look=MAX_SAMPLES)
        run = self.start("typed", self.place("typed"), looking)
        settings, self.changes = set_in_code(settings, command, self.folder / "typed-files", run)
        return settings

    def start(
        self,
        name: str,
        place: Path,
        settings: Recorded,
        checkpoint: Checkpoint | None = None,
        ranks: int | None = None,
    ) -> SplitRun:
        """Starts the command in a folder; behind a checkpoint with the words of a restart."""
        folder = self.folder / f"{name}-files"
        folder.mkdir()
        split = self.typed.split
        if ranks is not None and ranks != split.ranks:
            split = _over(split, ranks, keeps_batch=self.typed.command is not None)
        words, variables = self.typed.line(self.typed.launch, split, folder, self.device)
        if checkpoint is not None:
            words = [*words, *self.resume]
        path = "" if checkpoint is None else str(place / checkpoint.path)
        filled = [word.replace("{checkpoint}", path).replace("{folder}", str(place)) for word in words]
        settings = msgspec.structs.replace(
            settings,
            folder=str(folder / "record"),
            watched=str(place),
            split=split if self.typed.command is not None else None,
        )
        run = self.starter.start(filled, variables, settings, split, place)
        if run.recording is None:
            return run
        return msgspec.structs.replace(run, recording=as_observed(run.recording))


def _over(split: Split, ranks: int, *, keeps_batch: bool) -> Split:
    """Returns a split over other ranks: of the same batch, where braces carry its numbers."""
    if not keeps_batch:
        return Split(ranks, split.accumulation, split.micro_batch)
    passes, rest = divmod(split.effective_batch, ranks * split.micro_batch)
    if not rest and passes:
        return Split(ranks, passes, split.micro_batch)
    size, rest = divmod(split.effective_batch, ranks)
    if rest:
        raise InputError(
            f"--resume-ranks {ranks} does not divide the batch of {split.effective_batch}",
            field="--resume-ranks",
        )
    return Split(ranks, 1, size)


def find_checkpoints(run: Recording, place: Path) -> list[Checkpoint]:
    """Lists the checkpoints of a run: files of states, or the folder that all files of one step are in."""
    by_step: dict[int, list[str]] = {}
    for recorded in run.steps.values():
        record = recorded.first
        by_step |= {int(number): files for number, files in record.checkpoints.items()}
    seen = {path for files in by_step.values() for path in files}
    late = [str(path) for path in place.rglob("*") if path.name.endswith(STATES) and not path.is_symlink()]
    by_step.setdefault(len(run.last_steps), []).extend(path for path in late if path not in seen)
    checkpoints = []
    for step in sorted(by_step):
        files = [path for path in by_step[step] if path.endswith(STATES)] or by_step[step]
        if step and files:
            others = {Path(path) for number, paths in by_step.items() if number != step for path in paths}
            path = _path_of([*map(Path, files)], others - {*map(Path, files)})
            checkpoints.append(Checkpoint(step, str(path.relative_to(place))))
    return checkpoints


def _path_of(files: Sequence[Path], others: set[Path]) -> Path:
    """Returns the folder of a checkpoint of several files, unless it has those of other steps too."""
    folder = Path(os.path.commonpath([path.parent for path in files]))
    if any(path.suffix == ".distcp" for path in files):
        return folder
    if len(files) == 1 or any(path.parent == folder for path in others):
        return max(files, key=lambda path: (sum(letter.isdigit() for letter in path.name), path))
    return folder


def choose_checkpoints(
    checkpoints: Sequence[Checkpoint], epochs: Sequence[int], last: int, at_step: int | None
) -> list[Checkpoint]:
    """Chooses the first checkpoint in mid-epoch and the first at an epoch's end, or by its step."""
    inner = [checkpoint for checkpoint in checkpoints if checkpoint.step < last]
    if at_step is not None:
        inner = [checkpoint for checkpoint in inner if checkpoint.step >= at_step]
    if not inner:
        written = few([f"after step {checkpoint.step}" for checkpoint in checkpoints]) or "none"
        where = "" if at_step is None else f" at step {at_step} or later"
        raise InputError(
            f"no checkpoint{where} with steps behind it was seen in {counted(last, 'step')} (written: "
            f"{written}): save earlier, or run more --steps. Only files below the working folder are seen: "
            "write {folder} where the command names another folder"
        )
    if at_step is not None:
        return inner[:1]
    middle = [checkpoint for checkpoint in inner if checkpoint.step not in epochs]
    ends = [checkpoint for checkpoint in inner if checkpoint.step in epochs]
    return sorted([*middle[:1], *ends[:1]], key=lambda checkpoint: checkpoint.step)
