//! Reciprocal power: (1 + u)^−exponent; the inverse square root is exponent ½.

use super::{Curve, Monomial};
use crate::schedule::error::{ScheduleError, positive};
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

    fn monomial(&self) -> Option<Monomial> {
        Some(Monomial { exponent: -self.exponent, start: 1.0, direction: 1.0, shift: 0.0, factor: 1.0 })
    }
}
