//! GPU counts next to one without a plan that have one.

use super::grid::{self, Grid};
use super::replicas::Replicas;
use crate::batch::{MAX_BATCH, Tolerance};
use crate::input::Input;
use crate::lengths::Stage;

/// (input, its ramp's stages at the tuned batch, the batch asked for, GPUs, replicas) → the GPU counts next
/// to these that work.
pub(super) type FindCounts = fn(&Input, &[Stage], u64, u64, Replicas) -> (Option<u64>, Option<u64>);

/// Counts of replicas that are looked at in each direction, beside those that the batch divides over.
const LOOKS: usize = 1024;

/// Splits that are looked at in each direction, where the micro-batch may not be too small.
const SPLITS: u64 = 1024;

/// Counts that the batch divides over, of which each takes a split.
const LOOKS_AT_SPLITS: usize = 64;

/// GPU counts next to `world_size` over whose replicas the batch, or one within the tolerance, divides; all
/// but the count of `replicas` holds there.
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
    let grid = |count| Grid::of(input, Replicas { count, ..replicas }, stages);
    let single = grid(1);
    let (down, up) = (world_size / replicas.model_parallel, world_size.div_ceil(replicas.model_parallel));
    let (mut below, mut above) = if settings.min_micro_batch == 1 {
        single.counts(batch, down, up, replicas.group)
    } else {
        coarse_counts(&single, batch, (down, up), replicas.group, |count| {
            grid(count).fits(batch, replicas.cap)
        })
    };
    if settings.batch_tolerance > 0.0 {
        let share = settings.batch_tolerance;
        let highest = settings.max_batch.unwrap_or(MAX_BATCH).min(MAX_BATCH);
        let within = |unit, least| Tolerance { target: batch, unit, least, most: highest, share }.units();
        let works = |count: u64, looks: &mut u64| {
            let mut grid = grid(count);
            within(grid.unit, grid.least).is_some_and(|(low, high)| {
                grid.least = low * grid.unit;
                settings.min_micro_batch == 1 || grid.below(high * grid.unit, replicas.cap, looks).is_some()
            })
        };
        let most = within(1, 1).map_or(0, |(_, high)| single.most_replicas(high));
        let group = replicas.group;
        let count = |groups: u64| groups * group;
        below = first((1..=down.min(most) / group).rev().map(count), works).max(below);
        above = first((up.div_ceil(group)..=most / group).map(count), works).into_iter().chain(above).min();
    }
    let gpus = |count| replicas.gpus(count);
    (below.map(gpus), above.map(gpus))
}

/// The first of the counts that works, as far as there are looks.
fn first(counts: impl Iterator<Item = u64>, works: impl Fn(u64, &mut u64) -> bool) -> Option<u64> {
    let mut left = SPLITS;
    for count in counts.take(LOOKS) {
        let mut looks = left.min(grid::LOOKS);
        left -= looks;
        if works(count, &mut looks) {
            return Some(count);
        }
        left += looks;
        if left == 0 {
            break;
        }
    }
    None
}

/// Of the counts that the batch divides over, those next to these on which no micro-batch is too small.
fn coarse_counts(
    single: &Grid,
    batch: u64,
    (down, up): (u64, u64),
    group: u64,
    fits: impl Fn(u64) -> bool,
) -> (Option<u64>, Option<u64>) {
    let (mut below, mut above) = single.counts(batch, down, up, group);
    for _ in 0..LOOKS_AT_SPLITS {
        match below {
            Some(count) if !fits(count) => {
                below = if count > 1 { single.counts(batch, count - 1, up, group).0 } else { None };
            }
            _ => break,
        }
    }
    for _ in 0..LOOKS_AT_SPLITS {
        match above {
            Some(count) if !fits(count) => above = single.counts(batch, down, count + 1, group).1,
            _ => break,
        }
    }
    (below.filter(|&count| fits(count)), above.filter(|&count| fits(count)))
}

/// Nothing: to find it takes longer than most plans.
pub(super) fn no_counts(_: &Input, _: &[Stage], _: u64, _: u64, _: Replicas) -> (Option<u64>, Option<u64>) {
    (None, None)
}
