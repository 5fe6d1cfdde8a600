//! Reciprocal power: (1 + u)^−exponent; the inverse square root is exponent ½.

use super::Curve;
use crate::schedule::error::{ScheduleError, positive};
use crate::schedule::expansion::{Expander, Expansion};
use crate::schedule::record::Record;

/// (1 + u)^−exponent, which falls towards 0 and never gets there.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Reciprocal {
    exponent: f64,
}

impl Reciprocal {
    /// The shape with this exponent.
    ///
    /// # Errors
    /// When it is not above 0.
    pub fn new(exponent: f64) -> Result<Self, ScheduleError> {
        Ok(Self { exponent: positive("exponent", exponent)? })
    }
}

impl Curve for Reciprocal {
    const NAME: &'static str = "reciprocal";

    fn read(record: &Record) -> Result<Self, ScheduleError> {
        Self::new(record.number("exponent")?)
    }

    fn at(&self, u: f64) -> f64 {
        (1.0 + u).powf(-self.exponent)
    }

    fn lone_exponent(&self) -> Option<f64> {
        Some(-self.exponent)
    }

    fn series(&self, u: f64, expander: &Expander) -> Option<Expansion> {
        let centre = (1.0 + u) / (1.0 - expander.ratio);
        Some(Expansion { centre: centre - 1.0, ..expander.power_block(centre, 1.0) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn halves_at_three_lengths() {
        assert_eq!(Reciprocal::new(0.5).unwrap().at(3.0), 0.5);
    }
}
