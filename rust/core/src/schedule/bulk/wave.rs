//! Curves in float32 by their addition theorems: one table for all blocks of a piece.
//!
//! A block's centre is taken from the centre before it, in float64, and the steps about it from a table:
//!
//! ```text
//! cos(φ + x)  = cos φ + (cos x − 1)·cos φ − sin x·sin φ
//! exp(φ + x)  = exp φ + (exp x − 1)·exp φ
//! tanh(φ + x) = t + (1 − t²)·w·(1 − t·w + (t·w)² − …)           t = tanh φ, w = tanh x
//! ```
//! The first term is exact in two float32, and the others are small where x is, so that float32 suffices for their
//! tables and sums.
//!
//! The tables are as long as the vector registers hold: a loop that loads nothing runs beside the stores. (A load may
//! wait for a pending store whose address ends in the same 12 bits, and where memory is slow every address has one.)

// An index is what the compiler turns into vectors, here where nothing else is inlined.
#![allow(clippy::needless_range_loop)]

use multiversion::multiversion;
use multiversion::target::target_cfg_f;

/// Values in a block.
const LONG: usize = 128;
/// The same for curves that move faster, and for short pieces.
const SHORT: usize = 32;
/// Powers of w in a block of tanh: what is left out is below 5·10⁻⁹ of the curve's height.
const TERMS: usize = 6;

/// The curve that a wave follows.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Motion {
    Cosine,
    Exponential,
    Tanh,
}

impl Motion {
    /// The way from a block's centre to its ends, at most: up to there the tables and sums lose a quarter of an ulp.
    fn reach(self) -> f64 {
        match self {
            // Half its height is the amplitude.
            Self::Cosine => 0.21,
            Self::Exponential | Self::Tanh => 0.1,
        }
    }
}

/// mean + amplitude·motion(start + i·turn), within `low` and `high`.
#[derive(Debug, Clone, Copy)]
pub struct Wave {
    pub motion: Motion,
    pub mean: f64,
    pub amplitude: f64,
    pub start: f64,
    pub turn: f64,
    /// No value is outside of these: where the curve is at its end, a sum's rounding is not either.
    pub low: f64,
    pub high: f64,
}

impl Wave {
    /// Writes the values, unless the wave is too fast for a block.
    pub fn fill(&self, out: &mut [f32]) -> bool {
        let fits = |length: usize| 0.5 * length as f64 * self.turn.abs() <= self.motion.reach();
        match self.motion {
            _ if !fits(SHORT) => return false,
            Motion::Tanh if out.len() > SHORT && fits(LONG) => tanh::<LONG>(out, self),
            Motion::Tanh => tanh::<SHORT>(out, self),
            _ if out.len() > SHORT && fits(LONG) => wave::<LONG>(out, self),
            _ => wave::<SHORT>(out, self),
        }
        true
    }

    fn limits(&self) -> [f32; 2] {
        [single(self.low), single(self.high)]
    }
}

#[allow(clippy::cast_possible_truncation)]
fn single(value: f64) -> f32 {
    value as f32
}

/// A number as a float32, and what that misses.
#[inline]
fn split(value: f64) -> (f32, f32) {
    let hi = single(value);
    (hi, single(value - f64::from(hi)))
}

#[allow(clippy::inline_always)] // Compiled with the instructions of where it is called.
#[inline(always)]
fn within(value: f32, [low, high]: [f32; 2]) -> f32 {
    let value = if value < low { low } else { value };
    if value > high { high } else { value }
}

/// The way from a block's centre, per step of the block.
#[allow(clippy::inline_always)]
#[inline(always)]
fn ways<const LENGTH: usize>(turn: f64) -> [f32; LENGTH] {
    let (first, turn) = (single(-0.5 * LENGTH as f64 * turn), single(turn));
    let mut ways = [0.0; LENGTH];
    for (i, way) in ways.iter_mut().enumerate() {
        #[allow(clippy::cast_possible_truncation, clippy::cast_possible_wrap, clippy::cast_precision_loss)]
        let i = i as i32 as f32;
        *way = i * turn + first;
    }
    ways
}

/// Cosines, and exponentials, whose block has no second term.
#[multiversion(targets("x86_64+avx512f+avx512vl+avx512dq+avx512bw+avx2+fma", "x86_64+avx2+fma"))]
fn wave<const LENGTH: usize>(out: &mut [f32], wave: &Wave) {
    let span = LENGTH as f64 * wave.turn;
    let limits = wave.limits();
    let (mut falls, mut sines) = (ways::<LENGTH>(wave.turn), [0.0; LENGTH]);
    let centre = wave.start + 0.5 * span;
    let ((turn_sin, turn_cos), (sin, cos)) = if wave.motion == Motion::Cosine {
        for i in 0..LENGTH {
            let (x, square) = (falls[i], falls[i] * falls[i]);
            falls[i] = square * (square * (1.0 / 24.0 - square * (1.0 / 720.0)) - 0.5);
            sines[i] = x * square * (square * (1.0 / 120.0) - 1.0 / 6.0) + x;
        }
        (span.sin_cos(), centre.sin_cos())
    } else {
        for fall in &mut falls {
            let x = *fall;
            *fall = x * x * (0.5 + x * (1.0 / 6.0 + x * (1.0 / 24.0 + x * (1.0 / 120.0)))) + x;
        }
        ((0.0, span.exp()), (0.0, centre.exp()))
    };
    let (mut sin, mut cos) = (wave.amplitude * sin, wave.amplitude * cos);
    let mut block = || {
        let (hi, lo) = split(wave.mean + cos);
        let terms = [hi, lo, single(cos), single(-sin)];
        (sin, cos) = (sin * turn_cos + cos * turn_sin, cos * turn_cos - sin * turn_sin);
        terms
    };
    // Without the instruction, mul_add is a slow call.
    let fused = target_cfg_f!(target_feature = "fma");
    let (blocks, rest) = out.as_chunks_mut::<LENGTH>();
    for out in blocks {
        wave_block(out, falls, sines, block(), limits, fused);
    }
    if !rest.is_empty() {
        let mut last = [0.0; LENGTH];
        wave_block(&mut last, falls, sines, block(), limits, fused);
        rest.copy_from_slice(&last[..rest.len()]);
    }
}

/// hi + falling·fall + rising·sine + lo.
#[allow(clippy::inline_always)]
#[inline(always)]
fn wave_block<const LENGTH: usize>(
    out: &mut [f32; LENGTH],
    falls: [f32; LENGTH],
    sines: [f32; LENGTH],
    [hi, lo, falling, rising]: [f32; 4],
    limits: [f32; 2],
    fused: bool,
) {
    for i in 0..LENGTH {
        let value = if fused {
            hi + falls[i].mul_add(falling, sines[i].mul_add(rising, lo))
        } else {
            hi + (falls[i] * falling + (sines[i] * rising + lo))
        };
        out[i] = within(value, limits);
    }
}

/// Hyperbolic tangents.
#[multiversion(targets("x86_64+avx512f+avx512vl+avx512dq+avx512bw+avx2+fma", "x86_64+avx2+fma"))]
fn tanh<const LENGTH: usize>(out: &mut [f32], wave: &Wave) {
    let span = LENGTH as f64 * wave.turn;
    let limits = wave.limits();
    let mut tangents = ways::<LENGTH>(wave.turn);
    for tangent in &mut tangents {
        let (x, square) = (*tangent, *tangent * *tangent);
        *tangent = x * square * (square * (2.0 / 15.0 - square * (17.0 / 315.0)) - 1.0 / 3.0) + x;
    }
    let (turn, mut t) = (span.tanh(), (wave.start + 0.5 * span).tanh());
    let mut block = || {
        let (hi, lo) = split(wave.mean + wave.amplitude * t);
        let mut term = wave.amplitude * (1.0 - t * t);
        let mut c = [0.0; TERMS];
        for c in &mut c {
            *c = single(term);
            term *= -t;
        }
        t = (t + turn) / (1.0 + t * turn);
        (hi, lo, c)
    };
    let fused = target_cfg_f!(target_feature = "fma");
    let (blocks, rest) = out.as_chunks_mut::<LENGTH>();
    for out in blocks {
        tanh_block(out, tangents, block(), limits, fused);
    }
    if !rest.is_empty() {
        let mut last = [0.0; LENGTH];
        tanh_block(&mut last, tangents, block(), limits, fused);
        rest.copy_from_slice(&last[..rest.len()]);
    }
}

/// hi + lo + c₀w + c₁w² + ….
#[allow(clippy::inline_always)]
#[inline(always)]
fn tanh_block<const LENGTH: usize>(
    out: &mut [f32; LENGTH],
    tangents: [f32; LENGTH],
    (hi, lo, c): (f32, f32, [f32; TERMS]),
    limits: [f32; 2],
    fused: bool,
) {
    for i in 0..LENGTH {
        let w = tangents[i];
        let mut p = c[TERMS - 1];
        for k in (0..TERMS - 1).rev() {
            p = if fused { p.mul_add(w, c[k]) } else { p * w + c[k] };
        }
        let p = if fused { p.mul_add(w, lo) } else { p * w + lo };
        out[i] = within(hi + p, limits);
    }
}
