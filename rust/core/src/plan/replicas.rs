//! The replicas of a row.

use crate::batch::Split;
use crate::lengths::Layout;

/// The replicas over which a batch is laid out.
#[derive(Clone, Copy)]
pub(super) struct Replicas {
    /// How many there are.
    pub count: u64,
    /// GPUs that hold one.
    pub model_parallel: u64,
    /// The GPUs hold whole sets of experts only where their replicas are a multiple of this.
    pub group: u64,
    /// The divisor of each micro-batch.
    pub divisor: u64,
    /// No micro-batch is larger.
    pub cap: u64,
}

impl Replicas {
    /// The GPUs of so many.
    pub fn gpus(self, count: u64) -> u64 {
        count.saturating_mul(self.model_parallel)
    }

    pub fn layout(self, effective_batch: u64, split: Split, ragged: bool) -> Layout {
        let Split { micro_batch, accumulation } = split;
        Layout { effective_batch, data_parallel: self.count, micro_batch, accumulation, ragged }
    }
}
