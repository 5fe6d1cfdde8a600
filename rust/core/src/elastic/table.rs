//! Many configurations with the same counts: how many of the counts divide n, for every n, is worked out once.
//!
//! With D(n) that number, a batch that only m divides serves D(B/m) counts, so that the best n up to any limit answers
//! it. Batches that several micro-batches divide are multiples of their lcm L, fewer the larger it is: each is
//! looked at, D over the subsets T of these micro-batches added and subtracted at B/lcm(T).
use std::collections::HashMap;
use std::ops::Range;

use rayon::prelude::*;

use super::primes::lcm;
use super::{Best, Config, Counts, Problem, index};

/// A table is made where it has at most this many entries for each configuration that uses it,
const ENTRIES_PER_ROW: u64 = 1 << 10;
/// and in all.
const MOST_ENTRIES: u64 = 1 << 24;
/// Above this many looks into the table the search is faster.
const MOST_LOOKS: u64 = 40_000;
/// More micro-batches have too many subsets.
const MOST_MICROS: usize = 6;
const CHUNK: usize = 1 << 15;

/// How many counts from `lo` to `hi` divide each n.
pub(super) struct Table {
    counts: Vec<u16>,
    /// For every n the best up to it: the largest, or the smallest, of those with the most.
    best: Vec<u32>,
}

/// First and last count, and which way ties go; counts in a list have no table.
pub(super) type Key = (u64, u64, bool);

/// The tables that pay.
pub(super) fn tables_for(configs: &[Config]) -> HashMap<Key, Table> {
    let mut wanted: HashMap<Key, (u64, u64)> = HashMap::new();
    let ranges = configs.iter().filter(|config| matches!(config.gpus, Counts::Range(..)));
    let keyed = ranges.map(|config| (Table::key(config), config)).collect::<Vec<_>>();
    for same in keyed.chunk_by(|a, b| a.0 == b.0) {
        let (rows, entries) = wanted.entry(same[0].0).or_default();
        *rows += same.len() as u64;
        for (_, config) in same {
            let smallest = config.micro_batches.iter().min().expect("a micro-batch") * replicas(config);
            *entries = (*entries).max(config.max_batch / smallest + 1);
        }
    }
    wanted.retain(|_, (rows, entries)| *entries <= MOST_ENTRIES.min(ENTRIES_PER_ROW * *rows));
    wanted.into_iter().map(|(key, (_, entries))| (key, Table::new(key, entries))).collect()
}

fn unit(config: &Config) -> u64 {
    lcm(config.model_parallel, config.gpus_per_node.unwrap_or(1))
}

fn replicas(config: &Config) -> u64 {
    unit(config) / config.model_parallel
}

impl Table {
    pub(super) fn key(config: &Config) -> Key {
        match config.gpus {
            Counts::Range(lo, hi) => (lo.div_ceil(unit(config)), hi / unit(config), config.prefer_larger),
            Counts::List(..) => (0, 0, config.prefer_larger),
        }
    }

    fn new((lo, hi, prefer_larger): Key, entries: u64) -> Table {
        let mut counts = vec![0_u16; index(entries)];
        counts.par_chunks_mut(CHUNK).enumerate().for_each(|(chunk, counts)| {
            let start = (chunk * CHUNK) as u64;
            for d in lo..=hi.min(start + counts.len() as u64 - 1) {
                let first = index(start.div_ceil(d) * d - start);
                counts.iter_mut().skip(first).step_by(index(d)).for_each(|count| *count += 1);
            }
        });
        // Every count divides 0, which is no batch.
        counts[0] = 0;
        let mut best = Vec::with_capacity(counts.len());
        let mut at = 0;
        for (n, &count) in (0_u32..).zip(&counts) {
            let most = counts[at as usize];
            if count > most || (count == most && prefer_larger) {
                at = n;
            }
            best.push(at);
        }
        Table { counts, best }
    }

    /// The best batch; none where the table is too short or another way is faster.
    pub(super) fn solve(&self, problem: &Problem, sets: &mut Sets) -> Option<Best> {
        let Problem { cap, micros, prefer_larger, .. } = *problem;
        if problem.weights.is_some()
            || micros.len() > MOST_MICROS
            || cap / micros[0] >= self.counts.len() as u64
        {
            return None;
        }
        sets.fill(micros, cap);
        let first = |last: u64| if prefer_larger { last / 2 + 1 } else { 1 };
        let looks: u64 =
            sets.sets.iter().map(|set| (set.last + 1 - first(set.last)) * set.terms.len() as u64).sum();
        if looks > MOST_LOOKS {
            return None;
        }
        let mut best = Best { total: 0.0, batch: cap };
        let mut offer = |total: u16, batch: u64| {
            let found = Best { total: f64::from(total), batch };
            if total > 0 && problem.better(found, best) {
                best = found;
            }
        };
        for m in micros {
            let n = self.best[index(cap / m)];
            offer(self.counts[n as usize], m * u64::from(n));
        }
        for set in &sets.sets {
            let mut most = (0, 0);
            for k in first(set.last)..=set.last {
                let looks = sets.terms[set.terms.clone()]
                    .iter()
                    .map(|&(factor, sign)| sign * i32::from(self.counts[index(k * factor)]));
                let total = looks.sum::<i32>();
                if total > most.0 || (total == most.0 && prefer_larger) {
                    most = (total, k);
                }
            }
            offer(u16::try_from(most.0).unwrap_or(0), most.1 * set.multiple);
        }
        Some(best)
    }
}

/// The sets of two and more micro-batches that divide some batch under a cap together.
#[derive(Default)]
pub(super) struct Sets {
    sets: Vec<Set>,
    /// The terms of all sets, one after another.
    terms: Vec<(u64, i32)>,
}

struct Set {
    /// Their lcm: these batches are multiple × k, k up to last.
    multiple: u64,
    last: u64,
    /// For every subset, multiple over the subset's lcm, and the sign with which it counts.
    terms: Range<usize>,
}

impl Sets {
    fn fill(&mut self, micros: &[u64], cap: u64) {
        self.sets.clear();
        self.terms.clear();
        for set in (1_u32..1 << micros.len()).filter(|set| set.count_ones() > 1) {
            let start = self.terms.len();
            match self.fill_terms(set, micros, cap) {
                Some(multiple) => {
                    self.terms.remove(start); // the empty subset
                    let terms = start..self.terms.len();
                    self.terms[terms.clone()].iter_mut().for_each(|(common, _)| *common = multiple / *common);
                    self.sets.push(Set { multiple, last: cap / multiple, terms });
                }
                None => self.terms.truncate(start),
            }
        }
    }

    /// The lcm of every subset, with its sign; returns that of all, none where it is above the cap.
    fn fill_terms(&mut self, set: u32, micros: &[u64], cap: u64) -> Option<u64> {
        let start = self.terms.len();
        self.terms.push((1, -1));
        for (_, &m) in micros.iter().enumerate().filter(|(i, _)| set >> i & 1 == 1) {
            for i in start..self.terms.len() {
                let (common, sign) = self.terms[i];
                let common = lcm(common, m);
                if common > cap {
                    return None;
                }
                self.terms.push((common, -sign));
            }
        }
        self.terms.last().map(|&(multiple, _)| multiple)
    }
}
