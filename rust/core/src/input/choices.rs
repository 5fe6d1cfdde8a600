//! The choices of fields with named values.

use crate::batch::MAX_BATCH;

/// The values that stay when the GPU count changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// The effective batch and the learning rate.
    Keep,
    /// The samples per replica: the batch grows with the replicas.
    Grow,
    /// This effective batch.
    Batch(u64),
    /// The batch that reaches the same loss soonest.
    Goodput,
}

impl Policy {
    /// The names that users write; a batch is written as its number.
    pub const NAMED: [(&'static str, Policy); 3] =
        [("keep", Policy::Keep), ("grow", Policy::Grow), ("goodput", Policy::Goodput)];
}

/// Whether the samples of a step may be dealt unevenly, where they cannot be dealt evenly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SplitRule {
    /// Never.
    Even,
    /// Some replicas have one more micro-batch than others.
    Uneven,
    /// Micro-batches differ in size.
    Ragged,
    /// Never: the batch becomes the largest below it that can be dealt evenly.
    Smaller,
}

impl SplitRule {
    /// The names that users write.
    pub const ALL: [(&'static str, SplitRule); 4] = [
        ("even", SplitRule::Even),
        ("uneven", SplitRule::Uneven),
        ("ragged", SplitRule::Ragged),
        ("smaller", SplitRule::Smaller),
    ];

    /// Whether replicas or micro-batches may differ.
    pub(crate) fn differs(self) -> bool {
        matches!(self, SplitRule::Uneven | SplitRule::Ragged)
    }
}

/// How the second moment's β follows the batch: `auto` or `half_life`, behind a colon a floor.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Beta2Rule {
    /// Whether it keeps its half-life in samples where the rule does not move it.
    pub half_life: bool,
    /// A lowered β2 stays above this.
    pub floor: f64,
}

impl Beta2Rule {
    /// As the scaling rule has it.
    pub const AUTO: Beta2Rule = Beta2Rule { half_life: false, floor: 0.0 };

    pub(super) fn parse(text: &str) -> Option<Beta2Rule> {
        let (name, floor) = text.split_once(':').unwrap_or((text, "0"));
        let half_life = match name.trim() {
            "auto" => false,
            "half_life" => true,
            _ => return None,
        };
        let floor = floor.trim().parse().ok().filter(|floor| (0.0..1.0).contains(floor))?;
        Some(Beta2Rule { half_life, floor })
    }
}

/// How much longer the run is than the tuned one, and by which law the learning rate follows: `RATIO` or
/// `RATIO^POWER`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DurationScale {
    /// The length of the run over that of the one that the learning rate was tuned for.
    pub ratio: f64,
    /// The learning rate is multiplied by the ratio to minus this; `None`: it stays.
    pub power: Option<f64>,
}

impl DurationScale {
    pub(super) fn parse(text: &str) -> Option<DurationScale> {
        let number = |text: &str| text.trim().parse().ok().filter(|x: &f64| x.is_finite());
        let (ratio, power) = match text.split_once('^') {
            None => (text, None),
            Some((ratio, power)) => (ratio, Some(number(power)?)),
        };
        number(ratio).filter(|ratio| *ratio > 0.0).map(|ratio| DurationScale { ratio, power })
    }
}

/// The number format that a training step computes in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Precision {
    /// IEEE single precision.
    Fp32,
    /// Single precision whose products are rounded to 10 bits on tensor cores.
    Tf32,
    /// Brain floating point under autocast.
    Bf16,
    /// Half precision under autocast.
    Fp16,
}

/// The adapter that is trained in the place of all weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Adapter {
    /// Matrices of low rank beside the weights.
    Lora,
}

impl Adapter {
    /// The names that users write.
    pub const ALL: [(&'static str, Adapter); 1] = [("lora", Adapter::Lora)];
}

/// Why the loss of a sample depends on the other samples of its micro-batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Coupling {
    /// Batch norm averages over the micro-batch.
    BatchNorm,
    /// A contrastive loss takes the other samples as negatives.
    Negatives,
    /// A loss balances the experts over the micro-batch's tokens.
    Experts,
}

impl Coupling {
    /// The names that users write.
    pub const ALL: [(&'static str, Coupling); 3] = [
        ("batch_norm", Coupling::BatchNorm),
        ("negatives", Coupling::Negatives),
        ("experts", Coupling::Experts),
    ];
}

impl Precision {
    /// Bytes of a weight, and of its gradient.
    #[must_use]
    pub fn bytes(self) -> u64 {
        match self {
            Precision::Fp32 | Precision::Tf32 => 4,
            Precision::Bf16 | Precision::Fp16 => 2,
        }
    }

    /// The names that users write, in the order of the variants.
    pub const ALL: [(&'static str, Precision); 4] = [
        ("fp32", Precision::Fp32),
        ("tf32", Precision::Tf32),
        ("bf16", Precision::Bf16),
        ("fp16", Precision::Fp16),
    ];
}

/// The batches of unequal devices, one for each replica: what a plan needs of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceBatches {
    /// Samples of all of them.
    pub samples: u64,
    /// How many there are.
    pub devices: u64,
}

impl DeviceBatches {
    /// The batches of a list; `None` where it is empty, or one of them is no batch.
    #[must_use]
    pub fn of(batches: impl IntoIterator<Item = Option<i64>>) -> Option<DeviceBatches> {
        let (mut samples, mut devices) = (0_u64, 0);
        for batch in batches {
            let batch = batch.and_then(|n| u64::try_from(n).ok()).filter(|n| (1..=MAX_BATCH).contains(n))?;
            samples = samples.saturating_add(batch);
            devices += 1;
        }
        (devices > 0).then_some(DeviceBatches { samples, devices })
    }
}
