//! Hyperbolic tangent (Hsueh, Li, Wu 2019): (1 − tanh(lower·(1 − u) + upper·u))/2.

use super::polynomial::{Expansion, MAX_TERMS, Precision};
use super::{ScheduleError, finite};

/// (1 − tanh z)/2 with z going from `lower` to `upper`; the ends are near 1 and 0, not at them.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Tanh {
    lower: f64,
    upper: f64,
}

impl Tanh {
    /// The shape between these bounds.
    ///
    /// # Errors
    /// When a bound is not finite or `lower` is not below `upper`.
    pub fn new(lower: f64, upper: f64) -> Result<Self, ScheduleError> {
        finite("lower", lower)?;
        finite("upper", upper)?;
        if lower >= upper {
            return Err(ScheduleError::new("lower", format!("{lower} is not below upper ({upper})")));
        }
        Ok(Self { lower, upper })
    }

    pub(super) fn at(self, u: f64) -> f64 {
        0.5 * (1.0 - (self.lower * (1.0 - u) + self.upper * u).tanh())
    }

    pub(super) fn series(self, u: f64, precision: &Precision) -> Expansion {
        let slope = self.upper - self.lower;
        let start = self.lower + slope * u;
        // Beside the poles at ±iπ/2 the N-th coefficient is at most (2/π)^N; far out it is about 2·2^N·e^(−2|z|)/N!.
        // Half of the nearer |z| allows for what the block itself comes closer by.
        let terms = precision.terms;
        let order = terms as f64;
        let near = std::f64::consts::FRAC_2_PI.powf(order);
        let factorial: f64 = (1..=terms).map(|k| k as f64).product();
        let closest = if start >= 0.0 { start } else { (-start - 0.5).max(0.0) };
        let far = 2.0 * 2f64.powf(order) * (-2.0 * closest).exp() / factorial;
        let reach = (precision.tolerance / near.min(far)).powf(1.0 / order).min(0.25);
        let centre = start + reach;
        let y = centre.tanh();
        // y' = 1 − y² gives (k + 1)·c[k+1] = [k = 0] − Σ c[i]·c[k−i].
        let mut c = [0.0; MAX_TERMS];
        c[0] = y;
        for k in 0..terms - 1 {
            let square: f64 = (0..=k).map(|i| c[i] * c[k - i]).sum();
            c[k + 1] = (f64::from(u8::from(k == 0)) - square) / (k + 1) as f64;
        }
        let mut power = -0.5;
        for (k, c) in c.iter_mut().enumerate().take(terms) {
            if k > 0 {
                power *= reach;
            }
            *c *= power;
        }
        c[0] = 0.5 * (1.0 - y);
        Expansion {
            reach: reach / slope,
            centre: (centre - self.lower) / slope,
            coefficients: c,
            degree: precision.terms - 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_half_where_its_argument_is_zero() {
        assert_eq!(
            Tanh::new(-7.0, 3.0).unwrap().at(0.7),
            0.5 * (1.0 - (-7.0f64 * (1.0 - 0.7) + 3.0 * 0.7).tanh())
        );
        assert!(Tanh::new(1.0, 1.0).is_err());
    }
}
