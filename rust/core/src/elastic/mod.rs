//! The effective batch under a cap that works at the most GPU counts, exactly.
//!
//! A replica count d works at a batch B when some allowed micro-batch m makes d·m a divisor of B. The gain of a
//! batch, the summed weight of the counts that work, never falls when the batch is multiplied: that gives each of the
//! three ways to search its shape. Which is taken is a matter of time alone.

mod primes;
mod search;
mod sieve;
mod table;

use rayon::prelude::*;

use primes::{gcd, lcm, primes};
use search::Level;
use table::{Table, tables_for};

/// The largest GPU count accepted: counts are factored with a table of primes up to here.
pub const MAX_GPUS: u64 = 1 << 20;
/// The most micro-batches of which none divides another: each takes a bit of a mask.
pub const MAX_PRIMITIVE: usize = 64;
/// Totals closer than this, relatively, are equal: weights are reals, summed in any order.
const TOLERANCE: f64 = 1e-12;
/// Above this many marks per micro-batch the sieve is slower than the search.
const SIEVE_MARKS: f64 = 4_000.0;

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

/// A GPU count that works, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Split {
    /// The GPU count.
    pub gpus: u64,
    /// Samples per replica per pass: the largest allowed that works.
    pub micro_batch: u64,
    /// Passes per optimizer step.
    pub accumulation: u64,
}

/// The answer to a [`Config`].
#[derive(Clone, Debug, PartialEq)]
pub struct Elastic {
    /// The best batch; none where no allowed batch works at any count.
    pub effective_batch: Option<u64>,
    /// Summed weight of the counts that work.
    pub weight: f64,
    /// The counts that work, ascending.
    pub splits: Vec<Split>,
}

/// Buffers that a caller with many questions keeps between them.
#[derive(Debug, Default)]
pub struct Scratch {
    sums: Vec<f64>,
    stamps: Vec<u64>,
    table: Vec<f64>,
    levels: Vec<Level>,
    tops: Vec<f64>,
}

/// Finds the batch that works at the most counts (or the greatest weight of counts), exactly.
///
/// A count works where the model-parallel size divides it, it fills whole nodes (if asked), and the batch is a
/// multiple of its replicas times one of the micro-batches.
///
/// # Panics
/// If a value is zero, a count exceeds [`MAX_GPUS`], or more than [`MAX_PRIMITIVE`] micro-batches are such that
/// none divides another: callers check these.
#[must_use]
pub fn elastic(config: &Config, scratch: &mut Scratch) -> Elastic {
    #[allow(clippy::redundant_closure_for_method_calls, reason = "the method itself is not general enough")]
    elastic_by(config, scratch, |problem, scratch| problem.solve(scratch))
}

/// [`elastic`] for many configurations, on the threads of the current rayon pool.
///
/// # Panics
/// As [`elastic`].
#[must_use]
pub fn elastic_many(configs: &[Config]) -> Vec<Elastic> {
    let tables = tables_for(configs);
    let answer = |scratch: &mut Scratch, config: &Config| {
        let table = tables.get(&Table::key(config));
        elastic_by(config, scratch, |problem, scratch| {
            table.and_then(|table| table.solve(problem)).unwrap_or_else(|| problem.solve(scratch))
        })
    };
    configs.par_iter().map_init(Scratch::default, answer).collect()
}

fn elastic_by(
    config: &Config,
    scratch: &mut Scratch,
    solve: impl FnOnce(&Problem, &mut Scratch) -> Best,
) -> Elastic {
    // Counts are unit × j: the unit is pushed into the micro-batches, so that one j is one step of the counts.
    let unit = lcm(config.model_parallel, config.gpus_per_node.unwrap_or(1));
    let replicas = unit / config.model_parallel;
    let mut micros: Vec<u64> = config.micro_batches.iter().map(|m| m * replicas).collect();
    micros.sort_unstable();
    micros.dedup();
    let mut primitive: Vec<u64> = Vec::with_capacity(micros.len());
    for &m in &micros {
        if !primitive.iter().any(|p| m % p == 0) {
            primitive.push(m);
        }
    }
    assert!(primitive.len() <= MAX_PRIMITIVE, "too many micro-batches that do not divide one another");
    primitive.retain(|&m| m <= config.max_batch);
    let nothing = Elastic { effective_batch: None, weight: 0.0, splits: Vec::new() };
    let Some(&smallest) = primitive.first() else { return nothing };
    let most = config.max_batch / smallest;
    // What all micro-batches share is in every batch: the search need not look for it.
    let shared = primitive.iter().copied().reduce(gcd).unwrap_or(1);
    for m in &mut primitive {
        *m /= shared;
    }
    let mut table = std::mem::take(&mut scratch.table);
    let (lo, hi) = match config.gpus {
        Counts::Range(lo, hi) => (lo.div_ceil(unit), (hi / unit).min(most)),
        Counts::List(gpus, weights) => fill_table(&mut table, gpus, weights, unit, most),
    };
    if lo > hi {
        scratch.table = table;
        return nothing;
    }
    let table_used = matches!(config.gpus, Counts::List(..));
    let problem = Problem {
        cap: config.max_batch / shared,
        micros: &primitive,
        lo,
        hi,
        weights: table_used.then_some(table.as_slice()),
        prefer_larger: config.prefer_larger,
    };
    let best = solve(&problem, scratch);
    let found = if best.total > 0.0 {
        let batch = best.batch * shared;
        let split = |j| {
            let micro =
                micros.iter().rev().find(|&&m| batch.is_multiple_of(j * m)).expect("a count that works");
            Split { gpus: j * unit, micro_batch: micro / replicas, accumulation: batch / (j * micro) }
        };
        let splits = problem.working(best.batch).into_iter().map(split).collect();
        Elastic { effective_batch: Some(batch), weight: best.total, splits }
    } else {
        nothing
    };
    scratch.table = table;
    found
}

/// Writes the weight of every j into the table; returns the first and last j that have one.
fn fill_table(
    table: &mut Vec<f64>,
    gpus: &[u64],
    weights: Option<&[f64]>,
    unit: u64,
    most: u64,
) -> (u64, u64) {
    table.clear();
    let (mut lo, mut hi) = (u64::MAX, 0);
    for (i, &g) in gpus.iter().enumerate() {
        let (j, weight) = (g / unit, weights.map_or(1.0, |w| w[i]));
        if g % unit == 0 && j <= most && weight > 0.0 {
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

#[derive(Clone, Copy)]
struct Best {
    total: f64,
    batch: u64,
}

/// The question in its plainest form: counts j from lo to hi, j works at B when some j·m divides B.
struct Problem<'a> {
    cap: u64,
    micros: &'a [u64],
    lo: u64,
    hi: u64,
    weights: Option<&'a [f64]>,
    prefer_larger: bool,
}

impl Problem<'_> {
    fn solve(&self, scratch: &mut Scratch) -> Best {
        let span = (self.hi as f64 / self.lo as f64).ln() + 1.0 / self.lo as f64;
        let per_batch: f64 = self.micros.iter().map(|&m| span / m as f64).sum();
        let marks = self.cap as f64 * (per_batch + 1.0);
        if marks <= SIEVE_MARKS * self.micros.len() as f64 {
            self.sieve(scratch)
        } else {
            self.search(scratch)
        }
    }

    fn weight(&self, j: u64) -> f64 {
        match self.weights {
            None => f64::from(u8::from(self.lo <= j && j <= self.hi)),
            Some(w) => w.get(index(j)).copied().unwrap_or(0.0),
        }
    }

    fn better(&self, a: Best, b: Best) -> bool {
        let slack = TOLERANCE * b.total;
        a.total > b.total + slack || (a.total >= b.total - slack && (a.batch > b.batch) == self.prefer_larger)
    }

    /// The counts that work at a batch, ascending: divisors of batch/m between lo and hi.
    fn working(&self, batch: u64) -> Vec<u64> {
        let mut counts: Vec<u64> = Vec::new();
        for m in self.micros.iter().filter(|&&m| batch.is_multiple_of(m)) {
            let start = counts.len();
            counts.push(1);
            let mut rest = batch / m;
            for &p in primes() {
                // A prime above the largest count is in no count; a rest below p² is prime.
                if rest == 1 || p > self.hi {
                    break;
                }
                let p = if p * p > rest { rest } else { p };
                let known = counts.len();
                let mut power = 1;
                while rest.is_multiple_of(p) {
                    rest /= p;
                    power *= p;
                    if power <= self.hi {
                        for i in start..known {
                            let divisor = counts[i] * power;
                            if divisor <= self.hi {
                                counts.push(divisor);
                            }
                        }
                    }
                }
            }
        }
        counts.retain(|&j| self.weight(j) > 0.0);
        counts.sort_unstable();
        counts.dedup();
        counts
    }
}

fn index(n: u64) -> usize {
    usize::try_from(n).expect("a count that was checked fits in memory")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Every batch, every count, every micro-batch: slow and obvious.
    fn brute(config: &Config) -> (f64, Option<u64>) {
        let mut best = (0.0, None);
        for batch in 1..=config.max_batch {
            let works = |g: u64| {
                g.is_multiple_of(config.model_parallel)
                    && g.is_multiple_of(config.gpus_per_node.unwrap_or(1))
                    && config
                        .micro_batches
                        .iter()
                        .any(|m| batch.is_multiple_of(g / config.model_parallel * m))
            };
            let total: f64 = match config.gpus {
                Counts::Range(lo, hi) => (lo..=hi).filter(|&g| works(g)).count() as f64,
                Counts::List(gpus, weights) => {
                    let weight = |i: usize| weights.map_or(1.0, |w| w[i]);
                    (0..gpus.len()).filter(|&i| works(gpus[i])).map(weight).sum()
                }
            };
            if total > best.0 + 1e-9 || (total > 0.0 && total > best.0 - 1e-9 && config.prefer_larger) {
                best = (total, Some(batch));
            }
        }
        best
    }

    #[allow(
        clippy::redundant_closure_for_method_calls,
        reason = "the methods themselves are not general enough"
    )]
    /// Every way answers, whichever the size would choose.
    fn every_way(config: &Config) -> Vec<Elastic> {
        let mut scratch = Scratch::default();
        let mut found = vec![
            elastic_by(config, &mut scratch, |problem, scratch| problem.sieve(scratch)),
            elastic_by(config, &mut scratch, |problem, scratch| problem.search(scratch)),
        ];
        found.extend(elastic_many(&[*config; 8]));
        found
    }

    fn counts() -> impl Strategy<Value = Vec<(u64, f64)>> {
        prop::collection::btree_map(1_u64..200, 0.0..3.0_f64, 1..20).prop_map(|m| m.into_iter().collect())
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(1500))]
        #[test]
        fn as_good_as_trying_everything(
            max_batch in 1_u64..1500,
            micro_batches in prop::collection::vec(1_u64..40, 1..5),
            listed in prop::option::of(counts()),
            weighted: bool,
            (lo, width) in (1_u64..60, 0_u64..150),
            model_parallel in 1_u64..4,
            gpus_per_node in prop::option::of(1_u64..9),
            prefer_larger: bool,
        ) {
            let (gpus, weights): (Vec<u64>, Vec<f64>) = listed.clone().unwrap_or_default().into_iter().unzip();
            let gpus = match listed {
                None => Counts::Range(lo, lo + width),
                Some(_) => Counts::List(&gpus, weighted.then_some(&weights)),
            };
            let config =
                Config { max_batch, micro_batches: &micro_batches, gpus, model_parallel, gpus_per_node, prefer_larger };
            let (total, batch) = brute(&config);
            for found in every_way(&config) {
                prop_assert!((found.weight - total).abs() < 1e-9, "{found:?} {total}");
                prop_assert_eq!(found.effective_batch, batch);
                for split in found.splits {
                    let replicas = split.gpus / model_parallel;
                    prop_assert_eq!(Some(replicas * split.micro_batch * split.accumulation), batch);
                }
            }
        }
    }

    #[test]
    fn highly_composite_where_every_count_is_wanted() {
        let config = Config {
            max_batch: 1_000_000,
            micro_batches: &[1],
            gpus: Counts::Range(1, MAX_GPUS),
            model_parallel: 1,
            gpus_per_node: None,
            prefer_larger: false,
        };
        let found = elastic(&config, &mut Scratch::default());
        assert_eq!((found.effective_batch, found.splits.len()), (Some(720_720), 240));
    }

    #[test]
    fn the_largest_batches_end() {
        let config = Config {
            max_batch: 1 << 40,
            micro_batches: &[3, 4, 7],
            gpus: Counts::Range(1, 1024),
            model_parallel: 2,
            gpus_per_node: Some(8),
            prefer_larger: true,
        };
        let found = elastic(&config, &mut Scratch::default());
        assert_eq!(found.splits.len(), 84);
    }
}
