//! Short polynomials in place of a shape over a block of steps.
//!
//! A block is re-anchored on the closed form at its centre; its width is what the remainder of the Taylor
//! series allows, so that the error is bounded whatever the length of the run.

use std::sync::LazyLock;

/// Terms of a short float32 block, for shapes whose series converges fast (cosine, exponential).
pub(crate) const SHORT_F32: usize = 7;
/// Terms of a long one, for shapes with a singular point nearby (powers, tanh).
pub(crate) const LONG_F32: usize = 8;
/// Terms of a float64 block.
pub(crate) const TERMS_F64: usize = 10;
pub(crate) const MAX_TERMS: usize = TERMS_F64;
/// Terms of a shape that is a polynomial itself, mostly.
pub(crate) const FEW_TERMS: usize = 4;

/// How long a series is, and how far it may be taken.
#[derive(Debug, Clone, Copy)]
pub struct Precision {
    pub terms: usize,
    /// The remainder allowed, as a share of the segment's height.
    tolerance: f64,
    /// The angle and the exponent at which the remainder reaches the tolerance, (terms!·tolerance)^(1/terms).
    pub trig: f64,
    pub exp: f64,
    /// The share of the distance to a simple pole that a block may span to either side.
    pub pole: f64,
}

impl Precision {
    fn new(terms: usize, tolerance: f64) -> Self {
        let factorial: f64 = (1..=terms).map(|k| k as f64).product();
        let root = |value: f64| value.powf(1.0 / terms as f64);
        Self {
            terms,
            tolerance,
            trig: root(2.0 * factorial * tolerance),
            exp: root(0.5 * factorial * tolerance),
            pole: root(0.25 * tolerance),
        }
    }
}

/// A twelfth of a float32 ulp.
const TOLERANCE_F32: f64 = 5e-9;
/// Half a float64 ulp.
const TOLERANCE_F64: f64 = 1e-16;

/// The precisions of float32 rows, short and long.
pub(crate) static F32: LazyLock<[Precision; 2]> =
    LazyLock::new(|| [Precision::new(SHORT_F32, TOLERANCE_F32), Precision::new(LONG_F32, TOLERANCE_F32)]);
/// The same of float64 rows, where both have as many terms.
pub(crate) static F64: LazyLock<[Precision; 2]> =
    LazyLock::new(|| [Precision::new(TERMS_F64, TOLERANCE_F64); 2]);

/// The expander of one segment's series, worked out once: how far each may reach.
#[derive(Debug, Clone, Copy)]
pub struct Expander {
    /// For shapes without a singular point.
    pub entire: &'static Precision,
    /// For the others.
    pub singular: &'static Precision,
    exponent: f64,
    /// The series of t^exponent over a block, with t = 1 at its centre: elsewhere it is centre^exponent times
    /// as large.
    unit: [f64; MAX_TERMS],
    /// The share of t that a block of t^exponent may span to either side.
    pub ratio: f64,
}

impl Expander {
    /// The expander of a shape that is made of t^exponent, if it is.
    pub fn new([entire, singular]: &'static [Precision; 2], exponent: Option<f64>) -> Self {
        let mut expander = Self { entire, singular, exponent: 1.0, unit: [0.0; MAX_TERMS], ratio: 0.0 };
        if let Some(exponent) = exponent {
            let mut binomial = 1.0;
            for (k, c) in expander.unit.iter_mut().enumerate().take(singular.terms) {
                *c = binomial;
                binomial *= (exponent - k as f64) / (k + 1) as f64;
            }
            // The terms behind the first left out add at most as much again; a slope of a tenth of the value
            // over the block keeps the error of rounding its steps to float32 small.
            let remainder = 0.5 * singular.tolerance / binomial.abs().max(1e-300);
            expander.ratio = remainder.powf(1.0 / singular.terms as f64).min(0.1 / exponent.abs().max(0.8));
            expander.exponent = exponent;
            let mut power = 1.0;
            for c in &mut expander.unit {
                *c *= power;
                power *= expander.ratio;
            }
        }
        expander
    }

    /// The block of t^exponent about `centre`, with t moving along u by `direction`.
    pub fn power_block(&self, centre: f64, direction: f64) -> Expansion {
        let height = power(centre, self.exponent);
        let mut coefficients = self.unit;
        for pair in coefficients.as_chunks_mut::<2>().0 {
            pair[0] *= height;
            pair[1] *= height * direction;
        }
        Expansion { centre, reach: centre * self.ratio, coefficients, degree: self.singular.terms - 1 }
    }
}

/// t^exponent, sooner for the exponents in common use.
fn power(t: f64, exponent: f64) -> f64 {
    if exponent == 0.5 {
        t.sqrt()
    } else if exponent == -0.5 {
        t.sqrt().recip()
    } else if exponent == -1.0 {
        t.recip()
    } else if exponent == 2.0 {
        t * t
    } else {
        t.powf(exponent)
    }
}

/// shape(u) = Σ coefficients[k]·s^k for |s| ≤ 1, s = (u − centre)/reach; an exact polynomial has an infinite
/// reach and s = u − centre.
#[derive(Debug, Clone, Copy)]
pub struct Expansion {
    pub centre: f64,
    pub reach: f64,
    pub coefficients: [f64; MAX_TERMS],
    pub degree: usize,
}

impl Expansion {
    /// A short polynomial, from its lowest term.
    pub fn of<const TERMS: usize>(centre: f64, reach: f64, terms: [f64; TERMS]) -> Self {
        let mut coefficients = [0.0; MAX_TERMS];
        coefficients[..TERMS].copy_from_slice(&terms);
        Self { centre, reach, coefficients, degree: TERMS - 1 }
    }

    /// The series of b + (a − b)·shape.
    pub fn between(mut self, a: f64, b: f64) -> Self {
        for c in &mut self.coefficients {
            *c *= a - b;
        }
        self.coefficients[0] += b;
        self
    }

    /// Whether its terms are numbers.
    pub fn is_finite(&self) -> bool {
        self.coefficients.iter().all(|c| c.is_finite())
    }

    pub fn at(&self, s: f64) -> f64 {
        self.coefficients[..=self.degree].iter().rev().fold(0.0, |sum, c| sum * s + c)
    }
}
