//! The effective batch under a cap that works at the most GPU counts, exactly.
//!
//! A replica count d works at a batch B when some allowed micro-batch m makes d·m a divisor of B. The gain of a
//! batch, the summed weight of the counts that work, never falls when the batch is multiplied, which gives both
//! searches their shape. Small caps are sieved: only batches above half the cap can win. Large caps are searched
//! by branch and bound over prime exponents: a batch c whose primes below p are settled can only grow by a
//! factor r ≤ cap/c without primes below p, and r has few divisors, so what they can still add is bounded.
use std::sync::OnceLock;

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

/// What is known at one depth of the search.
#[derive(Debug, Default)]
struct Level {
    /// Settled parts of counts that still work, ascending, with the micro-batches that make them work.
    parts: Vec<(u64, u64)>,
    /// For each prefix of `parts`: the most of them that one cofactor can put into the range of counts.
    reach: Vec<u32>,
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
    elastic_by(config, scratch, SIEVE_MARKS)
}

/// As [`elastic`], by the sieve up to this many marks.
fn elastic_by(config: &Config, scratch: &mut Scratch, sieve_marks: f64) -> Elastic {
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
    let best = problem.solve(scratch, sieve_marks);
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
    fn solve(&self, scratch: &mut Scratch, sieve_marks: f64) -> Best {
        let span = (self.hi as f64 / self.lo as f64).ln() + 1.0 / self.lo as f64;
        let per_batch: f64 = self.micros.iter().map(|&m| span / m as f64).sum();
        let marks = self.cap as f64 * (per_batch + 1.0);
        if marks <= sieve_marks * self.micros.len() as f64 {
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

    /// Marks every multiple of every product up to the cap and reads off the best.
    fn sieve(&self, scratch: &mut Scratch) -> Best {
        // A batch up to half the cap can be doubled without loss, so the largest best one is above half.
        let floor = if self.prefer_larger { self.cap / 2 } else { 0 };
        let len = index(self.cap - floor);
        scratch.sums.clear();
        scratch.sums.resize(len, 0.0);
        let several = self.micros.len() > 1;
        if several {
            scratch.stamps.clear();
            scratch.stamps.resize(len, 0);
        }
        for j in self.lo..=self.hi {
            let weight = self.weight(j);
            if weight == 0.0 {
                continue;
            }
            for m in self.micros {
                let step = j * m;
                if step > self.cap {
                    break;
                }
                let first = index((floor / step + 1) * step - floor - 1);
                if several {
                    for b in (first..len).step_by(index(step)) {
                        if scratch.stamps[b] != j {
                            scratch.stamps[b] = j;
                            scratch.sums[b] += weight;
                        }
                    }
                } else {
                    scratch.sums.iter_mut().skip(first).step_by(index(step)).for_each(|sum| *sum += weight);
                }
            }
        }
        let most = scratch.sums.iter().copied().fold(0.0, f64::max);
        let mut equal = scratch.sums.iter().map(|&total| total >= most * (1.0 - TOLERANCE));
        let at = if self.prefer_larger { equal.rposition(|is| is) } else { equal.position(|is| is) };
        let at = at.expect("the most is among them");
        Best { total: scratch.sums[at], batch: floor + 1 + at as u64 }
    }

    fn search(&self, scratch: &mut Scratch) -> Best {
        let mut search = Search {
            problem: self,
            micros: MicroPrimes::new(self.micros),
            best: Best { total: 0.0, batch: self.cap },
            tops: std::mem::take(&mut scratch.tops),
        };
        // A good batch to start from prunes most of the tree: highly composite multiples of each micro-batch.
        let composite = &records()[0];
        for &m in self.micros {
            let fits = composite.partition_point(|(n, _)| n * m <= self.cap);
            for (n, _) in &composite[fits.saturating_sub(2)..fits] {
                let total = self.working(n * m).into_iter().map(|j| self.weight(j)).sum();
                search.offer(n * m, total);
            }
        }
        let mut levels = std::mem::take(&mut scratch.levels);
        if levels.is_empty() {
            levels.push(Level::default());
        }
        levels[0].parts.clear();
        levels[0].parts.push((1, search.micros.all));
        levels[0].reach.clear();
        search.descend(&mut levels, 0, 1, 0);
        scratch.levels = levels;
        scratch.tops = search.tops;
        search.best
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

impl Level {
    /// The parts are sorted runs one after another: a stable sort merges them.
    #[allow(clippy::stable_sort_primitive)]
    fn sort(&mut self) {
        self.parts.sort();
    }
}

/// The primes of the micro-batches, and which of these are done with which; masks have a bit per micro-batch.
struct MicroPrimes {
    all: u64,
    /// Ascending.
    primes: Vec<u64>,
    /// `with[i][e]`: the micro-batches that hold the i-th prime at most e times.
    with: Vec<Vec<u64>>,
    /// `rest[i]`: what is left of each micro-batch without its first i primes.
    rest: Vec<Vec<u64>>,
}

impl MicroPrimes {
    fn new(micros: &[u64]) -> Self {
        let mut found = Self {
            all: u64::MAX >> (64 - micros.len()),
            primes: vec![],
            with: vec![],
            rest: vec![micros.to_vec()],
        };
        for &p in primes() {
            let rest = &found.rest[found.primes.len()];
            if rest.iter().all(|&m| m == 1) {
                break;
            }
            let exponents: Vec<u32> = rest.iter().map(|&m| valuation(m, p)).collect();
            let most = exponents.iter().copied().max().unwrap_or(0);
            if most > 0 {
                let stripped = rest.iter().zip(&exponents).map(|(m, &e)| m / p.pow(e)).collect();
                let held = |e| mask(exponents.iter().map(|&held| held <= e));
                found.with.push((0..=most).map(held).collect());
                found.rest.push(stripped);
                found.primes.push(p);
            }
        }
        found
    }

    /// How many of the primes lie below p, and the masks by exponent if p is one of them.
    fn at(&self, p: u64) -> (usize, Option<&[u64]>) {
        let below = self.primes.partition_point(|&q| q < p);
        (below, (self.primes.get(below) == Some(&p)).then(|| self.with[below].as_slice()))
    }

    /// Those whose part beyond the first `below` primes is at most `room`; with a room of 1, those that are done.
    fn fitting(&self, below: usize, room: u64) -> u64 {
        if below == self.primes.len() { self.all } else { mask(self.rest[below].iter().map(|&m| m <= room)) }
    }
}

fn mask(bits: impl Iterator<Item = bool>) -> u64 {
    bits.enumerate().fold(0, |mask, (i, bit)| mask | u64::from(bit) << i)
}

struct Search<'a> {
    problem: &'a Problem<'a>,
    micros: MicroPrimes,
    best: Best,
    tops: Vec<f64>,
}

impl Search<'_> {
    /// Takes a batch whose total is known, grown to the largest multiple where larger is better.
    fn offer(&mut self, batch: u64, total: f64) {
        let cap = self.problem.cap;
        if total < self.best.total * (1.0 - TOLERANCE) || total == 0.0 {
            return;
        }
        let batch = if self.problem.prefer_larger { cap / batch * batch } else { batch };
        let found = Best { total, batch };
        if self.problem.better(found, self.best) {
            self.best = found;
        }
    }

    /// Visits batch c, whose primes before the k-th are settled, and its multiples by later primes.
    fn descend(&mut self, levels: &mut Vec<Level>, depth: usize, c: u64, mut k: usize) {
        let room = self.problem.cap / c;
        let (below, _) = self.micros.at(primes()[k]);
        let own = self.gain(&levels[depth], 1, self.micros.fitting(below, 1));
        self.offer(c, own);
        let mut settled = self.gain(&levels[depth], 1, self.micros.all);
        if depth + 1 == levels.len() {
            levels.push(Level::default());
        }
        while let Some(&p) = primes().get(k).filter(|&&p| p <= room) {
            let bound = settled + self.bound(&mut levels[depth], k, room, own.max(self.best.total) - settled);
            // Multiples of c that gain nothing over c lose the tie to it, whichever way ties go.
            if bound <= own || bound < self.best.total * (1.0 - TOLERANCE) {
                return;
            }
            k += 1;
            let (below, with) = self.micros.at(p);
            match with {
                None => self.powers(levels, depth, c, k, self.micros.fitting(below, 1)),
                Some(with) => {
                    let with = with.to_vec();
                    self.micro_powers(levels, depth, c, k, &with);
                    let left = with[0] & self.micros.fitting(below + 1, room);
                    let level = &mut levels[depth];
                    level.parts.retain_mut(|(_, mask)| {
                        *mask &= left;
                        *mask != 0
                    });
                    level.reach.clear();
                    settled = self.gain(&levels[depth], 1, self.micros.all);
                }
            }
        }
    }

    /// Visits c·p^e for every e, where p, the prime before the k-th, is in no micro-batch.
    fn powers(&mut self, levels: &mut Vec<Level>, depth: usize, c: u64, k: usize, done: u64) {
        let (p, room) = (primes()[k - 1], self.problem.cap / c);
        let after = primes().get(k).copied().unwrap_or(u64::MAX);
        let mut total = self.gain(&levels[depth], 1, done);
        let mut factor = 1;
        // Past the largest count a power adds nothing over the one before it.
        while factor <= room / p && factor * p <= self.problem.hi {
            factor *= p;
            if room / factor < after {
                total += self.gain(&levels[depth], factor, done);
                self.offer(c * factor, total);
                continue;
            }
            let (here, next) = levels.split_at_mut(depth + 1);
            let (here, next) = (&here[depth], &mut next[0]);
            next.parts.clear();
            next.reach.clear();
            let mut power = 1;
            while power <= factor {
                let scaled = here.parts.iter().map(|&(part, mask)| (part * power, mask));
                next.parts.extend(scaled.take_while(|(part, _)| *part <= self.problem.hi));
                power *= p;
            }
            next.sort();
            total += self.gain(&levels[depth], factor, done);
            self.descend(levels, depth + 1, c * factor, k);
        }
    }

    /// As `powers`, for a prime that micro-batches hold: a higher power lets more of them work.
    fn micro_powers(&mut self, levels: &mut Vec<Level>, depth: usize, c: u64, k: usize, with: &[u64]) {
        let (p, room, hi) = (primes()[k - 1], self.problem.cap / c, self.problem.hi);
        let all = self.micros.all;
        let at_most = |exponent: usize| with.get(exponent).copied().unwrap_or(all);
        let (mut factor, mut exponent) = (1, 0);
        while factor <= room / p {
            factor *= p;
            exponent += 1;
            let (here, next) = levels.split_at_mut(depth + 1);
            let (here, next) = (&here[depth], &mut next[0]);
            next.parts.clear();
            next.reach.clear();
            let (mut power, mut changed) = (1, false);
            for taken in 0..=exponent {
                let allowed = at_most(exponent - taken);
                // What this power gives that the one below did not: a larger part, or a micro-batch more.
                let before = if taken == exponent { 0 } else { at_most(exponent - taken - 1) };
                for &(part, mask) in here.parts.iter().take_while(|(part, _)| part * power <= hi) {
                    if mask & allowed != 0 {
                        next.parts.push((part * power, mask & allowed));
                        changed |= mask & allowed & !before != 0;
                    }
                }
                power *= p;
                if power > hi {
                    break;
                }
            }
            if changed {
                next.sort();
                self.descend(levels, depth + 1, c * factor, k);
            } else if exponent >= with.len() {
                // Every micro-batch has its power of p: one that adds nothing ends it.
                return;
            }
        }
    }

    /// Weight of the counts part × factor over the parts that work with a micro-batch of the mask.
    fn gain(&self, level: &Level, factor: u64, with: u64) -> f64 {
        let problem = self.problem;
        if problem.weights.is_none() && with == self.micros.all {
            let end = level.parts.partition_point(|(part, _)| part * factor <= problem.hi);
            let start = level.parts[..end].partition_point(|(part, _)| part * factor < problem.lo);
            return (end - start) as f64;
        }
        let parts = level.parts.iter().take_while(|(part, _)| part * factor <= problem.hi);
        parts.filter(|(_, mask)| mask & with != 0).map(|&(part, _)| problem.weight(part * factor)).sum()
    }

    /// An upper bound on what c·r adds to c for every r > 1 up to `room` without primes below the k-th; stops
    /// counting once it is above `enough`, which cannot prune.
    fn bound(&mut self, level: &mut Level, k: usize, room: u64, enough: f64) -> f64 {
        let problem = self.problem;
        let mut total = 0.0;
        let p = primes()[k];
        let mut divisors = divisors_at_most(k, room, problem.hi);
        let last = room.min(problem.hi);
        let mut t = p;
        match problem.weights {
            None => {
                if level.reach.is_empty() {
                    fill_reach(level, problem.lo, problem.hi);
                }
                let mut end = level.parts.len();
                while divisors > 0 && t <= last && total <= enough {
                    while end > 0 && level.parts[end - 1].0 * t > problem.hi {
                        end -= 1;
                    }
                    if end == 0 {
                        break;
                    }
                    total += f64::from(level.reach[end - 1]);
                    divisors -= 1;
                    t = next_rough(t, p);
                }
            }
            Some(weights) => {
                self.tops.clear();
                while t <= last {
                    let reached = level.parts.iter().map_while(|&(part, _)| weights.get(index(part * t)));
                    let sum: f64 = reached.sum();
                    if sum > 0.0 {
                        self.tops.push(sum);
                    }
                    t = next_rough(t, p);
                }
                if let Some(last_top) = usize::try_from(divisors).ok().filter(|&n| n < self.tops.len()) {
                    self.tops.select_nth_unstable_by(last_top, |a, b| b.total_cmp(a));
                    self.tops.truncate(last_top);
                }
                total += self.tops.iter().sum::<f64>();
            }
        }
        total
    }
}

/// For each prefix of the parts, the most that lie within one window as wide as hi/lo: a cofactor t puts the
/// parts from lo/t to hi/t into the range, wherever t lies.
fn fill_reach(level: &mut Level, lo: u64, hi: u64) {
    let (mut first, mut most) = (0, 0);
    for (i, &(part, _)) in level.parts.iter().enumerate() {
        while u128::from(level.parts[first].0) * u128::from(hi) < u128::from(part) * u128::from(lo) {
            first += 1;
        }
        most = most.max(u32::try_from(i + 1 - first).unwrap_or(u32::MAX));
        level.reach.push(most);
    }
}

/// How many divisors above 1 and up to `hi` a number up to `room` without primes below the k-th can have, at
/// most. For the first primes the record holders are known; else it has at most ⌊log room / log p⌋ prime factors, and
/// such a divisor is a choice of at most ⌊log hi / log p⌋ of them.
fn divisors_at_most(k: usize, room: u64, hi: u64) -> u64 {
    let p = primes()[k];
    let known = records().get(k).map_or(u64::MAX, |r| r[r.partition_point(|&(n, _)| n <= room) - 1].1);
    if room <= hi && known < u64::MAX {
        return known;
    }
    let factors = u64::from(room.ilog(p));
    let chosen = u64::from(hi.checked_ilog(p).unwrap_or(0));
    let (mut ways, mut sum) = (1_u64, 0_u64);
    for i in 1..=factors.min(chosen) {
        ways = ways.saturating_mul(factors + 1 - i) / i;
        sum = sum.saturating_add(ways);
    }
    sum.min(known)
}

/// For each of the first primes: the numbers without smaller primes that have more divisors than any such number
/// below them, with the count of their divisors above 1. (For 2, the highly composite numbers.)
fn records() -> &'static [Vec<(u64, u64)>] {
    static RECORDS: OnceLock<Vec<Vec<(u64, u64)>>> = OnceLock::new();
    RECORDS.get_or_init(|| (0..16).map(|k| rough_records(k, 1 << 41)).collect())
}

fn rough_records(k: usize, cap: u64) -> Vec<(u64, u64)> {
    // A record's exponents never rise from one prime to the next: swapping them would make it smaller.
    let mut found = vec![(1, 1)];
    let mut open = vec![(1_u64, 1_u64, k, u64::MAX)];
    while let Some((n, divisors, k, most)) = open.pop() {
        let (mut n, mut exponent) = (n, 0);
        while exponent < most && n <= cap / primes()[k] {
            n *= primes()[k];
            exponent += 1;
            found.push((n, divisors * (exponent + 1)));
            open.push((n, divisors * (exponent + 1), k + 1, exponent));
        }
    }
    found.sort_unstable();
    let mut most = 0;
    found.retain(|&(_, divisors)| {
        let record = divisors > most;
        most = most.max(divisors);
        record
    });
    found.iter().map(|&(n, divisors)| (n, divisors - 1)).collect()
}

/// The number after t, at least, that has no primes below p.
fn next_rough(t: u64, p: u64) -> u64 {
    match p {
        2 => t + 1,
        3 => t + 2,
        _ if t % 6 == 1 => t + 4,
        _ => t + 2,
    }
}

fn primes() -> &'static [u64] {
    static PRIMES: OnceLock<Vec<u64>> = OnceLock::new();
    PRIMES.get_or_init(|| {
        let mut composite = vec![false; index(MAX_GPUS) + 1];
        let mut primes = Vec::new();
        for n in 2..composite.len() {
            if !composite[n] {
                primes.push(n as u64);
                (n * n..composite.len()).step_by(n).for_each(|multiple| composite[multiple] = true);
            }
        }
        primes
    })
}

fn valuation(mut n: u64, p: u64) -> u32 {
    let mut exponent = 0;
    while n.is_multiple_of(p) {
        n /= p;
        exponent += 1;
    }
    exponent
}

fn gcd(mut a: u64, mut b: u64) -> u64 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

fn lcm(a: u64, b: u64) -> u64 {
    a / gcd(a, b) * b
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

    /// The search and the sieve both answer, whichever the size would choose.
    fn both_ways(config: &Config) -> [Elastic; 2] {
        let mut scratch = Scratch::default();
        [f64::INFINITY, 0.0].map(|marks| elastic_by(config, &mut scratch, marks))
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
            for found in both_ways(&config) {
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
