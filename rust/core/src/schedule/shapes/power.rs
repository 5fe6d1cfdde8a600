//! Power: (1 − u^stretch)^exponent; linear, polynomial, 1 − √u and timm's k-decay.

use super::{Curve, Monomial};
use crate::schedule::error::{ScheduleError, positive};
use crate::schedule::expansion::{Expander, Expansion, MAX_TERMS};
use crate::schedule::record::Record;

/// (1 − u^stretch)^exponent, from 1 at u = 0 to 0 at u = 1.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Power {
    stretch: f64,
    exponent: f64,
}

impl Power {
    /// The straight line 1 − u.
    pub const LINEAR: Self = Self { stretch: 1.0, exponent: 1.0 };

    /// The shape with these exponents.
    ///
    /// # Errors
    /// When one is not above 0.
    pub fn new(stretch: f64, exponent: f64) -> Result<Self, ScheduleError> {
        Ok(Self { stretch: positive("stretch", stretch)?, exponent: positive("exponent", exponent)? })
    }

    pub(crate) fn is_linear(self) -> bool {
        self == Self::LINEAR
    }

    /// The exponent where the shape is a polynomial itself.
    fn whole_exponent(self) -> Option<usize> {
        if self.stretch != 1.0 {
            return None;
        }
        (1_u8..).zip(1..MAX_TERMS).find(|&(n, _)| self.exponent == f64::from(n)).map(|(_, n)| n)
    }
}

impl Curve for Power {
    const NAME: &'static str = "power";

    fn read(record: &Record) -> Result<Self, ScheduleError> {
        Self::new(record.number("stretch")?, record.number("exponent")?)
    }

    fn at(&self, u: f64) -> f64 {
        let left = 1.0 - if self.stretch == 1.0 { u } else { u.powf(self.stretch) };
        if self.exponent == 1.0 { left } else { left.powf(self.exponent) }
    }

    /// With both exponents at work there is none, no short series either, and the formula is used at every step.
    fn monomial(&self) -> Option<Monomial> {
        match (self.stretch, self.exponent) {
            _ if self.whole_exponent().is_some() => None,
            // t = 1 − u falls to the singular point 0.
            (1.0, exponent) => {
                Some(Monomial { exponent, start: 1.0, direction: -1.0, shift: 0.0, factor: 1.0 })
            }
            (exponent, 1.0) => {
                Some(Monomial { exponent, start: 0.0, direction: 1.0, shift: 1.0, factor: -1.0 })
            }
            _ => None,
        }
    }

    fn largest(&self, u: f64) -> f64 {
        (1.0 - u).abs().max(1.0)
    }

    fn stops(&self) -> bool {
        !self.is_linear()
    }

    fn series(&self, u: f64, expander: &Expander) -> Option<Expansion> {
        let mut c = [0.0; MAX_TERMS];
        if self.is_linear() {
            (c[0], c[1]) = (1.0, -1.0);
            return Some(Expansion { reach: f64::INFINITY, centre: 0.0, coefficients: c, degree: 1 });
        }
        if let Some(degree) = self.whole_exponent() {
            // About the end, so that nothing cancels there.
            c[degree] = if degree % 2 == 0 { 1.0 } else { -1.0 };
            return Some(Expansion { reach: f64::INFINITY, centre: 1.0, coefficients: c, degree });
        }
        self.monomial().map(|monomial| monomial.series(u, expander))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holds_its_closed_form() {
        assert_eq!(Power::LINEAR.at(0.25), 0.75);
        assert_eq!(Power::new(0.5, 1.0).unwrap().at(0.25), 0.5);
        assert_eq!(Power::new(1.0, 2.0).unwrap().at(0.5), 0.25);
        assert!(Power::new(0.0, 1.0).is_err());
        assert!(Power::new(1.0, f64::NAN).is_err());
    }
}
