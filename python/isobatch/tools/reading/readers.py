"""The tools whose files can be read, a module each in this folder."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

from isobatch.errors import unknown

READERS = (
    "transformers",
    "checkpoint",
    "axolotl",
    "llama_factory",
    "accelerate",
    "deepspeed",
    "torchtitan",
    "megatron",
    "lightning",
    "composer",
    "ultralytics",
    "detectron2",
    "mmengine",
)


def reader(name: str) -> ModuleType:
    """The reader of a tool.

    Raises:
        InputError: there is none of that name.
    """
    plain = name.lower().replace("-", "_")
    if plain not in READERS:
        raise unknown("tool", name, READERS, field="tool")
    return import_module(f"isobatch.tools.reading.{plain}")
