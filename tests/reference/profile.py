"""Profiles of a workload: one with all its constants known, and any other by what differs from a plain
one.
"""

import isobatch as ib

PLAIN = {
    "compute_constant": 0.01, "compute_per_sample": 0.001, "overlap": 2.0, "intra_latency_us": 5.0,
        "intra_gb_s": 20.0,
    "inter_latency_us": 20.0, "inter_gb_s": 2.0, "memory_fixed_gib": 10.0, "memory_per_sample_gib": 0.5,
}  # fmt: skip
MEASURED = {"micro_batch": (1, 4096), "replicas_per_node": (1, 8), "nodes": (1, 64)}
MORE = {"compute_floor", "update", "lead", "memory_sharded_gib", "noise_scale"}


def profile_of(**changes):
    """A profile with a gradient of 100 MB; constants may be plain numbers."""
    fields = {"gradient_bytes": 1e8, **PLAIN, **changes}
    numbers = [name for name in PLAIN.keys() | MORE if isinstance(fields.get(name), float)]
    return ib.Profile(**fields | {name: ib.Constant(value=fields[name]) for name in numbers})


PROFILE = profile_of(
    compute_constant=ib.Constant(value=0.01, error=0.001), update=0.002, overlap=3.0, intra_gb_s=100.0,
        inter_gb_s=10.0,
    memory_fixed_gib=8.0, memory_sharded_gib=3.0, noise_scale=2000.0,
)  # fmt: skip
