//! Exponential: rate^u, or rate^⌊u⌋ in stairs.

use super::polynomial::{Expansion, MAX_TERMS, Plan};
use super::{ScheduleError, positive};

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

    pub(super) fn at(self, u: f64) -> f64 {
        self.rate.powf(if self.stairs { u.floor() } else { u })
    }

    pub(crate) fn is_stairs(self) -> bool {
        self.stairs
    }

    pub(super) fn series(self, u: f64, plan: &Plan) -> Expansion {
        let mut c = [0.0; MAX_TERMS];
        if self.stairs {
            let stair = u.floor();
            c[0] = self.rate.powf(stair);
            return Expansion { reach: 0.5, centre: stair + 0.5, coefficients: c, degree: 0 };
        }
        let log = self.rate.ln();
        if log == 0.0 {
            c[0] = 1.0;
            return Expansion { reach: f64::INFINITY, centre: u, coefficients: c, degree: 0 };
        }
        let reach = plan.entire.exp / log.abs();
        let centre = u + reach;
        let mut term = self.rate.powf(centre);
        for (k, c) in c.iter_mut().enumerate().take(plan.entire.terms) {
            if k > 0 {
                term *= log * reach / k as f64;
            }
            *c = term;
        }
        Expansion { reach, centre, coefficients: c, degree: plan.entire.terms - 1 }
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
