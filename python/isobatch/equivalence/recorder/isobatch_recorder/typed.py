"""The numbers of a split in a script's code: kept as typed, and replaced by those of this run."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .record import Recorder

SET = "set by the split"


class TypedNumbers:
    """The objects of a script with numbers of a split, in the order of their making.

    A run that only looks (`look` samples at most) keeps them, and writes them at the first backward pass; the
    others, with a `split`, replace the numbers of the kinds in `sets`.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._made: dict[int, dict[str, Any]] = {}
        self._kept: list[Any] = []  # so that no other object gets its id
        self._is_written = False
        self.loaders: list[dict[str, Any]] = []
        self.drawn_by: dict[str, Any] | None = None
        self.splits_batches = False
        """Whether a loader's batch is that of all ranks, as Accelerate's `split_batches` has it."""

    def sets(self, kind: str) -> bool:
        """Whether this run replaces the numbers of a kind of object."""
        settings = self._recorder.settings
        return settings["split"] is not None and kind in settings["sets"]

    def number(self, kind: str, name: str, typed: Any) -> Any:
        """Returns the split's `micro_batch`, `accumulation` or `ranks`, or the typed number."""
        if not self.sets(kind):
            return typed
        return self._recorder.settings["split"][name]

    def made(self, thing: Any, kind: str, **values: Any) -> None:
        """Keeps the numbers typed in an object."""
        if id(thing) not in self._made:
            self._kept.append(thing)
        entry = self._made.setdefault(id(thing), {"kind": kind, "name": type(thing).__name__, "text": SET})
        entry.update(values)

    def tell(self, thing: Any, names: dict[str, str]) -> None:
        """Describes an object with its typed numbers; `names`: those of the object, with the split's."""
        entry = self._made[id(thing)]
        numbers = {name: entry[number] for name, number in names.items() if number in entry}
        listed = ", ".join(f"{name}={value}" for name, value in numbers.items())
        entry["text"] = f"{entry['name']}({listed}) {SET}"
        split = self._recorder.settings["split"] or {}
        if self.sets(entry["kind"]) and any(split[names[name]] != value for name, value in numbers.items()):
            self._recorder.note(entry["text"])

    def end_pass(self) -> None:
        """Counts a backward pass of the last loader to draw."""
        if self.drawn_by is not None:
            self.drawn_by["passes"] += 1
            self.drawn_by = None

    def look_long(self, passes: int) -> None:
        """Ends a script with more passes before a step than samples are compared."""
        most = self._recorder.settings["look"]
        if most and passes > most:
            self._is_written = False
            self.look(is_long=True)

    def look(self, passes: int = 0, *, is_long: bool = False) -> None:
        """Writes the typed numbers, at the first backward pass and at each step, of `passes`.

        A script whose step has more samples than are compared ends.
        """
        recorder = self._recorder
        most = recorder.settings["look"]
        if not most or (self._is_written and not passes):
            return
        for thing, entry in zip(self._kept, self._made.values()):
            if entry["kind"] == "lightning":  # by hand in its module, or by the Trainer
                module = getattr(thing, "lightning_module", None)
                entry["accumulates"] = bool(getattr(module, "automatic_optimization", True))
        drew = [loader for loader in self.loaders if loader["passes"]]
        content = {
            "world": recorder.world,
            "objects": [*self._made.values()],
            "loader": self.drawn_by or max(drew, key=lambda loader: loader["passes"], default=None),
            "loaders": self.loaders,
            "splits_batches": self.splits_batches,
            "passes": passes,
            "is_long": is_long,
        }
        recorder.write(f"typed-{recorder.rank}.json", json.dumps(content, default=str))
        self._is_written = True
        if is_long or _samples(content) > most:
            recorder.end("typed-{rank}.json")


def _samples(content: dict[str, Any]) -> int:
    """Returns the samples of a step, by the code; 0 where only the step will tell."""
    micro = (content["loader"] or {}).get("size") or 0
    passes = content["passes"]
    for entry in content["objects"]:
        micro = entry.get("micro_batch") or micro
        if entry.get("accumulates", True):
            passes = passes or entry.get("accumulation") or 0
    return int(micro * passes * (1 if content["splits_batches"] else content["world"]))
