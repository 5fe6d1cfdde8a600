//! What to hold when the GPU count changes.

/// What to hold when the GPU count changes.
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
