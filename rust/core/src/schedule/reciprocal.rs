//! Reciprocal power: (1 + u)^−exponent; the inverse square root is exponent ½.

use super::polynomial::{Expansion, Precision, binomials, power_block};
use super::{ScheduleError, positive};

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

    pub(super) fn at(self, u: f64) -> f64 {
        (1.0 + u).powf(-self.exponent)
    }

    pub(super) fn series(self, u: f64, precision: &Precision) -> Expansion {
        let (binomial, ratio) = binomials(-self.exponent, precision);
        let centre = (1.0 + u) / (1.0 - ratio);
        let block = power_block(centre, ratio, -self.exponent, &binomial, 1.0);
        Expansion { centre: centre - 1.0, ..block }
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
