//! Schedules × steps, in bulk: a row is cut into blocks over which a short polynomial stands for the shape.
//!
//! float32 rows are within one float32 ulp of the schedule's peak of `Schedule::at`, float64 rows within 8 float64
//! ulp, for any length of run: every block is anchored on the closed form anew.

mod blocks;
mod kernels;
mod map;
mod row;
mod steps;
mod value;
mod wave;

use rayon::prelude::*;

use super::Schedule;
use map::{Line, Map};
use row::Row;
pub use steps::Steps;
pub use value::Value;

/// Values that one task computes: long enough to share out, short enough to keep in a near cache.
const TILE: usize = 1 << 15;

/// Fills `out`, row after row, with one schedule's values each, by rayon's current pool.
///
/// The caller has checked the steps (`Steps::of`) and the schedules' ends (`Schedule::check` of `Steps::max`).
///
/// # Panics
/// When `out` does not have schedules × steps values.
pub fn fill_matrix<T: Value>(schedules: &[&Schedule], steps: Steps<'_>, out: &mut [T]) {
    assert_eq!(out.len(), schedules.len() * steps.len(), "out must hold schedules × steps");
    if out.is_empty() {
        return;
    }
    let tiles = out.chunks_mut(steps.len()).zip(schedules).flat_map(|(row, schedule)| {
        row.chunks_mut(TILE).enumerate().map(move |(tile, out)| (*schedule, tile * TILE, out))
    });
    if schedules.len() * steps.len() < TILE {
        tiles.for_each(|(schedule, first, out)| fill(schedule, steps, first, out));
    } else {
        tiles
            .collect::<Vec<_>>()
            .into_par_iter()
            .for_each(|(schedule, first, out)| fill(schedule, steps, first, out));
    }
}

/// Fills `out` with a schedule's values at the steps from index `first` on.
pub(crate) fn fill<T: Value>(schedule: &Schedule, steps: Steps<'_>, first: usize, out: &mut [T]) {
    if let Steps::Any(array) = steps {
        for (out, &x) in out.iter_mut().zip(&array[first..]) {
            *out = T::of(schedule.at(x));
        }
        return;
    }
    Row { steps, precisions: T::precisions() }.schedule(schedule, Map::IDENTITY, Line::IDENTITY, first, out);
}
