//! The float types of a row.

use super::kernels::{Real, curve_f32, curve_f64, level, line};
use super::powers::Powers;
use super::wave::Wave;
use crate::schedule::expansion::{Expansion, F32, F64, FEW_TERMS, LONG_F32, Precision, SHORT_F32};

/// float32 or float64: what a row is written in.
pub trait Value: Copy + Send + Sync + Kernels {}
impl Value for f32 {}
impl Value for f64 {}

pub trait Kernels: Real {
    fn precisions() -> &'static [Precision; 2];
    fn is_finite(&self) -> bool;
    /// Writes numbers of float32 as they are, and says whether that is what a row is written in.
    fn copy(out: &mut [Self], singles: &[f32]) -> bool;
    /// Writes a wave, and says whether it did.
    fn wave(out: &mut [Self], wave: &Wave) -> bool;
    /// Writes the first values of a power, and says how many.
    fn powers(out: &mut [Self], powers: &Powers) -> usize;
    /// Writes a polynomial of degree 2 and more at s = offset + i·rate.
    fn curve(out: &mut [Self], series: &Expansion, offset: f64, rate: f64);
}

/// Writes a polynomial at s = offset + i·rate.
pub(super) fn even<T: Value>(out: &mut [T], series: &Expansion, offset: f64, rate: f64) {
    let c = &series.coefficients;
    match series.degree {
        0 => level(out, T::of(c[0])),
        1 => line(out, c[0] + c[1] * offset, c[1] * rate),
        _ if series.reach.is_finite() => T::curve(out, series, offset, rate),
        _ => match c.first_chunk::<FEW_TERMS>() {
            Some(few) if series.degree < FEW_TERMS => curve_f64(out, few, offset, rate),
            _ => curve_f64(out, c, offset, rate),
        },
    }
}

impl Kernels for f32 {
    fn precisions() -> &'static [Precision; 2] {
        &F32
    }

    fn is_finite(&self) -> bool {
        Self::is_finite(*self)
    }

    fn copy(out: &mut [Self], singles: &[f32]) -> bool {
        out.copy_from_slice(singles);
        true
    }

    fn wave(out: &mut [Self], wave: &Wave) -> bool {
        wave.fill::<Self, 128, 32>(out)
    }

    fn powers(out: &mut [Self], powers: &Powers) -> usize {
        powers.fill::<Self, 128, 32, 7>(out)
    }

    fn curve(out: &mut [Self], series: &Expansion, offset: f64, rate: f64) {
        let c = &series.coefficients;
        let anchor = Self::of(c[0]);
        let mut small = [0.0; LONG_F32];
        for (small, c) in small.iter_mut().zip(c) {
            *small = Self::of(*c);
        }
        small[0] = Self::of(c[0] - f64::from(anchor));
        let (offset, rate) = (Self::of(offset), Self::of(rate));
        match small.first_chunk::<SHORT_F32>() {
            Some(short) if series.degree < SHORT_F32 => curve_f32(out, anchor, short, offset, rate),
            _ => curve_f32(out, anchor, &small, offset, rate),
        }
    }
}

impl Kernels for f64 {
    fn precisions() -> &'static [Precision; 2] {
        &F64
    }

    fn is_finite(&self) -> bool {
        Self::is_finite(*self)
    }

    fn copy(_: &mut [Self], _: &[f32]) -> bool {
        false
    }

    fn wave(out: &mut [Self], wave: &Wave) -> bool {
        wave.fill::<Self, 64, 16>(out)
    }

    fn powers(out: &mut [Self], powers: &Powers) -> usize {
        powers.fill::<Self, 64, 16, 11>(out)
    }

    fn curve(out: &mut [Self], series: &Expansion, offset: f64, rate: f64) {
        curve_f64(out, &series.coefficients, offset, rate);
    }
}
