"""Tables in files: CSV, Parquet, JSON lines."""

from __future__ import annotations

import csv
import glob
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from isobatch._files import beside
from isobatch.errors import InputError

if TYPE_CHECKING:
    import pyarrow as pa

SUFFIXES = {".csv": "csv", ".parquet": "parquet", ".pq": "parquet", ".jsonl": "jsonl", ".ndjson": "jsonl"}


def read_table(path: str | os.PathLike[str], kind: str) -> pa.Table:
    """A file, a folder or a glob of files as one table, rows in the order of the files' names.

    Raises:
        InputError: there is no such file, or it cannot be read; the message names it.
    """
    try:
        import pyarrow as pa
    except ModuleNotFoundError:
        raise InputError(
            "reading tables from files needs pyarrow: pip install 'isobatch[fleet]'", file=os.fspath(path)
        ) from None
    tables = [_read(file, kind) for file in _files(os.fspath(path))]
    if any(table.column_names != tables[0].column_names for table in tables):
        raise InputError("its files have different columns", file=os.fspath(path))
    return pa.concat_tables(tables, promote_options="permissive") if len(tables) > 1 else tables[0]


def _files(path: str) -> list[Path]:
    if Path(path).is_dir():
        found = [p for p in sorted(Path(path).iterdir()) if p.suffix in SUFFIXES]
    elif glob.has_magic(path) and not Path(path).exists():
        found = [Path(p) for p in sorted(glob.glob(path, recursive=True))]  # noqa: PTH207 - the path may be absolute
    else:
        found = [Path(path)]
    if not found:
        raise InputError(f"there is no {', '.join(SUFFIXES)} file", file=path)
    return found


def _format(path: Path) -> str:
    if path.suffix not in SUFFIXES:
        raise InputError(
            f"{path.suffix or 'no suffix'} is not legal; legal: {', '.join(SUFFIXES)}", file=str(path)
        )
    return SUFFIXES[path.suffix]


def _read(path: Path, kind: str) -> pa.Table:
    import pyarrow as pa
    import pyarrow.json
    import pyarrow.parquet

    how = _format(path)
    try:
        if how == "parquet":
            return pyarrow.parquet.ParquetFile(path).read()
        if how == "jsonl":
            return pyarrow.json.read_json(path)
        return _read_csv(path, kind)
    except FileNotFoundError:
        raise InputError("there is no such file", file=str(path)) from None
    except (pa.ArrowException, OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"cannot be read: {error}", file=str(path)) from None


def _read_csv(path: Path, kind: str) -> pa.Table:
    import pyarrow as pa
    import pyarrow.csv

    from isobatch._columns import CLUSTER_FIELDS, JOB_FIELDS, SETTINGS_FIELDS

    with path.open(newline="", encoding="utf-8-sig") as file:
        header = next(csv.reader(file), [])
    if not header:
        raise InputError("the file is empty", file=str(path))
    numbers = {*(JOB_FIELDS if kind == "job" else CLUSTER_FIELDS), *SETTINGS_FIELDS}
    # What is not ours is carried along as it stands: "007" stays "007".
    texts = {name: pa.string() for name in header if name not in numbers}
    return pyarrow.csv.read_csv(
        path,
        convert_options=pyarrow.csv.ConvertOptions(
            column_types=texts, strings_can_be_null=True, null_values=["", "null", "NULL"]
        ),
    )


@contextmanager
def table_writer(path: Path, metadata: dict[str, str]) -> Iterator[Callable[[Any], None]]:
    """A function that appends tables of one schema to a file, which appears when the block ends, or not at all."""
    import pyarrow.csv
    import pyarrow.parquet

    how = _format(path)
    if not path.parent.is_dir():
        raise InputError("there is no such folder", file=str(path.parent))
    with beside(path) as partial:
        writer: Any = None

        def write(table: Any) -> None:
            nonlocal writer
            if how == "csv":
                table = joined(table)
            if writer is None:
                schema = table.schema.with_metadata({**(table.schema.metadata or {}), **metadata})
                if how == "parquet":
                    writer = pyarrow.parquet.ParquetWriter(partial, schema, compression="zstd")
                elif how == "csv":
                    writer = pyarrow.csv.CSVWriter(partial, schema)
                else:
                    writer = partial.open("wb")
            if how == "jsonl":
                writer.write(json_lines(table))
            else:
                writer.write_table(
                    table.replace_schema_metadata(None) if how == "csv" else table.cast(writer.schema)
                )

        try:
            yield write
        except OSError as error:
            raise InputError(f"cannot be written: {error}", file=str(path)) from None
        finally:
            if writer is not None:
                writer.close()


def joined(table: pa.Table) -> pa.Table:
    """The table with lists as texts joined by `;`, as CSV holds them."""
    import pyarrow as pa
    import pyarrow.compute as pc

    for index, field in enumerate(table.schema):
        if pa.types.is_list(field.type):
            table = table.set_column(
                index, field.name, pc.binary_join(table[field.name].cast(pa.list_(pa.string())), ";")
            )
    return table


def json_lines(table: pa.Table) -> bytes:
    """The table as one JSON object a line."""
    import msgspec

    return msgspec.json.Encoder().encode_lines(table.to_pylist())
