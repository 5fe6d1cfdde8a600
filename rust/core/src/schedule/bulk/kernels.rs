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
    // `fill` is not always compiled for these instructions.
    for out in out {
        *out = value;
    }
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

/// Writes base + rise·√(start + i·slope), computed in float64; the root of 0 where rounding took it below.
#[multiversion(targets("x86_64+avx512f+avx512vl+avx512dq+avx512bw+avx2+fma", "x86_64+avx2+fma"))]
pub(super) fn roots<T: Real>(out: &mut [T], start: f64, slope: f64, base: f64, rise: f64) {
    for (i, out) in out.iter_mut().enumerate() {
        #[allow(clippy::cast_possible_truncation, clippy::cast_possible_wrap)]
        let i = f64::from(i as i32);
        let t = i * slope + start;
        *out = T::of(base + rise * if t > 0.0 { t } else { 0.0 }.sqrt());
    }
}

/// Writes base + rise·value for each value.
#[multiversion(targets("x86_64+avx512f+avx512vl+avx512dq+avx512bw+avx2+fma", "x86_64+avx2+fma"))]
pub(super) fn listed<T: Real>(out: &mut [T], values: &[f64], base: f64, rise: f64) {
    for (out, value) in out.iter_mut().zip(values) {
        *out = T::of(base + rise * value);
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
    // Without the instruction, mul_add is a slow call.
    let fused = target_cfg_f!(target_feature = "fma");
    let (whole, rest) = out.as_chunks_mut();
    let count = whole.len();
    for (vector, out) in whole.iter_mut().enumerate() {
        *out = vector_f32(16 * vector, hi, c, offset, rate, fused);
    }
    // What is left takes one vector more, not a step at a time.
    let last = vector_f32(16 * count, hi, c, offset, rate, fused);
    rest.copy_from_slice(&last[..rest.len()]);
}

/// 16 values of `curve_f32` from the `first` on, compiled with the instructions of where it is called.
#[allow(clippy::inline_always)]
#[inline(always)]
fn vector_f32<const TERMS: usize>(
    first: usize,
    hi: f32,
    c: &[f32; TERMS],
    offset: f32,
    rate: f32,
    fused: bool,
) -> [f32; 16] {
    let mut values = [0.0; 16];
    for (lane, value) in values.iter_mut().enumerate() {
        #[allow(clippy::cast_possible_truncation, clippy::cast_possible_wrap, clippy::cast_precision_loss)]
        let i = (first + lane) as i32 as f32;
        let mut p = c[TERMS - 1];
        if fused {
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
        *value = hi + p;
    }
    values
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
