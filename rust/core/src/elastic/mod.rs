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
use table::{Key, Sets, Table, tables_for};

/// The largest GPU count accepted: counts are factored with a table of primes up to here.
pub const MAX_GPUS: u64 = 1 << 20;
/// The most micro-batches of which none divides another: each takes a bit of a mask.
pub const MAX_PRIMITIVE: usize = 64;
/// Totals closer than this, relatively, are equal: weights are reals, summed in any order.
const TOLERANCE: f64 = 1e-12;
/// Configurations that one thread answers at a time.
const PART: usize = 32;
/// Room for this many counts of each is made at first.
const COUNTS: usize = 48;
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

/// Answers to [`Config`]s, as columns: one value each in `batch` and `weight`, and for every GPU count that works one in
/// `gpus` (ascending), `micro_batch` and `accumulation`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Answers {
    /// The best batch; 0 where no allowed batch works at any count.
    pub batch: Vec<u64>,
    /// Summed weight of the counts that work.
    pub weight: Vec<f64>,
    /// Where each answer's counts end in the columns that follow.
    pub end: Vec<u64>,
    /// The GPU counts that work.
    pub gpus: Vec<u64>,
    /// Samples per replica per pass: the largest allowed that works.
    pub micro_batch: Vec<u64>,
    /// Passes per optimizer step.
    pub accumulation: Vec<u64>,
}

impl Answers {
    fn with_room(counts: usize) -> Answers {
        let column = || Vec::with_capacity(counts);
        Answers { gpus: column(), micro_batch: column(), accumulation: column(), ..Answers::default() }
    }

    fn close(&mut self, batch: u64, weight: f64) {
        self.batch.push(batch);
        self.weight.push(weight);
        self.end.push(self.gpus.len() as u64);
    }

    fn join(parts: &[Answers]) -> Answers {
        let mut all = Answers::with_room(parts.iter().map(|part| part.gpus.len()).sum());
        for part in parts {
            let before = all.gpus.len() as u64;
            all.batch.extend_from_slice(&part.batch);
            all.weight.extend_from_slice(&part.weight);
            all.end.extend(part.end.iter().map(|end| before + end));
            all.gpus.extend_from_slice(&part.gpus);
            all.micro_batch.extend_from_slice(&part.micro_batch);
            all.accumulation.extend_from_slice(&part.accumulation);
        }
        all
    }
}

/// Buffers that are kept between many questions.
#[derive(Default)]
struct Scratch {
    lists: Lists,
    sets: Sets,
    sums: Vec<f64>,
    stamps: Vec<u64>,
    levels: Vec<Level>,
    tops: Vec<f64>,
}

/// The lists of one question.
#[derive(Default)]
struct Lists {
    /// The micro-batches, each for one step of the counts, ascending.
    micros: Vec<u64>,
    /// Those that no other divides, without what all share.
    primitive: Vec<u64>,
    /// Micro-batches that divide the best batch, descending, and how often.
    shares: Vec<(u64, u64)>,
    /// Counts that work at the best batch.
    counts: Vec<u64>,
    /// The weight of every count.
    weights: Vec<f64>,
}

/// Finds for each configuration the batch that works at the most counts (or the greatest weight of counts), exactly, on
/// the threads of the current rayon pool where there are several.
///
/// A count works where the model-parallel size divides it, it fills whole nodes (if asked), and the batch is a
/// multiple of its replicas times one of the micro-batches.
///
/// # Panics
/// If a value is zero, a count exceeds [`MAX_GPUS`], or more than [`MAX_PRIMITIVE`] micro-batches are such that
/// none divides another: callers check these.
#[must_use]
pub fn elastic(configs: &[Config]) -> Answers {
    #[allow(clippy::redundant_closure_for_method_calls, reason = "the method itself is not general enough")]
    if let [config] = configs {
        let mut one = Answers::default();
        answer(config, &mut Scratch::default(), |problem, scratch| problem.solve(scratch), &mut one);
        return one;
    }
    let tables = tables_for(configs);
    let answers = |scratch: &mut Scratch, part: &[Config]| {
        let mut found = Answers::with_room(part.len() * COUNTS);
        // Neighbours often share their counts.
        let mut last: Option<(Key, Option<&Table>)> = None;
        for config in part {
            let key = Table::key(config);
            let table = match last {
                Some((known, table)) if known == key => table,
                _ => tables.get(&key),
            };
            last = Some((key, table));
            let solve = |problem: &Problem, scratch: &mut Scratch| {
                let known = table.and_then(|table| table.solve(problem, &mut scratch.sets));
                known.unwrap_or_else(|| problem.solve(scratch))
            };
            answer(config, scratch, solve, &mut found);
        }
        found
    };
    let parts: Vec<Answers> = configs.par_chunks(PART).map_init(Scratch::default, answers).collect();
    Answers::join(&parts)
}

fn answer(
    config: &Config,
    scratch: &mut Scratch,
    solve: impl FnOnce(&Problem, &mut Scratch) -> Best,
    answers: &mut Answers,
) {
    let mut lists = std::mem::take(&mut scratch.lists);
    let (batch, weight) = lists.answer(config, scratch, solve, answers).unwrap_or((0, 0.0));
    answers.close(batch, weight);
    scratch.lists = lists;
}

impl Lists {
    /// The best batch and its weight; its counts are written to the answers.
    fn answer(
        &mut self,
        config: &Config,
        scratch: &mut Scratch,
        solve: impl FnOnce(&Problem, &mut Scratch) -> Best,
        answers: &mut Answers,
    ) -> Option<(u64, f64)> {
        let Lists { micros, primitive, shares, counts, weights } = self;
        // Counts are unit × j: the unit is pushed into the micro-batches, so that one j is one step of the counts.
        let unit = lcm(config.model_parallel, config.gpus_per_node.unwrap_or(1));
        let replicas = unit / config.model_parallel;
        micros.clear();
        micros.extend(config.micro_batches.iter().map(|m| m * replicas));
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
        // What all micro-batches share is in every batch: the search need not look for it.
        let shared = primitive.iter().copied().reduce(gcd)?;
        for m in primitive.iter_mut() {
            *m /= shared;
        }
        let (lo, hi) = match config.gpus {
            Counts::Range(lo, hi) => (lo.div_ceil(unit), (hi / unit).min(most)),
            Counts::List(gpus, given) => fill_weights(weights, gpus, given, unit, most),
        };
        if lo > hi {
            return None;
        }
        let problem = Problem {
            cap: config.max_batch / shared,
            micros: primitive,
            lo,
            hi,
            weights: matches!(config.gpus, Counts::List(..)).then_some(weights),
            prefer_larger: config.prefer_larger,
        };
        let best = solve(&problem, scratch);
        if best.total == 0.0 {
            return None;
        }
        let batch = best.batch * shared;
        shares.clear();
        shares.extend(
            micros.iter().rev().filter(|&m| batch.is_multiple_of(*m)).map(|m| (m / replicas, batch / m)),
        );
        problem.working(best.batch, counts);
        for &j in &*counts {
            let (micro, share) =
                shares.iter().find(|(_, share)| share.is_multiple_of(j)).expect("a count that works");
            answers.gpus.push(j * unit);
            answers.micro_batch.push(*micro);
            answers.accumulation.push(share / j);
        }
        Some((batch, best.total))
    }
}

/// Writes the weight of every j; returns the first and last j that have one.
fn fill_weights(
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

    /// Fills in the counts that work at a batch, ascending: divisors of batch/m between lo and hi.
    fn working(&self, batch: u64, counts: &mut Vec<u64>) {
        counts.clear();
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

    /// Every way answers, whichever the size would choose; the table needs company.
    #[allow(
        clippy::redundant_closure_for_method_calls,
        reason = "the methods themselves are not general enough"
    )]
    fn every_way(config: &Config) -> Vec<Answers> {
        let one = |solve: fn(&Problem, &mut Scratch) -> Best| {
            let mut found = Answers::default();
            answer(config, &mut Scratch::default(), solve, &mut found);
            found
        };
        let several = elastic(&[*config; 8]);
        let ends: Vec<u64> = (1..=8).map(|row| row * several.end[0]).collect();
        assert_eq!(several.end, ends);
        let first = index(several.end[0]);
        let cut = |column: &[u64]| column[..first].to_vec();
        vec![
            one(|problem, scratch| problem.sieve(scratch)),
            one(|problem, scratch| problem.search(scratch)),
            Answers {
                batch: vec![several.batch[7]],
                weight: vec![several.weight[7]],
                end: vec![first as u64],
                gpus: cut(&several.gpus),
                micro_batch: cut(&several.micro_batch),
                accumulation: cut(&several.accumulation),
            },
        ]
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
                prop_assert!((found.weight[0] - total).abs() < 1e-9, "{found:?} {total}");
                prop_assert_eq!(found.batch[0], batch.unwrap_or(0));
                for (row, gpus) in found.gpus.iter().enumerate() {
                    let samples = found.micro_batch[row] * found.accumulation[row];
                    prop_assert_eq!(gpus / model_parallel * samples, found.batch[0]);
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
        let found = elastic(&[config]);
        assert_eq!((found.batch[0], found.gpus.len()), (720_720, 240));
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
        assert_eq!(elastic(&[config]).gpus.len(), 84);
    }
}
