"""How a file of plans was made: written beside its columns, read where they are shown."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from isobatch import _core

MAX_NAMED_CLUSTERS = 200
"""Clusters whose GPU types a file names: a folder has them in each of its files, of which there may be 100,000."""


class Provenance(NamedTuple):
    """The settings, the choice of rows and their number for each job ("all": no choice), and the GPU type of each cluster.

    `select` is None where the file does not say: it is no Parquet, or an older one.
    """

    settings: dict[str, Any]
    select: str | None = None
    top: int = 1
    gpu_types: Mapping[str, str] = {}


def to_metadata(provenance: Provenance) -> dict[str, str]:
    """Writes it as a file's metadata."""
    found = {
        "isobatch.version": _core.__version__,
        "isobatch.settings": _json(provenance.settings),
        "isobatch.select": _json({"by": provenance.select, "top": provenance.top}),
    }
    if provenance.gpu_types:
        found["isobatch.gpu_types"] = _json(dict(provenance.gpu_types))
    return found


def of_metadata(metadata: Mapping[bytes, bytes] | None) -> Provenance:
    """Reads it from a file's metadata; where no fleet wrote them, nothing is known.

    >>> of_metadata({name.encode(): text.encode() for name, text in to_metadata(Provenance({}, "cheapest", 2)).items()})
    Provenance(settings={}, select='cheapest', top=2, gpu_types={})
    >>> of_metadata({b"isobatch.select": b"[[[", b"isobatch.settings": b"1"})
    Provenance(settings={}, select=None, top=1, gpu_types={})
    """
    known = metadata or {}
    chosen = _read(known, b"isobatch.select")
    select, top = chosen.get("by"), chosen.get("top")
    if not isinstance(select, str) or type(top) is not int or top < 1:
        select, top = None, 1
    types = _read(known, b"isobatch.gpu_types")
    named = {name: gpu for name, gpu in types.items() if isinstance(gpu, str)}
    return Provenance(_read(known, b"isobatch.settings"), select, top, named)


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def _read(metadata: Mapping[bytes, bytes], name: bytes) -> dict[str, Any]:
    try:
        found = json.loads(metadata.get(name, b"{}"))
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
