//! How many divisors a number without small primes can have.
use std::sync::OnceLock;

use crate::numbers::primes;

pub(super) fn valuation(mut n: u64, p: u64) -> u32 {
    let mut exponent = 0;
    while n.is_multiple_of(p) {
        n /= p;
        exponent += 1;
    }
    exponent
}

/// How many divisors above 1 and up to `hi` a number up to `room` without primes below the k-th can have, at
/// most. For the first primes the record holders are known; else it has at most ⌊log room / log p⌋ prime factors, and
/// such a divisor is a choice of at most ⌊log hi / log p⌋ of them.
pub(super) fn divisors_at_most(k: usize, room: u64, hi: u64) -> u64 {
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
pub(super) fn records() -> &'static [Vec<(u64, u64)>] {
    static RECORDS: OnceLock<Vec<Vec<(u64, u64)>>> = OnceLock::new();
    RECORDS.get_or_init(|| (0..16).map(|k| rough_records(k, 1 << 41)).collect())
}

pub(super) fn rough_records(k: usize, cap: u64) -> Vec<(u64, u64)> {
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
pub(super) fn next_rough(t: u64, p: u64) -> u64 {
    match p {
        2 => t + 1,
        3 => t + 2,
        _ if t % 6 == 1 => t + 4,
        _ => t + 2,
    }
}
