//! Reciprocal power: (1 + u)^−exponent; the inverse square root is exponent ½.

use super::polynomial::{Expansion, Plan};
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

    pub(super) fn lone_exponent(self) -> f64 {
        -self.exponent
    }

    pub(super) fn series(u: f64, plan: &Plan) -> Expansion {
        let centre = (1.0 + u) / (1.0 - plan.ratio);
        Expansion { centre: centre - 1.0, ..plan.power_block(centre, 1.0) }
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
