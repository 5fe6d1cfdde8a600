//! The best rows of a job so far.

/// The best `top` rows of those offered, in whatever order they come: the best first, ties in the order of
/// the rows.
#[derive(Debug)]
pub(super) struct BestRows {
    top: usize,
    /// The worth of each, and its place among the job's rows.
    rows: Vec<(f64, usize)>,
}

impl BestRows {
    pub fn new(top: usize) -> BestRows {
        BestRows { top, rows: Vec::new() }
    }

    /// Whether a row that is worth no more than `bound` may be among the best. NaN is worth nothing.
    pub fn may_take(&self, bound: f64, at: usize) -> bool {
        !bound.is_nan() && self.place(bound, at) < self.top
    }

    pub fn offer(&mut self, worth: f64, at: usize) {
        if self.may_take(worth, at) {
            self.rows.truncate(self.top - 1);
            self.rows.insert(self.place(worth, at), (worth, at));
        }
    }

    fn place(&self, worth: f64, at: usize) -> usize {
        self.rows.partition_point(|&(better, before)| better > worth || (better >= worth && before < at))
    }

    /// Their places, the best first.
    pub fn places(&self) -> impl Iterator<Item = usize> {
        self.rows.iter().map(|&(_, at)| at)
    }
}
