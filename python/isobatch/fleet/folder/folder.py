"""The folder that a fleet is planned into: which parts are done, and what makes a run the same run.

    _manifest.json   the run: its arguments, and at its end what came out
    _parts/          while it runs, the receipts of the parts that are done
    _partial/        while it runs, files that are not whole yet

A part is done when its receipt is there and its files have the digests that the receipt names. The receipt is written before the files
get their places, so that no run leaves a file that none of its receipts knows: one that was killed leaves whole files, receipts, of
which the last may be ahead of their files, and what is in `_partial/`, which the next one removes. One run at a time holds the folder.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

import msgspec

from isobatch.errors import InputError
from isobatch.files.find import below, location, named
from isobatch.files.whole import sync_up
from isobatch.files.write import unique, whole
from isobatch.fleet.folder.arguments import refuse_other
from isobatch.fleet.folder.digest import digest_of_stream
from isobatch.fleet.folder.manifest import Manifest, Receipt
from isobatch.fleet.folder.summary import Summary
from isobatch.fleet.folder.threads import in_threads

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem

MANIFEST, RECEIPTS, PARTIAL = "_manifest.json", "_parts", "_partial"


@dataclass(frozen=True)
class Folder:
    """A folder of plans."""

    fs: FileSystem
    base: str

    @classmethod
    def at(cls, path: str) -> Folder:
        """The folder of a path or URL; it need not be there yet."""
        fs, base = location(path)
        return cls(fs, base.rstrip("/"))

    def path(self, name: str) -> str:
        """Of a file in it."""
        return f"{self.base}/{name}"

    def partial(self) -> str:
        """A new path for a file that is not whole yet."""
        return self.path(f"{PARTIAL}/{unique()}")

    @contextmanager
    def held(self) -> Iterator[None]:
        """Holds the folder for this run, where its filesystem has locks: two runs would remove each other's files.

        Raises:
            InputError: another run holds it.
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
        """The receipts of the parts that this run has done before, by their names; and the other files of plans, which are to go: all of
        them without resuming, else those of parts whose files are missing or damaged. All bytes of all files are read.

        Raises:
            InputError: it holds other files, or the plans of other arguments.
        """
        from pyarrow.fs import FileSelector

        try:
            every = self._recorded()
        except InputError:
            if resume:
                raise
            return {}, self._recognized()
        if every is None:
            listed = self.fs.get_file_info(FileSelector(self.base, allow_not_found=True))
            if any(PurePosixPath(info.path).name != PARTIAL for info in listed):
                raise InputError(
                    "the folder is not empty and not from an earlier run: plan into another", file=self.base
                )
            return {}, set()
        earlier, receipts = every
        if not resume:
            return {}, {file for receipt in receipts for file in receipt.files}
        refuse_other(earlier, run, self.base)
        sound: dict[str, Receipt] = {}
        other: set[str] = set()
        for receipt, is_sound in zip(receipts, in_threads(self._is_sound, receipts), strict=True):
            if is_sound:
                sound[receipt.part.name] = receipt
            else:
                other.update(receipt.files)
        return sound, other

    def _recorded(self) -> tuple[dict[str, Any], list[Receipt]] | None:
        """The arguments and the receipts of the run that made the folder; None where none did."""
        manifest = self._manifest()
        if manifest is None:
            return None
        # A receipt is newer than what the manifest says of its part.
        by_name = {
            receipt.part.name: receipt for some in (manifest.parts, self._receipts()) for receipt in some
        }
        return manifest.run, list(by_name.values())

    def _recognized(self) -> set[str]:
        """The files of plans where no manifest can be read that names them: only a folder in which there is nothing else is surely ours.

        Raises:
            InputError: there is something else in it.
        """
        from pyarrow.fs import FileSelector, FileType

        found = set()
        for info in self.fs.get_file_info(FileSelector(self.base, recursive=True)):
            name = below(info.path, self.base)
            if (
                info.type != FileType.File
                or name == MANIFEST
                or name.startswith((f"{RECEIPTS}/", f"{PARTIAL}/"))
            ):
                continue
            if not self._is_plans(name):
                raise InputError(
                    f"is not known to be isobatch's, and {MANIFEST}, which would say so, is damaged: move it elsewhere, or plan "
                    "into another folder",
                    file=info.path,
                )
            found.add(name)
        return found

    def _is_plans(self, name: str) -> bool:
        """Whether a file was written by a run."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        try:
            with self.fs.open_input_file(self.path(name)) as source:
                return b"isobatch.version" in (pq.read_metadata(source).metadata or {})
        except (pa.ArrowException, OSError):
            return False

    def _is_sound(self, receipt: Receipt) -> bool:
        """Whether the files are those that were written."""
        return receipt.digests.keys() == receipt.files.keys() and all(
            self._digest_of(name) == digest for name, digest in receipt.digests.items()
        )

    def _digest_of(self, name: str) -> str | None:
        try:
            with self.fs.open_input_stream(self.path(name)) as stream:
                return digest_of_stream(stream)
        except OSError:
            return None

    def begin(self, run: dict[str, Any], done: Collection[Receipt], other: Collection[str]) -> None:
        """Makes the folder that of this run; the `other` files go, as long as their receipts are there to name them."""
        kept = {file for receipt in done for file in receipt.files}
        for file in set(other) - kept:
            self._remove(file)
        self._clear(PARTIAL)
        self.fs.create_dir(self.path(PARTIAL))
        self._write_manifest("running", run, done, {})
        # Their receipts are in the manifest now.
        self._clear(RECEIPTS)
        # Not before the manifest: without one a folder that holds anything else is refused.
        self.fs.create_dir(self.path(RECEIPTS))

    def keep(self, receipts: Sequence[Receipt]) -> None:
        """Records which files parts become, in one file, before they get their places."""
        if not receipts:
            return
        # A name of a part may have folders in it.
        name = receipts[0].part.name.replace("%", "%25").replace("/", "%2F")
        self._write(f"{RECEIPTS}/{name}.json", receipts)

    def finish(
        self,
        run: dict[str, Any],
        parts: Iterable[Receipt],
        failed: dict[str, str],
        sound: Collection[str] = (),
    ) -> Manifest:
        """Checks that the folder holds what the receipts say, each row once, and writes the manifest. Of the parts that `done` has
        found sound, by their names, the rows are not counted again.

        Raises:
            InputError: it does not.
        """
        receipts = sorted(parts, key=lambda receipt: receipt.part.name)
        self._check(receipts, sound)
        manifest = self._write_manifest("incomplete" if failed else "complete", run, receipts, failed)
        self._clear(RECEIPTS)
        self._clear(PARTIAL)
        return manifest

    def _check(self, receipts: list[Receipt], sound: Collection[str]) -> None:
        import pyarrow.parquet as pq
        from pyarrow.fs import FileSelector, FileType

        def rows_in(file: str) -> int:
            with named(self.path(file)), self.fs.open_input_file(self.path(file)) as source:
                return int(pq.read_metadata(source).num_rows)

        new = [it for receipt in receipts if receipt.part.name not in sound for it in receipt.files.items()]
        for (file, rows), there in zip(new, in_threads(rows_in, [file for file, _ in new]), strict=True):
            if rows != there:
                raise InputError(
                    f"has {there:,} rows, and {rows:,} were written: rerun the same command",
                    file=self.path(file),
                )
        missing = {file for receipt in receipts for file in receipt.files}
        for info in self.fs.get_file_info(FileSelector(self.base, recursive=True)):
            name = below(info.path, self.base)
            if info.type != FileType.File or name.startswith("_"):
                continue
            if name not in missing:
                raise InputError(
                    "unexpected file in the output folder: move it elsewhere and rerun the same command",
                    file=info.path,
                )
            missing.remove(name)
        for file in missing:
            raise InputError("is gone: rerun the same command", file=self.path(file))
        for receipt in receipts:
            if receipt.summary.rows != sum(receipt.files.values()) or receipt.part.rows not in (
                None,
                receipt.jobs,
            ):
                raise InputError("the receipt does not add up", file=self.path(receipt.part.name))

    def _manifest(self) -> Manifest | None:
        try:
            manifest: Manifest = self._read(MANIFEST, Manifest)
        except FileNotFoundError:
            return None
        return manifest

    def _receipts(self) -> list[Receipt]:
        from pyarrow.fs import FileSelector

        listed = self.fs.get_file_info(FileSelector(self.path(RECEIPTS), allow_not_found=True))
        names = [f"{RECEIPTS}/{PurePosixPath(info.path).name}" for info in listed]
        return [it for some in in_threads(lambda name: self._read(name, list[Receipt]), names) for it in some]

    def _read(self, name: str, kind: Any) -> Any:
        with self.fs.open_input_stream(self.path(name)) as stream:
            text = stream.read()
        try:
            return msgspec.json.decode(text, type=kind)
        except msgspec.MsgspecError as error:
            raise InputError(
                f"is not a manifest or receipt of this version: {error}. Plan into another folder, or replan all with --no-resume "
                "(resume=False)",
                file=self.path(name),
            ) from None

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
                raise InputError(
                    f"leads out of the folder, to {place}: remove the link", file=self.path(file)
                )
        with suppress(FileNotFoundError):
            self.fs.delete_file(self.path(file))

    def _clear(self, name: str) -> None:
        self.fs.delete_dir_contents(self.path(name), missing_dir_ok=True)
        with suppress(FileNotFoundError):
            self.fs.delete_dir(self.path(name))
