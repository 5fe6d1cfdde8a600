"""Records the gradient of an unchanged training script, in the script's own Python, with torch alone.

A run of the script is one *split* of a batch. Each rank writes, at each optimizer step, the samples of each
pass, a linear sketch of the gradient that the optimizer applies, the learning rates and what clipping saw;
`isobatch.equivalence` compares the splits.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .record import Recorder

installed: list[Recorder] = []
"""The recorder of this process, once torch is imported."""


def install() -> None:
    """Prepares torch for the recording of this process: settings come as JSON in ISOBATCH_SAME."""
    import json  # here: every process of the script imports this file, also without torch

    from . import (
        alike,
        backward,
        bits,
        devices,
        fsdp1,
        indices,
        loaders,
        randomness,
        samples,
        sizes,
        updates,
        world,
    )
    from .record import Recorder

    recorder = Recorder(json.loads(os.environ["ISOBATCH_SAME"]))
    installed.append(recorder)
    world.install(recorder)
    devices.install(recorder)
    if recorder.settings["bits"]:
        bits.install(recorder)
        return
    parts = (randomness, alike, indices, sizes, loaders, samples, backward, updates, fsdp1)
    for part in parts:
        part.install(recorder)


def current() -> Recorder:
    """Returns the recorder of this process, made when torch was imported."""
    return installed[-1]
