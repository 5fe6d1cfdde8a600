//! The division of a pool over jobs: each takes one of its options or waits, and the sum of the values is as
//! large as can be.
//!
//! A price for a GPU of each kind makes every job's best option its own affair; the prices at which the sum
//! of these bests is least bound every division (the dual of the linear relaxation). The whole numbers come
//! from the same prices: an option that loses more against its job's best than the bound leaves is in no best
//! division, and a dynamic program decides over those that are left.

mod dual;
mod greedy;
mod table;
#[cfg(test)]
mod tests;

use dual::Bids;

/// The options of each job, and the GPUs to divide.
#[derive(Clone, Copy, Debug)]
pub struct Options<'a> {
    /// Where each job's options begin, and where the last one's end.
    pub offsets: &'a [usize],
    /// The kind of GPU of each option; those of a job are in the order of kind and GPUs.
    pub kind: &'a [u32],
    /// GPUs of each option, at least 1.
    pub gpus: &'a [u64],
    /// The value of each option, finite.
    pub value: &'a [f64],
    /// The value of each job that waits, finite.
    pub wait: &'a [f64],
    /// GPUs of each kind.
    pub capacity: &'a [u64],
}

/// A division of the GPUs among the jobs.
#[derive(Clone, Debug, PartialEq)]
pub struct Division {
    /// The option of each job; `None` waits.
    pub choice: Vec<Option<usize>>,
    /// The sum of the values.
    pub value: f64,
    /// No division has a larger sum.
    pub bound: f64,
    /// The most that a GPU more of each kind is worth, in the bound.
    pub prices: Vec<f64>,
    /// Whether no division has a larger sum than this one.
    pub exact: bool,
}

impl Options<'_> {
    fn jobs(&self) -> usize {
        self.wait.len()
    }

    fn of(&self, job: usize) -> std::ops::Range<usize> {
        self.offsets[job]..self.offsets[job + 1]
    }

    /// Value, kind and GPUs of a choice.
    fn at(&self, job: usize, choice: Option<usize>) -> (f64, usize, u64) {
        choice.map_or((self.wait[job], 0, 0), |option| {
            (self.value[option], self.kind[option] as usize, self.gpus[option])
        })
    }

    /// The value of a choice less the price of its GPUs.
    fn worth(&self, job: usize, choice: Option<usize>, prices: &[f64]) -> f64 {
        let (value, kind, gpus) = self.at(job, choice);
        if gpus == 0 { value } else { value - prices[kind] * gpus as f64 }
    }

    /// Every choice of a job: to wait, and its options.
    fn choices(&self, job: usize) -> impl Iterator<Item = Option<usize>> {
        std::iter::once(None).chain(self.of(job).map(Some))
    }

    fn sum(&self, choice: &[Option<usize>]) -> f64 {
        choice.iter().enumerate().map(|(job, &choice)| self.at(job, choice).0).sum()
    }

    /// GPUs of each kind that a division leaves; below 0 where it takes more than there are.
    fn free(&self, choice: &[Option<usize>]) -> Vec<i64> {
        let mut free: Vec<i64> = self.capacity.iter().map(|gpus| gpus.cast_signed()).collect();
        for &option in choice.iter().flatten() {
            free[self.kind[option] as usize] -= self.gpus[option].cast_signed();
        }
        free
    }
}

/// Divides the pool, on the calling thread: the same division for the same options.
#[must_use]
pub fn divide(options: &Options<'_>) -> Division {
    let bids = Bids::of(options);
    let (prices, bound) = bids.least_bound();
    let mut choice = greedy::divide(options, bids.choices(&prices), &prices);
    let mut value = options.sum(&choice);
    let mut exact = bound - value <= rounding(bound);
    if !exact && let Some(better) = table::divide(options, &prices, bound - value) {
        let sum = options.sum(&better);
        if sum > value {
            (choice, value) = (better, sum);
        }
        exact = true;
    }
    Division { choice, value, bound: bound.max(value), prices, exact }
}

/// The rounding error of a sum of values.
fn rounding(sum: f64) -> f64 {
    1e-12 * sum.abs().max(f64::MIN_POSITIVE)
}
