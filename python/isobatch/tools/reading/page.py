"""One tool's settings, taken one at a time: each is checked, and remembered with the recipe's field that it gives."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from isobatch.errors import InputError, must_be
from isobatch.tools.reading.literals import Unknown

_NUMBER = re.compile(r"[-+]?(?:\d[\d_]*\.?\d*|\.\d+)(?:[eE][-+]?\d+)?")
_FIELDS = (
    (r"warmup", "warmup"),
    (r"beta", "betas"),
    (r"parallel|_degree", "model_parallel"),
    (r"nproc|nnodes|num_(nodes|machines|gpus)|devices|WORLD_SIZE", "gpus"),
    (r"decay_(iters|samples|steps|ratio)|cycles|timescale|power|GAMMA", "schedule"),
    (r"steps|epochs|iters|samples|MAX_ITER", "duration"),
    (r"clip|norm", "clip_norm"),
)
"""What field of a recipe would be given instead of a setting that becomes no field by itself."""
_TRUE, _FALSE = ("true", "yes", "on", "1"), ("false", "no", "off", "0")


@dataclass
class Found:
    """What a tool's file says.

    Attributes:
        tool: the reader's name.
        title: the tool's, as people write it.
        fields: of a recipe, and `batch_per_gpu`.
        keys: for each of them what the file calls it.
        notes: what was assumed, or is not read.
        faults: what is wrong, by the field that would be given instead; a field that is given by hand needs no key.
        settings: the file's own values.
        step: of a checkpoint, the optimizer steps done.
        used: the settings that were asked for, by their places in the file.
        guessed: whether the tool was found by what is in the file.
    """

    tool: str
    title: str
    file: str
    settings: dict[str, Any]
    fields: dict[str, Any] = field(default_factory=dict)
    keys: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    faults: list[tuple[str, InputError]] = field(default_factory=list)
    step: int | None = None
    used: set[str] = field(default_factory=set)
    guessed: bool = False


class Page:
    """Reads settings by name; dots go into tables (`optimizer.params.lr`)."""

    def __init__(
        self, settings: Mapping[str, Any], found: Found, *, dashes: bool = False, inside: str = ""
    ) -> None:
        self.settings, self.found, self.dashes, self.inside = settings, found, dashes, inside

    def raw(self, key: str) -> Any:
        """The value as it is written; None where there is none."""
        self.found.used.add(f"{self.inside}{key}")
        value: Any = self.settings
        for part in key.split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
        return value

    def has(self, key: str) -> bool:
        """Whether there is a value."""
        return self.raw(key) is not None

    def first(self, *keys: str) -> str:
        """The first of several names that the file uses; the first of all where it uses none."""
        return next((key for key in keys if self.has(key)), keys[0])

    def name(self, key: str) -> str:
        """A setting as the tool's users write it."""
        return f"--{key.replace('_', '-')}" if self.dashes else f"{self.inside}{key}"

    def give(self, field: str, value: Any, key: str) -> None:
        """Sets a field of the recipe, and which setting it comes from."""
        self.found.fields[field] = value
        self.found.keys[field] = self.name(key)

    def note(self, text: str) -> None:
        """Something that whoever reads the plan should know."""
        if text not in self.found.notes:
            self.found.notes.append(text)

    def fault(self, to: str, error: InputError) -> None:
        """Something that cannot be used, unless field `to` is given by hand."""
        fault = error.at(file=self.found.file)
        if str(fault) not in [str(known) for _, known in self.found.faults]:
            self.found.faults.append((to, fault))

    def number(self, key: str, to: str | None = None, *, default: float | None = None) -> float | None:
        """A finite number, also as a text such as "2e-5"."""
        value = self.raw(key)
        number = default if value is None else self._number(key, value, to or _field(key))
        if to is not None and number is not None:
            self.give(to, number, key)
        return number

    def whole(self, key: str, to: str | None = None, *, default: int | None = None) -> int | None:
        """A whole number."""
        value = self.raw(key)
        number = default if value is None else self._number(key, value, to or _field(key))
        if number is None:
            return None
        if number != int(number) or abs(number) >= 2**63:
            self.fault(to or _field(key), must_be("a whole number", self.raw(key), field=self.name(key)))
            return None
        if to is not None:
            self.give(to, int(number), key)
        return int(number)

    def word(self, key: str, default: str | None = None) -> str | None:
        """A text; None where there is none."""
        value = self.raw(key)
        if isinstance(value, Unknown):
            return value.name or default
        if value is None:
            return default
        if not isinstance(value, str):
            self.fault(key, must_be("a text", value, field=self.name(key)))
            return default
        return value

    def flag(self, key: str) -> bool:
        """Whether something is switched on."""
        value = self.raw(key)
        if isinstance(value, str) and value.lower() in _TRUE + _FALSE:
            return value.lower() in _TRUE
        return value is True or value == 1

    def table(self, key: str) -> Page:
        """A table inside, as a page of its own."""
        value = self.raw(key)
        inner = value if isinstance(value, Mapping) else {}
        return Page(inner, self.found, dashes=self.dashes, inside=f"{self.inside}{key}.")

    def _number(self, key: str, value: Any, to: str) -> float | None:
        name = self.name(key)
        if isinstance(value, str) and value.strip().lower() == "auto":
            self.fault(
                to, InputError(f'{name}: "auto" is not known before the run: give {to} a value', field=name)
            )
            return None
        if isinstance(value, Unknown):
            self.fault(
                to,
                InputError(
                    f"{name} is computed, and nothing here is executed: give {to} a value", field=name
                ),
            )
            return None
        if isinstance(value, str) and value.startswith("$"):
            self.fault(
                to, InputError(f"{name}: {value} is not set in this file: give {to} a value", field=name)
            )
            return None
        if isinstance(value, str) and _NUMBER.fullmatch(value.strip()):
            text = value.strip().replace("_", "")
            value = int(text) if text.lstrip("+-").isdecimal() and len(text) < 20 else float(text)
        if (
            type(value) not in (int, float)
            or not math.isfinite(value)
            or (type(value) is int and abs(value) >= 2**63)
        ):
            self.fault(to, must_be("a number", value, field=name))
            return None
        return value  # type: ignore[no-any-return]


def _field(key: str) -> str:
    return next((field for pattern, field in _FIELDS if re.search(pattern, key)), key)
