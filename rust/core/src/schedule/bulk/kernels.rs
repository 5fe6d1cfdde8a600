//! The loops that write a block, once for each set of vector instructions.

use std::ops::{Add, Div, Mul};

use multiversion::multiversion;
use multiversion::target::target_cfg_f;

/// A number that a block is written in, as a float64 rounds to it.
pub trait Real:
    Copy + PartialOrd + 'static + Add<Output = Self> + Mul<Output = Self> + Div<Output = Self>
{
    /// Whether the values can show a rounding in the 53rd bit.
    const FULL: bool;
    const ZERO: Self;
    /// Values in 64 bytes, what a vector store takes at most.
    const LANES: usize;
    /// Blocks whose centre is taken from the one before, at most.
    const TURNS: usize;
    /// (cos x − 1)/x² by powers of x², from the lowest.
    const COSINE: &'static [Self];
    /// (sin x − x)/x³ by powers of x².
    const SINE: &'static [Self];
    /// (tanh x − x)/x³ by powers of x².
    const TANGENT: &'static [Self];
    /// (exp x − 1 − x)/x² by powers of x.
    const EXPONENTIAL: &'static [Self];
    fn of(value: f64) -> Self;
    fn double(self) -> f64;
    /// self·factor + term, with one rounding where `fused`.
    fn times(self, factor: Self, term: Self, fused: bool) -> Self;
}

impl Real for f32 {
    const FULL: bool = false;
    const ZERO: Self = 0.0;
    const LANES: usize = 16;
    const TURNS: usize = 1 << 10;
    const COSINE: &'static [Self] = &[-0.5, 1.0 / 24.0, -1.0 / 720.0];
    const SINE: &'static [Self] = &[-1.0 / 6.0, 1.0 / 120.0];
    const TANGENT: &'static [Self] = &[-1.0 / 3.0, 2.0 / 15.0, -17.0 / 315.0];
    const EXPONENTIAL: &'static [Self] = &[0.5, 1.0 / 6.0, 1.0 / 24.0, 1.0 / 120.0];

    #[allow(clippy::cast_possible_truncation)]
    #[inline]
    fn of(value: f64) -> Self {
        value as Self
    }

    #[inline]
    fn double(self) -> f64 {
        f64::from(self)
    }

    #[allow(clippy::inline_always)] // Compiled with the instructions of where it is called.
    #[inline(always)]
    fn times(self, factor: Self, term: Self, fused: bool) -> Self {
        if fused { self.mul_add(factor, term) } else { self * factor + term }
    }
}

impl Real for f64 {
    const FULL: bool = true;
    const ZERO: Self = 0.0;
    const LANES: usize = 8;
    const TURNS: usize = 8;
    const COSINE: &'static [Self] = &[-0.5, 1.0 / 24.0, -1.0 / 720.0, 1.0 / 40_320.0, -1.0 / 3_628_800.0];
    const SINE: &'static [Self] =
        &[-1.0 / 6.0, 1.0 / 120.0, -1.0 / 5_040.0, 1.0 / 362_880.0, -1.0 / 39_916_800.0];
    const TANGENT: &'static [Self] = &[]; // It has a way of its own.
    const EXPONENTIAL: &'static [Self] = &[
        0.5,
        1.0 / 6.0,
        1.0 / 24.0,
        1.0 / 120.0,
        1.0 / 720.0,
        1.0 / 5_040.0,
        1.0 / 40_320.0,
        1.0 / 362_880.0,
        1.0 / 3_628_800.0,
        1.0 / 39_916_800.0,
    ];

    #[inline]
    fn of(value: f64) -> Self {
        value
    }

    #[inline]
    fn double(self) -> f64 {
        self
    }

    #[allow(clippy::inline_always)]
    #[inline(always)]
    fn times(self, factor: Self, term: Self, fused: bool) -> Self {
        if fused { self.mul_add(factor, term) } else { self * factor + term }
    }
}

/// An argument that grows evenly, and the ends that no value passes: where the curve is at its end, a sum's
/// rounding is not either.
#[derive(Debug, Clone, Copy)]
pub struct Run {
    pub start: f64,
    pub rate: f64,
    pub first: f64,
    pub step: f64,
    pub length: f64,
    pub low: f64,
    pub high: f64,
}

impl Run {
    /// The argument at an index, by the roundings of the formula itself: start + rate·(first +
    /// index·step)/length.
    #[allow(clippy::inline_always)]
    #[inline(always)]
    pub fn at(&self, index: f64) -> f64 {
        self.start + self.rate * ((self.first + index * self.step) / self.length)
    }

    /// How much it grows from one value to the next.
    pub fn growth(&self) -> f64 {
        self.rate * self.step / self.length
    }

    pub fn limits<T: Real>(&self) -> [T; 2] {
        [T::of(self.low), T::of(self.high)]
    }
}

/// A number as one of a row, and what that misses.
#[inline]
pub(super) fn split<T: Real>(value: f64) -> (T, T) {
    let hi = T::of(value);
    (hi, T::of(value - hi.double()))
}

#[allow(clippy::inline_always)]
#[inline(always)]
pub(super) fn within<T: Real>(value: T, [low, high]: [T; 2]) -> T {
    let value = if value < low { low } else { value };
    if value > high { high } else { value }
}

/// c₀ + c₁x + ….
#[allow(clippy::inline_always)]
#[inline(always)]
pub(super) fn polynomial<T: Real>(x: T, c: &[T], fused: bool) -> T {
    let [below @ .., highest] = c else { return T::ZERO };
    below.iter().rev().fold(*highest, |p, c| p.times(x, *c, fused))
}

/// The way from a block's centre, per step of the block.
#[allow(clippy::inline_always)]
#[inline(always)]
pub(super) fn ways<T: Real, const LENGTH: usize>(turn: f64, head: usize) -> [T; LENGTH] {
    let mut ways = [T::ZERO; LENGTH];
    for (i, way) in ways.iter_mut().enumerate() {
        #[allow(clippy::cast_possible_truncation, clippy::cast_possible_wrap)]
        let i = f64::from(((i + head) % LENGTH) as i32 - (LENGTH / 2) as i32);
        *way = T::of(i * turn);
    }
    ways
}

/// Values before the next 64 bytes.
pub(super) fn head<T>(out: &[T]) -> usize {
    out.as_ptr().align_offset(64).min(out.len())
}

/// A block's values by their index, from its terms. No closure, which is not inlined where there are other
/// vector instructions: float64 took ten times as long.
pub(super) trait Block<T, const LENGTH: usize, const TERMS: usize> {
    fn value(&self, index: usize, terms: [T; TERMS]) -> T;
}

/// hi + c₀ + c₁x + c₂x² + …, for the way x from the block's centre.
pub(super) struct Series<T, const LENGTH: usize> {
    pub(super) ways: [T; LENGTH],
    pub(super) limits: [T; 2],
    pub(super) fused: bool,
}

#[allow(clippy::inline_always)]
impl<T: Real, const LENGTH: usize, const TERMS: usize> Block<T, LENGTH, TERMS> for Series<T, LENGTH> {
    #[inline(always)]
    fn value(&self, index: usize, terms: [T; TERMS]) -> T {
        within(terms[0] + polynomial(self.ways[index], &terms[1..], self.fused), self.limits)
    }
}

/// Writes a block, in the last lanes with the next one's terms.
// The compiler turns an index into vectors.
#[allow(clippy::inline_always, clippy::needless_range_loop)]
#[inline(always)]
fn block<T: Real, const LENGTH: usize, const TERMS: usize>(
    out: &mut [T; LENGTH],
    later: &[T; LENGTH],
    values: &impl Block<T, LENGTH, TERMS>,
    now: [T; TERMS],
    next: [T; TERMS],
) {
    for i in 0..LENGTH - T::LANES {
        out[i] = values.value(i, now);
    }
    for i in LENGTH - T::LANES..LENGTH {
        let (now, next) = (values.value(i, now), values.value(i, next));
        out[i] = if later[i] > T::ZERO { next } else { now };
    }
}

/// Writes blocks; the first `head` values go before the vectors: with that of [`head`] no store takes two
/// lines of memory. Where terms are many, 0 takes less time, since a block's last vector is else worked out
/// twice.
#[allow(clippy::inline_always)]
#[inline(always)]
pub(super) fn in_blocks<T: Real, const LENGTH: usize, const TERMS: usize>(
    out: &mut [T],
    head: usize,
    mut terms: impl FnMut(usize) -> [T; TERMS],
    values: &impl Block<T, LENGTH, TERMS>,
) {
    let mut later = [T::ZERO; LENGTH];
    for (i, later) in later.iter_mut().enumerate() {
        *later = T::of(f64::from(u8::from(i + head >= LENGTH)));
    }
    // A block's terms are found while the one before it is written: nobody waits for a root or a division.
    let mut now = terms(0);
    let mut edge = [T::ZERO; LENGTH];
    let (first, out) = out.split_at_mut(head.min(out.len()));
    if !first.is_empty() {
        block(&mut edge, &later, values, now, now);
        first.copy_from_slice(&edge[LENGTH - head..][..first.len()]);
    }
    let (whole, rest) = out.as_chunks_mut::<LENGTH>();
    let count = whole.len();
    for (index, out) in whole.iter_mut().enumerate() {
        let next = terms(index + 1);
        block(out, &later, values, now, next);
        now = next;
    }
    if !rest.is_empty() {
        block(&mut edge, &later, values, now, terms(count + 1));
        rest.copy_from_slice(&edge[..rest.len()]);
    }
}

/// Writes of each index what it says, each whole vector at 64 bytes.
#[allow(clippy::inline_always)]
#[inline(always)]
pub(super) fn by_index<T>(out: &mut [T], value: impl Fn(f64) -> T) {
    let head = head(out);
    let (first, rest) = out.split_at_mut(head);
    for (part, begin) in [(first, 0), (rest, head)] {
        for (i, out) in part.iter_mut().enumerate() {
            #[allow(clippy::cast_possible_truncation, clippy::cast_possible_wrap)]
            let i = f64::from((begin + i) as i32);
            *out = value(i);
        }
    }
}

/// Writes one value throughout, in the widest stores: `fill` is not always compiled for these instructions.
#[multiversion(targets("x86_64+avx512f+avx512vl+avx512dq+avx512bw+avx2+fma", "x86_64+avx2+fma"))]
pub(super) fn level<T: Real>(out: &mut [T], value: T) {
    by_index(out, |_| value);
}

/// Writes start + i·slope, computed in float64.
#[multiversion(targets("x86_64+avx512f+avx512vl+avx512dq+avx512bw+avx2+fma", "x86_64+avx2+fma"))]
pub(super) fn line<T: Real>(out: &mut [T], start: f64, slope: f64) {
    by_index(out, |i| T::of(i * slope + start));
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
    let head = head(out);
    let (first, out) = out.split_at_mut(head);
    let (whole, rest) = out.as_chunks_mut();
    // Values beside whole vectors take one vector more, not a step at a time.
    if head > 0 {
        first.copy_from_slice(&vector_f32(0, hi, c, offset, rate, fused)[..head]);
    }
    for (vector, out) in whole.iter_mut().enumerate() {
        *out = vector_f32(head + 16 * vector, hi, c, offset, rate, fused);
    }
    let last = vector_f32(head + 16 * whole.len(), hi, c, offset, rate, fused);
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
        *value = hi + polynomial(i.times(rate, offset, fused), c, fused);
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
    let fused = target_cfg_f!(target_feature = "fma");
    by_index(out, |i| T::of(polynomial(i.times(rate, offset, fused), c, fused)));
}
