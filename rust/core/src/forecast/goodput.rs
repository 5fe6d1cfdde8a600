//! The batch that reaches the same loss soonest, over every split there is.
//!
//! A step of m = n·a·b samples brings the loss as far as EFF·m samples at the tuned batch m0 do, where
//! EFF = (φ + m0)/(φ + m) and φ is the noise scale (Pollux, OSDI 2021). What is to be made small is therefore
//! h(a, b) = T(a, b)·(φ + nab)/(nab). A replica's q = a·b samples are done fastest with few, large
//! micro-batches, so that among real numbers the best lies on a curve: a = 1 and b = q up to the cap on b,
//! then b = cap and a = q/cap. Along it h falls and then rises. Where its lowest point has a = 1, whole
//! numbers have too, and only b is to be found. Elsewhere T is linear in a: for each b from the cap down the
//! best a is one of two, until the best real a of a smaller b is no better than what was found.
//!
//! Tried: looking at every b costs a last pass each, some 20 ns; a bound on it by its tangent at the
//! last one looked at, which the last pass, convex in b, never goes below, leaves a few of them.
//! Where passes cost next to nothing beside the samples, h is as good as flat in b
//! and the bound never ends the search: after `LOOKS` micro-batches the numbers of passes are looked at
//! instead, each with its own best b. Such flat stretches differ by less than the rounding to whole passes,
//! one part in 2^16 or so.

use super::model::last_pass;

/// A job on a cluster, whose split is to be found.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Case {
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
    /// ℓ, the share of a pass that no reducing hides behind.
    pub lead: f64,
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

/// The best split of a [`Case`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Best {
    /// Samples per replica per pass.
    pub micro_batch: u64,
    /// Passes per step.
    pub accumulation: u64,
    /// Samples a second, each worth one at the tuned batch.
    pub goodput: f64,
}

/// Micro-batches that are looked at one by one, and then numbers of passes: what bounds a row's work, to
/// about a millisecond.
const LOOKS: usize = 1 << 16;
const PASSES: u64 = 1 << 8;

/// The split with the greatest goodput; none where no whole split lies between the batch limits, or none
/// takes a finite time. Exact up to micro-batches of 2^16, and beyond wherever a bound ends the search. Of
/// equally good splits the one with the larger micro-batch.
#[must_use]
pub fn optimize(case: &Case) -> Option<Best> {
    let least = case.min_batch.div_ceil(case.replicas).max(1);
    let most = case.max_batch / case.replicas;
    let cap = case.max_micro_batch.min(most);
    if least > most || cap == 0 {
        return None;
    }
    let cost = Cost { case, phi: case.noise_scale / case.replicas as f64 };
    let one_pass = least <= cap && (cap == most || cost.one_pass_is_best(cap));
    let (value, micro_batch, accumulation) =
        if one_pass { cost.best_pass(least, cap) } else { cost.best_split(least, most, cap) };
    if !value.is_finite() {
        return None;
    }
    let q = (micro_batch * accumulation) as f64;
    Some(case.best(micro_batch, accumulation, value * q / (cost.phi + q)))
}

impl Case {
    /// Whether a whole split lies between the limits.
    pub(crate) fn has_split(&self) -> bool {
        let most = self.max_batch / self.replicas;
        self.min_batch.div_ceil(self.replicas).max(1) <= most && self.max_micro_batch > 0 && most > 0
    }

    /// No split brings more goodput than this, which takes no search.
    ///
    /// A replica's q samples in a passes of at most `max_micro_batch` take a·x ≥ αc·a + βc·q seconds, with a
    /// ≥ 1 and a ≥ q/max, and the last pass is no shorter than itself, than ℓx + s, and than w((1−ℓ)x + s) +
    /// ℓx with w = 2^(1/γ − 1) (the mean of powers is no less than the power of the mean). So a step is above
    /// four lines A + C·q; on each the best of all real q from the least on is √(φA/C).
    pub(crate) fn goodput_bound(&self) -> f64 {
        let Case { compute_constant, compute_per_sample, sync_seconds, lead, update, .. } = *self;
        let replicas = self.replicas as f64;
        let least = self.min_batch.div_ceil(self.replicas).max(1) as f64;
        let phi = self.noise_scale / replicas;
        let shared = (1.0 / self.overlap - 1.0).exp2();
        let share = lead + shared * (1.0 - lead);
        let lines = [
            (update + compute_constant, compute_per_sample),
            (update, compute_per_sample + compute_constant / self.max_micro_batch as f64),
            (update + sync_seconds + lead * compute_constant, lead * compute_per_sample),
            (update + shared * sync_seconds + share * compute_constant, share * compute_per_sample),
        ];
        let best = |(constant, slope): (f64, f64)| {
            let samples = (phi * constant / slope).sqrt().max(least);
            1.0 / ((constant / samples + slope) * (phi + samples))
        };
        // A line without a slope gives NaN, and bounds nothing.
        let most = lines.map(best).into_iter().fold(f64::INFINITY, f64::min);
        most * (self.noise_scale + self.tuned_batch as f64)
    }

    fn best(&self, micro_batch: u64, accumulation: u64, step_seconds: f64) -> Best {
        let batch = (self.replicas * micro_batch * accumulation) as f64;
        let efficiency = (self.noise_scale + self.tuned_batch as f64) / (self.noise_scale + batch);
        Best { micro_batch, accumulation, goodput: batch / step_seconds * efficiency }
    }
}

struct Cost<'a> {
    case: &'a Case,
    /// The noise scale per replica.
    phi: f64,
}

/// The step time at one micro-batch: constant + a·pass.
#[derive(Clone, Copy)]
struct StepTime {
    constant: f64,
    pass: f64,
    micro_batch: f64,
}

impl StepTime {
    /// The best real number of passes.
    fn passes(&self, phi: f64) -> f64 {
        (self.constant * phi / (self.pass * self.micro_batch)).sqrt()
    }

    fn value(&self, passes: f64, phi: f64) -> f64 {
        let q = passes * self.micro_batch;
        (self.constant + passes * self.pass) * (phi + q) / q
    }
}

/// The pass that hides the reducing, at one micro-batch: seconds, and how they rise with the micro-batch.
#[derive(Clone, Copy)]
struct LastPass {
    micro_batch: f64,
    seconds: f64,
    rise: f64,
}

impl Cost<'_> {
    fn compute(&self, micro_batch: f64) -> f64 {
        (self.case.compute_constant + self.case.compute_per_sample * micro_batch).max(self.case.compute_floor)
    }

    fn line(&self, micro_batch: f64, pass: f64, last: f64) -> StepTime {
        StepTime { constant: last - pass + self.case.update, pass, micro_batch }
    }

    fn exactly(&self, micro_batch: u64) -> (StepTime, LastPass) {
        let b = micro_batch as f64;
        let pass = self.compute(b);
        let (seconds, rise) = last_pass(pass, self.case.sync_seconds, self.case.lead, self.case.overlap);
        let rises = pass > self.case.compute_floor;
        let rise = if rises { self.case.compute_per_sample * rise } else { 0.0 };
        (self.line(b, pass, seconds), LastPass { micro_batch: b, seconds, rise })
    }

    /// A line no higher than the one at a micro-batch, cheaply: the last pass, convex in it, lies above its
    /// tangents.
    fn at_least(&self, micro_batch: u64, tangent: LastPass) -> StepTime {
        let b = micro_batch as f64;
        let pass = self.compute(b);
        let last = tangent.seconds + tangent.rise * (b - tangent.micro_batch);
        self.line(b, pass, last.max(pass).max(self.case.sync_seconds))
    }

    /// Whether more than one pass, at the cap, would be no gain among real numbers.
    fn one_pass_is_best(&self, cap: u64) -> bool {
        // Most often that is plain from the bound that nothing is hidden.
        let b = cap as f64;
        let pass = self.compute(b);
        let shown = self.line(b, pass, pass + self.case.sync_seconds);
        shown.passes(self.phi) <= 1.0 || self.exactly(cap).0.passes(self.phi) <= 1.0
    }

    /// The best micro-batch in one pass, with its value and the pass.
    fn best_pass(&self, mut low: u64, high: u64) -> (f64, u64, u64) {
        let case = self.case;
        let mut best = (f64::INFINITY, 0, 1);
        let mut look = |b: u64| {
            let (line, last) = self.exactly(b);
            let value = line.value(1.0, self.phi);
            if value < best.0 || (value <= best.0 && b > best.1) {
                best = (value, b, 1);
            }
            last
        };
        // Up to where the time rises at all, larger is better.
        let flat = (case.compute_floor - case.compute_constant) / case.compute_per_sample;
        let flat = whole(flat).min(high);
        if flat >= low {
            look(flat);
            low = flat + 1;
        }
        // The value falls and then rises: its lowest point lies between a micro-batch where it falls and the
        // next, where it rises. At each, the tangent of the step time, C + D·b, has its own best, √(C·φ/D),
        // to go on with.
        let (mut falls, mut rises) = (low - 1, high + 1);
        let shown = case.compute_constant + case.sync_seconds + case.update;
        let mut guess = (shown * self.phi / case.compute_per_sample).sqrt();
        let mut before = (0.0, f64::INFINITY);
        for looks in 1.. {
            if rises - falls <= 1 {
                break;
            }
            let b = whole(guess).clamp(falls + 1, rises - 1);
            let LastPass { micro_batch: x, seconds, rise } = look(b);
            let ahead = ((seconds + case.update - rise * x).max(0.0) * self.phi / rise).sqrt() - x;
            if ahead > 0.0 {
                falls = b;
            } else {
                rises = b;
            }
            // From both sides of it, the line through the two distances finds it sooner.
            let (was, ahead_was) = before;
            guess = if looks > 6 {
                (falls + (rises - falls) / 2) as f64
            } else if ahead_was.is_finite() && (ahead > 0.0) != (ahead_was > 0.0) {
                x + ahead * (x - was) / (ahead_was - ahead)
            } else {
                x + ahead
            };
            before = (x, ahead);
        }
        best
    }

    /// The best value, its micro-batch up to `cap` and its passes, for `least` to `most` samples a replica;
    /// an infinite value where none is finite.
    fn best_split(&self, least: u64, most: u64, cap: u64) -> (f64, u64, u64) {
        let mut best = (f64::INFINITY, 0, 0);
        let (first, mut tangent) = self.exactly(cap);
        for (looks, b) in (1..=cap).rev().enumerate() {
            if looks == LOOKS {
                let from = whole(first.passes(self.phi)).saturating_sub(1);
                return self.best_passes(from, least, most, cap, best);
            }
            let mut line = self.at_least(b, tangent);
            let real = |line: &StepTime| {
                let passes = line.passes(self.phi);
                passes.clamp(least as f64 / line.micro_batch, most as f64 / line.micro_batch)
            };
            let passes = real(&line);
            if line.value(passes, self.phi) >= best.0 {
                break;
            }
            let (few, many) = (least.div_ceil(b), most / b);
            let near =
                |passes: f64| [whole(passes), whole(passes).saturating_add(1)].map(|a| a.clamp(few, many));
            if few > many || near(passes).into_iter().all(|a| line.value(a as f64, self.phi) >= best.0) {
                continue;
            }
            (line, tangent) = self.exactly(b);
            for a in near(real(&line)) {
                let value = line.value(a as f64, self.phi);
                if value < best.0 {
                    best = (value, b, a);
                }
            }
        }
        best
    }

    /// As [`best_split`](Cost::best_split), by the passes from some number on, each with its best
    /// micro-batch; `best` where none is better.
    fn best_passes(
        &self,
        from: u64,
        least: u64,
        most: u64,
        cap: u64,
        mut best: (f64, u64, u64),
    ) -> (f64, u64, u64) {
        let few = least.div_ceil(cap).max(1);
        for passes in from.clamp(few, most)..=most.min(from.max(few).saturating_add(PASSES)) {
            let value = |b: u64| self.exactly(b).0.value(passes as f64, self.phi);
            // The value falls and then rises with the micro-batch.
            let (mut low, mut high) = (least.div_ceil(passes).max(1), cap.min(most / passes));
            while low < high {
                let middle = low + (high - low) / 2;
                if value(middle) < value(middle + 1) {
                    high = middle;
                } else {
                    low = middle + 1;
                }
            }
            if low == high && value(low) < best.0 {
                best = (value(low), low, passes);
            }
        }
        best
    }
}

/// A real as a count: what lies outside of the counts becomes the nearest.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
fn whole(real: f64) -> u64 {
    real as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The goodput of a split.
    fn at(case: &Case, micro_batch: u64, accumulation: u64) -> f64 {
        let (line, _) = Cost { case, phi: 0.0 }.exactly(micro_batch);
        case.best(micro_batch, accumulation, line.constant + accumulation as f64 * line.pass).goodput
    }

    /// The greatest goodput of all splits, one by one.
    fn brute(case: &Case) -> Option<f64> {
        let most = case.max_batch / case.replicas;
        let splits = (1..=most).flat_map(|a| (1..=(most / a).min(case.max_micro_batch)).map(move |b| (a, b)));
        let allowed = splits.filter(|(a, b)| a * b * case.replicas >= case.min_batch);
        allowed.map(|(a, b)| at(case, b, a)).reduce(f64::max)
    }

    const EASY: Case = Case {
        replicas: 1,
        compute_constant: 0.01,
        compute_per_sample: 0.001,
        compute_floor: 0.0,
        sync_seconds: 0.1,
        overlap: 2.0,
        lead: 0.0,
        update: 0.0,
        noise_scale: 1e4,
        tuned_batch: 64,
        min_batch: 64,
        max_batch: 1 << 40,
        max_micro_batch: i32::MAX as u64,
    };

    #[test]
    fn the_search_ends_at_the_largest_batches() {
        for compute_constant in [0.0, 1e-12, 1e-6] {
            for noise_scale in [1.0, 1e9, 1e14] {
                let case =
                    Case { compute_constant, noise_scale, min_batch: 1 << 34, tuned_batch: 1 << 34, ..EASY };
                let started = std::time::Instant::now();
                let best = optimize(&case).unwrap();
                assert!(started.elapsed().as_millis() < 500, "{case:?}");
                // No split beats the best curve among real numbers by much.
                let splits = [(1 << 30, 16), (1 << 30, 32), (i32::MAX as u64, 9), ((1 << 30) + 12_345, 17)];
                for (b, a) in splits {
                    assert!(at(&case, b, a) <= best.goodput * (1.0 + 1e-4), "{case:?} {best:?}");
                }
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(3000))]
        #[test]
        fn the_optimum_is_as_good_as_every_split(
            replicas in 1_u64..9,
            (constant, per_sample, floor) in (prop_oneof![Just(0.0), 1e-5..0.1_f64], 1e-5..0.05_f64,
                prop_oneof![Just(0.0), 0.0..0.5_f64]),
            sync in prop_oneof![Just(0.0), 1e-5..2.0_f64],
            overlap in 1.0..10.0_f64,
            lead in prop_oneof![Just(0.0), 0.0..1.0_f64],
            update in prop_oneof![Just(0.0), 0.0..0.3_f64],
            log_noise in -2.0..12.0_f64,
            tuned_batch in 1_u64..400,
            extra in 0_u64..1200,
            below: bool,
            max_micro_batch in prop_oneof![1_u64..40, Just(1 << 40)],
        ) {
            let case = Case {
                replicas, compute_constant: constant, compute_per_sample: per_sample, compute_floor: floor,
                sync_seconds: sync, overlap, lead, update, noise_scale: log_noise.exp(), tuned_batch,
                min_batch: if below { 1 } else { tuned_batch },
                max_batch: tuned_batch + extra, max_micro_batch,
            };
            let optimum = optimize(&case);
            prop_assert_eq!(optimum.is_some(), brute(&case).is_some());
            if let Some(best_split) = optimum {
                let batch = best_split.micro_batch * best_split.accumulation * replicas;
                prop_assert!(case.min_batch <= batch && batch <= case.max_batch);
                prop_assert!(best_split.micro_batch <= max_micro_batch);
                let best = brute(&case).unwrap();
                prop_assert!(best_split.goodput >= best * (1.0 - 1e-12), "{:?} {:?}", best_split, best);
                let bound = case.goodput_bound();
                prop_assert!(best_split.goodput <= bound * (1.0 + 1e-12), "{:?} {}", best_split, bound);
            }
        }
    }
}
