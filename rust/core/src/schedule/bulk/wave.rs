//! A cosine in float32, from one table of sines and cosines for all its blocks.
//!
//! cos(φ + x) = cos φ + (cos x − 1)·cos φ − sin x·sin φ: the first term is exact in two float32, and the others are
//! small where x is, so that float32 suffices for their tables and sums. φ turns from block to block in float64.
//!
//! The tables are as long as the vector registers hold: a loop that loads nothing runs beside the stores. (A load may
//! wait for a pending store whose address ends in the same 12 bits, and where memory is slow every address has one.)

use multiversion::multiversion;
use multiversion::target::target_cfg_f;

/// The angle from a block's centre to its ends, at most: up to there the tables and sums lose a quarter of an ulp.
const REACH: f64 = 0.2;
/// Values in a block.
const LONG: usize = 128;
/// The same for waves that turn faster.
const SHORT: usize = 32;

/// mean + amplitude·cos(start + i·turn).
#[derive(Debug, Clone, Copy)]
pub struct Wave {
    pub mean: f64,
    pub amplitude: f64,
    pub start: f64,
    pub turn: f64,
}

impl Wave {
    /// Values in a block of a wave with this turn, if it is slow enough for one.
    pub fn block(turn: f64) -> Option<usize> {
        [LONG, SHORT].into_iter().find(|&length| 0.5 * length as f64 * turn <= REACH)
    }

    /// Writes whole blocks; `out` holds a multiple of `block`.
    pub fn fill(&self, out: &mut [f32]) {
        if Self::block(self.turn) == Some(LONG) {
            fill::<LONG>(out, self);
        } else {
            fill::<SHORT>(out, self);
        }
    }
}

#[multiversion(targets("x86_64+avx512f+avx512vl+avx512dq+avx512bw+avx2+fma", "x86_64+avx2+fma"))]
fn fill<const LENGTH: usize>(out: &mut [f32], wave: &Wave) {
    #[allow(clippy::cast_possible_truncation)]
    let single = |value: f64| value as f32;
    let half = 0.5 * LENGTH as f64 * wave.turn;
    let (mut falls, mut sines) = ([0.0; LENGTH], [0.0; LENGTH]);
    let (first, turn) = (single(-half), single(wave.turn));
    for (i, (fall, sine)) in falls.iter_mut().zip(&mut sines).enumerate() {
        #[allow(clippy::cast_possible_truncation, clippy::cast_possible_wrap, clippy::cast_precision_loss)]
        let x = i as i32 as f32 * turn + first;
        let square = x * x;
        *fall = square * (square * (1.0 / 24.0 - square / 720.0) - 0.5);
        *sine = x * square * (square / 120.0 - 1.0 / 6.0) + x;
    }
    let (turn_sin, turn_cos) = (2.0 * half).sin_cos();
    let (sin, cos) = (wave.start + half).sin_cos();
    let (mut sin, mut cos) = (wave.amplitude * sin, wave.amplitude * cos);
    for block in out.as_chunks_mut::<LENGTH>().0 {
        let anchor = wave.mean + cos;
        let hi = single(anchor);
        let lo = single(anchor - f64::from(hi));
        let (falling, rising) = (single(cos), single(-sin));
        for ((out, fall), sine) in block.iter_mut().zip(falls).zip(sines) {
            // Without the instruction, mul_add is a slow call.
            *out = if target_cfg_f!(target_feature = "fma") {
                hi + fall.mul_add(falling, sine.mul_add(rising, lo))
            } else {
                hi + (fall * falling + (sine * rising + lo))
            };
        }
        (sin, cos) = (sin * turn_cos + cos * turn_sin, cos * turn_cos - sin * turn_sin);
    }
}
