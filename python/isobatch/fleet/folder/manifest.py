"""What is written down of a run: the receipt of each part that is done, and the manifest of the folder."""

from __future__ import annotations

from typing import Any

import msgspec

from isobatch.fleet.folder.parts import Part
from isobatch.fleet.folder.summary import Summary
from isobatch.words import shown


class Receipt(msgspec.Struct, frozen=True):
    """A part that is done."""

    part: Part
    digest: str
    """BLAKE2b of the bytes that it was made of."""
    jobs: int
    files: dict[str, int]
    """Its files in the output, and the rows in each."""
    summary: Summary
    digests: dict[str, str] = {}
    """BLAKE2b of each of its files."""

    def __post_init__(self) -> None:
        for name in (*self.files, *self.digests):
            parts = name.split("/")
            if "\0" in name or name.startswith("_") or any(part in ("", ".", "..") for part in parts):
                raise ValueError(f"{shown(name)} is no file of the folder")


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """What is in a folder of plans.

    `state` is "running", "complete", or "incomplete" where files of jobs, named in `failed` with the reason, could not be used.
    """

    version: int = 1
    state: str
    run: dict[str, Any]
    """The arguments; clusters and profiles as digests, with a few words for people."""
    parts: list[Receipt]
    failed: dict[str, str]
    summary: Summary

    @property
    def rows(self) -> int:
        """Rows of the result."""
        return self.summary.rows

    @property
    def jobs(self) -> int:
        """Jobs that were planned."""
        return sum(receipt.jobs for receipt in self.parts)
