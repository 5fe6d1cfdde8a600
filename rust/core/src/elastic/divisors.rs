//! Divisors of the numbers up to a cap.

use std::sync::LazyLock;

use super::MAX_CAP;

/// As many as any number with the most divisors has, up to [`MAX_CAP`], one of them left out.
const PRIMES: [u64; 9] = [2, 3, 5, 7, 11, 13, 17, 19, 23];
/// Primes, with the powers of them that may be proven to divide.
const PROVABLE: [(u64, u32); 6] = [(2, 5), (3, 3), (5, 2), (7, 1), (11, 1), (13, 1)];

/// Numbers, ascending, with more divisors than each before, and how many.
type Records = Vec<(u64, u64)>;

static ALL: LazyLock<Records> = LazyLock::new(|| records(1, 1));
/// For each provable prime and power: the records among the numbers that this does not divide.
static WITHOUT: LazyLock<Vec<(u64, Vec<Records>)>> = LazyLock::new(|| {
    let powers = |(prime, most): (u64, u32)| (prime, (1..=most).map(|power| records(prime, power)).collect());
    PROVABLE.into_iter().map(powers).collect()
});

/// The records among the numbers that `prime` to the `power` does not divide.
fn records(prime: u64, power: u32) -> Records {
    let mut all = vec![];
    grow(&PRIMES, (prime, power), (1, 1), u32::MAX, &mut all);
    all.sort_unstable();
    let mut most = 0;
    all.retain(|&(_, divisors)| {
        let is_record = divisors > most;
        most = most.max(divisors);
        is_record
    });
    all
}

/// All products of the number and of powers of the primes that could be records: but for the limited prime, exponents never
/// rise, since exchanging two would make a smaller number of as many divisors.
fn grow(
    primes: &[u64],
    limited: (u64, u32),
    (mut number, divisors): (u64, u64),
    most: u32,
    all: &mut Vec<(u64, u64)>,
) {
    let Some((&prime, rest)) = primes.split_first() else {
        all.push((number, divisors));
        return;
    };
    let is_limited = prime == limited.0;
    let mut exponent = 0;
    while number <= MAX_CAP && exponent <= if is_limited { limited.1 - 1 } else { most } {
        let most = if is_limited { most } else { exponent };
        grow(rest, limited, (number, divisors * (u64::from(exponent) + 1)), most, all);
        number *= prime;
        exponent += 1;
    }
}

fn last(records: &Records, cap: u64) -> (u64, u64) {
    records[records.partition_point(|(number, _)| *number <= cap) - 1]
}

/// The smallest number with the most divisors up to the cap, which is at least 1, and how many.
pub fn record(cap: u64) -> (u64, u64) {
    last(&ALL, cap)
}

/// A divisor of every number up to the cap whose number of divisors is `enough`, which more divisors always are, too.
pub fn shared(cap: u64, enough: impl Fn(u64) -> bool) -> u64 {
    let proven = |(prime, powers): &(u64, Vec<Records>)| {
        let powers = powers.iter().take_while(|records| !enough(last(records, cap).1));
        powers.map(|_| *prime).product::<u64>()
    };
    WITHOUT.iter().map(proven).product()
}

/// The number's primes and their exponents.
fn factors(mut number: u64, mut see: impl FnMut(u64, u32)) {
    let mut prime = 2;
    while prime * prime <= number {
        let mut exponent = 0;
        while number.is_multiple_of(prime) {
            number /= prime;
            exponent += 1;
        }
        if exponent > 0 {
            see(prime, exponent);
        }
        prime += 1 + prime % 2;
    }
    if number > 1 {
        see(number, 1);
    }
}

/// How many divisors the number has.
pub fn count(number: u64) -> u64 {
    let mut count = 1;
    factors(number, |_, exponent| count *= u64::from(exponent) + 1);
    count
}

/// Writes the number's divisors, in no order.
pub fn list(number: u64, divisors: &mut Vec<u64>) {
    divisors.clear();
    divisors.push(1);
    factors(number, |prime, exponent| {
        let before = divisors.len();
        for at in 0..before * exponent as usize {
            divisors.push(divisors[at] * prime);
        }
    });
}
