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
//! The first term is exact in two numbers of float32, and the others are small where x is, so that float32 suffices for
//! their tables and sums. In float64 a centre is found anew every few blocks, before roundings add up; a division takes no
//! longer there than the ten terms that it saves, and has no end that must be far.
//!
//! The tables are as long as the vector registers hold: a loop that loads nothing runs beside the stores. (A load may
//! wait for a pending store whose address ends in the same 12 bits, and where memory is slow every address has one.)
//!
//! Whole vectors begin at 64 bytes of memory, since `NumPy`'s arrays begin 16 bytes after: a store that takes two lines costs 15 %
//! of a row. A value still has the bits of its index alone: tables are turned by what lies before the first line, and a block's
//! last vector has the next block's terms in its last lanes.

// An index is what the compiler turns into vectors, here where nothing else is inlined.
#![allow(clippy::needless_range_loop)]

use multiversion::multiversion;
use multiversion::target::target_cfg_f;

use super::kernels::{Block, Real, Series, head, in_blocks, polynomial, split, ways, within};

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

/// mean + amplitude·motion(start + rate·u), within `low` and `high`, for u = (first + i·step)/length.
#[derive(Debug, Clone, Copy)]
pub struct Wave {
    pub motion: Motion,
    pub mean: f64,
    pub amplitude: f64,
    pub start: f64,
    pub rate: f64,
    pub first: f64,
    pub step: f64,
    pub length: f64,
    /// No value is outside of these: where the curve is at its end, a sum's rounding is not either.
    pub low: f64,
    pub high: f64,
}

impl Wave {
    /// Writes the values, unless the wave is too fast for a block.
    pub fn fill<T: Real, const LONG: usize, const SHORT: usize>(&self, out: &mut [T]) -> bool {
        let fits = |length: usize| 0.5 * length as f64 * self.turn().abs() <= self.motion.reach();
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

    /// The argument of the motion at an index: as far from the first as it may be, it has one rounding more than its u.
    pub fn place(&self, index: f64) -> f64 {
        self.start + self.rate * ((self.first + index * self.step) / self.length)
    }

    /// How much the argument grows from one value to the next.
    fn turn(&self) -> f64 {
        self.rate * self.step / self.length
    }

    fn limits<T: Real>(&self) -> [T; 2] {
        [T::of(self.low), T::of(self.high)]
    }
}

/// Cosines, and exponentials, whose block has no second term.
#[multiversion(targets("x86_64+avx512f+avx512vl+avx512dq+avx512bw+avx2+fma", "x86_64+avx2+fma"))]
fn wave<T: Real, const LENGTH: usize>(out: &mut [T], wave: &Wave) {
    // Without the instruction, mul_add is a slow call.
    let fused = target_cfg_f!(target_feature = "fma");
    let span = LENGTH as f64 * wave.turn();
    let limits = wave.limits();
    let cosine = wave.motion == Motion::Cosine;
    let head = head(out);
    let (mut falls, mut sines) = (ways::<T, LENGTH>(wave.turn(), head), [T::ZERO; LENGTH]);
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
            let centre = wave.place((block * LENGTH + LENGTH / 2) as f64);
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
    let span = LENGTH as f64 * wave.turn();
    let limits = wave.limits();
    let mut tangents = ways::<T, LENGTH>(wave.turn(), 0);
    for i in 0..LENGTH {
        let (x, square) = (tangents[i], tangents[i] * tangents[i]);
        tangents[i] = x * square * polynomial(square, T::TANGENT, fused) + x;
    }
    let (turn, mut t) = (span.tanh(), wave.place((LENGTH / 2) as f64).tanh());
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
    let limits = wave.limits();
    let (base, height) = (T::of(wave.mean + wave.amplitude), T::of(-2.0 * wave.amplitude));
    let head = head(out);
    let mut growths = ways::<T, LENGTH>(2.0 * wave.turn(), head);
    for i in 0..LENGTH {
        let x = growths[i];
        growths[i] = x * x * polynomial(x, T::EXPONENTIAL, fused) + x + T::of(1.0);
    }
    let turn = (2.0 * LENGTH as f64 * wave.turn()).exp();
    let mut centre = 0.0;
    let terms = |block: usize| {
        if block.is_multiple_of(T::TURNS) {
            centre = (2.0 * wave.place((block * LENGTH + LENGTH / 2) as f64)).exp();
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
