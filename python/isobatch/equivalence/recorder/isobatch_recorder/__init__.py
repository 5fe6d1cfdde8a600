"""Records the gradient of an unchanged training script, in the script's own Python, with torch alone.

A run of the script is one *split* of a batch. Each rank writes, at each optimizer step, the samples of each
pass, a linear sketch of the gradient that the optimizer applies, the learning rates and what clipping saw;
`isobatch.equivalence` compares the splits.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

from .after_import import AfterImport

if TYPE_CHECKING:
    from types import ModuleType

    from .record import Recorder

installed: list[Recorder] = []
"""The recorder of this process, once torch is imported."""

OBJECTS = (
    *("transformers.training_args", "accelerate.accelerator", "deepspeed"),
    *("lightning.pytorch.trainer.trainer", "pytorch_lightning.trainer.trainer"),
    *("lightning.fabric.fabric", "lightning_fabric.fabric"),
)
"""Modules with a class that says how a step is split, or where it runs."""


def watch() -> None:
    """Waits for the imports of torch and of the modules with numbers of a split."""
    patches = {"torch": _install, **dict.fromkeys(("argparse", "jsonargparse"), _patch_flags)}
    patches |= {**dict.fromkeys(OBJECTS, _patch_objects), "transformers.generation.utils": _patch_generation}
    sys.meta_path[:0] = [AfterImport(name, patch) for name, patch in patches.items()]


def _install(_: ModuleType) -> None:
    """Patches torch, before any other module takes a function out of it."""
    from . import (
        alike,
        backward,
        bits,
        devices,
        fsdp,
        indices,
        loaders,
        randomness,
        samples,
        sizes,
        states,
        updates,
        world,
    )
    from .record import Recorder

    recorder = Recorder(_settings())
    installed.append(recorder)
    world.install(recorder)
    devices.install(recorder)
    if recorder.settings["bits"]:
        bits.install(recorder)
        devices.begin(recorder)
        return
    parts = [randomness, alike, indices, sizes, loaders, samples, backward, updates, fsdp]
    if recorder.settings["untouched"]:
        parts = [states, sizes, loaders, samples, backward]
        parts += [] if recorder.settings["dropout"] else [randomness]
    for part in parts:
        part.install(recorder)
    begin()


def begin() -> None:
    """Begins a recording with the settings in the environment: in a fork, later than torch was imported."""
    from . import backward, checkpoints, devices, randomness, written

    recorder = installed[0]
    recorder.begin(_settings())
    devices.begin(recorder)
    randomness.seed(recorder.settings["seed"])
    backward.begin(recorder)
    written.install(recorder)
    if recorder.settings["watched"]:
        checkpoints.keep_apart(recorder)


def _settings() -> dict[str, Any]:
    import json  # here: every process of the script imports this file, also without torch

    settings: dict[str, Any] = json.loads(os.environ["ISOBATCH_SAME"])
    return settings


def _patch_objects(module: ModuleType) -> None:
    from . import objects  # importing it imports torch, as the module has by its end

    objects.PATCHES[module.__name__](module)


def _patch_generation(module: ModuleType) -> None:
    from . import rollouts

    rollouts.patch(module)


def _patch_flags(module: ModuleType) -> None:
    from . import flags

    patch = flags.patch if module.__name__ == "argparse" else flags.patch_jsonargparse
    patch(module)


def current() -> Recorder:
    """Returns the recorder of this process, made when torch was imported."""
    return installed[0]
