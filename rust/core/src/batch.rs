//! The exact batch split: effective batch = micro-batch × accumulation × replicas.

/// No effective batch may be larger; it bounds every search below to a million trials.
pub const MAX_BATCH: u64 = 1 << 40;

/// One replica's samples of a step, as `accumulation` micro-batches of `micro_batch` samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Split {
    /// Samples in a forward and backward pass.
    pub micro_batch: u64,
    /// Passes in an optimizer step.
    pub accumulation: u64,
}

/// The largest micro-batch ≤ `cap` that divides `samples` and is a multiple of `multiple`; `None` where there is none.
///
/// ```
/// use isobatch_core::batch::{Split, split};
/// assert_eq!(split(560, 100, 1), Some(Split { micro_batch: 80, accumulation: 7 }));
/// assert_eq!(split(560, 100, 9), None);
/// ```
#[must_use]
pub fn split(samples: u64, cap: u64, multiple: u64) -> Option<Split> {
    if cap < multiple {
        return None;
    }
    // Most plans ask for no multiple: they are spared the divisions.
    let (units, cap) = match multiple {
        1 => (samples, cap),
        _ if samples.is_multiple_of(multiple) => (samples / multiple, cap / multiple),
        _ => return None,
    };
    if units <= cap {
        return Some(Split { micro_batch: samples, accumulation: 1 });
    }
    let accumulation = smallest_divisor_from(units, units.div_ceil(cap));
    Some(Split { micro_batch: samples / accumulation, accumulation })
}

/// The smallest divisor of `n` that is at least `from` (1 ≤ from ≤ n).
pub(crate) fn smallest_divisor_from(n: u64, from: u64) -> u64 {
    let root = n.isqrt();
    // Below the root, divisors are tried upwards; above it, through their partners n/d, downwards.
    if let Some(d) = (from..=root).find(|&d| n.is_multiple_of(d)) {
        return d;
    }
    let partner = (1..=(n / from).min(root)).rev().find(|&d| n.is_multiple_of(d)).unwrap_or(1);
    n / partner
}

/// The ragged split: as few micro-batches as the cap allows, the last of them smaller. `samples` is the largest replica's.
#[must_use]
pub fn ragged(samples: u64, cap: u64) -> Split {
    let accumulation = samples.div_ceil(cap);
    Split { micro_batch: samples.div_ceil(accumulation), accumulation }
}

/// The multiples of `unit` next to `batch`, below (at least one `unit`) and above.
#[must_use]
pub fn neighbours(batch: u64, unit: u64) -> (Option<u64>, u64) {
    let below = batch / unit * unit;
    ((below > 0).then_some(below), below + unit)
}

/// Of the two neighbours the nearer one, ties to the smaller.
#[must_use]
pub fn nearer(of: u64, below: Option<u64>, above: Option<u64>) -> Option<u64> {
    match (below, above) {
        (Some(b), Some(a)) => Some(if of - b <= a - of { b } else { a }),
        (b, a) => b.or(a),
    }
}

/// The divisors of `n` next to `around`: the largest ≤ it and the smallest ≥ it.
#[must_use]
pub fn nearest_divisors(n: u64, around: u64) -> (u64, Option<u64>) {
    let above = (around <= n).then(|| smallest_divisor_from(n, around));
    let below = n / smallest_divisor_from(n, n.div_ceil(around));
    (below, above)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_divisors_of_a_large_prime_are_found_at_once() {
        let prime = 1_099_511_627_689; // the largest below 2^40
        assert_eq!(split(prime, 1 << 31, 1), Some(Split { micro_batch: 1, accumulation: prime }));
        assert_eq!(nearest_divisors(prime, 1 << 30), (1, Some(prime)));
    }

    proptest! {
        #[test]
        fn the_split_is_the_best_there_is(samples in 1u64..5000, cap in 1u64..600, multiple in 1u64..12) {
            let best = (1..=cap.min(samples)).rev().find(|m| samples % m == 0 && m % multiple == 0);
            let found = split(samples, cap, multiple);
            prop_assert_eq!(found.map(|s| s.micro_batch), best);
            if let Some(s) = found {
                prop_assert_eq!(s.micro_batch * s.accumulation, samples);
            }
        }

        #[test]
        fn a_larger_cap_never_gives_a_smaller_micro_batch(samples in 1u64..100_000, cap in 1u64..1000) {
            let small = split(samples, cap, 1).unwrap().micro_batch;
            prop_assert!(split(samples, cap + 1, 1).unwrap().micro_batch >= small);
        }

        #[test]
        fn nearest_divisors_are_the_nearest(n in 1u64..3000, around in 1u64..4000) {
            let (below, above) = nearest_divisors(n, around);
            prop_assert_eq!(Some(below), (1..=around).rev().find(|d| n % d == 0));
            prop_assert_eq!(above, (around..=n).find(|d| n % d == 0));
        }

        #[test]
        fn ragged_wastes_no_pass(samples in 1u64..10_000, cap in 1u64..500) {
            let s = ragged(samples, cap);
            prop_assert!(s.micro_batch <= cap);
            prop_assert!(s.micro_batch * s.accumulation >= samples);
            prop_assert!(s.micro_batch * (s.accumulation - 1) < samples);
            prop_assert_eq!(s.accumulation, samples.div_ceil(cap));
        }
    }
}
