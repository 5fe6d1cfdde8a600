"""The folder of a fleet's plans: which parts are done, and by which run.

    _manifest.json   the run: its arguments, and at its end what came out
    _parts/          while it runs, the receipts of the parts that are done
    _partial/        while it runs, files that are not whole yet

A part is done when its receipt is there and its file has the digest that the receipt names. The receipt is written before the file
gets its place, so that no run leaves a file that none of its receipts knows: one that was killed leaves whole files, receipts, of
which the last may be ahead of their files, and what is in `_partial/`, which the next one removes. One run at a time holds the folder.
"""

import fcntl
import os
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import msgspec
from pyarrow.fs import FileSelector, FileSystem, FileType

from isobatch.errors import InputError
from isobatch.files.find import below, location
from isobatch.files.whole import sync_up, unique, whole
from isobatch.fleet.folder.parts import Part, digest_of, in_threads
from isobatch.fleet.rows import Summary
from isobatch.words import few, shown

MANIFEST, RECEIPTS, PARTIAL = "_manifest.json", "_parts", "_partial"


class Receipt(msgspec.Struct, frozen=True):
    """A finished part, with the digests (BLAKE2b) of the bytes that it was made of and of its file."""

    part: Part
    digest: str
    jobs: int
    summary: Summary
    file_digest: str

    def __post_init__(self) -> None:
        name = self.part.name
        if "\0" in name or name.startswith("_") or any(part in ("", ".", "..") for part in name.split("/")):
            raise ValueError(f"{shown(name)} is no file of the folder")

    @property
    def file(self) -> str:
        """Its file in the output."""
        return f"{self.part.name}.parquet"


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """Describes a folder of plans.

    `state` is "running", "complete", or "incomplete" where files of jobs, named in `failed` with the reason, could not be used.
    """

    version: int = 1
    state: str
    run: dict[str, Any]
    """The arguments; clusters and profiles as digests, with a few words for people."""
    parts: list[Receipt]
    failed: dict[str, str]
    summary: Summary

    @property
    def rows(self) -> int:
        """Rows of the result."""
        return self.summary.rows

    @property
    def jobs(self) -> int:
        """Planned jobs."""
        return sum(receipt.jobs for receipt in self.parts)


@dataclass(frozen=True)
class Folder:
    """A folder of plans."""

    fs: FileSystem
    base: str

    @classmethod
    def at(cls, path: str) -> "Folder":
        """Returns the folder of a path or URL; it need not be there yet."""
        fs, base = location(path)
        return cls(fs, base.rstrip("/"))

    def path(self, name: str) -> str:
        """Returns the path of a file in it."""
        return f"{self.base}/{name}"

    def partial(self) -> str:
        """Returns a new path for an unfinished file."""
        return self.path(f"{PARTIAL}/{unique()}")

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Locks the folder for this run, where its filesystem has locks: two runs would remove each other's files.

        Raises:
            InputError: another run has locked it.
        """
        if self.fs.type_name != "local":
            yield
            return
        there = next((folder for folder in Path(self.base).parents if folder.exists()), Path(self.base))
        self.fs.create_dir(self.base)
        sync_up(Path(self.base).parent, there)
        handle = os.open(self.base, os.O_RDONLY)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(handle)
            raise InputError("another run is planning into this folder", file=self.base) from None
        except OSError:
            pass  # a network's filesystem without locks
        try:
            yield
        finally:
            with suppress(OSError):
                os.close(handle)

    def done(self, run: dict[str, Any], *, resume: bool) -> tuple[dict[str, Receipt], set[str]]:
        """Returns the receipts of the finished parts, by their names; and the other files of plans, to be removed: all of them
        without resuming, else those of parts with missing or damaged files. All bytes of all files are read.

        Raises:
            InputError: it holds other files, or the plans of other arguments.
        """
        every = self._recorded()
        if every is None:
            listed = self.fs.get_file_info(FileSelector(self.base, allow_not_found=True))
            if any(PurePosixPath(info.path).name != PARTIAL for info in listed):
                why = "the folder is not empty and not from an earlier run: plan into another"
                raise InputError(why, file=self.base)
            return {}, set()
        earlier, receipts = every
        if not resume:
            return {}, {receipt.file for receipt in receipts}
        _refuse_other_arguments(earlier, run, self.base)
        pairs = [*zip(receipts, in_threads(self._is_sound, receipts), strict=True)]
        sound = {receipt.part.name: receipt for receipt, is_sound in pairs if is_sound}
        return sound, {receipt.file for receipt, is_sound in pairs if not is_sound}

    def _recorded(self) -> tuple[dict[str, Any], list[Receipt]] | None:
        """Returns the arguments and the receipts of the folder's run; None where there was none."""
        try:
            manifest = self._read(MANIFEST, Manifest)
        except FileNotFoundError:
            return None
        # A receipt is newer than what the manifest says of its part.
        by_name = {receipt.part.name: receipt for receipt in (*manifest.parts, *self._receipts())}
        return manifest.run, list(by_name.values())

    def _is_sound(self, receipt: Receipt) -> bool:
        """Whether the file is as it was written."""
        try:
            with self.fs.open_input_stream(self.path(receipt.file)) as stream:
                return digest_of(stream)[0] == receipt.file_digest
        except OSError:
            return False

    def begin(self, run: dict[str, Any], done: Collection[Receipt], other: Collection[str]) -> None:
        """Makes the folder this run's; the `other` files go, as long as their receipts are there to name them."""
        for file in set(other) - {receipt.file for receipt in done}:
            self._remove(file)
        self._clear(PARTIAL)
        self.fs.create_dir(self.path(PARTIAL))
        self._write_manifest("running", run, done, {})
        # Their receipts are in the manifest now.
        self._clear(RECEIPTS)
        # Not before the manifest: without one a folder that holds anything else is refused.
        self.fs.create_dir(self.path(RECEIPTS))

    def keep(self, receipts: Sequence[Receipt]) -> None:
        """Records the files of parts, in one file, before they get their places."""
        if not receipts:
            return
        # A name of a part may have folders in it.
        name = receipts[0].part.name.replace("%", "%25").replace("/", "%2F")
        self._write(f"{RECEIPTS}/{name}.json", receipts)

    def finish(self, run: dict[str, Any], parts: Iterable[Receipt], failed: dict[str, str]) -> Manifest:
        """Checks the folder for exactly the files of the receipts, and writes the manifest.

        Raises:
            InputError: it does not.
        """
        receipts = sorted(parts, key=lambda receipt: receipt.part.name)
        self._check(receipts)
        manifest = self._write_manifest("incomplete" if failed else "complete", run, receipts, failed)
        self._clear(RECEIPTS)
        self._clear(PARTIAL)
        return manifest

    def _check(self, receipts: list[Receipt]) -> None:
        missing = {receipt.file for receipt in receipts}
        for info in self.fs.get_file_info(FileSelector(self.base, recursive=True)):
            name = below(info.path, self.base)
            if info.type != FileType.File or name.startswith("_"):
                continue
            if name not in missing:
                todo = "move it elsewhere and rerun the same command"
                raise InputError(f"unexpected file in the output folder: {todo}", file=info.path)
            missing.remove(name)
        for file in missing:
            raise InputError("is gone: rerun the same command", file=self.path(file))
        for receipt in receipts:
            if receipt.part.rows not in (None, receipt.jobs):
                raise InputError("the receipt does not add up", file=self.path(receipt.part.name))

    def _receipts(self) -> list[Receipt]:
        listed = self.fs.get_file_info(FileSelector(self.path(RECEIPTS), allow_not_found=True))
        names = [f"{RECEIPTS}/{PurePosixPath(info.path).name}" for info in listed]
        return [it for some in in_threads(lambda name: self._read(name, list[Receipt]), names) for it in some]

    def _read(self, name: str, kind: Any) -> Any:
        with self.fs.open_input_stream(self.path(name)) as stream:
            text = stream.read()
        try:
            return msgspec.json.decode(text, type=kind)
        except (msgspec.MsgspecError, ValueError, OverflowError, RecursionError) as error:
            why = f"is not a manifest or receipt of this version: {error}"
            todo = "Plan into another folder, or delete this one"
            raise InputError(f"{why}. {todo}", file=self.path(name)) from None

    def _write(self, name: str, value: Any) -> None:
        partial = self.partial()
        files = {partial: self.path(name)}
        with whole(self.fs, files, self.base), self.fs.open_output_stream(partial) as stream:
            stream.write(msgspec.json.format(msgspec.json.encode(value), indent=1))

    def _write_manifest(
        self, state: str, run: dict[str, Any], parts: Iterable[Receipt], failed: dict[str, str]
    ) -> Manifest:
        receipts = list(parts)
        summary = Summary()
        for receipt in receipts:
            summary.merge(receipt.summary)
        manifest = Manifest(state=state, run=run, parts=receipts, failed=failed, summary=summary)
        self._write(MANIFEST, manifest)
        return manifest

    def _remove(self, file: str) -> None:
        if self.fs.type_name == "local":
            # A folder in it may have become a link to elsewhere.
            base, place = (Path(path).resolve() for path in (self.base, self.path(file)))
            if not place.is_relative_to(base):
                why = f"leads out of the folder, to {place}: remove the link"
                raise InputError(why, file=self.path(file))
        with suppress(FileNotFoundError):
            self.fs.delete_file(self.path(file))

    def _clear(self, name: str) -> None:
        self.fs.delete_dir_contents(self.path(name), missing_dir_ok=True)
        with suppress(FileNotFoundError):
            self.fs.delete_dir(self.path(name))


def _refuse_other_arguments(before: dict[str, Any], now: dict[str, Any], base: str) -> None:
    """Refuses a run into the folder of a run with other arguments.

    Raises:
        InputError: naming those that differ, and how.
    """
    now = msgspec.json.decode(msgspec.json.encode(now))
    pairs = {name: (before.get(name), now.get(name)) for name in {**before, **now}}
    differing = [_difference(name, *pair) for name, pair in pairs.items() if pair[0] != pair[1]]
    if differing:
        raise other_plans(f"made with other arguments: {few(differing, 10)}", base)


def other_plans(which: str, base: str) -> InputError:
    """Returns the error of a folder with plans of another run."""
    todo = "Plan into another folder, or replan all with --no-resume (resume=False)"
    return InputError(f"holds plans {which}. {todo}", file=base)


def _difference(name: str, before: Any, now: Any) -> str:
    # Clusters and profiles are compared by their digests.
    words = [it.get("words") if isinstance(it, dict) else it for it in (before, now)]
    if words[0] == words[1]:
        return f"{name} has other values"
    return f"{name} was {shown(words[0])}, is {shown(words[1])}"
