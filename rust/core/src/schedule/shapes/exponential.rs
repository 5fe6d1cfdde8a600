//! Exponential: rate^u, or rate^⌊u⌋ in stairs.

use super::Curve;
use crate::schedule::error::{ScheduleError, positive};
use crate::schedule::expansion::{Expander, Expansion, MAX_TERMS};
use crate::schedule::record::Record;

/// rate^u: the value is multiplied by `rate` every `length` steps.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Exponential {
    rate: f64,
    stairs: bool,
}

impl Exponential {
    /// The shape with this rate; `stairs` holds the value between whole lengths.
    ///
    /// # Errors
    /// When the rate is not above 0.
    pub fn new(rate: f64, stairs: bool) -> Result<Self, ScheduleError> {
        Ok(Self { rate: positive("rate", rate)?, stairs })
    }

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
        Self::new(record.number("rate")?, record.flag("stairs")?)
    }

    fn at(&self, u: f64) -> f64 {
        self.rate.powf(if self.stairs { u.floor() } else { u })
    }

    fn largest(&self, u: f64) -> f64 {
        self.at(u).max(1.0)
    }

    fn series(&self, u: f64, expander: &Expander) -> Option<Expansion> {
        let mut c = [0.0; MAX_TERMS];
        if self.stairs {
            let stair = u.floor();
            c[0] = self.rate.powf(stair);
            return Some(Expansion { reach: 0.5, centre: stair + 0.5, coefficients: c, degree: 0 });
        }
        let log = self.rate.ln();
        if log == 0.0 {
            c[0] = 1.0;
            return Some(Expansion { reach: f64::INFINITY, centre: u, coefficients: c, degree: 0 });
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decays_smoothly_or_in_stairs() {
        let smooth = Exponential::new(0.25, false).unwrap();
        let stairs = Exponential::new(0.25, true).unwrap();
        assert_eq!([smooth.at(0.5), stairs.at(0.5), stairs.at(1.5)], [0.5, 1.0, 0.25]);
        assert!(Exponential::new(0.0, false).is_err());
    }
}
