//! How long a step takes, how much memory it needs, and how sure that is.
//!
//! One micro-batch of b samples takes x = max(floor, αc + βc·b). The gradients are reduced during the last of
//! the a micro-batches, in s seconds. Nothing hides behind its lead, the share ℓ that runs before the first
//! gradients are ready; behind the rest, as much as γ says: a step takes (a − 1)·x + ℓx + (((1−ℓ)x)^γ +
//! s^γ)^(1/γ) + the update (Qiao et al., Pollux, OSDI 2021, is ℓ = 0; the all-reduce knows the gradient's
//! bytes in place of Pollux's line in the replica count).

use super::allreduce::{AllReduceTable, ring, tree};
use super::{Constant, Link, Placement, Shape};

/// The constants of a workload on one kind of GPU and network. One that is not known is NaN, and so is every
/// forecast that needs it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Profile {
    /// αc, seconds a micro-batch.
    pub compute_constant: Constant,
    /// βc, seconds a sample.
    pub compute_per_sample: Constant,
    /// No micro-batch takes less than this many seconds: below it, time is no longer linear in the samples.
    pub compute_floor: Constant,
    /// Seconds a step, whatever the batch: the optimizer.
    pub update: Constant,
    /// Bytes of gradient of one replica.
    pub gradient_bytes: f64,
    /// All-reduces that these bytes go in: each has its messages.
    pub buckets: f64,
    /// The links inside a node.
    pub intra: Link,
    /// The links between nodes.
    pub inter: Link,
    /// γ from 1 (nothing is hidden) to 10 (all that can be).
    pub overlap: Constant,
    /// ℓ from 0 to 1.
    pub lead: Constant,
    /// Bytes whatever the micro-batch.
    pub memory_fixed: Constant,
    /// Bytes that the replicas share: each holds its part (`ZeRO`, FSDP).
    pub memory_sharded: Constant,
    /// Bytes a sample of the micro-batch.
    pub memory_per_sample: Constant,
    /// Relative scatter of what was measured around the model, as half the width of a 95 % interval.
    pub scatter: f64,
    /// The measured ranges.
    pub measured: Measured,
}

/// The ranges that were measured, both ends in them.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Measured {
    /// Samples a micro-batch.
    pub micro_batch: (u64, u64),
    /// Replicas inside a node.
    pub replicas_per_node: (u64, u64),
    /// Nodes.
    pub nodes: (u64, u64),
}

/// The expected times and memory of a [`Shape`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Forecast {
    /// Seconds to reduce the gradients.
    pub sync_seconds: f64,
    /// Seconds a step.
    pub step_seconds: f64,
    /// Half the width of its 95 % interval, from the errors of the constants and the scatter.
    pub step_error: f64,
    /// Samples a second, over all replicas.
    pub samples_per_second: f64,
    /// Speed over that of the same split without any reducing, 0 to 1.
    pub efficiency: f64,
    /// Bytes on one GPU; NaN where memory was not measured.
    pub memory_bytes: f64,
    /// Whether the profile was measured here; otherwise the forecast reaches beyond it.
    pub inside: bool,
    /// Whether the reducing is from the table of measured ones; otherwise it is the formula's, with fitted
    /// constants.
    pub sync_measured: bool,
}

impl Profile {
    /// Seconds of one micro-batch, forward and backward.
    pub(crate) fn compute_seconds(&self, micro_batch: f64) -> f64 {
        (self.compute_constant.value + self.compute_per_sample.value * micro_batch)
            .max(self.compute_floor.value)
    }

    /// Seconds to reduce the gradients over all replicas, by the formula: a ring inside each node, then
    /// across nodes a ring or a tree, whichever is faster.
    #[must_use]
    pub fn sync_by_formula(&self, placement: Placement, model_parallel: u64, gpus_per_node: u64) -> f64 {
        // Each GPU reduces its shard; what leaves a node is the shards of all its GPUs.
        let shard = self.gradient_bytes / self.buckets / model_parallel as f64;
        let leaving = shard * model_parallel.min(gpus_per_node) as f64;
        let across =
            ring(placement.groups, leaving, self.inter).min(tree(placement.groups, leaving, self.inter));
        self.buckets * (ring(placement.per_node, shard, self.intra) + across)
    }

    /// Seconds to reduce the gradients, from the table where it reaches, and whether it does.
    #[must_use]
    pub fn sync_seconds(&self, shape: &Shape, table: &AllReduceTable) -> (f64, bool) {
        let placement = Placement::of(shape);
        let seconds = self.sync_by_formula(placement, shape.model_parallel, shape.gpus_per_node);
        // The table's all-reduces are of whole gradients, one on a link at a time.
        let factor = if shape.model_parallel == 1 { table.factor(placement) } else { None };
        (seconds * factor.unwrap_or(1.0), factor.is_some() || placement.all == 1)
    }

    /// Seconds a step, given the seconds of one reducing.
    #[must_use]
    pub fn step_seconds(&self, micro_batch: u64, accumulation: u64, sync_seconds: f64) -> f64 {
        let compute = self.compute_seconds(micro_batch as f64);
        let (last, _) = last_pass(compute, sync_seconds, self.lead.value, self.overlap.value);
        (accumulation - 1) as f64 * compute + last + self.update.value
    }

    /// Seconds that a step takes at least: as [`step_seconds`](Self::step_seconds), with all hidden of the
    /// reducing that can be.
    pub(crate) fn least_step_seconds(&self, micro_batch: u64, accumulation: u64, sync_seconds: f64) -> f64 {
        let compute = self.compute_seconds(micro_batch as f64);
        let last = compute.max(self.lead.value * compute + sync_seconds);
        (accumulation - 1) as f64 * compute + last + self.update.value
    }

    /// The forecast of a shape.
    #[must_use]
    pub fn forecast(&self, shape: &Shape, table: &AllReduceTable) -> Forecast {
        let placement = Placement::of(shape);
        let (sync_seconds, sync_measured) = self.sync_seconds(shape, table);
        let step_seconds = self.step_seconds(shape.micro_batch, shape.accumulation, sync_seconds);
        let mut variance = (self.scatter * step_seconds).powi(2);
        self.each_moved(|moved| {
            // A measured time does not depend on the constants of the formula.
            let sync = if sync_measured {
                sync_seconds
            } else {
                moved.sync_by_formula(placement, shape.model_parallel, shape.gpus_per_node)
            };
            variance +=
                (moved.step_seconds(shape.micro_batch, shape.accumulation, sync) - step_seconds).powi(2);
        });
        let unhindered = self.step_seconds(shape.micro_batch, shape.accumulation, 0.0);
        let samples = shape.micro_batch * shape.accumulation * placement.all;
        let within = |value: u64, (low, high): (u64, u64)| low <= value && value <= high;
        Forecast {
            sync_seconds,
            step_seconds,
            step_error: variance.sqrt(),
            samples_per_second: samples as f64 / step_seconds,
            efficiency: unhindered / step_seconds,
            memory_bytes: self.memory_bytes(shape.micro_batch, placement.all),
            inside: within(shape.micro_batch, self.measured.micro_batch)
                && within(placement.per_node, self.measured.replicas_per_node)
                && within(placement.groups, self.measured.nodes),
            sync_measured,
        }
    }

    /// Calls `work` with each of the uncertain constants moved by its error, one at a time: a copy of the
    /// profile for each would take a sixth of a plan.
    fn each_moved(&self, mut work: impl FnMut(&Profile)) {
        let constants: [fn(&mut Profile) -> &mut Constant; 10] = [
            |p| &mut p.compute_constant,
            |p| &mut p.compute_per_sample,
            |p| &mut p.compute_floor,
            |p| &mut p.update,
            |p| &mut p.intra.latency,
            |p| &mut p.intra.per_byte,
            |p| &mut p.inter.latency,
            |p| &mut p.inter.per_byte,
            |p| &mut p.overlap,
            |p| &mut p.lead,
        ];
        let mut moved = *self;
        for pick in constants {
            let Constant { value, error } = *pick(&mut moved);
            if error > 0.0 {
                pick(&mut moved).value = value + error;
                work(&moved);
                pick(&mut moved).value = value;
            }
        }
    }

    /// Bytes on one GPU of so many replicas; NaN where memory was not measured.
    #[must_use]
    pub fn memory_bytes(&self, micro_batch: u64, replicas: u64) -> f64 {
        let states = self.memory_fixed.value + self.memory_sharded.value / replicas as f64;
        states + self.memory_per_sample.value * micro_batch as f64
    }

    /// The largest micro-batch that fits into this many bytes on one of so many replicas, up to `most`; none
    /// where not even one sample does.
    pub(crate) fn largest_micro_batch(&self, bytes: f64, replicas: u64, most: u64) -> Option<u64> {
        let fits = |b: u64| self.memory_bytes(b, replicas) <= bytes;
        // The last that fits: `low` always does, `high` never.
        let (mut low, mut high) = (0, most + 1);
        while high - low > 1 {
            let middle = low + (high - low) / 2;
            if fits(middle) {
                low = middle;
            } else {
                high = middle;
            }
        }
        (low > 0).then_some(low)
    }
}

/// The time of the pass that the reducing may hide behind, and how it rises with the seconds x of
/// computation: ℓx and, of the rest and the reducing s, their sum at γ = 1, the longer at ∞: ℓx + (((1−ℓ)x)^γ
/// + s^γ)^(1/γ).
#[must_use]
pub(crate) fn last_pass(compute: f64, sync: f64, lead: f64, gamma: f64) -> (f64, f64) {
    let rest = (1.0 - lead) * compute;
    let (long, short) = if rest > sync { (rest, sync) } else { (sync, rest) };
    // (short/long)^γ, by its logarithm: nothing overflows, and what would not be seen beside 1 is not
    // computed.
    let log_power = gamma * (short / long).ln();
    let (seconds, share) = if log_power > -37.0 {
        let power = log_power.exp();
        let sum = 1.0 + power;
        (long * (sum.ln() / gamma).exp(), if rest > sync { 1.0 } else { power } / sum)
    } else {
        (long, if rest > sync { 1.0 } else { 0.0 })
    };
    // d(y^γ + s^γ)^(1/γ)/dy is y's share, y^γ/(y^γ + s^γ), times the root over y.
    (lead * compute + seconds, lead + share * seconds / compute)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exact(value: f64) -> Constant {
        Constant { value, error: 0.0 }
    }

    fn link(latency: f64, bandwidth: f64) -> Link {
        Link { latency: exact(latency), per_byte: exact(1.0 / bandwidth) }
    }

    pub(crate) fn profile() -> Profile {
        Profile {
            compute_constant: exact(0.01),
            compute_per_sample: exact(0.002),
            compute_floor: exact(0.0),
            update: exact(0.005),
            gradient_bytes: 1e8,
            buckets: 1.0,
            intra: link(5e-6, 1e11),
            inter: link(2e-5, 1e10),
            overlap: exact(1.0),
            lead: exact(0.0),
            memory_fixed: exact(2e9),
            memory_sharded: exact(0.0),
            memory_per_sample: exact(1e8),
            scatter: 0.0,
            measured: Measured { micro_batch: (1, 64), replicas_per_node: (1, 8), nodes: (1, 4) },
        }
    }

    const SHAPE: Shape =
        Shape { world_size: 8, gpus_per_node: 8, model_parallel: 1, micro_batch: 32, accumulation: 4 };

    #[test]
    fn overlap_lies_between_the_sum_and_the_longer() {
        let seconds = |compute, sync, lead, gamma| last_pass(compute, sync, lead, gamma).0;
        assert!((seconds(3.0, 4.0, 0.0, 2.0) - 5.0).abs() < 1e-12);
        assert!((seconds(3.0, 4.0, 0.0, 1.0) - 7.0).abs() < 1e-12);
        assert!((seconds(3.0, 0.0, 0.0, 2.0) - 3.0).abs() < 1e-12);
        assert!(seconds(3.0, 4.0, 0.0, 10.0) < 4.1);
        // Nothing hides behind the lead: 1 + √(3² + 4²).
        assert!((seconds(4.0, 4.0, 0.25, 2.0) - 6.0).abs() < 1e-12);
        assert!((seconds(3.0, 4.0, 1.0, 2.0) - 7.0).abs() < 1e-12);
        assert!((seconds(3.0, 0.0, 1.0, 2.0) - 3.0).abs() < 1e-12);
    }

    #[test]
    fn the_rise_of_the_last_pass_is_its_derivative() {
        for (compute, sync, lead, gamma) in
            [(3.0, 4.0, 0.0, 2.0), (4.0, 1.0, 0.3, 3.5), (2.0, 0.0, 0.5, 1.0), (1.0, 3.0, 1.0, 2.0)]
        {
            let seconds = |compute| last_pass(compute, sync, lead, gamma).0;
            let (_, rise) = last_pass(compute, sync, lead, gamma);
            assert!((rise - (seconds(compute + 1e-6) - seconds(compute - 1e-6)) / 2e-6).abs() < 1e-8);
        }
    }

    #[test]
    fn errors_add_as_squares() {
        let mut profile = profile();
        profile.compute_per_sample.error = 0.0001;
        profile.update.error = 0.003;
        profile.scatter = 0.01;
        let forecast = profile.forecast(&SHAPE, &AllReduceTable::default());
        let expected =
            [128.0 * 0.0001, 0.003, 0.01 * forecast.step_seconds].map(|e: f64| e * e).iter().sum::<f64>();
        assert!((forecast.step_error - expected.sqrt()).abs() < 1e-12);
    }

    #[test]
    fn the_largest_micro_batch_fits_in_memory() {
        assert_eq!(profile().largest_micro_batch(5.2e9, 4, 1 << 40), Some(32));
        assert_eq!(profile().largest_micro_batch(5.199e9, 4, 1 << 40), Some(31));
        assert_eq!(profile().largest_micro_batch(5.2e9, 4, 16), Some(16));
        assert_eq!(profile().largest_micro_batch(2.0e9, 4, 1 << 40), None);
        let sharded = Profile { memory_sharded: exact(8e9), ..profile() };
        let most = [1, 2, 8].map(|replicas| sharded.largest_micro_batch(1.02e10, replicas, 1 << 40));
        assert_eq!(most, [Some(2), Some(42), Some(72)]);
    }
}
