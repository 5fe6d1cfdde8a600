//! Short polynomials that stand for a shape over a block of steps, and the loops that evaluate them.
//!
//! A block is re-anchored on the closed form at its centre; its width is what the remainder of the Taylor series
//! allows, so that the error is bounded whatever the length of the run.

use std::sync::LazyLock;

use multiversion::multiversion;
use multiversion::target::target_cfg_f;

/// Terms of a short float32 block, for shapes whose series converges fast (cosine, exponential).
pub(crate) const SHORT_F32: usize = 7;
/// Terms of a long one, for shapes with a singular point nearby (powers, tanh).
pub(crate) const LONG_F32: usize = 8;
/// Terms of a float64 block.
pub(crate) const TERMS_F64: usize = 10;
pub(crate) const MAX_TERMS: usize = TERMS_F64;

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

/// What the series of one segment have in common, worked out once.
#[derive(Debug, Clone, Copy)]
pub struct Plan {
    /// For shapes without a singular point.
    pub entire: &'static Precision,
    /// For the others.
    pub singular: &'static Precision,
    exponent: f64,
    binomials: [f64; MAX_TERMS],
    /// The share of t that a block of t^exponent may span to either side.
    pub ratio: f64,
}

impl Plan {
    /// The plan of a shape that is made of t^exponent, if it is.
    pub fn new([entire, singular]: &'static [Precision; 2], exponent: Option<f64>) -> Self {
        let mut plan = Self { entire, singular, exponent: 1.0, binomials: [0.0; MAX_TERMS], ratio: 0.0 };
        if let Some(exponent) = exponent {
            let mut binomial = 1.0;
            for (k, c) in plan.binomials.iter_mut().enumerate().take(singular.terms) {
                *c = binomial;
                binomial *= (exponent - k as f64) / (k + 1) as f64;
            }
            // What follows the first term left out is at most as large again; an eighth keeps the rounding small.
            let remainder = 0.5 * singular.tolerance / binomial.abs().max(1e-300);
            plan.ratio = remainder.powf(1.0 / singular.terms as f64).min(0.125);
            plan.exponent = exponent;
        }
        plan
    }

    /// The block of t^exponent about `centre`, with t moving along u by `direction`.
    pub fn power_block(&self, centre: f64, direction: f64) -> Expansion {
        let mut term = power(centre, self.exponent);
        let mut coefficients = [0.0; MAX_TERMS];
        for (c, binomial) in coefficients.iter_mut().zip(&self.binomials) {
            *c = term * binomial;
            term *= self.ratio * direction;
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

macro_rules! fill_f32 {
    ($name:ident, $terms:ident) => {
        /// Writes hi + (c₀ + c₁s + …) for s = i·rate + offset, where hi + c₀ is the anchor in two float32.
        #[multiversion(targets("x86_64+avx512f+avx512vl+avx512dq+avx512bw+avx2+fma", "x86_64+avx2+fma"))]
        pub(crate) fn $name(out: &mut [f32], hi: f32, c: &[f32; $terms], offset: f32, rate: f32) {
            for (i, out) in out.iter_mut().enumerate() {
                #[allow(
                    clippy::cast_possible_truncation,
                    clippy::cast_possible_wrap,
                    clippy::cast_precision_loss
                )]
                let i = i as i32 as f32;
                let mut p = c[$terms - 1];
                // Without the instruction, mul_add is a slow call.
                if target_cfg_f!(target_feature = "fma") {
                    let s = i.mul_add(rate, offset);
                    for k in (0..$terms - 1).rev() {
                        p = p.mul_add(s, c[k]);
                    }
                } else {
                    let s = i * rate + offset;
                    for k in (0..$terms - 1).rev() {
                        p = p * s + c[k];
                    }
                }
                *out = hi + p;
            }
        }
    };
}
fill_f32!(fill_short_f32, SHORT_F32);
fill_f32!(fill_long_f32, LONG_F32);

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

/// Writes one value throughout, in the widest stores.
#[multiversion(targets("x86_64+avx512f+avx512vl+avx512dq+avx512bw+avx2+fma", "x86_64+avx2+fma"))]
pub(crate) fn level_f32(out: &mut [f32], value: f32) {
    out.fill(value);
}

/// Writes one value throughout, in the widest stores.
#[multiversion(targets("x86_64+avx512f+avx512vl+avx512dq+avx512bw+avx2+fma", "x86_64+avx2+fma"))]
pub(crate) fn level_f64(out: &mut [f64], value: f64) {
    out.fill(value);
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

/// A cosine, cut into even blocks of `length` values: mean + amplitude·cos φ, φ from centre to centre by one turn.
#[derive(Debug, Clone, Copy)]
pub struct Wave {
    pub mean: f64,
    pub amplitude: f64,
    pub length: usize,
    /// The angle at the centre of the first block, and from one centre to the next.
    pub start: f64,
    pub turn: f64,
}

/// The half angle of a float32 block of `Wave`: at h the folded terms come to h⁵/3840 = 1e-8 of the amplitude.
pub(crate) const WAVE_REACH: f64 = 0.13;

/// Writes whole blocks of a wave; `out` holds a multiple of its length.
///
/// The series has five terms: those of s⁵ and s⁶ are folded into the lower ones by their Chebyshev polynomials,
/// s⁵ ≈ (20s³ − 5s)/16 and s⁶ ≈ (48s⁴ − 18s² + 1)/32, at a sixteenth and a thirty-second of their size.
#[multiversion(targets("x86_64+avx512f+avx512vl+avx512dq+avx512bw+avx2+fma", "x86_64+avx2+fma"))]
pub(crate) fn fill_wave(out: &mut [f32], wave: &Wave) {
    let h = 0.5 * wave.turn;
    let (h2, fifth, sixth) = (h * h, h.powi(5) / 120.0, h.powi(6) / 720.0);
    let even = [1.0 - sixth / 32.0, -h2 / 2.0 + sixth * 18.0 / 32.0, h2 * h2 / 24.0 - sixth * 48.0 / 32.0];
    let odd = [h - fifth * 5.0 / 16.0, -h2 * h / 6.0 + fifth * 20.0 / 16.0];
    let (turn_sin, turn_cos) = wave.turn.sin_cos();
    let (start_sin, start_cos) = wave.start.sin_cos();
    let (mut sin, mut cos) = (wave.amplitude * start_sin, wave.amplitude * start_cos);
    #[allow(clippy::cast_possible_truncation)]
    let (rate, single) = ((2.0 / wave.length as f64) as f32, |value: f64| value as f32);
    for block in out.chunks_exact_mut(wave.length) {
        let anchor = wave.mean + cos * even[0];
        let hi = single(anchor);
        let c0 = single(anchor - f64::from(hi));
        let (c1, c2) = (single(-sin * odd[0]), single(cos * even[1]));
        let (c3, c4) = (single(-sin * odd[1]), single(cos * even[2]));
        for (i, out) in block.iter_mut().enumerate() {
            #[allow(
                clippy::cast_possible_truncation,
                clippy::cast_possible_wrap,
                clippy::cast_precision_loss
            )]
            let i = i as i32 as f32;
            *out = if target_cfg_f!(target_feature = "fma") {
                let s = i.mul_add(rate, -1.0);
                hi + c4.mul_add(s, c3).mul_add(s, c2).mul_add(s, c1).mul_add(s, c0)
            } else {
                let s = i * rate - 1.0;
                hi + ((((c4 * s + c3) * s + c2) * s + c1) * s + c0)
            };
        }
        (sin, cos) = (sin * turn_cos + cos * turn_sin, cos * turn_cos - sin * turn_sin);
    }
}
