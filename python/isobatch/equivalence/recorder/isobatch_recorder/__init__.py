"""Records the gradient of an unchanged training script, in the script's own Python, with torch alone.

A run of the script is one *split* of a batch. Each rank writes, at each optimizer step, the samples of each
pass, a linear sketch of the gradient that the optimizer applies, the learning rates and what clipping saw;
`isobatch.equivalence` compares the splits.
"""

from __future__ import annotations

import os


def install() -> None:
    """Prepares torch for the recording of this process: settings come as JSON in ISOBATCH_SAME."""
    import json  # here: every process of the script imports this file, also without torch

    from . import alike, backward, bits, loaders, randomness, samples, world
    from .record import Recorder

    recorder = Recorder(json.loads(os.environ["ISOBATCH_SAME"]))
    world.install(recorder)
    if recorder.settings["bits"]:
        bits.install(recorder)
        return
    world.keep_whole(recorder)
    for part in (randomness, alike, loaders, samples, backward):
        part.install(recorder)
