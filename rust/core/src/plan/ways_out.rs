//! What would work instead of what does not.

use super::grid::Grid;
use super::replicas::Replicas;
use crate::batch::{MAX_BATCH, Tolerance};
use crate::input::Input;
use crate::lengths::Stage;

/// (input, its ramp's stages at the tuned batch, the batch asked for, GPUs, replicas) → the GPU counts next to these that work.
pub(super) type Seek = fn(&Input, &[Stage], u64, u64, Replicas) -> (Option<u64>, Option<u64>);

/// Counts of replicas that are looked at in each direction, beside those that the batch divides over.
const LOOKS: usize = 1024;

/// GPU counts next to `world_size` over whose replicas the batch, or one within the tolerance, divides; of `replicas` all but
/// the count holds for them.
pub(super) fn neighbouring_replicas(
    input: &Input,
    stages: &[Stage],
    batch: u64,
    world_size: u64,
    replicas: Replicas,
) -> (Option<u64>, Option<u64>) {
    let settings = &input.settings;
    let most = settings.max_batch.unwrap_or(MAX_BATCH).min(MAX_BATCH);
    let grid = |count| Grid::of(input, Replicas { count, ..replicas }, stages);
    let works = |count: &u64| {
        let Grid { unit, least, .. } = grid(*count);
        let within = Tolerance { target: batch, unit, least, most, share: settings.batch_tolerance };
        within.units().is_some()
    };
    let gpus = |count: u64| count * replicas.model_parallel;
    let (down, up) = (world_size / replicas.model_parallel, world_size.div_ceil(replicas.model_parallel));
    let (mut below, mut above) = grid(1).counts(batch, down, up);
    if settings.batch_tolerance > 0.0 {
        below = (1..=down).rev().take(LOOKS).find(works).max(below);
        above = (up..).take(LOOKS).find(works).into_iter().chain(above).min();
    }
    (below.map(gpus), above.map(gpus))
}

/// Nothing: to find it takes longer than most plans.
pub(super) fn not_sought(_: &Input, _: &[Stage], _: u64, _: u64, _: Replicas) -> (Option<u64>, Option<u64>) {
    (None, None)
}
