//! Short polynomials that stand for a shape over a block of steps, and the loops that evaluate them.
//!
//! A block is re-anchored on the closed form at its centre; its width is what the remainder of the Taylor series
//! allows, so that the error is bounded whatever the length of the run.

use multiversion::multiversion;
use multiversion::target::target_cfg_f;

/// Terms of a float32 block: the anchor is split in two float32, and the sum is rounded once.
pub(crate) const TERMS_F32: usize = 6;
/// Terms of a float64 block.
pub(crate) const TERMS_F64: usize = 10;
pub(crate) const MAX_TERMS: usize = TERMS_F64;

/// How long a series is, and how far it may be taken.
#[derive(Debug, Clone, Copy)]
pub struct Precision {
    pub terms: usize,
    /// The remainder allowed, as a share of the segment's height.
    pub tolerance: f64,
    /// The angle, and the exponent, at which the remainder reaches the tolerance: (terms!·tolerance)^(1/terms).
    pub trig: f64,
    pub exp: f64,
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
        }
    }

    /// A twelfth of a float32 ulp.
    pub fn f32() -> Self {
        Self::new(TERMS_F32, 5e-9)
    }

    /// Half a float64 ulp.
    pub fn f64() -> Self {
        Self::new(TERMS_F64, 1e-16)
    }
}

/// shape(u) = Σ coefficients[k]·s^k for |s| ≤ 1, s = (u − centre)/reach; an exact polynomial has an infinite reach
/// and s = u − centre.
#[derive(Debug, Clone, Copy)]
pub struct Expansion {
    pub centre: f64,
    pub reach: f64,
    pub coefficients: [f64; MAX_TERMS],
    pub degree: usize,
}

impl Expansion {
    /// The series of b + (a − b)·shape.
    pub fn between(mut self, a: f64, b: f64) -> Self {
        self.coefficients = self.coefficients.map(|c| (a - b) * c);
        self.coefficients[0] += b;
        self
    }

    pub fn at(&self, s: f64) -> f64 {
        self.coefficients[..=self.degree].iter().rev().fold(0.0, |sum, c| sum * s + c)
    }
}

/// The binomial coefficients of t^exponent, and the share of t that a block may span to either side.
pub(crate) fn binomials(exponent: f64, precision: &Precision) -> ([f64; MAX_TERMS], f64) {
    let mut c = [0.0; MAX_TERMS];
    let mut binomial = 1.0;
    for (k, c) in c.iter_mut().enumerate().take(precision.terms) {
        *c = binomial;
        binomial *= (exponent - k as f64) / (k + 1) as f64;
    }
    // The coefficients may still grow after the first one left out; half the tolerance and an eighth at most cover it.
    let ratio = (0.5 * precision.tolerance / binomial.abs().max(1e-300)).powf(1.0 / precision.terms as f64);
    (c, ratio.min(0.125))
}

/// The block of t^exponent about `centre`, with t moving along u by `direction`.
pub(crate) fn power_block(
    centre: f64,
    ratio: f64,
    exponent: f64,
    binomial: &[f64; MAX_TERMS],
    direction: f64,
) -> Expansion {
    let mut term = centre.powf(exponent);
    let mut coefficients = [0.0; MAX_TERMS];
    for (c, binomial) in coefficients.iter_mut().zip(binomial) {
        *c = term * binomial;
        term *= ratio * direction;
    }
    let degree = binomial.iter().rposition(|&b| b != 0.0).unwrap_or(0);
    Expansion { centre, reach: centre * ratio, coefficients, degree }
}

/// Writes hi + (lo + c₁s + … ) for s = (i − middle)·rate + offset.
#[multiversion(targets("x86_64+avx512f+avx512vl+avx512dq+avx512bw+avx2+fma", "x86_64+avx2+fma"))]
pub(crate) fn fill_f32(out: &mut [f32], hi: f32, c: &[f32; TERMS_F32], offset: f32, rate: f32) {
    for (i, out) in out.iter_mut().enumerate() {
        #[allow(clippy::cast_possible_truncation, clippy::cast_possible_wrap)]
        let i = i as i32 as f32;
        if target_cfg_f!(target_feature = "fma") {
            let s = i.mul_add(rate, offset);
            let p = c[5].mul_add(s, c[4]).mul_add(s, c[3]).mul_add(s, c[2]).mul_add(s, c[1]).mul_add(s, c[0]);
            *out = hi + p;
        } else {
            let s = i * rate + offset;
            let p = ((((c[5] * s + c[4]) * s + c[3]) * s + c[2]) * s + c[1]) * s + c[0];
            *out = hi + p;
        }
    }
}

/// Writes Σ cₖ·sᵏ for s = i·rate + offset.
#[multiversion(targets("x86_64+avx512f+avx512vl+avx512dq+avx512bw+avx2+fma", "x86_64+avx2+fma"))]
pub(crate) fn fill_f64(out: &mut [f64], c: &[f64; TERMS_F64], offset: f64, rate: f64) {
    for (i, out) in out.iter_mut().enumerate() {
        #[allow(clippy::cast_possible_truncation, clippy::cast_possible_wrap)]
        let i = f64::from(i as i32);
        if target_cfg_f!(target_feature = "fma") {
            let s = i.mul_add(rate, offset);
            let mut p = c[TERMS_F64 - 1];
            for k in (0..TERMS_F64 - 1).rev() {
                p = p.mul_add(s, c[k]);
            }
            *out = p;
        } else {
            let s = i * rate + offset;
            let mut p = c[TERMS_F64 - 1];
            for k in (0..TERMS_F64 - 1).rev() {
                p = p * s + c[k];
            }
            *out = p;
        }
    }
}

/// Writes start + i·slope, computed in float64.
#[multiversion(targets("x86_64+avx512f+avx512vl+avx512dq+avx512bw+avx2+fma", "x86_64+avx2+fma"))]
pub(crate) fn line_f32(out: &mut [f32], start: f64, slope: f64) {
    for (i, out) in out.iter_mut().enumerate() {
        #[allow(clippy::cast_possible_truncation, clippy::cast_possible_wrap)]
        let (i, value) = (f64::from(i as i32), |i: f64| (i * slope + start) as f32);
        *out = value(i);
    }
}

/// Writes start + i·slope.
#[multiversion(targets("x86_64+avx512f+avx512vl+avx512dq+avx512bw+avx2+fma", "x86_64+avx2+fma"))]
pub(crate) fn line_f64(out: &mut [f64], start: f64, slope: f64) {
    for (i, out) in out.iter_mut().enumerate() {
        #[allow(clippy::cast_possible_truncation, clippy::cast_possible_wrap)]
        let i = f64::from(i as i32);
        *out = i * slope + start;
    }
}
