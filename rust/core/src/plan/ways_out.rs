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

/// The same where each of them takes a split, since the micro-batch may not be too small.
const LOOKS_AT_SPLITS: usize = 64;

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
    if replicas.cap < replicas.divisor.max(settings.min_micro_batch) {
        return (None, None); // on any number of GPUs
    }
    let most = settings.max_batch.unwrap_or(MAX_BATCH).min(MAX_BATCH);
    let grid = |count| Grid::of(input, Replicas { count, ..replicas }, stages);
    let any = settings.min_micro_batch == 1;
    let works = |count: &u64| {
        let mut grid = grid(*count);
        let Grid { unit, least, .. } = grid;
        let within = Tolerance { target: batch, unit, least, most, share: settings.batch_tolerance };
        within.units().is_some_and(|(low, high)| {
            grid.least = low * unit;
            any || grid.below(high * unit, replicas.cap).is_some()
        })
    };
    let looks = if any { LOOKS } else { LOOKS_AT_SPLITS };
    let gpus = |count: u64| count * replicas.model_parallel;
    let (down, up) = (world_size / replicas.model_parallel, world_size.div_ceil(replicas.model_parallel));
    // On more replicas one of them would have fewer samples than a micro-batch.
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a share below 1 of at most 2^40"
    )]
    let further = (batch as f64 * settings.batch_tolerance) as u64 + 1;
    let most_replicas = if any { u64::MAX } else { (batch + further) / settings.min_micro_batch };
    let down = down.min(most_replicas);
    let (mut below, mut above) = if any {
        grid(1).counts(batch, down, up)
    } else {
        let fits = |count: u64| grid(count).fits(batch, replicas.cap);
        coarse_counts(&grid(1), batch, down, up, fits)
    };
    if settings.batch_tolerance > 0.0 {
        below = (1..=down).rev().take(looks).find(works).max(below);
        let mut counts = (up..).take(looks).take_while(|count| *count <= most_replicas);
        above = counts.find(works).into_iter().chain(above).min();
    }
    (below.map(gpus), above.map(gpus))
}

/// Of the counts that the batch divides over, those next to these on which no micro-batch is too small.
fn coarse_counts(
    one: &Grid,
    batch: u64,
    down: u64,
    up: u64,
    fits: impl Fn(u64) -> bool,
) -> (Option<u64>, Option<u64>) {
    let (mut below, mut above) = one.counts(batch, down, up);
    for _ in 0..LOOKS_AT_SPLITS {
        match below {
            Some(count) if !fits(count) => {
                below = if count > 1 { one.counts(batch, count - 1, up).0 } else { None };
            }
            _ => break,
        }
    }
    for _ in 0..LOOKS_AT_SPLITS {
        match above {
            Some(count) if !fits(count) => above = one.counts(batch, down, count + 1).1,
            _ => break,
        }
    }
    (below.filter(|&count| fits(count)), above.filter(|&count| fits(count)))
}

/// Nothing: to find it takes longer than most plans.
pub(super) fn not_sought(_: &Input, _: &[Stage], _: u64, _: u64, _: Replicas) -> (Option<u64>, Option<u64>) {
    (None, None)
}
