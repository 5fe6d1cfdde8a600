//! REX (reflected exponential; Chen, Wolfe, Kyrillidis 2021): (1 − u)/(1 − u/2).

use super::{Curve, Monomial};
use crate::schedule::error::ScheduleError;
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

    fn stops(&self) -> bool {
        true
    }

    /// With t = 2 − u it is 2 − 2/t.
    fn monomial(&self) -> Option<Monomial> {
        Some(Monomial { exponent: -1.0, start: 2.0, direction: -1.0, shift: 2.0, factor: -2.0 })
    }
}
