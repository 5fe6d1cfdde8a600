"""The hardware to plan for."""

from __future__ import annotations

from isobatch.recipes.record import Record


class Cluster(
    Record, frozen=True, kw_only=True, dict=True, forbid_unknown_fields=True, repr_omit_defaults=True
):
    """A shape of hardware.

    Args:
        nodes, gpus_per_node: their product is the world size.
        model_parallel: GPUs that hold one replica here; None: as the recipe has it.
        gpu: the type's name.
        memory_gib: of one GPU.
        intra_gb_s, inter_gb_s: bus bandwidth of an all-reduce inside a node, and across nodes (a node's network bounds it), GB/s.
        latency_us: of one hop across nodes, microseconds.
        price_per_gpu_hour: in any currency; costs come out in the same.

    Raises:
        InputError: there is no such field. Values are checked when something is planned.

    >>> Cluster(nodes=8, gpus_per_node=8).world_size
    64
    """

    nodes: int = 1
    gpus_per_node: int = 8
    model_parallel: int | None = None
    gpu: str | None = None
    memory_gib: float | None = None
    intra_gb_s: float | None = None
    inter_gb_s: float | None = None
    latency_us: float | None = None
    price_per_gpu_hour: float | None = None

    @property
    def world_size(self) -> int:
        """GPUs, which is processes."""
        return self.nodes * self.gpus_per_node
