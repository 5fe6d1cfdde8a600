//! Lengths in optimizer steps, as fractions whose numbers differ from lane to lane.

use super::arithmetic::{At, BLOCK, LIMIT, divide, flag, whole};
use crate::lengths::{Length, Unit};

/// A length: `count` × what it counts, over `power` × what a step holds of it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LaneLength<T> {
    count: T,
    power: T,
    unit: T,
    /// 1 where it is rounded up, 0 where it is rounded down.
    up: T,
}

// Units of a length: quantities of samples, then of steps.
const SAMPLES: f64 = 0.0;
const TUNED_BATCHES: f64 = 1.0;
const DATASETS: f64 = 2.0;
const TOKENS: f64 = 3.0;
const STEPS: f64 = 4.0;
const EPOCHS: f64 = 5.0;
const TOTALS: f64 = 6.0;

/// The units of lengths.
#[derive(Clone, Copy)]
pub(crate) struct Measure {
    pub batch: f64,
    pub tuned_batch: f64,
    pub dataset: f64,
    pub seq_len: f64,
    pub epoch_steps: f64,
    pub total: f64,
}

impl LaneLength<f64> {
    /// Nothing.
    pub const NONE: LaneLength<f64> = LaneLength { count: 0.0, power: 1.0, unit: STEPS, up: 1.0 };

    /// A number of steps.
    pub fn fixed(steps: u64) -> Option<LaneLength<f64>> {
        Some(LaneLength { count: whole(steps)?, ..LaneLength::NONE })
    }

    /// As `Clock::steps` in the planner; `epochs` says whether the trainer counts them.
    pub fn of(length: Length, epochs: bool, floor: bool) -> Option<LaneLength<f64>> {
        let (count, power) = length.fraction_of_ten();
        let (unit, up, power) = match length.unit {
            Unit::Percent => (TOTALS, 0.0, power.checked_mul(100)?),
            Unit::Epochs if epochs => (EPOCHS, 1.0, power),
            Unit::Epochs => (DATASETS, flag(!floor), power),
            Unit::Steps => (TUNED_BATCHES, flag(!floor), power),
            Unit::Samples => (SAMPLES, flag(!floor), power),
            Unit::Tokens => (TOKENS, flag(!floor), power),
        };
        Some(LaneLength { count: whole(count)?, power: whole(power)?, unit, up })
    }
}

impl<T: At<f64>> LaneLength<T> {
    /// The length of a lane.
    #[inline(always)]
    pub fn lane(&self, lane: usize) -> LaneLength<f64> {
        LaneLength {
            count: self.count.at(lane),
            power: self.power.at(lane),
            unit: self.unit.at(lane),
            up: self.up.at(lane),
        }
    }
}

impl LaneLength<f64> {
    /// The steps; NaN where they are not exact.
    #[inline(always)]
    pub fn steps(self, of: Measure) -> f64 {
        let unit = self.unit;
        let counted = if unit == TUNED_BATCHES { of.tuned_batch } else { 1.0 };
        let counted = if unit == DATASETS { of.dataset } else { counted };
        let counted = if unit == EPOCHS { of.epoch_steps } else { counted };
        let counted = if unit == TOTALS { of.total } else { counted };
        let per_step = if unit == TOKENS { of.seq_len } else { 1.0 };
        let per_step = if unit >= STEPS { 1.0 } else { per_step * of.batch };
        let (n, d) = (self.count * counted, self.power * per_step);
        // A product that was rounded is past the limit, too.
        if (n < LIMIT) & (d < LIMIT) { divide(n, d, self.up) } else { f64::NAN }
    }
}

impl LaneLength<[f64; BLOCK]> {
    /// No length in any lane.
    pub fn new() -> Self {
        LaneLength { count: [0.0; BLOCK], power: [1.0; BLOCK], unit: [STEPS; BLOCK], up: [1.0; BLOCK] }
    }

    /// Takes a lane's length.
    #[inline(always)]
    pub fn set(&mut self, lane: usize, length: &LaneLength<f64>) {
        self.count[lane] = length.count;
        self.power[lane] = length.power;
        self.unit[lane] = length.unit;
        self.up[lane] = length.up;
    }
}
