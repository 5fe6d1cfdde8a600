//! Many questions, on many threads.

use std::sync::atomic::{AtomicBool, Ordering};

use rayon::prelude::*;

use super::answers::Answers;
use super::config::Config;
use super::divisor_counts::{DivisorCounts, Key, tables_for};
use super::problem::Problem;
use super::question::Lists;
use super::solve::Scratch;
use super::stride::Stride;
use super::threads::in_pool;

/// Configurations that one thread answers at a time.
const PART: usize = 64;
/// Room for this many counts of each is made at first,
const COUNTS: usize = 48;
/// and of so many configurations at most.
const MOST_ROOM: usize = 1 << 12;

/// Finds for each configuration the batch that works at the most counts (or the greatest weight of counts), exactly, on
/// the threads of the rayon pool that it is called in, else on the caller's.
///
/// A count works where the model-parallel size divides it, it fills whole nodes (if asked), and the batch is a
/// multiple of its replicas times one of the micro-batches.
///
/// Once `stop` is set, the configurations that are not yet begun are left out: each takes 0.1 s at most.
///
/// # Panics
/// If a value is zero, a count exceeds [`MAX_GPUS`](super::MAX_GPUS), or more than [`MAX_PRIMITIVE`](super::MAX_PRIMITIVE) micro-batches are such that
/// none divides another: callers check these.
#[must_use]
pub fn elastic(configs: &[Config], stop: &AtomicBool) -> Answers {
    let tables = tables_for(configs);
    let answers = |(lists, scratch): &mut (Lists, Scratch), part: &[Config]| {
        let mut found = Answers::with_room(part.len().min(MOST_ROOM) * COUNTS);
        // Neighbours often share their counts.
        let mut last: Option<(Key, Option<&DivisorCounts>)> = None;
        for config in part.iter().take_while(|_| !stop.load(Ordering::Relaxed)) {
            let stride = Stride::of(config);
            let key = DivisorCounts::key(config, stride);
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
