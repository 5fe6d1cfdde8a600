"""The parts that a fleet in files is planned in: each a file of jobs, or some row groups of a large Parquet file."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

import msgspec

from isobatch.errors import InputError
from isobatch.files.find import Files, format_of, named
from isobatch.files.read import blocks

if TYPE_CHECKING:
    import pyarrow as pa
    from pyarrow.fs import FileInfo, FileSystem

PART_ROWS = 1 << 24
"""Rows of the result in one part, about: a file of more is planned in several, each at least a row group."""

_THREADS = 16
"""That look at files at a time; they mostly wait."""


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


@dataclass(frozen=True)
class Listing:
    """All there is to do. `schema` is that of the jobs, `failed` has the files that cannot be used, and why."""

    parts: list[Part]
    schema: pa.Schema | None
    failed: dict[str, str]


def list_parts(files: Files, rows_per_job: int, needs: Sequence[str]) -> Listing:
    """The parts, in the order of the files; `needs` are the columns that jobs must have.

    Raises:
        InputError: two files would become one.
    """
    limit = max(1, PART_ROWS // max(1, rows_per_job))
    with ThreadPoolExecutor(_THREADS) as pool:
        found = list(pool.map(lambda info: _parts_of(files, info, limit), files.infos))
    parts: list[Part] = []
    failed: dict[str, str] = {}
    number: int | None = 0
    numbers = []
    names: dict[str, str] = {}
    for info, some in zip(files.infos, found, strict=True):
        if isinstance(some, InputError):
            failed[info.path] = str(some)
            number = None
            continue
        for part in some[0]:
            if part.name in names:
                raise InputError(
                    f"becomes {part.name}.parquet, as {names[part.name]} does: rename one",
                    file=part.file,
                )
            names[part.name] = part.file
            parts.append(part)
            numbers.append(number)
            number = None if number is None or part.rows is None else number + part.rows
    schema = _common_schema([some[1] for some in found if not isinstance(some, InputError)], needs)
    if schema is None:
        schema = _first_schema(files, parts, needs)
    if schema is not None and "job" not in schema.names:
        parts = [
            msgspec.structs.replace(part, number=number) for part, number in zip(parts, numbers, strict=True)
        ]
    return Listing(parts, schema, failed)


def _common_schema(schemas: Iterable[pa.Schema | None], needs: Sequence[str]) -> pa.Schema | None:
    """A schema that the rows of most files of jobs fit in; the others fail when they are read. A file that is no table of jobs, such
    as one that happens to come first, condemns none. None where no file is known to be one."""
    by_names: dict[tuple[str, ...], list[pa.Schema]] = {}
    for schema in schemas:
        if schema is not None and set(needs) <= set(schema.names):
            by_names.setdefault(tuple(schema.names), []).append(schema)
    if not by_names:
        return None
    # Ties go to the first.
    most = max(by_names, key=lambda names: len(by_names[names]))
    joined, *others = by_names[most]
    for other in others:
        joined = _joined(joined, other)
    return joined


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
    name = str(PurePosixPath(info.path).relative_to(files.base).with_suffix(""))
    whole = Part(name, info.path, (0, info.size), info.mtime_ns)
    how = format_of(info.path)
    if how != "parquet":
        return [whole], _schema(files.fs, info.path) if how == "csv" else None
    import pyarrow.parquet as pq

    try:
        with named(whole.file), files.fs.open_input_file(whole.file) as source:
            file = pq.ParquetFile(source)
            return _of_parquet(file.metadata, whole, limit), file.schema_arrow
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
