//! REX (reflected exponential; Chen, Wolfe, Kyrillidis 2021): (1 − u)/(1 − u/2).

use super::Curve;
use crate::schedule::error::ScheduleError;
use crate::schedule::expansion::{Expander, Expansion};
use crate::schedule::record::Record;

/// (1 − u)/(1 − u/2), from 1 to 0, late to fall. It has no parameter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rex;

impl Curve for Rex {
    const NAME: &'static str = "rex";

    fn read(_: &Record) -> Result<Self, ScheduleError> {
        Ok(Self)
    }

    fn at(&self, u: f64) -> f64 {
        (1.0 - u) / (1.0 - 0.5 * u)
    }

    fn lone_exponent(&self) -> Option<f64> {
        Some(-1.0)
    }

    fn stops(&self) -> bool {
        true
    }

    /// With t = 2 − u it is 2 − 2/t.
    fn series(&self, u: f64, expander: &Expander) -> Option<Expansion> {
        let centre = (2.0 - u) / (1.0 + expander.ratio);
        let mut block = expander.power_block(centre, -1.0);
        block.coefficients = block.coefficients.map(|c| -2.0 * c);
        block.coefficients[0] = 2.0 - 2.0 / centre;
        Some(Expansion { centre: 2.0 - centre, ..block })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stays_above_the_line() {
        assert_eq!([Rex.at(0.0), Rex.at(1.0)], [1.0, 0.0]);
        assert!(Rex.at(0.5) > 0.5);
    }
}
