//! Cosine: ((1 + cos π·waves·u^stretch)/2)^exponent.

use std::f64::consts::PI;

use super::Curve;
use crate::schedule::error::{ScheduleError, finite, positive};
use crate::schedule::expansion::{Expander, Expansion, MAX_TERMS, TERMS_F64};
use crate::schedule::record::Record;

/// The half wave from 1 at u = 0 to 0 at u = 1, with the peers' variations.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Cosine {
    /// Half waves.
    waves: f64,
    stretch: f64,
    exponent: f64,
    /// Whether it restarts at 1 after each half wave (transformers' restarts, rounding included) instead of
    /// coming back up.
    wrap: bool,
}

impl Cosine {
    fn angle(self, u: f64) -> f64 {
        let stretched = if self.stretch == 1.0 { u } else { u.powf(self.stretch) };
        // The order of the products is the peers' own: far out, an ulp of the angle is many of the value.
        if self.wrap { PI * ((self.waves * stretched) % 1.0) } else { (PI * self.waves) * stretched }
    }

    /// The angle at u = 1, where the value is (1 + cos(angle·u))/2 and nothing else.
    pub(crate) fn plain_angle(self) -> Option<f64> {
        (self.stretch == 1.0 && self.exponent == 1.0 && !self.wrap && self.waves > 0.0)
            .then_some(PI * self.waves)
    }
}

impl Curve for Cosine {
    const NAME: &'static str = "cosine";

    fn read(record: &Record) -> Result<Self, ScheduleError> {
        Ok(Self {
            waves: finite("waves", record.number("waves")?)?,
            stretch: positive("stretch", record.number("stretch")?)?,
            exponent: positive("exponent", record.number("exponent")?)?,
            wrap: record.flag("wrap")?,
        })
    }

    fn at(&self, u: f64) -> f64 {
        let half = (1.0 + self.angle(u).cos()) * 0.5;
        if self.exponent == 1.0 { half } else { half.powf(self.exponent) }
    }

    fn largest(&self, u: f64) -> f64 {
        // So far out that no float holds the angle, there is no cosine of it.
        if self.angle(u).is_finite() { 1.0 } else { f64::INFINITY }
    }

    fn series(&self, u: f64, expander: &Expander) -> Option<Expansion> {
        let rate = self.plain_angle()?;
        if rate * u > 2.0 * PI && expander.entire.terms == TERMS_F64 {
            // Waves away, `at` itself has lost bits of the angle: only the same rounding is close to it.
            return None;
        }
        // Whole blocks fill a half wave, counted from the first minimum, so that every minimum is a centre:
        // there the odd terms vanish, nothing cancels and nothing falls below it.
        let reach = PI / (2.0 * (PI / (2.0 * expander.entire.trig)).ceil()) / rate;
        let minimum = 1.0 / self.waves;
        let centre = minimum + 2.0 * reach * ((u - minimum) / (2.0 * reach) + 0.5).floor();
        let (sin, cos) = match (rate * centre).sin_cos() {
            (_, cos) if cos < -1.0 + 1e-12 => (0.0, -1.0),
            turned => turned,
        };
        let mut c = [0.0; MAX_TERMS];
        c[0] = 0.5 * (1.0 + cos);
        let mut term = 0.5;
        let angle = rate * reach;
        let turns = [-sin, -cos, sin, cos];
        for (k, c) in c.iter_mut().enumerate().take(expander.entire.terms).skip(1) {
            term *= angle / k as f64;
            *c = term * turns[(k - 1) % 4];
        }
        Some(Expansion { reach, centre, coefficients: c, degree: expander.entire.terms - 1 })
    }
}
