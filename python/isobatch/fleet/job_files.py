"""Files of jobs, and their common schema."""

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import PurePosixPath
from typing import TypeGuard

import msgspec
import pyarrow as pa
from pyarrow.fs import FileSystem

from isobatch.errors import InputError
from isobatch.files.find import Files, below, format_of, naming_file
from isobatch.files.read import blocks
from isobatch.fleet.table import REQUIRED


class JobFile(msgspec.Struct, frozen=True):
    """A file of jobs; `name` is its path below the folder, without the suffix, `modified` is in ns.

    Jobs without ids are numbered from `first_id`, None if the jobs of the files before are not counted.
    """

    path: str
    name: str
    size: int
    modified: int | None
    first_id: int | None = 0


def list_jobs(files: Files) -> tuple[list[JobFile], pa.Schema | None]:
    """Lists files of jobs in their order, and their most frequent schema; None: none has a schema."""
    listed: list[JobFile] = []
    schemas: dict[tuple[str, ...], tuple[int, pa.Schema]] = {}  # files by their columns, and a schema for all
    first_id: int | None = 0
    with ThreadPoolExecutor(16) as pool:  # each waits for a disk or a store
        heads = pool.map(partial(_read_head, files.fs), [info.path for info in files.infos])
        for info, (rows, schema) in zip(files.infos, heads, strict=True):
            if _has_jobs(schema):
                count, common = schemas.get(tuple(schema.names), (0, schema))
                schemas[tuple(schema.names)] = count + 1, _common(common, schema)
            name = PurePosixPath(below(info.path, files.base)).with_suffix("")
            listed.append(JobFile(info.path, str(name), info.size, info.mtime_ns, first_id))
            first_id = None if first_id is None or rows is None else first_id + rows
    model = max(schemas.values(), key=lambda pair: pair[0])[1] if schemas else _first_schema(files.fs, listed)
    if model is not None and "job" in model.names:
        listed = [msgspec.structs.replace(file, first_id=0) for file in listed]
    return listed, model


def _read_head(fs: FileSystem, path: str) -> tuple[int | None, pa.Schema | None]:
    """Reads the rows and the schema of a file; None: not known without reading all of it, or at all."""
    kind = format_of(path)
    if kind != "parquet":
        return None, _read_schema(fs, path) if kind == "csv" else None
    import pyarrow.parquet as pq

    try:
        with naming_file(path), fs.open_input_file(path) as source:
            footer = pq.read_metadata(source)
            return footer.num_rows, footer.schema.to_arrow_schema()
    except InputError:  # and so it fails when it is read, and condemns no other
        return None, None


def _read_schema(fs: FileSystem, path: str) -> pa.Schema | None:
    with suppress(InputError):
        return next(blocks(fs, path, 1)).schema
    return None


def _has_jobs(schema: pa.Schema | None) -> TypeGuard[pa.Schema]:
    return schema is not None and set(REQUIRED["job"]) <= set(schema.names)


def _first_schema(fs: FileSystem, files: Iterable[JobFile]) -> pa.Schema | None:
    """Returns the schema of the first file of jobs, else of the first table (JSON lines have no heads)."""
    first = None
    for file in files:
        if _has_jobs(schema := _read_schema(fs, file.path)):
            return schema
        first = first or schema
    return first


def _common(schema: pa.Schema, another: pa.Schema) -> pa.Schema:
    """Returns a schema for both files, else the first: the second file then fails when it is read."""
    with suppress(pa.ArrowException):
        if not schema.equals(another, check_metadata=True):
            return pa.unify_schemas([schema, another], promote_options="permissive")
    return schema
