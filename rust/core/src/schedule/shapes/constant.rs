//! Constant: the segment stays at `a`.

use super::Curve;
use crate::schedule::error::ScheduleError;
use crate::schedule::expansion::{Expander, Expansion, MAX_TERMS};
use crate::schedule::record::Record;

/// 1 throughout.
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
        let mut c = [0.0; MAX_TERMS];
        c[0] = 1.0;
        Some(Expansion { reach: f64::INFINITY, centre: 0.0, coefficients: c, degree: 0 })
    }
}
