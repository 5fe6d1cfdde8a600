//! Divisors: all of them, ascending, each with what it leaves; or the one next to a number.
use std::sync::OnceLock;

use super::index;
use super::prime::primes;

/// The divisors of the numbers below this are worked out once for all questions.
const KNOWN: usize = 1 << 13;

/// Fills in every (d, n/d) with d up to `most`.
fn divisors(n: u64, most: u64, divisor_pairs: &mut Vec<(u64, u64)>) {
    divisor_pairs.clear();
    if n < KNOWN as u64 {
        let known = known(index(n));
        let pairs = known.iter().zip(known.iter().rev());
        divisor_pairs.extend(pairs.map(|(&d, &left)| (u64::from(d), u64::from(left))));
        if n > most {
            divisor_pairs.truncate(divisor_pairs.partition_point(|&(d, _)| d <= most));
        }
        return;
    }
    divisor_pairs.push((1, n));
    let mut rest = n;
    for &p in primes() {
        // A prime above the largest divisor is in none; a rest below p² is prime.
        if rest == 1 || p > most {
            break;
        }
        let p = if p * p > rest { rest } else { p };
        let before = divisor_pairs.len();
        let mut power = 1;
        while rest.is_multiple_of(p) {
            rest /= p;
            power *= p;
            if power <= most {
                for i in 0..before {
                    let divisor = divisor_pairs[i].0 * power;
                    if divisor <= most {
                        divisor_pairs.push((divisor, n / divisor));
                    }
                }
            }
        }
    }
    divisor_pairs.sort_unstable();
}

/// Numbers that [`smallest_divisor_from`] tries one by one, in each direction.
const TRIALS: u64 = 1 << 12;

/// The smallest divisor of `n` that is at least `from` (1 ≤ from ≤ n ≤ 2^40).
///
/// One is nearly always found after few trials. Where it is not, as for a large prime, n is factored by the
/// known primes: 82,025 divisions at most, where trials took a million.
pub(crate) fn smallest_divisor_from(n: u64, from: u64) -> u64 {
    // Below the root, divisors are tried upwards; above it, through their partners n/d, downwards.
    let root = n.isqrt();
    let divides = |d: &u64| n.is_multiple_of(*d);
    if let Some(d) = (from..=root.min(from + TRIALS)).find(divides) {
        return d;
    }
    let last = (n / from).min(root);
    if root <= from + TRIALS
        && let Some(partner) = (last.saturating_sub(TRIALS).max(1)..=last).rev().find(divides)
    {
        return n / partner;
    }
    let mut small = Vec::new();
    divisors(n, root, &mut small);
    let partner = small[small.partition_point(|&(d, _)| d <= last) - 1].1;
    small.get(small.partition_point(|&(d, _)| d < from)).map_or(partner, |&(d, _)| d)
}

/// The divisors next to numbers, for one n after another: what is asked of the same n again is looked up.
#[derive(Debug, Default)]
pub(crate) struct DivisorsOf {
    n: u64,
    pairs: Vec<(u64, u64)>,
}

impl DivisorsOf {
    /// The largest divisor of `n` up to `around`, and the smallest from there on (1 ≤ around, 1 ≤ n ≤ 2^40).
    pub fn next_to(&mut self, n: u64, around: u64) -> (u64, Option<u64>) {
        if n < KNOWN as u64 {
            let known = known(index(n));
            let at = known.partition_point(|&d| u64::from(d) < around);
            let above = known.get(at).map(|&d| u64::from(d));
            return (above.filter(|&d| d == around).unwrap_or_else(|| u64::from(known[at - 1])), above);
        }
        if self.n != n {
            // Often it is asked but once.
            self.n = n;
            self.pairs.clear();
            let above = (around <= n).then(|| smallest_divisor_from(n, around));
            return (n / smallest_divisor_from(n, n.div_ceil(around)), above);
        }
        if self.pairs.is_empty() {
            divisors(n, n, &mut self.pairs);
        }
        let at = self.pairs.partition_point(|&(d, _)| d < around);
        let above = self.pairs.get(at).map(|&(d, _)| d);
        (above.filter(|&d| d == around).unwrap_or_else(|| self.pairs[at - 1].0), above)
    }
}

fn known(n: usize) -> &'static [u16] {
    struct Known {
        ends: Vec<usize>,
        divisors: Vec<u16>,
    }
    static ALL: OnceLock<Known> = OnceLock::new();
    let Known { ends, divisors } = ALL.get_or_init(|| {
        let mut ends = vec![0; KNOWN];
        for d in 1..KNOWN {
            (d..KNOWN).step_by(d).for_each(|n| ends[n] += 1);
        }
        for n in 1..KNOWN {
            ends[n] += ends[n - 1];
        }
        let mut divisors = vec![0; ends[KNOWN - 1]];
        let mut next = ends.clone();
        for (small, d) in (1_u16..).zip(1..KNOWN) {
            for n in (d..KNOWN).step_by(d) {
                divisors[next[n - 1]] = small;
                next[n - 1] += 1;
            }
        }
        Known { ends, divisors }
    });
    &divisors[ends[n - 1]..ends[n]]
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn the_smallest_divisor_is_that_of_trial_division(
            (n, from) in (1_u64..1 << 40).prop_flat_map(|n| (Just(n), 1..=n)),
            near_root in any::<bool>(),
            jitter in 1_u64..20_000,
        ) {
            let close = n.isqrt().saturating_sub(10_000).saturating_add(jitter).clamp(1, n);
            let from = if near_root { close } else { from };
            let divisor = smallest_divisor_from(n, from);
            prop_assert!(n.is_multiple_of(divisor) && divisor >= from);
            let mut all = Vec::new();
            divisors(n, n.isqrt(), &mut all);
            let both = all.iter().flat_map(|&(d, left)| [d, left]);
            prop_assert_eq!(both.filter(|&d| d >= from).min(), Some(divisor));
        }
    }

    #[test]
    fn remembered_divisors_are_the_nearest() {
        let mut again = DivisorsOf::default();
        for n in [1, 2, 12, 8191, 8192, 8192, 720_720, 1_048_573 * 3] {
            for around in [1, 2, 3, 7, 12, 90, 8191, 8192, 8193, 1 << 20, 1 << 40] {
                assert_eq!(
                    again.next_to(n, around),
                    crate::batch::nearest_divisors(n, around),
                    "{n} {around}"
                );
            }
        }
    }

    #[test]
    fn all_divisors_up_to_a_limit() {
        let mut divisor_pairs = vec![];
        for n in (1..300).chain(KNOWN as u64 - 9..KNOWN as u64 + 300).chain([720_720, 1 << 20, 1_048_573 * 3])
        {
            for most in [1, 7, 100, n] {
                divisors(n, most, &mut divisor_pairs);
                let expected: Vec<_> =
                    (1..=n.min(most)).filter(|d| n.is_multiple_of(*d)).map(|d| (d, n / d)).collect();
                assert_eq!(divisor_pairs, expected);
            }
        }
    }
}
