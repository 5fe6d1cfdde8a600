"""The parts of a fleet in files: each a file of jobs, or some row groups of a large Parquet file."""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any, TypeVar

import msgspec
import pyarrow as pa
from pyarrow.fs import FileInfo, FileSystem

from isobatch.errors import InputError
from isobatch.files.find import Files, below, format_of, naming_file
from isobatch.files.read import blocks
from isobatch.fleet.table import REQUIRED

MAX_PART_ROWS = 1 << 24
"""Rows of the result in one part, about: a file of more is planned in several, each at least a row group."""

MAX_GROUP_PARTS = 64
"""Small parts that are planned one after the other and put in their places together."""

_THREADS = 16
_MAX_TASK_ITEMS = 64
"""Handing an item to a thread costs as much as opening a file."""

A = TypeVar("A")
B = TypeVar("B")


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

    def same_as(self, other: "Part") -> bool:
        """Whether both are the same piece of work, but for the file's place and time."""
        return msgspec.structs.replace(other, file=self.file, modified=self.modified) == self

    def digest(self, fs: FileSystem) -> str:
        """Returns the digest of its bytes.

        Raises:
            InputError: the file cannot be read.
        """
        start, stop = self.span
        with naming_file(self.file), fs.open_input_file(self.file) as stream:
            stream.seek(start)
            digest, size = digest_of(stream, stop - start)
        if size < stop - start:
            raise InputError("has become shorter while it was read", file=self.file)
        return digest


def new_digest() -> Any:
    """Returns a digest of nothing yet: BLAKE2b."""
    return hashlib.blake2b(digest_size=16)


def digest_of(stream: Any, size: int = 1 << 62) -> tuple[str, int]:
    """Returns the digest of the rest of a stream, or of its next `size` bytes, and how many there were."""
    digest, read = new_digest(), 0
    while data := stream.read(min(1 << 22, size - read)):
        digest.update(data)
        read += len(data)
    return str(digest.hexdigest()), read


def in_threads(call: Callable[[A], B], items: Sequence[A]) -> Iterator[B]:
    """Calls for many items in threads, as mostly it waits for a disk or a store, and gives the results in their order.

    >>> list(in_threads(str, range(3)))
    ['0', '1', '2']
    """
    step = max(1, min(_MAX_TASK_ITEMS, len(items) // (4 * _THREADS)))
    tasks = [items[start : start + step] for start in range(0, len(items), step)]
    with ThreadPoolExecutor(_THREADS) as pool:
        for results in pool.map(lambda task: [call(item) for item in task], tasks):
            yield from results


def group_parts(parts: Sequence[Part], rows_per_job: int, limit: int, workers: int) -> list[Sequence[Part]]:
    """Groups small parts to be moved together, since waiting for a disk costs more than planning a small file: of up to `limit`
    rows, or bytes of text, and few enough that each worker gets several groups."""
    most = max(1, min(MAX_GROUP_PARTS, len(parts) // (8 * workers)))
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


def list_parts(files: Files, rows_per_job: int) -> Listing:
    """Lists the parts, in the order of the files."""
    needs = REQUIRED["job"]
    limit = max(1, MAX_PART_ROWS // max(1, rows_per_job))
    found = in_threads(lambda info: _parts_of(files, info, limit), files.infos)
    parts: list[Part] = []
    failed: dict[str, str] = {}
    number: int | None = 0
    numbers = []
    # By their names, how many files have such columns, and a schema that the rows of all these fit in.
    schemas: dict[tuple[str, ...], tuple[int, pa.Schema]] = {}
    for info, some in zip(files.infos, found, strict=True):
        if isinstance(some, InputError):
            failed[info.path] = str(some)
            number = None
            continue
        of_file, schema = some
        if schema is not None and set(needs) <= set(schema.names):
            count, common = schemas.get(tuple(schema.names), (0, schema))
            schemas[tuple(schema.names)] = count + 1, _common(common, schema)
        for part in of_file:
            parts.append(part)
            numbers.append(number)
            number = None if number is None or part.rows is None else number + part.rows
    # Most files decide, the others fail when they are read: a file that is no table of jobs condemns none. Ties go to the first.
    model = max(schemas.values(), key=lambda it: it[0])[1] if schemas else _first_schema(files, parts, needs)
    if model is not None and "job" not in model.names:
        numbered = zip(parts, numbers, strict=True)
        parts = [msgspec.structs.replace(part, number=number) for part, number in numbered]
    return Listing(parts, model, failed)


def refuse_same_names(parts: Sequence[Part]) -> None:
    """Refuses two files of jobs for one file of plans.

    Raises:
        InputError: naming both.
    """
    names: dict[str, str] = {}
    for part in parts:
        if (other := names.setdefault(part.name, part.file)) != part.file:
            raise InputError(f"becomes {part.name}.parquet, as {other} does: rename one", file=part.file)


def _common(schema: pa.Schema, other: pa.Schema) -> pa.Schema:
    """Returns a common schema of both files, else the first: the second file then fails when it is read."""
    if schema.equals(other, check_metadata=True):
        return schema
    try:
        return pa.unify_schemas([schema, other], promote_options="permissive")
    except pa.ArrowException:
        return schema


def _first_schema(files: Files, parts: Sequence[Part], needs: Sequence[str]) -> pa.Schema | None:
    """Returns the schema of the first file of jobs, where none can be known without reading a file: JSON lines."""
    first: pa.Schema | None = None
    for part in parts:
        schema = _read_schema(files.fs, part.file)
        if schema is not None and set(needs) <= set(schema.names):
            return schema
        first = first or schema
    return first


def _read_schema(fs: FileSystem, path: str) -> pa.Schema | None:
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
        return [whole], _read_schema(files.fs, info.path) if how == "csv" else None
    import pyarrow.parquet as pq

    try:
        with naming_file(whole.file), files.fs.open_input_file(whole.file) as source:
            footer = pq.read_metadata(source)
            return _of_parquet(footer, whole, limit), footer.schema.to_arrow_schema()
    except InputError as error:
        return error


def _of_parquet(footer: Any, whole: Part, limit: int) -> list[Part]:
    groups = [footer.row_group(number) for number in range(footer.num_row_groups)]
    whole = msgspec.structs.replace(whole, rows=footer.num_rows)
    cuts, rows = [0], 0
    for number, group in enumerate(groups):
        if rows and rows + group.num_rows > limit:
            cuts.append(number)
            rows = 0
        rows += group.num_rows
    if len(cuts) == 1:
        return [whole]
    ends = [*(_start(groups[cut]) for cut in cuts[1:]), whole.span[1]]
    parts: list[Part] = []
    start = before = 0
    for index, (first, stop, end) in enumerate(zip(cuts, [*cuts[1:], len(groups)], ends, strict=True)):
        rows = sum(group.num_rows for group in groups[first:stop])
        name, span = f"{whole.name}-{index:05}", (start, end)
        parts.append(Part(name, whole.file, span, whole.modified, (first, stop), rows, before))
        start, before = end, before + rows
    return parts


def _start(group: Any) -> int:
    """Returns the offset of a row group's first byte."""
    columns = (group.column(number) for number in range(group.num_columns))
    offsets = ((column.dictionary_page_offset, column.data_page_offset) for column in columns)
    return min(int(offset) for pair in offsets for offset in pair if offset is not None)
