//! Which way a problem is solved.

use super::divisor_counts::Sets;
use super::problem::{Best, Problem};
use super::search::SearchBuffers;
use super::sieve::SieveBuffers;
use crate::numbers::gcd;

/// Above this many marks per micro-batch the sieve is slower than the search.
const SIEVE_MARKS: f64 = 4_000.0;

/// Buffers that are kept between many questions.
#[derive(Default)]
pub(super) struct Scratch {
    pub(super) sets: Sets,
    pub(super) sieve: SieveBuffers,
    pub(super) search: SearchBuffers,
}

impl Problem<'_> {
    pub(super) fn solve(&self, scratch: &mut Scratch) -> Best {
        // What all micro-batches share is in every batch: it need not be looked for.
        let shared = self.micros.iter().copied().reduce(gcd).expect("a micro-batch");
        let micros: Vec<u64> = self.micros.iter().map(|m| m / shared).collect();
        let rest = Problem { cap: self.cap / shared, micros: &micros, ..*self };
        let best =
            if rest.is_small() { rest.sieve(&mut scratch.sieve) } else { rest.search(&mut scratch.search) };
        Best { batch: best.batch * shared, ..best }
    }

    fn is_small(&self) -> bool {
        let span = (self.hi as f64 / self.lo as f64).ln() + 1.0 / self.lo as f64;
        let per_batch: f64 = self.micros.iter().map(|&m| span / m as f64).sum();
        let marks = self.cap as f64 * (per_batch + 1.0);
        marks <= SIEVE_MARKS * self.micros.len() as f64
    }
}
