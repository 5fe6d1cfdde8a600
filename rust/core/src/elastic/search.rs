//! Large caps: branch and bound over prime exponents.
//!
//! A batch c whose primes below p are settled can only grow by a factor r ≤ cap/c without primes below p. Such an r
//! has few divisors, so what it can still add to the counts that work at c is bounded.
use super::problem::{Best, Problem, TOLERANCE};
use super::records::{divisors_at_most, next_rough, records, valuation};
use crate::numbers::{divisors, index, primes};

/// What is known at every depth, and lists of what is looked at.
#[derive(Default)]
pub(super) struct SearchBuffers {
    levels: Vec<Level>,
    tops: Vec<f64>,
    divisors: Vec<(u64, u64)>,
}

/// What is known at one depth of the search.
#[derive(Debug, Default)]
struct Level {
    /// Settled parts of counts that still work, ascending, with the micro-batches that make them work.
    parts: Vec<(u64, u64)>,
    /// For each prefix of `parts`: the most of them that one cofactor can put into the range of counts.
    reach: Vec<u32>,
}

impl Problem<'_> {
    pub(super) fn search(&self, buffers: &mut SearchBuffers) -> Best {
        let mut search = Search {
            problem: self,
            micros: MicroPrimes::new(self.micros),
            best: Best { total: 0.0, batch: self.cap },
            tops: std::mem::take(&mut buffers.tops),
        };
        // A good batch to start from prunes most of the tree: highly composite multiples of each micro-batch.
        let composite = &records()[0];
        for &m in self.micros {
            let fits = composite.partition_point(|(n, _)| n * m <= self.cap);
            for (n, _) in &composite[fits.saturating_sub(2)..fits] {
                divisors(n * m, self.hi, &mut buffers.divisors);
                let works = |left: u64| self.micros.iter().any(|m| left.is_multiple_of(*m));
                let counts = buffers.divisors.iter().filter(|(_, left)| works(*left));
                search.offer(n * m, counts.map(|&(j, _)| self.weight(j)).sum());
            }
        }
        let mut levels = std::mem::take(&mut buffers.levels);
        if levels.is_empty() {
            levels.push(Level::default());
        }
        levels[0].parts.clear();
        levels[0].parts.push((1, search.micros.all));
        levels[0].reach.clear();
        search.descend(&mut levels, 0, 1, 0);
        buffers.levels = levels;
        buffers.tops = search.tops;
        search.best
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
