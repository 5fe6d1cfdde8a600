//! What shapes made of one power have in common.

use crate::schedule::expansion::{Expander, Expansion};

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
