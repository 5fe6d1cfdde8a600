//! REX (reflected exponential; Chen, Wolfe, Kyrillidis 2021): (1 − u)/(1 − u/2).

use super::polynomial::{Expansion, Plan};

/// (1 − u)/(1 − u/2), from 1 to 0, late to fall. It has no parameter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rex;

impl Rex {
    pub(super) fn at(u: f64) -> f64 {
        (1.0 - u) / (1.0 - 0.5 * u)
    }

    pub(super) const EXPONENT: f64 = -1.0;

    /// With t = 2 − u it is 2 − 2/t.
    pub(super) fn series(u: f64, plan: &Plan) -> Expansion {
        let centre = (2.0 - u) / (1.0 + plan.ratio);
        let mut block = plan.power_block(centre, -1.0);
        block.coefficients = block.coefficients.map(|c| -2.0 * c);
        block.coefficients[0] = 2.0 - 2.0 / centre;
        Expansion { centre: 2.0 - centre, ..block }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stays_above_the_line() {
        assert_eq!([Rex::at(0.0), Rex::at(1.0)], [1.0, 0.0]);
        assert!(Rex::at(0.5) > 0.5);
    }
}
