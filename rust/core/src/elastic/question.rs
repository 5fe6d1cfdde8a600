//! From a configuration to its problem, and from the best batch to each count's split.
use super::answers::Answers;
use super::config::{Config, Counts, MAX_PRIMITIVE};
use super::problem::{Best, Problem};
use super::stride::Stride;
use crate::numbers::{divisors, gcd, index};

/// The lists of one question, kept for the next.
#[derive(Default)]
pub(super) struct Lists {
    /// The micro-batches, each for one stride, ascending.
    micros: Vec<u64>,
    /// Those that no other divides.
    primitive: Vec<u64>,
    /// Those of these that divide the best batch, without what they share.
    working: Vec<u64>,
    /// Counts that may work at the best batch, in strides, and what each leaves.
    counts: Vec<(u64, u64)>,
    /// The weight of every count of strides.
    weights: Vec<f64>,
}

impl Lists {
    pub(super) fn answer(
        &mut self,
        config: &Config,
        stride: Stride,
        solve: impl FnOnce(&Problem) -> Best,
        answers: &mut Answers,
    ) {
        let (batch, weight) = self.best(config, stride, solve, answers).unwrap_or((0, 0.0));
        answers.close(batch, weight);
    }

    /// The best batch and its weight; its counts are written to the answers.
    fn best(
        &mut self,
        config: &Config,
        stride: Stride,
        solve: impl FnOnce(&Problem) -> Best,
        answers: &mut Answers,
    ) -> Option<(u64, f64)> {
        let Lists { micros, primitive, working, counts, weights } = self;
        micros.clear();
        micros.extend(config.micro_batches.iter().map(|m| m * stride.replicas));
        micros.sort_unstable();
        micros.dedup();
        primitive.clear();
        for &m in &*micros {
            if !primitive.iter().any(|p| m % p == 0) {
                primitive.push(m);
            }
        }
        assert!(primitive.len() <= MAX_PRIMITIVE, "too many micro-batches that do not divide one another");
        primitive.retain(|&m| m <= config.max_batch);
        let most = config.max_batch / primitive.first()?;
        let (lo, hi) = match config.gpus {
            Counts::Range(lo, hi) => (lo.div_ceil(stride.gpus), (hi / stride.gpus).min(most)),
            Counts::List(gpus, given) => fill_weights(weights, gpus, given, stride.gpus, most),
        };
        if lo > hi {
            return None;
        }
        let problem = Problem {
            cap: config.max_batch,
            micros: primitive,
            lo,
            hi,
            weights: matches!(config.gpus, Counts::List(..)).then_some(weights),
            prefer_larger: config.prefer_larger,
        };
        let best = solve(&problem);
        if best.total == 0.0 {
            return None;
        }
        working.clear();
        working.extend(primitive.iter().copied().filter(|&m| best.batch.is_multiple_of(m)));
        let shared = working.iter().copied().reduce(gcd).expect("a micro-batch that works");
        for m in working.iter_mut() {
            *m /= shared;
        }
        divisors(best.batch / shared, hi, counts);
        let works = |&(j, left): &(u64, u64)| {
            problem.weight(j) > 0.0 && working.iter().any(|&m| m == 1 || left.is_multiple_of(m))
        };
        answers.gpus.extend(counts.iter().filter(|pair| works(pair)).map(|(j, _)| j * stride.gpus));
        Some((best.batch, best.total))
    }
}

/// Writes the weight of every count of strides; returns the first and last that have one.
fn fill_weights(
    table: &mut Vec<f64>,
    gpus: &[u64],
    weights: Option<&[f64]>,
    stride: u64,
    most: u64,
) -> (u64, u64) {
    table.clear();
    let (mut lo, mut hi) = (u64::MAX, 0);
    for (i, &g) in gpus.iter().enumerate() {
        let (j, weight) = (g / stride, weights.map_or(1.0, |w| w[i]));
        if g % stride == 0 && j <= most && weight > 0.0 {
            lo = lo.min(j);
            hi = hi.max(j);
            if index(j) >= table.len() {
                table.resize(index(j) + 1, 0.0);
            }
            table[index(j)] = weight;
        }
    }
    (lo, hi)
}
