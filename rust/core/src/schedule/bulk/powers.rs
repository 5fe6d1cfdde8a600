//! Powers in blocks of one length: about a block's centre c, t^p is a short polynomial in the steps from it.
//!
//! ```text
//! (c + x)^p = c^p + p·c^(p−1)·x + p(p−1)/2·c^(p−2)·x² + …
//! ```
//! A block costs a root and a division, both exact, and as many products as there are terms; the steps from a
//! centre are the same in every block, so that they stay in registers (`wave` says why that counts). Nearer
//! to the singular point than some hundred steps no block of a root holds: there the root itself is taken, in
//! float64.
//!
//! Tried: blocks as long as the series allows (`blocks`, still there for other powers, and in float64 for
//! reciprocals), which are fewer, 14 a row, and take longer in float32: they have two terms more, and the
//! start of each waits for the end of the one before. Terms found when their block is written, not one ahead,
//! took 15 to 20 % longer.

// An index is what the compiler turns into vectors, here where nothing else is inlined.
#![allow(clippy::needless_range_loop)]

use multiversion::multiversion;
use multiversion::target::target_cfg_f;

use super::kernels::{Real, Run, Series, in_blocks, split, ways};

/// base + rise·t^exponent, for t along the run.
#[derive(Debug, Clone, Copy)]
pub struct Powers {
    pub exponent: f64,
    pub base: f64,
    pub rise: f64,
    pub run: Run,
}

impl Powers {
    /// Writes the first values, as far as blocks hold, and says how many these are.
    pub fn fill<T: Real, const LONG: usize, const SHORT: usize, const TERMS: usize>(
        &self,
        out: &mut [T],
    ) -> usize {
        let Some((long, short)) = self.near::<T>(LONG).zip(self.near::<T>(SHORT)) else { return 0 };
        let away = self.away();
        let whole = |length: usize, steps: f64| {
            #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // It saturates.
            let blocks = (steps / length as f64) as usize;
            out.len().min(blocks.saturating_add(1).saturating_mul(length))
        };
        let falling = self.run.rate < 0.0;
        if away >= long {
            let count = if falling { whole(LONG, away - long) } else { out.len() };
            blocks::<T, LONG, TERMS>(&mut out[..count], self);
            count
        } else if away >= short {
            let count = whole(SHORT, if falling { away - short } else { long - away });
            blocks::<T, SHORT, TERMS>(&mut out[..count], self);
            count
        } else if self.exponent == 0.5 {
            let count = if falling { out.len() } else { whole(1, short - away) };
            roots(&mut out[..count], self);
            count
        } else {
            0
        }
    }

    /// Steps from the singular point.
    fn away(&self) -> f64 {
        self.run.at(0.0) / self.run.growth().abs()
    }

    /// How many steps away from the singular point a block holds; none, where these powers have no such
    /// blocks.
    fn near<T: Real>(&self, length: usize) -> Option<f64> {
        // The share of t that a block may span to either side, so that what its terms leave out is below
        // 5·10⁻⁹ of the height, in float64 10⁻¹⁶.
        let share = match (self.exponent, T::FULL) {
            (0.5, false) => 0.075,
            (0.5, true) => 0.038,
            (-0.5, false) => 0.05,
            (-1.0, false) => 0.035,
            // In float64 their series take less time: they have no block that is short.
            _ => return None,
        };
        Some(length as f64 * (0.5 / share + 0.5))
    }
}

/// Writes blocks, each as its first terms; the first is in two numbers.
#[multiversion(targets("x86_64+avx512f+avx512vl+avx512dq+avx512bw+avx2+fma", "x86_64+avx2+fma"))]
fn blocks<T: Real, const LENGTH: usize, const TERMS: usize>(out: &mut [T], powers: &Powers) {
    let fused = target_cfg_f!(target_feature = "fma");
    let limits = powers.run.limits();
    let ways = ways::<T, LENGTH>(powers.run.growth(), 0);
    let mut binomials = [0.0; TERMS];
    let mut binomial = powers.rise;
    for k in 0..TERMS {
        binomials[k] = binomial;
        binomial *= (powers.exponent - k as f64) / (k + 1) as f64;
    }
    let terms = |index: usize| {
        #[allow(clippy::cast_possible_truncation, clippy::cast_possible_wrap)]
        let centre = powers.run.at(f64::from((index * LENGTH + LENGTH / 2) as i32));
        let inverse = 1.0 / centre;
        let mut power = if powers.exponent == -1.0 {
            inverse
        } else if powers.exponent < 0.0 {
            inverse * centre.sqrt()
        } else {
            centre.sqrt()
        };
        let (hi, lo) = split(powers.base + binomials[0] * power);
        let mut terms = [hi; TERMS];
        terms[1] = lo;
        for k in 2..TERMS {
            power *= inverse;
            terms[k] = T::of(binomials[k - 1] * power);
        }
        terms
    };
    in_blocks(out, 0, terms, &Series { ways, limits, fused });
}

/// Writes the roots themselves, computed in float64; the root of 0 where rounding took t below.
#[multiversion(targets("x86_64+avx512f+avx512vl+avx512dq+avx512bw+avx2+fma", "x86_64+avx2+fma"))]
fn roots<T: Real>(out: &mut [T], powers: &Powers) {
    let (t, growth) = (powers.run.at(0.0), powers.run.growth());
    for (i, out) in out.iter_mut().enumerate() {
        #[allow(clippy::cast_possible_truncation, clippy::cast_possible_wrap)]
        let i = f64::from(i as i32);
        // Next to a root's end, the remainder of 1 shows its own rounding in float64.
        let t = if T::FULL { powers.run.at(i) } else { t + i * growth };
        *out = T::of(powers.base + powers.rise * if t > 0.0 { t } else { 0.0 }.sqrt());
    }
}
