"""How a file of plans was made, as it says itself: written beside its columns, read where they are shown."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from isobatch import _core

MOST_CLUSTERS = 200
"""Clusters whose GPU types a file names: a folder has them in each of its files, of which there may be 100,000."""


class Made(NamedTuple):
    """The settings, by what rows were kept and how many of each job ("all": all were), and the GPU type of each cluster.

    `select` is None where the file does not say: it is no Parquet, or an older one.
    """

    settings: dict[str, Any]
    select: str | None = None
    top: int = 1
    gpu_types: Mapping[str, str] = {}


def to_metadata(made: Made) -> dict[str, str]:
    """What is written into a file's metadata."""
    found = {
        "isobatch.version": _core.__version__,
        "isobatch.settings": _json(made.settings),
        "isobatch.select": _json({"by": made.select, "top": made.top}),
    }
    if made.gpu_types:
        found["isobatch.gpu_types"] = _json(dict(made.gpu_types))
    return found


def of_metadata(metadata: Mapping[bytes, bytes] | None) -> Made:
    """What a file's metadata says; of what no fleet wrote, nothing.

    >>> of_metadata({name.encode(): text.encode() for name, text in to_metadata(Made({}, "cheapest", 2)).items()})
    Made(settings={}, select='cheapest', top=2, gpu_types={})
    >>> of_metadata({b"isobatch.select": b"[[[", b"isobatch.settings": b"1"})
    Made(settings={}, select=None, top=1, gpu_types={})
    """
    known = metadata or {}
    chosen = _read(known, b"isobatch.select")
    select, top = chosen.get("by"), chosen.get("top")
    if not isinstance(select, str) or type(top) is not int or top < 1:
        select, top = None, 1
    types = _read(known, b"isobatch.gpu_types")
    named = {name: gpu for name, gpu in types.items() if isinstance(gpu, str)}
    return Made(_read(known, b"isobatch.settings"), select, top, named)


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def _read(metadata: Mapping[bytes, bytes], name: bytes) -> dict[str, Any]:
    try:
        found = json.loads(metadata.get(name, b"{}"))
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
