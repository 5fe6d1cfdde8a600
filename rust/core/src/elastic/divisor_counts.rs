//! Many configurations with the same counts: how many of the counts divide n, for every n, is worked out once.
//!
//! With D(n) that number, a batch that only m divides serves D(B/m) counts, so that the best n up to any limit answers
//! it. Batches that several micro-batches divide are multiples of their lcm L, fewer the larger it is: each is
//! looked at, D over the subsets T of these micro-batches added and subtracted at B/lcm(T).
use std::collections::HashMap;

use rayon::prelude::*;

use super::config::{Config, Counts};
use super::problem::{Best, Problem};
use super::stride::Stride;
use super::threads::in_pool;
use crate::numbers::{index, lcm};

/// A table is made where it has at most this many entries for each configuration that uses it,
const ENTRIES_PER_ROW: u64 = 1 << 10;
/// and in all.
const MOST_ENTRIES: u64 = 1 << 24;
/// Above this many looks into the table the search is faster.
const MOST_LOOKS: u64 = 100_000;
/// More micro-batches have too many subsets.
const MOST_MICROS: usize = 6;
const CHUNK: usize = 1 << 15;

/// How many counts from `lo` to `hi` divide each n.
pub(super) struct DivisorCounts {
    counts: Vec<u16>,
    /// For every n the best up to it: the largest, or the smallest, of those with the most.
    best: Vec<u32>,
}

/// First and last count, and which way ties go; counts in a list have no table.
pub(super) type Key = (u64, u64, bool);

/// The tables that pay: none for a question alone.
pub(super) fn tables_for(configs: &[Config]) -> HashMap<Key, DivisorCounts> {
    let mut wanted: HashMap<Key, (u64, u64)> = HashMap::new();
    let mut keyed = configs
        .iter()
        .filter(|config| matches!(config.gpus, Counts::Range(..)))
        .map(|config| {
            let stride = Stride::of(config);
            let smallest = config.micro_batches.iter().min().expect("a micro-batch") * stride.replicas;
            (DivisorCounts::key(config, stride), config.max_batch / smallest + 1)
        })
        .peekable();
    while let Some((key, mut entries)) = keyed.next() {
        let mut rows = 1;
        while let Some((_, more)) = keyed.next_if(|(next, _)| *next == key) {
            entries = entries.max(more);
            rows += 1;
        }
        let known = wanted.entry(key).or_default();
        *known = (known.0 + rows, known.1.max(entries));
    }
    let pays = |rows: u64, entries: u64| rows > 1 && entries <= MOST_ENTRIES.min(ENTRIES_PER_ROW * rows);
    wanted.retain(|_, (rows, entries)| pays(*rows, *entries));
    wanted.into_iter().map(|(key, (_, entries))| (key, DivisorCounts::new(key, entries))).collect()
}

impl DivisorCounts {
    pub(super) fn key(config: &Config, stride: Stride) -> Key {
        match config.gpus {
            Counts::Range(lo, hi) => (lo.div_ceil(stride.gpus), hi / stride.gpus, config.prefer_larger),
            Counts::List(..) => (0, 0, config.prefer_larger),
        }
    }

    fn new((lo, hi, prefer_larger): Key, entries: u64) -> DivisorCounts {
        let mut counts = vec![0_u16; index(entries)];
        let fill = |(chunk, counts): (usize, &mut [u16])| {
            let start = (chunk * CHUNK) as u64;
            for d in lo..=hi.min(start + counts.len() as u64 - 1) {
                let first = index(start.div_ceil(d) * d - start);
                counts.iter_mut().skip(first).step_by(index(d)).for_each(|count| *count += 1);
            }
        };
        if in_pool() {
            counts.par_chunks_mut(CHUNK).enumerate().for_each(fill);
        } else {
            counts.chunks_mut(CHUNK).enumerate().for_each(fill);
        }
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
        DivisorCounts { counts, best }
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
        let Sets { lcms, several, terms } = sets;
        let range = |multiple: u64| {
            let last = cap / multiple;
            if prefer_larger { last / 2 + 1..=last } else { 1..=last }
        };
        let looks = |&(set, multiple): &(usize, u64)| {
            let batches = range(multiple);
            (batches.end() + 1 - batches.start()) * ((1 << set.count_ones()) - 1)
        };
        if several.iter().map(looks).sum::<u64>() > MOST_LOOKS {
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
        for &(set, multiple) in &*several {
            terms.clear();
            let mut subset = set;
            while subset > 0 {
                let sign = if subset.count_ones() % 2 == 1 { 1 } else { -1 };
                terms.push((index(multiple / lcms[subset]), sign));
                subset = (subset - 1) & set;
            }
            let mut most = (0, 0);
            for k in range(multiple) {
                let looks =
                    terms.iter().map(|&(factor, sign)| sign * i32::from(self.counts[index(k) * factor]));
                let total = looks.sum::<i32>();
                if total > most.0 || (total == most.0 && prefer_larger) {
                    most = (total, k);
                }
            }
            offer(u16::try_from(most.0).unwrap_or(0), most.1 * multiple);
        }
        Some(best)
    }
}

/// Sets of micro-batches, a bit each.
#[derive(Default)]
pub(super) struct Sets {
    /// The lcm of every set; 0 where it is above the cap.
    lcms: Vec<u64>,
    /// The sets of two and more, and their lcms, that have batches under the cap.
    several: Vec<(usize, u64)>,
    /// For every subset of one set, the set's lcm over the subset's, and the sign with which it counts.
    terms: Vec<(usize, i32)>,
}

impl Sets {
    fn fill(&mut self, micros: &[u64], cap: u64) {
        let Sets { lcms, several, .. } = self;
        lcms.clear();
        lcms.push(1);
        several.clear();
        for &m in micros {
            lcms.push(m);
            let last = lcms.len() - 1;
            for set in 1..last {
                let common = if lcms[set] == 0 { 0 } else { lcm(lcms[set], m) };
                let common = if common > cap { 0 } else { common };
                if common > 0 {
                    several.push((lcms.len(), common));
                }
                lcms.push(common);
            }
        }
    }
}
