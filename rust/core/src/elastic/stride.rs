//! The steps in which counts are taken.

use super::config::Config;
use crate::numbers::lcm;

/// Counts are j strides: of `gpus` GPUs, and of `replicas` replicas, which are pushed into the micro-batches.
#[derive(Clone, Copy)]
pub(super) struct Stride {
    pub(super) gpus: u64,
    pub(super) replicas: u64,
}

impl Stride {
    pub(super) fn of(config: &Config) -> Self {
        let gpus = lcm(config.model_parallel, config.gpus_per_node.unwrap_or(1));
        Self { gpus, replicas: gpus / config.model_parallel }
    }
}
