//! The question in its plainest form.
use super::TOLERANCE;
use super::index;
use super::primes::gcd;
use super::search::Level;
use super::table::Sets;

/// Above this many marks per micro-batch the sieve is slower than the search.
const SIEVE_MARKS: f64 = 4_000.0;

/// Buffers that are kept between many questions.
#[derive(Default)]
pub(super) struct Scratch {
    pub(super) sets: Sets,
    pub(super) sums: Vec<f64>,
    pub(super) stamps: Vec<u64>,
    pub(super) levels: Vec<Level>,
    pub(super) tops: Vec<f64>,
    pub(super) divisors: Vec<(u64, u64)>,
}

#[derive(Clone, Copy)]
pub(super) struct Best {
    pub(super) total: f64,
    pub(super) batch: u64,
}

/// Counts j from lo to hi; j works at B when some j·m divides B.
#[derive(Clone, Copy)]
pub(super) struct Problem<'a> {
    pub(super) cap: u64,
    /// Ascending, none divides another.
    pub(super) micros: &'a [u64],
    pub(super) lo: u64,
    pub(super) hi: u64,
    pub(super) weights: Option<&'a [f64]>,
    pub(super) prefer_larger: bool,
}

impl Problem<'_> {
    pub(super) fn solve(&self, scratch: &mut Scratch) -> Best {
        // What all micro-batches share is in every batch: it need not be looked for.
        let shared = self.micros.iter().copied().reduce(gcd).expect("a micro-batch");
        let micros: Vec<u64> = self.micros.iter().map(|m| m / shared).collect();
        let rest = Problem { cap: self.cap / shared, micros: &micros, ..*self };
        let best = if rest.is_small() { rest.sieve(scratch) } else { rest.search(scratch) };
        Best { batch: best.batch * shared, ..best }
    }

    fn is_small(&self) -> bool {
        let span = (self.hi as f64 / self.lo as f64).ln() + 1.0 / self.lo as f64;
        let per_batch: f64 = self.micros.iter().map(|&m| span / m as f64).sum();
        let marks = self.cap as f64 * (per_batch + 1.0);
        marks <= SIEVE_MARKS * self.micros.len() as f64
    }

    pub(super) fn weight(&self, j: u64) -> f64 {
        match self.weights {
            None => f64::from(u8::from(self.lo <= j && j <= self.hi)),
            Some(w) => w.get(index(j)).copied().unwrap_or(0.0),
        }
    }

    pub(super) fn better(&self, a: Best, b: Best) -> bool {
        let slack = TOLERANCE * b.total;
        a.total > b.total + slack || (a.total >= b.total - slack && (a.batch > b.batch) == self.prefer_larger)
    }
}
