//! Shapes made of one power: linear, polynomial, 1 − √u and timm's k-decay; the inverse square root; REX.

use super::Curve;
use crate::schedule::error::{ScheduleError, positive};
use crate::schedule::expansion::{Expander, Expansion, MAX_TERMS};
use crate::schedule::record::Record;

/// shift + factor·t^exponent, where t is start + direction·u.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Monomial {
    pub exponent: f64,
    pub start: f64,
    /// 1, or −1 where t falls to the singular point 0.
    pub direction: f64,
    pub shift: f64,
    pub factor: f64,
}

impl Monomial {
    /// The series from `u` on.
    pub fn series(&self, u: f64, expander: &Expander) -> Expansion {
        let centre = (self.start + self.direction * u) / (1.0 - self.direction * expander.ratio);
        let mut block = expander.power_block(centre, self.direction);
        block.coefficients = block.coefficients.map(|c| self.factor * c);
        block.coefficients[0] += self.shift;
        Expansion { centre: (centre - self.start) * self.direction, ..block }
    }
}

/// (1 − u^stretch)^exponent, from 1 at u = 0 to 0 at u = 1.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Power {
    stretch: f64,
    exponent: f64,
}

impl Power {
    /// Whether it is the straight line 1 − u.
    pub(crate) fn is_linear(self) -> bool {
        self.stretch == 1.0 && self.exponent == 1.0
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
        let stretch = positive("stretch", record.number("stretch")?)?;
        Ok(Self { stretch, exponent: positive("exponent", record.number("exponent")?)? })
    }

    fn at(&self, u: f64) -> f64 {
        let left = 1.0 - if self.stretch == 1.0 { u } else { u.powf(self.stretch) };
        if self.exponent == 1.0 { left } else { left.powf(self.exponent) }
    }

    /// With both exponents at work there is none, no short series either, and the formula is used at every
    /// step.
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
        if self.is_linear() {
            return Some(Expansion::of(0.0, f64::INFINITY, [1.0, -1.0]));
        }
        if let Some(degree) = self.whole_exponent() {
            // About the end, so that nothing cancels there.
            let mut coefficients = [0.0; MAX_TERMS];
            coefficients[degree] = if degree % 2 == 0 { 1.0 } else { -1.0 };
            return Some(Expansion { reach: f64::INFINITY, centre: 1.0, coefficients, degree });
        }
        self.monomial().map(|monomial| monomial.series(u, expander))
    }
}

/// (1 + u)^−exponent, which falls towards 0 and never gets there; the inverse square root is exponent ½.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Reciprocal {
    exponent: f64,
}

impl Curve for Reciprocal {
    const NAME: &'static str = "reciprocal";

    fn read(record: &Record) -> Result<Self, ScheduleError> {
        Ok(Self { exponent: positive("exponent", record.number("exponent")?)? })
    }

    fn at(&self, u: f64) -> f64 {
        (1.0 + u).powf(-self.exponent)
    }

    fn monomial(&self) -> Option<Monomial> {
        Some(Monomial { exponent: -self.exponent, start: 1.0, direction: 1.0, shift: 0.0, factor: 1.0 })
    }
}

/// REX (reflected exponential; Chen, Wolfe, Kyrillidis 2021): (1 − u)/(1 − u/2), from 1 to 0, late to fall.
/// It has no parameter.
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
