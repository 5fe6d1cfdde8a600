//! The batch that reaches the same loss soonest, over every split there is.
//!
//! A step of m = n·a·b samples brings the loss as far as EFF·m samples at the tuned batch m0 do, where
//! EFF = (φ + m0)/(φ + m) and φ is the noise scale (Pollux, OSDI 2021). What is to be made small is therefore
//! h(a, b) = T(a, b)·(φ + nab)/(nab). A replica's q = a·b samples are done fastest with few, large micro-batches, so
//! that among real numbers the best lies on a curve: a = 1 and b = q up to the cap on b, then b = cap and
//! a = q/cap. Along it h falls and then rises. Where its lowest point has a = 1, whole numbers have too, and only b
//! is to be found. Elsewhere T is linear in a: for each b from the cap down the best a is one of two, until the best
//! real a of a smaller b is no better than what was found.

use crate::forecast::{overlapped, overlapped_share};

/// One job on one cluster.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pair {
    /// n.
    pub replicas: u64,
    /// αc, seconds a micro-batch.
    pub compute_constant: f64,
    /// βc, seconds a sample.
    pub compute_per_sample: f64,
    /// No micro-batch takes less.
    pub compute_floor: f64,
    /// Seconds to reduce the gradients.
    pub sync_seconds: f64,
    /// γ.
    pub overlap: f64,
    /// Seconds a step, whatever the batch.
    pub update: f64,
    /// φ, in samples.
    pub noise_scale: f64,
    /// m0, in samples.
    pub tuned_batch: u64,
    /// No effective batch below this.
    pub min_batch: u64,
    /// No effective batch above this.
    pub max_batch: u64,
    /// No micro-batch above this.
    pub max_micro_batch: u64,
}

/// The best split of a [`Pair`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Best {
    /// Samples per replica per pass.
    pub micro_batch: u64,
    /// Passes per step.
    pub accumulation: u64,
    /// Seconds a step.
    pub step_seconds: f64,
    /// EFF.
    pub efficiency: f64,
    /// Samples a second, each worth one at the tuned batch.
    pub goodput: f64,
}

/// The split with the greatest goodput, exactly; none where no whole split lies between the batch limits. Of
/// equally good splits the one with the larger micro-batch.
#[must_use]
pub fn optimize(pair: &Pair) -> Option<Best> {
    let least = pair.min_batch.div_ceil(pair.replicas).max(1);
    let most = pair.max_batch / pair.replicas;
    let cap = pair.max_micro_batch.min(most);
    if least > most || cap == 0 {
        return None;
    }
    let cost = Cost { pair, phi: pair.noise_scale / pair.replicas as f64 };
    let one_pass = least <= cap && (cap == most || cost.one_pass_is_best(cap));
    let (value, micro_batch, accumulation) =
        if one_pass { cost.best_pass(least, cap) } else { cost.best_split(least, most, cap)? };
    let q = (micro_batch * accumulation) as f64;
    Some(pair.best(micro_batch, accumulation, value * q / (cost.phi + q)))
}

impl Pair {
    /// What a split brings.
    #[must_use]
    pub fn at(&self, micro_batch: u64, accumulation: u64) -> Best {
        let line = Cost { pair: self, phi: 0.0 }.line(micro_batch);
        self.best(micro_batch, accumulation, line.constant + accumulation as f64 * line.pass)
    }

    fn best(&self, micro_batch: u64, accumulation: u64, step_seconds: f64) -> Best {
        let batch = (self.replicas * micro_batch * accumulation) as f64;
        let efficiency = (self.noise_scale + self.tuned_batch as f64) / (self.noise_scale + batch);
        let goodput = batch / step_seconds * efficiency;
        Best { micro_batch, accumulation, step_seconds, efficiency, goodput }
    }
}

struct Cost<'a> {
    pair: &'a Pair,
    /// The noise scale per replica.
    phi: f64,
}

/// The step time at one micro-batch: constant + a·pass.
struct Line {
    constant: f64,
    pass: f64,
    micro_batch: f64,
}

impl Line {
    /// The best real number of passes.
    fn passes(&self, phi: f64) -> f64 {
        (self.constant * phi / (self.pass * self.micro_batch)).sqrt()
    }

    fn value(&self, passes: f64, phi: f64) -> f64 {
        let q = passes * self.micro_batch;
        (self.constant + passes * self.pass) * (phi + q) / q
    }
}

impl Cost<'_> {
    fn compute(&self, micro_batch: f64) -> f64 {
        (self.pair.compute_constant + self.pair.compute_per_sample * micro_batch).max(self.pair.compute_floor)
    }

    fn line(&self, micro_batch: u64) -> Line {
        let micro_batch = micro_batch as f64;
        let pass = self.compute(micro_batch);
        let last = overlapped(pass, self.pair.sync_seconds, self.pair.overlap);
        Line { constant: last - pass + self.pair.update, pass, micro_batch }
    }

    /// Whether more than one pass, at the cap, would be no gain among real numbers.
    fn one_pass_is_best(&self, cap: u64) -> bool {
        // Most often that is plain from the bound that nothing is hidden.
        let pass = self.compute(cap as f64);
        let shown =
            Line { constant: self.pair.sync_seconds + self.pair.update, pass, micro_batch: cap as f64 };
        shown.passes(self.phi) <= 1.0 || self.line(cap).passes(self.phi) <= 1.0
    }

    /// The best micro-batch in one pass, with its value and the pass.
    fn best_pass(&self, low: u64, high: u64) -> (f64, u64, u64) {
        let value = |b: u64| self.line(b).value(1.0, self.phi);
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // Clamped into a range of counts.
        let mut b = (self.real_micro_batch(high as f64).round() as u64).clamp(low, high);
        let mut here = value(b);
        // The value falls and then rises: walk down by growing strides, then by one; where both neighbours are
        // higher it ends.
        let mut stride = 1;
        loop {
            let neighbours = [b.saturating_sub(stride).max(low), b.saturating_add(stride).min(high)];
            let others = neighbours.into_iter().filter(|&next| next != b);
            let lower = others.map(|next| (value(next), next)).find(|&(there, _)| there < here);
            match (lower, stride) {
                (Some(found), _) => {
                    (here, b) = found;
                    stride *= 2;
                }
                (None, 1) => return (here, b, 1),
                (None, _) => stride = 1,
            }
        }
    }

    /// The real micro-batch at which one pass costs least: where the tangent of the step time, C + D·b, has its own
    /// best, √(C·φ/D), a few times over.
    fn real_micro_batch(&self, cap: f64) -> f64 {
        let pair = self.pair;
        let constant = pair.compute_constant + pair.sync_seconds + pair.update;
        let mut b = (constant * self.phi / pair.compute_per_sample).sqrt().clamp(1.0, cap);
        for _ in 0..20 {
            let linear = pair.compute_constant + pair.compute_per_sample * b;
            if linear < pair.compute_floor {
                // Still flat: larger is better up to where it rises.
                b = ((pair.compute_floor - pair.compute_constant) / pair.compute_per_sample).min(cap);
                continue;
            }
            let (last, share) = overlapped_share(linear, pair.sync_seconds, pair.overlap);
            // d(x^γ + s^γ)^(1/γ)/dx is the share times last/x.
            let slope = pair.compute_per_sample * share * last / linear;
            let next = ((last + pair.update - slope * b).max(0.0) * self.phi / slope).sqrt().clamp(1.0, cap);
            let moved = (next - b).abs();
            b = next;
            if moved < 0.25 {
                break;
            }
        }
        b
    }

    /// The best value, its micro-batch up to `cap` and its passes, for `least` to `most` samples a replica.
    fn best_split(&self, least: u64, most: u64, cap: u64) -> Option<(f64, u64, u64)> {
        let mut best = (f64::INFINITY, 0, 0);
        for b in (1..=cap).rev() {
            let line = self.line(b);
            let passes = line.passes(self.phi);
            let real = passes.clamp(least as f64 / line.micro_batch, most as f64 / line.micro_batch);
            if line.value(real, self.phi) >= best.0 {
                break;
            }
            let (few, many) = (least.div_ceil(b), most / b);
            #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
            // Clamped into a range of counts.
            let whole = real as u64;
            for a in [whole, whole + 1] {
                if few <= many {
                    let a = a.clamp(few, many);
                    let value = line.value(a as f64, self.phi);
                    if value < best.0 {
                        best = (value, b, a);
                    }
                }
            }
        }
        (best.2 > 0).then_some(best)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The greatest goodput of all splits, one by one.
    fn brute(pair: &Pair) -> Option<f64> {
        let most = pair.max_batch / pair.replicas;
        let splits = (1..=most).flat_map(|a| (1..=(most / a).min(pair.max_micro_batch)).map(move |b| (a, b)));
        let allowed = splits.filter(|(a, b)| a * b * pair.replicas >= pair.min_batch);
        allowed.map(|(a, b)| pair.at(b, a).goodput).reduce(f64::max)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(3000))]
        #[test]
        fn as_good_as_every_split(
            replicas in 1_u64..9,
            (constant, per_sample, floor) in (prop_oneof![Just(0.0), 1e-5..0.1_f64], 1e-5..0.05_f64,
                prop_oneof![Just(0.0), 0.0..0.5_f64]),
            sync in prop_oneof![Just(0.0), 1e-5..2.0_f64],
            overlap in 1.0..10.0_f64,
            update in prop_oneof![Just(0.0), 0.0..0.3_f64],
            log_noise in -2.0..12.0_f64,
            tuned_batch in 1_u64..400,
            extra in 0_u64..1200,
            below: bool,
            max_micro_batch in prop_oneof![1_u64..40, Just(1 << 40)],
        ) {
            let pair = Pair {
                replicas, compute_constant: constant, compute_per_sample: per_sample, compute_floor: floor,
                sync_seconds: sync, overlap, update, noise_scale: log_noise.exp(), tuned_batch,
                min_batch: if below { 1 } else { tuned_batch }, max_batch: tuned_batch + extra, max_micro_batch,
            };
            let found = optimize(&pair);
            prop_assert_eq!(found.is_some(), brute(&pair).is_some());
            if let Some(found) = found {
                let batch = found.micro_batch * found.accumulation * replicas;
                prop_assert!(pair.min_batch <= batch && batch <= pair.max_batch);
                prop_assert!(found.micro_batch <= max_micro_batch);
                prop_assert!(found.goodput >= brute(&pair).unwrap() * (1.0 - 1e-12), "{:?} {:?}", found, brute(&pair));
            }
        }
    }
}
