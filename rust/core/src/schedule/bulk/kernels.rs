//! The loops that write a block, once for each set of vector instructions.

use multiversion::multiversion;
use multiversion::target::target_cfg_f;

/// A number that a block is written in, as a float64 rounds to it.
pub trait Real: Copy {
    fn of(value: f64) -> Self;
}

impl Real for f32 {
    #[allow(clippy::cast_possible_truncation)]
    fn of(value: f64) -> Self {
        value as Self
    }
}

impl Real for f64 {
    fn of(value: f64) -> Self {
        value
    }
}

/// Writes one value throughout, in the widest stores.
#[multiversion(targets("x86_64+avx512f+avx512vl+avx512dq+avx512bw+avx2+fma", "x86_64+avx2+fma"))]
pub(super) fn level<T: Real>(out: &mut [T], value: T) {
    out.fill(value);
}

/// Writes start + i·slope, computed in float64.
#[multiversion(targets("x86_64+avx512f+avx512vl+avx512dq+avx512bw+avx2+fma", "x86_64+avx2+fma"))]
pub(super) fn line<T: Real>(out: &mut [T], start: f64, slope: f64) {
    for (i, out) in out.iter_mut().enumerate() {
        #[allow(clippy::cast_possible_truncation, clippy::cast_possible_wrap)]
        let i = f64::from(i as i32);
        *out = T::of(i * slope + start);
    }
}

/// Writes hi + (c₀ + c₁s + …) for s = i·rate + offset, where hi + c₀ is the anchor in two float32.
#[multiversion(targets("x86_64+avx512f+avx512vl+avx512dq+avx512bw+avx2+fma", "x86_64+avx2+fma"))]
pub(super) fn curve_f32<const TERMS: usize>(
    out: &mut [f32],
    hi: f32,
    c: &[f32; TERMS],
    offset: f32,
    rate: f32,
) {
    for (i, out) in out.iter_mut().enumerate() {
        #[allow(clippy::cast_possible_truncation, clippy::cast_possible_wrap, clippy::cast_precision_loss)]
        let i = i as i32 as f32;
        let mut p = c[TERMS - 1];
        // Without the instruction, mul_add is a slow call.
        if target_cfg_f!(target_feature = "fma") {
            let s = i.mul_add(rate, offset);
            for k in (0..TERMS - 1).rev() {
                p = p.mul_add(s, c[k]);
            }
        } else {
            let s = i * rate + offset;
            for k in (0..TERMS - 1).rev() {
                p = p * s + c[k];
            }
        }
        *out = hi + p;
    }
}

/// Writes Σ cₖ·sᵏ for s = i·rate + offset, computed in float64.
#[multiversion(targets("x86_64+avx512f+avx512vl+avx512dq+avx512bw+avx2+fma", "x86_64+avx2+fma"))]
pub(super) fn curve_f64<T: Real, const TERMS: usize>(
    out: &mut [T],
    c: &[f64; TERMS],
    offset: f64,
    rate: f64,
) {
    for (i, out) in out.iter_mut().enumerate() {
        #[allow(clippy::cast_possible_truncation, clippy::cast_possible_wrap)]
        let i = f64::from(i as i32);
        let mut p = c[TERMS - 1];
        if target_cfg_f!(target_feature = "fma") {
            let s = i.mul_add(rate, offset);
            for k in (0..TERMS - 1).rev() {
                p = p.mul_add(s, c[k]);
            }
        } else {
            let s = i * rate + offset;
            for k in (0..TERMS - 1).rev() {
                p = p * s + c[k];
            }
        }
        *out = T::of(p);
    }
}
