//! Hyperbolic tangent (Hsueh, Li, Wu 2019): (1 − tanh(lower·(1 − u) + upper·u))/2.

use std::f64::consts::FRAC_PI_2;

use super::Curve;
use crate::schedule::error::{ScheduleError, finite};
use crate::schedule::expansion::{Expander, Expansion, MAX_TERMS};
use crate::schedule::record::Record;

/// (1 − tanh z)/2 with z going from `lower` to `upper`; the ends are near 1 and 0, not at them.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Tanh {
    lower: f64,
    upper: f64,
}

impl Tanh {
    /// z at u = 0, and how much it grows to u = 1.
    pub(crate) fn line(self) -> (f64, f64) {
        (self.lower, self.upper - self.lower)
    }
}

impl Curve for Tanh {
    const NAME: &'static str = "tanh";

    fn read(record: &Record) -> Result<Self, ScheduleError> {
        let lower = finite("lower", record.number("lower")?)?;
        let upper = finite("upper", record.number("upper")?)?;
        if lower >= upper {
            return Err(ScheduleError::new("lower", format!("must be below upper ({upper}), got {lower}")));
        }
        Ok(Self { lower, upper })
    }

    fn at(&self, u: f64) -> f64 {
        0.5 * (1.0 - (self.lower * (1.0 - u) + self.upper * u).tanh())
    }

    fn series(&self, u: f64, expander: &Expander) -> Option<Expansion> {
        let slope = self.upper - self.lower;
        let start = self.lower + slope * u;
        // The poles at ±iπ/2 set the pace: the N-th coefficient is about 2/(their distance)^(N+1). The
        // distance changes by no more than the centre moves, which the division allows for.
        let reach = expander.singular.pole / (1.0 + expander.singular.pole) * start.hypot(FRAC_PI_2);
        let terms = expander.singular.terms;
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
        Some(Expansion {
            reach: reach / slope,
            centre: (centre - self.lower) / slope,
            coefficients: c,
            degree: terms - 1,
        })
    }
}
