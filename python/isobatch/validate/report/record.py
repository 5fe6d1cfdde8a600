"""A report's figures as the measurements that a calibration reads."""

from __future__ import annotations

from isobatch.forecast.measurements import AllReduceRecord, Measurements, StepRecord
from isobatch.validate.report.figures import AllReduce, Machine, Step


def measurements(machine: Machine, step: Step, allreduce: AllReduce) -> Measurements | None:
    """Each step's time is that of its slowest rank; the micro-batches without communication count as steps of one GPU.
    None where several ranks share a GPU, whose times say nothing about one."""
    if machine.emulated:
        return None
    per_node = max(1, step.ranks // step.nodes)
    alone = [
        StepRecord(
            gpus=1,
            gpus_per_node=1,
            micro_batch=row.micro_batch,
            accumulation=1,
            step_seconds=tuple(row.step_seconds),
            memory_gib=row.peak_memory_bytes / 2**30,
        )
        for row in step.micro_batches
    ]
    together = StepRecord(
        gpus=step.ranks,
        gpus_per_node=per_node,
        micro_batch=step.micro_batch,
        accumulation=step.accumulation,
        step_seconds=tuple(step.sync_seconds),
    )
    return Measurements(
        gradient_bytes=step.gradient_bytes,
        bucket_bytes=tuple(map(float, step.bucket_bytes)),
        steps=(*alone, *([together] if step.ranks > 1 else [])),
        all_reduce=tuple(
            AllReduceRecord(
                gpus=row.ranks,
                gpus_per_node=per_node,
                bytes=row.bytes,
                seconds=tuple(sample / 1e6 for sample in row.samples_us),
            )
            for row in allreduce.table
            if row.dtype == "float32" and row.mode == "isolated"
        ),
        workload=step.workload,
        gpu=machine.ranks[0].device,
    )
