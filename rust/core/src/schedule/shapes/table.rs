//! Table: values that were printed, straight lines between them.

use std::sync::Arc;

use super::Curve;
use crate::schedule::error::{ScheduleError, finite};
use crate::schedule::expansion::{Expander, Expansion, MAX_TERMS};
use crate::schedule::record::Record;

/// values[i] at u = i, linear between, the last one held.
#[derive(Debug, Clone, PartialEq)]
pub struct Table {
    values: Arc<[f64]>,
    /// The same as float32, so that a row in it reads no more than it writes.
    singles: Arc<[f32]>,
    /// The largest |value|, found once: a row asks for it.
    largest: f64,
}

impl Table {
    /// The table of these values.
    ///
    /// # Errors
    /// When there is none or one is not finite.
    pub fn new(values: &[f64]) -> Result<Self, ScheduleError> {
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
        Self::new(record.numbers("values")?)
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
        let mut c = [0.0; MAX_TERMS];
        c[0] = here;
        if start >= (self.values.len() - 1) as f64 {
            return Some(Expansion { reach: f64::INFINITY, centre: start, coefficients: c, degree: 0 });
        }
        let half = 0.5 * (next - here);
        c[0] = here + half;
        c[1] = half;
        Some(Expansion { reach: 0.5, centre: start + 0.5, coefficients: c, degree: 1 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interpolates_and_holds_its_end() {
        let table = Table::new(&[1.0, 3.0, 2.0]).unwrap();
        assert_eq!([0.0, 0.5, 1.0, 1.5, 2.0, 1e300].map(|u| table.at(u)), [1.0, 2.0, 3.0, 2.5, 2.0, 2.0]);
        assert!(Table::new(&[]).is_err());
        assert!(Table::new(&[f64::NAN]).is_err());
    }
}
