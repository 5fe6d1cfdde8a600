"""The parts that a fleet in files is planned in: each a file of jobs, or some row groups of a large Parquet file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

import msgspec

from isobatch.errors import InputError
from isobatch.files.find import Files, below, format_of, named
from isobatch.files.read import blocks
from isobatch.fleet.folder.threads import in_threads

if TYPE_CHECKING:
    import pyarrow as pa
    from pyarrow.fs import FileInfo, FileSystem

PART_ROWS = 1 << 24
"""Rows of the result in one part, about: a file of more is planned in several, each at least a row group."""


class Part(msgspec.Struct, frozen=True):
    """A piece of work. Its result is a function of the bytes of `file` from `span[0]` to before `span[1]`."""

    name: str
    """Of what it becomes, a path in the output without its suffix."""
    file: str
    span: tuple[int, int]
    modified: int | None
    """When the file was, in ns."""
    row_groups: tuple[int, int] | None = None
    """Of a Parquet file, from the first to before the second."""
    rows: int | None = None
    """Jobs in it, where they can be known without reading it."""
    before: int = 0
    """Rows of its file before it."""
    number: int | None = 0
    """What jobs without ids are numbered from, the rows of the fleet before it; None where these are not known."""

    def same_as(self, other: Part) -> bool:
        """Whether both are the same piece of work, but for the file's place and time."""
        return msgspec.structs.replace(other, file=self.file, modified=self.modified) == self


MOST_TOGETHER = 64
"""Small parts that are planned one after the other and put in their places together, at most."""


def grouped(parts: Sequence[Part], rows_per_job: int, limit: int, workers: int) -> list[Sequence[Part]]:
    """The parts in groups that become whole together, since waiting for a disk costs more than planning a small file: of up to `limit`
    rows, or bytes of text, and few enough that each worker gets several groups."""
    most = max(1, min(MOST_TOGETHER, len(parts) // (8 * workers)))
    groups: list[Sequence[Part]] = []
    first = size = 0
    for at, part in enumerate(parts):
        rows = part.span[1] - part.span[0] if part.rows is None else part.rows * rows_per_job
        if at > first and (at - first == most or size + rows > limit):
            groups.append(parts[first:at])
            first, size = at, 0
        size += rows
    return [*groups, parts[first:]] if parts else []


@dataclass(frozen=True)
class Listing:
    """All there is to do. `schema` is that of the jobs, `failed` has the files that cannot be used, and why."""

    parts: list[Part]
    schema: pa.Schema | None
    failed: dict[str, str]


def list_parts(files: Files, rows_per_job: int, needs: Sequence[str]) -> Listing:
    """The parts, in the order of the files; `needs` are the columns that jobs must have."""
    limit = max(1, PART_ROWS // max(1, rows_per_job))
    found = in_threads(lambda info: _parts_of(files, info, limit), files.infos)
    parts: list[Part] = []
    failed: dict[str, str] = {}
    number: int | None = 0
    numbers = []
    schemas = _Schemas(needs)
    for info, some in zip(files.infos, found, strict=True):
        if isinstance(some, InputError):
            failed[info.path] = str(some)
            number = None
            continue
        schemas.add(some[1])
        for part in some[0]:
            parts.append(part)
            numbers.append(number)
            number = None if number is None or part.rows is None else number + part.rows
    schema = schemas.common()
    if schema is None:
        schema = _first_schema(files, parts, needs)
    if schema is not None and "job" not in schema.names:
        parts = [
            msgspec.structs.replace(part, number=number) for part, number in zip(parts, numbers, strict=True)
        ]
    return Listing(parts, schema, failed)


def refuse_same_names(parts: Sequence[Part]) -> None:
    """In a folder of plans each part has a file of its own.

    Raises:
        InputError: two files of jobs would become one of plans.
    """
    names: dict[str, str] = {}
    for part in parts:
        if (other := names.setdefault(part.name, part.file)) != part.file:
            raise InputError(f"becomes {part.name}.parquet, as {other} does: rename one", file=part.file)


class _Schemas:
    """The schemas of files of jobs. Of 100,000 files that have the same one, it is kept once."""

    def __init__(self, needs: Sequence[str]) -> None:
        self._needs = set(needs)
        self._joined: dict[tuple[str, ...], pa.Schema] = {}
        self._files: Counter[tuple[str, ...]] = Counter()
        self._last: pa.Schema | None = None

    def add(self, schema: pa.Schema | None) -> None:
        """Takes a file's schema; None: it is not known."""
        if schema is None:
            return
        if self._last is not None and schema.equals(self._last, check_metadata=True):
            schema, is_new = self._last, False
        else:
            self._last, is_new = schema, True
        names = tuple(schema.names)
        if not self._needs <= set(names):
            return
        self._files[names] += 1
        if names not in self._joined:
            self._joined[names] = schema
        elif is_new:
            self._joined[names] = _joined(self._joined[names], schema)

    def common(self) -> pa.Schema | None:
        """A schema that the rows of most files of jobs fit in; the others fail when they are read. A file that is no table of jobs,
        such as one that happens to come first, condemns none. None where no file is known to be one."""
        if not self._files:
            return None
        # Ties go to the first.
        return self._joined[max(self._files, key=self._files.__getitem__)]


def _joined(schema: pa.Schema, other: pa.Schema) -> pa.Schema:
    """A schema that the rows of both files fit in, else the first: the second file then fails when it is read."""
    import pyarrow as pa

    try:
        return pa.unify_schemas([schema, other], promote_options="permissive")
    except pa.ArrowException:
        return schema


def _first_schema(files: Files, parts: Sequence[Part], needs: Sequence[str]) -> pa.Schema | None:
    """That of the first file of jobs, where none can be known without reading a file: JSON lines."""
    first: pa.Schema | None = None
    for part in parts:
        schema = _schema(files.fs, part.file)
        if schema is not None and set(needs) <= set(schema.names):
            return schema
        first = first or schema
    return first


def _schema(fs: FileSystem, path: str) -> pa.Schema | None:
    try:
        return next(blocks(fs, path, 1)).schema
    except InputError:
        return None


def _parts_of(files: Files, info: FileInfo, limit: int) -> tuple[list[Part], pa.Schema | None] | InputError:
    name = below(info.path, files.base)
    name = name[: len(name) - len(PurePosixPath(name).suffix)]
    whole = Part(name, info.path, (0, info.size), info.mtime_ns)
    how = format_of(info.path)
    if how != "parquet":
        return [whole], _schema(files.fs, info.path) if how == "csv" else None
    import pyarrow.parquet as pq

    try:
        with named(whole.file), files.fs.open_input_file(whole.file) as source:
            footer = pq.read_metadata(source)
            return _of_parquet(footer, whole, limit), footer.schema.to_arrow_schema()
    except InputError as error:
        return error


def _of_parquet(footer: Any, whole: Part, limit: int) -> list[Part]:
    groups = [footer.row_group(number) for number in range(footer.num_row_groups)]
    cuts, rows = [0], 0
    for number, group in enumerate(groups):
        if rows and rows + group.num_rows > limit:
            cuts.append(number)
            rows = 0
        rows += group.num_rows
    whole = msgspec.structs.replace(whole, rows=footer.num_rows)
    if len(cuts) == 1:
        return [whole]
    parts: list[Part] = []
    before = 0
    for index, (start, stop) in enumerate(zip(cuts, [*cuts[1:], len(groups)], strict=True)):
        rows = sum(group.num_rows for group in groups[start:stop])
        span = (
            parts[-1].span[1] if parts else 0,
            _start(groups[stop]) if stop < len(groups) else whole.span[1],
        )
        parts.append(
            msgspec.structs.replace(
                whole,
                name=f"{whole.name}-{index:05}",
                span=span,
                row_groups=(start, stop),
                rows=rows,
                before=before,
            )
        )
        before += rows
    return parts


def _start(group: Any) -> int:
    """The offset of a row group's first byte."""
    columns = (group.column(number) for number in range(group.num_columns))
    offsets = ((column.dictionary_page_offset, column.data_page_offset) for column in columns)
    return min(int(offset) for pair in offsets for offset in pair if offset is not None)
