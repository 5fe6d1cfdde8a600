//! Schedules × steps, in bulk: a row is cut into blocks over which a short polynomial replaces the shape.
//!
//! float32 rows are within one float32 ulp of the schedule's peak of `Schedule::at`, float64 rows within 8
//! float64 ulp, for any length of run: every block is anchored on the closed form anew. docs/schedules.md has
//! what was measured.

mod blocks;
mod kernels;
mod powers;
mod row;
mod steps;
mod value;
mod wave;

use std::sync::atomic::AtomicBool;

use rayon::prelude::*;

use super::form::Schedule;
pub use row::Halt;
use row::Row;
pub use steps::Steps;
pub use value::Value;

/// Values that one task computes: long enough to share out, short enough to keep in a near cache.
const TILE: usize = 1 << 15;

/// Fills `out`, row after row, with one schedule's values each, by rayon's current pool, until `stop` is set.
///
/// The caller has checked the steps (`Steps::of`) and the schedules' ends (`Schedule::check` of
/// `Steps::max`).
///
/// # Errors
/// When a value is too large for `out`, or `stop` was set. `out` is then written in part.
///
/// # Panics
/// When `out` does not have schedules × steps values.
pub fn fill_matrix<T: Value>(
    schedules: &[&Schedule],
    steps: Steps<'_>,
    out: &mut [T],
    stop: &AtomicBool,
) -> Result<(), Halt> {
    assert_eq!(out.len(), schedules.len() * steps.len(), "out must hold schedules × steps");
    if out.is_empty() {
        return Ok(());
    }
    let tiles =
        out.chunks_mut(steps.len()).zip(schedules).enumerate().flat_map(|(row, (values, schedule))| {
            values.chunks_mut(TILE).enumerate().map(move |(tile, out)| (row, *schedule, tile * TILE, out))
        });
    let fill = |(row, schedule, first, out): (usize, &Schedule, usize, &mut [T])| {
        Row::new::<T>(row, steps, stop).write(schedule, first, out)
    };
    if schedules.len() * steps.len() < TILE {
        let mut tiles = tiles;
        tiles.try_for_each(fill)
    } else {
        tiles.collect::<Vec<_>>().into_par_iter().try_for_each(fill)
    }
}
