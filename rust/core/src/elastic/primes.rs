//! Primes, and how many divisors a number without small ones can have.
use std::sync::OnceLock;

use super::config::{MAX_GPUS, index};

pub(super) fn primes() -> &'static [u64] {
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

pub(super) fn valuation(mut n: u64, p: u64) -> u32 {
    let mut exponent = 0;
    while n.is_multiple_of(p) {
        n /= p;
        exponent += 1;
    }
    exponent
}

/// Of two numbers above 0, by halves: a division takes longer.
pub(super) fn gcd(mut a: u64, mut b: u64) -> u64 {
    let twos = (a | b).trailing_zeros();
    a >>= a.trailing_zeros();
    while b != 0 {
        b >>= b.trailing_zeros();
        (a, b) = (a.min(b), a.abs_diff(b));
    }
    a << twos
}

pub(super) fn lcm(a: u64, b: u64) -> u64 {
    a / gcd(a, b) * b
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
