//! The exact batch split: effective batch = micro-batch × accumulation × replicas.

use crate::numbers::{self, smallest_divisor_from};

/// No effective batch may be larger: its prime factors are then found by primes that are known.
pub const MAX_BATCH: u64 = numbers::MOST * numbers::MOST;

/// One replica's samples of a step, as `accumulation` micro-batches of `micro_batch` samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Split {
    /// Samples in a forward and backward pass.
    pub micro_batch: u64,
    /// Passes in an optimizer step.
    pub accumulation: u64,
}

/// The largest micro-batch ≤ `cap` that divides `samples` and is a multiple of `multiple`, as 80 × 7 of 560
/// up to 100; `None` where there is none.
pub(crate) fn split(samples: u64, cap: u64, multiple: u64) -> Option<Split> {
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

/// The ragged split: as few micro-batches as the cap allows, the last of them smaller. `samples` is the
/// largest replica's.
pub(crate) fn ragged(samples: u64, cap: u64) -> Split {
    let accumulation = samples.div_ceil(cap);
    Split { micro_batch: samples.div_ceil(accumulation), accumulation }
}

/// The multiples of `unit` next to `batch`, below (at least one `unit`) and above.
pub(crate) fn neighbours(batch: u64, unit: u64) -> (Option<u64>, u64) {
    let below = batch / unit * unit;
    ((below > 0).then_some(below), below + unit)
}

/// Of the two neighbours the nearer one, ties to the smaller.
pub(crate) fn nearer(of: u64, below: Option<u64>, above: Option<u64>) -> Option<u64> {
    match (below, above) {
        (Some(b), Some(a)) => Some(if of - b <= a - of { b } else { a }),
        (b, a) => b.or(a),
    }
}

/// How far a batch is from the one that was asked for, as a fraction of it.
pub(crate) fn change(batch: u64, target: u64) -> f64 {
    batch.abs_diff(target) as f64 / target as f64
}

/// Batches and accumulations that [`tolerated`] looks at, each.
const MOST_TRIALS: usize = 4096;

/// The batches that may be taken instead of one that does not divide.
#[derive(Clone, Copy, Debug)]
pub struct Tolerance {
    /// The batch that was asked for.
    pub target: u64,
    /// They are multiples of this,
    pub unit: u64,
    /// not below this, a multiple of the unit,
    pub least: u64,
    /// not above this,
    pub most: u64,
    /// and no further from the target than this fraction of it.
    pub share: f64,
}

impl Tolerance {
    /// The first and the last, in units; `None` where there are none.
    pub(crate) fn units(&self) -> Option<(u64, u64)> {
        let Tolerance { target, unit, least, most, share } = *self;
        let within = |units: u64| change(units * unit, target) <= share;
        #[allow(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "at most the target, which is below 2^53"
        )]
        let far = (target as f64 * share) as u64 + 1;
        let low = (target.saturating_sub(far).max(least) / unit).max(1);
        let high = target.saturating_add(far).min(most) / unit;
        // The float may be off by one at either end.
        let low = (low..=high).take(3).find(|&units| within(units))?;
        let high = (low..=high).rev().take(3).find(|&units| within(units))?;
        Some((low, high))
    }

    /// The numbers of units from `low` to `high`, those next to the target first, ties to the smaller.
    fn outwards(&self, low: u64, high: u64) -> impl Iterator<Item = u64> + use<> {
        let Tolerance { target, unit, .. } = *self;
        let (mut under, mut over) = ((target / unit).min(high), (target / unit + 1).max(low));
        std::iter::from_fn(move || {
            let (below, above) =
                ((under >= low).then_some(under * unit), (over <= high).then_some(over * unit));
            let batch = nearer(target, below, above)?;
            if Some(batch) == below {
                under -= 1;
            } else {
                over += 1;
            }
            Some(batch / unit)
        })
        .take(MOST_TRIALS)
    }
}

/// The batch to take instead of one that does not divide: of those within the tolerance whose micro-batch is
/// at least ¾ of the largest that any of them allows, the nearest one, ties to the smaller.
///
/// `micro_batch` gives that of a number of units, 0 where it has none. Where it is the largest divisor of
/// that number up to a `cap`, that is given too: the largest of all is then found without looking at each.
///
/// The nearest of all may be a multiple of a prime, and then its micro-batch is 1: that costs more than a
/// batch a little further. Of 256 on 3 replicas up to 4 samples it is 252 = 4 × 21 × 3; the nearest, 255, is
/// 1 × 85 × 3. `None` where nothing is found in a bounded number of trials, as with a cap of millions and a
/// tolerance of millionths.
pub(crate) fn tolerated(
    within: Tolerance,
    cap: Option<u64>,
    micro_batch: impl Fn(u64) -> u64,
) -> Option<u64> {
    let (low, high) = within.units()?;
    let largest = match cap {
        Some(cap) => largest_micro_batch(low, high, cap)?,
        None => within.outwards(low, high).map(&micro_batch).max()?,
    };
    let fits = |units: &u64| {
        let micro_batch = micro_batch(*units);
        micro_batch > 0 && 4 * micro_batch >= 3 * largest
    };
    within.outwards(low, high).find(fits).map(|units| units * within.unit)
}

/// The largest micro-batch up to `cap` that divides any number of samples from `low` to `high`.
fn largest_micro_batch(low: u64, high: u64, cap: u64) -> Option<u64> {
    // The more passes, the smaller it is; in so many passes it lies in the range, or not at all.
    let fewest = low.div_ceil(cap);
    (fewest..)
        .take(MOST_TRIALS)
        .map(|passes| (passes, (high / passes).min(cap)))
        .find_map(|(passes, micro)| (micro * passes >= low).then_some(micro).filter(|&micro| micro > 0))
}

/// The divisors of `n` next to `around`: the largest ≤ it and the smallest ≥ it.
pub(crate) fn nearest_divisors(n: u64, around: u64) -> (u64, Option<u64>) {
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
        fn the_batch_within_the_tolerance_is_the_best_there_is(
            target in 1u64..3000, replicas in 1u64..40, divisor in 1u64..5, cap in 1u64..200,
            tolerance in 0.0..0.9, most in 1u64..4000,
        ) {
            let unit = replicas * divisor;
            let micro = |batch: u64| {
                split(batch / replicas, cap, divisor).map_or(0, |split| split.micro_batch)
            };
            let within: Vec<u64> = (1..=most / unit)
                .map(|units| units * unit)
                .filter(|&batch| change(batch, target) <= tolerance)
                .collect();
            let largest = within.iter().map(|&batch| micro(batch)).max().unwrap_or(0);
            let best = within
                .iter()
                .copied()
                .filter(|&batch| micro(batch) > 0 && 4 * micro(batch) >= 3 * largest)
                .min_by_key(|&batch| (batch.abs_diff(target), batch));
            prop_assume!(cap >= divisor);
            let within = Tolerance { target, unit, least: unit, most, share: tolerance };
            let units = |units: u64| split(units, cap / divisor, 1).map_or(0, |split| split.micro_batch);
            prop_assert_eq!(tolerated(within, Some(cap / divisor), units), best);
            prop_assert_eq!(tolerated(within, None, units), best);
        }

        #[test]
        fn nearest_divisors_are_the_nearest(n in 1u64..3000, around in 1u64..4000) {
            let (below, above) = nearest_divisors(n, around);
            prop_assert_eq!(Some(below), (1..=around).rev().find(|d| n % d == 0));
            prop_assert_eq!(above, (around..=n).find(|d| n % d == 0));
        }

    }
}
