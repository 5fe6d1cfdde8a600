//! The effective batch under a cap that works at the most GPU counts, exactly.
//!
//! A replica count d works at a batch B when some allowed micro-batch m makes d·m a divisor of B. The gain of a
//! batch, the summed weight of the counts that work, never falls when the batch is multiplied: that gives each of the
//! three ways to search its shape. Which is taken is a matter of time alone.

mod answers;
mod divisors;
mod primes;
mod problem;
mod question;
mod search;
mod sieve;
mod table;
#[cfg(test)]
mod tests;

use rayon::prelude::*;

pub use answers::{Answers, split};
use problem::{Problem, Scratch};
use question::{Lists, Stride};
use table::{Key, Table, tables_for};

/// The largest GPU count accepted: counts are factored with a table of primes up to here.
pub const MAX_GPUS: u64 = 1 << 20;
/// The most micro-batches of which none divides another: each takes a bit of a mask.
pub const MAX_PRIMITIVE: usize = 64;
/// Totals closer than this, relatively, are equal: weights are reals, summed in any order.
const TOLERANCE: f64 = 1e-12;
/// Configurations that one thread answers at a time.
const PART: usize = 64;
/// Room for this many counts of each is made at first,
const COUNTS: usize = 48;
/// and of so many configurations at most.
const MOST_ROOM: usize = 1 << 12;

/// A light configuration takes as long as so many samples of the cap,
const LIGHT_BATCH: u64 = 1 << 10;
/// and so many take about a millisecond.
const LIGHT_WORK: u64 = 1 << 23;

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

/// Finds for each configuration the batch that works at the most counts (or the greatest weight of counts), exactly, on
/// the threads of the rayon pool that it is called in, else on the caller's.
///
/// A count works where the model-parallel size divides it, it fills whole nodes (if asked), and the batch is a
/// multiple of its replicas times one of the micro-batches.
///
/// # Panics
/// If a value is zero, a count exceeds [`MAX_GPUS`], or more than [`MAX_PRIMITIVE`] micro-batches are such that
/// none divides another: callers check these.
#[must_use]
pub fn elastic(configs: &[Config]) -> Answers {
    let tables = tables_for(configs);
    let answers = |(lists, scratch): &mut (Lists, Scratch), part: &[Config]| {
        let mut found = Answers::with_room(part.len().min(MOST_ROOM) * COUNTS);
        // Neighbours often share their counts.
        let mut last: Option<(Key, Option<&Table>)> = None;
        for config in part {
            let stride = Stride::of(config);
            let key = Table::key(config, stride);
            let table = match last {
                Some((known, table)) if known == key => table,
                _ => tables.get(&key),
            };
            last = Some((key, table));
            let solve = |problem: &Problem| {
                let known = table.and_then(|table| table.solve(problem, &mut scratch.sets));
                known.unwrap_or_else(|| problem.solve(scratch))
            };
            lists.answer(config, stride, solve, &mut found);
        }
        found
    };
    if !in_pool() {
        return answers(&mut <_>::default(), configs);
    }
    let parts: Vec<Answers> = configs.par_chunks(PART).map_init(Default::default, answers).collect();
    Answers::join(&parts)
}

/// Whether waking other threads would take longer than answering.
#[must_use]
pub fn is_light(configs: &[Config]) -> bool {
    let same = |config: &Config| match (config.gpus, configs[0].gpus) {
        (Counts::Range(lo, hi), Counts::Range(first, last)) => (lo, hi) == (first, last),
        _ => false,
    };
    let work: u64 = configs.iter().map(|config| config.max_batch + LIGHT_BATCH).sum();
    configs.len() == 1 || (work < LIGHT_WORK && configs.iter().all(same))
}

fn in_pool() -> bool {
    rayon::current_thread_index().is_some()
}

fn index(n: u64) -> usize {
    usize::try_from(n).expect("a count that was checked fits in memory")
}
