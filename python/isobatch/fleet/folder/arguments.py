"""What makes a run into a folder the same run: its arguments."""

from __future__ import annotations

from typing import Any

import msgspec

from isobatch import _core
from isobatch.errors import InputError
from isobatch.fleet.folder.digest import digest_of_texts
from isobatch.fleet.query import Query
from isobatch.fleet.side import Side
from isobatch.words import counted, few, printable, shown


def arguments_of(query: Query, partition_by: str | None) -> dict[str, Any]:
    """All that the result depends on beside the jobs; large things as digests, with a few words for people."""
    return {
        "isobatch": _core.__version__,
        **query.settings,
        "columns": query.columns,
        "select": query.select,
        "top": query.top,
        "partition_by": partition_by,
        "clusters": None if query.clusters is None else _clusters(query.clusters),
        "profile": [
            {"digest": digest_of_texts(msgspec.json.encode(it)), "words": printable(str(it.gpu), 60)}
            for it in query.profiles
        ],
    }


def _clusters(side: Side) -> dict[str, str]:
    shapes = {"nodes": "node", "gpus_per_node": "GPU"}
    sizes = []
    for row in range(min(side.rows, 4)):
        cells = ((side.cell(name, row), text) for name, text in shapes.items())
        size = " of ".join(_counted(cell, text) for cell, text in cells if cell is not None)
        name = None if side.ids is None else printable(str(side.ids[row]), 40)
        sizes.append(f"{name}: {size}" if name is not None else size)
    more = f" and {side.rows - len(sizes):,} more" if side.rows > len(sizes) else ""
    return {
        "digest": _digest_of_side(side),
        "words": f"{counted(side.rows, 'cluster')} ({'; '.join(sizes)}{more})",
    }


def _counted(cell: Any, noun: str) -> str:
    """A cell as it is where it is no number, as in CSV."""
    text = printable(str(cell), 40)
    return counted(int(text), noun) if text.isdecimal() else f"{text} {noun}s"


def _digest_of_side(side: Side) -> str:
    columns: list[bytes] = [b"arrow" if side.arrow else b"numpy"]
    for name, data in side.known:
        columns += [
            name.encode(),
            *((data[0].tobytes(), repr(data[1]).encode()) if isinstance(data, tuple) else (data.tobytes(),)),
        ]
    for name, column in {**side.carried, side.kind: side.numbered}.items():
        values = column.to_pylist() if side.arrow else column.tolist()
        columns += [name.encode(), repr(values).encode()]
    return digest_of_texts(*columns)


def refuse_other(was: dict[str, Any], is_now: dict[str, Any], base: str) -> None:
    """Refuses a run into the folder of a run with other arguments.

    Raises:
        InputError: the message says which differ, and how.
    """
    now = msgspec.json.decode(msgspec.json.encode(is_now))
    differing = [
        _difference(name, was.get(name), now.get(name))
        for name in {**was, **now}
        if was.get(name) != now.get(name)
    ]
    if differing:
        raise InputError(
            f"holds plans made with other arguments: {few(differing, 10)}. Plan into another folder, or replan all with "
            "--no-resume (resume=False)",
            file=base,
        )


def _difference(name: str, was: Any, now: Any) -> str:
    if name == "profile":
        return (
            "another profile"
            if was and now
            else "a profile, where there was none"
            if now
            else "no profile, where there was one"
        )
    if name != "clusters":
        return f"{name} was {shown(was)}, is {shown(now)}"
    before, after = (
        str(it.get("words")) if isinstance(it, dict) else "those of the jobs' rows" for it in (was, now)
    )
    if before == after:
        return f"the clusters are others, or have other values: {after}"
    return f"the clusters were {before}, are {after}"
