//! The effective batch under a cap that works at the most GPU counts, exactly.
//!
//! A count works at a batch that is a multiple of its replicas times an allowed micro-batch, so that a batch has at most as
//! many counts as divisors. Where this leaves few batches that could be better than one at hand, each of these is tried.
//! Otherwise every batch's counts are marked, multiple by multiple, a segment of batches at a time, and the best is read off.

use std::sync::atomic::{AtomicBool, Ordering};

use rayon::prelude::*;

use crate::numbers::{gcd, index, lcm};

mod divisors;

/// The largest GPU count, and micro-batch, accepted.
pub const MAX_GPUS: u64 = 1 << 20;
/// The largest cap accepted: each batch up to it may be looked at.
pub const MAX_CAP: u64 = 1 << 26;

/// Totals closer than this, relatively, are equal: weights are reals, summed in any order.
const TOLERANCE: f64 = 1e-12;
/// Batches in a segment, which then stay in a core's cache, at least;
const SEGMENT: usize = 1 << 14;
/// and at most, where there are as many counts.
const MAX_SEGMENT: usize = 1 << 22;
/// Where one batch in so many could be the best, or fewer, each of these is tried by itself.
const RARE: u64 = 32;
/// Caps, in units, below which marking takes less time than looking for fewer.
const SMALL: u64 = 1 << 12;
/// Sets of micro-batches that are told apart, at most.
const MAX_SETS: usize = 64;
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
    /// Counts in strides of this many GPUs, ascending, with their weights.
    counts: Vec<(u64, f64)>,
    /// The greatest weight of 0, 1, 2 … counts; empty where each has weight 1.
    greatest: Vec<f64>,
    stride: u64,
    prefer_larger: bool,
}

/// Of every batch of a segment: its weight so far, and the count that was marked last. And the divisors of one batch.
#[derive(Default)]
struct Sieve {
    sums: Vec<f64>,
    last: Vec<u64>,
    divisors: Vec<u64>,
}

/// The batches that are multiples of some micro-batches and of no others: among the multiples of `base`.
struct Set {
    base: u64,
    /// Divisors of the base that are counts where this is the batch. A multiple has at most so many times its factor's.
    width: u64,
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
        let mut greatest = vec![];
        if let Counts::List(_, Some(_)) = config.gpus {
            let mut weights: Vec<f64> = counts.iter().map(|(_, weight)| *weight).collect();
            weights.sort_unstable_by(|a, b| b.total_cmp(a));
            greatest.push(0.0);
            greatest.extend(weights.iter().scan(0.0, |sum, weight| {
                *sum += weight;
                Some(*sum)
            }));
        }
        Question { cap, unit, micros, counts, greatest, stride, prefer_larger: config.prefer_larger }
    }

    fn works(&self, batch: u64, j: u64) -> bool {
        self.micros.iter().any(|m| batch.is_multiple_of(j * m))
    }

    /// The count's weight, if it is asked for.
    fn weight(&self, j: u64) -> Option<f64> {
        let (first, last) = (self.counts.first()?.0, self.counts.last()?.0);
        if j < first || j > last {
            return None;
        }
        // Counts are distinct: this one's place is at most its distance from the first, and that where none is left out.
        let end = index(j - first).min(self.counts.len() - 1);
        let at = if self.counts[end].0 == j {
            end
        } else {
            self.counts[..end].binary_search_by_key(&j, |(count, _)| *count).ok()?
        };
        Some(self.counts[at].1)
    }

    /// The weight of all counts that work at a batch.
    fn total(&self, batch: u64, divisors: &mut Vec<u64>) -> f64 {
        divisors::list(batch, divisors);
        let works = |j: &u64| self.weight(*j).filter(|_| self.works(batch, *j));
        divisors.iter().filter_map(works).sum()
    }

    /// Whether so many counts could be as good as a weight.
    fn could_reach(&self, counts: u64, weight: f64) -> bool {
        let greatest = if self.greatest.is_empty() {
            counts.min(self.counts.len() as u64) as f64
        } else {
            self.greatest[self.greatest.len().min(index(counts) + 1) - 1]
        };
        greatest >= weight * (1.0 - TOLERANCE)
    }

    /// The sets of micro-batches that share a batch up to the cap.
    fn sets(&self, divisors: &mut Vec<u64>) -> Vec<Set> {
        let mut bases = vec![];
        for &m in self.micros.iter().take_while(|m| **m <= self.cap) {
            let shared = bases.iter().map(|base| lcm(*base, m)).filter(|base| *base <= self.cap);
            bases = bases.iter().copied().chain(shared.collect::<Vec<_>>()).chain([m]).collect();
            bases.sort_unstable();
            bases.dedup();
            if bases.len() > MAX_SETS {
                return vec![Set { base: 1, width: 1 }];
            }
        }
        let width = |base: u64| {
            divisors::list(base, divisors);
            divisors.iter().filter(|x| self.works(base, **x)).count() as u64
        };
        let widths: Vec<u64> = bases.iter().copied().map(width).collect();
        bases.into_iter().zip(widths).map(|(base, width)| Set { base, width }).collect()
    }

    fn is_better(&self, (batch, total): (u64, f64), than: (u64, f64)) -> bool {
        total > than.1 * (1.0 + TOLERANCE)
            || total >= than.1 * (1.0 - TOLERANCE) && (batch > than.0) == self.prefer_larger
    }

    /// The best batch, and its weight, if few could be: those with enough divisors.
    fn search(&self, divisors: &mut Vec<u64>, stop: &AtomicBool) -> Option<(u64, f64)> {
        let mut best = (0, 0.0);
        let mut sets = self.sets(divisors);
        // Counts that work are divisors of the batch; and those of the base times those of the factor have as many products.
        let all = divisors::record(self.cap).1;
        let most = |set: &Set| all.min(set.width * divisors::record(self.cap / set.base).1);
        sets.sort_by_cached_key(|set| std::cmp::Reverse(most(set)));
        for set in &sets {
            if self.could_reach(most(set), best.1) {
                let batch = set.base * divisors::record(self.cap / set.base).0;
                let found = (batch, self.total(batch, divisors));
                best = if self.is_better(found, best) { found } else { best };
            }
        }
        sets.retain(|set| self.could_reach(most(set), best.1));
        let shared = divisors::shared(self.cap, |divisors| self.could_reach(divisors, best.1));
        let stride = |set: &Set| {
            let enough = |divisors| self.could_reach(set.width * divisors, best.1);
            lcm(shared, set.base * divisors::shared(self.cap / set.base, enough))
        };
        let strides: Vec<u64> = sets.iter().map(stride).collect();
        if strides.iter().map(|stride| self.cap / stride).sum::<u64>() > self.cap / RARE {
            return None;
        }
        for (set, stride) in sets.iter().zip(strides) {
            for batch in (self.least() / stride + 1..=self.cap / stride).map(|factor| factor * stride) {
                if stop.load(Ordering::Relaxed) {
                    break;
                }
                if self.could_reach(divisors::count(batch), best.1)
                    && self.could_reach(set.width * divisors::count(batch / set.base), best.1)
                {
                    let found = (batch, self.total(batch, divisors));
                    best = if self.is_better(found, best) { found } else { best };
                }
            }
        }
        Some(best)
    }

    /// What a best batch is above: one up to half the cap can be doubled without loss, so that the largest is above half.
    fn least(&self) -> u64 {
        if self.prefer_larger { self.cap / 2 } else { 0 }
    }

    /// The best batch, and its weight, of all.
    fn sieve(&self, sieve: &mut Sieve, stop: &AtomicBool) -> (u64, f64) {
        let mut from = self.least();
        let length = self.counts.len().clamp(SEGMENT, MAX_SEGMENT) as u64;
        let mut best = (0, 0.0);
        while from < self.cap && !stop.load(Ordering::Relaxed) {
            let end = self.cap.min(from + length);
            self.mark(sieve, from, end);
            let most = sieve.sums.iter().copied().fold(0.0, f64::max);
            // Most segments have none that is as good.
            if most > 0.0 && most >= best.1 * (1.0 - TOLERANCE) {
                let mut equal = sieve.sums.iter().map(|total| *total >= most * (1.0 - TOLERANCE));
                let at = if self.prefer_larger { equal.rposition(|is| is) } else { equal.position(|is| is) };
                let found = (from + 1 + at.expect("the best is among them") as u64, most);
                best = if self.is_better(found, best) { found } else { best };
            }
            from = end;
        }
        best
    }

    fn answer(&self, sieve: &mut Sieve, stop: &AtomicBool) -> Answer {
        if self.counts.is_empty() {
            return Answer::default();
        }
        let searched = if self.cap < SMALL { None } else { self.search(&mut sieve.divisors, stop) };
        let (batch, _) = searched.unwrap_or_else(|| self.sieve(sieve, stop));
        if batch == 0 {
            return Answer::default(); // Stopped.
        }
        divisors::list(batch, &mut sieve.divisors);
        sieve.divisors.sort_unstable();
        let works = |&j: &u64| Some((j * self.stride, self.weight(j).filter(|_| self.works(batch, j))?));
        let (gpus, weights): (Vec<u64>, Vec<f64>) = sieve.divisors.iter().filter_map(works).unzip();
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
