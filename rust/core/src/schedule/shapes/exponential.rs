//! Exponential: rate^u, or rate^⌊u⌋ in stairs.

use super::Curve;
use crate::schedule::error::{ScheduleError, positive};
use crate::schedule::expansion::{Expander, Expansion, MAX_TERMS};
use crate::schedule::record::Record;

/// rate^u: the value is multiplied by `rate` every `length` steps.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Exponential {
    rate: f64,
    /// Whether the value stays between whole lengths.
    stairs: bool,
}

impl Exponential {
    /// The logarithm of the rate, where the shape falls and has no stairs.
    pub(crate) fn falling_log(self) -> Option<f64> {
        (!self.stairs && self.rate < 1.0).then(|| self.rate.ln())
    }

    pub(crate) fn is_stairs(self) -> bool {
        self.stairs
    }
}

impl Curve for Exponential {
    const NAME: &'static str = "exponential";

    fn read(record: &Record) -> Result<Self, ScheduleError> {
        Ok(Self { rate: positive("rate", record.number("rate")?)?, stairs: record.flag("stairs")? })
    }

    fn at(&self, u: f64) -> f64 {
        self.rate.powf(if self.stairs { u.floor() } else { u })
    }

    fn largest(&self, u: f64) -> f64 {
        self.at(u).max(1.0)
    }

    fn series(&self, u: f64, expander: &Expander) -> Option<Expansion> {
        if self.stairs {
            let stair = u.floor();
            return Some(Expansion::of(stair + 0.5, 0.5, [self.rate.powf(stair)]));
        }
        let log = self.rate.ln();
        if log == 0.0 {
            return Some(Expansion::of(u, f64::INFINITY, [1.0]));
        }
        let mut c = [0.0; MAX_TERMS];
        let reach = expander.entire.exp / log.abs();
        let centre = u + reach;
        let mut term = self.rate.powf(centre);
        for (k, c) in c.iter_mut().enumerate().take(expander.entire.terms) {
            if k > 0 {
                term *= log * reach / k as f64;
            }
            *c = term;
        }
        Some(Expansion { reach, centre, coefficients: c, degree: expander.entire.terms - 1 })
    }
}
