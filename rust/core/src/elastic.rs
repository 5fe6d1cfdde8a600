//! The effective batch under a cap that works at the most GPU counts, exactly.
//!
//! A count works at a batch that is a multiple of its replicas times an allowed micro-batch. So every batch's counts are
//! marked, multiple by multiple, a segment of batches at a time, and the best is read off.

use std::sync::atomic::{AtomicBool, Ordering};

use rayon::prelude::*;

use crate::numbers::{gcd, index, lcm};

/// The largest GPU count, and micro-batch, accepted.
pub const MAX_GPUS: u64 = 1 << 20;
/// The largest cap accepted: each batch up to it is looked at.
pub const MAX_CAP: u64 = 1 << 26;

/// Totals closer than this, relatively, are equal: weights are reals, summed in any order.
const TOLERANCE: f64 = 1e-12;
/// Batches in a segment, which then stay in a core's cache, at least;
const SEGMENT: usize = 1 << 14;
/// and at most, where there are as many counts.
const MAX_SEGMENT: usize = 1 << 22;
/// Configurations that one thread answers at a time.
const PART: usize = 16;
/// Samples of the caps that take about a millisecond: waking other threads for fewer would take longer.
const LIGHT: u64 = 1 << 18;

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
    /// No batch above this, which is at most [`MAX_CAP`].
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

/// Answers to [`Config`]s, as columns: one value each in `batch` and `weight`, and for every GPU count that works one in `gpus`
/// (ascending).
#[derive(Clone, Debug, PartialEq)]
pub struct Answers {
    /// The best batch; 0 where no allowed batch works at any count.
    pub batch: Vec<u64>,
    /// Summed weight of the counts that work.
    pub weight: Vec<f64>,
    /// Where each answer's counts begin in `gpus`, and where the last one's end.
    pub offsets: Vec<u64>,
    /// The GPU counts that work.
    pub gpus: Vec<u64>,
}

/// Whether waking other threads would take longer than answering.
#[must_use]
pub fn is_light(configs: &[Config]) -> bool {
    configs.iter().map(|config| config.max_batch).sum::<u64>() < LIGHT
}

/// Finds for each configuration the batch that works at the most counts (or the greatest weight of counts), on the threads of
/// the rayon pool that it is called in, else on the caller's.
///
/// A count works where the model-parallel size divides it, it fills whole nodes (if asked), and the batch is a multiple of its
/// replicas times one of the micro-batches. Once `stop` is set, what is not yet looked at is left out.
#[must_use]
pub fn elastic(configs: &[Config], stop: &AtomicBool) -> Answers {
    let answer = |sieve: &mut Sieve, config: &Config| {
        if stop.load(Ordering::Relaxed) {
            Answer::default()
        } else {
            Question::of(config).answer(sieve, stop)
        }
    };
    let found: Vec<Answer> = if rayon::current_thread_index().is_some() {
        configs.par_iter().with_min_len(PART).map_init(Sieve::default, answer).collect()
    } else {
        let mut sieve = Sieve::default();
        configs.iter().map(|config| answer(&mut sieve, config)).collect()
    };
    let mut all = Answers { batch: vec![], weight: vec![], offsets: vec![0], gpus: vec![] };
    for answer in found {
        all.batch.push(answer.batch);
        all.weight.push(answer.weight);
        all.gpus.extend(answer.gpus);
        all.offsets.push(all.gpus.len() as u64);
    }
    all
}

/// Samples per replica per pass, the largest of the micro-batches that works, and passes per optimizer step; none where
/// none works.
#[must_use]
pub fn split(batch: u64, replicas: u64, micro_batches: &[u64]) -> Option<(u64, u64)> {
    if !batch.is_multiple_of(replicas) {
        return None;
    }
    let share = batch / replicas;
    let micro = micro_batches.iter().copied().filter(|&m| share.is_multiple_of(m)).max()?;
    Some((micro, share / micro))
}

#[derive(Default)]
struct Answer {
    batch: u64,
    weight: f64,
    gpus: Vec<u64>,
}

/// A question in its plainest form: count j works at a batch where some j·m divides it.
struct Question {
    /// In units, of which each batch has whole ones.
    cap: u64,
    unit: u64,
    /// Ascending, none divides another.
    micros: Vec<u64>,
    /// Counts in strides of so many GPUs, ascending, with their weights.
    counts: Vec<(u64, f64)>,
    stride: u64,
    prefer_larger: bool,
}

/// Of every batch of a segment: its weight so far, and the count that was marked last.
#[derive(Default)]
struct Sieve {
    sums: Vec<f64>,
    last: Vec<u64>,
}

impl Question {
    fn of(config: &Config) -> Question {
        let stride = lcm(config.model_parallel, config.gpus_per_node.unwrap_or(1));
        // The replicas of a stride are pushed into the micro-batches, and what these share is in every batch.
        let mut all: Vec<u64> =
            config.micro_batches.iter().map(|m| m * (stride / config.model_parallel)).collect();
        all.sort_unstable();
        let unit = all.iter().copied().reduce(gcd).expect("a micro-batch");
        let mut micros: Vec<u64> = vec![];
        for m in all.into_iter().map(|m| m / unit) {
            if micros.iter().all(|smaller| !m.is_multiple_of(*smaller)) {
                micros.push(m);
            }
        }
        let cap = config.max_batch / unit;
        let fits = |j: &u64| j * micros[0] <= cap;
        let counts = match config.gpus {
            Counts::Range(first, last) => {
                let range = first.div_ceil(stride)..=last / stride;
                range.take_while(fits).map(|j| (j, 1.0)).collect()
            }
            Counts::List(gpus, weights) => {
                let weight = |i: usize| weights.map_or(1.0, |weights| weights[i]);
                let whole = gpus.iter().enumerate().filter(|(_, gpus)| gpus.is_multiple_of(stride));
                let pairs = whole.map(|(i, gpus)| (gpus / stride, weight(i)));
                let mut counts: Vec<_> = pairs.filter(|(j, weight)| fits(j) && *weight > 0.0).collect();
                counts.sort_unstable_by_key(|(j, _)| *j);
                counts
            }
        };
        Question { cap, unit, micros, counts, stride, prefer_larger: config.prefer_larger }
    }

    fn works(&self, batch: u64, j: u64) -> bool {
        self.micros.iter().any(|m| batch.is_multiple_of(j * m))
    }

    fn answer(&self, sieve: &mut Sieve, stop: &AtomicBool) -> Answer {
        // A batch up to half the cap can be doubled without loss, so that the largest best one is above half.
        let mut from = if self.prefer_larger { self.cap / 2 } else { 0 };
        let length = self.counts.len().clamp(SEGMENT, MAX_SEGMENT) as u64;
        let (mut batch, mut most) = (0, 0.0);
        while from < self.cap && !self.counts.is_empty() && !stop.load(Ordering::Relaxed) {
            let end = self.cap.min(from + length);
            self.mark(sieve, from, end);
            let best = sieve.sums.iter().copied().fold(0.0, f64::max);
            // The last segment may tie, and then has the larger batch.
            let least = if self.prefer_larger { most * (1.0 - TOLERANCE) } else { most * (1.0 + TOLERANCE) };
            if best > 0.0 && (best > least || self.prefer_larger && best >= least) {
                let mut equal = sieve.sums.iter().map(|total| *total >= best * (1.0 - TOLERANCE));
                let at = if self.prefer_larger { equal.rposition(|is| is) } else { equal.position(|is| is) };
                batch = from + 1 + at.expect("the best is among them") as u64;
                most = best;
            }
            from = end;
        }
        let working = self.counts.iter().filter(|(j, _)| batch > 0 && self.works(batch, *j));
        let (gpus, weights): (Vec<u64>, Vec<f64>) = working.map(|(j, w)| (j * self.stride, w)).unzip();
        Answer { batch: batch * self.unit, weight: weights.iter().sum(), gpus }
    }

    /// Adds up the weights of the counts at every batch above `from` and up to `end`.
    fn mark(&self, sieve: &mut Sieve, from: u64, end: u64) {
        let length = index(end - from);
        sieve.sums.clear();
        sieve.sums.resize(length, 0.0);
        sieve.last.clear();
        sieve.last.resize(if self.micros.len() > 1 { length } else { 0 }, 0);
        for &(j, weight) in &self.counts {
            for &m in &self.micros {
                let step = j * m;
                if step > end {
                    break;
                }
                let multiples = (index((from / step + 1) * step - from - 1)..length).step_by(index(step));
                if sieve.last.is_empty() {
                    multiples.for_each(|at| sieve.sums[at] += weight);
                } else {
                    for at in multiples {
                        if sieve.last[at] != j {
                            sieve.last[at] = j;
                            sieve.sums[at] += weight;
                        }
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
