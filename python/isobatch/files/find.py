"""Files by a path: a file, a folder or a glob; on disk, or in a store known to pyarrow (s3://, gs://, …)."""

import csv
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath

import pyarrow as pa
from pyarrow.fs import FileInfo, FileSelector, FileSystem, FileType, LocalFileSystem

from isobatch.errors import InputError, must_be, not_utf8, unreadable
from isobatch.system import slashed
from isobatch.words import few

SUFFIXES = {
    **dict.fromkeys((".csv", ".tsv"), "csv"),
    **dict.fromkeys((".parquet", ".pq"), "parquet"),
    **dict.fromkeys((".jsonl", ".ndjson"), "jsonl"),
}


@dataclass(frozen=True)
class Files:
    """The files of one table, ordered by name, in the folder `base` or below it; `folder`: all its files."""

    fs: FileSystem
    base: str
    infos: tuple[FileInfo, ...]
    folder: bool = False


def location(path: str | os.PathLike[str]) -> tuple[FileSystem, str]:
    """Returns the filesystem of a path or URL, and the path in it."""
    text = os.fspath(path)
    if "://" not in text:
        return LocalFileSystem(), slashed(text)
    try:
        fs, inner = FileSystem.from_uri(text)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise unreadable(error, text) from None
    return fs, inner


def find(path: str | os.PathLike[str]) -> Files:
    """Finds the files of a path: a file, a folder with its folders, or a glob; no hidden or `_` names."""
    try:
        os.fspath(path).encode()
    except UnicodeEncodeError:
        raise must_be("a path that can be written in UTF-8", os.fspath(path), field="path") from None
    fs, inner = location(path)
    with naming_file(os.fspath(path)):
        info = fs.get_file_info(inner)
        if info.type == FileType.File:
            return Files(fs, str(PurePosixPath(inner).parent), (info,))
        if info.type == FileType.Directory:
            base, pattern = inner.rstrip("/"), None
        elif magic := re.search(r"[*?[]", inner):
            base = inner[: magic.start()].rpartition("/")[0]
            pattern = _plain(inner).split("/")
        elif info.type == FileType.Unknown:
            raise InputError("is no regular file, but a device or a pipe", file=inner)
        else:
            raise InputError("there is no such file", file=inner)
        listed = fs.get_file_info(FileSelector(base or ".", recursive=True))
    infos = []
    for info in sorted(listed, key=lambda info: info.path):
        name = below(info.path, base)
        is_data = name[name.rfind(".") :].lower() in SUFFIXES and not name.startswith(("_", "."))
        is_data = is_data and "/_" not in name and "/." not in name
        if info.type == FileType.File and is_data and (pattern is None or _is_match(info.path, pattern)):
            infos.append(info)
    if not infos:
        raise InputError(f"holds no {few(SUFFIXES)} file", file=os.fspath(path))
    return Files(fs, base, tuple(infos), folder=pattern is None)


def below(path: str, base: str) -> str:
    """Returns the path of a file as seen from a folder above it."""
    # There may be 100,000.
    if base and path.startswith(f"{base}/"):
        return path[len(base) + 1 :]
    return str(PurePosixPath(path).relative_to(base))


def refuse_output(files: Files, fs: FileSystem, output: str) -> None:
    """Refuses an output over the jobs, or among the jobs of the next run."""
    if type(fs) is not type(files.fs):
        return
    path, base = Path(output).resolve(), Path(files.base).resolve()
    if path in {Path(info.path).resolve() for info in files.infos}:
        raise InputError("is read by this command: write the plans to another file", file=output)
    if path == base or (files.folder and path.is_relative_to(base)):
        why = f"is in the folder that is read, {files.base}"
        raise InputError(f"{why}: write the plans elsewhere", file=output)


def _plain(path: str) -> str:
    return path.removeprefix("./")


def _is_match(path: str, pattern: Sequence[str]) -> bool:
    """Matches a path with a glob, folder by folder: `*` and `?` stay within one, `**` is any number of them.

    The time grows with the
    lengths, whatever the glob."""
    names = _plain(path).split("/")
    # Whether the names from each place on match the rest of the glob.
    rest = [*[False] * len(names), True]
    for part in reversed(pattern):
        if part == "**":
            rest = [any(rest[at:]) for at in range(len(rest))]
        else:
            rest = [is_end and fnmatchcase(name, part) for name, is_end in zip(names, rest[1:], strict=True)]
            rest.append(False)
    return rest[0]


def unknown_format(path: str, known: Iterable[str]) -> InputError:
    """Returns the error of a file with a suffix of no known format."""
    return InputError(f"cannot tell the format of {PurePosixPath(path).name!r}: use {few(known)}", file=path)


def format_of(path: str) -> str:
    """Returns csv, parquet or jsonl, by the file's suffix."""
    suffix = PurePosixPath(path).suffix.lower()
    if suffix not in SUFFIXES:
        raise unknown_format(path, SUFFIXES)
    return SUFFIXES[suffix]


@contextmanager
def naming_file(path: str) -> Iterator[None]:
    """Names the file in errors of reading it."""
    try:
        yield
    except FileNotFoundError:
        raise InputError("there is no such file", file=path) from None
    except UnicodeDecodeError:
        raise not_utf8(path) from None
    except (pa.ArrowException, OSError, csv.Error) as error:
        if "invalid UTF8" in str(error):  # pyarrow's words, of a CSV file's later blocks
            raise not_utf8(path) from None
        raise unreadable(error, path) from None
