//! The question in its plainest form.

use crate::numbers::index;

/// Totals closer than this, relatively, are equal: weights are reals, summed in any order.
pub(super) const TOLERANCE: f64 = 1e-12;

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
