"""detectron2."""

from __future__ import annotations

from collections.abc import Iterator

from isobatch.doctor.finding import Case, Finding
from isobatch.words import count, real


def check(case: Case) -> Iterator[Finding]:
    """What it does without a word in the file."""
    workers = case.at("SOLVER", "REFERENCE_WORLD_SIZE")
    lr, batch = case.fields.get("lr"), case.fields.get("effective_batch")
    if type(workers) is int and workers > 0 and workers != case.gpus and lr and batch:
        k = case.gpus / workers
        yield Finding(
            f"a step has {count(batch * k)} samples at learning rate {real(lr * k)}",
            f"REFERENCE_WORLD_SIZE {workers} makes detectron2 rescale batch, learning rate and steps by {k:g}",
            "detectron2, engine/defaults.py: DefaultTrainer.auto_scale_workers",
            f"SOLVER.REFERENCE_WORLD_SIZE: 0  (to keep {batch})",
        )
    elif not workers and batch and batch % case.gpus:
        yield Finding(
            f"detectron2 stops: {batch} images are no multiple of {case.gpus} GPUs",
            "IMS_PER_BATCH is split over the GPUs",
            "detectron2, data/build.py: build_batch_data_loader",
            f"SOLVER.IMS_PER_BATCH: {max(1, batch // case.gpus) * case.gpus}",
        )
