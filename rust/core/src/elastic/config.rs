//! What is asked.
use crate::numbers;

/// The largest GPU count accepted: counts are factored with a table of primes up to here.
pub const MAX_GPUS: u64 = numbers::MOST;
/// The most micro-batches of which none divides another: each takes a bit of a mask.
pub const MAX_PRIMITIVE: usize = 64;

/// The GPU counts of one question.
#[derive(Clone, Copy, Debug)]
pub enum Counts<'a> {
    /// Every count from the first to the second, each with weight 1.
    Range(u64, u64),
    /// These distinct counts with these weights (not negative, finite); none means 1 each.
    List(&'a [u64], Option<&'a [f64]>),
}

/// One question: which batch under the cap works at the most counts.
#[derive(Clone, Copy, Debug)]
pub struct Config<'a> {
    /// No batch above this.
    pub max_batch: u64,
    /// Samples per replica per pass that are allowed, at least one, each at least 1.
    pub micro_batches: &'a [u64],
    /// GPU counts to serve, from 1 to [`MAX_GPUS`].
    pub gpus: Counts<'a>,
    /// GPUs that hold one replica.
    pub model_parallel: u64,
    /// Where given, only counts of whole nodes work.
    pub gpus_per_node: Option<u64>,
    /// Of equally good batches the largest; otherwise the smallest.
    pub prefer_larger: bool,
}
