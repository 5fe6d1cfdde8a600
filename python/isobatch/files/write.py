"""Writing tables to files that appear whole or not at all: CSV, Parquet, JSON lines, and TSV without quotes, which the simplest
program can read; on disk, or in a store that pyarrow knows."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

from isobatch.errors import InputError
from isobatch.files.read import location

if TYPE_CHECKING:
    import pyarrow as pa
    from pyarrow.fs import FileSystem

Write = Callable[["pa.Table"], None]


@contextmanager
def table_writer(output: str, metadata: dict[str, str]) -> Iterator[Write]:
    """A function that appends tables of one schema to a file, which appears when the block ends, or not at all.

    Raises:
        InputError: there is no such folder, the suffix is not known, or the file cannot be written.
    """
    import pyarrow as pa
    from pyarrow.fs import FileType

    fs, path = location(output)
    suffix = PurePosixPath(path).suffix
    if suffix not in WRITERS:
        raise InputError(f"{suffix or 'no suffix'} is not legal; legal: {', '.join(WRITERS)}", file=path)
    folder = str(PurePosixPath(path).parent)
    if fs.get_file_info(folder).type != FileType.Directory:
        raise InputError("there is no such folder", file=folder)
    partial = f"{folder}/.{PurePosixPath(path).name}.{unique()}"
    try:
        with ExitStack() as files:
            files.enter_context(whole(fs, {partial: path}))
            yield files.enter_context(WRITERS[suffix](fs, partial, metadata))
    except (OSError, pa.ArrowException) as error:
        raise InputError(f"cannot be written: {error}", file=output) from None


def unique() -> str:
    """A name that no other process takes."""
    return uuid.uuid4().hex


@contextmanager
def whole(fs: FileSystem, files: dict[str, str]) -> Iterator[None]:
    """Moves files to where they belong when the block ends; deletes them where it fails."""
    try:
        yield
        for partial, path in files.items():
            fs.move(partial, path)
    except BaseException:
        for partial in files:
            with suppress(OSError):
                fs.delete_file(partial)
        raise


@contextmanager
def parquet_writer(fs: FileSystem, path: str, metadata: dict[str, str]) -> Iterator[Write]:
    """Appends tables to a Parquet file, a row group each; the metadata join its schema's."""
    import pyarrow.parquet as pq

    with ExitStack() as files:
        writer: Any = None

        def write(table: pa.Table) -> None:
            nonlocal writer
            if writer is None:
                schema = table.schema.with_metadata({**(table.schema.metadata or {}), **metadata})
                sink = files.enter_context(fs.open_output_stream(path))
                # With checksums: a flipped bit in a plan is found when it is read.
                writer = files.enter_context(
                    pq.ParquetWriter(sink, schema, compression="zstd", write_page_checksum=True)
                )
            writer.write_table(table.cast(writer.schema))

        yield write


class JsonLines:
    """Appends tables as one JSON object a line."""

    def __init__(self, sink: Any) -> None:
        self.sink = sink

    def __call__(self, table: pa.Table) -> None:
        import msgspec

        self.sink.write(msgspec.json.Encoder().encode_lines(table.to_pylist()))


class CsvLines:
    """Appends tables as CSV, the header once, lists as texts joined by `;`."""

    def __init__(self, sink: Any) -> None:
        self.sink, self.header = sink, True

    def __call__(self, table: pa.Table) -> None:
        import pyarrow.csv

        pyarrow.csv.write_csv(_joined(table), self.sink, pyarrow.csv.WriteOptions(include_header=self.header))
        self.header = False


class _TsvLines:
    """Appends tables as cells between tabs, without quotes; a text that would need them is an error."""

    def __init__(self, sink: Any) -> None:
        self.sink, self.header = sink, True

    def __call__(self, table: pa.Table) -> None:
        import pyarrow as pa
        import pyarrow.csv

        if self.header:
            if any(set(name) & set('\t\r\n"') for name in table.column_names):
                raise pa.ArrowInvalid("a column's name would need quotes")
            self.sink.write("\t".join(table.column_names).encode() + b"\n")
            self.header = False
        options = pyarrow.csv.WriteOptions(include_header=False, delimiter="\t", quoting_style="none")
        pyarrow.csv.write_csv(_joined(table), self.sink, options)


def _joined(table: pa.Table) -> pa.Table:
    """The table with its lists as texts; what no text can say is an error."""
    import pyarrow as pa
    import pyarrow.compute as pc

    for index, field in enumerate(table.schema):
        if not pa.types.is_nested(field.type):
            continue
        try:
            texts = table[index].cast(pa.list_(pa.string()))
            if pc.list_flatten(texts).null_count:
                raise pa.ArrowInvalid("a value in a list is missing")
        except pa.ArrowException as error:
            raise pa.ArrowInvalid(
                f"column {field.name!r} is no text, but Parquet and JSON lines can hold it: {error}"
            ) from None
        table = table.set_column(index, field.name, pc.binary_join(texts, ";"))
    return table


def _lines(kind: Callable[[Any], Write]) -> Callable[..., AbstractContextManager[Write]]:
    """A writer of one kind of text; it has no place for metadata."""

    @contextmanager
    def writer(fs: FileSystem, path: str, _: dict[str, str]) -> Iterator[Write]:
        with fs.open_output_stream(path) as sink:
            yield kind(sink)

    return writer


WRITERS = {
    ".csv": _lines(CsvLines),
    ".tsv": _lines(_TsvLines),
    ".parquet": parquet_writer,
    ".pq": parquet_writer,
    ".jsonl": _lines(JsonLines),
    ".ndjson": _lines(JsonLines),
}
