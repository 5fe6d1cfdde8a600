//! Curves by their addition theorems: one table for all blocks of a piece.
//!
//! A block's centre is taken from the centre before it, in float64, and the steps about it from a table:
//!
//! ```text
//! cos(φ + x)  = cos φ + (cos x − 1)·cos φ − sin x·sin φ
//! exp(φ + x)  = exp φ + (exp x − 1)·exp φ
//! tanh(φ + x) = t + (1 − t²)·w·(1 − t·w + (t·w)² − …)           t = tanh φ, w = tanh x          in float32
//! (1 − tanh(φ + x))/2 = 1/(1 + exp 2φ·exp 2x)                                                   in float64
//! ```
//! The first term is exact in two numbers of float32, and the others are small where x is, so that float32
//! suffices for their tables and sums. In float64 a centre is found anew every few blocks, before roundings
//! add up; a division takes no longer there than the ten terms that it saves, and has no end that must be
//! far.
//!
//! The tables are as long as the vector registers hold: a loop that loads nothing runs beside the stores. (A
//! load may wait for a pending store whose address ends in the same 12 bits, and where memory is slow every
//! address has one.)
//!
//! Whole vectors begin at 64 bytes of memory, since `NumPy`'s arrays begin 16 bytes after: a store that takes
//! two lines costs 15 % of a row. A value still has the bits of its index alone: tables are turned by what
//! lies before the first line, and a block's last vector has the next block's terms in its last lanes.

// An index is what the compiler turns into vectors, here where nothing else is inlined.
#![allow(clippy::needless_range_loop)]

use multiversion::multiversion;
use multiversion::target::target_cfg_f;

use super::kernels::{Block, Real, Run, Series, head, in_blocks, polynomial, split, ways, within};

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
    /// The way from a block's centre to its ends, at most: up to there the tables and sums lose a quarter of
    /// an ulp.
    fn reach(self) -> f64 {
        match self {
            // Half its height is the amplitude.
            Self::Cosine => 0.21,
            Self::Exponential | Self::Tanh => 0.1,
        }
    }
}

/// mean + amplitude·motion(x), for x along the run: as far from the first as it may be, x has one rounding
/// more than its u.
#[derive(Debug, Clone, Copy)]
pub struct Wave {
    pub motion: Motion,
    pub mean: f64,
    pub amplitude: f64,
    pub run: Run,
}

impl Wave {
    /// Writes the values, unless the wave is too fast for a block.
    pub fn fill<T: Real, const LONG: usize, const SHORT: usize>(&self, out: &mut [T]) -> bool {
        let fits = |length: usize| 0.5 * length as f64 * self.run.growth().abs() <= self.motion.reach();
        if !fits(SHORT) {
            return false;
        }
        let long = out.len() > SHORT && fits(LONG);
        match self.motion {
            Motion::Tanh if T::FULL && long => logistic::<T, LONG>(out, self),
            Motion::Tanh if T::FULL => logistic::<T, SHORT>(out, self),
            Motion::Tanh if long => tanh::<T, LONG>(out, self),
            Motion::Tanh => tanh::<T, SHORT>(out, self),
            _ if long => wave::<T, LONG>(out, self),
            _ => wave::<T, SHORT>(out, self),
        }
        true
    }
}

/// Cosines, and exponentials, whose block has no second term.
#[multiversion(targets("x86_64+avx512f+avx512vl+avx512dq+avx512bw+avx2+fma", "x86_64+avx2+fma"))]
fn wave<T: Real, const LENGTH: usize>(out: &mut [T], wave: &Wave) {
    // Without the instruction, mul_add is a slow call.
    let fused = target_cfg_f!(target_feature = "fma");
    let span = LENGTH as f64 * wave.run.growth();
    let limits = wave.run.limits();
    let cosine = wave.motion == Motion::Cosine;
    let head = head(out);
    let (mut falls, mut sines) = (ways::<T, LENGTH>(wave.run.growth(), head), [T::ZERO; LENGTH]);
    if cosine {
        for i in 0..LENGTH {
            let (x, square) = (falls[i], falls[i] * falls[i]);
            falls[i] = square * polynomial(square, T::COSINE, fused);
            sines[i] = x * square * polynomial(square, T::SINE, fused) + x;
        }
    } else {
        for i in 0..LENGTH {
            let x = falls[i];
            falls[i] = x * x * polynomial(x, T::EXPONENTIAL, fused) + x;
        }
    }
    let (turn_sin, turn_cos) = if cosine { span.sin_cos() } else { (0.0, span.exp()) };
    let (mut sin, mut cos) = (0.0, 0.0);
    let terms = |block: usize| {
        if block.is_multiple_of(T::TURNS) {
            let centre = wave.run.at((block * LENGTH + LENGTH / 2) as f64);
            (sin, cos) = if cosine { centre.sin_cos() } else { (0.0, centre.exp()) };
            (sin, cos) = (wave.amplitude * sin, wave.amplitude * cos);
        }
        let (hi, lo) = split(wave.mean + cos);
        let terms = [hi, lo, T::of(cos), T::of(-sin)];
        (sin, cos) = (sin * turn_cos + cos * turn_sin, cos * turn_cos - sin * turn_sin);
        terms
    };
    in_blocks(out, head, terms, &Rotation { falls, sines, limits, fused });
}

struct Rotation<T, const LENGTH: usize> {
    falls: [T; LENGTH],
    sines: [T; LENGTH],
    limits: [T; 2],
    fused: bool,
}

#[allow(clippy::inline_always)]
impl<T: Real, const LENGTH: usize> Block<T, LENGTH, 4> for Rotation<T, LENGTH> {
    #[inline(always)]
    fn value(&self, i: usize, [hi, lo, falling, rising]: [T; 4]) -> T {
        let small = self.falls[i].times(falling, self.sines[i].times(rising, lo, self.fused), self.fused);
        within(hi + small, self.limits)
    }
}

/// Hyperbolic tangents.
#[multiversion(targets("x86_64+avx512f+avx512vl+avx512dq+avx512bw+avx2+fma", "x86_64+avx2+fma"))]
fn tanh<T: Real, const LENGTH: usize>(out: &mut [T], wave: &Wave) {
    let fused = target_cfg_f!(target_feature = "fma");
    let span = LENGTH as f64 * wave.run.growth();
    let limits = wave.run.limits();
    let mut tangents = ways::<T, LENGTH>(wave.run.growth(), 0);
    for i in 0..LENGTH {
        let (x, square) = (tangents[i], tangents[i] * tangents[i]);
        tangents[i] = x * square * polynomial(square, T::TANGENT, fused) + x;
    }
    let (turn, mut t) = (span.tanh(), wave.run.at((LENGTH / 2) as f64).tanh());
    let terms = |_| {
        let (hi, lo) = split(wave.mean + wave.amplitude * t);
        let mut terms = [hi; 2 + TERMS];
        terms[1] = lo;
        let mut term = wave.amplitude * (1.0 - t * t);
        for c in &mut terms[2..] {
            *c = T::of(term);
            term *= -t;
        }
        t = (t + turn) / (1.0 + t * turn);
        terms
    };
    in_blocks(out, 0, terms, &Series { ways: tangents, limits, fused });
}

/// Hyperbolic tangents as logistic curves: mean + amplitude·tanh z = low end + height/(1 + exp −2z).
#[multiversion(targets("x86_64+avx512f+avx512vl+avx512dq+avx512bw+avx2+fma", "x86_64+avx2+fma"))]
fn logistic<T: Real, const LENGTH: usize>(out: &mut [T], wave: &Wave) {
    let fused = target_cfg_f!(target_feature = "fma");
    let limits = wave.run.limits();
    let (base, height) = (T::of(wave.mean + wave.amplitude), T::of(-2.0 * wave.amplitude));
    let head = head(out);
    let mut growths = ways::<T, LENGTH>(2.0 * wave.run.growth(), head);
    for i in 0..LENGTH {
        let x = growths[i];
        growths[i] = x * x * polynomial(x, T::EXPONENTIAL, fused) + x + T::of(1.0);
    }
    let turn = (2.0 * LENGTH as f64 * wave.run.growth()).exp();
    let mut centre = 0.0;
    let terms = |block: usize| {
        if block.is_multiple_of(T::TURNS) {
            centre = (2.0 * wave.run.at((block * LENGTH + LENGTH / 2) as f64)).exp();
        }
        let grown = T::of(centre);
        centre *= turn;
        [grown]
    };
    in_blocks(out, head, terms, &Logistic { growths, base, height, limits, fused });
}

struct Logistic<T, const LENGTH: usize> {
    growths: [T; LENGTH],
    base: T,
    height: T,
    limits: [T; 2],
    fused: bool,
}

#[allow(clippy::inline_always)]
impl<T: Real, const LENGTH: usize> Block<T, LENGTH, 1> for Logistic<T, LENGTH> {
    #[inline(always)]
    fn value(&self, i: usize, [grown]: [T; 1]) -> T {
        within(self.base + self.height / self.growths[i].times(grown, T::of(1.0), self.fused), self.limits)
    }
}
