//! Shapes that are values: one throughout, and those of a table, straight lines between them.

use std::sync::Arc;

use super::Curve;
use crate::schedule::error::{ScheduleError, finite};
use crate::schedule::expansion::{Expander, Expansion};
use crate::schedule::record::Record;

/// 1 throughout: the segment stays at `a`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Constant;

impl Curve for Constant {
    const NAME: &'static str = "constant";

    fn read(_: &Record) -> Result<Self, ScheduleError> {
        Ok(Self)
    }

    fn at(&self, _: f64) -> f64 {
        1.0
    }

    fn series(&self, _: f64, _: &Expander) -> Option<Expansion> {
        Some(Expansion::of(0.0, f64::INFINITY, [1.0]))
    }
}

/// values[i] at u = i, linear between, the last one held.
#[derive(Debug, Clone, PartialEq)]
pub struct Table {
    values: Arc<[f64]>,
    /// The same as float32, so that a row in it reads no more than it writes.
    singles: Arc<[f32]>,
    /// The largest |value|, computed once for all rows.
    largest: f64,
}

impl Table {
    /// The cell that holds `u`: its index and its values at both ends.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    fn cell(&self, u: f64) -> (f64, f64, f64) {
        let last = self.values.len() - 1;
        // A float cast saturates, so that any u past the end lands on the last value.
        let index = (u as usize).min(last);
        (index as f64, self.values[index], self.values[(index + 1).min(last)])
    }

    /// The values from a whole u on, up to the last, and the same in float32.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    pub(crate) fn rest(&self, u: f64) -> (&[f64], &[f32]) {
        let first = (u as usize).min(self.values.len() - 1);
        (&self.values[first..], &self.singles[first..])
    }
}

impl Curve for Table {
    const NAME: &'static str = "table";

    fn read(record: &Record) -> Result<Self, ScheduleError> {
        let values = record.numbers("values")?;
        if values.is_empty() {
            return Err(ScheduleError::new("values", "must hold at least one value, got none"));
        }
        let mut largest = 0.0_f64;
        for &value in values {
            largest = largest.max(finite("values", value)?.abs());
        }
        #[allow(clippy::cast_possible_truncation)]
        let singles = values.iter().map(|&value| value as f32).collect();
        Ok(Self { values: values.into(), singles, largest })
    }

    fn at(&self, u: f64) -> f64 {
        let (start, here, next) = self.cell(u);
        if u <= start || here.to_bits() == next.to_bits() { here } else { here + (next - here) * (u - start) }
    }

    fn largest(&self, _: f64) -> f64 {
        self.largest
    }

    fn series(&self, u: f64, _: &Expander) -> Option<Expansion> {
        let (start, here, next) = self.cell(u);
        if start >= (self.values.len() - 1) as f64 {
            return Some(Expansion::of(start, f64::INFINITY, [here]));
        }
        let half = 0.5 * (next - here);
        Some(Expansion::of(start + 0.5, 0.5, [here + half, half]))
    }
}
