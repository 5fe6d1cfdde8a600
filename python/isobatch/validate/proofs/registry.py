"""All claims, in the order in which they are proven, which is the table's. To add one: its file here, its line below, and its
row in docs/validate.md; figures of its own go into report/figures.py and into the Report."""

from __future__ import annotations

from isobatch.validate.proofs import (
    all_reduce,
    compiling,
    epoch,
    gradient,
    host,
    learning_rate,
    loss,
    machine,
    meanwhile,
    memory,
    micro_batch,
    noise_scale,
    road,
    soak,
    step_time,
    storage,
    workload,
    world,
)
from isobatch.validate.proofs.claim import Claim

CLAIMS: tuple[Claim, ...] = (
    host.CLAIM,
    world.CLAIM,
    machine.CLAIM,
    epoch.CLAIM,
    workload.CLAIM,
    compiling.CLAIM,
    memory.CLAIM,
    loss.CLAIM,
    gradient.CLAIM,
    gradient.DOUBLE,
    learning_rate.CLAIM,
    all_reduce.CLAIM,
    road.CLAIM,
    micro_batch.CLAIM,
    step_time.CLAIM,
    storage.CLAIM,
    noise_scale.CLAIM,
    soak.CLAIM,
    meanwhile.CLAIM,
)
