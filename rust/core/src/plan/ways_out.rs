//! What would work instead of what does not.

use crate::batch;

/// (batch, divisor, GPUs, model parallelism) → the GPU counts next to these that work.
pub(super) type Seek = fn(u64, u64, u64, u64) -> (Option<u64>, Option<u64>);

/// GPU counts next to `world_size` over whose replicas `batch` divides in multiples of `divisor`.
pub(super) fn neighbouring_replicas(
    batch: u64,
    divisor: u64,
    world_size: u64,
    model_parallel: u64,
) -> (Option<u64>, Option<u64>) {
    if !batch.is_multiple_of(divisor) {
        return (None, None);
    }
    let batch = batch / divisor;
    let below = (world_size >= model_parallel)
        .then(|| batch::nearest_divisors(batch, world_size / model_parallel).0 * model_parallel);
    let above =
        batch::nearest_divisors(batch, world_size.div_ceil(model_parallel)).1.map(|d| d * model_parallel);
    (below, above)
}

/// Nothing: to find it takes longer than most plans.
pub(super) fn not_sought(_: u64, _: u64, _: u64, _: u64) -> (Option<u64>, Option<u64>) {
    (None, None)
}
