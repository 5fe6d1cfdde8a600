"""A profile of a workload, with all its constants known."""

import isobatch as ib

PROFILE = ib.Profile(
    gradient_bytes=1e8,
    compute_constant=ib.Constant(value=0.01, error=0.001),
    compute_per_sample=ib.Constant(value=0.001),
    update=ib.Constant(value=0.002),
    overlap=ib.Constant(value=3.0),
    intra_latency_us=ib.Constant(value=5.0),
    intra_gb_s=ib.Constant(value=100.0),
    inter_latency_us=ib.Constant(value=20.0),
    inter_gb_s=ib.Constant(value=10.0),
    memory_fixed_gib=ib.Constant(value=8.0),
    memory_per_sample_gib=ib.Constant(value=0.5),
    memory_sharded_gib=ib.Constant(value=3.0),
    noise_scale=ib.Constant(value=2000.0),
)
