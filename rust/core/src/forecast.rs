//! How long a step takes, how much memory it needs, and how sure that is.
//!
//! One micro-batch of b samples takes x = max(floor, αc + βc·b). The gradients are reduced during the last of the a
//! micro-batches, in s seconds, and hide behind its computation as far as γ says: a step takes
//! (a − 1)·x + (x^γ + s^γ)^(1/γ) + the update (Qiao et al., Pollux, OSDI 2021, with an all-reduce that knows the
//! gradient's bytes in place of Pollux's line in the replica count).

/// A measured constant and half the width of its 95 % interval (0 where it is exact, or not known).
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Constant {
    /// The value.
    pub value: f64,
    /// Half the width of the interval, in the same unit.
    pub error: f64,
}

/// A link: what one message costs, and how fast bytes follow.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Link {
    /// Seconds a message.
    pub latency: Constant,
    /// Seconds a byte: one over the bandwidth.
    pub per_byte: Constant,
}

/// The constants of a workload on one kind of GPU and network. One that is not known is NaN, and so is every
/// forecast that needs it.
#[derive(Clone, Copy, Debug, PartialEq)]
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
    /// The links inside a node.
    pub intra: Link,
    /// The links between nodes.
    pub inter: Link,
    /// γ from 1 (nothing is hidden) to 10 (all that can be).
    pub overlap: Constant,
    /// Bytes whatever the micro-batch.
    pub memory_fixed: Constant,
    /// Bytes a sample of the micro-batch.
    pub memory_per_sample: Constant,
    /// Relative scatter of what was measured around the model, as half the width of a 95 % interval.
    pub scatter: f64,
    /// What was measured.
    pub measured: Measured,
}

/// The ranges that were measured, both ends in them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Measured {
    /// Samples a micro-batch.
    pub micro_batch: (u64, u64),
    /// Replicas inside a node.
    pub replicas_per_node: (u64, u64),
    /// Nodes.
    pub nodes: (u64, u64),
}

/// Where a job runs and how its batch is split.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// All GPUs.
    pub world_size: u64,
    /// GPUs of a node; the last node may be partly used.
    pub gpus_per_node: u64,
    /// GPUs that hold one replica.
    pub model_parallel: u64,
    /// Samples per replica per pass.
    pub micro_batch: u64,
    /// Passes per step.
    pub accumulation: u64,
}

/// What is to be expected of a [`Shape`].
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
}

impl Profile {
    /// Seconds of one micro-batch, forward and backward.
    #[must_use]
    pub fn compute_seconds(&self, micro_batch: f64) -> f64 {
        (self.compute_constant.value + self.compute_per_sample.value * micro_batch)
            .max(self.compute_floor.value)
    }

    /// Seconds to reduce the gradients over all replicas: a ring inside each node, then across nodes a ring or a
    /// tree, whichever is faster.
    #[must_use]
    pub fn sync_seconds(&self, shape: &Shape) -> f64 {
        let Replicas { per_node, groups, .. } = Replicas::of(shape);
        // Each GPU reduces its shard; what leaves a node is the shards of all its GPUs.
        let mine = self.gradient_bytes / shape.model_parallel as f64;
        let leaving = mine * shape.model_parallel.min(shape.gpus_per_node) as f64;
        ring(per_node, mine, self.intra)
            + ring(groups, leaving, self.inter).min(tree(groups, leaving, self.inter))
    }

    /// Seconds a step, given the seconds of one reducing.
    #[must_use]
    pub fn step_seconds(&self, micro_batch: u64, accumulation: u64, sync_seconds: f64) -> f64 {
        let compute = self.compute_seconds(micro_batch as f64);
        (accumulation - 1) as f64 * compute
            + overlapped(compute, sync_seconds, self.overlap.value)
            + self.update.value
    }

    /// What is to be expected of a shape.
    #[must_use]
    pub fn forecast(&self, shape: &Shape) -> Forecast {
        let replicas = Replicas::of(shape);
        let step = |profile: &Profile| {
            profile.step_seconds(shape.micro_batch, shape.accumulation, profile.sync_seconds(shape))
        };
        let sync_seconds = self.sync_seconds(shape);
        let step_seconds = self.step_seconds(shape.micro_batch, shape.accumulation, sync_seconds);
        let mut variance = (self.scatter * step_seconds).powi(2);
        for moved in self.moved() {
            variance += (step(&moved) - step_seconds).powi(2);
        }
        let unhindered = self.step_seconds(shape.micro_batch, shape.accumulation, 0.0);
        let samples = shape.micro_batch * shape.accumulation * replicas.all;
        let within = |value: u64, (low, high): (u64, u64)| low <= value && value <= high;
        Forecast {
            sync_seconds,
            step_seconds,
            step_error: variance.sqrt(),
            samples_per_second: samples as f64 / step_seconds,
            efficiency: unhindered / step_seconds,
            memory_bytes: self.memory_fixed.value + self.memory_per_sample.value * shape.micro_batch as f64,
            inside: within(shape.micro_batch, self.measured.micro_batch)
                && within(replicas.per_node, self.measured.replicas_per_node)
                && within(replicas.groups, self.measured.nodes),
        }
    }

    /// The profile with each of its uncertain constants moved by its error, one at a time.
    fn moved(&self) -> impl Iterator<Item = Profile> {
        let constants: [fn(&mut Profile) -> &mut Constant; 9] = [
            |p| &mut p.compute_constant,
            |p| &mut p.compute_per_sample,
            |p| &mut p.compute_floor,
            |p| &mut p.update,
            |p| &mut p.intra.latency,
            |p| &mut p.intra.per_byte,
            |p| &mut p.inter.latency,
            |p| &mut p.inter.per_byte,
            |p| &mut p.overlap,
        ];
        constants.into_iter().filter_map(|pick| {
            let mut moved = *self;
            let constant = pick(&mut moved);
            constant.value += constant.error;
            (constant.error > 0.0).then_some(moved)
        })
    }

    /// The largest micro-batch that fits into this many bytes, up to `most`; none where not even one sample does.
    #[must_use]
    pub fn largest_micro_batch(&self, bytes: f64, most: u64) -> Option<u64> {
        let fits = |b: u64| self.memory_fixed.value + self.memory_per_sample.value * b as f64 <= bytes;
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

/// How the replicas lie on the nodes.
struct Replicas {
    all: u64,
    /// Replicas that share a node.
    per_node: u64,
    /// Nodes, or groups of nodes where a replica spans several.
    groups: u64,
}

impl Replicas {
    fn of(shape: &Shape) -> Replicas {
        let all = shape.world_size / shape.model_parallel;
        let per_node = (shape.gpus_per_node / shape.model_parallel).clamp(1, all);
        Replicas { all, per_node, groups: all.div_ceil(per_node) }
    }
}

/// The time of two things of which γ says how far one hides behind the other: their sum at 1, the longer at ∞.
#[must_use]
pub fn overlapped(compute: f64, sync: f64, gamma: f64) -> f64 {
    overlapped_share(compute, sync, gamma).0
}

/// As [`overlapped`], with the computation's share in it, x^γ/(x^γ + s^γ).
#[must_use]
pub(crate) fn overlapped_share(compute: f64, sync: f64, gamma: f64) -> (f64, f64) {
    let (long, short) = if compute > sync { (compute, sync) } else { (sync, compute) };
    // (short/long)^γ, by its logarithm: nothing overflows, and what would not be seen beside 1 is not computed.
    let log_power = gamma * (short / long).ln();
    if log_power < -37.0 {
        return (long, if compute > sync { 1.0 } else { 0.0 });
    }
    let power = log_power.exp();
    let sum = 1.0 + power;
    (long * (sum.ln() / gamma).exp(), if compute > sync { 1.0 } else { power } / sum)
}

/// 2(n−1) messages, 2(n−1)/n of the bytes.
#[must_use]
pub fn ring(n: u64, bytes: f64, link: Link) -> f64 {
    if n < 2 {
        return 0.0;
    }
    let n = n as f64;
    2.0 * (n - 1.0) * (link.latency.value + bytes / n * link.per_byte.value)
}

/// 2·log2(n) messages, the bytes twice.
#[must_use]
pub fn tree(n: u64, bytes: f64, link: Link) -> f64 {
    if n < 2 { 0.0 } else { 2.0 * (n as f64).log2() * link.latency.value + 2.0 * bytes * link.per_byte.value }
}

#[cfg(test)]
pub(crate) mod tests {
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
            intra: link(5e-6, 1e11),
            inter: link(2e-5, 1e10),
            overlap: exact(1.0),
            memory_fixed: exact(2e9),
            memory_per_sample: exact(1e8),
            scatter: 0.0,
            measured: Measured { micro_batch: (1, 64), replicas_per_node: (1, 8), nodes: (1, 4) },
        }
    }

    const SHAPE: Shape =
        Shape { world_size: 8, gpus_per_node: 8, model_parallel: 1, micro_batch: 32, accumulation: 4 };

    #[test]
    fn the_ring_of_the_textbook() {
        // 8 ranks, 100 MB, 100 GB/s, 5 µs: 1.82 ms.
        assert!((ring(8, 1e8, link(5e-6, 1e11)) - 0.00182).abs() < 1e-12);
        assert!((profile().sync_seconds(&SHAPE) - 0.00182).abs() < 1e-12);
        assert!(ring(1, 1e8, link(5e-6, 1e11)).abs() < 1e-15 && tree(1, 1e8, link(5e-6, 1e11)).abs() < 1e-15);
    }

    #[test]
    fn a_step_without_overlap_is_the_sum_of_its_parts() {
        let forecast = profile().forecast(&SHAPE);
        let (compute, sync) = (4.0 * 0.074, 0.00182);
        assert!((forecast.step_seconds - (compute + sync + 0.005)).abs() < 1e-12);
        assert!((forecast.efficiency - (compute + 0.005) / (compute + sync + 0.005)).abs() < 1e-12);
        assert!((forecast.samples_per_second - 1024.0 / forecast.step_seconds).abs() < 1e-9);
        assert!((forecast.memory_bytes - 5.2e9).abs() < 1.0);
        assert!(forecast.inside);
    }

    #[test]
    fn overlap_lies_between_the_sum_and_the_longer() {
        assert!((overlapped(3.0, 4.0, 2.0) - 5.0).abs() < 1e-12);
        assert!((overlapped(3.0, 4.0, 1.0) - 7.0).abs() < 1e-12);
        assert!((overlapped(3.0, 0.0, 2.0) - 3.0).abs() < 1e-12);
        assert!(overlapped(3.0, 4.0, 10.0) < 4.1);
    }

    #[test]
    fn errors_add_as_squares() {
        let mut profile = profile();
        profile.compute_per_sample.error = 0.0001;
        profile.update.error = 0.003;
        profile.scatter = 0.01;
        let forecast = profile.forecast(&SHAPE);
        let expected =
            [128.0 * 0.0001, 0.003, 0.01 * forecast.step_seconds].map(|e: f64| e * e).iter().sum::<f64>();
        assert!((forecast.step_error - expected.sqrt()).abs() < 1e-12);
    }

    #[test]
    fn beyond_what_was_measured() {
        let inside = |shape: Shape| profile().forecast(&shape).inside;
        assert!(!inside(Shape { micro_batch: 65, ..SHAPE }));
        assert!(inside(Shape { world_size: 32, ..SHAPE }));
        assert!(!inside(Shape { world_size: 40, ..SHAPE }));
    }

    #[test]
    fn a_replica_over_two_nodes_reduces_across_nodes_only() {
        let shape = Shape { world_size: 32, gpus_per_node: 8, model_parallel: 16, ..SHAPE };
        let seconds = profile().sync_seconds(&shape);
        assert!((seconds - ring(2, 5e7, profile().inter)).abs() < 1e-12);
    }

    #[test]
    fn the_largest_micro_batch_that_fits() {
        assert_eq!(profile().largest_micro_batch(5.2e9, 1 << 40), Some(32));
        assert_eq!(profile().largest_micro_batch(5.199e9, 1 << 40), Some(31));
        assert_eq!(profile().largest_micro_batch(5.2e9, 16), Some(16));
        assert_eq!(profile().largest_micro_batch(2.0e9, 1 << 40), None);
    }
}
